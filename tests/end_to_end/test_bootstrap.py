"""A table that begins with rows read from PostgreSQL by JDBC, and then follows the topic of its changes through SQL."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from tests.end_to_end.run_process import RunProcess, wait_until_ingested
from tests.end_to_end.schema_changes import INLINE_SCHEMAS
from tests.end_to_end.source_database import as_json, value_of
from tests.foreign.readers import comparable
from tests.infra.debezium import DebeziumServer
from tests.infra.downloads import debezium_jars
from tests.infra.kafka import KafkaServer, end_offsets
from tests.infra.postgres import PostgresServer
from tests.infra.server import HOST

NAME, PASSWORD = "beginning", "not needed: the server trusts loopback"
TABLE = """
create type mood as enum ('sad', 'happy');
create table orders (
    id bigint primary key, region text not null, small smallint, qty int, amount numeric(12, 2), ratio double precision,
    part real, flag boolean, day date, at timestamptz, local timestamp, tag uuid, doc jsonb, mood mood, raw bytea, words text[],
    note varchar(20), stamp timestamp
);
create function filled(first int, last int) returns void language sql as $$
insert into orders select n, case when n % 7 = 0 then 'test' else 'eu' end, n % 100, n, n / 4.0, n / 8.0, n / 8.0, n % 2 = 0,
    date '2024-02-29' - n, timestamptz '2024-02-29 12:00:00.123456+02' + n * interval '1 minute',
    timestamp '1969-12-31 23:59:59.654321' + n * interval '1 hour', md5(n::text)::uuid, jsonb_build_object('id', n),
    'happy', decode(md5(n::text), 'hex'), array['a', null, 'ß' || n], 'note ' || n,
    timestamp '1969-12-31 23:59:59.654321' + n * interval '1 hour' from generate_series(first, last) n;
insert into orders (id, region) values (-first, 'eu');
$$;
create function with_odd_times(first int) returns void language sql as $$
insert into orders (id, region, day, at, local, stamp)
    select first + place, 'eu', one::date, one::timestamp at time zone 'UTC', one, one
    from unnest(array['infinity', '-infinity', '0044-03-15 12:00:00.123456 BC', '0001-12-31 BC', '20222-03-15 12:00:00.123456',
    '294247-01-09', '1582-10-10', '1500-02-28 01:02:03', '1883-11-18 12:01', '2024-03-10 02:30']::timestamp[]) with ordinality
    as moments(one, place);
$$;
select filled(1, 500), with_odd_times(10000);
"""
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), False), ("region", pa.string()), ("small", pa.int16()), ("qty", pa.int32()),
        ("amount", pa.decimal128(12, 2)), ("ratio", pa.float64()), ("part", pa.float32()), ("flag", pa.bool_()),
        ("day", pa.date32()), ("at", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us")), ("tag", pa.string()),
        ("doc", pa.string()), ("mood", pa.string()), ("raw", pa.binary()), ("words", pa.list_(pa.string())),
        ("note", pa.string()), ("stamp", pa.timestamp("us", "UTC")), ("double", pa.int64()),
    ]
)  # fmt: skip
TYPES = (
    "bigint not null",
    "string",
    "smallint",
    "int",
    "decimal(12,2)",
    "double",
    "float",
    "boolean",
    "date",
    "timestamp",
    "timestamp_ntz",
    "string",
    "string",
    "string",
    "binary",
    "array<string>",
    "string",
    "timestamp",
    "bigint",
)


@pytest.mark.long
def test_rows_of_jdbc_and_changes_of_a_topic_through_sql_are_the_rows_of_the_database(
    kafka: KafkaServer,
    postgres: PostgresServer,
    debezium: DebeziumServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")  # of the pipeline's machine
    postgres.create_database(NAME)
    postgres.sql(TABLE, NAME)
    topic = kafka.create_topic(f"{NAME}.public.orders")
    connector = debezium.capture(NAME, ["public.orders"], NAME, {"snapshot.mode": "no_data", **INLINE_SCHEMAS})
    columns = ", ".join(name for name in SCHEMA.names if name != "double")
    process = RunProcess(
        "orders",
        tmp_path,
        {
            "table": {
                "path": str(tmp_path / "orders"), "schema": dict(zip(SCHEMA.names, TYPES, strict=True)), "keys": ["id"],
                "sequence_by": "source.lsn",
            },
            "source": {"kind": "kafka", "config": {"bootstrap.servers": kafka.bootstrap}, "topics": [topic]},
            "format": {"kind": "debezium-json"},
            "bootstrap": {
                "kind": "jdbc", "url": f"jdbc:postgresql://{HOST}:{postgres.port}/{NAME}", "table": "public.orders",
                "options": {"user": "postgres", "password": PASSWORD, "fetchsize": "100"},
                "position": {topic: {"0": 0}},
            },
            "transform": {
                "sql": f"select {columns}, qty * 2L as double, _change_type, _change_sequence from changes "
                "where region <> 'test' or region is null",
                "columns": dict(zip(SCHEMA.names[:-1], TYPES[:-1], strict=True)),
            },
            "metrics": {"port": None},
            "page": {"port": None},
            "spark": {"master": "local[2]", "conf": {"spark.jars": str(next(debezium_jars().glob("postgresql-*.jar")))}},
        },
    )  # fmt: skip
    # Changes before the rows are read come again from the topic.
    postgres.sql("update orders set qty = 1000 + id where id % 5 = 0; delete from orders where id = 3", NAME)
    try:
        process.start()
        postgres.sql(
            "select filled(501, 600), with_odd_times(20000); update orders set note = 'later' where id % 9 = 0", NAME
        )
        postgres.sql("delete from orders where id % 10 = 0", NAME)
        debezium.wait_until_sent(connector)
        ends = end_offsets(kafka.bootstrap, topic, 1)
        wait_until_ingested(process, {(topic, partition): end for partition, end in ends.items()})
    finally:
        process.kill()
        debezium.release(connector)
    assert_same(lakebed.open(process.table), postgres)


def assert_same(table: lakebed.Table, postgres: PostgresServer) -> None:
    quarantine = Path(f"{table.path}_quarantine")
    assert not quarantine.exists(), lakebed.open(quarantine).to_arrow().slice(0, 3).to_pylist()
    texts = {"tag", "doc", "mood"}
    parts = [
        f"{name}::text as {name}" if name in texts else f"{as_json(SCHEMA.field(name))} as {name}"
        for name in SCHEMA.names[:-1]
    ]
    lines = postgres.sql(
        f"select row_to_json(r)::text from (select {', '.join(parts)}, qty * 2::bigint as double from orders "
        "where region <> 'test') r",
        NAME,
    )
    expected, rows = Counter(comparable(rows_of(lines), SCHEMA)), Counter(comparable(table.to_arrow(), SCHEMA))
    assert sum(expected.values()) > 400
    missing, surplus = expected - rows, rows - expected
    assert not missing and not surplus, f"missing: {sorted(missing)[:2]}, surplus: {sorted(surplus)[:2]}"


def rows_of(lines: list[list[str]]) -> pa.Table:
    rows = [json.loads(line) for (line,) in lines]
    arrays = [pa.array([value_of(row[field.name], field.type) for row in rows], field.type) for field in SCHEMA]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)
