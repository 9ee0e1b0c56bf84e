"""Convert columns of values that have a type already to the types of a table's columns, by the rules for JSON.

A value of Avro, say, becomes what the same value becomes in Debezium's JSON with its schema. So the rules stand in one place
(``json.values.convert``), and the events of a table may change their format.

    1.  Dates and times are viewed as the numbers that they are, with a logical type that says so.
    2.  A whole column is converted at once, if that surely gives what the rules give (``converted``).
    3.  Else its values are written as JSON has them, and converted one by one; those that do not fit are found (``json_value``).

One value differs from JSON, which writes a single-precision number with the digits that tell it from others of its kind: here
a ``double`` column gets the number itself.

**Shapes** are what the schema of some records says about their rows, for one table.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Context
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.decode.debezium.changes import ChangeRules, Mask, MetadataPath
from lakebed.decode.debezium.inline_schemas import RowFields, column_type
from lakebed.decode.decoder import DecoderSchema, NarrowingReader, ReaderOfDefaults, RecordReader, Wanted
from lakebed.decode.json.columns import (
    MISSES,
    Missed,
    lists_like,
    null_where_in,
    objects_like,
    of_variable_scales,
    reader_for,
)
from lakebed.decode.json.connect_types import PLAIN, Kind, LogicalType
from lakebed.decode.json.encoded_columns import Placeholder, decimals_of_bytes, fitted
from lakebed.decode.json.text import Number, Unreadable
from lakebed.decode.json.values import JsonOptions, convert, sent_names
from lakebed.decode.source_order import metadata_type
from lakebed.decode.unknown_fields import KnownFields
from lakebed.far_times import finite
from lakebed.positions.source_columns import RecordColumns
from lakebed.schema.change import SchemaChange
from lakebed.schema.fitting import ANY_PRECISION, Needed, described
from lakebed.schema.nested import nullable

_Mask = np.ndarray[Any, Any]
"""One element per value."""

_TIMESTAMPS = {"ms": Kind.TIMESTAMP_MS, "us": Kind.TIMESTAMP_US, "ns": Kind.TIMESTAMP_NS}
_SAID = (
    (pa.types.is_string, Kind.TEXT), (pa.types.is_binary, Kind.BYTES), (pa.types.is_fixed_size_binary, Kind.BYTES),
    (pa.types.is_floating, Kind.NUMBER),
)  # fmt: skip
"""What types say by themselves, as in ``connect_types.KIND_OF_TYPE``."""
_WIDE = Context(prec=76)
_SCALE_OF_PLAIN_TEXT = 6
"""Arrow writes a decimal of up to so many digits after the point without an exponent."""
_SAMPLES = ((pa.types.is_boolean, True), (pa.types.is_integer, 0), (pa.types.is_string, ""))


def column_field(natural: pa.Field, logical: LogicalType) -> pa.Field:
    """The field of a record as the column that a table would get for it, to be compared with the column that it has."""
    kind = natural.type
    if logical.kind is Kind.PLAIN and pa.types.is_struct(kind):
        fields = [column_field(child, logical.of_field(child.name)) for child in kind]
        return natural.with_type(pa.struct(fields) if fields else pa.null())
    if pa.types.is_list(kind):
        return natural.with_type(pa.list_(column_field(kind.value_field.with_name("element"), logical.of_item())))
    if pa.types.is_map(kind):
        return natural.with_type(
            pa.map_(kind.key_type, column_field(kind.item_field.with_name("value"), logical.of_item()))
        )
    field = natural.with_type(column_type(kind, logical))
    any_precision = logical.kind is Kind.DECIMAL_BYTES and not pa.types.is_decimal(kind)
    return field.with_metadata(ANY_PRECISION) if any_precision else field


def plain_logical(natural: pa.DataType, logical: LogicalType) -> LogicalType:
    """The logical type of the values when they are written as JSON has them."""
    t = pa.types
    if t.is_struct(natural) and logical.kind is Kind.PLAIN:
        return LogicalType(fields=tuple((f.name, plain_logical(f.type, logical.of_field(f.name))) for f in natural))
    if t.is_map(natural):
        return LogicalType(item=plain_logical(natural.item_type, logical.of_item()))
    if t.is_list(natural):
        return LogicalType(item=plain_logical(natural.value_type, logical.of_item()))
    if t.is_decimal(natural):
        return LogicalType(Kind.DECIMAL_BYTES, scale=natural.scale)
    if logical.kind is not Kind.PLAIN:
        return logical
    if t.is_date(natural):
        return LogicalType(Kind.DATE_DAYS)
    if t.is_timestamp(natural):
        return LogicalType(_TIMESTAMPS[natural.unit])
    kind = next((kind for is_kind, kind in _SAID if is_kind(natural)), Kind.PLAIN)
    return LogicalType(kind)


def plain_values(values: pa.Array) -> pa.Array:
    """Dates and times as numbers, at every depth."""
    kind = _plain_type(values.type)
    return values if kind == values.type else values.cast(kind)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    t = pa.types
    if t.is_struct(kind):
        return pa.struct([f.with_type(_plain_type(f.type)) for f in kind])
    if t.is_map(kind):
        return pa.map_(kind.key_type, kind.item_field.with_type(_plain_type(kind.item_type)))
    if t.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain_type(kind.value_type)))
    if t.is_date(kind) or t.is_time32(kind):
        return pa.int32()
    if t.is_timestamp(kind) or t.is_time64(kind):
        return pa.int64()
    return pa.binary() if t.is_fixed_size_binary(kind) else kind


def json_value(value: Any, kind: pa.DataType) -> Any:
    """A Python value of an Arrow type without dates and times, as ``json.text.parse`` gives it for the same value in JSON."""
    t = pa.types
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return Number(repr(value))
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if t.is_decimal(kind):
        unscaled = int(value.scaleb(kind.scale, _WIDE))
        return base64.b64encode(unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)).decode()
    if t.is_struct(kind):
        return {f.name: json_value(value[f.name], f.type) for f in kind}
    if t.is_map(kind):
        pairs = {_key(key): json_value(item, kind.item_type) for key, item in value}
        if len(pairs) < len(value):
            raise Unreadable("a map has a key twice")
        return pairs
    return [json_value(item, kind.value_type) for item in value]


def _key(key: Any) -> str:
    """The key of a map as the name of a member of an object."""
    return key if isinstance(key, str) else str(key).lower() if isinstance(key, bool) else str(key)


def without_unavailable(values: pa.Array, placeholder: Placeholder, updates: _Mask) -> tuple[pa.Array, _Mask | None]:
    """The values with nulls in place of Debezium's placeholder, and a mask of these. ``updates``: which are of updates."""
    kind, t = values.type, pa.types
    if t.is_string(kind):
        return null_where_in(values, placeholder.texts)
    if t.is_binary(kind):
        return null_where_in(values, placeholder.raw)
    plain = plain_values(values)
    if t.is_list(kind):
        maybe = lists_like(plain, placeholder)
    elif t.is_struct(kind):
        maybe = objects_like(plain, placeholder)
    elif t.is_map(kind) and t.is_string(kind.key_type) and null_where_in(values.keys, placeholder.texts)[1] is not None:
        maybe = np.flatnonzero(np.diff(np.asarray(values.offsets)) == 1)
    else:
        return values, None
    hits = np.zeros(len(values), bool)
    for row, value in zip(maybe, plain.take(pa.array(maybe)).to_pylist(), strict=True):
        found = dict(value) if t.is_map(kind) and value else value
        hits[row] = placeholder.stands_for(found, in_update=bool(updates[row]))
    if not hits.any():
        return values, None
    return pc.if_else(pa.array(hits), pa.scalar(None, kind), values), hits


