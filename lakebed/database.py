"""All tables of a database, each by itself or all as of one moment of the source, also in one query.

Only tables that the query names are read. It may read these tables and nothing else.

warehouse = lakebed.warehouse("s3://lake/shop")
with warehouse.at("newest") as moment:
    moment.query("select sum(balance) from public.accounts join public.branches using (bid)")
"""

from __future__ import annotations

import datetime
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakebed.discovery import TableName, tables_below
from lakebed.errors import InvalidInput, TableNotFound, VersionNotFound
from lakebed.listeners.delivery import Listening
from lakebed.listeners.event_types import TableEvent
from lakebed.log.holds import first_unexpired
from lakebed.log.snapshot import Snapshot
from lakebed.operations.references import hold
from lakebed.parts.intact import require_intact_reads
from lakebed.positions.point_log import Point, PointLog, TableAt, position_digest
from lakebed.quoting import quote
from lakebed.sql import mistakes, tables_in
from lakebed.storage.data_files import open_part_storage
from lakebed.storage.engine import connect_sealed
from lakebed.storage.part_storage import PartStorage
from lakebed.storage.roots import local_file
from lakebed.table import Table, internals_of
from lakebed.table import open as open_table
from lakebed.view.arrow_scan import epoch_ms, failures, register_view, snapshot_at, without_dead_rows
from lakebed.view.pinned import Pinned

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# -- A SQL query over several tables, each at one version, by DuckDB -------------------------------------------------------


_ALONE = "main"


@dataclass(frozen=True, slots=True)
class TableOfQuery:
    """A table at one version."""

    storage: PartStorage
    pinned: Pinned
    snapshot: Snapshot


def query_tables(sql: str, names: Sequence[str], open_table: Callable[[str], TableOfQuery]) -> pa.Table:
    """The result of one SELECT over tables of these names, ``schema.table``.

    Raises InvalidInput, and what ``open_table`` raises.
    """
    tables = {name: open_table(name) for name in _named_in(sql, names)}
    files = [file for table in tables.values() for file in table.pinned.files]
    for table in tables.values():
        require_intact_reads(table.pinned.files, table.storage, table.snapshot.settings.verify_reads)

    def run(hides_dead_rows: bool) -> pa.Table:
        connection = connect_sealed(_folders(list(tables.values())))
        catalog = f"moment_{uuid.uuid4().hex}"  # the database is shared, and only temporary views are of one connection
        connection.execute(f"attach ':memory:' as {catalog}")
        try:
            for number, (name, table) in enumerate(tables.items()):
                inner = f"_lakebed_{number}"
                table.storage.attach(connection)
                register_view(
                    connection,
                    inner,
                    table.storage,
                    table.pinned.files,
                    table.snapshot.schema,
                    completed=table.pinned.completed,
                    hides_dead_rows=hides_dead_rows,
                    mapping=table.snapshot.columns,
                )
                for schema, own in _known_as(name, names):
                    connection.execute(f"create schema if not exists {catalog}.{quote(schema)}")
                    view = f"{catalog}.{quote(schema)}.{quote(own)}"
                    connection.execute(f"create view {view} as select * from {quote(inner)}")
            connection.execute(f"use {catalog}")
            with ExitStack() as blame:
                for table in tables.values():
                    blame.enter_context(failures("the query failed", table.pinned.files, table.storage))
                blame.enter_context(
                    mistakes("the query failed", [local_file(file.path) or file.path for file in files])
                )
                return connection.sql(sql).to_arrow_table()
        finally:
            connection.execute("use memory")
            connection.execute(f"detach {catalog}")

    return without_dead_rows(files, run)


def _known_as(name: str, names: Sequence[str]) -> list[tuple[str, str]]:
    """The schema and name by which a query may call a table: its own, and in ``main`` its name alone if no other has it."""
    schema, _, own = name.rpartition(".")
    alone = sum(one.rpartition(".")[2].lower() == own.lower() for one in names) == 1
    found = [(schema, own)] if schema else []
    if alone and schema != _ALONE:
        found.append((_ALONE, own))
    return found


