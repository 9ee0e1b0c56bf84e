"""Which fields of a record's schema can be columns of a table. The others are left out, each with the reason. Pure.

1.  A column can't have a name that is empty, has a NUL or is reserved (``schema.conversion.why_no_name``), nor one that differs
    from another column's by case alone: Delta's names are the same in any case.
2.  A column can't have a type that Delta lacks, such as a map with keys of another kind than texts in Debezium's JSON.
3.  A column can't nest deeper than every reader takes it (``schema.possible_columns``).
4.  The same holds for the fields of a struct, but for reserved names. A struct keeps the fields that it can have.

Rule 3 is there so that whatever writes and reads a column can do so. A struct is one level, a list or a map two. What they cost
differs: Arrow's interface to DuckDB and to native code has 64 levels, of which a map takes two; Parquet's readers have 100, of
which a list or a map takes two; readers of Delta in Rust take 128 levels of the schema's JSON, of which a struct takes three. A
record's row is inside an event, which takes some of them too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import pyarrow as pa

from lakebed.errors import InvalidSchema
from lakebed.schema.conversion import canonical_type, why_no_field_name, why_no_name

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


def possible_field(
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
