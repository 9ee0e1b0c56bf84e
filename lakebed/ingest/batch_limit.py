"""The size of the next batch: all that waits, or less while maintenance is behind (``planning.backpressure``)."""

from __future__ import annotations

from lakebed.errors import Retry, TableNotFound
from lakebed.manifest.stores import open_store
from lakebed.manifest.table_log import TableLog
from lakebed.planning.backpressure import pressure

_ROWS_AT_FIRST = 200_000


class BatchLimit:
    """How many rows the next batch may take. It reads the table's log itself: batches are planned in a process of their own."""

    def __init__(self, table: str | None) -> None:
        """Without a table there is no pressure."""
        self._log = None if table is None else TableLog(open_store(table))
        self._usual = _ROWS_AT_FIRST

    def limit(self, waiting: int) -> int:
        """How many of the rows that wait the next batch may have."""
        if self._log is None or not waiting:
            return waiting
        try:
            now = pressure(self._log.refresh())
        except (TableNotFound, Retry):
            return waiting
        if now.factor == 1:
            self._usual = waiting
            return waiting
        return min(waiting, now.limit(self._usual))
