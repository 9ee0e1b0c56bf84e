"""The rules of MariaDB's types, and MySQL's. Pure; docs/guides/verify.md has them as a table.

Expressions rely on the settings of the session (``mariadb``): UTC, and no mode of SQL.

MariaDB has no function for the bits of a floating point number, but it prints the shortest digits that no other ``double`` has.
Those are the text, and DuckDB gets a function that writes them alike (``text_of_double``). Of a ``float`` it prints six digits;
multiplied by one it is a ``double`` with the same value.

A text or a value of bytes that is long is compared by its MD5, since MariaDB makes null of texts above ``max_allowed_packet``.

Only collations such as ``utf8mb4_nopad_bin`` order texts by their bytes: all others skip blanks at the end, at least.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

import pyarrow as pa

from lakebed.verify.canonical import LeftOut, OfKey, Rule, put
from lakebed.verify.judging import day_of_number, moment_of_number, same_json, same_number
from lakebed.verify.types_of_postgres import BITS_OF_BYTES

TEXT_OF_DOUBLE = "lakebed_text_of_double"
"""A function that ``lake`` adds to DuckDB."""
_SHORT_BYTES_MAX = 1_000_000
_POINT_FORM_MAX = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class MariaDbType:
    """A type of a column: its ``data_type`` in ``information_schema.columns``."""

    name: str
    is_unsigned: bool = False
    precision: int | None = None  # of numbers, and the length of bit
    scale: int | None = None
    is_ordered_by_bytes: bool = True  # of a text: whether its collation is that of bytes
    members: tuple[str, ...] = ()  # of enum and set

    def rule(self, lake: pa.DataType) -> Rule | LeftOut:
        """How values of a column are compared."""
        for is_kind, rules in _BY_LAKE:
            rule = rules.get(self.name) if is_kind(lake) else None
            if rule is not None:
                return self._own(rule, lake)
        return LeftOut(reason=f"no rule compares {self.name} with {lake}")

    def _own(self, rule: Rule, lake: pa.DataType) -> Rule:
        """The rule with what depends on the length, the sign or the collation."""
        if pa.types.is_decimal(lake):
            rule = self._decimal(rule, lake)
        if rule.of_key is None:
            return rule
        if self.name in _INTEGERS and self.is_unsigned:
            return replace(rule, of_key=replace(rule.of_key, source="cast({} as unsigned)"))
        if self.name in _NUMBER_OF_MEMBERS:
            return replace(rule, of_key=replace(rule.of_key, source=_NUMBER_OF_MEMBERS[self.name](self.members)))
        if self.name == "timestamp":
            return replace(rule, of_key=replace(rule.of_key, source=_TIMESTAMP_KEY))
        if self.name in _KEY_TEXTS and not self.is_ordered_by_bytes:
            return replace(rule, of_key=replace(rule.of_key, order=None))
        return rule

    def _decimal(self, rule: Rule, lake: pa.Decimal128Type) -> Rule:
        """All digits; a scale of the table that is wider adds zeros. One that is narrower can't be had by rounding."""
        kind = f"decimal({lake.precision}, {lake.scale})"
        scale = self.scale or 0
        source = rule.source
        if self.name in _DECIMALS and scale < lake.scale <= _SCALE_MAX:
            source = f"cast(cast({{}} as decimal({_PRECISION_MAX}, {lake.scale})) as char)"
        if self.name in _INTEGERS and 0 < lake.scale <= _SCALE_MAX:
            source = f"cast(cast({{}} as decimal({_PRECISION_MAX}, {lake.scale})) as char)"
        whole = f"cast({{}} as decimal({self.precision or _PRECISION_MAX}, {scale}))"
        return replace(
            rule,
            source=source,
            lake=_WHOLE,
            judge=same_number,
            of_key=OfKey(
                source=whole if self.name in _DECIMALS else _INTEGER_KEY.source,
                lake=f"{{}}::{kind}",
                order="{}",
                order_of_text=f"{{}}::{kind}",
                is_literal=True,
                is_number=True,
            ),
        )


_PRECISION_MAX, _SCALE_MAX = 65, 38
_WHOLE = "{}::varchar"
_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint")
_DECIMALS = ("decimal", "numeric")
_KEY_TEXTS = ("char", "varchar")
_TEXTS = (*_KEY_TEXTS, "tinytext", "text", "mediumtext", "longtext")
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_NUMBER = "cast({} + 0 as char)"  # plus 0: without the zeros of ZEROFILL
_INTEGER_KEY = OfKey(
    source="cast({} as signed)",
    lake="try_cast({} as hugeint)",
    order="{}::hugeint",
    order_of_text="{}::hugeint",
    is_literal=True,
    is_number=True,
)


