"""Dates and timestamps of a bootstrap by JDBC are those of the database, in every year and in every time zone of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.far_times import INFINITY_DAY, INFINITY_MICROS, MINUS_INFINITY_DAY, MINUS_INFINITY_MICROS
from tests.infra.downloads import debezium_jars, debezium_mariadb_jars
from tests.infra.mariadb import MariaDbServer
from tests.infra.postgres import PostgresServer
from tests.infra.server import HOST

pytestmark = pytest.mark.slow
NAME, DAY, STAMP, LOCAL = "times", pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us")
COLUMNS = [("id", pa.int64()), ("day", DAY), ("seen", STAMP), ("local", LOCAL), ("utc", STAMP)]
PIPELINE = """
table: {{path: {path}, keys: [id], sequence_by: source.lsn}}
source: {{kind: kafka, topics: [t], config: {{bootstrap.servers: "localhost:1"}}}}
format: debezium-json
bootstrap: {{kind: jdbc, url: "{url}", {place}, options: {{user: {user}, password: "{password}"}}, position: {{t: {{"0": 0}}}}}}
"""
FILL = """
import sys
import lakebed
from lakebed.pipeline.settings import parse_any
from lakebed.pipeline.transforming import shape_of
from lakebed.pipeline.sources import bootstrap_rows
from lakebed.table import internals_of

text, jars = sys.argv[1:]
pipeline = parse_any(text, "p.yml", {})
table = lakebed.open(pipeline.table.path)
spark = lakebed.spark("times", "local[1]", conf={"spark.jars": jars, "spark.ui.enabled": "false"})
rows = lambda: bootstrap_rows(pipeline, shape_of(table), spark)
internals_of(table).bootstrap(rows, pipeline.bootstrap.offsets)
"""
MOMENTS = [
    "0044-03-15 12:00:00.123456 BC", "4714-11-24 00:00:00 BC", "0001-12-31 23:59:59.999999 BC", "0001-01-01 00:00:00",
    "1500-02-28 01:02:03", "1582-10-10 01:02:03.5", "1883-11-18 12:01:00", "1899-12-31 23:59:59", "1969-12-31 23:59:59.000001",
    "2024-03-10 02:30:00", "2024-11-03 01:30:00", "9999-12-31 23:59:59.999999", "20222-03-15 12:00:00.123456",
    "294247-01-09 23:59:59.999999",
]  # fmt: skip
ARRAYS = [("days", pa.list_(DAY)), ("locals", pa.list_(LOCAL)), ("seens", pa.list_(STAMP))]
UTC = '"UTC"'
"""Of PostgreSQL; the table of lakebed calls the column so in lower case."""
MICROS = "(extract(epoch from {0}) * 1000000)::bigint"


ZONE = "America/New_York"
"""Of the pipelines' process. It has a summer time, and had a time of its own before 1883."""


