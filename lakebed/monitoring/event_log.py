"""Events as lines of Python's ``logging``, on the logger ``lakebed``: one a line, in fields.

    logging.basicConfig(level=logging.INFO)
    stop = log_events()

1. An event becomes a record whose message is logfmt: ``event=settled table=s3://lake/orders version=12 rows=500 …``. The fields
   are those of the event (``lakebed.events``), so what joins with the timeline is in them: version, query and batch_id, claim,
   replica.
2. Its level: ERROR and WARNING for what somebody should look at, INFO for what happened to a table, DEBUG for what comes in
   great numbers (requests to a store, samples), or what another line says.
3. ``LogfmtFormatter`` and ``JsonFormatter`` put the time and the level before the fields, and give any other record of lakebed's
   loggers the same form. The text of a value is redacted before it is spelled, so escaping hides no secret.
"""

from __future__ import annotations

import json
import logging
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import fields

from lakebed import events
from lakebed.events import (
    BatchCommitted,
    BatchReplayed,
    ClaimChanged,
    CommitEnded,
    CommitGivenUp,
    Event,
    IngestDelayed,
    InvariantViolated,
    MergeBegan,
    MergeEnded,
    MergeFailed,
    MutationBegan,
    MutationEnded,
    MutationFailed,
    OffsetsLost,
    QueryChanged,
    Settled,
    SourceLagged,
    StoreRequested,
    TaskMeasured,
    Uploaded,
    ViewRefreshed,
)
from lakebed.manifest.entries import Operation

Value = str | int | float | bool
FIELDS = "lakebed_fields"
_logger = logging.getLogger("lakebed")
_NAMES = {"level": "part_level"}
_PLAIN = re.compile(r"[^\s\"=\\\x00-\x1f\x7f]+")
_TOLD_BY_OTHERS = frozenset(
    {
        Operation.STREAMING_UPDATE, Operation.APPLY, Operation.SETTLE, Operation.MERGE, Operation.UPLOAD, Operation.DELETE,
        Operation.UPDATE, Operation.CLAIM, Operation.EXTEND_CLAIM, Operation.ABANDON_CLAIM,
    }
)  # fmt: skip


def log_events() -> Callable[[], None]:
    """Log every event of this process from now on; returns what ends it."""
    return events.listen(log_event)


def log_event(event: Event) -> None:
    """A listener: log one event."""
    level = level_of(event)
    if _logger.isEnabledFor(level):
        log_fields(level, name_of(event), fields_of(event))


def log_fields(level: int, name: str, values: Mapping[str, Value]) -> None:
    """Log something that is no event of ``lakebed.events`` in the form of one."""
    said = {"event": name, **values}
    _logger.log(level, logfmt(said), extra={FIELDS: said})


def name_of(event: Event) -> str:
    """``MergeEnded`` is ``merge_ended``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(event).__name__).lower()


def level_of(event: Event) -> int:
    """The level at which an event is logged."""
    match event:
        case MergeFailed(parked=True) | MutationFailed() | QueryChanged(state="failed") | InvariantViolated():
            return logging.ERROR
        case MergeFailed() | OffsetsLost() | IngestDelayed() | QueryChanged(state="waiting"):
            return logging.WARNING
        case ClaimChanged(result=result):
            return {"taken": logging.DEBUG, "abandoned": logging.INFO}.get(result, logging.WARNING)
        case CommitEnded(result="unknown") | CommitGivenUp():
            return logging.WARNING
        case CommitEnded(result="committed", operation=operation) if operation in _TOLD_BY_OTHERS:
            return logging.DEBUG
        case StoreRequested() | SourceLagged() | TaskMeasured():
            return logging.DEBUG
        case (
            BatchCommitted() | BatchReplayed() | Settled() | ViewRefreshed() | MergeBegan() | MergeEnded() | Uploaded()
            | MutationBegan() | MutationEnded() | CommitEnded() | QueryChanged()
        ):  # fmt: skip
            return logging.INFO


def fields_of(event: Event) -> dict[str, Value]:
    """The fields of an event that say something: None and empty texts are left out, and versions that there are not.

    A level of parts is ``part_level``: ``level`` is the line's own.
    """
    values = {_NAMES.get(field.name, field.name): getattr(event, field.name) for field in fields(event)}
    return {
        name: round(value, 6) if isinstance(value, float) else value
        for name, value in values.items()
        if value is not None and value != "" and (name, value) != ("version", -1)
    }


def logfmt(values: Mapping[str, Value]) -> str:
    """``name=value`` with a space between; a value with spaces, quotes, ``=`` or what can't be seen is a JSON string."""
    return " ".join(f"{name}={_spelled(value)}" for name, value in values.items())


def _spelled(value: Value) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if not text.isprintable():  # a terminal would obey it
        return json.dumps(text)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


class _FieldFormatter(logging.Formatter):
    """``redact`` is applied to every text before it is spelled."""

    def __init__(self, redact: Callable[[str], str] = str) -> None:
        super().__init__()
        self.redact = redact

    def fields_of(self, record: logging.LogRecord) -> dict[str, Value]:
        """Time (UTC) and level, then what the record says."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        out: dict[str, Value] = {"time": f"{moment}.{int(record.msecs):03d}Z", "level": record.levelname.lower()}
        said: Mapping[str, Value] | None = getattr(record, FIELDS, None)
        out |= said or {"event": "message", "logger": record.name, "message": " ".join(record.getMessage().split())}
        if record.exc_info:
            out["trace"] = self.formatException(record.exc_info)
        return {name: self.redact(value) if isinstance(value, str) else value for name, value in out.items()}


class LogfmtFormatter(_FieldFormatter):
    """``time=… level=info event=…``."""

    def format(self, record: logging.LogRecord) -> str:
        return logfmt(self.fields_of(record))


class JsonFormatter(_FieldFormatter):
    """A JSON object a line, in ASCII, whatever stderr is encoded in; numbers that JSON has no word for are texts."""

    def format(self, record: logging.LogRecord) -> str:
        said = self.fields_of(record)
        finite = {
            name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in said.items()
        }
        return json.dumps(finite)
