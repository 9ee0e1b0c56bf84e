"""The merge-on-read view: the base, minus the keys of the tail, plus the tail's newest rows, at one version.

Spark or DuckDB reads the base and the tail's parts, each with its dead rows, as if the tail were settled (``pinned``). So a view
of a settled table is a plain read, and a view with a tail costs one additional look-up of the tail's keys.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import duckdb
import pyarrow as pa
from pyroaring import BitMap64

from lakebed import events
from lakebed.coordination.read_counts import ReadCounts
from lakebed.errors import Corrupt, InvalidInput, LakebedError
from lakebed.log.actions import ChangePart, Part
from lakebed.log.deletion_vector import DeletionVector, inline
from lakebed.log.snapshot import Snapshot
from lakebed.merge.materialized import LocalParts
from lakebed.parts.arrow_rows import Rows
from lakebed.parts.changes import WriteSpec, write_spec_of
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.parts.intact import naming_damaged, require_intact, require_intact_reads
from lakebed.parts.part_filter import parts_that_may_hold, parts_that_may_match
from lakebed.resolve.locate import ReadLocator
from lakebed.resolve.resolution import Resolution
from lakebed.sortkey.statistics_cache import StatisticsCache
from lakebed.sparks.jvm import is_on_one_machine
from lakebed.sql import (
    Expression,
    check_columns_of,
    connection_for,
    expression,
    mistakes,
    registered,
    require_query,
    require_text,
)
from lakebed.storage.engine import connect, connect_alone, naming_unreadable
from lakebed.storage.part_storage import PartStorage
from lakebed.storage.roots import local_file
from lakebed.view.arrow_scan import (
    ScanFile,
    columns_wanted,
    failures,
    parts_that_a_query_reads,
    register_view,
    require_intact_for_query,
    to_arrow,
    without_dead_rows,
)
from lakebed.view.lookup import rows_with, values_to_find
from lakebed.view.pinned import Pinned, Pins

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


T = TypeVar("T")
_logger = logging.getLogger("lakebed.view")


class TableView:
    """Reads one table at any version, and keeps its registered temporary views fresh."""

    def __init__(
        self,
        root: str,
        storage: PartStorage,
        deletion_vectors: DeletionVectorCache,
        locator: Callable[[WriteSpec], ReadLocator],
        *,
        reads: ReadCounts,
        statistics: StatisticsCache,
        local: LocalParts,
    ) -> None:
        """``statistics``: a cache of parts' statistics; ``local``: materialized parts, read in place of their sources."""
        self._root = root
        self._storage = storage
        self._locator = locator
        self._reads = reads
        self._statistics = statistics
        self._local = local
        self._pins = Pins(storage, deletion_vectors, locator, reads, local)
        self._registered: dict[str, SparkSession] = {}
        self._shown: dict[str, tuple[str, int, frozenset[str]]] = {}  # the table, the version, materialized parts in it
        self._lock = threading.Lock()
        self._refreshing = threading.Lock()

    def dataframe(self, spark: SparkSession, snapshot: Snapshot, hidden: Sequence[str] = ()) -> DataFrame:
        """The snapshot as a DataFrame, which does not change with later versions.

        ``hidden``: columns of integers that the parts have besides, to be there too.
        Raises Corrupt with the path if a file that the tail needs is missing or damaged. Spark reads all other files when a
        query needs them, so then Spark raises the error, which has the path too.
        """
        # Readers without Spark need not wait for its import.
        from lakebed.view.spark_scan import reads_in

        pinned = self.pin(snapshot, is_on_one_machine(spark))
        frame = self._scan(spark, snapshot, pinned.files, counts_reads=bool(pinned.stale), hidden=hidden)
        if pinned.stale:
            self._reads.follow(reads_in(spark, self._storage.spark_root))
        if pinned.completed is not None:
            rows = snapshot.columns.to_logical(pinned.completed.select([*snapshot.schema.names, *hidden]))
            frame = frame.unionByName(spark.createDataFrame(rows, frame.schema))
        return frame

    def dataframe_of_parts(
        self, spark: SparkSession, snapshot: Snapshot, parts: Iterable[Part], *, places: bool = False
    ) -> DataFrame:
        """The live rows of parts, in the columns of a version. The log need not list the parts. ``places``: see ``scan``."""
        some = replace(snapshot, parts={part.path: part for part in parts}, tail={})
        return self._scan(spark, some, self._pins.files(some, Resolution()), counts_reads=False, places=places)

    def _scan(
        self,
        spark: SparkSession,
        snapshot: Snapshot,
        files: Sequence[ScanFile],
        *,
        counts_reads: bool,
        hidden: Sequence[str] = (),
        places: bool = False,
    ) -> DataFrame:
        from lakebed.view.spark_scan import scan, schemas_for_spark

        schema_json, stored_json = schemas_for_spark(
            snapshot.metadata.schema_string, snapshot.columns.is_identity, hidden
        )
        return scan(
            spark,
            self._storage.spark_root,
            schema_json,
            stored_json=stored_json,
            partition_columns=snapshot.metadata.partition_columns,
            table_id=snapshot.metadata.id,
            files=files,
            counts_reads=counts_reads,
            verifies=snapshot.settings.verify_reads != "off",
            places=places,
        )

    def arrow(self, snapshot: Snapshot, columns: Sequence[str] | None, where: str | None) -> pa.Table:
        """The snapshot's rows as Arrow."""
        condition = None if where is None else expression(where, "where")
        mapping = snapshot.columns
        wanted = mapping.stored_names(columns_wanted(mapping.logical, columns).names)

        def read(pinned: Pinned) -> pa.Table:
            connection = self._connect() if condition is None else self._connect_for_sql(pinned)
            files = parts_that_may_match(connection, pinned.files, mapping.stored, condition, self._statistics, mapping)
            self._verify(snapshot, files)
            self._count(pinned, files)
            return without_dead_rows(
                files,
                lambda hidden: to_arrow(
                    connection,
                    self._storage,
                    files,
                    mapping.stored,
                    columns=wanted,
                    where=condition,
                    completed=pinned.completed,
                    hides_dead_rows=hidden,
                    mapping=None
                    if condition is None
                    else mapping,  # without SQL, names are changed at no cost afterwards
                ),
            )

        found = self._read(snapshot, read)
        return found if condition is not None else mapping.to_logical(found)

    def lookup(self, snapshot: Snapshot, keys: Rows | Sequence[Any], columns: Sequence[str] | None) -> pa.Table:
        """The snapshot's rows with these keys, as Arrow."""
        mapping = snapshot.columns
        if columns is not None and not columns:
            return self.lookup(snapshot, keys, mapping.logical.names[:1]).select([])
        wanted = mapping.stored_names(columns_wanted(mapping.logical, columns).names)
        among = mapping.to_stored(values_to_find(keys, snapshot))
        spec = write_spec_of(snapshot)

        def read(pinned: Pinned) -> pa.Table:
            connection = self._connect()
            files = parts_that_may_hold(connection, pinned.files, snapshot.schema, among, self._statistics)
            self._count(pinned, files)
            whole_keys = set(among.column_names) == set(spec.keys)
            known = self._locator(spec).known(among.drop_null()) if whole_keys else None
            return rows_with(
                connection,
                self._storage,
                files,
                snapshot.schema,
                among,
                columns=wanted,
                completed=pinned.completed,
                known=known,
                before_reading=lambda read: self._verify(snapshot, read),
            )

        return mapping.to_logical(self._read(snapshot, read))

    def query(self, snapshot: Snapshot, sql: str, name: str, allow_files: bool) -> pa.Table:
        """The result of a SQL query in which ``name`` is the table. With ``allow_files``, any statements are executed."""
        if not require_text(name, "the table's name in the query"):
            raise InvalidInput("the table's name in the query is empty; without the argument it is the folder's name")
        if allow_files:
            require_text(sql, "the query")
        else:
            require_query(sql)

        def read(pinned: Pinned) -> pa.Table:
            connection = connect_alone() if allow_files else self._connect_for_sql(pinned)
            self._storage.attach(connection)

            def run(hidden: bool) -> pa.Table:
                register_view(
                    connection,
                    name,
                    self._storage,
                    pinned.files,
                    snapshot.schema,
                    completed=pinned.completed,
                    hides_dead_rows=hidden,
                    mapping=snapshot.columns,
                )
                require_intact_for_query(
                    connection, self._storage, pinned.files, snapshot.schema, sql, snapshot.settings.verify_reads
                )
                paths = (local_file(file.path) or file.path for file in pinned.files)
                with failures("the query failed", pinned.files, self._storage), mistakes("the query failed", paths):
                    found = connection.sql(sql)
                    return pa.table({}) if found is None else found.to_arrow_table()

            # Statements that change something must not be executed twice.
            found = run(False) if allow_files else without_dead_rows(pinned.files, run)
            if pinned.stale:
                self._count(pinned, parts_that_a_query_reads(connection, pinned.files, snapshot.schema, sql))
            return found

        return self._read(snapshot, read)

    def _verify(self, snapshot: Snapshot, files: Iterable[ScanFile]) -> None:
        """As the table's property says. Raises Corrupt, naming the file."""
        require_intact_reads(files, self._storage, snapshot.settings.verify_reads)

    def _count(self, pinned: Pinned, files: Iterable[ScanFile]) -> None:
        self._reads.count(pinned.stale, (file.path for file in files))

    def _connect(self) -> duckdb.DuckDBPyConnection:
        connection = connect()
        self._storage.attach(connection)
        return connection

    def _connect_for_sql(self, pinned: Pinned) -> duckdb.DuckDBPyConnection:
        return connection_for(self._storage, (file.path for file in pinned.files), [str(self._local.base)])

    def _read(self, snapshot: Snapshot, read: Callable[[Pinned], pa.Table]) -> pa.Table:
        """Read with this host's materialized parts; if one of them is damaged, read without them."""
        with naming_damaged(_parts(snapshot), self._storage), naming_unreadable(_paths(snapshot)):
            pinned = self._pins.pin(snapshot, on_this_host=True)
            local = [path for file in pinned.files if (path := local_file(file.path))]
            try:
                with naming_unreadable(local):
                    return read(pinned)
            except LakebedError as error:
                if not (isinstance(error, Corrupt) and (local_file(error.path or "") or error.path) in local):
                    raise
                _logger.warning("a read avoids a damaged materialized part: %s", error)
                self._local.give_up_damaged(local)
            except Exception as error:
                if not local:
                    raise
                _logger.warning("a read with materialized parts failed and is repeated without them: %s", error)
                self._local.give_up_damaged(local)
            return read(self._pins.pin(snapshot, on_this_host=False))

    def pin(self, snapshot: Snapshot, on_this_host: bool = True) -> Pinned:
        """What a version is read from. Not ``on_this_host``: what readers on others read, which is committed.

        Raises Corrupt with the path of a file that is missing or damaged.
        """
        with naming_damaged(_parts(snapshot), self._storage), naming_unreadable(_paths(snapshot)):
            return self._pins.pin(snapshot, on_this_host)

    def rows_for_sql(
        self,
        snapshot: Snapshot,
        name: str,
        hidden: Sequence[pa.Field],
        where: Expression,
        run: Callable[[duckdb.DuckDBPyConnection, int], T],
        among: pa.Table | None = None,
    ) -> T:
        """The result of ``run(connection, parts)``: on the connection ``name`` is the snapshot's rows, read from so many parts.

        The result will be committed, so it is read from committed files, which are verified, not from materialized parts on this
        host. Besides the table's columns, by their logical names, the rows have the ``hidden`` columns of the parts. Parts in
        which ``where`` is true for no row are left out. If an expression fails, ``run`` is called once more, with dead rows
        hidden from it. With ``among``, a table of keys by their stored names, there are only the rows with these keys, in memory
        at once, and what is read follows their number. Raises Corrupt.
        """
        if among is not None:
            rows, parts = self.rows_with_keys(snapshot, among, hidden=hidden)
            sealed = connection_for(self._storage, ())
            with registered(sealed, name, rows):
                return run(sealed, parts)
        pinned = self.pin(snapshot, on_this_host=False)
        connection = self._connect_for_sql(pinned)
        mapping = snapshot.columns
        files = parts_that_may_match(connection, pinned.files, mapping.stored, where, self._statistics, mapping)
        require_intact(files, self._storage, objects=True, of_others=True)
        schema = pa.schema([*snapshot.schema, *hidden])

        def attempt(hides_dead_rows: bool) -> T:
            register_view(
                connection,
                name,
                self._storage,
                files,
                schema,
                completed=pinned.completed,
                hides_dead_rows=hides_dead_rows,
                mapping=mapping,
            )
            return run(connection, len(files))

        return without_dead_rows(files, attempt)

    def rows_with_keys(
        self, snapshot: Snapshot, keys: pa.Table, columns: Sequence[str] | None = None, hidden: Sequence[pa.Field] = ()
    ) -> tuple[pa.Table, int]:
        """The rows of ``rows_for_sql`` with these keys, in these logical columns (None: all), and of how many parts."""
        spec = write_spec_of(snapshot)
        resolution = self._pins.resolved(snapshot, spec, keys)
        every, schema = self._pins.files(snapshot, resolution), pa.schema([*snapshot.schema, *hidden])
        files = parts_that_may_hold(connect(), every, snapshot.schema, keys, self._statistics)
        wanted = snapshot.schema.names if columns is None else snapshot.columns.stored_names(columns)
        rows = rows_with(
            self._connect(),
            self._storage,
            files,
            schema,
            keys,
            columns=[*wanted, *(field.name for field in hidden)],
            completed=resolution.completed,
            known=self._locator(spec).known(keys),
            before_reading=lambda read: require_intact(read, self._storage, objects=True, of_others=True),
        )
        return snapshot.columns.to_logical(rows), len(files)

    def register(self, spark: SparkSession, name: str) -> None:
        """Register a temporary view of this name, which ``refresh`` then keeps up to date."""
        with self._lock:
            self._registered[name] = spark
            self._shown.pop(name, None)

    def refresh(self, snapshot: Snapshot) -> None:
        """Make the registered views show the snapshot, unless they show a newer version.

        A view that shows this version is made again if there are other materialized parts by now.
        """
        with self._refreshing:
            with self._lock:
                registered = dict(self._registered)
            local = self._pins.local() if registered else frozenset()
            for name, spark in registered.items():
                table_id, version, read = self._shown.get(name, ("", -1, local))
                is_newer = table_id != snapshot.metadata.id or version < snapshot.version
                if is_newer or (version == snapshot.version and read != local):
                    self._refresh(name, spark, snapshot, local)

    def _refresh(self, name: str, spark: SparkSession, snapshot: Snapshot, local: frozenset[str]) -> None:
        started = time.perf_counter()
        self.dataframe(spark, snapshot).createOrReplaceTempView(name)
        with self._lock:
            self._shown[name] = snapshot.metadata.id, snapshot.version, local
        events.emit(
            events.ViewRefreshed(
                table=self._root, view=name, version=snapshot.version, seconds=time.perf_counter() - started
            )
        )


