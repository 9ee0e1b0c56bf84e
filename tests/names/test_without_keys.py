"""DELETE, UPDATE, MERGE INTO of tables without keys, beyond what their verbs can say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import lakebed
from tests.names.conftest import Sql
from tests.names.test_sql_worlds import before_commits_of_statements

pytestmark = pytest.mark.slow
ROWS = "select * from lake.shop.visits order by page, n"


@pytest.fixture
def visits(sql: Sql, tmp_path: Path) -> lakebed.Table:
    """``lake.shop.visits``, in three parts, one of them with a dead row."""
    sql("create table lake.shop.visits (page string, n bigint) using lakebed")
    sql("insert into lake.shop.visits values ('a', 1), ('b', 2), ('gone', 0)")
    sql("insert into lake.shop.visits values ('b', 3), ('c', 4)")
    sql("insert into lake.shop.visits values ('d', null)")
    sql("delete from lake.shop.visits where page = 'gone'")
    return lakebed.open(tmp_path / "shop" / "visits")


def test_a_delete_may_ask_another_query(sql: Sql, visits: lakebed.Table) -> None:
    counts = sql("delete from lake.shop.visits where n > (select avg(n) from lake.shop.visits)")
    assert counts == [(2, 0, 2, 0, None)]
    assert sql(ROWS) == [("a", 1), ("b", 2), ("d", None)]


def test_an_update_may_call_any_function(sql: Sql, visits: lakebed.Table) -> None:
    assert sql("update lake.shop.visits set page = upper(page) where n % 2 = 0") == [(2, 2, 0, 0, None)]
    assert sql(ROWS) == [("B", 2), ("C", 4), ("a", 1), ("b", 3), ("d", None)]


MERGE = (
    "merge into lake.shop.visits t using (select * from values ('b', 10), ('d', 20), ('e', 30) as s(page, n)) s "
    "on t.page = s.page and t.n is not null when matched and t.n = 2 then delete when matched then update set n = t.n + s.n "
    "when not matched and s.n > 10 then insert *"
)


@pytest.mark.few(1)
@pytest.mark.parametrize("few", [200_000, 1])
def test_a_merge_updates_deletes_and_inserts(
    sql: Sql, visits: lakebed.Table, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakebed.names.statements.FEW_ROWS", few)
    assert sql(MERGE) == [(4, 1, 1, 2, None)]
    assert sql(ROWS) == [("a", 1), ("b", 13), ("c", 4), ("d", None), ("d", 20), ("e", 30)]
    assert visits.inspect.timeline().to_pylist()[0]["operation"] == "MERGE INTO"
    assert visits.doctor(deep=True).findings == ()


@pytest.mark.few(2)
@pytest.mark.parametrize("few", [pytest.param(200_000, marks=pytest.mark.long), 1])
@pytest.mark.parametrize(
    ("clauses", "left"),
    [
        ("when matched then delete", [("a", 1), ("c", 4), ("d", None)]),
        (
            "when not matched then insert (page, n) values (s.page, 0)",
            [("a", 1), ("b", 2), ("b", 3), ("c", 4), ("d", None), ("x", 0)],
        ),
        ("when not matched by source then delete", [("b", 2), ("b", 3)]),
        (
            "when not matched by source and n > 3 then update set n = -n",
            [("a", 1), ("b", 2), ("b", 3), ("c", -4), ("d", None)],
        ),
    ],
)
def test_a_merge_may_have_one_clause(
    sql: Sql,
    visits: lakebed.Table,
    few: int,
    clauses: str,
    left: list[tuple[str, int | None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lakebed.names.statements.FEW_ROWS", few)
    sql(f"merge into lake.shop.visits t using (select explode(array('b', 'x')) as page) s on t.page = s.page {clauses}")
    assert sql(ROWS) == left


def test_a_row_that_a_merge_matches_twice_is_spark_s_error(sql: Sql, visits: lakebed.Table) -> None:
    with pytest.raises(AnalysisException, match="MERGE_CARDINALITY_VIOLATION"):
        sql(
            "merge into lake.shop.visits t using (select 'a' as page from range(2)) s on t.page = s.page "
            "when matched then update set n = 0"
        )
    assert sql("select count(*) from lake.shop.visits") == [(5,)]


def test_nothing_that_matches_commits_nothing(sql: Sql, visits: lakebed.Table) -> None:
    before = visits.version
    assert sql("update lake.shop.visits set n = rand() where upper(page) = 'Q'") == [(0, 0, 0, 0, None)]
    assert visits.version == before


def test_columns_that_were_renamed_and_partitions_are_written_as_the_table_has_them(sql: Sql) -> None:
    sql("create table lake.shop.days (day date, `a.b` string, n int) using lakebed partitioned by (day)")
    sql("insert into lake.shop.days values (date'2026-01-01', 'x', 1), (date'2026-01-02', 'y', 2), (null, 'z', 3)")
    sql("alter table lake.shop.days rename column `a.b` to `c.d`")
    sql("update lake.shop.days set `c.d` = concat(`c.d`, '!'), day = date_add(day, 1) where n < 3")
    sql(
        "merge into lake.shop.days t using (select 3 as n) s on t.n = s.n when matched then update set day = date'2026-01-09'"
    )
    assert [(str(row[0]), *row[1:]) for row in sql("select * from lake.shop.days order by n")] == [
        ("2026-01-02", "x!", 1),
        ("2026-01-03", "y!", 2),
        ("2026-01-09", "z", 3),
    ]


@contextmanager
def meanwhile(*acts: Callable[[], object]) -> Iterator[None]:
    """Each try of a statement to commit follows one of these."""
    waiting = [*acts]
    with before_commits_of_statements(lambda: waiting.pop(0)() if waiting else None):
        yield


def test_a_statement_is_computed_again_if_its_rows_change(sql: Sql, visits: lakebed.Table) -> None:
    with meanwhile(lambda: visits.update({"n": "n + 100"}, "page = 'b'"), visits.maintenance.compact):
        assert sql("update lake.shop.visits set n = n + length(page) where array_contains(array('b'), page)") == [
            (2, 2, 0, 0, None)
        ]
    assert sql(ROWS) == [("a", 1), ("b", 103), ("b", 104), ("c", 4), ("d", None)]


MERGE_ONE = (
    "merge into lake.shop.visits t using (select 'e' as page, 1L as n) s on t.page = s.page "
    "when matched then update set n = t.n + 1 when not matched then insert *"
)


def test_an_append_that_comes_meanwhile_counts_as_later_than_a_merge(sql: Sql, visits: lakebed.Table) -> None:
    with meanwhile(lambda: visits.apply(pa.table({"page": ["e"], "n": pa.array([7], pa.int64())}))):
        assert sql(MERGE_ONE) == [(1, 0, 0, 1, None)]
    assert sql("select n from lake.shop.visits where page = 'e' order by n") == [(1,), (7,)]


def test_a_merge_that_inserts_sees_what_other_statements_did_meanwhile(sql: Sql, visits: lakebed.Table) -> None:
    with meanwhile(lambda: visits.update({"page": "'e'"}, "page = 'a'")):
        assert sql(MERGE_ONE) == [(1, 1, 0, 0, None)]
    with meanwhile(lambda: sql(MERGE_ONE.replace("'e'", "'f'"))):
        assert sql(MERGE_ONE.replace("'e'", "'f'")) == [(1, 1, 0, 0, None)]
    assert sql("select * from lake.shop.visits where page in ('e', 'f') order by page") == [("e", 2), ("f", 2)]
    with meanwhile(visits.truncate):
        assert sql(MERGE_ONE) == [(1, 0, 0, 1, None)]
    assert sql(ROWS) == [("e", 1)]


def test_a_table_that_another_writer_began_is_changed(spark: SparkSession, sql: Sql, tmp_path: Path) -> None:
    rows = pa.table({"id": pa.array(range(10), pa.int64()), "part": [f"p {at % 2}" for at in range(10)]})
    from deltalake import write_deltalake

    write_deltalake(str(tmp_path / "shop" / "theirs"), rows, partition_by=["part"])
    lakebed.convert(tmp_path / "shop" / "theirs")
    sql("delete from lake.shop.theirs where id % 3 = 0 and length(part) = 3")
    sql("update lake.shop.theirs set part = repeat(part, 2) where id in (select 8L)")
    assert sql("select * from lake.shop.theirs where id > 5 order by id") == [(7, "p 1"), (8, "p 0p 0")]