def _shortened(length: str, text: str, hashed: str, joined: Callable[[str, str], str]) -> str:
    """The text, or of a long value its MD5."""
    return f"(case when {length} > {_SHORT_BYTES_MAX} then {joined(length, hashed)} else {text} end)"


def _by_concat(length: str, hashed: str) -> str:
    return f"concat('md5 of ', {length}, ' bytes ', {hashed})"


def _by_bars(length: str, hashed: str) -> str:
    return f"'md5 of ' || {length} || ' bytes ' || {hashed}"


_CHARACTERS = "convert({} using utf8mb4)"
_LONG_TEXT = Rule(
    source=_shortened(f"octet_length({_CHARACTERS})", _CHARACTERS, f"md5({_CHARACTERS})", _by_concat),
    lake=_shortened("strlen({})", "{}", "md5({})", _by_bars),
    is_free=True,
)
_SHORT_TEXT = Rule(
    source=_CHARACTERS,
    lake="{}",
    is_free=True,
    of_key=OfKey(source="{}", lake="{}::varchar", order="{}::varchar", order_of_text="{}::varchar", is_literal=True),
)
_PRINTED = Rule(source="cast({} as char)", lake="{}", is_free=True)


def _printed_key(source: str) -> Rule:
    return replace(_PRINTED, of_key=OfKey(source=source, lake="{}::varchar"))


def _constants(members: Sequence[str]) -> list[str]:
    """Members as hexadecimal digits, so that no mode of SQL reads them otherwise; no two of them are the same to it."""
    return [f"_utf8mb4 x'{one.encode().hex()}' collate utf8mb4_bin" for one in members]


def _of_enum(members: Sequence[str]) -> str:
    """MariaDB orders members by their numbers, and compares them so with a number alone."""
    return f"field({', '.join(['{}', *_constants(members)])})"


def _of_set(members: Sequence[str]) -> str:
    bits = [f"(find_in_set({one}, {{}}) > 0) * {1 << at}" for at, one in enumerate(_constants(members))]
    return f"({' + '.join(bits)})"


_NUMBER_OF_MEMBERS = {"enum": _of_enum, "set": _of_set}
_HEX = Rule(source="lower(hex({}))", lake="lower(hex({}))")
_SHORT_BYTES = replace(
    _HEX,
    of_key=OfKey(source="unhex({})", lake="unhex({})", order="lower(hex({}))", order_of_text="{}::varchar"),
)
_LONG_BYTES = Rule(
    source=_shortened("octet_length({})", _HEX.source, "md5({})", _by_concat),
    lake=_shortened("octet_length({})", _HEX.lake, "md5({})", _by_bars),
)
_CLOCK = (
    "(case when locate('.', cast({} as char)) > 0 then "
    "trim(trailing '.' from trim(trailing '0' from cast({} as char))) else cast({} as char) end)"
)
_LAKE_CLOCK = "(case when contains({}, '.') then rtrim(rtrim({}, '0'), '.') else {} end)"
_BITS = "trim(leading '0' from bin({} + 0))"
_EPOCH_DAY = 719_528  # to_days('1970-01-01')
_DAY = "(date '1970-01-01')"
_IS_NO_DAY = "locate('-', {}, 2) > 0"
"""Of a text of a day or a moment: whether it is one that MariaDB has and no calendar does, as 0000-00-00."""
_DATE = Rule(
    source=f"(case when to_days({{}}) is null then cast({{}} as char) else cast(to_days({{}}) - {_EPOCH_DAY} as char) end)",
    lake=f"date_diff('day', {_DAY}, {{}})::varchar",
    shown=lambda text: text if _is_no_day(text) else day_of_number(text),
    of_key=OfKey(
        source=f"if({_IS_NO_DAY}, cast({{}} as date), date_add(date '1970-01-01', interval cast({{}} as signed) day))",
        lake=f"({_DAY} + try_cast({{}} as int))",
    ),
)
_MICROS = "timestampdiff(microsecond, '1970-01-01', {})"
_MOMENT = Rule(
    source=f"(case when {_MICROS} is null then cast({{}} as char) else cast({_MICROS} as char) end)",
    lake="epoch_us({})::varchar",
    shown=lambda text: text if _is_no_day(text) else moment_of_number(text),
    of_key=OfKey(
        source=f"if({_IS_NO_DAY}, cast({{}} as datetime(6)), "
        "timestampadd(microsecond, cast({} as signed), timestamp '1970-01-01 00:00:00'))",
        lake="make_timestamptz(try_cast({} as bigint))",
    ),
)