def _paths(snapshot: Snapshot) -> list[str]:
    """The files of base and tail."""
    return [part.path for part in _parts(snapshot)]


def _parts(snapshot: Snapshot) -> list[Part | ChangePart]:
    return [*snapshot.parts.values(), *snapshot.tail.values()]


# -- What a reader elsewhere has to read of a table at one version ---------------------------------------------------------
#
# Files, their dead rows, and rows that are in no file.
#
# 1. *Settled*: the base, with the deletion vectors of the log; what every Delta reader reads. Nothing is read for it.
# 2. *Fresh*: the tail too. It is resolved against the base as for every read of ours (``merge_on_read``). Dead rows that are
#    not committed yet come as inline deletion vectors, so a reader needs to know nothing of tails. Materialized parts are left
#    out: they are on the disk of one host.
# 3. Files that can hold no row for which ``where`` is true are left out, by their statistics and partition values. No row is
#    read and no SQL of a user is run for that, nor bound: DuckDB evaluates what is constant when it binds.


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScanPlan:
    """``files`` may hold rows of the condition, others do not; ``files_of_version``: how many there are without it.

    ``completed``: rows, by stored names, that are in no file, because values that their source did not send were filled in.
    """

    files: tuple[ScanFile, ...]
    files_of_version: int
    completed: pa.Table | None


