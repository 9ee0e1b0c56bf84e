"""INSERT, DELETE, UPDATE, MERGE INTO: Spark computes what changes in a table with keys, and it is committed to the tail.

1. The rows that a statement brings, or compares with (its source), are computed once, and kept.
2. Spark's plan of the statement computes the changes of the rows of a version: of those with the keys of the source, where a
   MERGE says that keys are equal; else of all rows, as a scan that the condition prunes.
3. The changes are written: few of them here, many by tasks. ``operations.commit_changes`` commits them, and has 2 done again for
   keys that others changed meanwhile.

In a table without keys, or whose changes are not of whole rows, a verb of the table does it, if the statement can be said in its
SQL. Else rows without keys are found by their places (``places``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.decode.row_changes import RowChanges
from lakebed.errors import InvalidInput, Unsupported
from lakebed.ingest.batch_writer import WriteTask, in_tasks
from lakebed.ingest.changes_frame import changes_frame
from lakebed.log.entries import Operation
from lakebed.log.snapshot import Snapshot
from lakebed.names.places import run_by_place
from lakebed.operations.commit_changes import Kind, Pending, PendingPart, commit_changes, discard, refusing_losers
from lakebed.operations.mutate import observed
from lakebed.operations.mutation import MutationResult
from lakebed.parts.changes import (
    DELETE,
    OLDEST_SEQUENCE,
    OP_COLUMN,
    SEQUENCE_COLUMN,
    UPSERT,
    WriteSpec,
    prepare,
    stored_rows,
    write_spec_of,
)
from lakebed.parts.write import write_parts
from lakebed.quoting import literal, quote, quote_for_spark
from lakebed.sparks.names import DELETED, INSERTED, OLD, OPERATION, UPDATED, StatementInJvm
from lakebed.sql import sql_type
from lakebed.storage.engine import connect
from lakebed.storage.part_storage import PartStorage
from lakebed.table import Table, internals_of
from lakebed.view.spark_scan import frame_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FEW_ROWS = 200_000
"""So many changes are written here, and so many keys of a source are looked up; more are left to tasks and to a scan."""
_KEYS_AT_ONCE = 100_000
_AMONG = "_lakebed_among_"
_WHY_NOT = (
    "{table} has groups of columns, aggregates or first rows: a row of it comes of several changes, and this {statement} would "
    "give it whole; write changes with INSERT or table.apply, which combine them, or say it as a DELETE or UPDATE of "
    "comparisons, constants and sums"
)
_KINDS: dict[int, Kind] = {DELETED: "deleted", UPDATED: "updated", INSERTED: "inserted"}
_OPERATIONS = {
    "INSERT": Operation.INSERT,
    "DELETE": Operation.DELETE,
    "UPDATE": Operation.UPDATE,
    "MERGE": Operation.MERGE_INTO,
}
Counts: TypeAlias = tuple[int, int, int, int, int]
"""Rows affected, updated, deleted, inserted, read; -1: not known."""
_Found: TypeAlias = "pa.Table | DataFrame"
"""Changes: few in this process, or many that tasks keep. ``OPERATION``, the columns, those of ``OLD`` (``Statement.java``)."""


def run(table: Table, statement: StatementInJvm) -> Counts:
    """Run a statement.

    Raises InvalidInput, InvalidChanges, Unsupported, Contention; StoreUnavailable, after which the timeline shows whether it was
    committed.
    """
    internals = internals_of(table)
    spec = write_spec_of(internals.log.refresh())
    if statement.kind.startswith("OVERWRITE"):
        return _overwrite(table, statement)
    if (spec.combines_changes or not spec.keys) and (done := _by_verb(table, statement)) is not None:
        return done
    if spec.combines_changes:
        require_verb(statement)
    operation, changes = _OPERATIONS[statement.kind], _Changes(table, statement)
    check = refusing_losers(internals.storage, internals.deletion_vectors, internals.locators.for_reading)
    condition = statement.condition
    parameters = {"predicate": condition} if condition else {}

    def work() -> MutationResult:
        if not spec.keys:
            return run_by_place(table, statement, operation, FEW_ROWS)
        return commit_changes(internals.log, internals.storage, operation, changes, parameters, check=check)

    result = observed(table.path, internals.log, operation, condition or "", work)
    return result.rows, result.updated, result.deleted, result.inserted, changes.rows_read if spec.keys else -1


def require_verb(statement: StatementInJvm) -> None:
    """Raises Unsupported for one that no verb says: it gives rows whole, and those of its table come of several changes each."""
    if statement.as_verb is None:
        raise Unsupported(_WHY_NOT.format(statement=statement.kind, table=statement.table))


def _by_verb(table: Table, statement: StatementInJvm) -> Counts | None:
    """Do what a verb of the table does that says the same in its SQL; None if there is none."""
    if statement.kind == "INSERT":
        rows, _ = statement.source(FEW_ROWS)
        table.apply(rows)
        count = rows.count()
        return count, 0, 0, count, 0
    if (asked := statement.as_verb) is None:
        return None
    where, values = asked
    result = table.update(values, where) if statement.kind == "UPDATE" else table.delete(where)
    return result.rows, result.updated, result.deleted, 0, -1


def _overwrite(table: Table, statement: StatementInJvm) -> Counts:
    rows, _ = statement.source(FEW_ROWS)
    snapshot = internals_of(table).log.refresh()
    if statement.kind == "OVERWRITE":
        where = _replaced(statement, snapshot)
    else:
        names = [f"cast({quote_for_spark(name)} as string)" for name in snapshot.metadata.partition_columns]
        found = rows.selectExpr(*names).distinct().toDF(*snapshot.metadata.partition_columns).toArrow().to_pylist()
        if not found:
            return 0, 0, 0, 0, 0
        where = _where(found, snapshot) if names else None
    table.overwrite(rows, where)
    count = rows.count()
    return count, 0, -1, count, 0


def _replaced(statement: StatementInJvm, snapshot: Snapshot) -> str | None:
    """Which rows an OVERWRITE replaces; None for all. Raises Unsupported."""
    columns, values = snapshot.metadata.partition_columns, statement.replaced
    if values is not None and set(values) <= set(columns):
        return _where([values], snapshot) if values else None
    where = statement.replaced_where
    if where is None:
        raise Unsupported(
            f"{statement.table}: this condition may mean something else in the SQL that finds the rows to replace, since it "
            "calls functions or casts; compare columns with constants, or let a MERGE say WHEN NOT MATCHED BY SOURCE AND that "
            "condition THEN DELETE"
        )
    return where


def _where(partitions: list[dict[str, str | None]], snapshot: Snapshot) -> str:
    """A condition that is true of the rows in which columns have these values, given as texts."""

    def is_same(name: str, text: str | None) -> str:
        kind = sql_type(snapshot.logical_schema.field(name).type)
        return f"{quote(name)} is null" if text is None else f"{quote(name)} = cast({literal(text)} as {kind})"

    return " or ".join("(" + " and ".join(is_same(*item) for item in one.items()) + ")" for one in partitions)


class _Changes:
    """What a statement changes at a version (``commit_changes.Changes``)."""

    def __init__(self, table: Table, statement: StatementInJvm) -> None:
        self._internals = internals_of(table)
        self._statement = statement
        self.rows_read = 0
        """Rows of the table that were looked up; -1 if it was scanned."""

    def __call__(self, snapshot: Snapshot, among: pa.Table | None, /) -> Pending:
        spec = write_spec_of(snapshot)
        found = self._with_sequence(self._computed(snapshot, spec, among), snapshot, spec)
        _require_right(found, spec, self._statement)
        if isinstance(found, pa.Table):
            return _written_here(found, spec, self._internals.storage)
        return _written_by_tasks(found, spec, self._internals.path)

    @cached_property
    def _source(self) -> tuple[DataFrame, bool]:
        return self._statement.source(FEW_ROWS)

    def _computed(self, snapshot: Snapshot, spec: WriteSpec, among: pa.Table | None) -> _Found:
        session, view = self._statement.session, self._internals.view
        if self._statement.kind == "INSERT":
            source, is_few = self._source
            return _some(source.selectExpr(f"{INSERTED} as {OPERATION}", "*"), is_few, spec, among)
        if self._statement.kind == "MERGE":
            source, is_few = self._source
            is_few = is_few and not self._statement.concerns_all_rows
            changes = self._statement.changes(self._rows_like(source, is_few, snapshot, spec), source)
            return self._with_gone(_some(changes, is_few, spec, among), snapshot, spec)
        if among is not None:
            return self._statement.changes(self._here(self._looked_up(snapshot, spec, among), snapshot), None).toArrow()
        self.rows_read = -1
        changes = self._statement.changes(view.dataframe(session, snapshot), None)
        few = changes.limit(FEW_ROWS + 1).toArrow()
        return few if len(few) <= FEW_ROWS else changes.localCheckpoint()

    def _rows_like(self, source: DataFrame, is_few: bool, snapshot: Snapshot, spec: WriteSpec) -> DataFrame:
        """The rows of the table that a MERGE may concern."""
        keys = self._statement.keys_of_source(source) if is_few else None
        if keys is None:
            self.rows_read = -1
            return self._internals.view.dataframe(self._statement.session, snapshot)
        asked = _stored_keys(keys.toArrow().group_by(keys.columns).aggregate([]).drop_null(), spec)
        return self._here(self._looked_up(snapshot, spec, asked, self._statement.columns_read), snapshot)

    def _here(self, rows: pa.Table, snapshot: Snapshot) -> DataFrame:
        """Few rows of the table: what Spark computes of them is one task.

        The limit tells Spark their number: of unknown rows it takes the size for large, and plans shuffles.
        """
        frame = frame_of(self._statement.session, rows, snapshot.metadata.schema_string)
        return frame.coalesce(1).limit(len(rows))

    def _looked_up(
        self,
        snapshot: Snapshot,
        spec: WriteSpec,
        keys: pa.Table,
        columns: Sequence[str] | None = None,
        hidden: str = "",
    ) -> pa.Table:
        """The rows with these keys, in these columns or all, by the users' names; perhaps with a hidden one of integers."""
        beside = [pa.field(hidden, pa.int64())] if hidden else []
        names = spec.incoming.schema.names if columns is None else columns
        found = [pa.schema([*map(spec.incoming.schema.field, names), *beside]).empty_table()]
        for at in range(0, len(keys), _KEYS_AT_ONCE):
            rows, _ = self._internals.view.rows_with_keys(snapshot, keys.slice(at, _KEYS_AT_ONCE), names, beside)
            found.append(rows.cast(found[0].schema))
        out = pa.concat_tables(found)
        self.rows_read += len(out) if self.rows_read >= 0 and not hidden else 0
        return out

    def _with_gone(self, changes: _Found, snapshot: Snapshot, spec: WriteSpec) -> _Found:
        """The changes of a MERGE, whose deletes have all values of the row that goes, as any delete has."""
        if not isinstance(changes, pa.Table) or f"{OLD}0" not in changes.column_names:
            return changes
        deletes = pc.equal(changes[OPERATION], DELETED)
        gone, kept = changes.filter(deletes), changes.filter(pc.invert(deletes))
        if not len(gone):
            return changes
        olds = {f"{OLD}{at}": key for at, key in enumerate(spec.incoming.keys)}
        keys = pa.table({key: gone[old] for old, key in olds.items()})
        rows = self._looked_up(snapshot, spec, _stored_keys(keys, spec))
        columns = {name: rows[olds.get(name, name)] for name in changes.column_names if name != OPERATION}
        columns[OPERATION] = pa.repeat(pa.scalar(DELETED, pa.int32()), len(rows))
        schema = pa.schema([field.with_nullable(True) for field in changes.schema])
        return pa.concat_tables([kept.cast(schema), pa.table(columns).select(schema.names).cast(schema)])

    def _with_sequence(self, changes: _Found, snapshot: Snapshot, spec: WriteSpec) -> _Found:
        """With what orders changes, where that is no column: that of the row that is replaced, so that coming later wins."""
        if spec.sequence_column != SEQUENCE_COLUMN:
            return changes
        keys = list(spec.incoming.keys)
        if isinstance(changes, pa.Table):
            wanted = _stored_keys(changes.select(keys), spec)
            there = self._looked_up(snapshot, spec, wanted, keys, SEQUENCE_COLUMN)
            types = [changes.schema.field(key).with_nullable(True) for key in keys]
            there = there.cast(pa.schema([*types, pa.field(SEQUENCE_COLUMN, pa.int64())]))
            return changes.join(there, keys, join_type="left outer")
        scanned = self._internals.view.dataframe(self._statement.session, snapshot, [SEQUENCE_COLUMN])
        there = scanned.select(*map(quote_for_spark, [*keys, SEQUENCE_COLUMN]))
        return changes.join(there, keys, "left").localCheckpoint()


