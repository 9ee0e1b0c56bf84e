"""The types of PostgreSQL."""

from __future__ import annotations

import json
from typing import Any

from tests.end_to_end.typed_values import Case, plain

_ARRAY = "array_to_json({})::text"
_MICROS = (
    "case when {0}::text = 'infinity' then '253402214400000000' when {0}::text = '-infinity' then '-62135424000000000' "
    "else (extract(epoch from {0}) * 1000000)::bigint::text end"
)


def _jsonb(value: str) -> str:
    """As PostgreSQL writes jsonb."""
    return json.dumps(json.loads(value), sort_keys=True, ensure_ascii=False)


def _point(value: Any) -> str:
    return f"({plain(value['x'])},{plain(value['y'])})"


def _clock(value: str) -> str:
    """A time of day without the zeros at the end of its fraction."""
    return value.rstrip("0").removesuffix(".") if "." in value else value


def _of(*types: str, values: tuple[str, ...], **more: Any) -> list[Case]:
    return [Case(one, values, **{"expected": "{}::text", **more}) for one in types]


_NUMBERS = _of("smallint", "integer", "bigint", values=("1", "-32768"))
_TEXTS = _of("varchar(20)", "text", "citext", "name", values=("'a b'", "'ünï'", "''"))
_LARGE_TEXT = "(select string_agg(md5(n::text), '') from generate_series(1, 300) n)"


def _array(kind: str, first: str, large: str, **more: Any) -> Case:
    values = (f"array[{first}, null]::{kind}", f"'{{}}'::{kind}")
    return Case(kind, values, _ARRAY, **more, large=f"(select array_agg({large}) from generate_series(1, 2000) n)")


