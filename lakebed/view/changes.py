"""The changes between versions, as a DataFrame and as a streaming source for other tables.

    table.changes(3, 7)
    spark.readStream.format("lakebed_changes").option("path", "lake/orders").option("startingVersion", 0).load()

The rows are the changes as they were committed, the newest per key within a part. Late changes are among them, so a copy
of a table with ``sequence_by`` needs the sequence too. Where the sequence is not a column of the table, the rows have it
as ``_change_sequence``.

A change with unavailable values (``parts.unavailable_values``) is not a row of the version that committed it, because the
whole row is not known before the tail is settled. The settle completes the change, and the whole row is a change row of
the settle's version. By then the tail may hold a newer change of the key, which was a row of an earlier version. Then the
completed row is left out, so that a reader who applies the rows in order ends with the newest.

A truncate is a row of its own kind without values. Other commits that change rows of the base (a mutation of a table
without keys, a partition detached, attached or replaced) give deletes for the rows that were live only before the commit,
then upserts for the rows that are live only after it.
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

from lakebed.error_transport import crosses_spark, methods_cross_spark
from lakebed.errors import InvalidInput, MissingPrerequisite, VersionNotFound
from lakebed.manifest.actions import (
    AddChangePart,
    AddPart,
    ChangePart,
    Commit,
    Part,
    RemoveChangePart,
    RemovePart,
    part_domain,
)
from lakebed.manifest.commit_kind import settles, truncates
from lakebed.manifest.schema import check_new_names
from lakebed.manifest.stores import open_store
from lakebed.manifest.table_log import TableLog
from lakebed.parts.changes import (
    DELETE,
    OLDEST_SEQUENCE,
    OP_COLUMN,
    SEQUENCE_COLUMN,
    UNAVAILABLE_COLUMN,
    WriteSpec,
    write_spec_of,
)
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.parts.nested import table_as_declared
from lakebed.parts.sql import aliases, by_place, named, registered, scan_of, sql_type
from lakebed.storage.engine import connect
from lakebed.storage.file_errors import is_missing_file
from lakebed.storage.open import open_part_storage
from lakebed.storage.part_storage import PartStorage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_VERSIONS_PER_BATCH_MAX = 1000
CHANGE_SEQUENCE = "_change_sequence"
_IS_WHOLE = " where coalesce(len({}), 0) = 0"
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
    session.dataSource.register(ChangesSource)
    reader = session.read.format("lakebed_changes").option("path", path)
    return reader.option("startingVersion", str(from_version)).option("endingVersion", str(last)).load()


@methods_cross_spark
class ChangesSource(DataSource):
    """``format("lakebed_changes")``; options: ``path``, ``startingVersion`` (default 0), ``endingVersion`` (batch only)."""

    @classmethod
    def name(cls) -> str:
        return "lakebed_changes"

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(_schema(write_spec_of(TableLog(open_store(self._path())).refresh())))

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
    """Where the change rows of a version are. Spark's driver makes it, so that tasks need not read the log."""

    def __init__(self, commit: Commit, spec: WriteSpec) -> None:
        self.version = commit.version
        self.timestamp_ms = commit.timestamp_ms
        self.spec = spec
        self.truncates = truncates(commit)
        self.change_parts = [action.part for action in commit.actions if isinstance(action, AddChangePart)]
        base = [action for action in commit.actions if isinstance(action, (AddPart, RemovePart)) and action.data_change]
        self.completed: list[Part] = []
        self.newer: list[ChangePart] = []  # if there are completed rows: the tail after the settle
        if settles(commit):
            self.completed = _completed(commit)
            base = []  # the changes that it settles were change rows of the versions that committed them
        self.before = {action.path: action for action in base if isinstance(action, RemovePart)}
        self.after = {action.part.path: action.part for action in base if isinstance(action, AddPart)}
        if self.truncates:
            self.before = {}


