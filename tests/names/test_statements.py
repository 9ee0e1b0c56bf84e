"""INSERT, DELETE, UPDATE, MERGE INTO: rows by their keys, as Spark computes them, in one commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import lakebed
from lakebed.log.snapshot import Snapshot
from lakebed.sparks.jvm import jvm_of
from lakebed.sparks.versions import spark_version
from lakebed.view.merge_on_read import TableView
from tests.names.conftest import Sql
from tests.names.test_sql_worlds import before_commits_of_statements

pytestmark = pytest.mark.slow
ROWS = "select * from lake.shop.orders order by id"


def test_an_insert_of_a_key_that_exists_replaces_its_row(sql: Sql, orders: lakebed.Table) -> None:
    assert sql("insert into lake.shop.orders values (4, 'd', 40), (1, 'z', 11)") == [(2, 0, 0, 2, 0)]
    assert sql(ROWS) == [(1, "z", 11), (2, "b", 20), (3, "c", 30), (4, "d", 40)]


def test_an_insert_may_name_columns(sql: Sql, orders: lakebed.Table) -> None:
    sql("insert into lake.shop.orders (n, region, id) values (7, 'w', 7)")
    sql("insert into lake.shop.orders by name select 'x' as region, 8L as id, 8L as n")
    assert sql(f"{ROWS} desc limit 2") == [(8, "x", 8), (7, "w", 7)]


@pytest.mark.skipif(spark_version() < "4.1", reason="Spark 4.0 wants all columns")
def test_columns_that_an_insert_does_not_name_are_null(sql: Sql, orders: lakebed.Table) -> None:
    sql("insert into lake.shop.orders (n, id) values (7, 7)")
    assert sql(f"{ROWS} desc limit 1") == [(7, None, 7)]


def test_an_insert_gives_a_key_once(sql: Sql, orders: lakebed.Table) -> None:
    with pytest.raises(AnalysisException, match=r"INSERT gives \{'id': 5\} of .* more than once"):
        sql("insert into lake.shop.orders values (5, 'd', 1), (5, 'd', 2)")
    assert len(sql(ROWS)) == 3


def test_a_delete_removes_what_matches(sql: Sql, orders: lakebed.Table) -> None:
    assert sql("delete from lake.shop.orders where region in ('a', 'b')") == [(2, 0, 2, 0, None)]
    assert sql(ROWS) == [(3, "c", 30)]


def test_a_delete_may_ask_another_query(sql: Sql, orders: lakebed.Table) -> None:
    sql("delete from lake.shop.orders where id in (select max(id) from lake.shop.orders)")
    assert sql("select max(id) from lake.shop.orders") == [(2,)]


def test_an_update_sees_the_row_as_it_was(sql: Sql, orders: lakebed.Table) -> None:
    assert sql("update lake.shop.orders set n = n + 1, region = concat(region, n) where id > 1") == [(2, 2, 0, 0, None)]
    assert sql(ROWS) == [(1, "a", 10), (2, "b20", 21), (3, "c30", 31)]


def test_a_key_never_changes(sql: Sql, orders: lakebed.Table) -> None:
    with pytest.raises(AnalysisException, match=r"UPDATE changes a key of .*: a key never changes"):
        sql("update lake.shop.orders set id = 9 where id = 1")


def test_a_merge_updates_deletes_and_inserts(sql: Sql, orders: lakebed.Table) -> None:
    counts = sql(
        "merge into lake.shop.orders t using (select * from values (1, 'x', 5), (2, 'y', 0), (9, 'z', 9) as s(id, region, n)) s "
        "on t.id = s.id when matched and s.n = 0 then delete when matched then update set n = t.n + s.n "
        "when not matched then insert *"
    )
    assert counts == [(3, 1, 1, 1, 3)]
    assert sql(ROWS) == [(1, "a", 15), (3, "c", 30), (9, "z", 9)]


def test_a_merge_looks_up_the_keys_of_its_source(sql: Sql, orders: lakebed.Table) -> None:
    counts = sql(
        "merge into lake.shop.orders t using (select 2 as id) s on T.ID = S.Id when matched then update set N = 0"
    )
    assert counts == [(1, 1, 0, 0, 1)]


def test_a_merge_reads_the_columns_that_it_speaks_of(
    sql: Sql, orders: lakebed.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[str]] = []
    look_up = TableView.rows_with_keys

    def spied(self: TableView, snapshot: Snapshot, keys: pa.Table, columns: list[str], *others: Any) -> Any:
        asked.append(set(columns))
        return look_up(self, snapshot, keys, columns, *others)

    monkeypatch.setattr(TableView, "rows_with_keys", spied)
    merge = (
        "merge into lake.shop.orders t using (select 2L as id, 'y' as region, 9L as n) s on t.id = s.id when matched "
    )
    sql(f"{merge} then update set * when not matched then insert *")
    sql(f"{merge} and T.N = 9 then update set region = s.region, n = s.n")
    sql(f"{merge} then update set region = upper(s.region)")
    sql(f"{merge} and t.region = 'Y' then update set *")
    assert asked == [{"id"}, {"id", "n"}, {"id", "n"}, {"id", "region"}]
    assert sql(ROWS) == [(1, "a", 10), (2, "y", 9), (3, "c", 30)]


def test_a_merge_of_few_rows_is_two_jobs_without_a_shuffle(
    spark: SparkSession, sql: Sql, orders: lakebed.Table
) -> None:
    scheduler = jvm_of(spark).org.apache.spark.SparkContext.getOrCreate().dagScheduler()
    before = scheduler.numTotalJobs(), scheduler.nextStageId()
    sql(
        "merge into lake.shop.orders t using (select * from values (1, 'x', 5), (9, 'z', 9) as s(id, region, n)) s "
        "on t.id = s.id when matched then update set * when not matched then insert *"
    )
    assert (scheduler.numTotalJobs() - before[0], scheduler.nextStageId() - before[1]) == (2, 2)


def test_a_merge_may_say_what_becomes_of_rows_that_the_source_lacks(sql: Sql, orders: lakebed.Table) -> None:
    sql(
        "merge into lake.shop.orders t using (select 2 as id) s on t.id = s.id "
        "when not matched by source and n > 10 then delete when not matched by source then update set n = -1"
    )
    assert sql(ROWS) == [(1, "a", -1), (2, "b", 20)]


def test_a_merge_by_another_column_than_the_key_scans_the_table(sql: Sql, orders: lakebed.Table) -> None:
    counts = sql(
        "merge into lake.shop.orders t using (select 'c' as r) s on t.region = s.r when matched then update set n = 1"
    )
    assert counts == [(1, 1, 0, 0, None)]
    assert sql(f"{ROWS} desc limit 1") == [(3, "c", 1)]


def test_a_merge_that_matches_a_row_twice_is_refused_by_spark(sql: Sql, orders: lakebed.Table) -> None:
    with pytest.raises(AnalysisException, match="MERGE_CARDINALITY_VIOLATION"):
        sql(
            "merge into lake.shop.orders t using (select 1 as id union all select 1) s on t.id = s.id "
            "when matched then update set n = 0"
        )


def test_a_source_is_computed_once_also_if_others_change_its_rows_meanwhile(sql: Sql, orders: lakebed.Table) -> None:
    others = [lambda: orders.apply(pa.table({"id": [2], "region": ["o"], "n": [0]})), lambda: None]
    with before_commits_of_statements(lambda: others.pop(0)()):
        sql(
            "merge into lake.shop.orders t using (select id, rand() as r from range(1, 100)) s on t.id = s.id "
            "when matched then update set n = cast(s.r * 1000000000 as bigint), region = cast(s.r as string) "
            "when not matched then insert (id, n, region) values (s.id, cast(s.r * 1000000000 as bigint), cast(s.r as string))"
        )
    assert not others
    assert sql(
        "select count(*) from lake.shop.orders where n <> cast(cast(region as double) * 1000000000 as bigint)"
    ) == [(0,)]
    assert sql("select count(distinct region) from lake.shop.orders") == [(99,)]


def test_a_statement_that_changes_nothing_commits_nothing(sql: Sql, orders: lakebed.Table) -> None:
    before = orders.version
    assert sql("delete from lake.shop.orders where id = 77") == [(0, 0, 0, 0, None)]
    assert orders.version == before


def test_explain_runs_nothing(sql: Sql, orders: lakebed.Table) -> None:
    (text,) = sql("explain delete from lake.shop.orders")[0]
    assert "Lakebed DELETE" in text
    assert len(sql(ROWS)) == 3


def test_many_rows_are_written_by_tasks(sql: Sql, orders: lakebed.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakebed.names.statements.FEW_ROWS", 10)
    sql("insert into lake.shop.orders select id, 'r', id from range(0, 100)")
    sql(
        "merge into lake.shop.orders t using (select id from range(50, 150)) s on t.id = s.id "
        "when matched and s.id < 60 then delete when matched then update set n = t.n + 1 "
        "when not matched then insert (id) values (s.id)"
    )
    sql("update lake.shop.orders set region = 'u' where id < 50")
    assert sql("select count(*), sum(n), count(region), count_if(region = 'u') from lake.shop.orders") == [
        (140, sum(range(100)) - sum(range(50, 60)) + 40, 90, 50)
    ]


def test_create_table_as_select_fills_a_table_with_keys(sql: Sql, orders: lakebed.Table) -> None:
    sql(
        "create table lake.shop.copy using lakebed tblproperties ('lakebed.keys' = 'id') as select * from lake.shop.orders"
    )
    assert sql("select * from lake.shop.copy order by id") == sql(ROWS)


def test_truncate_leaves_no_row(sql: Sql, orders: lakebed.Table) -> None:
    sql("truncate table lake.shop.orders")
    assert sql(ROWS) == []


def test_insert_overwrite_replaces_all_rows(sql: Sql, orders: lakebed.Table) -> None:
    sql("insert overwrite lake.shop.orders select id, 'o', n from lake.shop.orders where id = 2")
    assert sql(ROWS) == [(2, "o", 20)]


def test_insert_overwrite_of_a_partition_leaves_the_others(sql: Sql, tmp_path: Path) -> None:
    sql(
        "create table lake.shop.days (id bigint, day date) using lakebed partitioned by (day) "
        "tblproperties ('lakebed.keys' = 'id')"
    )
    sql(
        "insert into lake.shop.days values (1, date'2026-01-01'), (2, date'2026-01-01'), (3, date'2026-01-02'), (4, null)"
    )
    sql("insert overwrite lake.shop.days partition (day = date'2026-01-01') values (7)")

    assert [row[0] for row in sql("select id from lake.shop.days order by id")] == [3, 4, 7]


def test_a_dynamic_overwrite_replaces_the_partitions_that_it_brings(
    spark: SparkSession, sql: Sql, catalog: str, tmp_path: Path
) -> None:
    sql("create table lake.shop.days (id bigint, day date) partitioned by (day) tblproperties ('lakebed.keys' = 'id')")
    sql("insert into lake.shop.days values (1, date'2026-01-01'), (3, date'2026-01-02'), (4, null)")
    spark.sql("select 8L as id, date'2026-01-02' as day union all select 9L, null").writeTo(
        f"{catalog}.shop.days"
    ).overwritePartitions()

    assert [row[0] for row in sql("select id from lake.shop.days order by id")] == [1, 8, 9]


def test_names_and_keys_may_be_strange(sql: Sql, tmp_path: Path) -> None:
    sql(
        "create table lake.shop.`odd.name` (`k.1` double, `K 2` string, `select` int, s struct<a: int, `b.c`: string>) "
        """tblproperties ('lakebed.keys' = '["k.1","K 2"]')"""
    )
    sql(
        "insert into lake.shop.`odd.name` values (double('nan'), 'a', 1, named_struct('a', 1, 'b.c', 'x')), (-0.0d, '', 2, null)"
    )
    sql("alter table lake.shop.`odd.name` rename column `select` to `from`")
    sql(
        "merge into lake.shop.`odd.name` t "
        "using (select double('nan') as k, 'a' as l union all select 0.0d, '' union all select 1.0d, 'new') x "
        "on t.`k.1` = x.k and x.l = t.`K 2` when matched then update set `from` = `from` + 10, s.a = 7 "
        "when not matched then insert (`k.1`, `K 2`) values (x.k, x.l)"
    )
    assert [tuple(map(str, row)) for row in sql("select * from lake.shop.`odd.name` order by `K 2`")] == [
        ("-0.0", "", "12", "Row(a=7, b.c=None)"),
        ("nan", "a", "11", "Row(a=7, b.c='x')"),
        ("1.0", "new", "None", "None"),
    ]


def test_two_zeros_are_one_key(sql: Sql, tmp_path: Path) -> None:
    sql("create table lake.shop.zeros (k double) tblproperties ('lakebed.keys' = 'k')")
    with pytest.raises(AnalysisException, match="more than once"):
        sql("insert into lake.shop.zeros values (0.0d), (-0.0d)")


# -- tables with an order of their own ---------------------------------------------------------------------------------------


@pytest.fixture
def ordered(sql: Sql) -> None:
    """``lake.shop.events``, whose changes ``ts`` orders."""
    sql(
        "create table lake.shop.events (id bigint, ts bigint, n bigint) "
        "tblproperties ('lakebed.keys' = 'id', 'lakebed.sequence_by' = 'ts')"
    )
    sql("insert into lake.shop.events values (1, 10, 0), (2, 20, 0)")


def test_an_insert_that_a_newer_row_beats_is_an_error(sql: Sql, ordered: None) -> None:
    with pytest.raises(AnalysisException, match="the row with id=2 would be lost: the table has a newer row or delete"):
        sql("insert into lake.shop.events values (1, 11, 1), (2, 19, 1)")
    assert sql("select sum(n) from lake.shop.events") == [(0,)]


def test_a_merge_that_a_newer_row_beats_is_an_error(sql: Sql, ordered: None) -> None:
    with pytest.raises(AnalysisException, match="would be lost"):
        sql(
            "merge into lake.shop.events t using (select 1L as id, 5L as ts, 1L as n) s on t.id = s.id "
            "when matched then update set *"
        )


def test_an_update_keeps_the_sequence_of_its_row_and_wins(sql: Sql, ordered: None) -> None:
    sql("update lake.shop.events set n = 7 where id = 1")
    assert sql("select * from lake.shop.events order by id") == [(1, 10, 7), (2, 20, 0)]


def test_an_insert_that_a_newer_delete_beats_is_an_error(sql: Sql, ordered: None) -> None:
    sql("delete from lake.shop.events where id = 2")
    with pytest.raises(AnalysisException, match="a newer row or delete"):
        sql("insert into lake.shop.events values (2, 19, 1)")
    sql("insert into lake.shop.events values (2, 21, 1)")
    assert sql("select * from lake.shop.events where id = 2") == [(2, 21, 1)]


def test_rows_ordered_by_their_source_keep_their_sequence(sql: Sql, tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), False), ("n", pa.int64())])
    table = lakebed.create(tmp_path / "shop" / "cdc", schema, keys=["id"], sequence_by="lsn")
    table.apply(pa.table({"id": [1, 2], "n": [1, 2], "lsn": [100, 200]}))

    sql("update lake.shop.cdc set n = n + 10 where id = 1")
    sql("insert into lake.shop.cdc values (2, 22), (3, 33)")
    sql(
        "merge into lake.shop.cdc t using (select 1L as id) s on t.id = s.id when matched then update set n = t.n + 100"
    )
    assert sql("select * from lake.shop.cdc order by id") == [(1, 111), (2, 22), (3, 33)]

    table.apply(pa.table({"id": [1, 2, 3], "n": [0, 0, 0], "lsn": [99, 201, 1]}))  # late, new, new
    assert sql("select * from lake.shop.cdc order by id") == [(1, 111), (2, 0), (3, 0)]


# -- tables whose rows have no key, or whose changes are not of whole rows ---------------------------------------------------


def test_rows_without_a_key_are_deleted_and_updated_as_the_verbs_do_it(sql: Sql, tmp_path: Path) -> None:
    sql('create table lake.shop.log (n int, at date, `a "b` string, price decimal(10, 2), d double, s struct<x: int>)')
    sql(
        "insert into lake.shop.log values (1, date'2026-01-01', 'it\\'s', 1.50, double('nan'), null), "
        "(2, date'2026-02-01', 'x', 2.50, 1.0d, named_struct('x', 1)), (3, null, null, null, null, null), "
        "(3, date'2026-03-01', 'x', 9.00, 2.0d, null)"
    )
    assert sql("delete from lake.shop.log where n = 3 and at is null") == [(1, 0, 1, 0, None)]
    assert sql(
        "update lake.shop.log set n = n + 10, `a \"b` = 'it\\'s', at = date'2026-01-01' + interval 1 day, price = 3 "
        "where (price > 2 or d > 5) and not n in (7, 8) and n < 3L and `a \"b` <=> lower('X') or s is null and n = 0"
    ) == [(1, 1, 0, 0, None)]
    assert [tuple(map(str, row)) for row in sql('select n, at, `a "b`, price, d from lake.shop.log order by n')] == [
        ("1", "2026-01-01", "it's", "1.50", "nan"),
        ("3", "2026-03-01", "x", "9.00", "2.0"),
        ("12", "2026-01-02", "it's", "3.00", "1.0"),
    ]
    assert sql("select count(*) from lake.shop.log") == [(3,)]
    assert sql("delete from lake.shop.log") == [(3, 0, 3, 0, None)]


def test_changes_that_are_not_of_whole_rows_are_what_the_verbs_do(sql: Sql) -> None:
    sql(
        "create table lake.shop.sums (id bigint, ts bigint, total bigint, note string) tblproperties "
        "('lakebed.keys' = 'id', 'lakebed.sequence_by' = 'ts', 'lakebed.aggregate.total' = 'sum')"
    )
    assert sql("insert into lake.shop.sums values (1, 1, 5, 'a'), (1, 2, 7, 'b'), (2, 1, 1, 'c')") == [(3, 0, 0, 3, 0)]
    assert sql("update lake.shop.sums set note = 'z' where total > 10") == [(1, 1, 0, 0, None)]
    assert sql("delete from lake.shop.sums where id = 2") == [(1, 0, 1, 0, None)]
    assert sql("select * from lake.shop.sums") == [(1, 2, 12, "z")]
    sql("insert into lake.shop.sums values (1, 3, 100, 'n')")
    for statement in (
        "delete from lake.shop.sums where id in (select max(id) from lake.shop.sums)",
        "update lake.shop.sums set note = upper(note)",
        "merge into lake.shop.sums t using (select 1L as id) s on t.id = s.id when matched then delete",
    ):
        with pytest.raises(
            AnalysisException, match=r"shop\.sums has groups of columns, aggregates or first rows: a row"
        ):
            sql(statement)
        assert "aggregates or first rows: a row" in str(sql(f"explain {statement}"))
    assert sql("select * from lake.shop.sums") == [(1, 3, 112, "n")]


def test_the_first_row_of_a_key_stays_where_the_table_says_so(sql: Sql) -> None:
    sql(
        "create table lake.shop.firsts (id bigint, n bigint) tblproperties ('lakebed.keys' = 'id', 'lakebed.keep' = 'first')"
    )
    sql("insert into lake.shop.firsts values (1, 1), (2, 2)")
    sql("insert into lake.shop.firsts values (1, 100)")
    assert sql("update lake.shop.firsts set n = n + 1 where id = 1") == [(1, 1, 0, 0, None)]
    assert sql("select * from lake.shop.firsts order by id") == [(1, 2), (2, 2)]
