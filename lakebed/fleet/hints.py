"""What the outside says about tables that have changed, and how soon a worker acts on it.

    ["s3://lake/shop/public/orders"]                                  POST /poke, by a writer or a script
    {"Records": [{"s3": {"bucket": {"name": "lake"}, "object": {"key": "shop/public/orders/_delta_log/0…07.json"}}}]}

1. Of the events only those count that say that a commit was written: its key ends with ``/_delta_log/<version>.json``.
2. Keys are URL-encoded, as a form is (``+`` for a space). Some servers do not encode them, so the key as it stands is a candidate
   too: a table that does not exist is nobody's.

A hint is never needed, and never believed: whoever gets it looks at the log. So one that is lost, late or wrong costs nothing, or
a look.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote_plus

from lakebed.errors import InvalidInput, LakebedError
from lakebed.log.stores import LOG_FOLDER
from lakebed.storage.roots import parse_root

_FORMS = 'a list of roots of tables, or the JSON of S3\'s events with "Records"'
_COMMIT = re.compile(rf"(?:(.*)/)?{LOG_FOLDER}/([0-9]{{20}})\.json", re.DOTALL)
_SHOWN_MAX = 200


@dataclass(frozen=True, slots=True)
class Hint:
    """A table may have changed. ``roots``: one of these, the likeliest first; ``version``: that was committed, if known."""

    roots: tuple[str, ...]
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """``malformed``: records that are no events of S3. Events that are about no commit are in neither."""

    hints: tuple[Hint, ...] = ()
    malformed: int = 0


def message_of(value: object) -> Message:
    """What the JSON of a message says. Raises InvalidInput for one of another form."""
    match value:
        case str():
            return Message(hints=(_of_root(value, "the body"),))
        case list():
            return Message(hints=tuple(_of_root(root, f"the body[{number}]") for number, root in enumerate(value)))
        case {"Records": list(records)}:
            found = [_of_event(record) for record in records]
            hints = tuple(hint for hint in found if isinstance(hint, Hint))
            return Message(hints=hints, malformed=found.count("malformed"))
        case {"Event": "s3:TestEvent"}:  # what S3 sends when notifications are set up
            return Message()
    raise InvalidInput(f"a hint is {_FORMS}; this is {_shown(value)}")


def _of_root(root: object, place: str) -> Hint:
    if not isinstance(root, str):
        raise InvalidInput(
            f"{place}: the root of a table is a text such as s3://lake/shop/orders; this is {_shown(root)}"
        )
    try:
        return Hint((str(parse_root(root)),))
    except LakebedError as error:
        raise InvalidInput(f"{place}: {error}") from None


def _of_event(record: object) -> Hint | str:
    """The hint of one record; "other" if it is about no commit, "malformed" if it is no event of S3."""
    match record:
        case {"s3": {"bucket": {"name": str(bucket)}, "object": {"key": str(key)}}, **rest}:
            if not _is_created(rest):
                return "other"
            found = [_COMMIT.fullmatch(each) for each in dict.fromkeys((unquote_plus(key), key))]
            roots = [f"s3://{bucket}/{each[1]}" if each[1] else f"s3://{bucket}" for each in found if each]
            versions = [int(each[2]) for each in found if each]
            return Hint(tuple(roots), versions[0]) if roots else "other"
    return "malformed"


def _is_created(record: Mapping[object, object]) -> bool:
    """``ObjectCreated:Put``, also spelled ``s3:ObjectCreated:Put``; a record without a name may be one."""
    name = record.get("eventName", "ObjectCreated:")
    return isinstance(name, str) and name.removeprefix("s3:").startswith("ObjectCreated:")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


# -- How soon something runs again for hints -------------------------------------------------------------------------------
#
# A hint that comes during a run waits for its end, since only then it is known how long to wait after it.


class HintPace:
    """The hints of one job. ``hinted`` is for any thread, ``begins`` and ``ends`` are for the one that runs the job."""

    def __init__(self) -> None:
        self.not_before = -math.inf
        """When the job may run for a hint, by the monotonic clock. Set it before ``ends``."""
        self._changed = threading.Lock()
        self._is_hinted = self._runs = False

    def hinted(self) -> float | None:
        """A hint has come. Returns in how many seconds to run for it; None: it is planned, or ``ends`` will say when."""
        with self._changed:
            if self._is_hinted:
                return None
            self._is_hinted = True
            return None if self._runs else self._seconds_left()

    def begins(self) -> bool:
        """The job runs from now on; returns whether a hint has come since it ran last."""
        with self._changed:
            was_hinted, self._is_hinted, self._runs = self._is_hinted, False, True
            return was_hinted

    def ends(self) -> float:
        """The job has run; returns in how many seconds to run for a hint that came meanwhile. Infinity: none did."""
        with self._changed:
            self._runs = False
            return self._seconds_left() if self._is_hinted else math.inf

    def _seconds_left(self) -> float:
        return max(0.0, self.not_before - time.monotonic())
