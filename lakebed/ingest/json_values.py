"""One JSON value into one column value, exactly, or a reason why not.

This is the slow and complete reading. ``json_columns`` reads whole columns at once and must agree with it: whatever
that one accepts, this one reads to the same value.

    1.  The text is parsed without loss: integers of any size, decimals as written (``parse``).
    2.  The meaning (from an inline schema) or the column's type and the value's JSON type pick the conversion.
    3.  A value that does not fit (range, precision, form) is refused with ``Unreadable``; nothing is rounded, with one
        exception: nanoseconds are cut to the microseconds that a table can hold.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

import pyarrow as pa

from lakebed.ingest.meanings import PLAIN, Kind, Meaning

TimestampUnit = Literal["auto", "ms", "us", "ns"]
DecimalText = Literal["auto", "precise", "string"]

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
MILLIS_BELOW, MICROS_BELOW = 10**14, 10**17
"""``timestamp_unit: auto``: an epoch number below the first is milliseconds, below the second microseconds."""

INSTANT = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d)(?::?(\d\d)(?::?(\d\d)(?:\.(\d{1,9}))?)?)?)?(Z|[+-]\d\d(?::?\d\d)?)?", re.ASCII
)
CALENDAR_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
INTEGER = re.compile(r"-?\d{1,40}", re.ASCII)
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)


class Unreadable(ValueError):
    """The value does not fit the column; the text is the reason that the quarantine shows."""


@dataclass(frozen=True, slots=True)
class JsonOptions:
    """How to read what a JSON event without an inline schema leaves open."""

    timestamp_unit: TimestampUnit = "auto"
    decimal_text: DecimalText = "auto"
    """Decimals in strings: ``precise`` is base64 of unscaled bytes, ``string`` is digits, ``auto`` tells by form."""
    unavailable_value: str = "__debezium_unavailable_value"


def parse(text: bytes) -> Any:
    """A JSON document without loss: decimals stay ``Decimal``, NaN and Infinity are refused."""
    try:
        return json.loads(text.decode("utf-8"), parse_float=Decimal, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise Unreadable(f"not UTF-8: byte {error.start} of {len(text)}") from error
    except RecursionError as error:
        raise Unreadable("nested too deep") from error
    except ValueError as error:
        raise Unreadable(f"not JSON: {error}") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def is_unavailable(value: Any, placeholder: str) -> bool:
    """Whether the source said that it did not send the value, in any of the forms of Debezium's placeholder."""
    raw = placeholder.encode()
    if isinstance(value, str):
        return value in (placeholder, base64.b64encode(raw).decode(), f'{{"{placeholder}":"{placeholder}"}}')
    if isinstance(value, list):
        single = len(value) == 1 and isinstance(value[0], str) and is_unavailable(value[0], placeholder)
        return single or value == list(raw)
    return isinstance(value, dict) and value == {placeholder: placeholder}


def convert(value: Any, target: pa.DataType, meaning: Meaning, options: JsonOptions) -> Any:
    """A parsed JSON value as what ``pa.array([...], target)`` takes. Raises ``Unreadable``."""
    if value is None:
        return None
    if pa.types.is_integer(target):
        return _integer(value, target, meaning, options)
    if pa.types.is_floating(target):
        return _floating(value, target, meaning, options)
    if pa.types.is_boolean(target):
        if isinstance(value, bool) or (isinstance(value, int) and value in (0, 1)):
            return bool(value)
    elif pa.types.is_string(target) or pa.types.is_large_string(target):
        return _text(value, meaning, options)
    elif pa.types.is_binary(target) or pa.types.is_large_binary(target):
        if isinstance(value, str):
            return _base64(value)
    elif pa.types.is_decimal(target):
        return _rescaled(_decimal(value, meaning, target.scale, options), target)
    elif pa.types.is_date32(target):
        return _days(value, meaning, options)
    elif pa.types.is_timestamp(target):
        return _micros(value, meaning, options)
    elif pa.types.is_list(target):
        if isinstance(value, list):
            return [convert(item, target.value_type, meaning.of_item(), options) for item in value]
    elif pa.types.is_struct(target):
        if isinstance(value, dict):
            return {f.name: convert(value.get(f.name), f.type, meaning.of_field(f.name), options) for f in target}
    elif pa.types.is_map(target):
        if isinstance(value, dict):
            keys = [convert(key, target.key_type, PLAIN, options) for key in value]
            return list(zip(keys, (convert(v, target.item_type, PLAIN, options) for v in value.values()), strict=True))
    else:
        raise Unreadable(f"a column of type {target} can't be read from JSON")
    raise _mismatch(value, str(target))


