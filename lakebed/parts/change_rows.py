"""Change rows: what the commits of a table changed, row by row, read from its parts without Spark.

The rows are the changes as they were committed, the newest per key within a part. Late changes are among them. Where the
sequence is not a column of the table, the rows have it as ``_change_sequence``. What the rows say besides the table's columns has
other names where a column has one of these (``ChangeNames``).

A change with unavailable values (``resolve.unavailable_values``) is not a row of the version that committed it, because the
whole row is not known before the tail is settled. Neither is one that is a row only if there was one before
(``parts.key_moves``). The settle completes the change, and the whole row is a change row of
the settle's version. If it comes out that the key is deleted, its delete is one. By then the tail may hold a newer change of the
key, which was a row of an earlier version. Then the row or delete is left out, so that a reader who applies the rows in order
ends with the newest.

A truncate is a row of its own kind without values. A restore of an earlier version is a truncate and then all rows of the table:
rows that are older than those that they replace would else be late. Other commits that change rows of the base (a mutation of a
table without keys, a partition detached, attached or replaced) give deletes for the rows that were live only before the commit,
then upserts for the rows that are live only after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from lakebed.errors import VersionNotFound
from lakebed.log.actions import (
    AddChangePart,
    AddPart,
    ChangePart,
    Commit,
    Part,
    RemoveChangePart,
    RemovePart,
    part_domain,
)
from lakebed.log.commit_kind import restores, settles, truncates
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.parts.change_columns import ChangeColumns, columns_at, narrowed, read_as
from lakebed.parts.changes import (
    DELETE,
    NEEDS_ROW_COLUMN,
    OLDEST_SEQUENCE,
    OP_COLUMN,
    SEQUENCE_COLUMN,
    UNAVAILABLE_COLUMN,
    WriteSpec,
)
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.parts.intact import require_intact, verify_pages
from lakebed.schema.nested import nullable, table_as_declared
from lakebed.sql import aliases, by_place, named, parquet, registered, scan_of, sql_type
from lakebed.storage.data_files import open_part_storage
from lakebed.storage.engine import connect, is_missing_file, naming_unreadable
from lakebed.storage.part_storage import PartStorage

_IS_WHOLE = " where coalesce(len({}), 0) = 0 and {} is not true"
"""Of a change: its source sent all values, and it is a row whatever was there before (``parts.key_moves``)."""


@dataclass(slots=True, kw_only=True)
class ChangedVersion:
    """Where the change rows of a version are; picklable, so that a task need not read the log.

    ``newest``: the stored schema of the table's newest version, None while it is that of ``columns``. ``completed``: parts that a
    settle added, each of which has whole rows alone, or deletes alone; ``newer``: if there are any, the tail after the settle.
    ``tombstones``: parts of which the deletes are change rows.
    """

    version: int
    timestamp_ms: int
    columns: ChangeColumns
    newest: pa.Schema | None = None
    truncates: bool = False
    change_parts: Sequence[ChangePart] = ()
    completed: Sequence[Part] = ()
    newer: Sequence[ChangePart] = ()
    before: Mapping[str, RemovePart] = field(default_factory=dict)
    after: Mapping[str, Part] = field(default_factory=dict)
    tombstones: Sequence[Part] = ()

    @staticmethod
    def of_commit(commit: Commit, columns: ChangeColumns, newest: pa.Schema | None = None) -> ChangedVersion:
        """What a commit changed; of a restore only what it moved (``of_restore`` has all of it)."""
        base = [action for action in commit.actions if isinstance(action, (AddPart, RemovePart)) and action.data_change]
        completed: list[Part] = []
        if settles(commit):
            completed = _completed(commit)
            base = []  # the changes that it settles were change rows of the versions that committed them
        is_truncate = truncates(commit) or restores(commit)
        before = {} if is_truncate else {action.path: action for action in base if isinstance(action, RemovePart)}
        return ChangedVersion(
            version=commit.version,
            timestamp_ms=commit.timestamp_ms,
            columns=columns,
            newest=newest,
            truncates=is_truncate,
            change_parts=[action.part for action in commit.actions if isinstance(action, AddChangePart)],
            completed=completed,
            before=before,
            after={action.part.path: action.part for action in base if isinstance(action, AddPart)},
        )

    @staticmethod
    def of_snapshot(snapshot: Snapshot) -> ChangedVersion:
        """The whole table at a version, as if that one version had brought it: its rows, then the changes of its tail.

        With a sequence, the deletes that the base remembers are among them, so that late changes lose against them in a copy too.
        """
        return ChangedVersion._whole(snapshot, columns_at(snapshot), None, truncates=False)

    @staticmethod
    def of_restore(snapshot: Snapshot, columns: ChangeColumns, newest: pa.Schema | None = None) -> ChangedVersion:
        """What the commit of this version changed, which restored an earlier one."""
        return ChangedVersion._whole(snapshot, columns, newest, truncates=True)

    @staticmethod
    def _whole(
        snapshot: Snapshot, columns: ChangeColumns, newest: pa.Schema | None, *, truncates: bool
    ) -> ChangedVersion:
        has_sequence = columns.spec.sequence_column is not None
        return ChangedVersion(
            version=snapshot.version,
            timestamp_ms=snapshot.timestamp_ms,
            columns=columns,
            newest=newest,
            truncates=truncates,
            change_parts=snapshot.tail_in_order(),
            after=snapshot.parts,
            tombstones=[
                part for part in snapshot.parts.values() if has_sequence and part.deletes and part.has_op_column
            ],
        )

    @property
    def has_rows(self) -> bool:
        """Whether there may be change rows."""
        return bool(self.truncates or self.change_parts or self.completed or self.before or self.after)

    @property
    def bytes(self) -> int:
        """Of the parts that are read for the change rows."""
        changes = sum(part.bytes for part in self.change_parts)
        base = sum(part.bytes for part in (*self.completed, *self.after.values()))
        return changes + base + sum(gone.bytes or 0 for gone in self.before.values())


def versions_with_changes(
    path: str, first: int, last: int, columns: ChangeColumns | None = None
) -> list[ChangedVersion]:
    """``changed_versions`` of the table at a path."""
    return changed_versions(TableLog(open_store(path)), first, last, columns)


def changed_versions(
    log: TableLog, first: int, last: int, columns: ChangeColumns | None = None
) -> list[ChangedVersion]:
    """The versions in the range, both ends included, that have change rows. Raises VersionNotFound.

    ``columns``: of the change rows; by default those of the newest version.
    """
    snapshot = log.refresh()
    columns = columns or columns_at(snapshot)
    newest = None if snapshot.schema.equals(columns.spec.schema) else snapshot.schema
    found: list[ChangedVersion] = []
    tail: dict[str, ChangePart] | None = None  # kept up to date from the first version on that needs it
    for commit in log.commits(first, last):
        if restores(commit):
            snapshot = log.at_version(commit.version)
            version, tail = ChangedVersion.of_restore(snapshot, columns, newest), None
        else:
            version = ChangedVersion.of_commit(commit, columns, newest)
        if tail is not None:
            _follow(tail, commit)
        if version.completed:
            if tail is None:
                tail = dict(log.at_version(commit.version).tail)
            version.newer = list(tail.values())
        if version.has_rows:
            found.append(version)
    return found


def _completed(commit: Commit) -> list[Part]:
    """The parts of completed rows and of deletes: those that a settle added, not change parts that it moved into the base,
    nor parts of the base that it gave another deletion vector.
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


