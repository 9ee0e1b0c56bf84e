"""Rows of a real MariaDB that are hostile to a comparison; the tables of the lake are written by the tests."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import InvalidInput
from lakebed.verify.canonical import LeftOut, Shape
from lakebed.verify.databases import shape_of
from lakebed.verify.lake import LakeTable
from lakebed.verify.mariadb import Database, arguments_of
from lakebed.verify.proof import Found, Proof
from lakebed.verify.source import Pace
from lakebed.verify.types_of_mariadb import MariaDbType
from tests.infra.mariadb import MariaDbServer
from tests.infra.server import HOST
from tests.internals import log_of

pytestmark = pytest.mark.usefixtures("own_cache")
NAME = "misleading_rows"
MOMENT = pa.timestamp("us", "UTC")
LONG = 1_500_000


def moment(year: int, *rest: int) -> datetime:
    return datetime(year, *rest, tzinfo=UTC)


@dataclass(frozen=True)
class Case:
    """A type of MariaDB, the column that Debezium makes of it, and values: in SQL, in the table, and another one beside it."""

    kind: str
    lake: pa.DataType
    values: tuple[tuple[str, Any, Any], ...]


CASES = (
    Case("tinyint(1)", pa.int16(), (("1", 1, 0), ("-128", -128, 127))),
    Case("tinyint(1)", pa.bool_(), (("1", True, False), ("0", False, True), ("7", True, False))),
    Case("int(8) zerofill", pa.int64(), (("42", 42, 43), ("4294967295", 4294967295, -1))),
    Case("bigint", pa.int64(), (("-9223372036854775808", -(2**63), 2**63 - 1),)),
    Case("bigint unsigned", pa.int64(), (("9223372036854775807", 2**63 - 1, -(2**63)),)),
    Case("bigint unsigned", pa.decimal128(20, 0), (("18446744073709551615", Decimal(2**64 - 1), Decimal(-1)),)),
    Case("bigint unsigned", pa.string(), (("18446744073709551615", "18446744073709551615", "-1"),)),
    Case("decimal(12,2)", pa.decimal128(12, 2), (("-0.01", Decimal("-0.01"), Decimal("0.01")),)),
    Case("decimal(12,2)", pa.decimal128(14, 4), (("12.5", Decimal("12.5000"), Decimal("12.5001")),)),
    Case("decimal(65,30)", pa.string(), (("1.5", "1.500000000000000000000000000000", "1.4"), ("0", "0E-30", "1E-30"))),
    Case("decimal(12,2)", pa.float64(), (("0.1", 0.1, math.nextafter(0.1, 1)),)),
    Case(
        "double",
        pa.float64(),
        (("0.1", 0.1, math.nextafter(0.1, 1)), ("4.9e-324", 5e-324, 0.0), ("1e308", 1e308, -1e308)),
    ),
    Case("double(10,2)", pa.float64(), (("12.345", 12.35, 12.345),)),
    Case("float", pa.float32(), (("16777217", 16777216.0, 16777218.0), ("1e-45", 1e-45, 0.0))),
    Case("bit(1)", pa.bool_(), (("b'1'", True, False),)),
    Case("bit(12)", pa.binary(), (("b'100000000001'", b"\x01\x08", b"\x08\x01"), ("0", b"\0\0", b"\x01\0"))),
    Case("char(5)", pa.string(), (("'a b'", "a b", "a b  "), ("'ü'", "ü", "u"))),
    Case(
        "varchar(9) collate utf8mb4_general_ci", pa.string(), (("'a'", "a", "A"), ("'a '", "a ", "a"), ("''", "", None))
    ),
    Case("varchar(9) character set latin1", pa.string(), (("'é'", "é", "e"), ("_latin1 x'80'", "€", "?"))),
    Case("text", pa.string(), (("'tab\\tand \\\\ and \\'-\\''", "tab\tand \\ and '-'", "-"), ("'🂡'", "🂡", "?"))),
    Case("longtext", pa.string(), ((f"repeat('ü', {LONG})", "ü" * LONG, "ü" * (LONG - 1) + "u"),)),
    Case("binary(3)", pa.binary(), (("x'ff'", b"\xff\0\0", b"\xff"),)),
    Case("varbinary(9)", pa.binary(), (("x'00ff10'", b"\0\xff\x10", b"\0\xff"), ("''", b"", b"\0"))),
    Case("longblob", pa.binary(), ((f"repeat(x'00', {LONG})", b"\0" * LONG, b"\0" * (LONG + 1)),)),
    Case(
        "date",
        pa.date32(),
        (("'0101-01-05'", date(101, 1, 5), date(101, 1, 6)), ("'9999-12-31'", date.max, date(9999, 12, 30))),
    ),
    Case(
        "datetime(6)",
        MOMENT,
        (
            ("'1969-12-31 23:59:59.999999'", moment(1969, 12, 31, 23, 59, 59, 999_999), moment(1970, 1, 1)),
            ("'0999-01-01'", moment(999, 1, 1), moment(1999, 1, 1)),
        ),
    ),
    Case(
        "timestamp(3)",
        MOMENT,
        (("'2024-03-31 01:59:59.999'", moment(2024, 3, 31, 1, 59, 59, 999_000), moment(2024, 3, 31, 2)),),
    ),
    Case(
        "time(6)",
        pa.string(),
        (("'-838:59:59.5'", "-838:59:59.5", "838:59:59.5"), ("'00:00:10'", "00:00:10", "00:00:1")),
    ),
    Case("year", pa.int32(), (("1901", 1901, 2001), ("0", 0, 2000))),
    Case("enum('sad','it''s')", pa.string(), (("'it''s'", "it's", "sad"), ("2", "it's", "2"))),
    Case("set('a','b')", pa.string(), (("'b,a'", "a,b", "b,a"), ("''", "", None))),
    Case("json", pa.string(), (("'{\"b\" : 1.0}'", '{"b" : 1.0}', '{"b": 1.0}'),)),
    Case(
        "uuid", pa.string(), (("'123E4567-E89B-12D3-A456-426614174000'", "123e4567-e89b-12d3-a456-426614174000", None),)
    ),
    Case("inet6", pa.string(), (("'2001:DB8::1'", "2001:db8::1", "::1"),)),
)
KEYS: dict[str, tuple[str, pa.DataType, list[tuple[str, Any]]]] = {
    "unsigned": (
        "bigint unsigned",
        pa.decimal128(20, 0),
        [("18446744073709551615", Decimal(2**64 - 1)), ("0", Decimal(0))],
    ),
    "decimal": ("decimal(38,2)", pa.decimal128(38, 2), [("-0.5", Decimal("-0.50")), ("100", Decimal(100))]),
    "any_case": ("varchar(9) collate utf8mb4_general_ci", pa.string(), [("'B'", "B"), ("'a'", "a"), ("'Ä b'", "Ä b")]),
    "bytes": (
        "varchar(9) collate utf8mb4_nopad_bin",
        pa.string(),
        [("'a'", "a"), ("'a\\t'", "a\t"), ("'a '", "a "), ("'B'", "B")],
    ),
    "latin": (
        "varchar(9) character set latin1",
        pa.string(),
        [("'é'", "é"), ("'z'", "z"), ("'it\\'s \\\\ %'", "it's \\ %")],
    ),
    "char": ("char(4)", pa.string(), [("'a'", "a"), ("'b'", "b")]),
    "binary": ("binary(2)", pa.binary(), [("x'ff00'", b"\xff\0"), ("x'00'", b"\0\0")]),
    "day": ("date", pa.date32(), [("'1969-12-31'", date(1969, 12, 31)), ("'9999-12-31'", date.max)]),
    "datetime": (
        "datetime(6)",
        MOMENT,
        [("'1960-01-01 00:00:00.5'", moment(1960, 1, 1, 0, 0, 0, 500_000)), ("'2024-02-29'", moment(2024, 2, 29))],
    ),
    "timestamp": ("timestamp(6)", MOMENT, [("'2024-03-31 01:30:00.000001'", moment(2024, 3, 31, 1, 30, 0, 1))]),
    "year": ("year", pa.int32(), [("1901", 1901), ("2024", 2024)]),
    "enum": (
        "enum('z', 'it''s \\\\ {}', 'A', 'a', 'B') collate utf8mb4_bin",
        pa.string(),
        [("'z'", "z"), ("2", "it's \\ {}"), ("'a'", "a"), ("'A'", "A"), ("'B'", "B")],
    ),
    "set": ("set('b', 'a', 'it''s')", pa.string(), [("'a,b'", "b,a"), ("''", ""), ("'it''s'", "it's"), ("'b'", "b")]),
    "uuid": (
        "uuid",
        pa.string(),
        [(f"'{one}'", one) for one in ("123e4567-e89b-12d3-a456-426614174000", "00000000-0000-4000-8000-0000000000ff")],
    ),
    "inet6": ("inet6", pa.string(), [("'2001:db8::1'", "2001:db8::1"), ("'::1'", "::1")]),
}


@pytest.fixture(scope="module")
def server(mariadb: MariaDbServer) -> Iterator[MariaDbServer]:
    mariadb.sql(f"create database {NAME} character set utf8mb4")
    mariadb.sql(edges(), NAME)
    yield mariadb
    mariadb.sql(f"drop database {NAME}")  # a connector of another test, with other settings, could not parse its table


def edges() -> str:
    """A table with a column for each case, and a row for each value."""
    columns = ", ".join(f"c{number} {case.kind}" for number, case in enumerate(CASES))
    rows = [
        f"insert into edges (id, c{number}) values ({id}, {value});" for id, number, (value, *_) in numbered() if value
    ]
    return f"set sql_mode = ''; create table edges (id int primary key, {columns}); {' '.join(rows)}"


def numbered() -> Iterator[tuple[int, int, tuple[str, Any, Any]]]:
    id = 0
    for number, case in enumerate(CASES):
        for value in case.values:
            id += 1
            yield id, number, value


def url(server: MariaDbServer, user: str = "root", more: str = "") -> str:
    return f"mariadb://{user}@{HOST}:{server.port}/{NAME}{more}"


def compared(address: str, name: str, table: lakebed.Table, rows: int = 2) -> Found:
    """The table of the lake, which is at rest, against one of the database."""
    snapshot = log_of(table).refresh()
    with closing(Database(address)) as database:
        shape = shape_of(database.columns(NAME, name), snapshot)
        assert isinstance(shape, Shape), shape
        source = database.table(NAME, name, shape)
        with closing(LakeTable(lakebed.table.internals_of(table), shape, lambda _: snapshot)) as lake:
            return Proof(shape, source, lake, Pace(float("inf")), bucket_rows=rows).run()


def made(
    path: Path, rows: Sequence[dict[str, Any]], keys: dict[str, pa.DataType], **columns: pa.DataType
) -> lakebed.Table:
    fields = [pa.field(name, kind, nullable=False) for name, kind in keys.items()]
    schema = pa.schema([*fields, *columns.items()])
    table = lakebed.create(path, schema, keys=list(keys))
    table.apply(pa.Table.from_pylist(list(rows), schema))
    return table


def of_cases(path: Path, which: int) -> lakebed.Table:
    columns = {f"c{number}": case.lake for number, case in enumerate(CASES)}
    rows = [{"id": id, f"c{number}": value[which]} for id, number, value in numbered()]
    return made(path, rows, {"id": pa.int32()}, **columns)


def test_values_at_the_edges_of_each_type_are_equal(server: MariaDbServer, tmp_path: Path) -> None:
    found = compared(url(server), "edges", of_cases(tmp_path / "t", 1))
    assert [(one.key["id"], one.column, one.source, one.lake) for one in found.differences] == []
    assert found.rows.rows == len(list(numbered()))
    in_other_texts = {id for id, _, (value, there, _) in numbered() if value == "0" and there == "0E-30"}
    assert found.keys == len(in_other_texts), "no other row had to be looked at by itself"


def test_another_value_beside_each_of_them_is_found(server: MariaDbServer, tmp_path: Path) -> None:
    found = compared(url(server), "edges", of_cases(tmp_path / "t", 2))
    expected = {(str(id), f"c{number}") for id, number, _ in numbered()}
    assert {(one.key["id"], one.column) for one in found.differences} == expected


@pytest.mark.few(4)
@pytest.mark.parametrize("name", KEYS)
def test_keys_are_found_again_one_by_one(server: MariaDbServer, tmp_path: Path, name: str) -> None:
    kind, lake, keys = KEYS[name]
    server.sql(f"create table if not exists key_{name} (k {kind}, n int, v text, primary key (k, n))", NAME)
    places = [(n, sql, value) for n in range(3) for sql, value in keys]
    server.sql(f"replace into key_{name} values {', '.join(f'({sql}, {n}, {n})' for n, sql, _ in places)}", NAME)
    rows = [{"k": value, "n": n, "v": str(n)} for n, _, value in places]
    table = made(tmp_path / "t", rows, {"k": lake, "n": pa.int32()}, v=pa.string())
    found = compared(url(server), f"key_{name}", table)
    assert (found.keys, found.rows.rows) == (0, len(rows))
    table.apply([row | {"v": "changed"} for row in rows])
    found = compared(url(server), f"key_{name}", table)
    assert [(one.kind, one.column) for one in found.differences] == [("differs", "v")] * len(rows)
    table.delete("n >= 0")
    assert {one.kind for one in compared(url(server), f"key_{name}", table).differences} == {"missing"}


def test_keys_that_the_database_takes_for_one_are_two_in_the_table(server: MariaDbServer, tmp_path: Path) -> None:
    server.sql("create table cased (k varchar(9) collate utf8mb4_general_ci primary key, v int)", NAME)
    server.sql("insert into cased values ('A', 1), ('b', 2)", NAME)
    rows = [{"k": "a", "v": 1}, {"k": "A", "v": 1}, {"k": "b ", "v": 2}]
    found = compared(url(server), "cased", made(tmp_path / "t", rows, {"k": pa.string()}, v=pa.int32()))
    assert {(one.key["k"], one.kind) for one in found.differences} == {
        ("a", "surplus"),
        ("b", "missing"),
        ("b ", "surplus"),
    }


def test_days_that_no_calendar_has_are_said(server: MariaDbServer, tmp_path: Path) -> None:
    server.sql(
        "set sql_mode = ''; create table no_days (k date, n int, at datetime, primary key (k, n)); insert into no_days values "
        "('0000-00-00', 1, '2024-01-01'), ('2024-02-00', 2, null), ('1960-01-01', 3, '0000-00-00'), ('1961-01-01', 4, null)",
        NAME,
    )
    rows = [
        {"k": date(1960, 1, 1), "n": 3},
        {"k": date(1961, 1, 1), "n": 4},
        {"k": date(1970, 1, 1), "n": 1, "at": moment(2024, 1, 1)},
    ]
    table = made(tmp_path / "t", rows, {"k": pa.date32(), "n": pa.int32()}, at=MOMENT)
    found = {
        (one.key["k"], one.key["n"]): (one.kind, one.looks_like)
        for one in compared(url(server), "no_days", table).differences
    }
    assert found == {
        ("0000-00-00", "1"): ("missing", ""),
        ("2024-02-00", "2"): ("missing", ""),
        ("1960-01-01", "3"): ("differs", "Debezium sends null for a day that no calendar has"),
        ("1970-01-01", "1"): ("surplus", ""),
    }


def test_numbers_have_the_texts_of_mariadb(server: MariaDbServer, tmp_path: Path) -> None:
    chance = random.Random(1)
    doubles = [
        value
        for value in (struct.unpack("<d", chance.randbytes(8))[0] for _ in range(3000))
        if math.isfinite(value)  # nor -0.0: MariaDB stores none of them
    ]
    doubles += [
        *(
            float(f"{chance.choice('-+')}{chance.randint(1, 10 ** chance.randint(1, 17))}e{power}")
            for power in range(-40, 40)
        )
    ]
    doubles += [2.0**power for power in range(-1074, 1024, 7)]
    floats = [struct.unpack("<f", chance.randbytes(4))[0] for _ in range(1500)]
    floats = [value for value in floats if math.isfinite(value)]
    rows = [{"id": id, "d": value} for id, value in enumerate(doubles)]
    rows += [{"id": 100_000 + id, "f": value} for id, value in enumerate(floats)]
    server.sql("create table numbers (id int primary key, d double, f float)", NAME)
    some = [
        f"({row['id']}, {row.get('d', 'null')!r}, {row.get('f', 'null')!r})".replace("'null'", "null") for row in rows
    ]
    server.sql(f"insert into numbers values {', '.join(some)}", NAME)
    table = made(tmp_path / "t", rows, {"id": pa.int32()}, d=pa.float64(), f=pa.float32())
    found = compared(url(server), "numbers", table, rows=10_000)
    shown = [(one.column, one.source, one.lake) for one in found.differences]
    assert (found.keys, shown) == (0, [])


def test_only_collations_that_skip_nothing_order_by_bytes(server: MariaDbServer) -> None:
    server.sql(
        "create table orders_of_texts (a varchar(9) collate utf8mb4_bin, b varchar(9) collate utf8mb4_nopad_bin, "
        "c varchar(9) collate utf8mb4_general_nopad_ci, d varbinary(9), e int, "
        "f varchar(9) character set latin1 collate latin1_nopad_bin)",
        NAME,
    )
    with closing(Database(url(server))) as database:
        types = {one.name: one.type for one in database.columns(NAME, "orders_of_texts")}
    ordered = {name: isinstance(one, MariaDbType) and one.is_ordered_by_bytes for name, one in types.items()}
    assert ordered == {"a": False, "b": True, "c": False, "d": True, "e": True, "f": False}


def test_no_statement_reads_more_rows_than_it_needs(server: MariaDbServer, tmp_path: Path) -> None:
    server.sql("create table wide_keys (a int, b varchar(9), c date, v int, primary key (a, b, c))", NAME)
    server.sql(
        "insert into wide_keys select seq % 20, seq % 100, '2024-01-01' + interval seq day, seq from seq_1_to_20000",
        NAME,
    )
    keys = {"a": pa.int32(), "b": pa.string(), "c": pa.date32()}
    snapshot = log_of(made(tmp_path / "t", [], keys, v=pa.int32())).refresh()
    with closing(Database(url(server))) as database:
        shape = shape_of(database.columns(NAME, "wide_keys"), snapshot)
        assert isinstance(shape, Shape)
        source = database.table(NAME, "wide_keys", shape)
        after = source.bound(None, 12_345)
        assert after is not None

        def rows_read() -> int:
            found = database.all("show session status like 'Handler_read%'")
            return sum(
                int(value)
                for name, value in found
                if name in ("Handler_read_next", "Handler_read_rnd_next", "Handler_read_key")
            )

        before = rows_read()
        upto = source.bound(after, 100)
        found = source.tally(lakebed.verify.comparing.Span(after=after, upto=upto))
        states = source.states([key for key in (after, upto) if key is not None])
        assert (found.rows, len(states)) == (100, 2)
        assert rows_read() - before < 400


def test_settings_of_the_server_change_nothing(server: MariaDbServer, tmp_path: Path) -> None:
    table = of_cases(tmp_path / "t", 1)
    found = compared(url(server), "edges", table)
    hostile = {
        "sql_mode": "'ANSI_QUOTES,PAD_CHAR_TO_FULL_LENGTH,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,NO_ZERO_DATE,STRICT_ALL_TABLES'",
        "time_zone": "'+05:30'",
        "collation_connection": "utf8mb4_general_ci",
        "max_statement_time": "0.000001",
        "tx_isolation": "'READ-UNCOMMITTED'",
        "div_precision_increment": "0",
    }
    server.sql("; ".join(f"set global {name} = {value}" for name, value in hostile.items()))
    try:
        assert compared(url(server), "edges", table).rows == found.rows
    finally:
        server.sql("; ".join(f"set max_statement_time = 0; set global {name} = default" for name in hostile))


def test_nothing_can_be_written(server: MariaDbServer) -> None:
    with closing(Database(url(server))) as database, pytest.raises(InvalidInput, match="READ ONLY"):
        database.all(f"delete from {NAME}.edges")


def test_a_row_that_is_too_long_is_an_error(server: MariaDbServer, tmp_path: Path) -> None:
    server.sql("create table long_rows (id int primary key, a longtext, b longtext)", NAME)
    server.sql("insert into long_rows values (1, repeat('a', 900000), repeat('b', 900000)), (2, null, null)", NAME)
    table = made(tmp_path / "t", [{"id": 2}], {"id": pa.int32()}, a=pa.string(), b=pa.string())
    server.sql("set global max_allowed_packet = 1048576")
    try:
        with pytest.raises(InvalidInput, match="longer than the database's max_allowed_packet"):
            compared(url(server), "long_rows", table)
    finally:
        server.sql("set global max_allowed_packet = default")
    assert {one.key["id"] for one in compared(url(server), "long_rows", table).differences} == {"1"}


def test_a_user_may_lack_the_privilege_to_see_the_log(server: MariaDbServer) -> None:
    server.sql(f"create user unseeing@'{HOST}'; grant select on {NAME}.* to unseeing@'{HOST}'")
    with closing(Database(url(server, "unseeing"))) as database:
        with pytest.raises(InvalidInput, match="verify needs the privilege binlog monitor"):
            database.position()
        with pytest.raises(InvalidInput, match="no table nowhere"):
            database.columns("nowhere", "t")


def test_a_wrong_address_is_wrong_for_good_and_shows_no_password(server: MariaDbServer) -> None:
    with pytest.raises(InvalidInput, match="refuses the user or the address"):
        Database(f"mariadb://nobody:secret@{HOST}:{server.port}/")
    for address in ("mariadb://shop", "mariadb://reader:secret@shop:port/", "postgres://reader:secret@shop/"):
        with pytest.raises(InvalidInput, match="is no address of MariaDB") as refused:
            arguments_of(address)
        assert "secret" not in str(refused.value)
    with pytest.raises(InvalidInput, match="has the option ssl; it may have ssl_ca"):
        arguments_of("mariadb://reader:secret@shop/?ssl=1")
    found = arguments_of("mysql://re%40der:a%2Fb@shop/x?ssl_ca=/etc/ca.pem&ssl_verify_identity=true")
    assert (found["user"], found["password"], found["port"], found["ssl_verify_identity"]) == (
        "re@der",
        "a/b",
        3306,
        True,
    )


def test_a_type_without_a_rule_is_left_out() -> None:
    found = MariaDbType(name="point").rule(pa.struct([("x", pa.float64())]))
    assert isinstance(found, LeftOut) and "no rule compares point" in found.reason
    found = MariaDbType(name="blob").rule(pa.string())
    assert isinstance(found, LeftOut)


def test_the_log_tells_whether_rows_changed_between_two_positions(server: MariaDbServer) -> None:
    server.sql("create table logged (id int primary key)", NAME)
    with closing(Database(url(server))) as database:
        begin = database.position()
        server.sql("create table beside (id int); analyze table beside", NAME)
        after_ddl = database.position()
        assert begin < after_ddl
        assert not database.has_rows_between(begin, after_ddl)
        for statement in ("insert into logged values (1)", "truncate table logged"):
            before = database.position()
            server.sql(statement, NAME)
            assert database.has_rows_between(before, database.position()), statement
            assert database.has_rows_between(begin, database.position()), statement
        server.sql("flush binary logs")
        after = database.position()
        assert (database.file_of(after)[0] > database.file_of(begin)[0], database.log_files) == (True, "binlog")
        assert database.has_rows_between(after_ddl, after), "events of two files are not looked at"
        assert database.transactions_before(after) and not database.transactions_before(begin)


def test_the_condition_of_some_keys_needs_no_settings(server: MariaDbServer, tmp_path: Path) -> None:
    server.sql(
        "create table chosen (k varchar(20), at timestamp(6) default '2024-01-01', v int, primary key (k, at))", NAME
    )
    server.sql(
        "insert into chosen values ('it\\'s \\\\ %', '2024-03-31 01:30:00.5', 1), ('é', '2024-01-01', 2), ('x', '2024-01-01', 3)",
        NAME,
    )
    table = made(tmp_path / "t", [], {"k": pa.string(), "at": MOMENT}, v=pa.int32())
    with closing(Database(url(server))) as database:
        shape = shape_of(database.columns(NAME, "chosen"), log_of(table).refresh())
        assert isinstance(shape, Shape)
        source = database.table(NAME, "chosen", shape)
        keys = [key for key in (("it's \\ %", "1711848600500000"), ("é", "1704067200000000"))]
        assert set(source.states(keys)) == set(keys)
        modes = "ANSI_QUOTES,NO_BACKSLASH_ESCAPES"
        found = server.sql(
            f"set time_zone = '+05:30', sql_mode = '{modes}'; select v from chosen where {source.condition(keys)}", NAME
        )
        assert sorted(found) == [["1"], ["2"]]