def _named_in(sql: str, names: Sequence[str]) -> list[str]:
    """The tables that a query names; DuckDB ignores case."""
    asked = {(schema.lower() or _ALONE, name.lower()) for schema, name in tables_in(sql)}
    return sorted(
        name
        for name in names
        if not asked.isdisjoint((schema.lower(), own.lower()) for schema, own in _known_as(name, names))
    )


def _folders(tables: Sequence[TableOfQuery]) -> list[str]:
    """The folders that the query may read."""
    found = set()
    for table in tables:
        inside = os.path.join(table.storage.duckdb_folder, "")
        found.add(table.storage.duckdb_folder)
        urls = (table.storage.duckdb_url(file.path) for file in table.pinned.files)
        found |= {os.path.dirname(url) for url in urls if not url.startswith(inside)}
    return sorted(found)


# -- All tables of a database, each by itself or all as of one moment of the source ----------------------------------------


_HOLD_SECONDS = 3600.0
_POINTS_SCHEMA = pa.schema(
    [
        pa.field("point", pa.int64(), False),
        pa.field("time", pa.timestamp("ms", "UTC"), False),
        pa.field("taken", pa.timestamp("ms", "UTC"), False),
        pa.field("transaction", pa.string(), False),
        pa.field("tables", pa.int32(), False),
        pa.field("left_out", pa.map_(pa.string(), pa.string()), False),
    ]
)


def warehouse(path: str | os.PathLike[str]) -> Warehouse:
    """The database at a local path or an ``s3://`` one. Nothing is read yet."""
    return Warehouse(open_part_storage(os.fspath(path)).root)


