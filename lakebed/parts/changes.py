"""A batch of changes as Arrow: checked, cast, and reduced to the newest change of each key.

1. ``prepare`` casts a user's columns to the types of the table, adds the operation column, and checks keys, NOT NULL columns
   and the sequence. It changes nothing else: rows stay in order, and later rows are newer.
2. ``newest_per_key`` of ``parts.order`` keeps one change a key: the one with the highest ``sequence_by``, and the last of equal
   ones. Values that the source did not send are resolved in ``resolve.unavailable_values``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.column_groups import Aggregated, ColumnGroup
from lakebed.errors import InvalidChanges, InvalidInput
from lakebed.log.removals import fence_of
from lakebed.log.snapshot import Snapshot
from lakebed.parts.fills import Fill, aggregated, lacks, lacks_order, unavailable, without_values
from lakebed.schema.column_mapping import ColumnMapping, StoredPath, misfit
from lakebed.schema.exact_cast import cast_exactly
from lakebed.schema.nested import first_missing, nullable
from lakebed.settings import suggest
from lakebed.sortkey.sort_key import SortTerm, parse_sort_key
from lakebed.sql import expression, mistakes, registered

OP_COLUMN = "_lakebed_op"
SEQUENCE_COLUMN = "_lakebed_seq"
UNAVAILABLE_COLUMN = "_lakebed_unavailable"
VERSION_COLUMN = "_lakebed_version"
MOVES_COLUMN, NEEDS_ROW_COLUMN = "_lakebed_moves", "_lakebed_needs_row"
"""Of keys to or from which rows move (``parts.key_moves``)."""
MOVES_TYPE = pa.list_(
    pa.struct([("transaction", pa.int64()), ("place", pa.int64()), ("deletes", pa.bool_()), ("count", pa.int16())])
)
WEAK = 1_000
"""Added to the ``count`` of a change that is no move itself, and is counted only if its transaction moves a row of the key."""
HIDDEN_TYPES = {
    OP_COLUMN: pa.string(),
    SEQUENCE_COLUMN: pa.int64(),
    UNAVAILABLE_COLUMN: pa.list_(pa.string()),
    VERSION_COLUMN: pa.int64(),
    MOVES_COLUMN: MOVES_TYPE,
    NEEDS_ROW_COLUMN: pa.bool_(),
}
UPSERT, DELETE = "u", "d"
OLDEST_SEQUENCE = -(2**63)
"""For rows of another writer, which lack the hidden sequence: older than all rows that have one."""
FEW_ROWS_MAX = 20_000
_CALENDAR_DAYS = -719_162, 2_932_897
"""The first day of the year 1, and that of the year 10000, since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSpec:
    """What a writer of parts must know of a table; small and picklable, so that tasks get it. All names are stored ones."""

    schema: pa.Schema
    keys: tuple[str, ...] = ()
    sort_key: tuple[str, ...] = ()
    sequence_by: str | None = None
    keeps_first: bool = False
    groups: tuple[ColumnGroup, ...] = ()
    aggregates: tuple[Aggregated, ...] = ()
    partition_by: tuple[str, ...] = ()
    sort_key_version: int = 1
    sort_key_frame: str = ""
    columns: ColumnMapping | None = None  # what their users call them; None where that is the same (see ``incoming``)
    fence: int = 0  # of the table (``log.removals``)

    @property
    def incoming(self) -> WriteSpec:
        """The shape of rows as users bring them and name their columns: for ``prepare``, and for what is quarantined.

        ``stored_rows`` turns rows of this shape into those of a part.
        """
        columns = self.columns
        if columns is None or columns.is_identity:
            return self
        return WriteSpec(
            schema=columns.logical,
            keys=columns.logical_names(self.keys),
            sequence_by=None if self.sequence_by is None else columns.logical_name(self.sequence_by),
            keeps_first=self.keeps_first,
            groups=tuple(group.renamed(columns.logical_name) for group in self.groups),
            aggregates=tuple(replace(one, column=columns.logical_name(one.column)) for one in self.aggregates),
            partition_by=columns.logical_names(self.partition_by),
        )

    def named_as(self, earlier: WriteSpec) -> WriteSpec:
        """``incoming`` with the names that users had at an earlier version. Columns since then have names that no user can give.

        So what was asked of the earlier version never meets another column of the same name.
        """
        names = dict(zip(earlier.schema.names, earlier.incoming.schema.names, strict=True))

        def named(stored: Iterable[str]) -> tuple[str, ...]:
            return tuple(names.get(name, f"_lakebed_{name}") for name in stored)

        new = zip(self.incoming.schema, named(self.schema.names), strict=True)
        return replace(
            self.incoming,
            schema=pa.schema([field.with_name(name) for field, name in new]),
            keys=named(self.keys),
            sequence_by=self.sequence_by and names.get(self.sequence_by, self.sequence_by),
            groups=tuple(group.renamed(lambda name: named([name])[0]) for group in self.groups),
            aggregates=tuple(replace(one, column=named([one.column])[0]) for one in self.aggregates),
            partition_by=named(self.partition_by),
        )

    @property
    def field_ids(self) -> Mapping[StoredPath, int]:
        """The numbers that columns, and fields of structs, have in files; none without column mapping."""
        return {} if self.columns is None else self.columns.field_ids

    @property
    def sequence_column(self) -> str | None:
        """The column of a part's file that orders changes: the table's own, or a hidden one; None without a sequence."""
        if self.sequence_by is None:
            return None
        return self.sequence_by if self.sequence_by in self.schema.names else SEQUENCE_COLUMN

    @property
    def keeps_versions(self) -> bool:
        """Whether a file with rows of several versions says which version brought each (``parts.row_origins``)."""
        return bool(self.keys) and self.sequence_by is not None

    @property
    def resolves_by_group(self) -> bool:
        """Whether a row has the values of several changes (``resolve.groups``)."""
        return bool(self.groups) or any(one.counts_all for one in self.aggregates)

    @property
    def combines_changes(self) -> bool:
        """Whether a row is not its newest change alone: the table has groups of columns, aggregates or first rows."""
        return self.resolves_by_group or self.keeps_first

    def order_of(self, column: str) -> str:
        """The column that orders the changes of a column: that of its group, or of the row."""
        return next((group.sequence_by for group in self.groups if column in group.columns), str(self.sequence_column))

    @property
    def hidden_orders(self) -> dict[str, pa.DataType]:
        """Hidden columns and their types: what orders a group, and how old the first value of a column is."""
        of_groups = {group.sequence_by: pa.int64() for group in self.groups if group.field is not None}
        firsts = {one.order_column: self.order_of(one.column) for one in self.aggregates if one.order_column}
        types = HIDDEN_TYPES | of_groups
        return of_groups | {name: types.get(order) or self.schema.field(order).type for name, order in firsts.items()}

    def type_of(self, name: str) -> pa.DataType:
        """The type of a column of a part's file, also of a hidden one of every table."""
        return HIDDEN_TYPES.get(name) or self.schema.field(name).type

    @property
    def order_by(self) -> tuple[str, ...]:
        """The sort key of a part's rows, as texts."""
        return self.sort_key or self.keys

    @property
    def terms(self) -> tuple[SortTerm, ...]:
        """The sort key of a part's rows."""
        return parse_sort_key(self.order_by, self.schema, self.sort_key_frame)

    @property
    def order_version(self) -> int | None:
        """The version of the sort key for a part sorted by ``terms``; None without an order."""
        return self.sort_key_version if self.order_by else None

    def in_the_order_of(self, newer: WriteSpec) -> WriteSpec:
        """This shape with the newer one's sort key, if that is about columns that this one has in the same types."""
        for name in {name for term in newer.terms for name in term.columns}:
            at = self.schema.get_field_index(name)
            if at < 0 or not self.schema.field(at).type.equals(newer.schema.field(name).type):
                return self
        return replace(
            self,
            sort_key=newer.sort_key,
            sort_key_version=newer.sort_key_version,
            sort_key_frame=newer.sort_key_frame,
        )

    def fits(self, newer: WriteSpec) -> bool:
        """Whether what was written in this shape is a good part of a table of the newer one, in whatever order its rows are."""
        if self.fence != newer.fence:
            return False
        mine = (self.keys, self.sequence_by, self.sequence_column, self.partition_by, self.groups, self.aggregates)
        theirs = (
            newer.keys,
            newer.sequence_by,
            newer.sequence_column,
            newer.partition_by,
            newer.groups,
            newer.aggregates,
        )
        if mine != theirs:
            return False
        return misfit(self.schema, newer.schema) is None