def read_version(path: str, version: ChangedVersion) -> Iterator[pa.RecordBatch]:
    """The change rows of a version. Raises VersionNotFound if its parts are gone."""
    storage = open_part_storage(path)
    reading = _Reading(version, storage)
    if version.truncates:
        nothing = pa.table([pa.nulls(1, field.type) for field in version.columns.stored], version.columns.stored)
        yield from _change_rows(nothing, pa.repeat(pa.scalar("truncate"), 1), version)
    for remembered in version.tombstones:
        table = reading.of_rows(reading.deletes(remembered))
        yield from _change_rows(table, pa.repeat(pa.scalar("delete"), len(table)), version)
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
        if completed.deletes:
            table = reading.of_rows(table)
        kind = "delete" if completed.deletes else "upsert"
        yield from _change_rows(table, pa.repeat(pa.scalar(kind), len(table)), version)
    for change_part in version.change_parts:
        table = reading.changes(change_part)
        kinds = pc.if_else(pc.equal(table[OP_COLUMN], DELETE), pa.scalar("delete"), pa.scalar("upsert"))
        yield from _change_rows(table, kinds, version)


def read_change_part(part: ChangePart, spec: WriteSpec, storage: PartStorage) -> pa.Table:
    """The changes of a part, in order, with their operation, and their sequence if that is no column. Raises Corrupt."""
    require_intact([part], storage, objects=True)
    kinds = {field.name: nullable(field.type) for field in spec.schema} | {OP_COLUMN: pa.string()}
    if spec.sequence_column == SEQUENCE_COLUMN:
        kinds[SEQUENCE_COLUMN] = pa.int64()
    connection = connect()
    storage.attach(connection)
    scan = scan_of([storage.duckdb_url(part.path)], {name: sql_type(kind) for name, kind in kinds.items()}, {})
    return table_as_declared(named(connection.sql(scan).to_arrow_table(), list(kinds)), pa.schema(list(kinds.items())))


