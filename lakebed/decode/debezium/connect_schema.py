"""The columns that rows of Kafka Connect's inline schemas would get, to be compared with those of a table.

A type holds every value that its schema allows, as ``json.values`` reads it: dates are dates, moments are timestamps (their
numbers count from 1970 in UTC, also where the source has no zone), times of day and decimals of any scale are texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from lakebed.decode.json.connect_types import (
    SCHEMA_LEVELS_MAX,
    Kind,
    LogicalType,
    connect_fields,
    logical_type_of,
)
from lakebed.decode.json.text import Unreadable, is_unicode
from lakebed.schema.fitting import ANY_PRECISION

PRECISION = "connect.decimal.precision"
_PRECISION_MAX = 38
_TYPES = {
    "int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64(),
    "float": pa.float32(), "float32": pa.float32(), "double": pa.float64(), "float64": pa.float64(),
    "boolean": pa.bool_(), "string": pa.string(), "bytes": pa.binary(),
}  # fmt: skip


def row_of_envelope(schema: Any) -> pa.Schema | None:
    """The columns of a table's rows, from the inline schema of its change events; None if the schema has no rows.

    A field whose schema no column can have has Arrow's type of nulls. Raises ``Unreadable``.
    """
    images = {one["field"]: one for one in connect_fields(schema)}
    for side in ("after", "before"):
        if side in images and connect_fields(images[side]):
            return pa.schema([_field(one, 0) for one in connect_fields(images[side])])
    return None


def column_type(natural: pa.DataType, logical_type: LogicalType) -> pa.DataType:
    """The type of a column for values of a natural type and a logical one, such as an int64 that counts microseconds."""
    match logical_type.kind:
        case Kind.DATE_DAYS:
            return pa.date32()
        case Kind.TIME_MS | Kind.TIME_US | Kind.TIME_NS | Kind.DECIMAL_VARIABLE:
            return pa.string()
        case Kind.TIMESTAMP_MS | Kind.TIMESTAMP_US | Kind.TIMESTAMP_NS | Kind.TIMESTAMP_TEXT:
            return pa.timestamp("us", "UTC")
        case Kind.DECIMAL_BYTES:
            if pa.types.is_decimal(natural):
                return natural
            return pa.decimal128(_PRECISION_MAX, logical_type.scale) if 0 <= logical_type.scale <= 38 else pa.string()
        case Kind.BYTES:
            return pa.binary()
    if pa.types.is_struct(natural):
        return pa.struct([one.with_type(column_type(one.type, logical_type.of_field(one.name))) for one in natural])
    if pa.types.is_list(natural):
        return pa.list_(natural.value_field.with_type(column_type(natural.value_type, logical_type.of_item())))
    if pa.types.is_map(natural):
        item = natural.item_field.with_type(column_type(natural.item_type, logical_type.of_item()))
        return pa.map_(natural.key_type, item)
    if pa.types.is_timestamp(natural):
        return pa.timestamp("us", "UTC")
    return pa.binary() if pa.types.is_fixed_size_binary(natural) else natural


def _field(schema: Mapping[str, Any], level: int, name: str = "") -> pa.Field:
    name = name or schema["field"]
    if not is_unicode(name):
        raise Unreadable("its inline schema can't be read: the name of a field holds half of a surrogate pair")
    nullable = schema.get("optional") is True
    parameters = schema.get("parameters")
    given = parameters.get(PRECISION) if isinstance(parameters, Mapping) else None
    logical_type = logical_type_of({**schema, "fields": []} if schema.get("type") == "struct" else schema)
    if logical_type.kind is Kind.DECIMAL_BYTES:
        kind = column_type(pa.binary(), logical_type)
        if str(given).isdecimal() and pa.types.is_decimal(kind):
            precision = int(str(given))
            fits = logical_type.scale <= precision <= _PRECISION_MAX
            return pa.field(name, pa.decimal128(precision, logical_type.scale) if fits else pa.string(), nullable)
        return pa.field(name, kind, nullable, ANY_PRECISION)
    kind = _type(schema, logical_type, level)
    return pa.field(name, kind, nullable or pa.types.is_null(kind))


def _type(schema: Mapping[str, Any], logical_type: LogicalType, level: int) -> pa.DataType:
    if level >= SCHEMA_LEVELS_MAX:
        raise Unreadable("its inline schema can't be read: it is nested too deep")
    known = column_type(pa.null(), logical_type)
    if not pa.types.is_null(known):
        return known
    match schema.get("type"):
        case "struct":
            fields = [_field(one, level + 1) for one in connect_fields(schema)]
            return pa.struct(fields) if fields else pa.null()
        case "array":
            return pa.list_(_inner(schema.get("items"), "element", level))
        case "map":
            keys, values = schema.get("keys"), _inner(schema.get("values"), "value", level)
            has_texts = isinstance(keys, Mapping) and keys.get("type") == "string"
            return pa.map_(pa.string(), values) if has_texts else pa.null()
        case str() as name:
            return _TYPES.get(name, pa.null())
    return pa.null()


def _inner(schema: Any, name: str, level: int) -> pa.Field:
    if not isinstance(schema, Mapping):
        raise Unreadable(f"its inline schema can't be read: the schema of an {name} is not an object")
    return _field(schema, level + 1, name)
