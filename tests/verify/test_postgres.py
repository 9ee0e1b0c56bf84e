"""What a database does that a comparison must not be misled by, with a real PostgreSQL; the tables are written by the tests."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import InvalidInput
from lakebed.verify.canonical import Shape
from lakebed.verify.databases import shape_of
from lakebed.verify.lake import LakeTable
from lakebed.verify.postgres import Database, PostgresTable
from lakebed.verify.proof import Found, Proof
from lakebed.verify.repair import _remove
from lakebed.verify.source import Pace
from tests.infra.postgres import PostgresServer
from tests.infra.server import HOST
from tests.internals import log_of

pytestmark = pytest.mark.usefixtures("own_cache")
NAME = "misleading"
ICU = "misleading_icu"
MOMENT = pa.timestamp("us", "UTC")
TABLES = """
create extension hstore;
create type mood as enum ('sad', 'happy');
create table moods (k mood, n int, v text, primary key (k, n));
insert into moods values ('sad', 1, 'a'), ('happy', 1, 'b'), ('sad', 2, 'c');
create table days (k date, n int, v text, primary key (k, n));
insert into days values ('infinity', 1, 'a'), ('9999-12-31', 2, 'b'), ('-infinity', 1, 'c'), ('1969-12-31', 1, 'd');
create table moments (k timestamptz primary key, v text);
insert into moments values ('infinity', 'a'), ('1969-12-31 23:59:59.999999+00', 'b'), ('1960-01-01 00:00:00.5+00', 'c');
create table pairs (k int primary key, v hstore, twice int generated always as (k * 2) stored);
insert into pairs values (1, 'b=>"x\\"y", a=>null'), (2, '');
create table arrays (k int primary key, v int[]);
insert into arrays values (1, '{1,null,3}'), (2, '{}'), (3, '{null}'), (4, null), (5, '{1,3}'), (6, '{{1,2},{3,4}}');
create table hidden (k int primary key, v text); insert into hidden values (1, 'a'), (2, 'b');
alter table hidden enable row level security; create policy half on hidden using (k = 1);
create schema other;
create function other.md5(text) returns text language sql as $$ select repeat('0', 32) $$;
create function other.octet_length(text) returns int language sql as $$ select 7 $$;
create role misled login; grant usage on schema other to misled; grant select on all tables in schema public to misled;
alter role misled set search_path = other, pg_catalog; alter role misled set datestyle = 'German';
alter role misled set intervalstyle = 'iso_8601'; alter role misled set extra_float_digits = 0;
alter role misled set bytea_output = 'escape'; alter role misled set timezone = 'Asia/Kolkata';
alter role misled set standard_conforming_strings = off; alter role misled set default_transaction_isolation = 'serializable';
"""
MOODS = [{"k": "sad", "n": 1, "v": "a"}, {"k": "happy", "n": 1, "v": "b"}, {"k": "sad", "n": 2, "v": "c"}]
DAYS = [
    {"k": date(9999, 12, 31), "n": 1, "v": "a"},
    {"k": date(9999, 12, 31), "n": 2, "v": "b"},
    {"k": date(1, 1, 3), "n": 1, "v": "c"},
    {"k": date(1969, 12, 31), "n": 1, "v": "d"},
]
MOMENTS = [
    {"k": datetime(9999, 12, 31, tzinfo=UTC), "v": "a"},
    {"k": datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), "v": "b"},
    {"k": datetime(1960, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC), "v": "c"},
]


@pytest.fixture(scope="module")
def server(postgres: PostgresServer) -> PostgresServer:
    postgres.create_database(NAME)
    postgres.sql(TABLES, NAME)
    return postgres


def url(server: PostgresServer, user: str = "postgres", database: str = NAME, more: str = "") -> str:
    return f"postgresql://{user}@{HOST}:{server.port}/{database}{more}"


def compared(address: str, name: str, table: lakebed.Table) -> Found:
    """The table of the lake, which is at rest, against one of the database."""
    snapshot = log_of(table).refresh()
    with closing(Database(address)) as database:
        shape = shape_of(database.columns("public", name), snapshot)
        assert isinstance(shape, Shape), shape
        source = PostgresTable(database, "public", name, shape)
        with closing(LakeTable(lakebed.table.internals_of(table), shape, lambda _: snapshot)) as lake:
            return Proof(shape, source, lake, Pace(float("inf")), bucket_rows=2).run()


def made(path: Path, rows: Sequence[dict[str, Any]], keys: dict[str, pa.DataType], value: pa.DataType) -> lakebed.Table:
    fields = [pa.field(name, kind, nullable=False) for name, kind in keys.items()]
    schema = pa.schema([*fields, ("v", value)])
    table = lakebed.create(path, schema, keys=list(keys))
    table.apply(pa.Table.from_pylist(list(rows), schema))
    return table


KEYS = {
    "moods": (MOODS, {"k": pa.string(), "n": pa.int32()}),
    "days": (DAYS, {"k": pa.date32(), "n": pa.int32()}),
    "moments": (MOMENTS, {"k": MOMENT}),
}


@pytest.mark.parametrize("name", KEYS)
def test_keys_are_found_again_one_by_one(server: PostgresServer, tmp_path: Path, name: str) -> None:
    rows, keys = KEYS[name]
    table = made(tmp_path / "t", rows, keys, pa.string())
    assert compared(url(server), name, table).differing_keys == 0
    table.apply([row | {"v": "changed"} for row in rows])
    found = compared(url(server), name, table)
    assert [(one.kind, one.column) for one in found.differences] == [("differs", "v")] * len(rows)


def test_a_table_may_have_as_many_columns_as_the_database_allows(server: PostgresServer, tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(1500)]
    server.sql(f"create table wide (k int primary key, {', '.join(f'{name} bool' for name in names)})", NAME)
    server.sql("insert into wide (k, c7) values (1, true)", NAME)
    schema = pa.schema([pa.field("k", pa.int32(), nullable=False), *((name, pa.bool_()) for name in names)])
    table = lakebed.create(tmp_path / "t", schema, keys=["k"])
    table.apply(pa.Table.from_pylist([{"k": 1, "c8": True}], schema))
    [found] = compared(url(server), "wide", table).differences
    assert (found.column, found.looks_like) == ("c7", "c7 and c8 are exchanged")


def test_settings_and_functions_of_a_role_change_nothing(server: PostgresServer, tmp_path: Path) -> None:
    table = made(tmp_path / "t", DAYS, KEYS["days"][1], pa.string())
    found, misled = (compared(url(server, user), "days", table) for user in ("postgres", "misled"))
    assert (misled.rows, misled.keys) == (found.rows, 0)


def test_pairs_are_read_whatever_the_search_path_is(server: PostgresServer, tmp_path: Path) -> None:
    rows = [{"k": 1, "v": '{"a": null, "b": "x\\"y"}'}, {"k": 2, "v": "{}"}]
    table = made(tmp_path / "t", rows, {"k": pa.int32()}, pa.string())
    assert compared(url(server, "misled"), "pairs", table).keys == 0


def test_elements_of_arrays_are_compared_one_by_one(server: PostgresServer, tmp_path: Path) -> None:
    values = ([1, None, 3], [], [None], None, [1, 3], [1, 2, 3, 4])
    rows = [{"k": number, "v": value} for number, value in enumerate(values, 1)]
    table = made(tmp_path / "t", rows, {"k": pa.int32()}, pa.list_(pa.int32()))
    assert compared(url(server), "arrays", table).keys == 0
    others = ([1, 3], [None], [], [], [1, None, 3], [1, 2, 3])
    table.apply([{"k": number, "v": value} for number, value in enumerate(others, 1)])
    assert compared(url(server), "arrays", table).differing_keys == len(others)


def test_numbers_need_no_zeros_at_their_end(server: PostgresServer, tmp_path: Path) -> None:
    values = {"0.000": "0", "1.50": "1.5", "-100": "-100", "10.0": "10.00", "NaN": "NaN"}
    pairs = ", ".join(f"({number}, '{value}')" for number, value in enumerate(values))
    server.sql(f"create table numbers (k int primary key, v numeric); insert into numbers values {pairs}", NAME)
    rows = [{"k": number, "v": value} for number, value in enumerate(values.values())]
    table = made(tmp_path / "t", rows, {"k": pa.int32()}, pa.string())
    assert compared(url(server), "numbers", table).keys == 0


def test_a_standby_is_refused(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Database(url(server))) as database:
        assert database.position() > 0
        monkeypatch.setattr(database, "all", lambda query: [(True,)])
        with pytest.raises(InvalidInput, match="the database is a standby"):
            database.position()


def test_a_key_with_a_character_that_the_database_can_not_have_is_found_and_removed(
    server: PostgresServer, tmp_path: Path
) -> None:
    server.sql("create table texts (k text primary key, v text); insert into texts values ('a', 'b')", NAME)
    schema = pa.schema([pa.field("k", pa.string(), nullable=False), ("v", pa.string())])
    table = lakebed.create(tmp_path / "t", schema, keys=["k"], sequence_by="source.lsn")
    table.apply([{"k": key, "v": "b", "source.lsn": 1} for key in ("a", "a\0")])
    internals, log = lakebed.table.internals_of(table), log_of(table)
    with closing(Database(url(server))) as database:
        shape = shape_of(database.columns("public", "texts"), log.refresh())
        assert isinstance(shape, Shape), shape
        source = PostgresTable(database, "public", "texts", shape)
        with closing(LakeTable(internals, shape, lambda _: log.refresh())) as lake:
            proof = Proof(shape, source, lake, Pace(float("inf")))
            assert [(one.kind, one.key) for one in proof.run().differences] == [("surplus", {"k": "a\0"})]
            _remove(internals, shape, {("a\0",): 1 << 62})
            assert proof.run().differing == {}
    assert table.to_arrow()["k"].to_pylist() == ["a"]


def test_rows_that_a_policy_hides_are_an_error(server: PostgresServer, tmp_path: Path) -> None:
    table = made(tmp_path / "t", [{"k": 1, "v": "a"}, {"k": 2, "v": "b"}], {"k": pa.int32()}, pa.string())
    with pytest.raises(InvalidInput, match="row-level security"):
        compared(url(server, "misled"), "hidden", table)
    assert compared(url(server), "hidden", table).differing_keys == 0


def test_a_database_that_orders_by_icu_does_not_order_by_bytes(server: PostgresServer) -> None:
    server.sql(
        f"create database {ICU} template template0 locale_provider icu icu_locale 'en' lc_collate 'C' lc_ctype 'C'"
    )
    server.sql('create table t (own text, bytes text collate "C", number int)', ICU)
    with closing(Database(url(server, database=ICU))) as database:
        ordered = {each.name: each.type.is_ordered_by_bytes for each in database.columns("public", "t")}
    assert ordered == {"own": False, "bytes": True, "number": True}
    with closing(Database(url(server))) as database:
        assert all(each.type.is_ordered_by_bytes for each in database.columns("public", "days"))


def test_settings_in_the_url_are_kept(server: PostgresServer) -> None:
    with closing(Database(url(server, more="?options=-c%20work_mem%3D1234kB"))) as database:
        assert database.all("show work_mem") == [("1234kB",)]


def test_a_wrong_address_is_wrong_for_good_and_shows_no_password(server: PostgresServer) -> None:
    with pytest.raises(InvalidInput, match=r'database.verify.url: .*database "nowhere" does not exist'):
        Database(url(server, database="nowhere"))
    with pytest.raises(InvalidInput, match=r"is no address of PostgreSQL") as refused:
        Database("postgresl://reader:secret@shop/shop")
    assert "secret" not in str(refused.value)
