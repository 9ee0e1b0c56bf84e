"""When two texts that differ are the same value, by the rules of their types; and what a difference looks like. Pure.

Nothing here is a tolerance: a judge compares the values that the texts stand for, exactly.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from contextlib import suppress
from decimal import Decimal, InvalidOperation

import pyarrow as pa

from lakebed.far_times import iso_text

UNAVAILABLE = "__debezium_unavailable_value"
_LARGE = 1_000
_NANOSECONDS_REACH = 2**63 // 1000
_HALF_HOUR_MICROS, _DAY_MICROS = 1_800_000_000, 86_400_000_000


def same_json(source: str, lake: str) -> bool:
    """Whether two documents differ in blanks, in the order of members and in how numbers are written alone."""
    try:
        return bool(_document(source) == _document(lake))
    except (ValueError, RecursionError):
        return False


def _document(text: str) -> object:
    """Numbers as decimals; of a member that is there twice the last one counts, as in PostgreSQL. Raises ValueError."""
    return _typed(json.loads(text, parse_float=Decimal, parse_int=Decimal))


def _typed(value: object) -> object:
    """So that true is not 1."""
    match value:
        case bool():
            return ("boolean", value)
        case list():
            return [_typed(each) for each in value]
        case dict():
            return {name: _typed(each) for name, each in value.items()}
    return value


def same_number(source: str, lake: str) -> bool:
    """Whether two decimals differ in zeros at their end alone; every NaN is the same one."""
    try:
        first, second = Decimal(source), Decimal(lake)
    except InvalidOperation:
        return False
    return first == second or (first.is_nan() and second.is_nan())


def same_but_blanks(source: str, lake: str) -> bool:
    """Whether two texts differ in blanks at their end alone, which do not count in ``char``."""
    return source.rstrip(" ") == lake.rstrip(" ")


# -- Canonical texts for people ----------------------------------------------------------------------------------------------


def number_of_bits(text: str) -> str:
    """The number whose bits, as hexadecimal digits, a text has: of 4 or 8 bytes."""
    bits = bytes.fromhex(text)
    return repr(struct.unpack(">f" if len(bits) == 4 else ">d", bits)[0])


def day_of_number(text: str) -> str:
    """A day since 1970."""
    return iso_text(int(text), pa.date32())


def moment_of_number(text: str) -> str:
    """Microseconds since 1970."""
    return iso_text(int(text), pa.timestamp("us", "UTC"))


# -- What a difference looks like --------------------------------------------------------------------------------------------


def looks_like(kind: str, source: str | None, lake: str | None) -> str:
    """What a value of the table may be that differs from the source's; empty if nothing is known of it.

    Args:
        kind: The type of the column in the source.
        source: The canonical text in the source; None for null.
        lake: The canonical text in the table; None for null.
    """
    if source is None:
        return ""
    if (is_time := _is_time(kind)) and _is_no_day(source):
        return f"Debezium sends {'null' if lake is None else 'another day'} for a day that no calendar has"
    if lake is None:
        return _as_null(kind, source)
    if lake.startswith(UNAVAILABLE):
        return "Debezium's placeholder for a large value that did not change"
    if kind.endswith("[]"):
        return "Debezium sends null for inner arrays" if lake and not lake.strip("-,") else ""
    if is_time:
        return _as_time(kind, source, lake)
    if kind == "uuid" and lake.replace("-", "")[2:] == source.replace("-", "")[:-2]:
        return "Debezium 3.5 sends the uuid of a change of MariaDB moved by a byte"
    if (source, lake) == ("24:00:00", "00:00:00"):
        return "Debezium sends 24:00 as 00:00 with time.precision.mode=isostring"
    if kind.startswith(("float", "double")) or (_is_number(source) and _is_number(lake)):
        return _as_number(kind, source, lake)
    return "the text is cut" if lake and source.startswith(lake) else ""


def _is_time(kind: str) -> bool:
    return not kind.endswith("[]") and (kind == "date" or kind.startswith(("timestamp", "datetime")))


def _is_no_day(text: str) -> bool:
    """Whether it is a text as 0000-00-00, which MariaDB has, and no number."""
    return "-" in text[1:]


def _as_number(kind: str, source: str, lake: str) -> str:
    """What two numbers may have to do with each other."""
    if kind.startswith("bigint") and "unsigned" in kind and Decimal(source) - Decimal(lake) == 1 << 64:
        return "bigint.unsigned.handling.mode=long has no such number"
    if kind.startswith("float"):
        with suppress(ValueError):  # digits of its bits
            if f"{float(source):.6g}" == f"{float(lake):.6g}":
                return "Debezium's snapshot has six digits of a float"
    return ""


def _as_null(kind: str, source: str) -> str:
    """Why a value may have become null."""
    if source == "NaN":
        return "Debezium sends null for NaN in numeric"
    if kind == "name":
        return "Debezium sends null for changes of the type name"
    if re.fullmatch(r"time(\(\d\))?", kind) and (source.startswith("-") or source[:2] >= "24" or source[2] != ":"):
        return "this time.precision.mode has times within a day alone"
    if kind.startswith("timestamp") and not kind.endswith("[]") and abs(int(source)) > _NANOSECONDS_REACH:
        return "time.precision.mode=nanoseconds has no such time"
    if len(source) >= _LARGE:
        return "Debezium sends null for large values of some types that an update leaves alone"
    return ""


def _as_time(kind: str, source: str, lake: str) -> str:
    """What two days, or two numbers of microseconds, may have to do with each other."""
    if _is_after_christ(kind, source, lake):
        return "Debezium sends a year before Christ as one after Christ in its snapshot"
    if _is_this_century(kind, source, lake):
        return "Debezium takes years below 100 for years of this century or the last one, without enable.time.adjuster=false"
    micros = int(lake) - int(source)
    if kind.startswith("datetime") and abs(int(source)) > _NANOSECONDS_REACH and abs(int(lake)) <= _NANOSECONDS_REACH:
        return "time.precision.mode=nanoseconds has no such time"
    if kind == "date":
        return ""
    if micros % _HALF_HOUR_MICROS == 0 and abs(micros) <= _DAY_MICROS:
        return f"{micros / (2 * _HALF_HOUR_MICROS):+g} h: a time zone"
    if int(lake) == int(source) // 1000 * 1000:
        return "cut to milliseconds, as time.precision.mode=connect does"
    return ""


def _is_this_century(kind: str, source: str, lake: str) -> bool:
    shown = day_of_number if kind == "date" else moment_of_number
    before, after = shown(source), shown(lake)
    return before.startswith("00") and after[:2] in ("19", "20") and before[2:] == after[2:]


def _is_after_christ(kind: str, source: str, lake: str) -> bool:
    shown = day_of_number if kind == "date" else moment_of_number
    before, after = shown(source), shown(lake)
    digits = 5 if before.startswith("-") else 4
    year = int(before[:digits]) if before[:1] in ("-", "0") else 1
    return year <= 0 and after == f"{1 - year:04d}{before[digits:]}"


def _is_number(text: str) -> bool:
    return text.lstrip("-").replace(".", "", 1).isdecimal()


def swapped(source: Mapping[str, str | None], lake: Mapping[str, str | None]) -> str:
    """The two columns whose values are exchanged in the table, where that is all that differs; empty otherwise."""
    differing = [name for name in source if source[name] != lake.get(name)]
    if len(differing) != 2:
        return ""
    first, second = differing
    is_swapped = source[first] == lake[second] and source[second] == lake[first]
    return f"{first} and {second} are exchanged" if is_swapped else ""
