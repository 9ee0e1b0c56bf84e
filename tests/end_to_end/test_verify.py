"""``lakebed verify`` with a real PostgreSQL, Debezium and Kafka: equal while both go on, and what is planted is found."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

import lakebed
from lakebed.cli import main
from tests.end_to_end.every_type import DIALECTS, Reading
from tests.end_to_end.meanwhile import meanwhile
from tests.end_to_end.types_of_postgres import POSTGRES
from tests.infra.debezium import DebeziumServer
from tests.infra.kafka import KafkaServer
from tests.infra.postgres import PostgresServer
from tests.infra.server import HOST

NAME = "proven"
CONVERTERS = {
    f"{part}.converter{option}": value
    for part in ("key", "value")
    for option, value in (("", "org.apache.kafka.connect.json.JsonConverter"), (".schemas.enable", "true"))
}
NOT_SENT = ("pair", "name")
"""Columns that Debezium does not send, or not in changes."""
CASES = {case.type: case for case in reversed(POSTGRES) if case.type not in NOT_SENT}
EDGES = {
    "double precision": ("'-0'", "1e308", "4.9e-324", "0.1"),
    "real": ("'-0'", "1e-45", "16777217"),
    "bigint": ("9223372036854775807", "-9223372036854775808"),
    "numeric(12,2)": ("9999999999.99", "-0.01"),
    "text": ("'it''s, -'", "'-'", "'tab\tand ü'"),
    "timestamp": ("'0001-01-04'", "'9999-12-31 23:59:59.999999'", "'1969-12-31 23:59:59.999999'"),
    "timestamptz": ("'2024-03-31 01:59:59.999999+00'",),
    "interval": ("'1 year 2 mons -3 days 04:05:06.789'",),
    "jsonb": ('\'{"b": 1.0, "a": {}}\'',),
}
TABLES = """
create table plain (id bigint primary key, note text, other text, amount numeric(10, 2), at timestamptz);
insert into plain select n, 'note ' || n, 'other ' || n, n / 4.0, '2024-01-01'::timestamptz + n * interval '1 second'
    from generate_series(1, 2000) n;
