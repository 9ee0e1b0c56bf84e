"""Convert one JSON value into one column value, exactly, or give the reason why not.

This is the slow and complete path. ``json.columns`` reads whole columns at once and must agree with it: every value that
``json.columns`` accepts, this module reads to the same value.

    1.  The text is parsed without loss: integers of any size, other numbers as written (``json.text.parse``).
    2.  The conversion depends on the logical type (from an inline schema), or on the column's type and the value's JSON
        type.
    3.  A value that does not fit (range, precision, form) is refused with ``Unreadable``. Nothing is rounded, with one
        exception: nanoseconds are cut to the microseconds that a table can hold.

**Unlikely times.** Some numbers are taken for times that few tables have, though no schema says what they count. They are read
as the settings say, and remarked upon:

- Timestamps in January 1970. A number of seconds that is taken for milliseconds becomes one: 1700000000 is 20 January 1970 then.
  Zero is 1970 whatever it counts.
- Dates beyond the years 1 to 9999. A number for a date counts days, and one of seconds gives such a date: 1700000000 is in
  the year 4656411 then. The numbers that stand for infinity are none of them.
- Timestamps beyond these years. A number of milliseconds that is taken for seconds becomes one: 1700000000000 is in the year
  55840 then. Where the unit is told by the size of the number, only years before 1 can be such.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, Inexact, InvalidOperation
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from lakebed.decode.json.connect_types import INTEGER, PLAIN, Kind, LogicalType
from lakebed.decode.json.encoded_columns import BinaryForm, Placeholder, bytes_of
from lakebed.decode.json.text import Number, Unreadable, is_unicode, shown, written
from lakebed.far_times import (
    DAY_MICROS,
    RANGE_BEGIN,
    RANGE_END,
    Unit,
    days_of_text,
    end_of,
    finite_day,
    has_times,
    infinite_days,
    infinities,
    iso_text,
    micros_of_text,
)
from lakebed.remarks import Remark
from lakebed.schema.column_mapping import by_case

TimestampUnit = Unit
DecimalText = Literal["auto", "precise", "string"]
BinaryText = Literal["auto", "base64", "base64-url-safe", "hex"]
UnknownFields = Literal["warn", "ignore", "quarantine"]

UNIT_OF_KIND: Mapping[Kind, Unit] = {Kind.TIMESTAMP_MS: "ms", Kind.TIMESTAMP_US: "us", Kind.TIMESTAMP_NS: "ns"}
_DAY_MIN, _DAY_MAX = -(1 << 31), (1 << 31) - 1
MILLIS_BELOW, MICROS_BELOW = 10**14, 10**17
"""``timestamp_unit: auto``: an epoch number below the first is milliseconds, below the second microseconds."""

_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
_WHOLE = Context(prec=38, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[InvalidOperation, Inexact])
_EXACT = Context(prec=1000, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[InvalidOperation, Inexact])


@dataclass(frozen=True, slots=True)
class JsonOptions:
    """How to read values whose logical type is not given, since the JSON event has no inline schema."""

    timestamp_unit: TimestampUnit = "auto"
    decimal_text: DecimalText = "auto"
    """Decimals in strings: ``precise`` is base64 of unscaled bytes, ``string`` is digits. ``auto`` takes the one form that
    the string can have, and refuses a string that can have both.
    """
    binary_text: BinaryText = "auto"
    """Bytes in strings, where no schema says that they are bytes. ``auto``: base64, as Connect's JSON has it; none if the schema
    says that the value is a string.
    """
    unavailable_value: str = "__debezium_unavailable_value"
    unknown_fields: UnknownFields = "warn"
    """What happens to members of a row that no column takes (``unknown_fields``)."""
    exact_names: bool = False
    """Whether members of structs have the names of their fields exactly; else in any case. No setting: the format knows it."""

    @property
    def placeholder(self) -> Placeholder:
        """What stands for an unavailable value."""
        return Placeholder.of(self.unavailable_value)


def convert(value: Any, target: pa.DataType, logical_type: LogicalType, options: JsonOptions) -> Any:
    """A parsed JSON value as a Python value that ``pa.array([...], target)`` accepts. Raises ``Unreadable``."""
    if value is None:
        return None
    kind = logical_type.kind
    if kind is Kind.BYTES and not (pa.types.is_binary(target) or pa.types.is_string(target)):
        raise Unreadable(f"its schema says bytes, which are no {target}")
    if pa.types.is_integer(target):
        return _integer(value, target, logical_type, options)
    if pa.types.is_floating(target):
        return _floating(value, target, logical_type, options)
    if pa.types.is_boolean(target):
        if isinstance(value, bool) or (isinstance(value, int) and value in (0, 1) and kind is Kind.PLAIN):
            return bool(value)
    elif pa.types.is_string(target) or pa.types.is_large_string(target):
        return _text(value, logical_type, options)
    elif pa.types.is_binary(target) or pa.types.is_large_binary(target):
        if isinstance(value, str):
            return _bytes(value, kind, options)
    elif pa.types.is_decimal(target):
        return _rescaled(_decimal(value, logical_type, target.scale, options), target)
    elif pa.types.is_date32(target):
        return _days(value, logical_type, options)
    elif pa.types.is_timestamp(target):
        return _micros(value, logical_type, options)
    elif pa.types.is_list(target):
        if isinstance(value, list):
            return [_member(item, target.value_field, logical_type.of_item(), options) for item in value]
    elif pa.types.is_struct(target):
        if isinstance(value, dict):
            names = {} if options.exact_names else sent_names(target, value)
            return {
                f.name: _member(value.get(name), f, logical_type.of_field(name), options)
                for f in target
                for name in [names.get(f.name, f.name)]
            }
    elif pa.types.is_map(target):
        if isinstance(value, dict):
            return _pairs(value, target, logical_type, options)
    else:
        raise Unreadable(f"a column of type {target} can't be read from JSON")
    raise _mismatch(value, str(target))


def sent_names(target: pa.StructType, given: Collection[str]) -> Mapping[str, str]:
    """The names that the members of a struct are sent with, where these differ from the names of its fields by case alone."""
    fields = [one.name for one in target]
    if set(given) <= set(fields):
        return {}
    return {column: name for name, column in by_case(fields, given).items()}


def _member(value: Any, field: pa.Field, logical_type: LogicalType, options: JsonOptions) -> Any:
    """A field of a struct, an element of a list, or a value of a map."""
    converted = convert(value, field.type, logical_type, options)
    if converted is None and not field.nullable:
        raise Unreadable(f"{field.name!r} in it may not be null")
    return converted


def _pairs(
    value: dict[str, Any], target: pa.MapType, logical_type: LogicalType, options: JsonOptions
) -> list[tuple[Any, Any]]:
    of_key, of_item = PLAIN if logical_type.item is None else LogicalType(Kind.TEXT), logical_type.of_item()
    keys = [convert(key, target.key_type, of_key, options) for key in value]
    if len(set(keys)) < len(keys):
        raise Unreadable("a map has a key twice")
    return [
        (key, _member(item, target.item_field, of_item, options))
        for key, item in zip(keys, value.values(), strict=True)
    ]


def _mismatch(value: Any, wanted: str) -> Unreadable:
    return Unreadable(f"{shown(value)} is not a valid {wanted}")


def _integer(value: Any, target: pa.DataType, logical_type: LogicalType, options: JsonOptions) -> int:
    if logical_type.kind in (Kind.DECIMAL_BYTES, Kind.DECIMAL_VARIABLE) or isinstance(value, Number):
        try:
            value = int(_decimal(value, logical_type, 0, options).quantize(Decimal(1), context=_WHOLE))
        except (InvalidOperation, Inexact):
            raise _mismatch(value, str(target)) from None
    if isinstance(value, str) and INTEGER.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _mismatch(value, str(target))
    bits = target.bit_width - 1
    if not -(1 << bits) <= value < 1 << bits:
        raise Unreadable(f"{shown(value)} is out of the range of {target}")
    return value


def _floating(value: Any, target: pa.DataType, logical_type: LogicalType, options: JsonOptions) -> float:
    if logical_type.kind in (Kind.DECIMAL_BYTES, Kind.DECIMAL_VARIABLE):
        text = str(_decimal(value, logical_type, 0, options))
    elif isinstance(value, str):
        if value in ("NaN", "Infinity", "-Infinity"):
            return float(value)
        if not _NUMBER.fullmatch(value):
            raise _mismatch(value, str(target))
        text = value
    elif isinstance(value, Number):
        text = value.literal()
    elif isinstance(value, int) and not isinstance(value, bool):
        text = repr(value)
    else:
        raise _mismatch(value, str(target))
    try:  # Arrow parses single precision itself: by way of a double the number would be rounded twice
        number = float(text) if target.bit_width == 64 else pa.scalar(text).cast(target).as_py()
    except pa.ArrowInvalid:
        number = math.inf
    if math.isinf(number):
        raise Unreadable(f"{shown(value)} is out of the range of {target}")
    return float(number)


def _text(value: Any, logical_type: LogicalType, options: JsonOptions) -> str:
    whole = isinstance(value, int) and not isinstance(value, bool)
    match logical_type.kind:
        case Kind.DATE_DAYS if whole:
            return _date_text(value)
        case Kind.TIME_MS | Kind.TIME_US | Kind.TIME_NS if whole:
            return _clock_text(value, {Kind.TIME_MS: 3, Kind.TIME_US: 6, Kind.TIME_NS: 9}[logical_type.kind])
        case Kind.TIMESTAMP_MS | Kind.TIMESTAMP_US | Kind.TIMESTAMP_NS:
            return _instant_text(_micros(value, logical_type, options))
        case Kind.DECIMAL_BYTES | Kind.DECIMAL_VARIABLE if isinstance(value, str | dict):
            return format(_decimal(value, logical_type, 0, options), "f")
    text = value if isinstance(value, str) else written(value)
    if not is_unicode(text):
        raise Unreadable("a string holds half of a surrogate pair")
    return text


def _date_text(days: int) -> str:
    if not _DAY_MIN <= days <= _DAY_MAX:
        raise Unreadable(f"day {shown(days)} is out of the range of a date")
    return iso_text(finite_day(days), pa.date32())


def _instant_text(micros: int) -> str:
    second, fraction = divmod(micros, 1_000_000)
    return f"{iso_text(second, pa.timestamp('s'))}.{fraction:06d}Z"


def _clock_text(ticks: int, digits: int) -> str:
    seconds, fraction = divmod(abs(ticks), 10**digits)
    sign = "-" if ticks < 0 else ""
    return f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:0{digits}d}"


def binary_form(kind: Kind, options: JsonOptions) -> BinaryForm | None:
    """How texts hold bytes; None if nobody says it."""
    if kind in (Kind.PLAIN, Kind.TEXT) and options.binary_text != "auto":
        return options.binary_text
    return None if kind is Kind.TEXT else "base64"


def _bytes(value: str, kind: Kind, options: JsonOptions) -> bytes:
    form = binary_form(kind, options)
    if form is None:
        raise Unreadable(
            f"{shown(value)} is a text by its schema, and nothing says how it holds bytes: set binary_text to the connector's "
            "binary.handling.mode, or make the column a string"
        )
    return _decoded(value, form)


def _decoded(value: str, form: BinaryForm = "base64") -> bytes:
    try:
        return bytes_of(value, form)
    except ValueError as error:
        raise _mismatch(value, f"{form} string") from error


def _decimal(value: Any, logical_type: LogicalType, plain_scale: int, options: JsonOptions) -> Decimal:
    if isinstance(value, Number):
        return value.decimal()
    if isinstance(value, int) and not isinstance(value, bool):
        return Decimal(value)
    if isinstance(value, dict):
        scale, raw = value.get("scale"), value.get("value")
        if isinstance(scale, int) and not isinstance(scale, bool) and isinstance(raw, str):
            return _unscaled(raw, scale)
    elif isinstance(value, str):
        if logical_type.kind is Kind.DECIMAL_BYTES:
            return _unscaled(value, logical_type.scale)
        if logical_type.kind is Kind.PLAIN:
            return _plain_decimal(value, plain_scale, options)
        if logical_type.kind is Kind.TEXT and _NUMBER.fullmatch(value):
            return Decimal(value)
        raise Unreadable(f"{shown(value)} is {logical_type.kind.value} by its schema, and no decimal")
    raise _mismatch(value, "decimal")


def _plain_decimal(value: str, scale: int, options: JsonOptions) -> Decimal:
    """A decimal in a string without a logical type: digits, or base64 of its unscaled bytes."""
    form: str = options.decimal_text
    is_number = _NUMBER.fullmatch(value) is not None
    is_base64 = len(value) % 4 == 0 and _BASE64.fullmatch(value) is not None
    if form == "auto":
        if is_base64 and (is_number or value == "Infinity"):
            raise Unreadable(f"{shown(value)} may be digits or base64: set decimal_text to 'string' or 'precise'")
        form = "precise" if is_base64 else "string"
    if form == "precise":
        return _unscaled(value, scale)
    if is_number:
        return Decimal(value)
    hint = "; if it is Debezium's base64, set decimal_text to 'precise'" if is_base64 else ""
    raise Unreadable(f"{shown(value)} is not a valid decimal{hint}")


def _unscaled(value: str, scale: int) -> Decimal:
    raw = _decoded(value)
    if not raw or len(raw) > 64 or not -1000 <= scale <= 1000:
        raise _mismatch(value, "decimal of unscaled bytes")
    return Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(-scale, _EXACT)


def _rescaled(value: Decimal, target: pa.DataType) -> Decimal:
    context = Context(target.precision, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[InvalidOperation, Inexact])
    try:
        return value.quantize(Decimal((0, (1,), -target.scale)), context=context)
    except InvalidOperation:
        raise Unreadable(f"{shown(Number(str(value)))} does not fit {target}") from None
    except Inexact:
        raise Unreadable(f"{shown(Number(str(value)))} has more than {target.scale} digits after the point") from None


def _days(value: Any, logical_type: LogicalType, options: JsonOptions) -> int:
    if logical_type.kind in UNIT_OF_KIND:
        return _day_of(value, _micros(value, logical_type, options))
    days: Any = value
    if isinstance(value, str):
        days, micros = days_of_text(value), micros_of_text(value)
        if days is None and micros is not None:
            days = _day_of(value, micros)
    if isinstance(days, bool) or not isinstance(days, int):
        raise _mismatch(value, "date")
    if not _DAY_MIN <= days <= _DAY_MAX:
        raise Unreadable(f"{shown(value)} is out of the range of a date")
    if not isinstance(value, str) and logical_type.kind not in (Kind.PLAIN, Kind.DATE_DAYS):
        raise _other_count(value, logical_type, "date")
    return finite_day(days)


def _day_of(value: Any, micros: int) -> int:
    if micros % DAY_MICROS:
        raise Unreadable(f"{shown(value)} is not at midnight in UTC, so no date")
    return micros // DAY_MICROS


def _micros(value: Any, logical_type: LogicalType, options: JsonOptions) -> int:
    micros = micros_of_text(value) if isinstance(value, str) else _micros_of_number(value, logical_type, options)
    if micros is None:
        raise _mismatch(value, "timestamp")
    end = end_of(micros, "us")
    if end is None and not RANGE_BEGIN <= micros < RANGE_END:
        raise Unreadable(f"{shown(value)} is out of the range of a timestamp")
    return micros if end is None else end


def _other_count(value: int, logical_type: LogicalType, wanted: str) -> Unreadable:
    return Unreadable(f"{shown(value)} is {logical_type.kind.value} by its schema, so no {wanted}")


def _micros_of_number(value: Any, logical_type: LogicalType, options: JsonOptions) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    if logical_type.kind is Kind.DATE_DAYS:
        return finite_day(value) * DAY_MICROS
    if logical_type.kind is not Kind.PLAIN and logical_type.kind not in UNIT_OF_KIND:
        raise _other_count(value, logical_type, "timestamp")
    unit = UNIT_OF_KIND.get(logical_type.kind, options.timestamp_unit)
    end = end_of(value, unit)
    return _micros_of_unit(value, unit) if end is None else end


def _micros_of_unit(value: int, unit: Unit) -> int:
    if unit == "auto":
        unit = "ms" if abs(value) < MILLIS_BELOW else "us" if abs(value) < MICROS_BELOW else "ns"
    match unit:
        case "s":
            return value * 1_000_000
        case "ms":
            return value * 1000
    return value if unit == "us" else value // 1000


_SECONDS = 31 * 86_400
_TICKS_OF_JANUARY: Mapping[Unit, int] = {
    "s": _SECONDS, "ms": _SECONDS * 10**3, "us": _SECONDS * 10**6, "ns": _SECONDS * 10**9,
    "auto": _SECONDS * 10**3,  # such small numbers are taken for milliseconds
}  # fmt: skip
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""Of the years 1 to 9999."""
_TIMES: Mapping[str, tuple[int, int]] = {
    unit: (_FIRST_DAY * 86_400 * ticks, (_LAST_DAY + 1) * 86_400 * ticks - 1)
    for unit, ticks in (("s", 1), ("ms", 10**3), ("us", 10**6))
}
"""The same years, by what a number counts. Of nanoseconds 64 bits hold no other."""
_INFINITE_DAYS = [day for days in infinite_days() for day in days]

