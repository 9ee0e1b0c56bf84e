"""Whole columns of JSON values at once: the fast reading.

``reader_for`` picks, for a column's type, its meaning and the JSON type that was seen in it, what Arrow's JSON parser
shall read it as and how that becomes the column's type. Arrow's parser refuses what does not fit (a fraction in an
integer, a number out of range, a lone surrogate, a key named twice), so nothing is lost in silence; it raises for the
whole slice, and the caller reads the offending records one by one with ``json_values``.

Invariant
    J1  What a reader accepts, ``json_values.convert`` reads to the same value.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from lakebed.ingest.base64_columns import to_binary, to_decimal
from lakebed.ingest.json_values import MICROS_BELOW, MILLIS_BELOW, JsonOptions
from lakebed.ingest.meanings import Kind, Meaning

JsonType = Literal["string", "number", "bool", "object", "array"]
TICKS_OF_KIND = {Kind.TIME_MS: ("ms", 10**3), Kind.TIME_US: ("us", 10**6), Kind.TIME_NS: ("ns", 10**9)}
UNIT_OF_KIND = {Kind.TIMESTAMP_MS: "ms", Kind.TIMESTAMP_US: "us", Kind.TIMESTAMP_NS: "ns"}
TOP_LEVEL_NULL = r"\}\s*null"
"""Arrow's JSON parser crashes on a bare null between two objects; text that could hold one is kept from it."""


class Missed(ValueError):
    """The fast reading can't vouch for these values; the slow one decides about them."""


MISSES = (Missed, ValueError, OverflowError, pa.ArrowNotImplementedError)
"""What a reader may raise (``pa.ArrowInvalid`` and ``NotBase64`` are ``ValueError``)."""


@dataclass(frozen=True, slots=True)
class ColumnReader:
    parsed: pa.DataType
    """What Arrow's JSON parser reads."""
    finish: Callable[[pa.Array], pa.Array] | None = None
    """Makes it the column's type; None if it is already."""

    def read(self, values: pa.Array) -> pa.Array:
        return values if self.finish is None else self.finish(values)


def json_type(value: Any) -> JsonType | None:
    match value:
        case None:
            return None
        case bool():
            return "bool"
        case str():
            return "string"
        case int() | float() | Decimal():
            return "number"
        case list():
            return "array"
        case _:
            return "object"


def shape_of(sample: Any) -> Any:
    """The JSON types in a sample, all that a reader depends on."""
    if isinstance(sample, dict):
        return {name: shape_of(value) for name, value in sample.items()}
    if isinstance(sample, list):
        return [shape_of(next((item for item in sample if item is not None), None))]
    return json_type(sample)


def parse_objects(values: pa.Array, schema: pa.Schema) -> pa.Table:
    """One row per JSON object; members that the schema does not name are skipped. Raises one of ``MISSES``.

    1.  Every value begins with a brace and ends with one.
    2.  They are joined by newlines, which are illegal inside a JSON string, so no value can reach into the next. The text
        is UTF-8, and no bare null stands between objects.
    3.  As many rows as values: then each value was exactly one object.
    """
    if not _braced(values):
        raise Missed("not one JSON object per record")
    whole = pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), values)
    text = pc.binary_join(whole, b"\n").cast(pa.string())  # checks that it is UTF-8
    if pc.match_substring_regex(text, TOP_LEVEL_NULL)[0].as_py():
        raise Missed("not one JSON object per record")
    joined = text.buffers()[2]
    table = pj.read_json(
        pa.BufferReader(joined),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(joined) + 1),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    if table.num_rows != len(values):
        raise Missed("not one JSON object per record")
    return table.combine_chunks()


def _braced(values: pa.Array) -> bool:
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    if (np.diff(offsets) < 2).any():
        return False
    data = np.frombuffer(values.buffers()[2], np.uint8)
    return bool((data[offsets[:-1]] == ord("{")).all() and (data[offsets[1:] - 1] == ord("}")).all())


def column_of(table: pa.Table, name: str) -> pa.Array:
    """A column as one array."""
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def null_unavailable(values: pa.Array, placeholder: str) -> tuple[pa.Array, np.ndarray[Any, Any] | None]:
    """Nulls in place of Debezium's placeholder, and where they are. Its forms in lists are left to the slow reading."""
    if pa.types.is_string(values.type):
        encoded = base64.b64encode(placeholder.encode()).decode()
        forms = pa.array([placeholder, encoded, f'{{"{placeholder}":"{placeholder}"}}'])
        hits = pc.is_in(values, value_set=forms)
        if pc.any(hits).as_py():
            return pc.if_else(hits, pa.scalar(None, pa.string()), values), np.asarray(hits)
    elif (
        pa.types.is_list(values.type)
        and pc.any(
            pc.is_in(pc.list_value_length(values), value_set=pa.array([1, len(placeholder.encode())], pa.int32()))
        ).as_py()
    ):
        _refuse_placeholder_lists(values, placeholder)
    return values, None


