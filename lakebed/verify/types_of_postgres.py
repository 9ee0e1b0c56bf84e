"""The rules of PostgreSQL's types. Pure; docs/guides/verify.md has them as a table.

Expressions rely on the settings of the session (``postgres``): UTC, ISO dates, and the shortest texts of floating point numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa

from lakebed.far_times import INFINITY_DAY, INFINITY_MICROS, MINUS_INFINITY_DAY, MINUS_INFINITY_MICROS
from lakebed.verify.canonical import LeftOut, OfKey, Rule, put
from lakebed.verify.judging import (
    day_of_number,
    moment_of_number,
    number_of_bits,
    same_but_blanks,
    same_json,
    same_number,
)

BITS_OF_DOUBLE, BITS_OF_FLOAT = "lakebed_bits_of_double", "lakebed_bits_of_float"
BITS_OF_BYTES, PAIRS_OF_JSON = "lakebed_bits_of_bytes", "lakebed_pairs_of_json"
"""Functions that ``lake`` adds to DuckDB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceType:
    """A type of a column: its name in ``pg_type``, of a domain that of what it is based on."""

    name: str
    modifier: int = -1  # ``atttypmod``
    kind: str = "b"  # ``typtype``: b for a base type, e for an enum, c for a composite type, r for a range
    written: str = ""  # the name as a cast needs it, with its schema where it has to
    element: SourceType | None = None  # of an array
    is_ordered_by_bytes: bool = True  # of a text: whether its collation is that of bytes

    def rule(self, lake: pa.DataType) -> Rule | LeftOut:
        """How values of a column are compared."""
        return rule_of(self, lake)


def rule_of(source: SourceType, lake: pa.DataType) -> Rule | LeftOut:
    """How values of a column are compared."""
    if source.element is not None:
        return _of_array(source.element, lake)
    if source.kind == "c":
        return LeftOut(reason="Debezium sends no columns of composite types")
    for is_kind, rules in _BY_LAKE:
        if is_kind(lake) and (found := _found(rules, source, lake)) is not None:
            return found
    return LeftOut(reason=f"no rule compares {source.name} with {lake}")


def _found(rules: dict[str, Rule], source: SourceType, lake: pa.DataType) -> Rule | None:
    name = source.name
    if pa.types.is_string(lake) and (source.kind in ("e", "r", "m") or name not in rules):
        if name in _NEVER_TEXT:
            return None
        key = OfKey(source=f"{{}}::{source.written}", lake="{}::varchar") if source.kind == "e" else None
        return replace(_TEXT, of_key=key)
    rule = rules.get(name)
    if rule is None:
        return None
    if name == "numeric" and pa.types.is_decimal(lake):
        return _decimal(source, lake)
    if name == "bpchar":
        length = max(source.modifier - 4, 0)
        rule = replace(rule, source=f"rpad({{}}::text, {length})" if length else "{}::text")
    if rule.of_key is not None and not source.is_ordered_by_bytes:
        rule = replace(rule, of_key=replace(rule.of_key, order=None))
    return rule


def _integer_key(kind: str) -> OfKey:
    return OfKey(
        source=f"{{}}::{kind}",
        lake="{}::bigint",
        order="{}::bigint",
        order_of_text="{}::bigint",
        is_literal=True,
        is_number=True,
    )


def _text_key(kind: str) -> OfKey:
    return OfKey(
        source=f"{{}}::{kind}", lake="{}::varchar", order="{}::varchar", order_of_text="{}::varchar", is_literal=True
    )


_PLAIN = "{}::text"
_TEXT = Rule(source=_PLAIN, lake="{}::varchar", is_free=True)
_WHOLE = "{}::varchar"
_DAY = "(date '1970-01-01')"


def _infinite(text: str, kind: str, infinity: int, minus_infinity: int, value: str) -> str:
    """The value of a text that infinity has too: infinity. ``value``: any other one."""
    infinite = f"when {infinity} then 'infinity'::{kind} when {minus_infinity} then '-infinity'::{kind}"
    return f"(case {text} {infinite} else {value} end)"


_DATE_OF_TEXT = f"({_DAY} + {{}}::int)"
_DATE = Rule(
    source=f"(case {{}} when 'infinity'::date then {INFINITY_DAY} when '-infinity'::date then {MINUS_INFINITY_DAY} "
    f"else {{}} - {_DAY} end)::text",
    lake=f"date_diff('day', {_DAY}, {{}})::varchar",
    shown=day_of_number,
    of_key=OfKey(
        source=_infinite("{}::int", "date", INFINITY_DAY, MINUS_INFINITY_DAY, _DATE_OF_TEXT),
        source_too=_DATE_OF_TEXT,
        lake=_DATE_OF_TEXT,
        order=f"date_diff('day', {_DAY}, {{}})::bigint",
        order_of_text="{}::bigint",
    ),
)