def write_spec_of(snapshot: Snapshot) -> WriteSpec:
    """The shape of a table at a version."""
    settings = snapshot.settings
    return WriteSpec(
        schema=snapshot.schema,
        keys=settings.keys,
        sort_key=settings.sort_key,
        sequence_by=settings.sequence_by,
        keeps_first=settings.keep == "first",
        groups=tuple(group.stored(snapshot.schema.names) for group in settings.groups),
        aggregates=settings.aggregates,
        partition_by=snapshot.partition_columns,
        sort_key_version=settings.sort_key_version,
        sort_key_frame=settings.sort_key_frame,
        columns=snapshot.columns if snapshot.columns.field_ids else None,
        fence=fence_of(snapshot.domains),
    )


def prepare(
    changes: pa.Table,
    spec: WriteSpec,
    connection: duckdb.DuckDBPyConnection,
    apply_as_deletes: str | None = None,
    except_columns: Sequence[str] = (),
    fill: Fill | None = None,
) -> pa.Table:
    """The changes with the table's columns and types, plus the operation, and the sequence if it is no column.

    ``apply_as_deletes`` is evaluated on the connection: one for users' SQL, if it is given (``connect_sealed``).
    ``changes`` may carry the hidden columns already (from a decoder); then ``apply_as_deletes`` must be None.
    Raises InvalidChanges naming the column.
    """
    if apply_as_deletes is not None and not spec.keys:
        raise InvalidInput("apply_as_deletes needs a table with keys; this one has none, so it can only be appended to")
    given = changes.column_names
    there = set(given)
    _check_given(given, except_columns, spec)
    kept = [] if fill is None else fill.kept(spec, there.difference(except_columns))
    columns: dict[str, Any] = {}
    for field in spec.schema:
        if field.name in except_columns or field.name in kept:
            columns[field.name] = pa.nulls(len(changes), nullable(field.type))
        elif field.name in there:
            columns[field.name] = cast_exactly(changes[field.name], field.type, field.name)
        else:
            raise lacks(field.name, given)
    deletes = _delete_mask(changes, connection, apply_as_deletes)
    if not spec.keys and deletes is not None and pc.any(deletes).as_py():
        row = int(pc.index(deletes, True).as_py())
        raise InvalidChanges(
            f"row {row} of the changes is a delete, but the table has no keys that show what it deletes"
        )
    if spec.sequence_column == SEQUENCE_COLUMN:
        columns[SEQUENCE_COLUMN] = _given_sequence(changes, spec, kept)
    for group in spec.groups:
        if group.field is not None:
            columns[group.sequence_by] = _given_order(changes, group, kept, fill)
    group_deletes = None
    if spec.resolves_by_group:
        columns |= without_values(columns, kept, spec, deletes)
        if deletes is not None and spec.sequence_column in kept:
            group_deletes, deletes = deletes, None  # not of the row, but of what the group has of it
        columns |= aggregated(columns, spec, deletes)
    if spec.keys:
        columns[OP_COLUMN] = (
            pc.if_else(deletes, pa.scalar(DELETE), pa.scalar(UPSERT))
            if deletes is not None
            else pa.repeat(pa.scalar(UPSERT), len(changes))
        )
    unsent = changes[UNAVAILABLE_COLUMN] if UNAVAILABLE_COLUMN in there else None
    if fill is not None or spec.groups or spec.aggregates:
        of_groups = {"deletes": deletes, "group_deletes": group_deletes}
        unsent = unavailable(columns, fill or Fill(), kept, unsent, spec, **of_groups)
    if unsent is not None:
        if spec.keeps_first and pc.max(pc.list_value_length(unsent)).as_py():
            row = int(pc.index(pc.greater(pc.list_value_length(unsent), 0), True).as_py())
            raise InvalidChanges(
                f"row {row} of the changes lacks values; a table that keeps first rows needs whole ones"
            )
        columns[UNAVAILABLE_COLUMN] = unsent
    if spec.keys and MOVES_COLUMN in there and not spec.combines_changes:
        columns[MOVES_COLUMN] = changes[MOVES_COLUMN]
    out = pa.table(columns)
    if spec.partition_by:
        out = _empty_partitions_as_null(out, spec)
        _check_partitions(out, spec)
    _check_nulls(out, spec, deletes, has_order=spec.sequence_column not in kept)
    return out