_Mask = np.ndarray[Any, Any]
ByColumn = Mapping[tuple[Remark, str], _Mask]
"""Which rows a remark is on, by the remark and the column."""
_KINDS = (Remark.JANUARY_1970, Remark.FAR_TIMESTAMP, Remark.FAR_DATE)


def _is_far(ticks: Any, unit: Unit) -> Any:
    """Whether a number, or each in an array, gives a time beyond the years 1 to 9999."""
    if unit == "auto":  # what is taken for milliseconds or microseconds ends before the year 9999
        millis = (ticks < _TIMES["ms"][0]) & (ticks > -MILLIS_BELOW)
        return millis | (ticks < _TIMES["us"][0]) & (ticks > -MICROS_BELOW)
    first, last = _TIMES.get(unit, (-(2**63), 2**63 - 1))
    return (ticks < first) | (ticks > last)


def unlikely_remarks(value: Any, target: pa.DataType, logical_type: LogicalType, unit: Unit) -> list[Remark]:
    """What is to be said of a JSON value that was read into a column: whether it is such a number, or holds one."""
    if not has_times(target):
        return []
    return [remark for remark in _KINDS if _is_unlikely(remark, value, target, logical_type, unit)]


def unlikely(values: pa.Array, target: pa.DataType, logical_type: LogicalType, unit: Unit) -> dict[Remark, _Mask]:
    """By what is to be said, which values, as they came, are such numbers or hold one; without what is to be said of none."""
    if not has_times(target):
        return {}
    found = {remark: _unlikely(remark, values, target, logical_type, unit) for remark in _KINDS}
    return {remark: mask for remark, mask in found.items() if mask is not None}


