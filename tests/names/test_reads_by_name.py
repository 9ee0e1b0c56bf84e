"""SELECT, SHOW, DESCRIBE, USE: tables are found by name, and read with their tails, at one version."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession

import lakebed
from lakebed.sparks.jvm import executed_plan
from lakebed.sparks.names import conf_of
from tests.database.bank import TOTAL, Bank, Copy
from tests.names.conftest import Sql

pytestmark = pytest.mark.slow


def test_tables_are_listed_by_namespace(sql: Sql, orders: lakebed.Table) -> None:
    assert sql("show namespaces in lake") == [("shop",)]
    assert [row[1] for row in sql("show tables in lake.shop")] == ["orders"]


def test_a_select_reads_the_tail(sql: Sql, orders: lakebed.Table) -> None:
    assert sql("select id, n from lake.shop.orders where id > 1 order by id") == [(2, 20), (3, 30)]


def test_a_select_names_a_version_or_a_time(sql: Sql, orders: lakebed.Table) -> None:
    orders.delete("id = 1")

    assert sql("select count(*) from lake.shop.orders") == [(2,)]
    assert sql("select count(*) from lake.shop.orders version as of 1") == [(3,)]
    assert sql("select count(*) from lake.shop.orders timestamp as of now()") == [(2,)]
    with pytest.raises(AnalysisException, match="no version 99"):
        sql("select * from lake.shop.orders version as of 99")


def test_a_query_reads_one_version_of_a_table_that_it_names_twice(sql: Sql, orders: lakebed.Table) -> None:
    found = sql(
        "select a.id, b.n from lake.shop.orders a join lake.shop.orders b on a.id = b.id "
        "where a.id in (select id from lake.shop.orders where n > 10) order by a.id"
    )
    assert found == [(2, 20), (3, 30)]


def test_a_join_knows_how_large_a_table_is(sql: Sql, orders: lakebed.Table) -> None:
    [[plan]] = sql("explain select * from range(1000000000) r join lake.shop.orders o on r.id = o.id")
    assert "BroadcastHashJoin" in plan


def test_a_data_frame_stays_at_its_version(spark: SparkSession, catalog: str, orders: lakebed.Table) -> None:
    frame = spark.table(f"{catalog}.shop.orders")
    orders.delete("true")

    assert frame.count() == 3
    assert spark.table(f"{catalog}.shop.orders").count() == 0


def test_metadata_tables_are_named_after_their_table(sql: Sql, orders: lakebed.Table) -> None:
    assert sql("select state, rows from lake.shop.orders.parts") == [("tail", 3)]
    assert [row[0] for row in sql("select operation from lake.shop.orders.timeline order by version")] == [
        "CREATE TABLE",
        "APPLY",
    ]


def test_what_is_missing_is_said_with_the_nearest_name(sql: Sql, orders: lakebed.Table) -> None:
    with pytest.raises(AnalysisException, match=r"no table shop\.ordrs below .*; did you mean 'shop\.orders'"):
        sql("select * from lake.shop.ordrs")
    with pytest.raises(AnalysisException, match="no metadata table 'part'; did you mean 'parts'"):
        sql("select * from lake.shop.orders.part")


def test_use_makes_a_short_name_do(sql: Sql, orders: lakebed.Table) -> None:
    sql("use lake.shop")
    assert sql("select count(*) from orders") == [(3,)]


def test_describe_says_how_large_and_how_fresh_a_table_is(sql: Sql, orders: lakebed.Table) -> None:
    found = {row[0]: row[1] for row in sql("describe extended lake.shop.orders")}
    assert found["id"] == "bigint"
    assert "lakebed.reads=fresh" in found["Table Properties"]
    assert found["Statistics"].endswith("3 rows")


def test_a_filter_leaves_parts_out(spark: SparkSession, catalog: str, orders: lakebed.Table) -> None:
    assert "EqualTo(id,3)" in executed_plan(spark.table(f"{catalog}.shop.orders").where("id = 3"))


def test_a_catalog_may_have_all_tables_as_of_one_point(spark: SparkSession, tmp_path: Path) -> None:
    bank = Bank(random.Random(3))
    copy = Copy(tmp_path / "bank", bank)
    bank.transfer()
    assert copy.batch() is not None
    first = lakebed.warehouse(copy.path).at().number
    lakebed.create(tmp_path / "bank" / "public" / "later", pa.schema([("id", pa.int64())]))
    settings = conf_of(dict.fromkeys(("bank_now", "bank_then"), copy.path)) | {
        "spark.sql.catalog.bank_then.at": str(first)
    }
    for key, value in settings.items():
        spark.conf.set(key, value)
    for _ in range(3):
        bank.transfer()
        copy.batch()

    def read(catalog: str) -> tuple[int, ...]:
        balances = [f"(select sum(balance) from {catalog}.public.{table})" for table in ("checking", "savings")]
        return tuple(spark.sql(f"select {' + '.join(balances)}, count(*) from {catalog}.audit.transfers").collect()[0])

    assert (read("bank_then"), read("bank_now")) == ((TOTAL, 1), (TOTAL, 4))
    with pytest.raises(AnalysisException, match=f"the point {first} has no table public.later"):
        spark.table("bank_then.public.later")
    changing = [
        *("delete from {}", "insert into {} select * from {}", "update {} set balance = 0", "truncate table {}"),
        *("alter table {} add column note string", "drop table {}", "drop table {} purge"),
        *(
            "create or replace table {} as select * from {}",
            "create table {}_too (id int) using lakebed",
            "call bank_then.system.settle('public.checking')",
        ),
    ]
    before = lakebed.open(tmp_path / "bank/public/checking").version
    for statement in changing:
        with pytest.raises(AnalysisException, match="the catalog bank_then has tables as of 1"):
            spark.sql(statement.replace("{}", "bank_then.public.checking"))
    writer = (
        spark.readStream.format("rate").load().writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    with pytest.raises(StreamingQueryException, match="the catalog bank_then has tables as of 1"):
        writer.toTable("bank_then.public.checking").awaitTermination()
    assert lakebed.open(tmp_path / "bank/public/checking").version == before
    for key in settings:
        spark.conf.unset(key)
