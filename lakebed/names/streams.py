"""Streams of a table by its name.

**That are written to it**: ``df.writeStream.toTable("lake.shop.orders")``.

Each batch is brought as ``Table.ingest`` brings it: in one commit, which has the number of the batch and the id of the query, so
a batch that Spark repeats is left out. A row that does not fit ends the query, as it ends an INSERT. In the mode ``complete`` a
batch is all rows, and replaces those of the table.

**That are read from it**: ``spark.readStream.table("lake.shop.orders")`` is the stream of its changes (``view.changes``) in the
columns of the table. These can't say that a row has left, so a delete ends the query.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lakebed.errors import InvalidInput
from lakebed.ingest.apply import How, frame_changes
from lakebed.ingest.stream import Backpressure, FrameIngest
from lakebed.parts.change_columns import columns_at
from lakebed.quoting import quote_for_spark
from lakebed.schema.fitting import EvolvePolicy
from lakebed.table import Table, internals_of
from lakebed.table import open as open_table
from lakebed.view.changes import ONLY_ROWS_OF, register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FIRST = "startingVersion"
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


def stream_of(session: SparkSession, root: str, table: str, options: Mapping[str, str]) -> DataFrame:
    """The rows that versions brought, the newest whole row of a key that changed.

    Raises InvalidInput for an option that is unknown; the stream ends with an error at a version in which rows left.
    """
    given = {name.lower(): value for name, value in options.items()}
    first = given.pop(_FIRST.lower(), "0")
    if given or not first.isdecimal():
        raise InvalidInput(f"a stream of {table} has one option, {_FIRST}, which is the number of a version")
    columns = columns_at(internals_of(open_table(root)).log.refresh())
    register(session)
    changes = session.readStream.format("lakebed_changes").option("path", root).option(_FIRST, first)
    rows = changes.option(ONLY_ROWS_OF, table).load()
    return rows.select(*map(quote_for_spark, columns.mapping.logical.names))