def _mismatch(value: Any, wanted: str) -> Unreadable:
    shown = json.dumps(value, default=float)
    return Unreadable(f"{shown if len(shown) <= 80 else shown[:77] + '...'} is no {wanted}")


def _integer(value: Any, target: pa.DataType, meaning: Meaning, options: JsonOptions) -> int:
    if meaning.kind in (Kind.DECIMAL_BYTES, Kind.DECIMAL_VARIABLE):
        number = _decimal(value, meaning, 0, options)
        if number != number.to_integral_value():
            raise _mismatch(value, str(target))
        value = int(number)
    if isinstance(value, str) and INTEGER.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _mismatch(value, str(target))
    bits = target.bit_width - 1
    if not -(1 << bits) <= value < 1 << bits:
        raise Unreadable(f"{value} is out of the range of {target}")
    return value


def _floating(value: Any, target: pa.DataType, meaning: Meaning, options: JsonOptions) -> float:
    if meaning.kind in (Kind.DECIMAL_BYTES, Kind.DECIMAL_VARIABLE):
        value = _decimal(value, meaning, 0, options)
    if isinstance(value, str):
        if value in ("NaN", "Infinity", "-Infinity"):
            return float(value)
        if NUMBER.fullmatch(value):
            value = Decimal(value)
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise _mismatch(value, str(target))
    limit = 3.4028235677973366e38 if target.bit_width == 32 else 1.7976931348623157e308
    if abs(Decimal(value)) > Decimal(limit):
        raise Unreadable(f"{value} is out of the range of {target}")
    return float(value)


def _text(value: Any, meaning: Meaning, options: JsonOptions) -> str:
    match meaning.kind:
        case Kind.DATE_DAYS if isinstance(value, int):
            return _date_text(value)
        case Kind.TIME_MS | Kind.TIME_US | Kind.TIME_NS if isinstance(value, int):
            return _clock_text(value, {Kind.TIME_MS: 3, Kind.TIME_US: 6, Kind.TIME_NS: 9}[meaning.kind])
        case Kind.TIMESTAMP_MS | Kind.TIMESTAMP_US | Kind.TIMESTAMP_NS:
            return _instant_text(_micros(value, meaning, options))
        case Kind.DECIMAL_BYTES | Kind.DECIMAL_VARIABLE:
            return format(_decimal(value, meaning, 0, options), "f")
    if isinstance(value, str):
        if not value.isascii():
            try:
                value.encode("utf-8")
            except UnicodeEncodeError as error:
                raise Unreadable("a string holds half of a surrogate pair") from error
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_number_text)


def _number_text(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) else str(value)


def _date_text(days: int) -> str:
    try:
        return (date(1970, 1, 1) + timedelta(days=days)).isoformat()
    except OverflowError as error:
        raise Unreadable(f"day {days} is out of the calendar") from error


def _instant_text(micros: int) -> str:
    try:
        return (EPOCH + timedelta(microseconds=micros)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    except OverflowError as error:
        raise Unreadable(f"{micros} microseconds are out of the calendar") from error


def _clock_text(ticks: int, digits: int) -> str:
    seconds, fraction = divmod(abs(ticks), 10**digits)
    sign = "-" if ticks < 0 else ""
    return f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:0{digits}d}"


