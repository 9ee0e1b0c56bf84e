"""Which fields of a record's schema can be columns of a table. The others are left out, each with the reason. Pure.

1.  A column can't have a name that is empty, has a NUL or is reserved (``manifest.schema.why_no_name``), nor one that differs
    from another column's by case alone: Delta's names are the same in any case.
2.  A column can't have a type that Delta lacks, such as a map with keys of another kind than texts in Debezium's JSON.
3.  The same holds for the fields of a struct, but for reserved names. A struct keeps the fields that it can have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import pyarrow as pa

from lakebed.errors import InvalidSchema
from lakebed.manifest.schema import canonical_type, why_no_field_name, why_no_name

FieldPath = tuple[str, ...]
"""Names from a field of the row down to a field of a struct; lists and maps have no step of their own."""
NO_TYPE = "no column can have its type"


def possible_fields(
    fields: Iterable[pa.Field], left_out: dict[FieldPath, str], reserved: Mapping[str, str] | None = None
) -> list[pa.Field]:
    """The fields of a row that can be columns, in their types as far as these can be.

    ``left_out`` gets the others, with the reasons; ``reserved``: more names that no column can have, and why.
    """
    return _possible(fields, (), left_out, (), reserved or {})


def possible_field(
    one: pa.Field, above: FieldPath, left_out: dict[FieldPath, str], taken: Collection[str], reserved: Mapping[str, str]
) -> pa.Field | None:
    """One field of a row, or of a struct at ``above``, if it can be a column or field beside those that are called ``taken``."""
    found = _possible([one], above, left_out, taken, reserved)
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
) -> list[pa.Field]:
    by_case = {name.lower(): name for name in taken}
    found = []
    for one in fields:
        path = (*above, one.name)
        why, below = _why_no_name(one.name, above, reserved), dict[FieldPath, str]()
        if why is None and (twin := by_case.get(one.name.lower())) is not None:
            why = f"only case tells it from {twin!r}"
        if why is None:
            kind = _possible_type(one.type, path, below)
            why = NO_TYPE if kind is None else None
        if why is not None:
            left_out[path] = why
            continue
        left_out.update(below)
        by_case[one.name.lower()] = one.name
        found.append(one.with_type(kind))
    return found


def _why_no_name(name: str, above: FieldPath, reserved: Mapping[str, str]) -> str | None:
    return why_no_field_name(name) if above else reserved.get(name) or why_no_name(name)


def _possible_type(kind: pa.DataType, path: FieldPath, left_out: dict[FieldPath, str]) -> pa.DataType | None:
    """The type without the fields of structs that can't be; None if nothing is left."""
    if pa.types.is_struct(kind):
        fields = _possible(kind, path, left_out, (), {})
        return pa.struct(fields) if fields else None
    if pa.types.is_list(kind):
        inner = _possible_type(kind.value_type, path, left_out)
        return None if inner is None else pa.list_(kind.value_field.with_type(inner))
    if pa.types.is_map(kind):
        key, item = (_possible_type(each, path, left_out) for each in (kind.key_type, kind.item_type))
        return None if key is None or item is None else pa.map_(key, kind.item_field.with_type(item))
    try:
        canonical_type(kind, path[-1])
    except InvalidSchema:
        return None
    return kind