def _is_unlikely(remark: Remark, value: Any, target: pa.DataType, logical_type: LogicalType, unit: Unit) -> bool:
    t = pa.types
    if not t.is_nested(target):
        if not isinstance(value, int) or isinstance(value, bool) or logical_type.kind is not Kind.PLAIN:
            return False
        if remark is Remark.JANUARY_1970:
            return bool(t.is_timestamp(target)) and 0 < value < _TICKS_OF_JANUARY[unit]
        if remark is Remark.FAR_TIMESTAMP:
            return bool(t.is_timestamp(target)) and _is_far(value, unit) and end_of(value, unit) is None
        return bool(t.is_date(target)) and not _FIRST_DAY <= value <= _LAST_DAY and value not in _INFINITE_DAYS
    if value is None:
        return False
    if t.is_struct(target):
        return any(_is_unlikely(remark, value.get(f.name), f.type, logical_type.of_field(f.name), unit) for f in target)
    items, kind = (value.values(), target.item_type) if t.is_map(target) else (value, target.value_type)
    return any(_is_unlikely(remark, item, kind, logical_type.of_item(), unit) for item in items)


def _unlikely(
    remark: Remark, values: pa.Array, target: pa.DataType, logical_type: LogicalType, unit: Unit
) -> _Mask | None:
    kind, t = values.type, pa.types
    if not t.is_nested(target):
        is_wanted = t.is_date(target) if remark is Remark.FAR_DATE else t.is_timestamp(target)
        if not is_wanted or not t.is_integer(kind) or logical_type.kind is not Kind.PLAIN:
            return None
        numbers = np.asarray(values.fill_null(0) if values.null_count else values)
        if remark is Remark.JANUARY_1970:
            return _some((numbers > 0) & (numbers < _TICKS_OF_JANUARY[unit]))
        if remark is Remark.FAR_TIMESTAMP:
            beyond = _is_far(numbers, unit)
            signs = infinities(numbers.astype(np.int64), unit) if beyond.any() else None
            return _some(beyond if signs is None else beyond & (signs == 0))
        far = (numbers < _FIRST_DAY) | (numbers > _LAST_DAY)
        return _some(far & ~np.isin(numbers, _INFINITE_DAYS)) if far.any() else None
    if not has_times(target):
        return None
    if t.is_struct(target) and t.is_struct(kind):
        members = dict(zip((f.name for f in kind), values.flatten(), strict=True))
        found = np.zeros(len(values), bool)
        for f in target:
            if f.name in members:
                one = _unlikely(remark, members[f.name], f.type, logical_type.of_field(f.name), unit)
                found |= False if one is None else one
        return _some(found)
    if t.is_list(target) and t.is_list(kind):
        return _of_items(values, _unlikely(remark, values.values, target.value_type, logical_type.of_item(), unit))
    if t.is_map(target) and t.is_map(kind):
        return _of_items(values, _unlikely(remark, values.items, target.item_type, logical_type.of_item(), unit))
    return None


def _of_items(values: pa.Array, found: _Mask | None) -> _Mask | None:
    if found is None:
        return None
    before = np.concatenate([[0], np.cumsum(found)])
    offsets = np.asarray(values.offsets)
    return _some((before[offsets[1:]] > before[offsets[:-1]]) & np.asarray(values.is_valid()))


def _some(found: _Mask) -> _Mask | None:
    return found if found.any() else None