class Warehouse:
    """A database: the tables below one path, which one pipeline keeps. Made by ``lakebed.warehouse``."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._points = PointLog.of(path)

    def __repr__(self) -> str:
        return f"lakebed.warehouse({self.path!r})"

    def tables(self) -> tuple[str, ...]:
        """The names of all tables that there are now, ``schema.table``. Raises StoreUnavailable."""
        return tuple(tables_below(self.path))

    def table(self, name: str) -> Table:
        """The table ``schema.table``, at its newest version. Raises TableNotFound."""
        return open_table(f"{self.path}/{TableName(name).folder}")

    def points(self, limit: int = 100) -> pa.Table:
        """The newest points that are kept, newest first.

        Args:
            limit: How many.

        Returns:
            A row for each point: its number, ``time`` (when the source committed its last transaction), ``taken`` (when the
                pipeline took it), that transaction's id, how many tables it has, and the tables that it leaves out, with the
                reasons.
        """
        found = list(islice(self._points.all(), limit))
        columns: dict[str, list[Any]] = {
            "point": [one.number for one in found],
            "time": [one.time_ms for one in found],
            "taken": [one.taken_ms for one in found],
            "transaction": [one.transaction for one in found],
            "tables": [len(one.tables) for one in found],
            "left_out": [list(one.left_out.items()) for one in found],
        }
        arrays = [pa.array(columns[field.name], field.type) for field in _POINTS_SCHEMA]
        return pa.Table.from_arrays(arrays, schema=_POINTS_SCHEMA)

    def watermark(self) -> datetime.datetime | None:
        """When the source committed the last transaction of the newest point; None if there is no point yet."""
        newest = self._points.newest()
        return None if newest is None else _time(newest.time_ms)

    def at(
        self,
        moment: int | str | datetime.datetime = "newest",
        *,
        settled: bool = False,
        hold_seconds: float = _HOLD_SECONDS,
    ) -> Moment:
        """All tables as of one moment of the source: every transaction up to it is in, whole, and none after it.

        In a ``with`` block, no cleanup deletes what the tables that are read in it need.

        Args:
            moment: The number of a point, ``"newest"``, or a time of the source (a datetime, or an ISO text, UTC without an
                offset), which means the newest point until that time.
            settled: Take the newest point up to which all its tables are settled, so every Delta reader can read them as of it
                (``Moment.settled_versions``).
            hold_seconds: How long the ``with`` block keeps the tables' versions at most.

        Raises:
            VersionNotFound: There is no such point.
            InvalidInput: ``moment`` is none of these.
        """
        if settled:
            if moment != "newest":
                raise InvalidInput("settled=True is for the newest point; Moment.settled_versions says it of another")
            return Moment(self, self._points, self._points.at(number=self._points.settled().number), hold_seconds)
        if isinstance(moment, bool) or not isinstance(moment, (int, str, datetime.datetime)):
            raise InvalidInput(f"{moment!r} is neither the number of a point nor a time; 'newest' is the newest point")
        if isinstance(moment, int):
            point = self._points.at(number=moment)
        elif moment == "newest":
            point = self._points.at()
        else:
            text = moment if isinstance(moment, str) else moment.isoformat()
            point = self._points.at(time_ms=epoch_ms(text))
        return Moment(self, self._points, point, hold_seconds)

    def query(self, sql: str, at: int | str | datetime.datetime = "newest") -> pa.Table:
        """The result of a SQL query over tables as of one moment.

        Args:
            sql: As for ``Moment.query``.
            at: As ``moment`` for ``Warehouse.at``.
        """
        return self.at(at).query(sql)

    def create_views(self, spark: SparkSession, at: int | str | datetime.datetime = "newest") -> dict[str, str]:
        """Make temporary views of all tables as of one moment, as ``Moment.create_views`` does.

        Args:
            spark: The session that gets the views.
            at: As ``moment`` for ``Warehouse.at``.
        """
        return self.at(at).create_views(spark)

    def listen(
        self,
        callback: Callable[[TableEvent], object],
        *,
        cursor: str = "newest",
        tables: Sequence[str] = ("*",),
        kinds: Sequence[str] = (),
    ) -> Listening:
        """Call a function with each table event, in a thread, until the result's ``stop()``.

        The events of each table come in order. One on which the function raises comes again, after a pause that grows, before
        later ones of its table.

        Args:
            callback: The function.
            cursor: ``"newest"`` (what comes after now), ``"oldest"`` (all that the logs keep), or the ``cursor`` of an earlier
                ``Listening``: keep it after each call, and nothing is lost between two processes.
            tables: Patterns of names, with ``*`` and ``?``.
            kinds: Kinds of events, such as ``"appended"``; none means all.

        Raises:
            InvalidInput, StoreUnavailable
            TableNotFound: There is neither a table nor a folder with tables.
        """
        return Listening(self.path, callback, cursor=cursor, tables=tuple(tables), kinds=tuple(kinds))


class Moment:
    """The tables of a database as of a point. Made by ``Warehouse.at``; a ``with`` block holds the versions that it reads."""

    def __init__(self, warehouse: Warehouse, points: PointLog, point: Point, hold_seconds: float) -> None:
        self._warehouse = warehouse
        self._points = points
        self._point = point
        self._hold_seconds = hold_seconds
        self._tables: dict[str, tuple[Table, Snapshot]] = {}
        self._holds: ExitStack | None = None

    def __repr__(self) -> str:
        return f"{self._warehouse!r}.at({self._point.number})"

    def __enter__(self) -> Moment:
        self._holds = ExitStack()
        return self

    def __exit__(self, *_: object) -> None:
        holds, self._holds = self._holds, None
        if holds is not None:
            holds.close()

    @property
    def number(self) -> int:
        """The number of the point."""
        return self._point.number

    @property
    def time(self) -> datetime.datetime:
        """When the source committed the point's last transaction."""
        return _time(self._point.time_ms)

    @property
    def transaction(self) -> str:
        """The source's id of that transaction."""
        return self._point.transaction

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of the tables in the point."""
        return tuple(sorted(self._point.tables))

    @property
    def left_out(self) -> Mapping[str, str]:
        """The tables that are not in the point, and why."""
        return dict(self._point.left_out)

    @property
    def versions(self) -> Mapping[str, int]:
        """The version of each table, for readers of lakebed's."""
        return {name: at.version for name, at in sorted(self._point.tables.items())}

    @property
    def settled_versions(self) -> Mapping[str, int]:
        """The version at which every Delta reader sees each table as of this moment. Raises VersionNotFound if the tables are not
        settled here: ``at(settled=True)`` is the newest moment at which they are."""
        return dict(sorted(self._points.settled(self.number).versions.items()))

    def read(self, spark: SparkSession, name: str) -> DataFrame:
        """A table as a DataFrame.

        Raises:
            TableNotFound: The table is not in the point.
            VersionNotFound: Its version has expired.
        """
        table, snapshot = self._opened(name)
        return internals_of(table).view.dataframe(spark, snapshot)

    def to_arrow(self, name: str, columns: list[str] | None = None, where: str | None = None) -> pa.Table:
        """A table without Spark, as ``Table.to_arrow``. Raises as ``read``, and InvalidInput."""
        table, snapshot = self._opened(name)
        return internals_of(table).view.arrow(snapshot, columns, where)

    def query(self, sql: str) -> pa.Table:
        """The result of one SELECT (DuckDB's dialect) over these tables, called ``schema.table``, or ``table`` where only one
        schema has it. Raises InvalidInput, and as ``read``."""
        return query_tables(sql, tuple(self._point.tables), self._of_query)

    def create_views(self, spark: SparkSession) -> dict[str, str]:
        """Make temporary views, of the name of the table, or ``schema_table`` where several schemas have it; returns them with
        the tables that they show. The views stay at this moment. Raises as ``read``."""
        bare = [name.partition(".")[2] or name for name in self.tables]
        views = {
            own if bare.count(own) == 1 else name.replace(".", "_"): name
            for name, own in zip(self.tables, bare, strict=True)
        }
        for view, name in views.items():
            self.read(spark, name).createOrReplaceTempView(f"`{view.replace('`', '``')}`")
        return views

    def _of_query(self, name: str) -> TableOfQuery:
        table, snapshot = self._opened(name)
        internals = internals_of(table)
        return TableOfQuery(internals.storage, internals.view.pin(snapshot, on_this_host=False), snapshot)

    def _opened(self, name: str) -> tuple[Table, Snapshot]:
        if name not in self._tables:
            at = self._point.tables.get(name)
            if at is None:
                raise self._not_here(name)
            table = self._warehouse.table(name)
            self._tables[name] = table, self._pinned(name, table, at)
        return self._tables[name]

    def _not_here(self, name: str) -> TableNotFound:
        why = self._point.left_out.get(name)
        if why is not None:
            return TableNotFound(
                f"table {name} is left out of point {self.number}: {why}; warehouse.table({name!r}) opens its newest version",
                table=name,
            )
        known = ", ".join(self.tables[:20])
        return TableNotFound(f"there is no table {name} in point {self.number}; it has {known}", table=name)

    def _pinned(self, name: str, table: Table, at: TableAt) -> Snapshot:
        """The version that the point names; if it has expired, a later one that has read the same."""
        log = internals_of(table).log
        newest = log.refresh()
        if newest.metadata.id != at.table_id:
            raise VersionNotFound(
                f"table {name} was created again after point {self.number}, so its state at that point is gone",
                table=table.path,
            )
        try:
            snapshot = snapshot_at(log, at.version)
        except VersionNotFound:
            snapshot = self._of_that_time(name, table, at, newest)
        if self._holds is not None:
            self._holds.enter_context(hold(log, snapshot.version, self._hold_seconds))
        return snapshot

    def _of_that_time(self, name: str, table: Table, at: TableAt, newest: Snapshot) -> Snapshot:
        log = internals_of(table).log
        for snapshot in self._later(table, at, newest):
            if snapshot.version >= at.version and position_digest(snapshot) == at.position:
                return snapshot
        raise VersionNotFound(
            f"point {self.number} has expired: table {name} no longer keeps what it was then; the property lakebed.log_retention "
            "says how long versions are kept",
            table=log.root,
            version=at.version,
        )

    def _later(self, table: Table, at: TableAt, newest: Snapshot) -> Iterator[Snapshot]:
        """The oldest version that is kept: if a later one has read the same as the point, so has this one; and others, should
        this one go meanwhile."""
        log = internals_of(table).log
        with suppress(VersionNotFound):
            yield snapshot_at(log, max(at.version, log.oldest_version(), first_unexpired(newest.domains)))
        with suppress(VersionNotFound):
            yield snapshot_at(log, log.version_at(self._point.taken_ms))
        yield newest


def _time(milliseconds: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)
