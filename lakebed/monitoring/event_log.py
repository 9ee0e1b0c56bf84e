"""Logs each event as one line of fields, with Python's ``logging``, on the logger ``lakebed``.

    logging.basicConfig(level=logging.DEBUG)
    stop = log_events()

1. An event becomes a record whose message is logfmt: ``event=settled table=s3://lake/orders version=12 rows=500 …``. The fields
   are those of the event (``lakebed.events``). They include what a join with the timeline needs: version, query and batch_id,
   claim, replica.
2. The levels: ERROR and WARNING if a person should look at it, INFO if something was done to a table or a query, DEBUG for
   what ingest and maintenance do all the time (batches, settles, merges, requests to a store) and for what another line reports.
3. ``LogfmtFormatter`` and ``JsonFormatter`` put the time and the level before the fields, and give any other record of lakebed's
   loggers the same form. A value is redacted before it is escaped, so escaping hides no secret from the redaction.
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
    ClaimChanged,
    CommitEnded,
    CommitGivenUp,
    Event,
    EventsDelivered,
    HintsReceived,
    IcebergMetadataDamaged,
    IngestDelayed,
    InvariantViolated,
    ListenerSeen,
    MergeBegan,
    MergeEnded,
    MergeFailed,
    MutationFailed,
    OffsetsLost,
    PartReplicated,
    PointTaken,
    QueryChanged,
    RemarkMade,
    Settled,
    SourceLagged,
    StoreRequested,
    TableParked,
    TaskMeasured,
    Uploaded,
    ViewRefreshed,
    WorkerObserved,
)
from lakebed.log.entries import Operation

Value = str | int | float | bool
FIELDS = "lakebed_fields"
_logger = logging.getLogger("lakebed")
_NAMES = {"level": "part_level"}
_PLAIN = re.compile(r"[^\s\"=\\\x00-\x1f\x7f]+")
_LOGGED_BY_OTHERS = frozenset(
    {
        Operation.STREAMING_UPDATE,
        Operation.APPLY,
        Operation.SETTLE,
        Operation.MERGE,
        Operation.UPLOAD,
        Operation.INSERT,
        Operation.DELETE,
        Operation.UPDATE,
        Operation.MERGE_INTO,
        Operation.CLAIM,
        Operation.EXTEND_CLAIM,
        Operation.ABANDON_CLAIM,
        Operation.POINT,
        Operation.LISTENER,
    }
)


def log_events() -> Callable[[], None]:
    """Log every event of this process from now on; returns a function that stops it."""
    return events.listen(log_event)


def log_event(event: Event) -> None:
    """A listener: log one event."""
    level = level_of(event)
    if _logger.isEnabledFor(level):
        log_fields(level, name_of(event), fields_of(event))


def log_fields(level: int, name: str, values: Mapping[str, Value]) -> None:
    """Log something that is no event of ``lakebed.events`` in the form of one."""
    logged = {"event": name, **values}
    _logger.log(level, logfmt(logged), extra={FIELDS: logged})


def name_of(event: Event) -> str:
    """``MergeEnded`` is ``merge_ended``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(event).__name__).lower()


def level_of(event: Event) -> int:
    """The level at which an event is logged."""
    match event:
        case (
            MergeFailed(parked=True)
            | MutationFailed()
            | QueryChanged(state="failed")
            | InvariantViolated()
            | TableParked()
        ):
            return logging.ERROR
        case QueryChanged(routine=True) | MergeFailed(passes=True):  # an outage is warned of once
            return logging.DEBUG
        case MergeFailed() | OffsetsLost() | IngestDelayed() | QueryChanged(state="waiting") | IcebergMetadataDamaged():
            return logging.WARNING
        case ClaimChanged(result=result):
            return {"taken": logging.DEBUG, "abandoned": logging.INFO}.get(result, logging.WARNING)
        case CommitEnded(result="unknown") | CommitGivenUp():
            return logging.WARNING
        case CommitEnded(result="conflicted"):
            return logging.DEBUG
        case CommitEnded(result="committed", operation=operation) if operation in _LOGGED_BY_OTHERS:
            return logging.DEBUG
        case (
            BatchCommitted()
            | Settled()
            | ViewRefreshed()
            | MergeBegan()
            | MergeEnded()
            | Uploaded()
            | PartReplicated()
            | StoreRequested()
            | SourceLagged()
            | TaskMeasured()
            | RemarkMade()
            | PointTaken()
            | WorkerObserved()
            | HintsReceived()
            | ListenerSeen()
            | EventsDelivered(failures=0)
        ):
            return logging.DEBUG
        case _:
            return logging.INFO


def fields_of(event: Event) -> dict[str, Value]:
    """The fields of an event with a value: without None, empty texts, the version -1, which means none, and what is not routine.

    A level of parts is ``part_level``: ``level`` is the line's own.
    """
    values = {_NAMES.get(field.name, field.name): getattr(event, field.name) for field in fields(event)}
    return {
        name: round(value, 6) if isinstance(value, float) else value
        for name, value in values.items()
        if value is not None and value != "" and (name, value) not in (("version", -1), ("routine", False))
    }


def logfmt(values: Mapping[str, Value]) -> str:
    """``name=value`` with a space between; a value with spaces, quotes, ``=`` or unprintable characters is a JSON string."""
    return " ".join(f"{name}={_escaped(value)}" for name, value in values.items())


def _escaped(value: Value) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if not text.isprintable():  # a terminal would execute it
        return json.dumps(text)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


class _FieldFormatter(logging.Formatter):
    """``redact`` is applied to every text before it is escaped."""

    def __init__(self, redact: Callable[[str], str] = str) -> None:
        super().__init__()
        self.redact = redact

    def fields_of(self, record: logging.LogRecord) -> dict[str, Value]:
        """Time (UTC) and level, then the fields of the record."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        out: dict[str, Value] = {"time": f"{moment}.{int(record.msecs):03d}Z", "level": record.levelname.lower()}
        logged: Mapping[str, Value] | None = getattr(record, FIELDS, None)
        out |= logged or {"event": "message", "logger": record.name, "message": " ".join(record.getMessage().split())}
        if record.exc_info:
            out["trace"] = self.formatException(record.exc_info)
        return {name: self.redact(value) if isinstance(value, str) else value for name, value in out.items()}


class LogfmtFormatter(_FieldFormatter):
    """``time=… level=info event=…``."""

    def format(self, record: logging.LogRecord) -> str:
        return logfmt(self.fields_of(record))


class JsonFormatter(_FieldFormatter):
    """One JSON object per line, in ASCII for any encoding of stderr; numbers that JSON lacks are texts."""

    def format(self, record: logging.LogRecord) -> str:
        finite = {
            name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in self.fields_of(record).items()
        }
        return json.dumps(finite)