class _Reading:
    """Reads the parts of one version: the table's columns by their stored names, then what change rows need besides."""

    def __init__(self, version: ChangedVersion, storage: PartStorage) -> None:
        self._version = version
        self._columns = version.columns
        self._storage = storage
        self._connection = connect()
        storage.attach(self._connection)

    def base(self, part: Part | RemovePart) -> pa.Table:
        """All rows of a part of the base, dead rows included."""
        return self._read(part, {}, "")

    def deletes(self, part: Part) -> pa.Table:
        """The deletes that a part of the base remembers."""
        rows = self._read(part, {OP_COLUMN: "VARCHAR"}, "")
        return rows.filter(pc.equal(rows[OP_COLUMN], DELETE))

    def of_rows(self, deletes: pa.Table) -> pa.Table:
        """Without those that hold only what groups of columns have of a key (``resolve.groups``): it never had a row."""
        sequence = self._columns.spec.sequence_column
        return deletes if sequence not in deletes.column_names else deletes.filter(deletes[sequence].is_valid())

    def changes(self, part: ChangePart) -> pa.Table:
        """The changes of a change part with their operation, without those that are not whole."""
        return self._read(part, {OP_COLUMN: "VARCHAR"}, _IS_WHOLE if part.incomplete else "")

    def _read(self, part: Part | RemovePart | ChangePart, also: Mapping[str, str], where: str) -> pa.Table:
        schema = self._columns.stored if self._version.newest is None else self._schema_of(part, self._version.newest)
        kinds = {field.name: sql_type(field.type) for field in schema} | dict(also)
        if self._columns.hides_sequence:
            kinds[SEQUENCE_COLUMN] = "BIGINT"
        names, read = list(kinds), list(aliases(kinds).values())
        if self._columns.hides_sequence:
            read[-1] = f"coalesce({read[-1]}, {OLDEST_SEQUENCE})"
        if where:
            where = _is_whole(kinds)
        constants = {} if isinstance(part, ChangePart) else part.partition_values or {}
        scan = scan_of([self._storage.duckdb_url(part.path)], kinds, constants)
        rows = named(self._query(f"select {', '.join(read)} from ({scan}){where}", [part]), names)
        if self._version.newest is None:
            return rows
        return narrowed(rows, schema, self._columns, self._version.version, self._connection)

    def _schema_of(self, part: Part | RemovePart | ChangePart, newest: pa.Schema) -> pa.Schema:
        """The types to read a part in, which may have been written after a column was widened.

        The types of partition columns, which the part need not hold, are those that they have now.
        """
        footer = self._query(f"select * from {parquet(self._storage.duckdb_url(part.path))} limit 0", [part]).schema
        constant = part.partition_values or {}
        found = [field for field in footer if field.name not in constant]
        return read_as(
            self._columns.stored, pa.schema([*found, *(field for field in newest if field.name in constant)])
        )

    def without_newer(self, completed: pa.Table) -> pa.Table:
        """The completed rows whose key has no newer change in the tail; changes that are not whole do not count."""
        if not self._version.newer:
            return completed
        spec, schema = self._columns.spec, self._version.newest or self._columns.stored
        kinds = {name: sql_type(schema.field(name).type) for name in spec.keys}
        same = [f"t.{alias} = c.{alias}" for alias in aliases(kinds).values()]
        probes = by_place(completed, spec.keys).append_column("place", pa.array(np.arange(len(completed))))
        if spec.sequence_column is not None:
            kinds[spec.sequence_column] = (
                "BIGINT" if self._columns.hides_sequence else sql_type(schema.field(spec.sequence_column).type)
            )
            probes = probes.append_column("sequence", completed[spec.sequence_column])
            same.append(f"t.{aliases(kinds)[spec.sequence_column]} >= c.sequence")
        is_whole = _is_whole(kinds)
        scan = scan_of([self._storage.duckdb_url(part.path) for part in self._version.newer], kinds, {})
        tail = f"(select * from ({scan}){is_whole})"
        with registered(self._connection, "lakebed_completed", probes) as name:
            query = f"select place from {name} c anti join {tail} t on {' and '.join(same)} order by place"
            return completed.take(self._query(query, self._version.newer)["place"])

    def _require_intact(self, part: Part | RemovePart | ChangePart) -> None:
        """Raises Corrupt for a local file that is not what was written. One that is gone is reported when it is read.

        The log keeps no checksum of a part that was removed, so the pages of such a file are compared.
        """
        url = self._storage.duckdb_url(part.path)
        if not Path(url).exists():
            return
        if isinstance(part, RemovePart):
            verify_pages(part.path, url)
        else:
            require_intact([part], self._storage)

    def _query(self, query: str, parts: Sequence[Part | RemovePart | ChangePart]) -> pa.Table:
        for part in parts:
            self._require_intact(part)
        try:
            return self._connection.sql(query).to_arrow_table()
        except Exception as error:
            if is_missing_file(error):
                gone = ", ".join(part.path for part in parts if not self._storage.exists(part.path))
                raise VersionNotFound(
                    f"the change rows of version {self._version.version} are no longer kept: {gone} is gone",
                    version=self._version.version,
                ) from error
            with naming_unreadable(part.path for part in parts):
                raise