def _refuse_placeholder_lists(values: pa.Array, placeholder: str) -> None:
    flat = values.flatten()
    if pa.types.is_string(flat.type):
        if null_unavailable(flat, placeholder)[1] is not None:
            raise Missed("an unavailable list")
    elif pa.types.is_integer(flat.type) and pc.any(pc.equal(flat, placeholder.encode()[0])).as_py():
        raise Missed("perhaps an unavailable list")


def reader_for(target: pa.DataType, meaning: Meaning, seen: Any, options: JsonOptions) -> ColumnReader | None:
    """How to read a column whose values look like ``seen`` (a sample, or None); None: only one by one."""
    shape = json_type(seen)
    kind = meaning.kind
    if pa.types.is_integer(target):
        if kind in (Kind.DECIMAL_BYTES, Kind.DECIMAL_VARIABLE):
            return None
        if shape == "string":
            return ColumnReader(pa.string(), lambda v: _digits(v).cast(target))
        return ColumnReader(target)
    if pa.types.is_floating(target):
        return ColumnReader(target, _finite) if shape in ("number", None) and kind is Kind.PLAIN else None
    if pa.types.is_boolean(target):
        return ColumnReader(pa.int64(), _zero_or_one) if shape == "number" else ColumnReader(target)
    if pa.types.is_string(target):
        return _text_reader(kind, shape)
    if pa.types.is_binary(target):
        return ColumnReader(pa.string(), to_binary)
    if pa.types.is_decimal128(target):
        return _decimal_reader(target, meaning, shape, options)
    if pa.types.is_date32(target):
        if kind in UNIT_OF_KIND:
            return None
        if shape == "string":
            return ColumnReader(pa.string(), lambda v: v.cast(target))
        return ColumnReader(pa.int32(), lambda v: v.view(target))
    if pa.types.is_timestamp(target) and target.unit == "us":
        if shape == "string":
            return ColumnReader(pa.string(), lambda v: v.cast(target))
        if kind is Kind.DATE_DAYS:
            return None
        unit = UNIT_OF_KIND.get(kind, options.timestamp_unit)
        return ColumnReader(pa.int64(), lambda v: _micros(v, unit).view(target))
    if pa.types.is_list(target) and shape in ("array", None):
        item = next((element for element in seen or () if element is not None), None)
        return _list_reader(target, reader_for(target.value_type, meaning.of_item(), item, options))
    if pa.types.is_struct(target) and shape in ("object", None):
        fields = [reader_for(f.type, meaning.of_field(f.name), (seen or {}).get(f.name), options) for f in target]
        plain = all(field is not None and field.finish is None for field in fields)
        return ColumnReader(target) if plain and len(fields) else None
    return None


def _text_reader(kind: Kind, shape: JsonType | None) -> ColumnReader | None:
    if kind is Kind.DATE_DAYS and shape in ("number", None):
        return ColumnReader(pa.int32(), lambda v: _calendar(v).cast(pa.string()))
    if kind in TICKS_OF_KIND and shape in ("number", None):
        unit, ticks_per_second = TICKS_OF_KIND[kind]
        return ColumnReader(pa.int64(), lambda v: _clock(v, unit, 86_400 * ticks_per_second))
    if kind in (Kind.PLAIN, Kind.BYTES) and shape in ("string", None):
        return ColumnReader(pa.string())
    return None


def _decimal_reader(
    target: pa.DataType, meaning: Meaning, shape: JsonType | None, options: JsonOptions
) -> ColumnReader | None:
    if meaning.kind is Kind.DECIMAL_BYTES and shape in ("string", None):
        return ColumnReader(pa.string(), lambda v: to_decimal(v, meaning.scale).cast(target))
    if meaning.kind is Kind.DECIMAL_VARIABLE or shape == "object":
        return ColumnReader(_VARIABLE, lambda v: _variable(v, target))
    if shape == "number" or shape is None:
        return ColumnReader(target)
    if shape == "string":
        return ColumnReader(pa.string(), lambda v: _decimal_text(v, target, options))
    return None


