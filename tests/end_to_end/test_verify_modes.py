"""``lakebed verify`` and every type of PostgreSQL at its edges, in the connector's modes: equal, or different with a cause.

A row has a value in one column alone, so each difference tells which type it is about.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import lakebed
from lakebed.pipeline.settings import DatabasePipeline, parse_any
from lakebed.verify.databases import verified
from tests.end_to_end.every_type import DIALECTS, Reading
from tests.end_to_end.test_verify import CONVERTERS, EDGES
from tests.end_to_end.types_of_postgres import POSTGRES
from tests.infra.debezium import DebeziumServer
from tests.infra.kafka import KafkaServer
from tests.infra.postgres import PostgresServer
from tests.infra.server import HOST

pytestmark = pytest.mark.long
NAME = "modes"
MORE = {
    "numeric": ("'NaN'", "1.10"),
    "numeric(50,5)": ("1.5",),
    "numeric(38,10)": ("-1234567890123456789012345678.1234567891",),
    "int[][]": ("array[[1,2],[3,4]]",),
    "json": ('\'{"b" : 1.0, "a":2}\'',),
    "hstore": ("'b=>1, a=>NULL'",),
    "date": ("'0044-03-15 BC'",),
}
ALWAYS = {
    "name": "null for changes of the type name",
    "int[][]": "null for inner arrays",
    "date": "a year before Christ",
}
NAN = {"numeric": "null for NaN"}
MODES: dict[str, tuple[Mapping[str, str], Mapping[str, str], set[str]]] = {
    "by default": ({}, NAN, set()),
    "decimals as texts": ({"decimal.handling.mode": "string"}, {}, set()),
    "decimals as doubles": ({"decimal.handling.mode": "double"}, {}, set()),
    "times of Connect": ({"time.precision.mode": "connect"}, NAN | {"timestamp": "cut to milliseconds"}, set()),
    "microseconds": ({"time.precision.mode": "microseconds"}, NAN, set()),
    "nanoseconds": ({"time.precision.mode": "nanoseconds"}, NAN | {"timestamp": "has no such time"}, set()),
    "ISO texts": (
        {"time.precision.mode": "isostring"},
        NAN | {"time": "24:00 as 00:00"},
        {"date", "date[]", "timestamp", "timestamp(3)", "timestamp[]"},
    ),
    "bytes in base64": ({"binary.handling.mode": "base64"}, NAN, {"bytea"}),
    "bytes as digits": ({"binary.handling.mode": "hex"}, NAN, {"bytea"}),
}
"""By name: the settings of the connector, the types that differ with what is said of them, and those that no rule compares."""


def types() -> dict[str, tuple[str, ...]]:
    """The values of each type that Debezium sends."""
    found = {case.type: case.values for case in POSTGRES if not case.is_unsent}
    found = {kind: (*values, *EDGES.get(kind, ())) for kind, values in found.items()}
    return {kind: (*found.get(kind, ()), *MORE.get(kind, ())) for kind in {**found, **MORE}}


def statements() -> Iterator[str]:
    columns = {kind: f"c{number}" for number, kind in enumerate(types())}
    yield "create table edges (id int primary key, "
    yield ", ".join(f"{name} {kind}" for kind, name in columns.items()) + ");"
    id = 0
    for kind, values in types().items():
        for value in values:
            id += 1
            yield f"insert into edges (id, {columns[kind]}) values ({id}, {value});"


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> str:
    postgres.create_database(NAME)
    postgres.sql(DIALECTS["postgres"].begin + "\n".join(statements()), NAME)
    return NAME


@pytest.mark.parametrize("mode", MODES)
def test_every_type_is_equal_or_differs_with_its_cause(
    kafka: KafkaServer, postgres: PostgresServer, debezium: DebeziumServer, database: str, tmp_path: Path, mode: str
) -> None:
    settings, losses, left_out = MODES[mode]
    prefix = f"mode{list(MODES).index(mode)}"
    slot = debezium.capture(database, ["public.edges"], prefix, {**CONVERTERS, **settings})
    try:
        postgres.sql("update edges set id = id + 1000 where id % 2 = 0", database)
        debezium.wait_until_sent(slot)
        assert isinstance(Reading(prefix, kafka, tmp_path).table("public.edges"), lakebed.Table)
        pipeline = parse_any(
            f"database: {{path: '{tmp_path}', verify: {{url: 'postgresql://postgres@{HOST}:{postgres.port}/{database}', "
            f"slot: {slot}}}}}\nsource: {{kind: kafka, topic_pattern: '{prefix}\\..*', "
            f"config: {{bootstrap.servers: '{kafka.bootstrap}'}}}}\nformat: debezium-json\n",
            "modes.yml",
            {},
        )
        assert isinstance(pipeline, DatabasePipeline)
        [found] = verified(pipeline)
    finally:
        debezium.release(slot)
        postgres.sql("update edges set id = id - 1000 where id > 1000", database)
    names = {f"c{number}": kind for number, kind in enumerate(types())}
    assert {names[name] for name in found.left_out} == left_out
    said = {(names.get(one.column, one.column), one.looks_like) for one in found.shown}
    expected = {kind: text for kind, text in (ALWAYS | dict(losses)).items() if kind not in left_out}
    assert {kind for kind, _ in said} == set(expected), found.shown
    for kind, text in said:
        assert expected[kind] in text
    assert (found.differences, found.quarantined) == (len(found.shown), 0)
