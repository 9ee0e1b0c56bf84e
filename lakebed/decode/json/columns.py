"""Read whole columns of JSON values at once: the fast path.

``reader_for`` takes a column's type, its logical type and the JSON type of a sample. It chooses the type that the column is
parsed as (``json.objects``), and the conversion from there to the column's type. What a conversion can't be sure of makes it
raise for the whole slice, and the caller reads the offending records one by one with ``json.values``.

Invariant
    J1  Every value that a reader accepts, ``json.values.convert`` reads to the same value.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.decode.json.connect_types import Kind, LogicalType
from lakebed.decode.json.encoded_columns import Placeholder, fitted, of_digits, parsed_as, to_binary, to_decimal
from lakebed.decode.json.text import Number
from lakebed.decode.json.values import MICROS_BELOW, MILLIS_BELOW, UNIT_OF_KIND, DecimalText, JsonOptions, binary_form
from lakebed.far_times import INFINITY_MICROS, MINUS_INFINITY_MICROS, Unit, finite, infinities, with_ends

_JsonType = Literal["string", "number", "bool", "object", "array"]
_TICKS_OF_KIND = {Kind.TIME_MS: ("ms", 10**3), Kind.TIME_US: ("us", 10**6), Kind.TIME_NS: ("ns", 10**9)}
MILLIS_MAX = 9 * 10**15
"""Milliseconds below this fit in 64 bits as microseconds; some above fit too, and the slow path reads those."""
_PLAIN_DIGITS = r"^-?[0-9]+(\.[0-9]+)?$"
_SURELY_DIGITS = r"^-[0-9]+(\.[0-9]+)?$|^[0-9]+\.[0-9]+$|^([0-9]{4})*[0-9]{1,3}$"
"""Digits with a sign or a point, or of a length that base64 never has."""
_MAYBE_NUMBER = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$|^Infinity$"


class Missed(ValueError):
    """The fast path can't be sure of these values; the slow path decides about them."""


MISSES = (Missed, ValueError, OverflowError, pa.ArrowNotImplementedError)
"""What a reader may raise (``pa.ArrowInvalid`` and ``NotBase64`` are ``ValueError``)."""


@dataclass(frozen=True, slots=True)
class ColumnReader:
    parsed: pa.DataType
    """The type that ``json.objects`` reads."""
    finish: Callable[[pa.Array], pa.Array] | None = None
    """Converts it to the column's type; None if it is that type already."""
    numbers_only: bool = False
    """Whether texts must be refused, because Arrow's parser would read them like numbers (``refusal_of``)."""

    def read(self, values: pa.Array) -> pa.Array:
        return values if self.finish is None else self.finish(values)


def json_type(value: Any) -> _JsonType | None:
    match value:
        case None:
            return None
        case bool():
            return "bool"
        case str():
            return "string"
        case int() | Number():
            return "number"
        case list():
            return "array"
        case _:
            return "object"


def shape_of(sample: Any, levels: int = 8) -> Any:
    """The JSON types in a sample, which a reader depends on. Types below ``levels`` are left out; that costs only speed."""
    if isinstance(sample, dict) and levels:
        return {name: shape_of(value, levels - 1) for name, value in sample.items()}
    if isinstance(sample, list) and levels:
        return [shape_of(next((item for item in sample if item is not None), None), levels - 1)]
    return json_type(sample)


def one_of(names: Sequence[pa.Array]) -> pa.Array:
    """One array of those that a column has under its several names. Raises ``Missed`` if a record has it under two."""
    values = names[0]
    for other in names[1:]:
        if other.null_count < len(other):
            if bool((np.asarray(values.is_valid()) & np.asarray(other.is_valid())).any()):
                raise Missed("a column under two names")
            values = pc.coalesce(values, other)
    return values