def versions_with_changes(path: str, first: int, last: int) -> list[_Version]:
    """The versions in the range, both ends included, that have change rows. Raises VersionNotFound."""
    log = TableLog(open_store(path))
    spec = write_spec_of(log.refresh())
    found: list[_Version] = []
    tail: dict[str, ChangePart] | None = None  # kept up to date from the first version on that needs it
    for commit in log.commits(first, last):
        version = _Version(commit, spec)
        if tail is not None:
            _follow(tail, commit)
        if version.completed:
            if tail is None:
                tail = dict(log.at_version(commit.version).tail)
            version.newer = list(tail.values())
        if version.truncates or version.change_parts or version.completed or version.before or version.after:
            found.append(version)
    return found


def _completed(commit: Commit) -> list[Part]:
    """The parts of completed rows: those that a settle added anew, not change parts that it moved into the base, nor parts
    of the base that it gave another deletion vector.
    """
    settled = {action.domain for action in commit.actions if isinstance(action, RemoveChangePart)}
    marked = {action.path for action in commit.actions if isinstance(action, RemovePart)}
    added = [action.part for action in commit.actions if isinstance(action, AddPart)]
    return [part for part in added if part.path not in marked and part_domain(part.path) not in settled]


def _follow(tail: dict[str, ChangePart], commit: Commit) -> None:
    for action in commit.actions:
        if isinstance(action, AddChangePart):
            tail[action.part.domain] = action.part
        elif isinstance(action, RemoveChangePart):
            tail.pop(action.domain, None)


@methods_cross_spark
class _ChangesReader(DataSourceReader):
    def __init__(self, path: str, first: int, last: int) -> None:
        self._path = path
        self._first = first
        self._last = last

    def partitions(self) -> Sequence[InputPartition]:
        return versions_with_changes(self._path, self._first, self._last)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._path, partition)


@methods_cross_spark
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


def _schema(spec: WriteSpec) -> pa.Schema:
    check_new_names(spec.schema)  # a table of another writer may have columns with reserved names
    sequence = [pa.field(CHANGE_SEQUENCE, pa.int64())] if _hides_sequence(spec) else []
    return pa.schema([*(field.with_nullable(True) for field in spec.schema), *_EXTRA[:1], *sequence, *_EXTRA[1:]])


def _hides_sequence(spec: WriteSpec) -> bool:
    return spec.sequence_column == SEQUENCE_COLUMN


@crosses_spark
def _read(path: str, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, _Version):  # if there are no partitions, Spark passes one of its own
        yield from read_version(path, partition)


def read_version(path: str, version: _Version) -> Iterator[pa.RecordBatch]:
    """The change rows of a version. Raises VersionNotFound if its parts are gone."""
    storage = open_part_storage(path)
    reading = _Reading(version, storage)
    if version.truncates:
        nothing = pa.table({field.name: pa.nulls(1, field.type) for field in version.spec.schema})
        yield from _change_rows(nothing, pa.repeat(pa.scalar("truncate"), 1), version)
    deletion_vectors = DeletionVectorCache(storage)
    for kind, parts, others in (
        ("delete", version.before, version.after),
        ("upsert", version.after, version.before),
    ):
        for path, part in parts.items():
            dead, other = deletion_vectors.of(part), others.get(path)
            if other is not None and deletion_vectors.of(other) <= dead:
                continue  # every live row of the part is live on the other side of the commit too
            table = reading.base(part)
            rows = _alive(dead, len(table))
            if other is not None:
                rows &= ~_alive(deletion_vectors.of(other), len(table))
            table = table.filter(pa.array(rows))
            yield from _change_rows(table, pa.repeat(pa.scalar(kind), len(table)), version)
    for completed in version.completed:
        table = reading.without_newer(reading.base(completed))
        yield from _change_rows(table, pa.repeat(pa.scalar("upsert"), len(table)), version)
    for change_part in version.change_parts:
        table = reading.changes(change_part)
        kinds = pc.if_else(pc.equal(table[OP_COLUMN], DELETE), pa.scalar("delete"), pa.scalar("upsert"))
        yield from _change_rows(table, kinds, version)


