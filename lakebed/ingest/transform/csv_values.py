"""Dates, timestamps, decimals and floating-point numbers in lines of CSV, as expressions of Spark's SQL.

Spark's own parser rounds what has too many digits for a decimal column, and makes infinity of a number that is too large. So
such columns are read as texts, and the rule of the other formats applies: a number that does not fit makes its line bad.

It knows no infinite times, drops ``BC`` after a date, and takes a time of day for one of today. Such columns are read as texts,
too, and the rules of ``json.times`` apply. Spellings that only Spark knows are left to its casts, if they have a year, a month
and a day: ``2024-1-5``, ``2024-01-05 07:00:00 Europe/Berlin``.

Usual spellings are left to Spark's casts too, so only the others cost more. The session must be in UTC.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from lakebed.far_times import (
    DAY_MICROS,
    INFINITY_DAY,
    INFINITY_MICROS,
    MINUS_INFINITY_DAY,
    MINUS_INFINITY_MICROS,
    infinite_days,
)
from lakebed.quoting import literal

_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?\z"
"""As in strings of JSON: exponents of more than three digits are refused."""

_DAY = r"^([+-]?\d{4,9})-(\d\d)-(\d\d)"
_CLOCK = r"(?:[T ](\d\d)(?::?(\d\d)(?::?(\d\d)(?:\.(\d{1,9}))?)?)?)?"
_OFFSET = r"(?:Z|([+-])(\d\d)(?::?(\d\d)(?::?(\d\d))?)?)?"
_RULE = rf"{_DAY}{_CLOCK}{_OFFSET}( BC)?\z"
_PARTS = ",".join(f"${group}" for group in range(1, 13))
_DATE_OF_SPARK = r"^[+-]?\d{4,7}-\d\d?-\d\d?([T ]00?:00(:00(\.0*)?)?)?\z"
_TIMESTAMP_OF_SPARK = r"^[+-]?\d{4,6}-\d\d?-\d\d?([T ].*)?\z"
_WITHOUT_OFFSET = r"^[+-]?\d+-\d+-\d+([T ][\d:.]*)?( BC)?\z"


def time_of(text: str, kind: pa.DataType, zone: str | None) -> str:
    """The value of a date or timestamp column that a text stands for; null if it stands for none.

    ``text`` is a column, and the result an expression. ``zone``: of instants without an offset, as a literal; None for UTC.
    """
    if pa.types.is_date(kind):
        return _date(text)
    timestamp = _timestamp(text)
    if kind.tz is None:
        return f"cast({timestamp} as timestamp_ntz)"
    if zone is None:
        return timestamp
    return f"if(trim({text}) rlike r'{_WITHOUT_OFFSET}', to_utc_timestamp({timestamp}, {zone}), {timestamp})"


def _is_plain(text: str) -> str:
    """Whether a text has its hyphens where the usual spelling has them. Spark's casts take no part of it for another one."""
    return f"substr({text}, 5, 1) = '-' and substr({text}, 8, 1) = '-'"


def _date(column: str) -> str:
    text = f"trim({column})"
    days = _by_rule(text, f"case when pmod(c, {DAY_MICROS}) = 0 then d + c div {DAY_MICROS} end")
    return (
        f"case when {_is_plain(column)} and length({column}) = 10 then try_cast({column} as date) "
        f"when lower({text}) in ('infinity', '+infinity') then date_from_unix_date({INFINITY_DAY}) "
        f"when lower({text}) = '-infinity' then date_from_unix_date({MINUS_INFINITY_DAY}) "
        f"when {text} rlike r'{_RULE}' then date_from_unix_date(try_cast({days} as int)) "
        f"when {text} rlike r'{_DATE_OF_SPARK}' then try_cast({text} as date) end"
    )


def _timestamp(column: str) -> str:
    text = f"trim({column})"
    micros = _by_rule(text, f"try_add(try_multiply(d, {DAY_MICROS}), c)", DAY_MICROS)
    return (
        f"coalesce(case when {_is_plain(column)} then try_cast({column} as timestamp) end, "
        f"case when lower({text}) in ('infinity', '+infinity') then timestamp_micros({INFINITY_MICROS}) "
        f"when lower({text}) = '-infinity' then timestamp_micros({MINUS_INFINITY_MICROS}) "
        f"when {text} rlike r'{_RULE}' then timestamp_micros({micros}) "
        f"when {text} rlike r'{_TIMESTAMP_OF_SPARK}' then try_cast({text} as timestamp) end)"
    )