def _given_sequence(changes: pa.Table, spec: WriteSpec, kept: Sequence[str]) -> pa.ChunkedArray | pa.Array:
    if SEQUENCE_COLUMN in kept:
        return pa.nulls(len(changes), HIDDEN_TYPES[SEQUENCE_COLUMN])
    source = SEQUENCE_COLUMN if SEQUENCE_COLUMN in changes.column_names else str(spec.sequence_by)
    if source not in changes.column_names:
        raise InvalidChanges(
            f"the changes lack the column {source!r}, which sequence_by refers to{suggest(source, changes.column_names)}"
        )
    return _hidden_sequence(changes[source], source)


def _given_order(
    changes: pa.Table, group: ColumnGroup, kept: Sequence[str], fill: Fill | None
) -> pa.ChunkedArray | pa.Array:
    """The hidden column that orders a group. Raises InvalidChanges if the changes lack it."""
    if group.sequence_by in kept:
        return pa.nulls(len(changes), pa.int64())
    of_records = SEQUENCE_COLUMN if fill is not None and fill.order == group.field else None
    given = frozenset(changes.column_names)
    for source in (group.sequence_by, of_records, group.field):
        if source is not None and source in given:
            return _hidden_sequence(changes[source], str(group.field))
    raise lacks_order(group)