def _stored_keys(keys: pa.Table, spec: WriteSpec) -> pa.Table:
    """Keys by the users' names as a snapshot has them: by stored names, in its types."""
    fields = [spec.schema.field(key).with_nullable(True) for key in spec.keys]
    arrays = [keys[name].cast(field.type) for name, field in zip(spec.incoming.keys, fields, strict=True)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _some(changes: DataFrame, is_few: bool, spec: WriteSpec, among: pa.Table | None) -> _Found:
    """The changes of some keys, here if they are few; else they are kept by the tasks that computed them."""
    from pyspark.sql.functions import broadcast, expr

    if among is None:
        return changes.toArrow() if is_few else changes.localCheckpoint()
    names = [quote_for_spark(name) for name in spec.incoming.keys]
    if f"{OLD}0" in changes.columns:  # null for a row that is new
        names = [f"coalesce({OLD}{at}, {name})" for at, name in enumerate(names)]
    wanted = pa.table({f"{_AMONG}{at}": among[key] for at, key in enumerate(spec.keys)})
    same = " and ".join(f"{name} = {_AMONG}{at}" for at, name in enumerate(names))
    return changes.join(broadcast(changes.sparkSession.createDataFrame(wanted)), expr(same), "left_semi").toArrow()


def _require_right(changes: _Found, spec: WriteSpec, statement: StatementInJvm) -> None:
    """Raises InvalidInput for a key that is changed, or that the statement gives twice."""
    keys = list(spec.incoming.keys)
    olds = [f"{OLD}{at}" for at, _ in enumerate(keys)]
    if isinstance(changes, pa.Table):
        updates = changes.filter(pc.equal(changes[OPERATION], UPDATED))
        pairs = zip(keys, olds, strict=True)
        moved = len(updates) and any(_differ(updates[key], updates[old]) for key, old in pairs)
        counted = _with_one_zero(changes.select(keys)).group_by(keys).aggregate([([], "count_all")])
        twice = counted.filter(pc.greater(counted["count_all"], 1)).slice(0, 1).select(keys).to_pylist()
    else:
        differ = [f"{quote_for_spark(key)} <> {old}" for key, old in zip(keys, olds, strict=True)]
        some = changes.where(f"{OPERATION} = {UPDATED}")
        moved = olds[0] in changes.columns and bool(some.where(" or ".join(differ)).head(1))
        grouped = changes.groupBy(*map(quote_for_spark, keys)).count().where("count > 1")
        twice = [row.asDict() for row in grouped.drop("count").head(1)]
    if moved:
        raise InvalidInput(
            f"{statement.kind} changes a key of {statement.table} ({', '.join(keys)}): a key never changes; delete the row and "
            "insert one with the new key"
        )
    if twice:
        raise InvalidInput(
            f"{statement.kind} gives {twice[0]} of {statement.table} more than once; let it give each key once, for example by "
            "SELECT DISTINCT"
        )


def _differ(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    """Whether some value is another than that beside it. NaN is what NaN is."""
    differ = pc.not_equal(one, other)
    if pa.types.is_floating(one.type):
        differ = pc.and_not(differ, pc.and_(pc.is_nan(one), pc.is_nan(other)))
    return bool(pc.any(differ).as_py())


def _with_one_zero(keys: pa.Table) -> pa.Table:
    """Keys without -0.0, which is the same key as 0.0, but not for Arrow."""
    columns = [pc.add(column, 0.0) if pa.types.is_floating(column.type) else column for column in keys.columns]
    return pa.Table.from_arrays(columns, keys.column_names)


def _columns(spec: WriteSpec) -> list[str]:
    return [*spec.incoming.schema.names, *([SEQUENCE_COLUMN] if spec.sequence_column == SEQUENCE_COLUMN else [])]


def _written_here(changes: pa.Table, spec: WriteSpec, storage: PartStorage) -> Pending:
    connection, parts = connect(), list[PendingPart]()
    try:
        for number, kind in _KINDS.items():
            rows = changes.filter(pc.equal(changes[OPERATION], number)).select(_columns(spec))
            if not len(rows):
                continue
            if spec.sequence_column == SEQUENCE_COLUMN:
                at = rows.schema.get_field_index(SEQUENCE_COLUMN)
                rows = rows.set_column(at, SEQUENCE_COLUMN, pc.fill_null(rows[SEQUENCE_COLUMN], OLDEST_SEQUENCE))
            operation = pa.scalar(DELETE if number == DELETED else UPSERT)
            rows = rows.append_column(OP_COLUMN, pa.repeat(operation, len(rows)))
            checked = stored_rows(prepare(rows, spec.incoming, connection), spec)
            parts += [PendingPart(part, kind) for part in write_parts(checked, spec, storage)]
    except BaseException:
        discard([each.part for each in parts], storage)
        raise
    return Pending(tuple(parts))


def _written_by_tasks(changes: DataFrame, spec: WriteSpec, path: str) -> Pending:
    hidden = f"coalesce({SEQUENCE_COLUMN}, {OLDEST_SEQUENCE}) as {quote_for_spark(str(spec.sequence_by))}"
    columns = [hidden if name == SEQUENCE_COLUMN else quote_for_spark(name) for name in _columns(spec)]
    parts = list[PendingPart]()
    for number, kind in _KINDS.items():
        some = changes.where(f"{OPERATION} = {number}").selectExpr(*columns)
        frame = changes_frame(some, spec.incoming, "true" if number == DELETED else None, ())
        written = in_tasks(frame, WriteTask(spec, path, RowChanges(spec, strict=True)))
        parts += [PendingPart(part, kind) for part in written.parts]
    return Pending(tuple(parts))
