"""Values in the bytes that Iceberg's metadata has them in: bounds of columns, and partitions. Pure."""

from __future__ import annotations

import datetime
import decimal
import math
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from lakebed.iceberg.columns import StoredPath
from lakebed.sortkey.statistics import has_bounds, highest, lowest, parsed_stats

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_EPOCH_DAY = datetime.date(1970, 1, 1)
_MICROSECOND = datetime.timedelta(microseconds=1)
_TEXT_MAX = 32
_LAST_CHARACTER = 0x10FFFF


def encoded(value: Any, kind: pa.DataType) -> bytes:
    """A single value (appendix D of Iceberg's specification)."""
    if pa.types.is_boolean(kind):
        return b"\1" if value else b"\0"
    if pa.types.is_string(kind):
        return value if isinstance(value, bytes) else str(value).encode()
    if pa.types.is_decimal(kind):
        number = int(decimal.Decimal(value).scaleb(kind.scale, decimal.Context(prec=80)))
        return number.to_bytes((number.bit_length() + 8) // 8, "big", signed=True)
    if pa.types.is_timestamp(kind):
        return struct.pack("<q", (value - _EPOCH) // _MICROSECOND)
    if pa.types.is_date(kind):
        return struct.pack("<i", (value - _EPOCH_DAY).days)
    if pa.types.is_float32(kind):
        return struct.pack("<f", value)
    if pa.types.is_float64(kind):
        return struct.pack("<d", value)
    return struct.pack("<q" if pa.types.is_int64(kind) else "<i", value)


class Bounds:
    """What Delta's statistics of one part say of its columns, by the columns' numbers."""

    def __init__(self, stats: str | None, leaves: Mapping[StoredPath, tuple[int, pa.DataType]]) -> None:
        self.nulls: dict[int, int] = {}
        self.lower: dict[int, bytes] = {}
        self.upper: dict[int, bytes] = {}
        found = parsed_stats(stats) if stats else {}
        for path, count in _flat(found.get("nullCount") or {}):
            if path in leaves and isinstance(count, int):
                self.nulls[leaves[path][0]] = count
        least, greatest = (dict(_flat(found.get(name) or {})) for name in ("minValues", "maxValues"))
        for path, (number, kind) in leaves.items():
            low, high = least.get(path), greatest.get(path)
            if low is None or high is None or not has_bounds(kind):
                continue
            if (ends := _ends(low, high, kind)) is not None:
                self.lower[number], self.upper[number] = ends


def _ends(low: Any, high: Any, kind: pa.DataType) -> tuple[bytes, bytes] | None:
    """Bounds in bytes, None where they can't be told."""
    try:
        least, greatest = lowest(low, kind), highest(high, kind)
        if pa.types.is_floating(kind):
            if math.isnan(least) or math.isnan(greatest):
                return None
            least = -0.0 if least == 0 else least
            greatest = 0.0 if greatest == 0 else greatest
        if pa.types.is_string(kind):
            start, end = _text_start(least), _text_end(greatest)
            return None if end is None else (start, end)
        if pa.types.is_decimal(kind):
            least, greatest = decimal.Decimal(least), decimal.Decimal(greatest)
        return encoded(least, kind), encoded(greatest, kind)
    except (ValueError, OverflowError, struct.error, ArithmeticError):  # a time that Python lacks
        return None


def _text_start(text: bytes) -> bytes:
    return text.decode(errors="ignore")[:_TEXT_MAX].encode()


def _text_end(text: bytes) -> bytes | None:
    """A text that none of those up to ``text`` is above."""
    characters = text.decode(errors="replace")
    if len(characters) <= _TEXT_MAX:
        return text
    for at in range(_TEXT_MAX - 1, -1, -1):
        code = ord(characters[at]) + 1
        code = 0xE000 if 0xD800 <= code <= 0xDFFF else code
        if code <= _LAST_CHARACTER:
            return (characters[:at] + chr(code)).encode()
    return None


def _flat(values: Mapping[str, Any], above: StoredPath = ()) -> Iterator[tuple[StoredPath, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, (*above, name))
        else:
            yield (*above, name), value


def partition_value(text: str | None, kind: pa.DataType) -> Any:
    """A partition's value as Avro takes it, from the text in the log. Raises ValueError for a text that is no such value."""
    if text is None or text == "":
        return None
    if pa.types.is_string(kind):
        return text
    if pa.types.is_boolean(kind):
        return text.lower() == "true"
    if pa.types.is_integer(kind):
        return int(text)
    if pa.types.is_floating(kind):
        return float(text)
    if pa.types.is_decimal(kind):
        return decimal.Decimal(text)
    if pa.types.is_date(kind):
        return (datetime.date.fromisoformat(text) - _EPOCH_DAY).days
    moment = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    moment = moment.replace(tzinfo=datetime.UTC) if moment.tzinfo is None else moment
    return (moment - _EPOCH) // _MICROSECOND
