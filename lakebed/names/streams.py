"""Streams that are written to a table by its name: ``df.writeStream.toTable("lake.shop.orders")``.

Each batch is brought as ``Table.ingest`` brings it: in one commit, which has the number of the batch and the id of the query, so
a batch that Spark repeats is left out. A row that does not fit ends the query, as it ends an INSERT. In the mode ``complete`` a
batch is all rows, and replaces those of the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakebed.ingest.apply import How, frame_changes
from lakebed.ingest.stream import Backpressure, FrameIngest
from lakebed.schema.fitting import EvolvePolicy
from lakebed.table import Table, internals_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_HOW = How(policy=EvolvePolicy(on_mismatch="fail"))


class StreamedTable:
    """A table that streams are written to."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._backpressure = Backpressure(table.path, internals_of(table).log)

    def bring(self, rows: DataFrame, batch_id: int, *, replaces: bool) -> None:
        """Bring a batch. Raises InvalidChanges, InvalidInput, Contention, StoreUnavailable."""
        if replaces:
            self._table.overwrite(rows)
            return
        internals = internals_of(self._table)
        evolution = internals.evolution("a stream needs it")
        stream, frame, _ = frame_changes(rows, _HOW, internals.log, evolution, strict=True)
        common = internals.path, internals.log, stream, "fail", internals.quarantine_log
        FrameIngest(*common, backpressure=self._backpressure)(frame, batch_id)