def read_column(
    values: pa.Array, logical: LogicalType, target: pa.DataType, options: JsonOptions
) -> tuple[pa.Array, _Mask | None]:
    """The values in the type of a column, null where one does not fit; and a mask of those that don't."""
    try:
        return converted(values, logical, target, options), None
    except MISSES:
        pass
    values, natural = plain_values(values), plain_logical(values.type, logical)
    kind = values.type
    out: list[Any] = []
    wrong = np.zeros(len(values), bool)
    for row, value in enumerate(values.to_pylist()):
        try:
            out.append(convert(json_value(value, kind), target, natural, options))
        except Unreadable:
            wrong[row] = True
            out.append(None)
    return pa.array(out, nullable(target)), wrong if wrong.any() else None


def converted(values: pa.Array, logical: LogicalType, target: pa.DataType, options: JsonOptions) -> pa.Array:
    """The values in the type of a column. Raises one of ``MISSES`` if one does not fit, or if only a look at each can tell."""
    t, kind = pa.types, values.type
    if t.is_null(kind) or values.null_count == len(values):
        return pa.nulls(len(values), target)
    if logical.kind is Kind.PLAIN and kind == target and not t.is_nested(kind):
        return finite(values)
    if logical.kind is Kind.DECIMAL_VARIABLE:
        return _variable(values, target)
    if t.is_nested(kind):
        return _nested(values, logical, target, options)
    if t.is_decimal(kind):
        return _from_decimal(values, target)
    if t.is_binary(kind) or t.is_fixed_size_binary(kind):
        return _from_bytes(values.cast(pa.binary()), logical, target)
    logical, values = plain_logical(kind, logical), plain_values(values)
    if t.is_floating(kind) and t.is_floating(target):
        return _floating(values, target)
    if t.is_integer(values.type) and t.is_decimal128(target):
        return fitted(values.cast(pa.decimal128(19, 0)), target)
    if t.is_integer(values.type) and t.is_string(target) and logical.kind in (Kind.PLAIN, Kind.NUMBER):
        return values.cast(target)
    seen = next((sample for is_kind, sample in _SAMPLES if is_kind(values.type)), None)
    reader = None if seen is None else reader_for(target, logical, seen, options)
    if reader is None:
        raise Missed(f"{kind} as {target} is read one by one")
    if values.type != reader.parsed:
        if not t.is_integer(values.type) or not (t.is_integer(reader.parsed) or t.is_floating(reader.parsed)):
            raise Missed(f"a {kind} may not be a {target}")
        values = values.cast(reader.parsed, safe=t.is_integer(reader.parsed))
    return reader.read(values)