create table lines (shop text, line int, what text, primary key (shop, line));
insert into lines select 'shop ' || n % 7, n, md5(n::text) from generate_series(1, 500) n;
create table people (name text collate "und-x-icu" primary key, city text);
insert into people select case when n % 2 = 0 then 'a' else 'B' end || n, 'city ' || n from generate_series(1, 300) n;
create table heap (what text);
insert into heap values ('no key');
"""
NAMES = tuple(f"public.{name}" for name in ("plain", "lines", "people", "heap", "types"))
FILE = """
database: {path: '%s', verify: {url: 'postgresql://postgres@%s:%d/%s', slot: %s, wait_seconds: 60, rows_per_second: 0}}
source: {kind: kafka, topic_pattern: '%s\\..*', config: {bootstrap.servers: '%s'}}
format: debezium-json
"""


def every_type() -> str:
    """A table with a column of each type, and rows that have each of its values and null."""
    columns = [(f"c{number}", case) for number, case in enumerate(CASES.values())]
    values = {name: [*case.values, *EDGES.get(case.type, ()), "null"] for name, case in columns}
    made = ", ".join(f"{name} {case.type}" for name, case in columns)
    rows = [
        f"({row}, {', '.join(found[row % len(found)] for found in values.values())})"
        for row in range(max(map(len, values.values())))
    ]
    return f"create table types (id int primary key, {made}); insert into types values {', '.join(rows)};"


class Followed:
    """The tables of a database, brought into the lake as ``lakebed run`` does, whenever ``catch_up`` is called."""

    def __init__(self, prefix: str, names: Sequence[str], kafka: KafkaServer, folder: Path) -> None:
        self._names = names
        self._reading = Reading(prefix, kafka, folder / "lake")

    def catch_up(self) -> None:
        for name in self._names:
            assert isinstance(self._reading.table(name), lakebed.Table)

    @contextmanager
    def while_busy(self, change: Callable[[int], object]) -> Iterator[None]:
        """While the block runs, the database changes, and the lake follows."""

        def step(number: int) -> None:
            change(number)
            self.catch_up()

        with meanwhile(step):
            yield
        self.catch_up()


@pytest.mark.long
def test_tables_are_proved_equal_and_planted_differences_are_found(
    kafka: KafkaServer,
    postgres: PostgresServer,
    debezium: DebeziumServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    postgres.create_database(NAME)
    postgres.sql(DIALECTS["postgres"].begin + TABLES + every_type(), NAME)
    slot = debezium.capture(NAME, NAMES, NAME, CONVERTERS)
    file = tmp_path / "shop.yml"
    file.write_text(FILE % (tmp_path / "lake", HOST, postgres.port, NAME, slot, NAME, kafka.bootstrap))
    followed = Followed(NAME, NAMES, kafka, tmp_path)

    def change(number: int) -> None:
        postgres.sql(
            f"update plain set note = 'changed {number}', amount = amount + 1 where id % 50 = {20 + number % 30}; "
            f"delete from plain where id = {1500 + number}; insert into plain values ({9000 + number}, 'new') "
            "on conflict do nothing; "
            f"update lines set what = '{number}' where line % 9 = {number % 9}; update people set city = '{number}' "
            f"where name like '%{number % 10}'",
            NAME,
        )

    try:
        followed.catch_up()
        for more, at in ((), "at "), (("--snapshot",), "as it was at "):
            with followed.while_busy(change):
                code = main(["verify", str(file), *more])
            said = capsys.readouterr()
            assert code == 0, said.out + said.err
            assert said.out.count(f": equal to the source {at}") == 4
            assert "public.heap: not compared: it has no keys" in said.out

        table = lakebed.open(tmp_path / "lake/public/plain")
        planted = plant(table, {"note": "'as it was before'"}, "source.lsn")
        with followed.while_busy(change):
            assert main(["verify", str(file), "--snapshot", "--format", "json"]) == 1
        found = {one["table"]: one for one in map(json.loads, capsys.readouterr().out.splitlines())}
        assert {one["key"]["id"]: (one["kind"], one["column"]) for one in found["public.plain"]["shown"]} == planted
        assert found["public.plain"]["differences"] == len(planted)
        assert sorted(one["outcome"] for one in found.values()) == ["differs", "equal", "equal", "equal", "left out"]
        assert len({one["first_position"] for one in found.values()} - {None}) == 1
        assert main(["verify", str(file), "public.plain", "public.lines", "public.types", "--format", "json"]) == 1
        found = {one["table"]: one for one in map(json.loads, capsys.readouterr().out.splitlines())}
        assert {one["key"]["id"]: (one["kind"], one["column"]) for one in found["public.plain"]["shown"]} == planted
        assert found["public.plain"]["differences"] == len(planted)
        assert (found["public.lines"]["outcome"], found["public.types"]["outcome"]) == ("equal", "equal")
        assert [one["looks_like"] for one in found["public.plain"]["shown"] if one["key"]["id"] == "5"] == [
            "+2 h: a time zone"
        ]

        assert main(["verify", str(file), "public.plane"]) == 2
        assert "did you mean 'public.plain'?" in capsys.readouterr().err
    finally:
        debezium.release(slot)


def plant(table: lakebed.Table, lost: Mapping[str, str], sequence: str) -> dict[str, tuple[str, str]]:
    """Change what the lake has, as faults of others would; returns the kind and the column by key.

    ``lost``: what becomes of a row whose update was lost; ``sequence``: the column that orders changes.
    """
    table.update({"at": '"at" + interval 2 hour'}, "id = 5")
    table.update({"amount": "amount + 0.01"}, "id = 6")
    table.update({"note": "note[:3]"}, "id = 7")
    table.update({"note": "other", "other": "note"}, "id = 8")
    table.delete("id = 9")
    table.update(lost, "id = 10")
    [row] = table.to_arrow(where="id = 11").to_pylist()
    table.apply([row | {"id": 77_777, sequence: 1 << 60}])
    return {
        "5": ("differs", "at"),
        "6": ("differs", "amount"),
        "7": ("differs", "note"),
        "8": ("differs", "note"),
        "9": ("missing", ""),
        "10": ("differs", next(iter(lost))),
        "77777": ("surplus", ""),
    }
