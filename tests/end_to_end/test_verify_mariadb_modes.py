"""``lakebed verify`` and every type of MariaDB at its edges, in the connector's modes: equal, or different with a cause.

A row has a value in one column alone, so each difference tells which type it is about.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import lakebed
from lakebed.pipeline.settings import DatabasePipeline, parse_any
from lakebed.verify.databases import verified
from tests.end_to_end.every_type import Reading
from tests.end_to_end.test_verify_mariadb import FILE, SETTINGS
from tests.end_to_end.types_of_mariadb import MARIADB
from tests.infra.debezium_mariadb import DistributedMariaDb
from tests.infra.kafka import KafkaServer
from tests.infra.mariadb import MariaDbServer
from tests.infra.server import HOST

pytestmark = pytest.mark.long
NAME = "modesmaria"
NOT_NULL = "date not null default '2024-01-01'"
WITHIN_A_DAY = "has times within a day alone"
ALWAYS = {
    "float": "six digits of a float",
    "date": "",
    NOT_NULL: "another day for a day that no calendar has",
    "datetime(6)": "null for a day that no calendar has",
    "timestamp(6)": "for a day that no calendar has",
    "uuid": "moved by a byte",
}
"""The types that differ in each mode; several things are said of those with an empty text."""
MORE = {
    "bigint unsigned": ("18446744073709551615",),
    "int(8) zerofill": ("42",),
    "decimal(12,2)": ("9999999999.99", "0"),
    "decimal(65,30)": ("0", "1.5"),
    "float": ("16777217", "1e-38", "0.1"),
    "double": ("0.1", "1e308", "4.9e-324"),
    "double(10,2)": ("12.345",),
    "bit(64)": ("b'1'", "0xffffffffffffffff"),
    "bit(12)": ("b'100000000001'", "b'0'"),
    "char(5)": ("'a'",),
    "varchar(20)": ("'a '", "'-'", "'it''s, \\\\ \\t 🂡'"),
    "varchar(9) character set latin1": ("'é€'",),
    "binary(3)": ("x'ff0000'", "x'000000'"),
    "longblob": ("repeat('x', 200000)",),
    "date": ("'0000-00-00'", "'0050-01-01'", "'2024-02-00'"),
    NOT_NULL: ("'0000-00-00'",),
    "datetime(6)": ("'1969-12-31 23:59:59.999999'", "'0000-00-00'", "'0101-01-05'"),
    "datetime(4)": ("'1969-12-31 23:59:59.9999'",),
    "timestamp(6)": ("'2024-03-31 01:59:59.999999'", "'0000-00-00'"),
    "timestamp": ("'2038-01-19 03:14:07'",),
    "time(6)": ("'-838:59:59'", "'00:00:00.000001'"),
    "year": ("2155",),
    "enum('sad','it''s')": ("'it''s'", "''"),
    "set('a','b')": ("'b,a'",),
    "json": ("'{\"b\" : 1.0}'",),
}

MODES: dict[str, tuple[Mapping[str, str], Mapping[str, str], set[str]]] = {
    "by default": ({}, {}, set()),
    "unsigned numbers as long": (
        {"bigint.unsigned.handling.mode": "long"},
        {"bigint unsigned": "no such number"},
        set(),
    ),
    "years as they are": ({"enable.time.adjuster": "false"}, {}, set()),
    "decimals as texts": ({"decimal.handling.mode": "string"}, {}, set()),
    "decimals as doubles": ({"decimal.handling.mode": "double"}, {}, set()),
    "times of Connect": (
        {"time.precision.mode": "connect"},
        {"time": WITHIN_A_DAY, "datetime(4)": "cut to milliseconds", "time(6)": "", "datetime(6)": ""},
        set(),
    ),
    "nanoseconds": (
        {"time.precision.mode": "nanoseconds"},
        {**dict.fromkeys(("datetime", "datetime(3)"), "has no such time"), "datetime(6)": ""},
        set(),
    ),
    "ISO texts": (
        {"time.precision.mode": "isostring"},
        {"time": WITHIN_A_DAY, "time(6)": WITHIN_A_DAY},
        {"date", NOT_NULL, "datetime", "datetime(3)", "datetime(4)", "datetime(6)"},
    ),
    "bytes in base64": (
        {"binary.handling.mode": "base64"},
        {},
        {"binary(3)", "varbinary(10)", "tinyblob", "blob", "mediumblob", "longblob"},
    ),
}
"""By name: the settings of the connector, the types that differ with what is said of them, and those that no rule compares."""


def types() -> dict[str, tuple[str, ...]]:
    """The values of each type."""
    found = {case.type: case.values for case in MARIADB if case.type not in ("point", "geometry")}
    return {kind: (*found.get(kind, ()), *MORE.get(kind, ())) for kind in {**found, **MORE}}


def statements() -> Iterator[str]:
    columns = {kind: f"c{number}" for number, kind in enumerate(types())}
    yield f"set sql_mode = ''; create database {NAME} character set utf8mb4; use {NAME}; create table edges (id int primary key, "
    yield ", ".join(f"{name} {kind}" for kind, name in columns.items())
    yield ", doubled int as (c1 * 2) virtual, stored int as (c1 * 3) stored, hidden int invisible default 7);"
    id = 0
    for kind, values in types().items():
        for value in values:
            id += 1
            yield f"insert into edges (id, {columns[kind]}) values ({id}, {value});"
            yield f"insert into edges (id, {columns[kind]}) values ({id + 500}, {value});"


@pytest.fixture(scope="module")
def database(mariadb: MariaDbServer) -> Iterator[str]:
    mariadb.sql("".join(statements()))
    yield NAME
    mariadb.sql(f"drop database {NAME}")  # a connector of another test, with other settings, could not parse its table


@pytest.mark.parametrize("mode", MODES)
def test_every_type_is_equal_or_differs_with_its_cause(
    kafka: KafkaServer,
    mariadb: MariaDbServer,
    debezium_mariadb: DistributedMariaDb,
    database: str,
    tmp_path: Path,
    mode: str,
) -> None:
    settings, losses, left_out = MODES[mode]
    prefix = f"mariamode{list(MODES).index(mode)}"
    connector = debezium_mariadb.capture(database, [f"{NAME}.edges"], prefix, {**SETTINGS, **settings})
    try:
        mariadb.sql("update edges set id = id + 1000 where id > 500", database)
        debezium_mariadb.wait_until_sent(connector)
        assert isinstance(Reading(prefix, kafka, tmp_path).table(f"{NAME}.edges"), lakebed.Table)
        address = HOST, mariadb.port, debezium_mariadb.offsets_topic
        pipeline = parse_any(FILE % (tmp_path, *address, 60, prefix, kafka.bootstrap), "modes.yml", {})
        assert isinstance(pipeline, DatabasePipeline)
        [found] = verified(pipeline)
    finally:
        debezium_mariadb.release(connector)
        mariadb.sql("update edges set id = id - 1000 where id > 1000", database)
    names = {f"c{number}": kind for number, kind in enumerate(types())}
    assert {names.get(name, name) for name in found.left_out} == left_out
    said = {(names.get(one.column, one.column), one.looks_like) for one in found.shown}
    expected = {kind: text for kind, text in (ALWAYS | dict(losses)).items() if kind not in left_out}
    assert {kind for kind, _ in said} == set(expected), found.shown
    for kind, text in said:
        assert text and expected[kind] in text
    assert (found.differences, found.quarantined) == (len(found.shown), 0)
