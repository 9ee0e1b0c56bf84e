"""The types of MariaDB."""

from __future__ import annotations

import json
from typing import Any

from tests.end_to_end.typed_values import Case, plain

_MICROS = "cast(timestampdiff(microsecond, '1970-01-01', {}) as char)"


def _of(*types: str, values: tuple[str, ...], **more: Any) -> list[Case]:
    return [Case(one, values, **{"expected": "cast({} as char)", **more}) for one in types]


def _clock(value: str) -> str:
    return value.rstrip("0").removesuffix(".") if "." in value else value


MARIADB: tuple[Case, ...] = (
    Case("tinyint(1)", ("1", "0"), "cast({} as char)", lambda value: str(int(value))),
    *_of("tinyint", "smallint", "mediumint", "int", "bigint", values=("1", "-128")),
    *_of("tinyint unsigned", values=("255",)),
    *_of("smallint unsigned", values=("65535",)),
    *_of("mediumint unsigned", values=("16777215",)),
    *_of("int unsigned", values=("4294967295",)),
    *_of("bigint unsigned", values=("9223372036854775807", "1")),
    *_of("float", "double", values=("1.5", "-2.25")),
    *_of("decimal(12,2)", values=("12.50", "-0.01")),
    *_of("decimal(38,10)", values=("1234567890123456789012345678.0123456789",)),
    *_of("decimal(65,30)", values=("12345678901234567890123456789012345.012345678901234567890123456789",)),
    Case("bit(1)", ("b'1'", "b'0'"), "case {} when b'1' then 'true' when b'0' then 'false' end"),
    Case("bit(8)", ("b'10000001'",), "lower(hex({}))"),
    *_of("char(5)", "varchar(20)", "tinytext", "text", "mediumtext", "longtext", values=("'a b'", "'ünï'", "''")),
    *(
        Case(kind, ("x'00ff10'",), "lower(hex({}))")
        for kind in ("binary(3)", "varbinary(10)", "tinyblob", "blob", "mediumblob", "longblob")
    ),
    *_of("date", values=("'2024-02-29'", "'1969-12-31'", "'9999-12-31'", "'0101-01-05'")),
    Case("time", ("'12:34:56'", "'-01:02:03'", "'838:59:59'"), "cast({} as char)", _clock),
    Case("time(6)", ("'12:34:56.789'",), "trim(trailing '0' from cast({} as char))", _clock),
    *(
        Case(kind, ("'2024-02-29 12:00:00'", "'1969-12-31 23:59:59'", "'9999-12-31 23:59:59'"), _MICROS)
        for kind in ("datetime", "datetime(3)", "datetime(6)")
    ),
    *(
        Case(
            kind,
            ("'2024-02-29 12:00:00'", "'1970-01-02 00:00:01'"),
            "cast(unix_timestamp({}) * 1000000 as signed)",
            lambda value: plain(value),
        )
        for kind in ("timestamp", "timestamp(6)")
    ),
    *_of("year", values=("2024", "1901")),
    *_of("enum('sad','happy')", values=("'sad'",)),
    *_of("set('a','b')", values=("'a,b'", "''")),
    Case("json", ("'{\"a\": [1, null]}'",), "concat({}, '')", lambda value: json.dumps(json.loads(value))),
    *_of("uuid", values=("'123e4567-e89b-12d3-a456-426614174000'",)),
    Case(
        "point",
        ("point(1.5, -2)",),
        "concat('(', st_x({0}), ',', st_y({0}), ')')",
        lambda value: f"({plain(value['x'])},{plain(value['y'])})",
    ),
    Case(
        "geometry",
        ("st_geomfromtext('linestring(0 0, 1 1)')",),
        "lower(hex(st_aswkb({})))",
        lambda value: str(value["wkb"].hex()),
    ),
)