def _check_given(given: Sequence[str], except_columns: Sequence[str], spec: WriteSpec) -> None:
    there = set(given)
    for name in except_columns:
        if name not in there:
            raise InvalidInput(f"except_column_list has {name!r}, which the changes lack{suggest(name, given)}")
        if name in spec.keys or name == spec.sequence_by:
            raise InvalidInput(
                f"except_column_list has {name!r}, which is a key or orders the changes; it can't be left out"
            )
    if len(there) < len(given):
        twice = sorted(name for name, count in Counter(given).items() if count > 1)
        raise InvalidChanges(f"the changes have the column {twice[0]!r} more than once; leave one of them out")


def stored_rows(rows: pa.Table, spec: WriteSpec) -> pa.Table:
    """Rows of ``spec.incoming``, as ``prepare`` returns them, under the names that a part has."""
    columns = spec.columns
    if columns is None or columns.is_identity:
        return rows
    hidden = dict(zip(spec.incoming.hidden_orders, spec.hidden_orders, strict=True))
    rows = columns.to_stored(rows)
    if UNAVAILABLE_COLUMN in rows.column_names:  # its values are names
        stored = dict(zip(spec.incoming.schema.names, spec.schema.names, strict=True)) | hidden
        lists = rows[UNAVAILABLE_COLUMN].combine_chunks()
        listed = pc.list_flatten(lists).dictionary_encode()
        names = pa.array([stored.get(name, name) for name in listed.dictionary.to_pylist()], pa.string())
        offsets = np.concatenate([[0], np.cumsum(pc.fill_null(pc.list_value_length(lists), 0).to_numpy())])
        unsent = pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()), names.take(listed.indices), mask=lists.is_null()
        )
        rows = rows.set_column(rows.column_names.index(UNAVAILABLE_COLUMN), UNAVAILABLE_COLUMN, unsent)
    return rows.rename_columns([hidden.get(name, name) for name in rows.column_names]) if hidden else rows


def _delete_mask(
    changes: pa.Table, connection: duckdb.DuckDBPyConnection, apply_as_deletes: str | None
) -> pa.ChunkedArray | None:
    if OP_COLUMN in changes.column_names:
        if apply_as_deletes is not None:
            raise InvalidInput(
                f"the changes have the column {OP_COLUMN} already, so apply_as_deletes can't be given too"
            )
        return pc.equal(changes[OP_COLUMN], DELETE)
    if apply_as_deletes is None:
        return None
    condition = expression(apply_as_deletes, "apply_as_deletes")
    context = f"apply_as_deletes={apply_as_deletes!r} can't be evaluated on the changes"
    with mistakes(context), registered(connection, "changes", changes) as name:
        mask = connection.sql(f"select coalesce({condition.sql}::boolean, false) as d from {name}").to_arrow_table()
    return mask["d"]