def null_unavailable(values: pa.Array, placeholder: Placeholder) -> tuple[pa.Array, np.ndarray[Any, Any] | None]:
    """The values with nulls in place of Debezium's placeholder, and a mask of these. Raises ``Missed`` for what may be the
    placeholder and does not show it here: the slow path reads it.
    """
    if pa.types.is_string(values.type):
        return null_where_in(values, placeholder.texts)
    if pa.types.is_list(values.type):
        rows, kind = lists_like(values, placeholder), values.type.value_type
        if len(rows) and (pa.types.is_string(kind) or pa.types.is_integer(kind)):
            hits = np.zeros(len(values), bool)
            hits[rows] = True
            return pc.if_else(pa.array(hits), pa.scalar(None, values.type), values), hits
        if len(rows):
            raise Missed("perhaps an unavailable list")
    elif pa.types.is_struct(values.type) and len(objects_like(values, placeholder)):
        raise Missed("perhaps an unavailable object")
    return values, None


def null_where_in(values: pa.Array, forms: Collection[str | bytes]) -> tuple[pa.Array, np.ndarray[Any, Any] | None]:
    """Texts or bytes with nulls in place of some of them, and a mask of these."""
    if not _has_length(values, {len(form.encode() if isinstance(form, str) else form) for form in forms}):
        return values, None
    hits = pc.is_in(values, value_set=pa.array(forms, values.type))
    if not pc.any(hits).as_py():
        return values, None
    return pc.if_else(hits, pa.scalar(None, values.type), values), np.asarray(hits)


def _has_length(texts: pa.Array, lengths: set[int]) -> bool:
    """Whether a text has one of these lengths in bytes. This is much cheaper than comparing texts."""
    if not len(texts):
        return False
    found = np.diff(np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1])
    return any(bool((found == length).any()) for length in lengths)


def lists_like(values: pa.ListArray, placeholder: Placeholder) -> np.ndarray[Any, Any]:
    """The rows whose list is the placeholder, if they are of updates."""
    kind, lengths = values.type.value_type, np.asarray(pc.fill_null(pc.list_value_length(values), 0))
    found = np.isin(lengths, list(placeholder.lengths))
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        forms = [one for one in placeholder.elements if isinstance(one, str) == pa.types.is_string(kind)]
        if null_where_in(values.flatten(), forms)[1] is not None:
            found |= lengths == 1
    rows = np.flatnonzero(found)
    if not len(rows) or pa.types.is_list(kind) or pa.types.is_map(kind):
        return rows[:0]
    lists = values.take(pa.array(rows))
    if pa.types.is_float32(kind):  # as it was written: 0.95 is not 0.949999988079071
        lists = lists.cast(pa.list_(pa.string())).cast(pa.list_(pa.float64()))
    likely = np.array([placeholder.may_begin(first) for first in lists.values.take(lists.offsets[:-1]).to_pylist()])
    is_one = [placeholder.stands_for(one, in_update=True) for one in lists.filter(pa.array(likely)).to_pylist()]
    found_rows: np.ndarray[Any, Any] = rows[likely][np.array(is_one, bool)]
    return found_rows


def objects_like(values: pa.StructArray, placeholder: Placeholder) -> np.ndarray[Any, Any]:
    """The rows whose object may be the placeholder. The type may lack members that the object has."""
    members = dict(zip((field.name for field in values.type), values.flatten(), strict=True))
    found = np.asarray(values.is_valid())
    for member in members.values():
        found &= np.asarray(member.is_null())
    name = next((name for name in placeholder.members if name in members), None)
    if name is not None:
        kind = members[name].type
        forms = [one for one in placeholder.members[name] if isinstance(one, str) == pa.types.is_string(kind)]
        try:
            looked_for = pa.array(forms).cast(kind, safe=False)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # no value of this type is one
            return np.flatnonzero(found)
        found |= np.asarray(pc.is_in(members[name], value_set=looked_for))
    return np.flatnonzero(found)


