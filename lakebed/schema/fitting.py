"""What a table must become so that records of a writer's schema fit it, and what may be done about it without asking. Pure.

1.  A decoder that knows the schema of its records compares it with the table's (``needed``), once for each schema. Schemas are
    compared, not statements that changed them: what changed while nobody looked is seen too.
2.  If the policy allows something that is needed, the decoder reports it in place of changes (``Decoded.schema_needed``). The
    driver collects what the tasks of a batch report (``merged``), alters the table, and runs the batch again.
3.  What is not allowed is left to each value: one that fits its column exactly comes in; for one that does not the policy says
    what happens (``on_mismatch``).
4.  A field that no column can be like is left out of the row, and the row comes in.

A column that records lack stays, and is null in new rows. A field under a new name is a new column, unless the policy's
``columns`` says that both names are of one column, or they differ by case alone.

**Which fields can be columns** of a table. The others are left out, each with the reason.

1.  A column can't have a name that is empty, has a NUL or is reserved (``schema.conversion.why_no_name``), nor one that differs
    from another column's by case alone: Delta's names are the same in any case.
2.  A column can't have a type that Delta lacks, such as a map with keys of another kind than texts in Debezium's JSON.
3.  A column can't nest deeper than every reader takes it (``LEVELS_MAX``).
4.  The same holds for the fields of a struct, but for reserved names. A struct keeps the fields that it can have.

Rule 3 is there so that whatever writes and reads a column can do so. A struct is one level, a list or a map two. What they cost
differs: Arrow's interface to DuckDB and to native code has 64 levels, of which a map takes two; Parquet's readers have 100, of
which a list or a map takes two; readers of Delta in Rust take 128 levels of the schema's JSON, of which a struct takes three. A
record's row is inside an event, which takes some of them too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import pyarrow as pa

from lakebed.errors import InvalidInput, InvalidSchema
from lakebed.schema.change import SchemaChange, path_of
from lakebed.schema.column_mapping import by_case
from lakebed.schema.conversion import canonical_type, why_no_field_name, why_no_name
from lakebed.schema.nested import nullable
from lakebed.schema.widening import common_type
from lakebed.settings import suggest

# -- Fields that can be columns ----------------------------------------------------------------------------------------


LEVELS_MAX = 40


def levels_of(kind: pa.DataType) -> int:
    """How many levels a type has; a type that is not nested has none."""
    t = pa.types
    if t.is_struct(kind):
        return 1 + max((levels_of(child.type) for child in kind), default=0)
    if t.is_map(kind):
        return 2 + max(levels_of(kind.key_type), levels_of(kind.item_type))
    return 2 + levels_of(kind.value_type) if t.is_list(kind) else 0


def check_levels(columns: Iterable[pa.Field]) -> None:
    """Raises InvalidSchema naming a column that is nested too deep."""
    for column in columns:
        levels = levels_of(column.type)
        if levels > LEVELS_MAX:
            raise InvalidSchema(
                f"column {column.name!r} is nested {levels} levels deep, where a list or a map counts as two; a column may have "
                f"{LEVELS_MAX}"
            )


FieldPath = tuple[str, ...]
"""Names from a field of the row down to a field of a struct; lists and maps have no step of their own."""
_NO_TYPE = "no column can have its type"
TOO_DEEP = f"a column may nest {LEVELS_MAX} levels deep, where a list or a map counts as two"


def possible_fields(
    fields: Iterable[pa.Field], left_out: dict[FieldPath, str], reserved: Mapping[str, str] | None = None
) -> list[pa.Field]:
    """The fields of a row that can be columns, in their types as far as these can be.

    ``left_out`` gets the others, with the reasons; ``reserved``: more names that no column can have, and why.
    """
    return _possible(fields, (), left_out, (), reserved or {}, 0)


def _possible_field(
    one: pa.Field,
    above: FieldPath,
    left_out: dict[FieldPath, str],
    taken: Collection[str],
    reserved: Mapping[str, str],
    level: int,
) -> pa.Field | None:
    """One field of a row, or of a struct at ``above``, if it can be a column or field beside those that are called ``taken``.

    ``level``: how deep the struct is nested, 0 for a row.
    """
    found = _possible([one], above, left_out, taken, reserved, level)
    return found[0] if found else None


def described(left_out: Mapping[FieldPath, str]) -> tuple[str, ...]:
    """Fields that were left out, as people read them."""
    return tuple(f"{'.'.join(path)} ({why})" for path, why in left_out.items())


def _possible(
    fields: Iterable[pa.Field],
    above: FieldPath,
    left_out: dict[FieldPath, str],
    taken: Collection[str],
    reserved: Mapping[str, str],
    level: int,
) -> list[pa.Field]:
    by_case = {name.lower(): name for name in taken}
    found = []
    for one in fields:
        path = (*above, one.name)
        why, below, kind = _why_no_name(one.name, above, reserved), dict[FieldPath, str](), one.type
        if why is None and (twin := by_case.get(one.name.lower())) is not None:
            why = f"only case tells it from {twin!r}"
        if why is None:
            kind = _possible_type(one.type, path, below, level)
            why = kind if isinstance(kind, str) else None
        if why is not None:
            left_out[path] = why
            continue
        left_out.update(below)
        by_case[one.name.lower()] = one.name
        found.append(one.with_type(kind))
    return found


def _why_no_name(name: str, above: FieldPath, reserved: Mapping[str, str]) -> str | None:
    return why_no_field_name(name) if above else reserved.get(name) or why_no_name(name)


def _possible_type(kind: pa.DataType, path: FieldPath, left_out: dict[FieldPath, str], level: int) -> pa.DataType | str:
    """The type without the fields of structs that can't be; why not, if nothing is left."""
    if pa.types.is_struct(kind):
        if level + 1 > LEVELS_MAX:
            return TOO_DEEP
        below: dict[FieldPath, str] = {}
        fields = _possible(kind, path, below, (), {}, level + 1)
        left_out.update(below)
        return pa.struct(fields) if fields else TOO_DEEP if TOO_DEEP in below.values() else _NO_TYPE
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        if level + 2 > LEVELS_MAX:
            return TOO_DEEP
        inside = [kind.value_type] if pa.types.is_list(kind) else [kind.key_type, kind.item_type]
        kinds = [_possible_type(each, path, left_out, level + 2) for each in inside]
        if why := next((one for one in kinds if isinstance(one, str)), None):
            return why
        if pa.types.is_list(kind):
            return pa.list_(kind.value_field.with_type(kinds[0]))
        return pa.map_(kinds[0], kind.item_field.with_type(kinds[1]))
    try:
        canonical_type(kind, path[-1])
    except InvalidSchema:
        return _NO_TYPE
    return kind


