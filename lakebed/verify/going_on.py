"""How far a comparison is, in the log of its table: one that was stopped goes on from there.

Each group of buckets is compared at a position of its own anyway (``proof``), so rows that were equal some days ago and rows that
are compared now make one proof as well: of what a pipeline makes of changes, not of rows that people change in the table behind
it. It begins again if something differed, if what is compared has changed since or is of another database, if the table was
restored (``operations.restore``), or if it stopped more than ``DAYS_MAX`` days ago.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from lakebed.errors import LakebedError
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.positions.verified import Verifying, note_verifying, verifying_of
from lakebed.verify.canonical import Shape
from lakebed.verify.comparing import Key, Tally
from lakebed.verify.proof import Found

SAVE_SECONDS, DAYS_MAX = 60.0, 7
_DAY_MS = 86_400_000
_logger = logging.getLogger("lakebed.verify")


@dataclass(slots=True)
class GoingOn:
    """Of one comparison of one table. ``source``: the table that it is compared with, and its database; ``is_on``: False if it
    always begins at the beginning."""

    log: TableLog
    shape: Shape
    source: str
    is_on: bool = True
    clock: Callable[[], float] = time.monotonic
    _began: float = 0.0
    _earlier_seconds: float = 0.0
    _saved: float = 0.0

    def begin(self, snapshot: Snapshot) -> tuple[Key | None, Found | None]:
        """After which key the comparison goes on, and what was found up to there; None for all of it."""
        self._began = self._saved = self.clock()
        earlier = verifying_of(snapshot)
        is_old = earlier is not None and self.log.now_ms() - earlier.time_ms > DAYS_MAX * _DAY_MS
        if not self.is_on or earlier is None or is_old or earlier.shape != self._digest():
            return None, None
        self._earlier_seconds = earlier.seconds
        rows = Tally(rows=earlier.rows, sum=int(earlier.sum))
        return earlier.after, Found(rows=rows, buckets=earlier.buckets, first_position=earlier.first_position)

    @property
    def seconds(self) -> float:
        """How long it has taken so far, without the time for which it was stopped."""
        return self._earlier_seconds + self.clock() - self._began

    def take(self, after: Key, found: Found) -> None:
        """All rows up to a key are equal. It is written down, but not more often than every ``SAVE_SECONDS``."""
        if not self.is_on or self.clock() - self._saved < SAVE_SECONDS:
            return
        self._saved = self.clock()
        now = Verifying(
            time_ms=self.log.now_ms(),
            shape=self._digest(),
            after=tuple(after),
            rows=found.rows.rows,
            sum=str(found.rows.sum),
            buckets=found.buckets,
            first_position=found.first_position,
            seconds=self.seconds,
        )
        written(self.log.root, lambda: note_verifying(self.log, now))

    def _digest(self) -> str:
        """Of all that decides what is compared, and how."""
        columns = [(one.name, one.source_name, one.kind, one.rule.source, one.rule.lake) for one in self.shape.columns]
        text = repr((self.source, [one.name for one in self.shape.keys], columns, self.shape.is_ordered))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def written(root: str, write: Callable[[], None]) -> None:
    """Write into a table what a comparison has shown. It goes on without what can't be written."""
    try:
        write()
    except LakebedError as error:
        _logger.warning("what a comparison has shown can't be written into %s: %s", root, error)