def _by_rule(text: str, result: str, units_a_day: int = 1) -> str:
    """A number that a text stands for which ``_RULE`` matches.

    ``result``: of finite days, with ``p``, the parts of the text, ``d``, days since 1970, and ``c``, microseconds of the day.
    """
    plus, minus = (", ".join(map(str, days)) for days in infinite_days())
    first, last = MINUS_INFINITY_DAY * units_a_day, INFINITY_DAY * units_a_day
    infinite = f"case when d in ({plus}) then {last} when d in ({minus}) then {first} end"
    clock = (
        "case when n[3] <= 24 and n[4] <= 59 and n[5] <= 60 and (n[3] < 24 or n[4] + n[5] + n[6] = 0) "
        "and n[8] <= 23 and n[9] <= 59 and n[10] <= 59 then cast(rpad(substr(p[6], 1, 6), 6, '0') as bigint) "
        "+ (n[3] * 3600 + n[4] * 60 + n[5]) * 1000000 "
        "- (n[8] * 3600 + n[9] * 60 + n[10]) * if(p[7] = '-', -1000000, 1000000) end"
    )
    # The calendar repeats itself after 400 years, so Spark finds the day in those from 2000 on, whatever the year is.
    day = (
        "unix_date(try_cast(concat(2000 + pmod(y, 400), '-', p[1], '-', p[2]) as date)) "
        "+ ((y - pmod(y, 400)) div 400 - 5) * 146097"
    )
    steps = [
        ("p", f"split(regexp_replace({text}, r'{_RULE}', '{_PARTS}'), ',', -1)"),
        ("n", "transform(p, part -> coalesce(try_cast(part as bigint), 0))"),
        ("y", "case when p[11] = '' then n[0] when n[0] > 0 then 1 - n[0] end"),
        ("d", day),
        ("c", clock),
    ]
    value = f"if(c is null, null, coalesce({infinite}, {result}))"
    for name, meaning in reversed(steps):
        value = f"transform(array({meaning}), {name} -> {value})[0]"  # gives it the name
    return value


def number_of(text: str, kind: pa.DataType, options: Mapping[str, str]) -> str:
    """The value of a decimal, float or double column that a text stands for; null if it stands for none, or does not fit.

    ``text`` is a column, and the result an expression. ``options``: of Spark's parser.
    """
    return _decimal(text, kind) if pa.types.is_decimal(kind) else _floating(text, kind, options)


def _decimal(text: str, kind: pa.DataType) -> str:
    value = f"try_cast({text} as decimal({kind.precision}, {kind.scale}))"
    digits = f"regexp_replace(regexp_replace({text}, '[eE].*', ''), '[^0-9]', '')"
    significant = f"rtrim('0', {digits})"
    fraction = rf"length(regexp_extract({text}, r'\.(\d*)', 1))"
    exponent = f"coalesce(try_cast(regexp_extract({text}, '[eE](.*)', 1) as int), 0)"
    scale = f"{fraction} - length({digits}) + length({significant}) - {exponent}"
    return (
        rf"case when {text} rlike r'^[+-]?\d+(\.\d{{0,{kind.scale}}}0*)?\z' then {value} "
        f"when {text} rlike r'{_NUMBER}' and ({significant} = '' or {scale} <= {kind.scale}) then {value} end"
    )


def _floating(text: str, kind: pa.DataType, options: Mapping[str, str]) -> str:
    name = "float" if pa.types.is_float32(kind) else "double"
    trimmed = f"trim({text})"
    value = f"try_cast({trimmed} as {name})"
    infinity = f"cast('Infinity' as {name})"

    def one_of(option: str, default: str, *spellings: str) -> str:
        return ", ".join(literal(each) for each in (options.get(option, default), *spellings))

    return (
        f"case when {trimmed} rlike r'{_NUMBER}' then nullif(nullif({value}, {infinity}), -{infinity}) "
        f"when {text} in ({one_of('nanValue', 'NaN', 'NaN')}) then cast('NaN' as {name}) "
        f"when {text} in ({one_of('positiveInf', 'Inf', 'Infinity', '+Infinity')}) then {infinity} "
        f"when {text} in ({one_of('negativeInf', '-Inf', '-Infinity')}) then -{infinity} end"
    )