# -- What a table must become ------------------------------------------------------------------------------------------


Evolution = Literal["add", "widen", "relax"]
OnMismatch = Literal["quarantine", "fail", "rescue"]
EVOLUTIONS: tuple[Evolution, ...] = get_args(Evolution)
_ON_MISMATCH: tuple[OnMismatch, ...] = get_args(OnMismatch)

RESCUED_COLUMN = "_rescued"
"""With ``on_mismatch: rescue``, the members of a row that its columns do not take, as one JSON object; else null."""
ANY_PRECISION = {b"any_precision": b""}
"""Metadata of a field of a record's schema: a decimal whose precision is not known, so it asks for no wider column."""
COLUMNS_MAX = 2_000
"""No column is added beyond these many, whatever the records have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvolvePolicy:
    """What a stream may do where records and table differ: ``evolve``, ``on_mismatch``, ``columns`` and ``renamed_columns``."""

    allowed: frozenset[Evolution] = frozenset()  # what may be done to the table without asking
    on_mismatch: OnMismatch = "quarantine"  # what becomes of a record that still does not fit
    # the new name of a column of the source, and the one it had: values under both names go to the column that has one of
    # them
    renamed: Mapping[str, str] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()  # paths that the table refused to change; they count as not allowed
    by_schema: bool = False
    """Whether a field of a record's schema that no column takes is a mismatch."""
    fills: tuple[str, ...] = ()
    """The columns of the table that records fill, beside its keys and what orders changes; empty: all. The others keep their
    values."""

    def __post_init__(self) -> None:
        for one in sorted(self.allowed):
            if one not in EVOLUTIONS:
                raise InvalidInput(f"evolve has {one!r}; use {', '.join(EVOLUTIONS)}{suggest(one, EVOLUTIONS)}")
        if self.on_mismatch not in _ON_MISMATCH:
            near = suggest(self.on_mismatch, _ON_MISMATCH)
            raise InvalidInput(f"on_mismatch is {self.on_mismatch!r}; use {' or '.join(_ON_MISMATCH)}{near}")
        for new, old in self.renamed.items():
            if new == old:
                raise InvalidInput(
                    f"renamed_columns says that {new!r} was {old!r} before, which is the same name; leave it out"
                )
        for group in self._groups():
            names = sorted(name for name in group if name in self.renamed.values())
            if sum(1 for name in group if name not in self.renamed) != 1:
                raise InvalidInput(f"renamed_columns goes in a circle: {', '.join(names)}")

    @property
    def rescues(self) -> bool:
        """Whether what no column takes is kept in ``RESCUED_COLUMN``."""
        return self.on_mismatch == "rescue"

    def other_names(self, table: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """For each column that has them, the other names under which records may have its values.

        Raises InvalidInput if the table has two columns that ``renamed`` calls one.
        """
        present = set(table)
        found: dict[str, tuple[str, ...]] = {}
        for group in self._groups():
            here = [name for name in group if name in present]
            if len(here) > 1:
                raise InvalidInput(
                    f"renamed_columns says that {here[0]!r} and {here[1]!r} are one column, but the table has both; take one "
                    "of them out of renamed_columns, or drop one from the table"
                )
            if here:
                found[here[0]] = tuple(name for name in group if name != here[0])
        return found

    def names_of(self, name: str) -> set[str]:
        """All names that ``renamed`` gives the same column, this one among them."""
        return {name, *(other for group in self._groups() if name in group for other in group)}

    def says(self, name: str) -> bool:
        """Whether ``renamed`` says whose name this is."""
        return name in self.renamed or name in self.renamed.values()

    def column_name(self, name: str) -> str:
        """The name that a new column for a field of this name gets: of the names that ``renamed`` gives it, the first one."""
        while name in self.renamed:
            name = self.renamed[name]
        return name

    def named(self, fields: Iterable[pa.Field], table: Iterable[str] = ()) -> list[pa.Field]:
        """Fields under the names of their columns in a table with these columns, or of columns that are still to be made.

        Of several fields of one column the one that has its name, else the first.
        """
        columns = {other: column for column, names in self.other_names(table).items() for other in (column, *names)}
        named: dict[str, pa.Field] = {}
        for one in fields:
            name = columns.get(one.name) or self.column_name(one.name)
            if name not in named or name == one.name:
                named[name] = one.with_name(name)
        return list(named.values())

    def _groups(self) -> list[tuple[str, ...]]:
        """The names of each column that has several, newest first."""
        groups: list[list[str]] = []
        for new, old in self.renamed.items():
            met = [group for group in groups if new in group or old in group]
            joined = list(dict.fromkeys([*(name for group in met for name in group), new, old]))
            groups = [group for group in groups if group not in met] + [joined]
        return [tuple(group) for group in groups]


FIXED = EvolvePolicy()
"""Nothing is done to the table, and a record that does not fit is quarantined."""


@dataclass(frozen=True, slots=True)
class Needed:
    """What a schema of records asks of the table."""

    change: SchemaChange | None
    """What the table must become first, None if nothing."""
    unknown: Mapping[str, str]
    """Paths of fields that could be columns and are none, and why not."""
    left_out: Mapping[FieldPath, str] = field(default_factory=dict)
    """Fields that no column can be like, and why not."""


def needed(
    table: pa.Schema,
    record: pa.Schema,
    policy: EvolvePolicy,
    never_null: Iterable[str] = (),
    sequence_by: str | None = None,
) -> Needed:
    """Compares the schema of records with that of their table.

    ``record``: the fields of a row in the types that columns for them would get (``debezium.inline_schemas``), nullable where
    the writer's schema allows null. ``never_null``: keys, and the column that orders changes; they stay as they are.
    ``sequence_by``: what orders the changes, if that is no column.
    """
    comparison = _Comparison(policy, frozenset(never_null), table, reserved_names(policy, sequence_by))
    comparison.of_fields(list(table), policy.named(record, table.names), (), ())
    return comparison.result()


def reserved_names(policy: EvolvePolicy, sequence_by: str | None) -> dict[str, str]:
    """Names that no field can have as a column of its own, and why. ``sequence_by``: see ``needed``."""
    reserved = {} if sequence_by is None else {sequence_by: "sequence_by takes what is called so from the events"}
    if policy.rescues:
        reserved[RESCUED_COLUMN] = "the name is reserved for what on_mismatch: rescue keeps"
    return reserved


class _Comparison:
    def __init__(
        self, policy: EvolvePolicy, never_null: frozenset[str], table: pa.Schema, reserved: Mapping[str, str]
    ) -> None:
        self._policy = policy
        self._never_null = never_null
        self._reserved = reserved
        self._columns = sum(1 for column in table for _ in _leaves(column.type))
        self._add: dict[str, pa.DataType] = {}
        self._widen: dict[str, pa.DataType] = {}
        self._relax: dict[str, None] = {}
        self._unknown: dict[str, str] = {}
        self._left_out: dict[FieldPath, str] = {}

    def result(self) -> Needed:
        change = SchemaChange(add=self._add, widen=self._widen, relax=tuple(self._relax))
        return Needed(change if change else None, self._unknown, self._left_out)

    def of_fields(
        self, columns: Sequence[pa.Field], fields: Sequence[pa.Field], at: tuple[str, ...], path: FieldPath
    ) -> None:
        """``columns`` of the table, or the fields of a struct of it, with those of a record. ``at``: where in the table's schema,
        ``path``: where in the row.
        """
        present = {column.name: column for column in columns}
        standing_for = by_case(present, [one.name for one in fields])
        taken = [*present, *([RESCUED_COLUMN] if self._policy.rescues and not path else [])]
        for one in fields:
            column = present.get(standing_for.get(one.name, ""))
            if column is not None:
                self._of_field(column, one, (*at, column.name), (*path, one.name))
            else:
                self._of_new(one, at, path, taken)
        given = set(standing_for.values())
        for column in columns:
            if column.name not in given:
                self._may_be_null(column, (*at, column.name))

    def _of_field(self, column: pa.Field, one: pa.Field, at: tuple[str, ...], path: FieldPath) -> None:
        if one.nullable:
            self._may_be_null(column, at)
        here, there = column.type, one.type
        if pa.types.is_struct(here) and pa.types.is_struct(there):
            self.of_fields(list(here), list(there), at, path)
        elif pa.types.is_list(here) and pa.types.is_list(there):
            self._of_field(here.value_field, there.value_field, (*at, "element"), path)
        elif pa.types.is_map(here) and pa.types.is_map(there):
            self._of_field(here.item_field, there.item_field, (*at, "value"), path)
        elif self._allows("widen", path_of(at)) and not _has_any_precision(one):
            kind = common_type(here, there)
            if kind is not None and not kind.equals(here):
                self._widen[path_of(at)] = kind

    def _may_be_null(self, column: pa.Field, at: tuple[str, ...]) -> None:
        is_fixed = len(at) == 1 and at[0] in self._never_null
        if not column.nullable and not is_fixed and self._allows("relax", path_of(at)):
            self._relax[path_of(at)] = None

    def _of_new(self, one: pa.Field, at: tuple[str, ...], path: FieldPath, taken: list[str]) -> None:
        left_out: dict[FieldPath, str] = {}
        level = len(at) + sum(step in ("element", "value") for step in at)  # a list or a map is two levels
        new = _possible_field(one.with_type(nullable(one.type)), path, left_out, taken, self._reserved, level)
        here, columns = path_of((*at, one.name)), 0 if new is None else sum(1 for _ in _leaves(new.type))
        if new is None:
            self._left_out |= left_out
        elif (why := self._why_not(here)) is not None:
            self._unknown[here] = why
        elif self._columns + columns > COLUMNS_MAX:
            self._left_out[(*path, one.name)] = f"the table would have more than {COLUMNS_MAX:,} columns"
        else:
            self._left_out |= left_out
            taken.append(one.name)
            self._columns += columns
            self._add[here] = new.type

    def _why_not(self, path: str) -> str | None:
        """Why a field becomes no column, though it could be one; None if it becomes one."""
        if "add" not in self._policy.allowed:
            return "evolve does not have 'add'"
        return "the table refused it" if path in self._policy.refused else None

    def _allows(self, evolution: Evolution, path: str) -> bool:
        return evolution in self._policy.allowed and path not in self._policy.refused


def _has_any_precision(one: pa.Field) -> bool:
    """Whether a field of a record's schema is a decimal whose precision is not known."""
    return not ANY_PRECISION.keys().isdisjoint(one.metadata or {})


def _leaves(kind: pa.DataType) -> Iterator[pa.DataType]:
    """The types of a column's values at all depths that are columns of their own in a file."""
    if pa.types.is_nested(kind):
        for at in range(kind.num_fields):
            yield from _leaves(kind.field(at).type)
    else:
        yield kind


def may_have_become(now: pa.DataType, before: pa.DataType, policy: EvolvePolicy) -> bool:
    """Whether the policy may have made one type of a column of the other."""
    if now.equals(before):
        return True
    if pa.types.is_struct(now) and pa.types.is_struct(before):
        fields = {one.name: one for one in before}
        is_known = all(one.name in fields or "add" in policy.allowed for one in now)
        common = [(one, fields.pop(one.name)) for one in now if one.name in fields]
        return is_known and not fields and all(_may_have_become(one, other, policy) for one, other in common)
    if pa.types.is_list(now) and pa.types.is_list(before):
        return _may_have_become(now.value_field, before.value_field, policy)
    if pa.types.is_map(now) and pa.types.is_map(before):
        same_key = now.key_type.equals(before.key_type)
        return same_key and _may_have_become(now.item_field, before.item_field, policy)
    common_kind = common_type(now, before)
    return "widen" in policy.allowed and common_kind is not None and common_kind.equals(now)


def _may_have_become(now: pa.Field, before: pa.Field, policy: EvolvePolicy) -> bool:
    is_as_strict = now.nullable == before.nullable or (now.nullable and "relax" in policy.allowed)
    return is_as_strict and may_have_become(now.type, before.type, policy)


def merged(changes: Iterable[SchemaChange]) -> SchemaChange:
    """What several records need of one table, as one change; of two types for a new column the wider, else the first."""
    add: dict[str, pa.DataType] = {}
    widen: dict[str, pa.DataType] = {}
    relax: dict[str, None] = {}
    for change in changes:
        for path, kind in change.add.items():
            add[path] = _common(add[path], kind) if path in add else kind
        for path, kind in change.widen.items():
            widen[path] = _common(widen[path], kind) if path in widen else kind
        relax |= dict.fromkeys(change.relax)
    return SchemaChange(add=add, widen=widen, relax=tuple(relax))


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        fields = {child.name: child for child in one}
        for child in other:
            kind = _common(fields[child.name].type, child.type) if child.name in fields else child.type
            fields[child.name] = pa.field(child.name, kind)
        return pa.struct(list(fields.values()))
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(pa.field("element", _common(one.value_type, other.value_type)))
    if pa.types.is_map(one) and pa.types.is_map(other) and one.key_type == other.key_type:
        return pa.map_(one.key_type, pa.field("value", _common(one.item_type, other.item_type)))
    return common_type(one, other) or one


def pieces_of(change: SchemaChange) -> Iterator[tuple[str, SchemaChange]]:
    """A change as changes of one path each, for a table that refuses it as a whole."""
    for path, kind in change.add.items():
        yield path, SchemaChange(add={path: kind})
    for path, kind in change.widen.items():
        yield path, SchemaChange(widen={path: kind})
    for path in change.relax:
        yield path, SchemaChange(relax=(path,))
