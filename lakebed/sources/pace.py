"""When the next batch begins, and how much it may read.

**When.** A batch has a fixed cost, so events that come shortly after one wait for each other.

1. An event that comes ``seconds`` or more after the last batch began is a batch at once.
2. One that comes sooner waits until ``seconds`` have passed, counted from when the last batch began. So a batch that takes longer
   is followed by the next one without a pause.
3. After a batch that left events behind, because of a limit, the next one begins at once.

**How much** is said by the log of the table (``BatchLimit``): how far it has read, and whether maintenance is behind. The size
of the next batch is all waiting rows, or fewer while maintenance is behind (``planning.settling``).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from lakebed.errors import Retry, TableNotFound
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.planning.settling import pressure
from lakebed.positions.positions import Position, positions_of

BATCH_SECONDS = 0.75
"""The pace of a pipeline. A shorter one costs more, and a longer one makes events older."""
HOT_RECORDS = 1_000
"""About as many cost as much to decode and write as a table's commit and all that follows it."""


class Pace:
    """Says how long the next batch still waits."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._due = clock()

    def wait_seconds(self) -> float:
        """Seconds until a batch may begin; 0 or less if it may now."""
        return self._due - self._clock()

    def began(self, left_some: bool = False) -> None:
        """A batch begins now; ``left_some``: events that were there are not in it."""
        self._due = self._clock() + (0.0 if left_some else self._seconds)


_ROWS_AT_FIRST = 200_000


class BatchLimit:
    """Limits the rows of the next batch. It reads the table's log itself, since a separate process plans the batches."""

    def __init__(self, table: str | None) -> None:
        """Without a table there is no backpressure, so no limit."""
        self._log = None if table is None else TableLog(open_store(table))
        self._usual = _ROWS_AT_FIRST

    def snapshot(self) -> Snapshot | None:
        """The table as it is; None if that is not known now."""
        if self._log is None:
            return None
        try:
            return self._log.refresh()
        except (TableNotFound, Retry):
            return None

    def positions(self) -> dict[str, Position]:
        """Up to where the table has read its topics; nothing if that is not known now."""
        snapshot = self.snapshot()
        return {} if snapshot is None else positions_of(snapshot)

    def limit(self, waiting: int) -> int:
        """How many of the ``waiting`` rows the next batch may take."""
        snapshot = self.snapshot() if waiting else None
        if snapshot is None:
            return waiting
        now = pressure(snapshot)
        if now.factor == 1:
            self._usual = waiting
            return waiting
        return min(waiting, now.limit(self._usual))