def _base64(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _mismatch(value, "base64") from error


def _decimal(value: Any, meaning: Meaning, plain_scale: int, options: JsonOptions) -> Decimal:
    if meaning.kind is Kind.DECIMAL_VARIABLE and isinstance(value, dict):
        scale, raw = value.get("scale"), value.get("value")
        if isinstance(scale, int) and isinstance(raw, str):
            return _unscaled(raw, scale)
    if meaning.kind is Kind.DECIMAL_BYTES and isinstance(value, str):
        return _unscaled(value, meaning.scale)
    if isinstance(value, Decimal | int) and not isinstance(value, bool):
        return Decimal(value)
    if isinstance(value, dict) and isinstance(value.get("scale"), int) and isinstance(value.get("value"), str):
        return _unscaled(value["value"], value["scale"])
    if isinstance(value, str):
        return _plain_decimal(value, plain_scale, options.decimal_text)
    raise _mismatch(value, "decimal")


def _plain_decimal(value: str, scale: int, form: DecimalText) -> Decimal:
    """A decimal in a string that no schema explains: digits, or base64 of its unscaled bytes."""
    digits = NUMBER.fullmatch(value)
    if form == "auto":
        if digits and value.isdigit() and len(value) % 4 == 0:
            raise Unreadable(f"{value!r} may be digits or base64: set decimal_text to 'string' or 'precise'")
        form = "string" if digits and (not value.isalnum() or len(value) % 4) else "precise"
    if form == "precise":
        return _unscaled(value, scale)
    if not digits:
        raise _mismatch(value, "decimal")
    return Decimal(value)


def _unscaled(value: str, scale: int) -> Decimal:
    raw = _base64(value)
    if not raw or len(raw) > 64 or not 0 <= scale <= 1000:
        raise _mismatch(value, "decimal of unscaled bytes")
    number = int.from_bytes(raw, "big", signed=True)
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))


def _rescaled(value: Decimal, target: pa.DataType) -> Decimal:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise _mismatch(value, str(target))
    unscaled = int("".join(map(str, digits)) or "0")
    shift = exponent + target.scale
    if unscaled and shift > target.precision:
        raise Unreadable(f"{value} does not fit {target}")
    if shift >= 0 or not unscaled:
        unscaled *= 10 ** max(shift, 0) if unscaled else 1
    else:
        unscaled, rest = divmod(unscaled, 10 ** min(-shift, 2000))
        if rest:
            raise Unreadable(f"{value} has more than {target.scale} digits after the point")
    if unscaled >= 10**target.precision:
        raise Unreadable(f"{value} does not fit {target}")
    try:
        return Decimal((sign, tuple(map(int, str(unscaled))), -target.scale))
    except InvalidOperation as error:
        raise _mismatch(value, str(target)) from error


def _days(value: Any, meaning: Meaning, options: JsonOptions) -> int:
    if meaning.kind in (Kind.TIMESTAMP_MS, Kind.TIMESTAMP_US, Kind.TIMESTAMP_NS):
        days, rest = divmod(_micros(value, meaning, options), 86_400_000_000)
        if rest:
            raise Unreadable(f"{value} is not at midnight, so no date")
        return days
    if isinstance(value, int) and not isinstance(value, bool) and -(1 << 31) <= value < 1 << 31:
        return value
    if isinstance(value, str) and CALENDAR_DATE.fullmatch(value):
        try:
            return (date.fromisoformat(value) - date(1970, 1, 1)).days
        except ValueError as error:
            raise _mismatch(value, "date") from error
    raise _mismatch(value, "date")


def _micros(value: Any, meaning: Meaning, options: JsonOptions) -> int:
    if isinstance(value, str):
        return _micros_of_text(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _mismatch(value, "timestamp")
    match meaning.kind:
        case Kind.DATE_DAYS:
            micros = value * 86_400_000_000
        case Kind.TIMESTAMP_MS:
            micros = value * 1000
        case Kind.TIMESTAMP_US:
            micros = value
        case Kind.TIMESTAMP_NS:
            micros = value // 1000
        case _:
            micros = _micros_of_unit(value, options.timestamp_unit)
    if not -(1 << 63) <= micros < 1 << 63:
        raise Unreadable(f"{value} is out of the range of a timestamp")
    return micros


def _micros_of_unit(value: int, unit: TimestampUnit) -> int:
    if unit == "ms" or (unit == "auto" and abs(value) < MILLIS_BELOW):
        return value * 1000
    if unit == "us" or (unit == "auto" and abs(value) < MICROS_BELOW):
        return value
    return value // 1000


def _micros_of_text(value: str) -> int:
    """ISO 8601; without a zone it is UTC."""
    match = INSTANT.fullmatch(value)
    if match is None:
        raise _mismatch(value, "timestamp")
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    try:
        moment = datetime(
            int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0), tzinfo=timezone.utc
        )
    except ValueError as error:
        raise _mismatch(value, "timestamp") from error
    micros = (moment - EPOCH) // timedelta(microseconds=1) + int((fraction or "")[:6].ljust(6, "0"))
    if zone and zone != "Z":
        digits = zone[1:].replace(":", "").ljust(4, "0")
        offset_minutes = int(digits[:2]) * 60 + int(digits[2:])
        micros -= (1 if zone[0] == "+" else -1) * offset_minutes * 60_000_000
    return micros