def _is_whole(kinds: dict[str, str]) -> str:
    """The condition for changes that are whole; what it needs is added to the columns that are read."""
    kinds |= {UNAVAILABLE_COLUMN: "VARCHAR[]", NEEDS_ROW_COLUMN: "BOOLEAN"}
    alias = aliases(kinds)
    return _IS_WHOLE.format(alias[UNAVAILABLE_COLUMN], alias[NEEDS_ROW_COLUMN])


def _alive(dead: BitMap64, rows: int) -> npt.NDArray[np.bool_]:
    alive = np.ones(rows, dtype=bool)
    alive[np.frombuffer(dead.to_array(), dtype=np.uint64)] = False
    return alive


def _change_rows(table: pa.Table, kinds: Any, version: ChangedVersion) -> Iterator[pa.RecordBatch]:
    """The rows with their kind, version and time, in the columns of change rows."""
    count, columns = len(table), version.columns
    names = columns.names
    extra = {
        names.type: kinds,
        names.sequence: table[SEQUENCE_COLUMN]
        if SEQUENCE_COLUMN in table.column_names
        else pa.nulls(count, pa.int64()),
        names.version: pa.repeat(pa.scalar(version.version), count),
        names.time: pa.repeat(pa.scalar(version.timestamp_ms * 1000, pa.timestamp("us", "UTC")), count),
    }
    rows = columns.mapping.to_logical(table_as_declared(table, columns.stored))
    for one in columns.extra:
        rows = rows.append_column(one, extra[one.name])
    yield from rows.to_batches()
