"""Dates and timestamps that most programs can't represent: the infinities, and years before 1 and after 9999.

A table holds a date as days in 32 bits, and a timestamp as microseconds in 64 bits. ADR 45 has two rules for them:

    1.  Infinity is stored as 31 December 9999, and minus infinity as 3 January of the year 1; a timestamp is midnight then, in
        UTC. These are the last and the first midnight that every reader can show in every time zone.
    2.  Every other value that fits is stored as it is. Python has no object for one beyond the years 1 to 9999, so
        whoever makes Python objects of stored values uses ``python_values``, which gives a text for it (``iso_text``).

Besides texts, these numbers are infinities. Of dates: those of DuckDB, and those of PostgreSQL as Debezium sends them. Of
timestamps: every microsecond of the first and of the last day that 64 bits reach. Neither day is whole, and the numbers of
PostgreSQL's JDBC driver, of Debezium and of DuckDB are on them. In other units these numbers are infinities too.

Texts are read (``days_of_text``, ``micros_of_text``) as ISO 8601 has them, and as PostgreSQL writes them:

    *  years of four digits, or of more, with a sign or without (``+10000-01-01``, ``20222-03-15``), and years before 1: as
       ``-0043``, or with ``BC`` at the end. The year ``0000`` is 1 BC;
    *  offsets with seconds, as places had before they used time zones (``+00:19:32``);
    *  second 60, which is the next minute, and ``24:00:00``, which is the next day;
    *  ``infinity`` and ``-infinity``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    import pandas as pd

_DAY = r"([+-]?\d{4,9})-(\d\d)-(\d\d)"
_CLOCK = r"(\d\d)(?::?(\d\d)(?::?(\d\d)(?:\.(\d{1,9}))?)?)?"
_OFFSET = r"([+-])(\d\d)(?::?(\d\d)(?::?(\d\d))?)?"
_DATE = re.compile(rf"{_DAY}Z?( BC)?", re.ASCII)
_TIMESTAMP = re.compile(rf"{_DAY}(?:[T ]{_CLOCK})?(?:Z|{_OFFSET})?( BC)?", re.ASCII)
_INFINITIES = {"infinity": 1, "+infinity": 1, "-infinity": -1}
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097  # the calendar repeats itself
_EPOCH = date(1970, 1, 1).toordinal()

INFINITY_DAY, MINUS_INFINITY_DAY = 2_932_896, -719_160
"""What is stored for an infinite date: 9999-12-31 and 0001-01-03, as days since 1970."""
DAY_MICROS = 86_400_000_000
INFINITY_MICROS, MINUS_INFINITY_MICROS = INFINITY_DAY * DAY_MICROS, MINUS_INFINITY_DAY * DAY_MICROS
"""What is stored for an infinite timestamp."""
RANGE_BEGIN, RANGE_END = -106_751_991 * DAY_MICROS, 106_751_991 * DAY_MICROS
"""The finite timestamps: from 22 December of the year -290308 on, and before 10 January 294247."""

Unit = Literal["auto", "s", "ms", "us", "ns"]
"""What a number since 1970 counts; ``auto``: it is told by the size of the number."""
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_LEAST, _MOST = -(2**63), 2**63 - 1
_POSTGRES = {1: 9_223_372_036_825_200_000, -1: -9_223_372_036_832_400_000}
"""The infinities of PostgreSQL's JDBC driver, in milliseconds. Debezium sends them in all units, and a thousandth of them."""
_LAST_DAYS = {
    "ms": {1: (RANGE_END // 1000, _MOST // 1000), -1: (-(_MOST // 1000), RANGE_BEGIN // 1000 - 1)},
    "us": {1: (RANGE_END, _MOST), -1: (_LEAST, RANGE_BEGIN - 1)},
}
"""By unit and sign, the first and the last number of the day that 64 bits of microseconds do not have as a whole."""
_POSITIVE_DAYS = (2**31 - 1, 2_146_033_979, -2_147_472_692, -622_191_234, -622_191_233)
_NEGATIVE_DAYS = (-(2**31), -(2**31) + 1, -2_147_472_691, -625_821_272, -625_821_271)
_INFINITE_DAYS = dict.fromkeys(_POSITIVE_DAYS, 1) | dict.fromkeys(_NEGATIVE_DAYS, -1)
"""The signs of the infinities among days.

The first ones are DuckDB's, which has one day more of minus infinity than of infinity. The others are PostgreSQL's, from
Debezium's streams and snapshots: days of the years 5,877,611 and 292,278,994, some cut to 32 bits, some without the sign of their
year, and a day later in other time zones. PostgreSQL has no such dates.
"""
_GREATEST_BELOW = max(day for day in _INFINITE_DAYS if day < 0)
_LEAST_ABOVE = min(day for day in _INFINITE_DAYS if day > 0)
_DAYS_OF_TEXTS = dict.fromkeys((106_751_991_166, 106_751_991_167), 1)
_DAYS_OF_TEXTS |= dict.fromkeys((106_748_361_128, 106_748_361_129, -106_751_991_168), -1)
"""The same days before they are cut, which Debezium writes as texts (``time.precision.mode: isostring``)."""
Signs = np.ndarray[Any, np.dtype[np.int8]]
"""By value: 1 for infinity, -1 for minus infinity, 0 for others."""


def _sign_of_day(day: int) -> int:
    """1 or -1 for a day, of any number of bits, that stands for an infinity; 0 for others."""
    return _INFINITE_DAYS.get(day, 0) or _DAYS_OF_TEXTS.get(day, 0)


def infinite_days() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The days that stand for infinity, and those that stand for minus infinity."""
    signs = _INFINITE_DAYS | _DAYS_OF_TEXTS
    return tuple(day for day in signs if signs[day] > 0), tuple(day for day in signs if signs[day] < 0)


def finite_day(day: int) -> int:
    """A day as it is stored."""
    return (MINUS_INFINITY_DAY, day, INFINITY_DAY)[_sign_of_day(day) + 1]


def end_of(ticks: int, unit: Unit) -> int | None:
    """The microseconds that are stored for a number of this unit if it is an infinity; else None."""
    if _is_infinite(ticks, unit, 1):
        return INFINITY_MICROS
    return MINUS_INFINITY_MICROS if _is_infinite(ticks, unit, -1) else None


def infinities(ticks: np.ndarray[Any, Any], unit: Unit) -> Signs | None:
    """The infinities among 64-bit numbers; None if there are none."""
    if not len(ticks) or (ticks.max() < _first_infinite(unit, 1) and ticks.min() > _first_infinite(unit, -1)):
        return None
    signs = _is_infinite(ticks, unit, 1).astype(np.int8) - _is_infinite(ticks, unit, -1)
    return signs if signs.any() else None


def _first_infinite(unit: Unit, sign: int) -> int:
    """The infinity of this sign that is next to zero."""
    if unit in _LAST_DAYS:
        return _LAST_DAYS[unit][sign][0 if sign > 0 else 1]
    return _POSTGRES[sign] // 1000 if unit == "auto" else _POSTGRES[sign]


def _is_infinite(ticks: Any, unit: Unit, sign: int) -> Any:
    """Of a number, or of each in an array."""
    ends = (_POSTGRES[1], _MOST) if sign > 0 else (_LEAST, _POSTGRES[-1])
    first, last = _LAST_DAYS.get(unit, {sign: ends})[sign]
    found = ((ticks >= first) & (ticks <= last)) | ((ticks >= ends[0]) & (ticks <= ends[1]))
    # Without a unit, this one would be taken for microseconds of the year 2262.
    return found | (ticks == _POSTGRES[sign] // 1000) if unit == "auto" else found


def infinities_of(values: pa.Array) -> Signs | None:
    """The infinities among dates or timestamps; None if there are none."""
    if pa.types.is_timestamp(values.type):
        return infinities(_numbers(values, pa.int64()), values.type.unit)
    if not pa.types.is_date32(values.type) or not len(values):
        return None
    days = _numbers(values, pa.int32())
    if days.min() > _GREATEST_BELOW and days.max() < _LEAST_ABOVE:
        return None
    signs = np.zeros(len(days), np.int8)
    for day, sign in _INFINITE_DAYS.items():
        signs[days == day] = sign
    return signs


def with_ends(values: pa.Array, signs: Signs) -> pa.Array:
    """Dates, or timestamps in microseconds, with what is stored for infinities in their places."""
    kind = pa.int32() if pa.types.is_date32(values.type) else pa.int64()
    of_a_day = 1 if pa.types.is_date32(values.type) else DAY_MICROS
    ends = np.where(signs > 0, INFINITY_DAY * of_a_day, MINUS_INFINITY_DAY * of_a_day)
    numbers = np.where(signs == 0, _numbers(values, kind), ends)
    is_null = np.asarray(values.is_null()) & (signs == 0)
    return pa.array(numbers, kind, mask=is_null if is_null.any() else None).view(values.type)


def _numbers(values: pa.Array, kind: pa.DataType) -> np.ndarray[Any, Any]:
    numbers = values.view(kind)
    return np.asarray(numbers.fill_null(0) if numbers.null_count else numbers)


def finite(values: pa.Array) -> pa.Array:
    """Dates (``date32``) and timestamps (in microseconds) as they are stored, at any depth; other values as they are."""
    if pa.types.is_nested(values.type):
        return _rebuilt(values) if has_times(values.type) else values
    signs = infinities_of(values)
    return values if signs is None else with_ends(values, signs)


def finite_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column with its dates and timestamps as they are stored."""
    if not has_times(column.type):
        return column
    given = column.chunks  # each time that Arrow is asked, it gives other objects
    chunks = [finite(chunk) for chunk in given]
    is_same = all(new is old for new, old in zip(chunks, given, strict=True))
    return column if is_same else pa.chunked_array(chunks, column.type)


def has_times(kind: pa.DataType) -> bool:
    """Whether a type has dates or timestamps in it, at any depth."""
    if pa.types.is_nested(kind):
        return any(has_times(kind.field(at).type) for at in range(kind.num_fields))
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _rebuilt(values: pa.Array) -> pa.Array:
    """Nested values with their members ``finite``; the same object if none changes."""
    kind, t = values.type, pa.types
    whole = pa.concat_arrays([values]) if values.offset else values
    if t.is_struct(kind):
        members = [whole.field(at) for at in range(kind.num_fields)]
    elif t.is_map(kind):
        members = [whole.keys, whole.items]
    elif t.is_list(kind):
        members = [whole.values]
    else:
        return values
    stored = [finite(member) for member in members]
    if all(new is old for new, old in zip(stored, members, strict=True)):
        return values
    mask = whole.is_null() if whole.null_count else None
    if t.is_struct(kind):
        return pa.StructArray.from_arrays(stored, fields=list(kind), mask=mask)
    if t.is_map(kind):
        return pa.MapArray.from_arrays(whole.offsets, *stored, type=kind, mask=mask)
    return pa.ListArray.from_arrays(whole.offsets, *stored, type=kind, mask=mask)


# -- stored values as Python objects and as text ----------------------------------------------------------------------------


def iso_text(value: int, kind: pa.DataType) -> str:
    """A stored date or timestamp of any year in ISO 8601, with a Z if the type has a zone.

    Years beyond 9999 and before 0 have a sign, as in Java and in Debezium's events; the year 0 is that before the year 1.
    DuckDB's infinities, which a query may have as a result, are ``infinity`` and ``-infinity``.
    """
    if abs(value) == (2**31 if pa.types.is_date32(kind) else 2**63) - 1:
        return "infinity" if value > 0 else "-infinity"
    if pa.types.is_date32(kind):
        return _day_text(value)
    seconds, ticks = divmod(value, PER_SECOND[kind.unit])
    days, second = divmod(seconds, 86_400)
    digits = len(str(PER_SECOND[kind.unit])) - 1
    fraction = f".{ticks:0{digits}d}" if ticks else ""
    clock = f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
    return f"{_day_text(days)}T{clock}{fraction}{'Z' if kind.tz else ''}"


def year_text(year: int) -> str:
    """A year in ISO 8601: of four digits, or with a sign."""
    return f"{'-' if year < 0 else '+' if year > 9999 else ''}{abs(year):04d}"


def _day_text(day: int) -> str:
    year, month, day_of_month = str(np.datetime64(day, "D")).rsplit("-", 2)
    return f"{year_text(int(year))}-{month}-{day_of_month}"


def python_values(column: pa.Array | pa.ChunkedArray, far: Callable[[int, pa.DataType], Any] = iso_text) -> list[Any]:
    """``to_pylist``, but with what ``far`` makes of a date or timestamp that Python has no object for, at any depth."""
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        return [value for chunk in chunks for value in _one_by_one(chunk, far)]


def python_rows(
    table: pa.Table | pa.RecordBatch,
    maps_as_pydicts: Literal["lossy", "strict"] | None = None,
    far: Callable[[int, pa.DataType], Any] = iso_text,
) -> list[dict[str, Any]]:
    """``to_pylist`` with ``python_values``. ``maps_as_pydicts`` is not regarded in a table with such a date or timestamp."""
    try:
        return list(table.to_pylist(maps_as_pydicts=maps_as_pydicts))
    except (ValueError, OverflowError):
        columns = [python_values(column, far) for column in table.columns]
        return [dict(zip(table.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def pandas_frame(table: pa.Table) -> pd.DataFrame:
    """``to_pandas``, but with ``numpy.datetime64`` among the objects for dates that Python has no objects for."""
    try:
        return table.to_pandas()
    except (ValueError, OverflowError):
        import pandas

        frames = [_pandas_column(table.select([name])) for name in table.column_names]
        return pandas.concat(frames, axis="columns")


def _pandas_column(table: pa.Table) -> pd.DataFrame:
    try:
        return table.to_pandas()
    except (ValueError, OverflowError):
        import pandas

        return pandas.DataFrame(
            {table.column_names[0]: pandas.Series(python_values(table[0], _numpy_time), dtype=object)}
        )


def _numpy_time(number: int, kind: pa.DataType) -> np.datetime64:
    return np.datetime64(number, "D" if pa.types.is_date32(kind) else kind.unit)


def _one_by_one(values: pa.Array, far: Callable[[int, pa.DataType], Any]) -> list[Any]:
    kind, t = values.type, pa.types
    if t.is_date32(kind) or t.is_timestamp(kind):
        numbers = values.view(pa.int32() if t.is_date32(kind) else pa.int64()).to_pylist()
        return [_python_value(*pair, far) for pair in zip(values, numbers, strict=True)]
    if t.is_struct(kind):
        members = [python_values(member, far) for member in values.flatten()]
        names = [field.name for field in kind]
        rows = [dict(zip(names, row, strict=True)) for row in zip(*members, strict=True)]
        return [row if is_valid else None for row, is_valid in zip(rows, values.is_valid().to_pylist(), strict=True)]
    if t.is_map(kind):
        return [
            None if one.values is None else [(e["key"], e["value"]) for e in python_values(one.values, far)]
            for one in values
        ]
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        return [None if one.values is None else python_values(one.values, far) for one in values]
    if t.is_dictionary(kind):
        return python_values(values.dictionary_decode(), far)
    return list(values.to_pylist())


def _python_value(value: pa.Scalar, number: int | None, far: Callable[[int, pa.DataType], Any]) -> Any:
    try:
        return value.as_py()
    except (ValueError, OverflowError):
        return None if number is None else far(number, value.type)


def _sign_of_infinity(text: str) -> int:
    """1 or -1 for a text of an infinity, 0 for another."""
    return _INFINITIES.get(text.lower(), 0) if len(text) <= 9 else 0


def days_of_text(text: str) -> int | None:
    """Days since 1970; None if the text is no date. An infinity is the day that is stored for it."""
    sign = _sign_of_infinity(text)
    if sign:
        return INFINITY_DAY if sign > 0 else MINUS_INFINITY_DAY
    match = _DATE.fullmatch(text)
    days = None if match is None else _days(*match.groups())
    return None if days is None else finite_day(days)


def micros_of_text(text: str) -> int | None:
    """Microseconds since 1970; None if the text is no timestamp. One without an offset is in UTC.

    Nanoseconds are cut. The number may be beyond what a table holds. An infinity is the timestamp that is stored for it.
    """
    sign = _sign_of_infinity(text)
    if sign:
        return INFINITY_MICROS if sign > 0 else MINUS_INFINITY_MICROS
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, sign_of_offset, *offset, era = match.groups()
    days = _days(year, month, day, era)
    seconds = _seconds(hour, minute, second, fraction)
    if days is None or seconds is None:
        return None
    if _sign_of_day(days):
        return finite_day(days) * DAY_MICROS
    if sign_of_offset:
        hours, minutes, rest = (int(part or 0) for part in offset)
        if hours > 23 or minutes > 59 or rest > 59:
            return None
        seconds -= (hours * 3600 + minutes * 60 + rest) * (1 if sign_of_offset == "+" else -1)
    return days * DAY_MICROS + seconds * 1_000_000 + int((fraction or "")[:6].ljust(6, "0"))


def _days(year_text: str, month: str, day: str, era: str | None) -> int | None:
    year = int(year_text)
    if era:
        if year < 1:
            return None
        year = 1 - year
    cycles, year_of_cycle = divmod(year - 1, _CYCLE_YEARS)
    try:
        return date(year_of_cycle + 1, int(month), int(day)).toordinal() - _EPOCH + cycles * _CYCLE_DAYS
    except ValueError:
        return None


def _seconds(
    hour_text: str | None, minute_text: str | None, second_text: str | None, fraction: str | None
) -> int | None:
    """Seconds since midnight."""
    hour, minute, second = int(hour_text or 0), int(minute_text or 0), int(second_text or 0)
    if hour == 24 and (minute or second or int(fraction or 0)):
        return None
    return None if hour > 24 or minute > 59 or second > 60 else hour * 3600 + minute * 60 + second