def filled(path: Path, columns: list[tuple[str, pa.DataType]], jars: Path, **section: str) -> lakebed.Table:
    schema = pa.schema([pa.field(name, kind, name != "id") for name, kind in columns])
    table = lakebed.create(path, schema, keys=["id"], sequence_by="source.lsn")
    text = PIPELINE.format(path=path, **section)
    [jar] = [*jars.glob("postgresql-*.jar"), *jars.glob("mariadb-java-client-*.jar")]
    done = subprocess.run(
        [sys.executable, "-c", FILL, text, str(jar)], env={**os.environ, "TZ": ZONE}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return table


def numbers(table: lakebed.Table) -> dict[int, list[object]]:
    plain = {name: pa.int32() if kind == DAY else pa.int64() for name, kind in [*COLUMNS]}
    kinds = [
        (f.name, plain.get(f.name, pa.list_(pa.int32() if f.type == ARRAYS[0][1] else pa.int64())))
        for f in table.schema
    ]
    rows = table.to_arrow().cast(pa.schema(kinds)).to_pylist()
    return {row.pop("id"): list(row.values()) for row in rows}


@pytest.mark.long
def test_postgresqls_times_are_exact(postgres: PostgresServer, tmp_path: Path) -> None:
    postgres.create_database(name := "times_n")
    values = ", ".join(
        f"({number}, '{moment}'::timestamp::date, '{moment}'::timestamp at time zone 'UTC', '{moment}', '{moment}', "
        f"array['{moment}'::date, null, 'infinity'], array['{moment}'::timestamp, '-infinity'], array[]::timestamptz[])"
        for number, moment in enumerate(MOMENTS)
    )
    ends = ["infinity", "-infinity"]
    infinities = ", ".join(
        f"({90 + at}, '{end}', '{end}', '{end}', '{end}', null, null, null)" for at, end in enumerate(ends)
    )
    postgres.sql(
        f"create table times (id bigint primary key, day date, seen timestamptz, local timestamp, {UTC} timestamp, days date[], "
        f"locals timestamp[], seens timestamptz[]); insert into times values {values}, {infinities}, (99{', null' * 7}), "
        "(100, null, null, '294276-12-31 23:59:59', null, null, null, null)",
        name,
    )
    columns = f"id, day - date '1970-01-01', {', '.join(MICROS.format(one) for one in ('seen', 'local', UTC))}"
    expected = {
        int(id): [*map(int, more)] for id, *more in postgres.sql(f"select {columns} from times where id < 90", name)
    }
    url = f"jdbc:postgresql://{HOST}:{postgres.port}/{name}"
    rows = numbers(
        filled(
            tmp_path / "t",
            [*COLUMNS, *ARRAYS],
            debezium_jars(),
            url=url,
            place="table: public.times",
            user="postgres",
            password="any",
        )
    )
    assert {id: row[:4] for id, row in rows.items() if id < 90} == expected
    assert {id: row[4:] for id, row in rows.items() if id < 90} == {
        id: [[day, None, INFINITY_DAY], [local, MINUS_INFINITY_MICROS], []]
        for id, (day, _, local, _) in expected.items()
    }
    assert rows[90][:4] == [INFINITY_DAY, *[INFINITY_MICROS] * 3]
    assert rows[91][:4] == [MINUS_INFINITY_DAY, *[MINUS_INFINITY_MICROS] * 3]
    assert (rows[99], rows[100][2]) == ([None] * 7, INFINITY_MICROS)


@pytest.mark.long
def test_mariadbs_times_are_exact(mariadb: MariaDbServer, tmp_path: Path) -> None:
    name = NAME
    moments = [
        "0001-01-01",
        "1500-02-28 01:02:03.123456",
        "1582-10-10 01:02:03",
        "1883-11-18 12:01:00",
        "2024-03-10 02:30:00",
        "9999-12-31 23:59:59.999999",
    ]
    stamps = ["1970-01-02", "2024-03-10 02:30:00.5", "2024-11-03 01:30:00", "2038-01-19 03:14:07"]
    values = ", ".join(f"({number}, '{one}', null, '{one}', '{one}')" for number, one in enumerate(moments))
    seen = ", ".join(f"({50 + number}, null, '{one}', null, null)" for number, one in enumerate(stamps))
    mariadb.sql(
        f"create database {name}; use {name}; set time_zone = '+00:00'; create table times (id bigint primary key, day date, "
        "seen timestamp(6) null, local datetime(6), utc datetime(6)); "
        f"insert into times values {values}; insert into times values {seen}"
    )
    micros = ", ".join(f"timestampdiff(microsecond, '1970-01-01', {one})" for one in ("seen", "local", "utc"))
    found = mariadb.sql(f"set time_zone = '+00:00'; select id, datediff(day, '1970-01-01'), {micros} from times", name)
    expected = {int(id): [None if one == "NULL" else int(one) for one in more] for id, *more in found}
    url = f"jdbc:mariadb://{HOST}:{mariadb.port}/{name}"
    table = filled(
        tmp_path / "t",
        COLUMNS,
        debezium_mariadb_jars(),
        url=url,
        place='query: "select * from times where true"',
        user="root",
        password="",
    )
    assert numbers(table) == expected