def reader_for(target: pa.DataType, logical_type: LogicalType, seen: Any, options: JsonOptions) -> ColumnReader | None:
    """A reader for a column whose values look like ``seen`` (a sample, or None); None if values must be read one by one."""
    kind = logical_type.kind
    shape = "string" if kind in (Kind.TEXT, Kind.TIMESTAMP_TEXT) else json_type(seen)
    if kind is Kind.BYTES and not (pa.types.is_binary(target) or pa.types.is_string(target)):
        return None
    if pa.types.is_integer(target):
        if kind in (Kind.DECIMAL_BYTES, Kind.DECIMAL_VARIABLE):
            return None
        if shape == "string":
            return ColumnReader(pa.string(), lambda v: _digits(v).cast(target))
        if isinstance(seen, Number):  # such as 5.0
            return ColumnReader(pa.decimal128(19, 0), lambda v: v.cast(target), numbers_only=True)
        return ColumnReader(target)
    if pa.types.is_floating(target):
        is_number = kind in (Kind.PLAIN, Kind.NUMBER)
        return ColumnReader(target, _finite) if shape in ("number", None) and is_number else None
    if pa.types.is_boolean(target):
        counts = shape == "number" and kind is Kind.PLAIN
        return ColumnReader(pa.int64(), _zero_or_one) if counts else ColumnReader(target)
    if pa.types.is_string(target):
        return _text_reader(kind, shape)
    if pa.types.is_binary(target):
        form = binary_form(kind, options)
        return None if form is None else ColumnReader(pa.string(), lambda v: to_binary(v, form))
    if pa.types.is_decimal128(target):
        return _decimal_reader(target, logical_type, shape, options)
    if pa.types.is_date32(target):
        if kind in UNIT_OF_KIND:
            return None
        if shape == "string":
            return ColumnReader(pa.string(), lambda v: _times_of_texts(v, target))
        is_days = kind in (Kind.PLAIN, Kind.DATE_DAYS)
        return ColumnReader(pa.int32(), lambda v: finite(v.view(target))) if is_days else None
    if pa.types.is_timestamp(target) and target.unit == "us":
        if shape == "string":
            return ColumnReader(pa.string(), lambda v: _times_of_texts(v, target))
        if kind is not Kind.PLAIN and kind not in UNIT_OF_KIND:
            return None
        unit = UNIT_OF_KIND.get(kind, options.timestamp_unit)
        return ColumnReader(pa.int64(), lambda v: _micros(v, unit).view(target))
    if pa.types.is_list(target) and shape in ("array", None):
        item = next((element for element in seen or () if element is not None), None)
        return _list_reader(target, reader_for(target.value_type, logical_type.of_item(), item, options))
    if pa.types.is_struct(target) and shape in ("object", None):
        members = seen or {}
        fields = [reader_for(f.type, logical_type.of_field(f.name), members.get(f.name), options) for f in target]
        return _struct_reader(target, fields)
    return None


def _text_reader(kind: Kind, shape: _JsonType | None) -> ColumnReader | None:
    if kind is Kind.DATE_DAYS and shape in ("number", None):
        return ColumnReader(pa.int32(), lambda v: _calendar(v).cast(pa.string()))
    if kind in _TICKS_OF_KIND and shape in ("number", None):
        unit, ticks_per_second = _TICKS_OF_KIND[kind]
        return ColumnReader(pa.int64(), lambda v: _clock(v, unit, 86_400 * ticks_per_second))
    if kind in (Kind.PLAIN, Kind.BYTES, Kind.TEXT, Kind.TIMESTAMP_TEXT) and shape in ("string", None):
        return ColumnReader(pa.string())
    return None


