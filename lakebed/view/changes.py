"""The changes between versions, as a DataFrame and as a streaming source for other tables.

    table.changes(3, 7)
    spark.readStream.format("lakebed_changes").option("path", "lake/orders").option("startingVersion", 0).load()

What the rows are: ``parts.change_rows``.

A reader has the columns that its query was defined with, also after the table was altered (``parts.change_columns``). Spark asks
for a schema when a query is defined, and passes it to the reader. The reader finds the version that had this schema
(``_columns_that_give``), nearly always the newest, and so the stored names of these columns. A new start reads the new schema,
from the version where the stream stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from lakebed.coordination.schema_history import past_changes
from lakebed.errors import InvalidInput, InvalidSchema, MissingPrerequisite, TableReplaced, VersionNotFound
from lakebed.failures import crosses_spark, methods_cross_spark
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.parts.change_columns import START_AGAIN, ChangeColumns, columns_at
from lakebed.parts.change_rows import ChangedVersion, read_version, versions_with_changes
from lakebed.sparks.streams import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    ReadLimit,
    ReadMaxRows,
    for_this_spark,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ONLY_ROWS_OF = "lakebedOnlyRowsOf"
"""An option of a stream: it ends with an error if rows leave the table, which the error calls by this name."""
_VERSIONS_PER_BATCH_MAX = 1000
_registered = WeakSet["SparkSession"]()
"""Sessions that know the source: Spark warns of one that it is told again."""


def changes_dataframe(
    spark: SparkSession | None, path: str, log: TableLog, from_version: int, to_version: int | None
) -> DataFrame:
    """See ``Table.changes``."""
    from pyspark.sql import SparkSession as Session

    session = spark or Session.getActiveSession()
    if session is None:
        raise MissingPrerequisite("changes() needs a Spark session; start one with lakebed.spark()")
    newest = log.refresh().version
    last = newest if to_version is None else to_version
    if not 0 <= from_version <= last:
        raise InvalidInput(f"there are no versions from {from_version} to {last}")
    if last > newest:
        raise VersionNotFound(
            f"there is no version {last}: the newest is {newest}", table=path, version=last, newest=newest
        )
    if from_version < log.oldest_version():
        raise VersionNotFound(
            f"version {from_version} is not in the log any more; the oldest is {log.oldest_version()}",
            table=path,
            version=from_version,
            oldest=log.oldest_version(),
        )
    register(session)
    reader = session.read.format("lakebed_changes").option("path", path)
    return reader.option("startingVersion", str(from_version)).option("endingVersion", str(last)).load()


def register(session: SparkSession) -> None:
    """Let a session know the source."""
    if session not in _registered:
        session.dataSource.register(ChangesSource)
        _registered.add(session)


@methods_cross_spark
class ChangesSource(DataSource):
    """``format("lakebed_changes")``; options: ``path``, ``startingVersion`` (default 0), ``endingVersion`` (batch only)."""

    @classmethod
    def name(cls) -> str:
        return "lakebed_changes"

    def schema(self) -> StructType:
        return from_arrow_schema(columns_at(self._log().refresh()).schema())

    def reader(self, schema: StructType) -> DataSourceReader:
        first, last = self._option("startingVersion", 0), self._option("endingVersion", -1)
        return _ChangesReader(self._path(), first, last, _columns_that_give(self._log(), schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        columns = _columns_that_give(self._log(), schema)
        first, rows_of = self._option("startingVersion", 0), self.options.get(ONLY_ROWS_OF)
        return for_this_spark(_ChangesStream(self._path(), self._log().refresh().metadata.id, first, columns, rows_of))

    def _log(self) -> TableLog:
        return TableLog(open_store(self._path()))

    def _path(self) -> str:
        if "path" not in self.options:
            raise InvalidInput('the source lakebed_changes needs .option("path", …)')
        return str(self.options["path"])

    def _option(self, name: str, default: int) -> int:
        return int(self.options.get(name, default))


@methods_cross_spark
class _ChangesReader(DataSourceReader):
    def __init__(self, path: str, first: int, last: int, columns: ChangeColumns) -> None:
        self._path = path
        self._first = first
        self._last = last
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        return _partitions(self._path, self._first, self._last, self._columns)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._path, partition)


@methods_cross_spark
class _ChangesStream(DataSourceStreamReader):
    """An offset is a version, and the id of the table: another one may be made in its place."""

    def __init__(self, path: str, table_id: str, first: int, columns: ChangeColumns, rows_of: str | None) -> None:
        self._path = path
        self._table_id = table_id
        self._first = first
        self._columns = columns
        self._rows_of = rows_of

    def initialOffset(self) -> dict[str, Any]:
        return {"version": self._first - 1, "table": self._table_id}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(_VERSIONS_PER_BATCH_MAX)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The newest version within the limit. With the trigger ``availableNow`` Spark asks once, for all there is."""
        newest, last = self._snapshot(start).version, int(start["version"])
        if isinstance(limit, ReadMaxRows):
            newest = min(newest, last + limit.max_rows)
        return {"version": max(last, newest), "table": self._table_id}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._snapshot(start)
        return _partitions(self._path, int(start["version"]) + 1, int(end["version"]), self._columns)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._path, partition, self._rows_of)

    def _snapshot(self, start: dict[str, Any]) -> Snapshot:
        """The newest version. Raises TableReplaced if it is not of the table that the query has read."""
        newest = TableLog(open_store(self._path)).refresh()
        if newest.metadata.id != start.get("table", newest.metadata.id):  # offsets of older lakebeds do not say it
            raise TableReplaced(
                f"{self._path}: another table is in the place of the one that this query has read up to version "
                f"{start['version']}; start a query with a new checkpoint to read that one",
                table=self._path,
            )
        return newest


def _partitions(path: str, first: int, last: int, columns: ChangeColumns) -> list[InputPartition]:
    return [InputPartition(version) for version in versions_with_changes(path, first, last, columns)]


@crosses_spark
def _read(path: str, partition: InputPartition, rows_of: str | None = None) -> Iterator[pa.RecordBatch]:
    if isinstance(partition.value, ChangedVersion):  # if there are no partitions, Spark passes one of its own
        for batch in read_version(path, partition.value):
            if rows_of is not None:
                _require_rows(batch, partition.value, rows_of, path)
            yield batch


def _require_rows(batch: pa.RecordBatch, of: ChangedVersion, table: str, path: str) -> None:
    """Raises InvalidInput if rows left."""
    kind = of.columns.names.type
    if pc.any(pc.not_equal(batch[kind], "upsert")).as_py():
        raise InvalidInput(
            f"rows left {table} in version {of.version}, which its columns can't say: read the stream "
            f".format('lakebed_changes').option('path', '{path}'), which has {kind}, or begin after that version with the "
            "option startingVersion"
        )


def _columns_that_give(log: TableLog, schema: StructType) -> ChangeColumns:
    """The columns of the newest version whose change rows have this schema. Raises InvalidSchema if the log has none any more."""
    newest = log.refresh()
    before_changes = (past.version - 1 for past in reversed(past_changes(newest.domains)))
    for version in (newest.version, *before_changes):
        try:
            found = columns_at(log.at_version(version))
        except VersionNotFound:
            break
        if _gives(found, schema):
            return found
    raise InvalidSchema(
        f"the table's schema changed since the query was defined, and the log no longer has the one before; {START_AGAIN}",
        table=log.root,
    )


def _gives(columns: ChangeColumns, schema: StructType) -> bool:
    ours = from_arrow_schema(columns.schema())
    return [(field.name, field.dataType) for field in ours] == [(field.name, field.dataType) for field in schema]
