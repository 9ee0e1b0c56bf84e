"""The change rows between versions: what was applied, as a DataFrame and as a streaming source for the next layer.

    table.changes(3, 7)
    spark.readStream.format("lakebed_changes").option("path", "lake/orders").option("startingVersion", 0).load()

The rows are the changes as they were committed, newest per key within a part: those that a later sequence made void are
among them. A truncate stands as a row of its own kind with no values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from lakebed.errors import InvalidInput, MissingPrerequisite, VersionNotFound
from lakebed.manifest.actions import AddChangePart, AddPart, Commit, Domain
from lakebed.manifest.stores import open_store
from lakebed.manifest.table_log import TableLog
from lakebed.parts.changes import DELETE, OP_COLUMN
from lakebed.parts.engine import connect
from lakebed.parts.locate import stores_partition_columns
from lakebed.parts.sql import columns_with_partition, parquet, quote
from lakebed.parts.storage import open_part_storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TRUNCATE_DOMAIN = "lakebed.truncate"
_VERSIONS_PER_BATCH_MAX = 1000
_EXTRA = [
    pa.field("_change_type", pa.string()),
    pa.field("_commit_version", pa.int64()),
    pa.field("_commit_timestamp", pa.timestamp("us", "UTC")),
]


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
        raise VersionNotFound(f"there is no version {last}: the newest is {newest}")
    if from_version < log.oldest_version():
        raise VersionNotFound(
            f"version {from_version} is not in the log any more; the oldest is {log.oldest_version()}"
        )
    session.dataSource.register(ChangesSource)
    reader = session.read.format("lakebed_changes").option("path", path)
    return reader.option("startingVersion", str(from_version)).option("endingVersion", str(last)).load()


class ChangesSource(DataSource):
    """``format("lakebed_changes")``; options: ``path``, ``startingVersion`` (default 0), ``endingVersion`` (batch only)."""

    @classmethod
    def name(cls) -> str:
        return "lakebed_changes"

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(_schema(TableLog(open_store(self._path())).refresh().schema))

    def reader(self, schema: StructType) -> DataSourceReader:
        return _ChangesReader(self._path(), self._option("startingVersion", 0), self._option("endingVersion", -1))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _ChangesStream(self._path(), self._option("startingVersion", 0))

    def _path(self) -> str:
        if "path" not in self.options:
            raise InvalidInput('the source lakebed_changes needs .option("path", …)')
        return str(self.options["path"])

    def _option(self, name: str, default: int) -> int:
        return int(self.options.get(name, default))


class _Version(InputPartition):
    def __init__(self, version: int) -> None:
        self.version = version


class _ChangesReader(DataSourceReader):
    def __init__(self, path: str, first: int, last: int) -> None:
        self._path = path
        self._first = first
        self._last = last

    def partitions(self) -> Sequence[InputPartition]:
        return [_Version(version) for version in range(self._first, self._last + 1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Version)
        return _read_version(self._path, partition.version)


class _ChangesStream(DataSourceStreamReader):
    def __init__(self, path: str, first: int) -> None:
        self._path = path
        self._first = first

    def initialOffset(self) -> dict[str, Any]:
        return {"version": self._first - 1}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(_VERSIONS_PER_BATCH_MAX)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        newest = TableLog(open_store(self._path)).refresh().version
        return {"version": max(int(start["version"]), min(newest, int(start["version"]) + _VERSIONS_PER_BATCH_MAX))}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [_Version(version) for version in range(int(start["version"]) + 1, int(end["version"]) + 1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Version)
        return _read_version(self._path, partition.version)


def _schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema] + _EXTRA)


def _read_version(path: str, version: int) -> Iterator[pa.RecordBatch]:
    log = TableLog(open_store(path))
    commit = next(log.commits(version, version))
    table_schema = log.refresh().schema
    schema = _schema(table_schema)
    storage = open_part_storage(path)
    connection = connect()
    storage.attach(connection)
    for action in commit.actions:
        if isinstance(action, Domain) and action.domain == _TRUNCATE_DOMAIN and not action.removed:
            yield from _rows(pa.nulls(1), "truncate", commit, schema)
    for action in commit.actions:
        if isinstance(action, AddChangePart):
            part, columns = action.part.path, [*map(quote, table_schema.names), OP_COLUMN]
        elif isinstance(action, AddPart) and action.data_change and _appends(commit):
            part, stored = action.part.path, stores_partition_columns(action.part)
            columns = columns_with_partition(table_schema.names, action.part.partition_values, stored, table_schema)
        else:
            continue
        try:
            query = f"select {', '.join(columns)} from {parquet(storage.duckdb_url(part))}"
            table = connection.sql(query).to_arrow_table()
        except Exception as error:
            if "No files found" in str(error) or isinstance(error, FileNotFoundError):
                raise VersionNotFound(
                    f"the change rows of version {version} are no longer kept: {part} is gone"
                ) from error
            raise
        kinds = pa.repeat(pa.scalar("upsert"), len(table))
        if OP_COLUMN in columns:
            kinds = pc.if_else(pc.equal(table[OP_COLUMN], DELETE), pa.scalar("delete"), pa.scalar("upsert"))
        yield from _with_commit(table.select(table_schema.names), kinds, commit, schema)


def _appends(commit: Commit) -> bool:
    """Whether parts that a commit adds are new rows, rather than change parts that it settles."""
    info = commit.info
    return info is not None and info.operation != "SETTLE"


def _rows(values: pa.Array, kind: str, commit: Commit, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    table = pa.table({field.name: pa.nulls(len(values), field.type) for field in list(schema)[: -len(_EXTRA)]})
    yield from _with_commit(table, pa.repeat(pa.scalar(kind), len(values)), commit, schema)


def _with_commit(table: pa.Table, kinds: Any, commit: Commit, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    count = len(table)
    table = table.append_column("_change_type", kinds)
    table = table.append_column("_commit_version", pa.repeat(pa.scalar(commit.version), count))
    stamp = pa.scalar(commit.timestamp_ms * 1000, pa.timestamp("us", "UTC"))
    table = table.append_column("_commit_timestamp", pa.repeat(stamp, count))
    yield from table.cast(schema).to_batches()
