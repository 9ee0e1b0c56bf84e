"""Texts of dates and timestamps: ISO 8601, and what PostgreSQL writes.

Beyond ISO 8601 with years of four digits these are read:

    *  years of more digits, with a sign or without (``+10000-01-01``, ``20222-03-15``), and years before 1: as ``-0043``, or with
       ``BC`` at the end. The year ``0000`` is 1 BC;
    *  offsets with seconds, as places had before they used time zones (``+00:19:32``);
    *  second 60, which is the next minute, and ``24:00:00``, which is the next day;
    *  ``infinity`` and ``-infinity``.
"""

from __future__ import annotations

import re
from datetime import date

from lakebed.far_times import (
    DAY_MICROS,
    INFINITY_DAY,
    INFINITY_MICROS,
    MINUS_INFINITY_DAY,
    MINUS_INFINITY_MICROS,
    finite_day,
    sign_of_day,
)

_DAY = r"([+-]?\d{4,9})-(\d\d)-(\d\d)"
_CLOCK = r"(\d\d)(?::?(\d\d)(?::?(\d\d)(?:\.(\d{1,9}))?)?)?"
_OFFSET = r"([+-])(\d\d)(?::?(\d\d)(?::?(\d\d))?)?"
_DATE = re.compile(rf"{_DAY}Z?( BC)?", re.ASCII)
_TIMESTAMP = re.compile(rf"{_DAY}(?:[T ]{_CLOCK})?(?:Z|{_OFFSET})?( BC)?", re.ASCII)
_INFINITIES = {"infinity": 1, "+infinity": 1, "-infinity": -1}
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097  # the calendar repeats itself
_EPOCH = date(1970, 1, 1).toordinal()


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
    if sign_of_day(days):
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