def _floating(values: pa.Array, target: pa.DataType) -> pa.Array:
    if values.type.bit_width <= target.bit_width:
        return values.cast(target)
    out = values.cast(pa.string()).cast(target)  # the nearest to the digits, as for JSON
    if pc.any(pc.and_(pc.is_finite(values), pc.invert(pc.is_finite(out)))).as_py():
        raise Missed("numbers out of range")
    return out


def _from_decimal(values: pa.Array, target: pa.DataType) -> pa.Array:
    t = pa.types
    if t.is_decimal128(target):
        return fitted(values, target)
    if t.is_integer(target):
        return values.cast(target)
    if t.is_floating(target):
        return values.cast(pa.string()).cast(target)
    if t.is_string(target) and 0 <= values.type.scale <= _SCALE_OF_PLAIN_TEXT:
        return values.cast(target)
    raise Missed(f"a decimal as {target} is read one by one")


def _from_bytes(values: pa.BinaryArray, logical: LogicalType, target: pa.DataType) -> pa.Array:
    if pa.types.is_binary(target):
        return values
    if logical.kind is Kind.DECIMAL_BYTES and 0 <= logical.scale <= 38:
        return _from_decimal(decimals_of_bytes(values, logical.scale), target)
    raise Missed(f"bytes as {target} are read one by one")


def _variable(values: pa.Array, target: pa.DataType) -> pa.Array:
    return of_variable_scales(values, target, lambda some, scale: _from_decimal(decimals_of_bytes(some, scale), target))


def _nested(values: pa.Array, logical: LogicalType, target: pa.DataType, options: JsonOptions) -> pa.Array:
    t, kind = pa.types, values.type
    mask = values.is_null() if values.null_count else None
    if t.is_struct(kind) and t.is_struct(target):
        given = dict(zip((f.name for f in kind), values.flatten(), strict=True))
        names = sent_names(target, given)
        arrays = [
            converted(given[name], logical.of_field(name), f.type, options)
            if name in given
            else pa.nulls(len(values), f.type)
            for f in target
            for name in [names.get(f.name, f.name)]
        ]
        if any(not f.nullable and one.null_count > values.null_count for f, one in zip(target, arrays, strict=True)):
            raise Missed("null in a field that takes none")
        return pa.StructArray.from_arrays(arrays, fields=list(target), mask=mask)
    if t.is_list(kind) and t.is_list(target):
        values = pa.concat_arrays([values]) if values.offset else values
        items = converted(values.values, logical.of_item(), target.value_type, options)
        if not target.value_field.nullable and items.null_count:
            raise Missed("null in a list that takes none")
        return pa.ListArray.from_arrays(values.offsets, items, type=target, mask=mask)
    if t.is_map(kind) and t.is_map(target) and kind.key_type == target.key_type and not mask:
        values = pa.concat_arrays([values]) if values.offset else values
        _require_each_key_once(values)
        items = converted(values.items, logical.of_item(), target.item_type, options)
        if not target.item_field.nullable and items.null_count:
            raise Missed("null in a map that takes none")
        return pa.MapArray.from_arrays(values.offsets, values.keys, items, type=target)
    raise Missed(f"a {kind} as {target} is read one by one")


def _require_each_key_once(values: pa.MapArray) -> None:
    lengths = np.diff(np.asarray(values.offsets))
    if not (lengths > 1).any():
        return
    keys = np.asarray(values.keys.dictionary_encode().indices, np.int64)
    maps = np.repeat(np.arange(len(values)), lengths)[: len(keys)]
    if len(np.unique(maps * (len(keys) + 1) + keys)) < len(keys):
        raise Missed("a map has a key twice")


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