_VARIABLE = pa.struct([pa.field("scale", pa.int32()), pa.field("value", pa.string())])


def _variable(values: pa.StructArray, target: pa.DataType) -> pa.Array:
    scales, raws = values.flatten()
    if scales.null_count != values.null_count or raws.null_count != values.null_count:
        raise Missed("a decimal without scale or value")
    result = pa.nulls(len(values), target)
    for scale in pc.unique(scales).to_pylist():
        if scale is None:
            continue
        if not 0 <= scale <= 38:
            raise Missed(f"a decimal of scale {scale}")
        chosen = pc.fill_null(pc.equal(scales, scale), False)
        some = pc.if_else(chosen, raws, pa.scalar(None, pa.string()))
        result = pc.if_else(chosen, to_decimal(some, scale).cast(target), result)
    return result


def _decimal_text(values: pa.StringArray, target: pa.DataType, options: JsonOptions) -> pa.Array:
    form = options.decimal_text
    if form == "auto":
        present = values.drop_null()
        if pc.all(pc.match_substring_regex(present, r"^-?[0-9]*\.[0-9]+$")).as_py() is not False:
            form = "string"
        elif pc.any(pc.match_substring_regex(present, r"^[0-9]*$|^[+-]|\.")).as_py():
            raise Missed("decimals in more than one form")
        else:
            form = "precise"
    if form == "precise":
        return to_decimal(values, target.scale).cast(target)
    if pc.any(pc.invert(pc.match_substring_regex(values, r"^-?[0-9]+(\.[0-9]+)?$"))).as_py():
        raise Missed("decimals of unusual form")
    return values.cast(target)


def _list_reader(target: pa.DataType, item: ColumnReader | None) -> ColumnReader | None:
    if item is None:
        return None
    if item.finish is None:
        return ColumnReader(pa.list_(item.parsed), lambda v: v.cast(target))

    def finish(values: pa.ListArray) -> pa.Array:
        values = pa.concat_arrays([values]) if values.offset else values
        mask = values.is_null() if values.null_count else None
        return pa.ListArray.from_arrays(values.offsets, item.read(values.values), type=target, mask=mask)

    return ColumnReader(pa.list_(item.parsed), finish)


def _digits(values: pa.StringArray) -> pa.StringArray:
    if pc.any(pc.invert(pc.match_substring_regex(values, r"^-?[0-9]+$"))).as_py():
        raise Missed("strings that are no integers")
    return values


def _finite(values: pa.Array) -> pa.Array:
    if pc.any(pc.invert(pc.is_finite(values))).as_py():
        raise Missed("numbers out of range")
    return values


def _zero_or_one(values: pa.Int64Array) -> pa.BooleanArray:
    if pc.any(pc.invert(pc.is_in(values.drop_null(), value_set=pa.array([0, 1], pa.int64())))).as_py():
        raise Missed("numbers that are no booleans")
    return values.cast(pa.bool_())


def _integers(values: pa.Array) -> np.ndarray[Any, Any]:
    return np.asarray(values.fill_null(0) if values.null_count else values)


def _calendar(days: pa.Int32Array) -> pa.Array:
    plain = _integers(days)
    if ((plain < -719_162) | (plain > 2_932_896)).any():
        raise Missed("days out of the calendar")
    return days.view(pa.date32())


def _clock(ticks: pa.Int64Array, unit: str, ticks_per_day: int) -> pa.StringArray:
    plain = _integers(ticks)
    if ((plain < 0) | (plain >= ticks_per_day)).any():
        raise Missed("times beyond a day")
    if unit == "ms":
        return ticks.cast(pa.int32()).view(pa.time32("ms")).cast(pa.string())
    return ticks.view(pa.time64(unit)).cast(pa.string())


def _micros(values: pa.Int64Array, unit: str) -> pa.Int64Array:
    if unit == "us":
        return values
    plain = _integers(values)
    size = np.abs(plain)
    if unit == "ms" and (size > 9 * 10**15).any():
        raise Missed("milliseconds out of range")
    if unit == "ms":
        micros = plain * 1000
    elif unit == "ns":
        micros = plain // 1000
    elif ((size >= MILLIS_BELOW) & (size < MICROS_BELOW)).all():
        return values
    else:
        nanos = np.where(size < MICROS_BELOW, plain, plain // 1000)
        micros = np.where(size < MILLIS_BELOW, np.where(size < MILLIS_BELOW, plain, 0) * 1000, nanos)
    return pa.array(micros, pa.int64(), mask=np.asarray(values.is_null()) if values.null_count else None)