def _decimal_reader(
    target: pa.DataType, logical_type: LogicalType, shape: _JsonType | None, options: JsonOptions
) -> ColumnReader | None:
    if logical_type.kind is Kind.DECIMAL_BYTES and shape in ("string", None):
        return ColumnReader(pa.string(), lambda v: fitted(to_decimal(v, logical_type.scale), target))
    if logical_type.kind is Kind.DECIMAL_VARIABLE or shape == "object":
        return ColumnReader(_VARIABLE, lambda v: _variable(v, target))
    if logical_type.kind is Kind.TEXT:
        return ColumnReader(pa.string(), lambda v: _decimal_text(v, target, "string"))
    is_digits = logical_type.kind is not Kind.DECIMAL_BYTES and options.decimal_text == "string"
    if shape == "number" or (shape is None and is_digits):
        return ColumnReader(parsed_as(target), lambda v: v.cast(target), numbers_only=not is_digits)
    if shape in ("string", None) and logical_type.kind is Kind.PLAIN:
        return ColumnReader(pa.string(), lambda v: _decimal_text(v, target, options.decimal_text))
    return None


_VARIABLE = pa.struct([pa.field("scale", pa.int32()), pa.field("value", pa.string())])


def _variable(values: pa.StructArray, target: pa.DataType) -> pa.Array:
    return of_variable_scales(values, target, lambda some, scale: fitted(to_decimal(some, scale), target))


def of_variable_scales(
    values: pa.Array, target: pa.DataType, decimals: Callable[[pa.Array, int], pa.Array]
) -> pa.Array:
    """Decimals that have their scales beside them. ``decimals``: those of one scale, in the type ``target``. Raises Missed."""
    scales, raws = (pc.struct_field(values, name) for name in ("scale", "value"))
    if scales.null_count != values.null_count or raws.null_count != values.null_count:
        raise Missed("a decimal without scale or value")
    result = pa.nulls(len(values), target)
    for scale in pc.unique(scales).to_pylist():
        if scale is None:
            continue
        if not 0 <= scale <= 38:
            raise Missed(f"a decimal of scale {scale}")
        chosen = pc.fill_null(pc.equal(scales, scale), False)
        some = pc.if_else(chosen, raws, pa.scalar(None, raws.type))
        result = pc.if_else(chosen, decimals(some, scale), result)
    return result


def _decimal_text(values: pa.StringArray, target: pa.DataType, form: DecimalText) -> pa.Array:
    """Decimals from texts whose form is clear. Raises ``Missed`` if the form of one is not: the slow path reads them all."""
    if form != "precise" and _all_match(values, _PLAIN_DIGITS if form == "string" else _SURELY_DIGITS):
        return of_digits(values, target)
    if form == "string":
        raise Missed("decimals of unusual form")
    if form == "auto" and pc.any(pc.match_substring_regex(values, _MAYBE_NUMBER)).as_py():
        raise Missed("decimals in more than one form")
    return fitted(to_decimal(values, target.scale), target)


def _all_match(values: pa.StringArray, pattern: str) -> bool:
    return pc.all(pc.match_substring_regex(values, pattern)).as_py() is not False


def _list_reader(target: pa.DataType, item: ColumnReader | None) -> ColumnReader | None:
    if item is None or item.numbers_only:
        return None

    def finish(values: pa.ListArray) -> pa.Array:
        values = pa.concat_arrays([values]) if values.offset else values
        if not target.value_field.nullable and values.flatten().null_count:
            raise Missed("null in a list that takes none")
        mask = values.is_null() if values.null_count else None
        return pa.ListArray.from_arrays(values.offsets, item.read(values.values), type=target, mask=mask)

    return ColumnReader(pa.list_(item.parsed), finish)


def _struct_reader(target: pa.StructType, members: list[ColumnReader | None]) -> ColumnReader | None:
    readers = [reader for reader in members if reader is not None and not reader.numbers_only]
    if not readers or len(readers) < len(members):
        return None
    parsed = pa.struct([pa.field(f.name, reader.parsed) for f, reader in zip(target, readers, strict=True)])
    if parsed == target and all(reader.finish is None for reader in readers):
        return ColumnReader(target)

    def finish(values: pa.StructArray) -> pa.Array:
        flat = values.flatten()
        if any(not f.nullable and one.null_count > values.null_count for f, one in zip(target, flat, strict=True)):
            raise Missed("null in a field that takes none")
        arrays = [reader.read(one) for reader, one in zip(readers, flat, strict=True)]
        mask = values.is_null() if values.null_count else None
        return pa.StructArray.from_arrays(arrays, fields=list(target), mask=mask)

    return ColumnReader(parsed, finish)