def _moment(kind: str) -> Rule:
    infinite = f"when 'infinity'::{kind} then {INFINITY_MICROS} when '-infinity'::{kind} then {MINUS_INFINITY_MICROS}"
    micros = (  # ``extract`` makes a numeric, which is slower
        "date_part('epoch', date_trunc('second', {}))::bigint * 1000000 + "
        "mod(date_part('microseconds', {})::bigint, 1000000)"
    )
    zone = " at time zone 'UTC'" if kind == "timestamp" else ""
    value = (
        "(to_timestamp(trunc({}::numeric / 1000000)::double precision) + "
        f"mod({{}}::bigint, 1000000) * interval '1 microsecond'){zone}"
    )
    return Rule(
        source=f"(case {{}} {infinite} else {micros} end)::text",
        lake="epoch_us({})::varchar",
        shown=moment_of_number,
        of_key=OfKey(
            source=_infinite("{}::bigint", kind, INFINITY_MICROS, MINUS_INFINITY_MICROS, value),
            source_too=value,
            lake="make_timestamptz({}::bigint)",
            order="epoch_us({})::bigint",
            order_of_text="{}::bigint",
        )
        if kind == "timestamptz"
        else None,
    )


_TRIMMED = "(case when contains({}, '.') then rtrim(rtrim({}, '0'), '.') else {} end)"
_INTERVAL = (
    "((date_part('year', {}) * 12 + date_part('month', {}))::bigint * 2629800000000 + date_part('day', {})::bigint * "
    "86400000000 + date_part('hour', {})::bigint * 3600000000 + date_part('minute', {})::bigint * 60000000 + "
    "date_part('microseconds', {})::bigint)::text"
)
_HSTORE = (
    "(case when {} is null then null else coalesce((select string_agg(octet_length(key)::text || ':' || key || "
    "coalesce(octet_length(value)::text || ':' || value, '-'), '' order by key collate \"C\") "
    "from json_each_text({}::json)), '') end)"
)
_DOUBLE = "encode(float8send({}), 'hex')"
_LAKE_DOUBLE = f"lpad(lower(to_hex({BITS_OF_DOUBLE}({{}}))), 16, '0')"


def _double_of(expression: str) -> str:
    return put(_DOUBLE, expression)


def _lake_double_of(member: str) -> str:
    return put(_LAKE_DOUBLE, member)


def _joined(parts: list[str]) -> str:
    return "(" + " || ',' || ".join(parts) + ")"


_POINT = Rule(
    source=_joined([_double_of("({})[0]"), _double_of("({})[1]")]),
    lake=_joined([_lake_double_of("({}).x"), _lake_double_of("({}).y")]),
)
_CIRCLE = Rule(
    source=_joined([_double_of("(center({}))[0]"), _double_of("(center({}))[1]"), _double_of("radius({})")]),
    lake=_joined([_lake_double_of(f"({{}}).{one}") for one in ("center.x", "center.y", "radius")]),
)
_COEFFICIENT = "(string_to_array(btrim({}::text, '{' || '}'), ','))[%d]::float8"
_LINE = Rule(
    source=_joined([_double_of(_COEFFICIENT % number) for number in (1, 2, 3)]),
    lake=_joined([_lake_double_of(f"({{}}).{one}") for one in ("a", "b", "c")]),
)
_INTEGERS = {
    name: Rule(source=_PLAIN, lake=_WHOLE, of_key=_integer_key(name)) for name in ("int2", "int4", "int8", "oid")
}
_TEXTS = {
    name: Rule(source=_PLAIN, lake="{}", is_free=True, of_key=_text_key(name)) for name in ("text", "varchar", "name")
}
_PRINTED = "(case when {} is null then null else format('%s', {}) end)"
_AS_TEXT: dict[str, Rule] = {
    **_TEXTS,
    "citext": _TEXT,
    "bpchar": Rule(source=_PLAIN, lake="{}", is_free=True, judge=same_but_blanks),
    "uuid": Rule(source=_PLAIN, lake="{}", of_key=_text_key("uuid")),
    "json": replace(_TEXT, judge=same_json),
    "jsonb": replace(_TEXT, judge=same_json),
    "inet": Rule(source=_PRINTED, lake="{}", is_free=True),
    "cidr": Rule(source=_PRINTED, lake="{}", is_free=True),
    "numeric": Rule(
        source="(case when scale({}) > 0 then rtrim(rtrim({}::text, '0'), '.') else {}::text end)",
        lake=_TRIMMED,
        judge=same_number,
    ),
    "money": Rule(source="{}::numeric::text", lake="{}", judge=same_number),
    "time": Rule(source=_PLAIN, lake=put(_TRIMMED, "rtrim({}, 'Z')")),
    "timetz": Rule(source="({} at time zone 'UTC')::time::text", lake=put(_TRIMMED, "rtrim({}, 'Z')")),
    "hstore": Rule(source=_HSTORE, lake=f"{PAIRS_OF_JSON}({{}})", is_free=True),
}
_NEVER_TEXT = frozenset({"bytea", "bit", "varbit", "date", "timestamp", "timestamptz", "interval", "float4", "float8"})
"""Types whose texts depend on a mode of the connector, which the table does not tell."""


