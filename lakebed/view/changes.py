"""The change rows between versions: what was applied, as a DataFrame and as a streaming source for the next layer.

    table.changes(3, 7)
    spark.readStream.format("lakebed_changes").option("path", "lake/orders").option("startingVersion", 0).load()

The rows are the changes as they were committed, newest per key within a part: those that a later sequence made void are
among them. A truncate stands as a row of its own kind with no values. What a commit does to rows of the base otherwise (a
mutation of a table without keys, a partition detached, attached or replaced) stands as the deletes of the rows that
lived before it and not after it, then the upserts of those that live only after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from lakebed.errors import InvalidInput, MissingPrerequisite, VersionNotFound
from lakebed.manifest.actions import AddChangePart, AddPart, Commit, Domain, RemovePart
from lakebed.manifest.schema import check_new_names
from lakebed.manifest.stores import open_store
from lakebed.manifest.table_log import TableLog
from lakebed.parts.changes import DELETE, OP_COLUMN
from lakebed.parts.dead_rows import DeadRows
from lakebed.parts.engine import connect
from lakebed.parts.sql import named, scan_of, sql_type
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
    """The change rows of a version: where they are. Made once by the planner, so that tasks need not read the log."""

    def __init__(self, commit: Commit, schema: pa.Schema) -> None:
        self.version = commit.version
        self.timestamp_ms = commit.timestamp_ms
        self.schema = schema
        self.truncates = (commit.info is not None and commit.info.operation == "TRUNCATE") or any(
            isinstance(action, Domain) and action.domain == _TRUNCATE_DOMAIN and not action.removed
            for action in commit.actions
        )
        self.change_parts = [action.part for action in commit.actions if isinstance(action, AddChangePart)]
        base = [action for action in commit.actions if isinstance(action, (AddPart, RemovePart)) and action.data_change]
        if commit.info is not None and commit.info.operation == "SETTLE":
            base = []  # the changes that it settles were change rows of their own version
        self.before = {action.path: action for action in base if isinstance(action, RemovePart)}
        self.after = {action.part.path: action.part for action in base if isinstance(action, AddPart)}
        if self.truncates:
            self.before = {}


def versions_with_changes(path: str, first: int, last: int) -> list[_Version]:
    """The versions in the range, both ends included, that have change rows. Raises VersionNotFound."""
    log = TableLog(open_store(path))
    schema = log.refresh().schema
    versions = [_Version(commit, schema) for commit in log.commits(first, last)]
    return [
        version for version in versions if version.truncates or version.change_parts or version.before or version.after
    ]


class _ChangesReader(DataSourceReader):
    def __init__(self, path: str, first: int, last: int) -> None:
        self._path = path
        self._first = first
        self._last = last

    def partitions(self) -> Sequence[InputPartition]:
        return versions_with_changes(self._path, self._first, self._last)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._path, partition)


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
        return versions_with_changes(self._path, int(start["version"]) + 1, int(end["version"]))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._path, partition)


def _schema(schema: pa.Schema) -> pa.Schema:
    check_new_names(schema)  # a table of another writer may have such columns
    return pa.schema([field.with_nullable(True) for field in schema] + _EXTRA)


def _read(path: str, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, _Version):  # where there are none, Spark makes up one of its own
        yield from read_version(path, partition)


def read_version(path: str, version: _Version) -> Iterator[pa.RecordBatch]:
    """The change rows of a version. Raises VersionNotFound if its parts are gone."""
    storage = open_part_storage(path)
    connection = connect()
    storage.attach(connection)
    if version.truncates:
        nothing = pa.table({field.name: pa.nulls(1, field.type) for field in version.schema})
        yield from _with_commit(nothing, pa.repeat(pa.scalar("truncate"), 1), version)

    columns = {field.name: sql_type(field.type) for field in version.schema}

    def read(path: str, constants: Mapping[str, str | None], columns: Mapping[str, str] = columns) -> pa.Table:
        try:
            found = connection.sql(scan_of([storage.duckdb_url(path)], columns, constants)).to_arrow_table()
        except Exception as error:
            if "No files found" in str(error) or isinstance(error, FileNotFoundError):
                raise VersionNotFound(
                    f"the change rows of version {version.version} are no longer kept: {path} is gone"
                ) from error
            raise
        return named(found, list(columns))

    dead_rows = DeadRows(storage)
    for kind, there, elsewhere in (
        ("delete", version.before, version.after),
        ("upsert", version.after, version.before),
    ):
        for path, part in there.items():
            dead, other = dead_rows.of(part), elsewhere.get(path)
            if other is not None and dead_rows.of(other) <= dead:
                continue  # every row that lives here lives there too
            table = read(path, part.partition_values or {})
            rows = _alive(dead, len(table))
            if other is not None:
                rows &= ~_alive(dead_rows.of(other), len(table))
            table = table.filter(pa.array(rows))
            yield from _with_commit(table, pa.repeat(pa.scalar(kind), len(table)), version)
    for change_part in version.change_parts:
        table = read(change_part.path, {}, columns | {OP_COLUMN: "VARCHAR"})
        kinds = pc.if_else(pc.equal(table[OP_COLUMN], DELETE), pa.scalar("delete"), pa.scalar("upsert"))
        yield from _with_commit(table.select(version.schema.names), kinds, version)


def _alive(dead: BitMap64, rows: int) -> npt.NDArray[np.bool_]:
    alive = np.ones(rows, dtype=bool)
    alive[np.frombuffer(dead.to_array(), dtype=np.uint64)] = False
    return alive


def _with_commit(table: pa.Table, kinds: Any, version: _Version) -> Iterator[pa.RecordBatch]:
    count = len(table)
    table = table.append_column("_change_type", kinds)
    table = table.append_column("_commit_version", pa.repeat(pa.scalar(version.version), count))
    stamp = pa.scalar(version.timestamp_ms * 1000, pa.timestamp("us", "UTC"))
    table = table.append_column("_commit_timestamp", pa.repeat(stamp, count))
    yield from table.cast(_schema(version.schema)).to_batches()