def _digits(values: pa.StringArray) -> pa.StringArray:
    if pc.any(pc.invert(pc.match_substring_regex(values, r"^-?[0-9]+$"))).as_py():
        raise Missed("strings that are not integers")
    return values


def _times_of_texts(values: pa.StringArray, target: pa.DataType) -> pa.Array:
    """Dates or timestamps. Arrow reads those of the years 0 to 9999; infinities are told apart only where it reads no others."""
    try:
        return values.cast(target)
    except pa.ArrowInvalid:
        if pa.types.is_date32(target):
            with_zone = pc.match_substring_regex(values, "^.{10}Z$")
            if pc.any(with_zone).as_py():
                return _times_of_texts(pc.if_else(with_zone, pc.utf8_slice_codeunits(values, 0, 10), values), target)
        positive, negative = (pc.equal(values, text) for text in ("infinity", "-infinity"))
        signs = np.asarray(positive.fill_null(False)).astype(np.int8) - np.asarray(negative.fill_null(False))
        if not signs.any():
            raise
        finite_ones = pc.if_else(pa.array(signs != 0), pa.scalar(None, pa.string()), values)
        return with_ends(finite_ones.cast(target), signs)


def _finite(values: pa.Array) -> pa.Array:
    if pc.any(pc.invert(pc.is_finite(values))).as_py():
        raise Missed("numbers out of range")
    return values


def _zero_or_one(values: pa.Int64Array) -> pa.BooleanArray:
    if pc.any(pc.invert(pc.is_in(values.drop_null(), value_set=pa.array([0, 1], pa.int64())))).as_py():
        raise Missed("numbers that are not booleans")
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


def _micros(values: pa.Int64Array, unit: Unit) -> pa.Int64Array:
    plain = _integers(values)
    signs = infinities(plain, unit)
    if signs is not None:
        plain = np.where(signs != 0, 0, plain)
    if unit in ("s", "ms"):
        per_tick = 1_000_000 if unit == "s" else 1000
        if _beyond(plain, MILLIS_MAX * 1000 // per_tick).any():
            raise Missed("seconds or milliseconds out of range")
        micros = plain * per_tick
    elif unit == "ns":
        micros = plain // 1000
    elif unit == "us":
        micros = plain
    else:
        millis, nanos = ~_beyond(plain, MILLIS_BELOW), _beyond(plain, MICROS_BELOW)
        micros = plain
        if millis.any() or nanos.any():
            micros = np.where(nanos, plain // 1000, plain)
            micros = np.where(millis, np.where(millis, plain, 0) * 1000, micros)
    if signs is not None:
        micros = np.where(signs > 0, INFINITY_MICROS, np.where(signs < 0, MINUS_INFINITY_MICROS, micros))
    elif micros is plain:
        return values
    return pa.array(micros, pa.int64(), mask=np.asarray(values.is_null()) if values.null_count else None)


def _beyond(numbers: np.ndarray[Any, Any], limit: int) -> np.ndarray[Any, Any]:
    """Which numbers have an absolute value of at least ``limit``. (The least 64-bit integer has none in 64 bits.)"""
    return (numbers >= limit) | (numbers <= -limit)


def micros_of(millis: pa.Array) -> pa.Int64Array:
    """Epoch milliseconds as microseconds. Raises ``Missed`` if these may not fit in 64 bits."""
    if _beyond(_integers(millis), MILLIS_MAX).any():
        raise Missed("times out of range")
    return pc.multiply(millis, 1000)