POSTGRES: tuple[Case, ...] = (
    *_NUMBERS,
    *_of(
        "real",
        "double precision",
        values=("1.5", "-2.25", "'NaN'", "'infinity'"),
        expected="case when {0}::text = 'NaN' then 'nan' when {0}::text = 'Infinity' then 'inf' else {0}::text end",
    ),
    *_of("numeric(12,2)", values=("12.50", "-0.01")),
    *_of(
        "numeric",
        values=("12345678901234567890.123", "-1", "0.000"),
        large="(select string_agg('1234567890', '')::numeric from generate_series(1, 900))",
    ),
    *_of("numeric(40,2)", values=("12345678901234567890123456789012345678.12", "-1")),
    *_of("money", values=("12.5", "-3"), expected="{}::numeric::text"),
    *_of("boolean", values=("true", "false")),
    *_of("char(5)", values=("'a b'", "'ünï'"), expected="rpad({}, 5)"),
    *_TEXTS,
    *_of("text", values=("'x'",), large=_LARGE_TEXT),
    *_of("citext", values=("'X'",), large=f"{_LARGE_TEXT}::citext"),
    Case("bytea", ("'\\x00ff10'", "''"), "encode({}, 'hex')", large=f"{_LARGE_TEXT}::bytea"),
    Case("bit(1)", ("B'1'", "B'0'"), "case {}::text when '1' then 'true' when '0' then 'false' end"),
    Case("bit(8)", ("B'10000001'",), "to_hex({}::int)", lambda value: value.hex().lstrip("0")),
    Case("bit varying(12)", ("B'101'",), "to_hex({}::bit(12)::int >> 9)", lambda value: value.hex().lstrip("0")),
    Case(
        "date",
        ("'2024-02-29'", "'1969-12-31'", "'infinity'", "'-infinity'", "'20222-03-15'"),
        "case {0}::text when 'infinity' then '9999-12-31' when '-infinity' then '0001-01-03' "
        "when '20222-03-15' then '+20222-03-15' else {0}::text end",
    ),
    Case("time", ("'12:34:56.789'", "'00:00'", "'24:00'"), "{}::text", _clock),
    Case("time(3)", ("'12:34:56.789'",), "{}::text", _clock),
    Case(
        "timetz",
        ("'12:34:56+02'",),
        "({} at time zone 'UTC')::time::text",
        lambda value: _clock(value.removesuffix("Z")),
    ),
    *(
        Case(
            kind, ("'2024-02-29 12:00:00.123456'", "'1969-12-31 23:59:59.654321'", "'infinity'", "'-infinity'"), _MICROS
        )
        for kind in ("timestamp", "timestamp(3)", "timestamptz", "timestamptz(0)")
    ),
    Case("interval", ("'1 day 02:03:04'", "'-5 minutes'"), "(extract(epoch from {}) * 1000000)::bigint::text"),
    Case("uuid", ("'123e4567-e89b-12d3-a456-426614174000'",), "{}::text"),
    Case(
        "json",
        ('\'{{"b": 1, "a": [null]}}\''.replace("{{", "{").replace("}}", "}"), "'3'"),
        "{}::jsonb::text",
        _jsonb,
        large=f"to_json({_LARGE_TEXT})",
    ),
    Case("jsonb", ("'{\"a\": [1, null]}'", "'\"x\"'"), "{}::text", _jsonb, large=f"to_jsonb({_LARGE_TEXT})"),
    Case("xml", ("'<a>b</a>'",), "{}::text", large=f"('<a>' || {_LARGE_TEXT} || '</a>')::xml"),
    *_of("inet", values=("'10.0.0.1/24'", "'::1'"), expected="replace({}::text, '/128', '')"),
    *_of("cidr", values=("'10.0.0.0/24'",)),
    *_of("macaddr", values=("'08:00:2b:01:02:03'",)),
    *_of("macaddr8", values=("'08:00:2b:01:02:03:04:05'",)),
    Case("point", ("'(1.5,-2)'",), "{}::text", _point),
    *_of("int4range", values=("'[1,5)'", "'empty'")),
    *_of("int8range", values=("'[1,5)'",)),
    *_of("numrange", values=("'[1.5,2.5)'",)),
    *_of("tsrange", values=("'[2024-01-01,2024-02-01)'",)),
    *_of("tstzrange", values=("'[2024-01-01,2024-02-01)'",)),
    *_of("daterange", values=("'[2024-01-01,2024-02-01)'",)),
    Case(
        "hstore",
        ("'a=>1, b=>NULL'", "''"),
        "hstore_to_json({})::jsonb::text",
        _jsonb,
        large=f"hstore('k', {_LARGE_TEXT})",
    ),
    *_of("ltree", values=("'a.b.c'",)),
    *_of("mood", values=("'sad'", "'happy'")),
    *_of("positive", values=("1", "7")),
    *_of("oid", values=("1", "4294967295")),
    *_of("pair", values=("row(1, 'x')::pair",), is_unsent=True),
    *_of("tsvector", values=("'a:1 b:2'",)),
    Case(
        "line",
        ("'{1,2,3}'",),
        "{}::text",
        lambda value: f"{{{plain(value['a'])},{plain(value['b'])},{plain(value['c'])}}}",
    ),
    Case("circle", ("'<(1,2),3>'",), "{}::text", lambda value: f"<{_point(value['center'])},{plain(value['radius'])}>"),
    _array("int[]", "1", "n"),
    _array("bigint[]", "1", "n::bigint"),
    _array("smallint[]", "1", "(n % 100)::smallint"),
    _array("text[]", "'a'", "md5(n::text)"),
    _array("varchar(40)[]", "'a'", "md5(n::text)::varchar"),
    _array("uuid[]", "'123e4567-e89b-12d3-a456-426614174000'::uuid", "md5(n::text)::uuid"),
    _array("boolean[]", "true", "n % 2 = 0"),
    _array("real[]", "1.5", "n::real"),
    _array("double precision[]", "1.5", "n::float8"),
    _array("numeric(12,2)[]", "1.25", "n::numeric(12,2)"),
    _array("numeric[]", "1.25", "n::numeric"),
    _array("date[]", "'2024-02-29'::date", "'2024-02-29'::date"),
    Case(
        "timestamptz[]",
        ("array['2024-02-29 12:00+00']::timestamptz[]",),
        "(select json_agg((extract(epoch from one) * 1000000)::bigint::text)::text from unnest({}) one)",
    ),
    Case(
        "timestamp[]",
        ("array['2024-02-29 12:00']::timestamp[]",),
        "(select json_agg((extract(epoch from one) * 1000000)::bigint::text)::text from unnest({}) one)",
    ),
)
