"""Values of nested types with fields that are NOT NULL. A struct that is null has no values in its fields, which is allowed.

Arrow refuses to cast or write such a column if the array of such a field has a null anywhere, and DuckDB puts a null there. So
values are computed and written in the type without these declarations (``nullable``), and get them back for a reader
(``as_declared``). ``first_missing`` checks that every struct that is not null has its values.
"""

from __future__ import annotations

import pyarrow as pa


def nullable(kind: pa.DataType) -> pa.DataType:
    """The type with every field within it nullable."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(child.name, nullable(child.type)) for child in kind])
    if pa.types.is_map(kind):
        return pa.map_(nullable(kind.key_type), pa.field("value", nullable(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", nullable(kind.value_type)))
    return kind


def as_declared(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """The column in a type that may declare fields NOT NULL. What a struct that is null has in them is left undefined."""
    if column.type == kind:
        return column
    if kind == nullable(kind):
        return column.cast(kind)
    plain = column.cast(nullable(kind))
    return pa.chunked_array([_declared(chunk, kind) for chunk in plain.chunks], kind)


def table_as_declared(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table's columns in the types of a schema."""
    columns = [as_declared(table[field.name], field.type) for field in schema]
    return pa.table(columns, pa.schema([field.with_nullable(True) for field in schema])).cast(schema)


def first_missing(column: pa.ChunkedArray, kind: pa.DataType) -> tuple[int, str] | None:
    """The first row with a null where a field or element of ``kind`` is NOT NULL, and the path to it; None if there is none."""
    if kind == nullable(kind):
        return None
    row = 0
    for chunk in column.cast(nullable(kind)).chunks:
        if _missing(chunk, kind) is not None:
            low, high = 0, len(chunk)  # the first of the rows that has one is in between
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if _missing(chunk[low:middle], kind) is not None else (middle, high)
            return row + low, str(_missing(chunk[low:high], kind))
        row += len(chunk)
    return None


def _declared(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if kind == nullable(kind):
        return values.cast(kind)
    return (
        _rebuilt(values, kind, values.buffers()[0], values.null_count)
        if not values.offset
        else _declared(pa.concat_arrays([values]), kind)
    )


def _rebuilt(values: pa.Array, kind: pa.DataType, validity: pa.Buffer | None, nulls: int) -> pa.Array:
    """The values, whose offset is 0, in a type that differs only in what is NOT NULL, with this validity buffer."""
    own = values.buffers()[1:]
    if pa.types.is_struct(kind):
        own, children = [], [_field(values.field(at), field) for at, field in enumerate(kind)]
    elif pa.types.is_map(kind):
        fields = [kind.key_field, kind.item_field]
        sides = [_field(side, field) for side, field in zip((values.keys, values.items), fields, strict=True)]
        own, children = own[:1], [pa.StructArray.from_arrays(sides, fields=fields)]
    elif pa.types.is_list(kind):
        own, children = own[:1], [_field(values.values, kind.value_field)]
    else:
        children = []
    return pa.Array.from_buffers(kind, len(values), [validity, *own], nulls, 0, children)


def _field(values: pa.Array, field: pa.Field) -> pa.Array:
    if field.nullable or not values.null_count:
        return _declared(values, field.type)
    return _rebuilt(pa.concat_arrays([values]) if values.offset else values, field.type, None, 0)


def _missing(values: pa.Array, kind: pa.DataType) -> str | None:
    """The path to what is missing below values that are there."""
    there = values.drop_null()
    if pa.types.is_struct(kind):
        below = [(child.name, there.field(at), child) for at, child in enumerate(kind)]
    elif pa.types.is_map(kind):
        below = [
            ("key", _flat(there, there.keys), kind.key_field),
            ("value", _flat(there, there.items), kind.item_field),
        ]
    elif pa.types.is_list(kind):
        below = [("element", there.flatten(), kind.value_field)]
    else:
        return None
    for name, child, field in below:
        if not field.nullable and child.null_count:
            return str(name)
        if (path := _missing(child, field.type)) is not None:
            return f"{name}.{path}"
    return None


def _flat(maps: pa.MapArray, entries: pa.Array) -> pa.Array:
    """Those of the keys or values that are in the maps; Arrow gives what is in a slice's buffers."""
    return entries[maps.offsets[0].as_py() : maps.offsets[-1].as_py()] if len(maps) else entries[:0]
