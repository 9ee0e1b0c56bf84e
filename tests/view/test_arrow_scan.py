"""Arrow reads: the live rows and nothing else, with the predicate where it belongs."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from pyroaring import BitMap64

from lakebed.errors import Corrupt, InvalidInput
from lakebed.sql import expression
from lakebed.storage.engine import connect
from lakebed.view.arrow_scan import ScanFile, register_view, to_arrow
from tests.view.conftest import SCHEMA, Parts, random_rows, same_rows


@pytest.fixture
def connection() -> duckdb.DuckDBPyConnection:
    return connect(threads=2)


@pytest.mark.slow
def test_dead_rows_are_not_read_and_all_others_are(parts: Parts, connection: duckdb.DuckDBPyConnection) -> None:
    rng = random.Random(1)
    for at, dead in enumerate([[], [0], [2999], range(3000), range(1000, 1100), rng.sample(range(3000), 900)]):
        parts.add(random_rows(3000, at, at * 3000), list(dead))
    found = to_arrow(connection, parts, parts.files, SCHEMA)
    assert found.schema == SCHEMA
    assert same_rows(found.to_pylist(), parts.rows)


@pytest.mark.parametrize(
    "where", ["id % 7 = 3", "name like 'z%' and flag", "place.x = 3 or name is null", "id between 500 and 700 -- few"]
)
def test_a_predicate_selects_among_the_live_rows(
    parts: Parts, connection: duckdb.DuckDBPyConnection, where: str
) -> None:
    parts.add(random_rows(3000, 1), list(range(0, 3000, 3)))
    parts.add(random_rows(1000, 2, 3000))
    expected = duckdb.from_arrow(pa.Table.from_pylist(parts.rows, SCHEMA)).filter(f"({where}\n)").project("id")
    found = to_arrow(connection, parts, parts.files, SCHEMA, columns=["id"], where=expression(where, "where"))
    assert sorted(found["id"].to_pylist()) == sorted(id for (id,) in expected.fetchall())


def test_columns_come_in_the_order_asked_for(parts: Parts, connection: duckdb.DuckDBPyConnection) -> None:
    parts.add(random_rows(10, 1), [1])
    assert to_arrow(connection, parts, parts.files, SCHEMA, columns=["name", "id"]).column_names == ["name", "id"]


def test_a_table_without_parts_is_empty(parts: Parts, connection: duckdb.DuckDBPyConnection) -> None:
    found = to_arrow(connection, parts, [], SCHEMA, where=expression("id > 3", "where"))
    assert found.num_rows == 0
    assert found.schema == SCHEMA


def test_completed_rows_are_part_of_the_table(parts: Parts, connection: duckdb.DuckDBPyConnection) -> None:
    parts.add(random_rows(10, 1), [0])
    completed = pa.Table.from_pylist(random_rows(5, 2, 100), SCHEMA)
    found = to_arrow(
        connection, parts, parts.files, SCHEMA, columns=["id"], where=expression("id > 7", "where"), completed=completed
    )
    assert sorted(found["id"].to_pylist()) == [8, 9, 100, 101, 102, 103, 104]


def test_a_column_that_a_file_lacks_is_null(tmp_path: Path, connection: duckdb.DuckDBPyConnection) -> None:
    old = Parts(tmp_path, pa.schema([("a", pa.int64())]))
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    (tmp_path / "_lakebed").mkdir()
    duckdb.sql(f"copy (select 1 a) to '{tmp_path}/_lakebed/old.parquet'")
    duckdb.sql(f"copy (select 'x' b, 2 a, 'u' _lakebed_op) to '{tmp_path}/_lakebed/new.parquet'")
    files = [
        ScanFile(path="_lakebed/old.parquet", bytes=1, rows=1),
        ScanFile(path="_lakebed/new.parquet", bytes=1, rows=1),
    ]
    found = to_arrow(connection, old, files, schema)
    assert found.sort_by("a").to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]


def test_columns_named_like_duckdbs_own_do_no_harm(tmp_path: Path, connection: duckdb.DuckDBPyConnection) -> None:
    names = ["file_row_number", "file_index", "filename"]
    schema = pa.schema([(name, pa.int64()) for name in names])
    duckdb.sql(
        f"copy (select r file_row_number, 5 file_index, 6 filename from range(9, 4, -1) t(r)) to '{tmp_path}/f.parquet'"
    )
    files = [ScanFile(path="f.parquet", bytes=1, rows=5, partition_values={}, dead=BitMap64([0, 4]))]
    found = to_arrow(connection, Parts(tmp_path), files, schema)
    assert sorted(found["file_row_number"].to_pylist()) == [6, 7, 8]


def test_partition_values_come_from_the_log(tmp_path: Path, connection: duckdb.DuckDBPyConnection) -> None:
    schema = pa.schema([("day", pa.date32()), ("a", pa.int64()), ("kind", pa.string())])
    duckdb.sql(f"copy (select r a from range(3) t(r)) to '{tmp_path}/plain.parquet'")
    duckdb.sql(f"copy (select r a, 'wrong' kind from range(3) t(r)) to '{tmp_path}/x[1]*.parquet'")
    files = [
        ScanFile(path="plain.parquet", bytes=1, rows=3, partition_values={"day": "2024-02-29", "kind": "k"}),
        ScanFile(path="x[1]*.parquet", bytes=1, rows=3, partition_values={"day": None, "kind": ""}, dead=BitMap64([1])),
    ]
    found = to_arrow(connection, Parts(tmp_path), files, schema, where=expression("kind is null", "where"))
    assert found.sort_by("a").to_pylist() == [{"day": None, "a": 0, "kind": None}, {"day": None, "a": 2, "kind": None}]
    by_day = to_arrow(
        connection, Parts(tmp_path), files, schema, columns=["a"], where=expression("day = date '2024-02-29'", "where")
    )
    assert sorted(by_day["a"].to_pylist()) == [0, 1, 2]


def test_any_sql_runs_on_a_registered_view(parts: Parts, connection: duckdb.DuckDBPyConnection) -> None:
    parts.add(random_rows(2000, 1), list(range(500)))
    parts.add(random_rows(2000, 2, 2000))
    register_view(connection, "my orders", parts, parts.files, SCHEMA)
    assert connection.sql('select count(*), min(id) from "my orders"').fetchall() == [(3500, 500)]
    plan = connection.sql('explain select name from "my orders" where id = 5').fetchall()[0][1]
    assert "Filters" in plan
    register_view(connection, "my orders", parts, parts.files[1:], SCHEMA)
    assert connection.sql('select count(*) from "my orders"').fetchall() == [(2000,)]


QUERIES = (
    "select count(*) from (select * from live limit 7)",
    "select * from live order by id limit 5",
    "select * from live order by id limit 5 offset 900",
    "select count(*), sum(id), min(name), count(distinct flag) from live",
    "select flag, count(*) as rows, max(id) as last from live group by flag order by flag",
    "select id from live where id in (select id + 1 from live) order by id",
    "select a.id from live a join live b on b.id = a.id + 2 order by a.id",
    "select id, row_number() over (partition by flag order by id) as number from live order by id",
    "select id from live union all select -id from live order by 1",
    "select id from live l where exists (select 1 from live m where m.id = l.id * 2) order by id",
    "from live where id between 500 and 510 order by id",
    "select (select max(id) from live) as last, (select count(*) from live where flag) as flagged",
)


@pytest.mark.parametrize("has_clean_part", [False, True])
def test_sql_over_live_rows_answers_as_over_a_table_of_them(parts: Parts, has_clean_part: bool) -> None:
    parts.add(random_rows(6000, 1), list(range(0, 6000, 3)))
    parts.add(random_rows(500, 2, 6000), [3, 4, 499])
    if has_clean_part:
        parts.add(random_rows(500, 3, 6500))
    plain = duckdb.from_arrow(pa.Table.from_pylist(parts.rows, SCHEMA))
    for threads in (1, 2):
        connection = connect(threads=threads)
        register_view(connection, "live", parts, parts.files, SCHEMA)
        for query in QUERIES:
            found = connection.sql(query).to_arrow_table().to_pylist()
            assert found == plain.query("live", query).to_arrow_table().to_pylist(), query
        for query in ("select * from live limit 5", "select id from live where id > 100 limit 5 offset 2"):
            assert len(connection.sql(query).to_arrow_table()) == 5, query


def test_an_unknown_column_is_named(parts: Parts, connection: duckdb.DuckDBPyConnection) -> None:
    parts.add(random_rows(10, 1))
    with pytest.raises(InvalidInput, match="'nmae'"):
        to_arrow(connection, parts, parts.files, SCHEMA, columns=["nmae"])
    with pytest.raises(InvalidInput, match="nmae"):
        to_arrow(connection, parts, parts.files, SCHEMA, where=expression("nmae = 'x'", "where"))


def test_a_dead_row_outside_its_file_is_corruption(parts: Parts, connection: duckdb.DuckDBPyConnection) -> None:
    file = replace(parts.add(random_rows(10, 1)), dead=BitMap64([10]))
    with pytest.raises(Corrupt, match="row 10, but the file has 10 rows"):
        to_arrow(connection, parts, [file], SCHEMA)