_TIMESTAMP_KEY = f"if({_IS_NO_DAY}, cast({{}} as datetime(6)), from_unixtime(cast({{}} as decimal(30, 6)) / 1000000))"
"""The same moment in every time zone of a session."""


def _is_no_day(text: str) -> bool:
    return "-" in text[1:]


_DOUBLE = Rule(source="cast({} * 1e0 as char)", lake=f"{TEXT_OF_DOUBLE}({{}}::double)")
_BY_LAKE: tuple[tuple[Callable[[pa.DataType], bool], dict[str, Rule]], ...] = (
    (
        pa.types.is_string,
        {
            **dict.fromkeys(_TEXTS, _LONG_TEXT),
            **dict.fromkeys(_KEY_TEXTS, _SHORT_TEXT),
            **dict.fromkeys(_NUMBER_OF_MEMBERS, _printed_key("")),
            **{name: _printed_key(f"cast({{}} as {name})") for name in ("uuid", "inet4", "inet6")},
            "json": replace(_PRINTED, judge=same_json),
            "time": Rule(source=_CLOCK, lake=put(_LAKE_CLOCK, "rtrim({}, 'Z')")),
            **dict.fromkeys((*_DECIMALS, *_INTEGERS, "year"), Rule(source=_NUMBER, lake="{}", judge=same_number)),
        },
    ),
    (
        pa.types.is_integer,
        {
            **dict.fromkeys(_INTEGERS, Rule(source=_NUMBER, lake=_WHOLE, of_key=_INTEGER_KEY)),
            "year": Rule(source=_NUMBER, lake=_WHOLE, of_key=_INTEGER_KEY),
        },
    ),
    (pa.types.is_decimal, dict.fromkeys((*_DECIMALS, *_INTEGERS), Rule(source=_NUMBER, lake=_WHOLE))),
    (pa.types.is_float32, {"float": _DOUBLE}),
    (pa.types.is_float64, dict.fromkeys(("float", "double", *_DECIMALS), _DOUBLE)),
    (
        pa.types.is_boolean,
        {
            **dict.fromkeys(_INTEGERS, Rule(source="cast({} <> 0 as char)", lake="{}::int::varchar")),
            "bit": Rule(source="cast({} + 0 as char)", lake="{}::int::varchar"),
        },
    ),
    (
        pa.types.is_binary,
        {
            **dict.fromkeys(_BYTES, _LONG_BYTES),
            **dict.fromkeys(("binary", "varbinary"), _SHORT_BYTES),
            "bit": Rule(source=_BITS, lake=f"{BITS_OF_BYTES}({{}})"),
        },
    ),
    (pa.types.is_date, {"date": _DATE}),
    (pa.types.is_timestamp, dict.fromkeys(("datetime", "timestamp"), _MOMENT)),
)


def text_of_double(value: object) -> str:
    """A number as MariaDB prints it (``my_gcvt``): the shortest digits, with an exponent if it is far from one.

    Python's shortest digits are the same: both take those of David Gay's ``dtoa``.
    """
    number = float(value)  # type: ignore[arg-type]
    shown = repr(number)
    if ("e" not in shown and not shown.endswith(".0")) or not math.isfinite(number):  # MariaDB stores nothing infinite
        return shown
    if len(shown) <= _POINT_FORM_MAX and "e" not in shown:
        return shown[:-2]
    sign, numerals, exponent = Decimal(shown).normalize().as_tuple()
    minus, digits = "-" if sign else "", "".join(map(str, numerals))
    point = len(digits) + int(exponent)  # where the point is in the digits
    if point <= -_POINT_FORM_MAX or len(digits) <= point > _POINT_FORM_MAX:
        return f"{minus}{digits[0]}{'.' if len(digits) > 1 else ''}{digits[1:]}e{point - 1}"
    if point <= 0:
        return f"{minus}0.{'0' * -point}{digits}"
    return f"{minus}{digits[:point].ljust(point, '0')}{'.' if len(digits) > point else ''}{digits[point:]}"