@dataclass(frozen=True, slots=True)
class Shape:
    """What the schema of a group says about its rows."""

    reader: RecordReader
    narrow: RecordReader
    """The same for what is needed of most records, without what no column takes."""
    decoder_schema: DecoderSchema
    """With the columns of fields whose names differ by case alone."""
    of_row: Mapping[str, LogicalType]
    """The logical types of a row's fields."""
    written: Mapping[str, LogicalType]
    """The same for values that are written as JSON has them."""
    known: KnownFields | None
    """None where fields that no column takes are ignored."""
    unknown: tuple[str, ...]
    """The fields that no column takes."""
    left_out: tuple[str, ...]
    """The fields that no column can be like, each with the reason."""
    needed: SchemaChange | None
    """What the table must become before the rows can be read."""
    said: RowFields | None
    """What the schema says of the fields, by column; None if it does not say which have defaults."""
    columns: RecordColumns | None
    """What the schema of events says of the table's columns."""


def shape_of(
    reader: RecordReader,
    decoder_schema: DecoderSchema,
    options: JsonOptions,
    rules: ChangeRules | None,
    operation_field: str | None,
) -> Shape:
    """``rules``: of events; None if the records are rows."""
    fields, logical = row_of(reader, events=rules is not None)
    columns, policy, unknown_fields = decoder_schema.columns, decoder_schema.policy, options.unknown_fields
    ignored = None if operation_field in columns.names else operation_field
    row = pa.schema([column_field(one, logical.get(one.name, PLAIN)) for one in fields if one.name != ignored])
    if unknown_fields != "warn":  # no column is made of fields that are left out, or sent to the quarantine
        policy = replace(policy, allowed=policy.allowed - {"add"})
    needed = replace(decoder_schema, policy=policy).needed(row) if fields else Needed(None, {})
    left_out = needed.left_out if unknown_fields == "warn" and not policy.rescues else {}
    known = None
    if unknown_fields != "ignore":
        also = [*decoder_schema.kept, *([operation_field] if operation_field else [])]
        known = KnownFields(columns, options.placeholder, also, left_out)
    schema = decoder_schema.reading(row.names, declared=True)
    example = {schema.column_of.get(one.name, one.name): _example(one.type) for one in fields}
    wanted = _wanted(schema, rules, operation_field)
    defaults = None if rules is None else _defaults_of_row(reader)
    # Where a schema can't say which fields have defaults, as in Protobuf, null may be sent as a zero.
    may_be_null = {one.name: one.nullable or defaults is None for one in fields}
    said = RowFields.given(may_be_null, defaults or {}).by_column(schema)
    return Shape(
        reader=reader,
        narrow=reader.narrowed(wanted) if isinstance(reader, NarrowingReader) else reader,
        decoder_schema=schema,
        of_row=logical,
        written={one.name: plain_logical(one.type, logical.get(one.name, PLAIN)) for one in fields},
        known=known,
        unknown=() if known is None else known.unknown_in(example),
        left_out=described(left_out),
        needed=needed.change,
        said=None if defaults is None else said,
        columns=decoder_schema.columns_in(said.names, said.filled) if rules is not None and fields else None,
    )


def row_of(reader: RecordReader, *, events: bool) -> tuple[list[pa.Field], dict[str, LogicalType]]:
    """The fields of the rows in records, with their logical types; none in events of another form."""
    if not events:
        return list(reader.schema), dict(reader.logical_types)
    for side in ("after", "before"):
        at = reader.schema.get_field_index(side)
        if at >= 0 and pa.types.is_struct(reader.schema.field(at).type):
            return list(reader.schema.field(at).type), dict(reader.logical_types.get(side, PLAIN).fields)
    return [], {}


def _defaults_of_row(reader: RecordReader) -> Mapping[str, Any] | None:
    """The defaults of the columns of rows in events; None if the schema does not say them."""
    if not isinstance(reader, ReaderOfDefaults):
        return None
    found = [reader.defaults[side] for side in ("after", "before") if side in reader.defaults]
    return found[0] if found else None


def _example(kind: pa.DataType) -> Any:
    """A value with every field that values of a type can have; None for what has no fields."""
    if pa.types.is_struct(kind):
        return {child.name: _example(child.type) for child in kind}
    if pa.types.is_map(kind):
        return {"": _example(kind.item_type)}
    return [_example(kind.value_type)] if pa.types.is_list(kind) else None


def _wanted(schema: DecoderSchema, rules: ChangeRules | None, operation_field: str | None) -> Wanted:
    """The fields that are looked at."""
    row = [given for name in schema.columns.names for given in schema.names_of(name)]
    if rules is None:
        return dict.fromkeys([*row, *filter(None, [operation_field])])
    before = [given for name in rules.before_names for given in schema.names_of(name)]
    wanted: dict[str, list[str] | None] = {"op": None, "after": row, "before": before}
    for parent, name in rules.metadata:
        if parent:
            wanted.setdefault(parent, []).append(name)  # type: ignore[union-attr]
        else:
            wanted[name] = None
    return wanted
