"""DROP TABLE: a table vanishes, comes back by a CALL, and its files go later, or at once with PURGE."""

from __future__ import annotations

import os

import pytest
from pyspark.errors import AnalysisException

import lakebed
from lakebed.errors import StoreUnavailable, TableDropped
from lakebed.log.stores import LocalLogStore
from tests.names.conftest import Sql

pytestmark = pytest.mark.slow
ROWS = "select id from lake.shop.orders order by id"
GONE = r"was dropped at .* UTC; lakebed\.undrop.*; in SQL: CALL lake\d+\.system\.undrop\('shop\.orders'\)"


def test_a_dropped_table_vanishes_and_comes_back(sql: Sql, orders: lakebed.Table) -> None:
    sql("drop table lake.shop.orders")
    assert sql("show tables in lake") == [] and sql("show namespaces in lake") == []
    with pytest.raises(TableDropped):
        lakebed.open(orders.path)

    assert sql("call lake.system.undrop('shop.orders')") == [(3,)]
    assert sql(ROWS) == [(1,), (2,), (3,)]
    assert [row[1] for row in sql("show tables in lake.shop")] == ["orders"]


@pytest.mark.parametrize(
    "text",
    [
        "select * from lake.shop.orders",
        "select * from lake.shop.orders.parts",
        "insert into lake.shop.orders values (4, 'd', 40)",
        "delete from lake.shop.orders where id = 1",
        "alter table lake.shop.orders add column x int",
        "describe lake.shop.orders",
        "call lake.system.compact('shop.orders')",
        "alter table lake.shop.orders recluster",
    ],
)
def test_whoever_names_it_is_told_how_it_comes_back(sql: Sql, orders: lakebed.Table, text: str) -> None:
    orders.drop()
    with pytest.raises(AnalysisException, match=GONE):
        sql(text)


def test_if_exists_is_for_what_is_dropped_too(sql: Sql, orders: lakebed.Table) -> None:
    sql("drop table if exists lake.shop.orders")
    sql("drop table if exists lake.shop.orders")
    sql("drop table if exists lake.shop.nothing")
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        sql("drop table lake.shop.orders")


def test_a_query_that_has_begun_reads_on(sql: Sql, orders: lakebed.Table) -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.getActiveSession()
    assert spark is not None
    sql("create temporary view seen as select * from lake.shop.orders")
    frame = spark.table("seen")
    sql("drop table lake.shop.orders")
    assert frame.count() == 3
    sql("drop view seen")


def test_a_name_is_free_when_the_files_are_gone(sql: Sql, orders: lakebed.Table) -> None:
    create = "create table lake.shop.orders (id bigint not null) using lakebed tblproperties ('lakebed.keys' = 'id')"
    sql("drop table lake.shop.orders")
    with pytest.raises(AnalysisException, match=GONE + r", CALL lake\d+\.system\.remove_dropped\('shop\.orders'\)"):
        sql(create)
    [(name, path, _, _, removed, files)] = sql("call lake.system.remove_dropped('shop.orders')")
    assert (name, path, removed) == ("shop.orders", orders.path, True) and files > 3
    sql(create)
    assert sql(ROWS) == []


def test_remove_dropped_waits_as_long_as_old_versions_stay(sql: Sql, orders: lakebed.Table) -> None:
    assert sql("call lake.system.remove_dropped()") == []
    sql("drop table lake.shop.orders")
    [(name, _, dropped, due, removed, files)] = sql("call lake.system.remove_dropped()")
    assert (name, (due - dropped).days, removed, files) == ("shop.orders", 7, False, None)
    with pytest.raises(AnalysisException, match=r"no table shop\.ordrs"):
        sql("call lake.system.remove_dropped('shop.ordrs')")
    sql("call lake.system.undrop('shop.orders')")
    with pytest.raises(
        AnalysisException, match=r"shop\.orders is not dropped: DROP TABLE shop\.orders PURGE deletes it"
    ):
        sql("call lake.system.remove_dropped('shop.orders')")


def test_undrop_says_the_nearest_name(sql: Sql, orders: lakebed.Table) -> None:
    sql("drop table lake.shop.orders")
    with pytest.raises(AnalysisException, match=r"no dropped table shop\.ordrs; did you mean 'shop\.orders'"):
        sql("call lake.system.undrop('shop.ordrs')")


def test_purge_deletes_the_files_at_once(sql: Sql, orders: lakebed.Table) -> None:
    sql("drop table lake.shop.orders purge")
    assert not os.path.exists(orders.path)
    with pytest.raises(AnalysisException, match=r"no table shop\.orders"):
        sql(ROWS)


def test_a_purge_that_was_killed_goes_on(sql: Sql, orders: lakebed.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(store: object, name: str) -> None:
        raise StoreUnavailable("killed")

    with monkeypatch.context() as patched:
        patched.setattr(LocalLogStore, "delete", killed)
        with pytest.raises(AnalysisException, match="killed"):
            sql("drop table lake.shop.orders purge")
    with pytest.raises(AnalysisException, match="its files are being deleted"):
        sql(ROWS)
    with pytest.raises(AnalysisException, match="its files are being deleted"):
        sql("drop table lake.shop.orders")
    sql("drop table if exists lake.shop.orders purge")
    assert not os.path.exists(orders.path)


@pytest.mark.parametrize("query", ["(id bigint) using lakebed", "using lakebed as select 1L as id"])
@pytest.mark.parametrize("verb", ["create or replace table", "replace table"])
def test_no_table_is_replaced_by_another_one(sql: Sql, orders: lakebed.Table, verb: str, query: str) -> None:
    with pytest.raises(AnalysisException, match="replaced by the rows of a query with the same columns"):
        sql(f"{verb} lake.shop.orders {query}")
    assert len(sql(ROWS)) == 3


def test_a_metadata_table_goes_with_its_table(sql: Sql, orders: lakebed.Table) -> None:
    with pytest.raises(AnalysisException, match="is a metadata table: it goes with its table"):
        sql("drop table lake.shop.orders.parts")