def _decimal(source: SourceType, lake: pa.Decimal128Type) -> Rule:
    """All digits; a scale of the table that is wider adds zeros. One that is narrower can't be had by rounding."""
    scale = (source.modifier - 4) & 0x7FF if source.modifier >= 4 else None
    kind = f"decimal({lake.precision}, {lake.scale})"
    is_wider = scale is not None and scale < lake.scale
    return Rule(
        source=f"{{}}::numeric(1000, {lake.scale})::text" if is_wider else _PLAIN,
        lake=_WHOLE,
        judge=same_number,
        of_key=OfKey(
            source="{}::numeric",
            lake=f"{{}}::{kind}",
            order="{}",
            order_of_text=f"{{}}::{kind}",
            is_literal=True,
            is_number=True,
        ),
    )


def _of_array(element: SourceType, lake: pa.DataType) -> Rule | LeftOut:
    if not pa.types.is_list(lake):
        return LeftOut(reason=f"no rule compares an array of {element.name} with {lake}")
    rule = rule_of(element, lake.value_type)
    if isinstance(rule, LeftOut):
        return rule
    text, lake_text = put(rule.source, "one"), put(rule.lake, "one")
    if rule.source == _PLAIN and not rule.is_free and not pa.types.is_string(lake.value_type):  # no text has a comma
        source, counted, between = "array_to_string({}, ',', '-')", lake_text, ","
    else:
        # ``unnest`` gives the elements in their order, and ``array`` keeps it; ``offset``: each text is made once.
        source = (
            "(case when {} is null then null else array_to_string(array(select coalesce(octet_length(t)::text || ':' || t, "
            f"'-') from (select {text} as t from unnest({{}}) as each_(one) offset 0) r), '') end)"
        )
        counted, between = f"strlen({lake_text})::varchar || ':' || {lake_text}", ""
    return Rule(
        source=source,
        lake=f"array_to_string(list_transform({{}}, lambda one: coalesce({counted}, '-')), '{between}')",
        is_free=True,
    )


_BY_LAKE: tuple[tuple[Callable[[pa.DataType], bool], dict[str, Rule]], ...] = (
    (pa.types.is_string, _AS_TEXT),
    (pa.types.is_integer, {**_INTEGERS, "interval": Rule(source=_INTERVAL, lake=_WHOLE)}),
    (
        pa.types.is_decimal,
        {
            "numeric": Rule(source="", lake=""),
            "money": Rule(source="{}::numeric::text", lake=_WHOLE, judge=same_number),
        },
    ),
    (
        pa.types.is_float32,
        {
            "float4": Rule(
                source="encode(float4send({}), 'hex')",
                shown=number_of_bits,
                lake=f"right('0000000' || lower(to_hex({BITS_OF_FLOAT}({{}}))), 8)",
            )
        },
    ),
    (
        pa.types.is_float64,
        {
            name: Rule(source=put(_DOUBLE, f"{{}}{cast}"), lake=_LAKE_DOUBLE, shown=number_of_bits)
            for name, cast in (
                ("float8", ""),
                ("float4", "::float8"),
                ("numeric", "::float8"),
                ("money", "::numeric::float8"),
            )
        },
    ),
    (
        pa.types.is_boolean,
        {
            "bool": Rule(source="{}::int::text", lake="{}::int::varchar"),
            "bit": Rule(source=_PLAIN, lake="{}::int::varchar"),
        },
    ),
    (
        pa.types.is_binary,
        {
            "bytea": Rule(source="encode({}, 'hex')", lake="lower(hex({}))"),
            **{name: Rule(source="ltrim({}::text, '0')", lake=f"{BITS_OF_BYTES}({{}})") for name in ("bit", "varbit")},
        },
    ),
    (pa.types.is_date, {"date": _DATE}),
    (pa.types.is_timestamp, {name: _moment(name) for name in ("timestamp", "timestamptz")}),
    (pa.types.is_struct, {"point": _POINT, "circle": _CIRCLE, "line": _LINE}),
)
