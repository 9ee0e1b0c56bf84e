"""Members of events whose schema is known: the rows in them, and their metadata."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.decode.debezium.changes import Mask, MetadataPath
from lakebed.decode.source_order import metadata_type
from lakebed.decode.typed.values import plain_values

_DIGITS = r"^-?[0-9]{1,18}$"


def members_of(rows: pa.RecordBatch, name: str) -> tuple[dict[str, pa.Array], Mask]:
    """The fields of a struct column, and which structs are not null; nothing if there is no such column."""
    at = rows.schema.get_field_index(name)
    if at < 0 or not pa.types.is_struct(rows.schema.field(at).type):
        return {}, np.zeros(rows.num_rows, bool)
    column = rows.column(at)
    names = [child.name for child in column.type]
    return dict(zip(names, column.flatten(), strict=True)), np.asarray(column.is_valid())


def column_of(rows: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
    """A column; nulls if there is none of this type."""
    at = rows.schema.get_field_index(name)
    if at < 0 or rows.schema.field(at).type != kind:
        return pa.nulls(rows.num_rows, kind)
    return rows.column(at)


def metadata_of(rows: pa.RecordBatch, path: MetadataPath) -> pa.Array:
    """Metadata of events; null where it is missing, or of another type."""
    parent, name = path
    kind = metadata_type(parent, name)
    given = members_of(rows, parent)[0] if parent else dict(zip(rows.schema.names, rows.columns, strict=True))
    values = given.get(name)
    if values is None or values.null_count == len(values):
        return pa.nulls(rows.num_rows, kind)
    values = plain_values(values)
    if values.type == kind:
        return values
    if kind == pa.int64() and pa.types.is_string(values.type):
        digits = pc.fill_null(pc.match_substring_regex(values, _DIGITS), False)
        values = pc.if_else(digits, values, pa.scalar(None, pa.string()))
    elif kind != pa.int64() or not (_is_whole(values.type) or pa.types.is_integer(values.type)):
        return pa.nulls(rows.num_rows, kind)
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        return pa.array(
            [None if value is None or abs(value) >= 1 << 63 else int(value) for value in values.to_pylist()], kind
        )


def _is_whole(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(kind) and kind.scale == 0)
