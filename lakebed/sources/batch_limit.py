"""What the log of the table says to the process that plans batches: how far it has read, and whether maintenance is behind.

The size of the next batch is all waiting rows, or fewer while maintenance is behind (``planning.backpressure``).
"""

from __future__ import annotations

from lakebed.errors import Retry, TableNotFound
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.planning.backpressure import pressure
from lakebed.positions.positions import Position, positions_of

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