class _Reading:
    """Reads the parts of one version, each with the columns of change rows."""

    def __init__(self, version: _Version, storage: PartStorage) -> None:
        self._version = version
        self._spec = version.spec
        self._storage = storage
        self._connection = connect()
        storage.attach(self._connection)

    def base(self, part: Part | RemovePart) -> pa.Table:
        """All rows of a part of the base, dead rows included."""
        return self._read(part, {}, "")

    def changes(self, part: ChangePart) -> pa.Table:
        """The changes of a change part with their operation, without those that have unavailable values."""
        return self._read(part, {OP_COLUMN: "VARCHAR"}, _IS_WHOLE if part.incomplete else "")

    def _read(self, part: Part | RemovePart | ChangePart, also: Mapping[str, str], where: str) -> pa.Table:
        kinds = {field.name: sql_type(field.type) for field in self._spec.schema} | dict(also)
        names = list(kinds)
        if _hides_sequence(self._spec):
            kinds[SEQUENCE_COLUMN] = "BIGINT"
            names.append(CHANGE_SEQUENCE)
        read = list(aliases(kinds).values())
        if _hides_sequence(self._spec):
            read[-1] = f"coalesce({read[-1]}, {OLDEST_SEQUENCE})"
        if where:
            kinds[UNAVAILABLE_COLUMN] = "VARCHAR[]"
            where = where.format(aliases(kinds)[UNAVAILABLE_COLUMN])
        constants = {} if isinstance(part, ChangePart) else part.partition_values or {}
        scan = scan_of([self._storage.duckdb_url(part.path)], kinds, constants)
        return named(self._query(f"select {', '.join(read)} from ({scan}){where}", [part]), names)

    def without_newer(self, completed: pa.Table) -> pa.Table:
        """The completed rows whose key has no newer change in the tail; changes with unavailable values do not count."""
        if not self._version.newer:
            return completed
        spec = self._spec
        kinds = {name: sql_type(spec.schema.field(name).type) for name in spec.keys}
        same = [f"t.{alias} = c.{alias}" for alias in aliases(kinds).values()]
        probes = by_place(completed, spec.keys).append_column("place", pa.array(np.arange(len(completed))))
        if spec.sequence_column is not None:
            sequence = completed[CHANGE_SEQUENCE if _hides_sequence(spec) else spec.sequence_column]
            kinds[spec.sequence_column] = sql_type(sequence.type)
            probes = probes.append_column("sequence", sequence)
            same.append(f"t.{aliases(kinds)[spec.sequence_column]} >= c.sequence")
        kinds[UNAVAILABLE_COLUMN] = "VARCHAR[]"
        scan = scan_of([self._storage.duckdb_url(part.path) for part in self._version.newer], kinds, {})
        tail = f"(select * from ({scan}){_IS_WHOLE.format(aliases(kinds)[UNAVAILABLE_COLUMN])})"
        with registered(self._connection, "lakebed_completed", probes) as name:
            query = f"select place from {name} c anti join {tail} t on {' and '.join(same)} order by place"
            return completed.take(self._query(query, self._version.newer)["place"])

    def _query(self, query: str, parts: Sequence[Part | RemovePart | ChangePart]) -> pa.Table:
        try:
            return self._connection.sql(query).to_arrow_table()
        except Exception as error:
            if is_missing_file(error):
                gone = ", ".join(part.path for part in parts if not self._storage.exists(part.path))
                raise VersionNotFound(
                    f"the change rows of version {self._version.version} are no longer kept: {gone} is gone",
                    version=self._version.version,
                ) from error
            raise


def _alive(dead: BitMap64, rows: int) -> npt.NDArray[np.bool_]:
    alive = np.ones(rows, dtype=bool)
    alive[np.frombuffer(dead.to_array(), dtype=np.uint64)] = False
    return alive


def _change_rows(table: pa.Table, kinds: Any, version: _Version) -> Iterator[pa.RecordBatch]:
    """The rows with their kind, version and time, in the columns of change rows."""
    count, schema = len(table), _schema(version.spec)
    values = {
        "_change_type": kinds,
        "_commit_version": pa.repeat(pa.scalar(version.version), count),
        "_commit_timestamp": pa.repeat(pa.scalar(version.timestamp_ms * 1000, pa.timestamp("us", "UTC")), count),
    }
    for name in {*version.spec.schema.names, CHANGE_SEQUENCE} & {*table.column_names}:
        values[name] = table[name]
    columns = [values.get(field.name, pa.nulls(count, field.type)) for field in schema]
    yield from table_as_declared(pa.table(columns, names=schema.names), schema).to_batches()