def plan_scan(
    view: TableView, snapshot: Snapshot, where: str | None, *, settled: bool, statistics: StatisticsCache
) -> _ScanPlan:
    """What to read of a version.

    Raises InvalidInput for a ``where`` that is not one expression over the columns of a row, Corrupt with the path of a file that
    is missing or damaged.
    """
    condition = None if where is None else expression(where, "where")
    if condition is not None:
        check_columns_of(condition, snapshot.logical_schema.names)
    mapping = snapshot.columns
    with connect() as connection:
        if settled:
            live = [part for part in snapshot.parts.values() if not part.dead_rows or part.dead_rows != part.rows]
            parts = parts_that_may_match(connection, live, mapping.stored, condition, statistics, mapping)
            return _ScanPlan(files=tuple(map(_scanned_file, parts)), files_of_version=len(live), completed=None)
        pinned = view.pin(snapshot, on_this_host=False)
        kept = parts_that_may_match(connection, pinned.files, mapping.stored, condition, statistics, mapping)
    return _ScanPlan(files=tuple(kept), files_of_version=len(pinned.files), completed=pinned.completed)


def _scanned_file(part: Part) -> ScanFile:
    return ScanFile(
        path=part.path,
        bytes=part.bytes,
        rows=part.rows,
        partition_values=part.partition_values,
        deletion_vector=part.deletion_vector,
        stats=part.stats,
    )


def vector_of(file: ScanFile) -> DeletionVector | None:
    """The file's dead rows as a deletion vector: the committed one, or an inline one; None if no row is dead."""
    if file.deletion_vector is not None:
        return file.deletion_vector
    return inline(BitMap64(file.dead)) if file.dead else None  # a copy: encoding it optimizes it in place