def _hidden_sequence(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """A sequence that is no column of the table is kept as a 64-bit integer; timestamps as microseconds."""
    if pa.types.is_timestamp(column.type):
        return cast_exactly(column, pa.timestamp("us", column.type.tz), name).cast(pa.int64())
    if pa.types.is_integer(column.type) or pa.types.is_null(column.type):
        return cast_exactly(column, pa.int64(), name)
    raise InvalidChanges(
        f"sequence_by refers to {name!r}, which is {column.type}; a sequence that is not a column of the table must be an "
        "integer or a timestamp"
    )


def _check_nulls(changes: pa.Table, spec: WriteSpec, deletes: pa.ChunkedArray | None, *, has_order: bool) -> None:
    for name in spec.keys:
        if changes[name].null_count:
            row = int(pc.index(pc.is_null(changes[name]), True).as_py())
            raise InvalidChanges(f"key column {name!r} is null in row {row} of the changes; a key must have a value")
    may_be_unsent, unsent = UNAVAILABLE_COLUMN in changes.column_names, list[Any]()
    for field in spec.schema:
        if field.nullable or field.name in spec.keys or not changes[field.name].null_count:
            continue
        missing = pc.is_null(changes[field.name])
        if deletes is not None:
            missing = pc.and_(missing, pc.invert(deletes))
        if may_be_unsent:
            unsent = unsent or changes[UNAVAILABLE_COLUMN].to_pylist()
            unavailable = pa.array([field.name in (names or ()) for names in unsent])
            missing = pc.and_(missing, pc.invert(unavailable))
        if pc.any(missing).as_py():
            row = int(pc.index(missing, True).as_py())
            raise InvalidChanges(f"column {field.name!r} is NOT NULL but has no value in row {row} of the changes")
    for field in spec.schema:
        upserts = changes[field.name]
        if (found := first_missing(upserts, field.type)) is None:
            continue
        if deletes is not None:
            upserts = pc.if_else(deletes, pa.scalar(None, upserts.type), upserts)
            found = first_missing(upserts, field.type)
        if found is not None:
            raise InvalidChanges(
                f"{f'{field.name}.{found[1]}'!r} is NOT NULL but has no value in row {found[0]} of the changes"
            )
    sequence = spec.sequence_column if has_order else None
    missing = pc.is_null(changes[sequence]) if sequence and changes[sequence].null_count else None
    if missing is not None and may_be_unsent and spec.groups:  # changes of groups, prepared before
        unsent = unsent or changes[UNAVAILABLE_COLUMN].to_pylist()
        missing = pc.and_(missing, pa.array([sequence not in (names or ()) for names in unsent]))
    if missing is not None and (row := int(pc.index(missing, True).as_py())) >= 0:
        kind = "delete" if deletes is not None and deletes[row].as_py() else "change"
        raise InvalidChanges(
            f"{spec.sequence_by!r} orders the changes (sequence_by) but has no value in row {row}, a {kind}; "
            "use a sequence that every change carries, such as source.lsn"
        )
    if sequence and pa.types.is_floating(changes.schema.field(sequence).type):
        row = int(pc.index(pc.is_nan(changes[sequence]), True).as_py())
        if row >= 0:
            raise InvalidChanges(f"{spec.sequence_by!r} orders the changes (sequence_by) but is NaN in row {row}")


def _empty_partitions_as_null(changes: pa.Table, spec: WriteSpec) -> pa.Table:
    """Delta reads an empty partition value as null; so that every reader agrees, it is null from the start."""
    for name in spec.partition_by:
        if pa.types.is_string(changes.schema.field(name).type):
            index = changes.schema.get_field_index(name)
            is_empty = pc.equal(changes[name], "")
            if name in spec.keys and pc.any(is_empty).as_py():
                row = int(pc.index(is_empty, True).as_py())
                raise InvalidChanges(
                    f"key column {name!r} is '' in row {row} of the changes; the table is partitioned by it, an empty "
                    "partition is null to every reader, and a key must have a value"
                )
            column = pc.if_else(is_empty, pa.scalar(None, pa.string()), changes[name])
            changes = changes.set_column(index, name, column)
    return changes


def _check_partitions(changes: pa.Table, spec: WriteSpec) -> None:
    """A partition's value is a text in the log, which readers accept as a date only within these years."""
    for name in spec.partition_by:
        kind = changes.schema.field(name).type
        if not pa.types.is_temporal(kind):
            continue
        days = pa.array(_CALENDAR_DAYS, pa.int32()).view(pa.date32())
        first, end = (
            day.cast(kind) if pa.types.is_date(kind) else day.cast(pa.timestamp("us")).cast(kind) for day in days
        )
        outside = pc.or_(pc.less(changes[name], first), pc.greater_equal(changes[name], end))
        if pc.any(outside).as_py():
            row = int(pc.index(outside, True).as_py())
            raise InvalidChanges(
                f"partition column {name!r} is beyond the years 1 to 9999 in row {row} of the changes; such a value can't "
                "be in the log: use a null, or a date within them"
            )
