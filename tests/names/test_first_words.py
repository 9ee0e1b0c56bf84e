"""What users of DataFrames and of other catalogs type first: saveAsTable, insertInto, writeTo, CREATE OR REPLACE."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, lit

import lakebed
from lakebed.names.definitions import has_properties
from tests.names.conftest import Sql

ROWS = "select * from lake.shop.orders order by id"
NEW = "select 2L as id, 'x' as region, 5L as n"
REFUSED = "replaced by the rows of a query with the same columns"


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ({}, True),
        ({"lakebed.keys": "a, b", "lakebed.sort_key": '["b desc"]', "mine": "x"}, True),
        ({"lakebed.keys": "b, a"}, False),
        ({"mine": "y"}, False),
        ({"other": "x"}, False),
        ({"provider": "lakebed", "lakebed.types": "wide"}, True),
    ],
)
def test_properties_are_those_of_a_table(given: dict[str, str], same: bool) -> None:
    has = {"lakebed.keys": '["a","b"]', "lakebed.sort_key": '["b desc"]', "mine": "x"}
    assert has_properties(has, given) == same


@pytest.mark.slow
def test_save_as_table_makes_appends_and_replaces(spark: SparkSession, catalog: str, sql: Sql) -> None:
    rows, name = spark.sql(NEW), f"{catalog}.shop.saved"
    rows.write.saveAsTable(name)
    rows.write.mode("append").saveAsTable(name)
    rows.write.mode("ignore").saveAsTable(name)
    rows.write.insertInto(name)
    assert sql("select count(*), max(region) from lake.shop.saved") == [(3, "x")]
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_ALREADY_EXISTS"):
        rows.write.saveAsTable(name)
    rows.select("n", "region", "id").write.mode("overwrite").saveAsTable(name)
    assert sql("select * from lake.shop.saved") == [(2, "x", 5)]
    rows.write.format("lakebed").mode("overwrite").saveAsTable(f"{name}_too")
    rows.write.insertInto(f"{name}_too", overwrite=True)
    assert sql("select * from lake.shop.saved_too") == [(2, "x", 5)]
    for by_path in (
        lambda: rows.write.format("lakebed").save("/tmp/x"),
        lambda: spark.read.format("lakebed").load("/tmp/x"),
    ):
        with pytest.raises(AnalysisException, match="the format lakebed is that of tables by name"):
            by_path()
    with pytest.raises(AnalysisException, match="write USING lakebed in place of USING csv"):
        rows.write.format("csv").saveAsTable(f"{name}_csv")


@pytest.mark.long
@pytest.mark.slow
def test_write_to_does_what_sql_does(spark: SparkSession, catalog: str, sql: Sql) -> None:
    rows, name = spark.sql(NEW), f"{catalog}.shop.orders"
    rows.writeTo(name).tableProperty("lakebed.keys", "id").partitionedBy("region").create()
    rows.withColumn("n", lit(6)).writeTo(name).append()
    assert sql(ROWS) == [(2, "x", 6)]
    rows.withColumn("id", lit(3)).withColumn("region", lit("y")).writeTo(name).overwritePartitions()
    assert sql(ROWS) == [(2, "x", 6), (3, "y", 5)]
    rows.withColumn("id", lit(4)).writeTo(name).overwrite(col("region") == "x")
    assert sql(ROWS) == [(3, "y", 5), (4, "x", 5)]
    rows.writeTo(name).createOrReplace()
    assert sql(ROWS) == [(2, "x", 5)]
    rows.withColumn("n", lit(1)).writeTo(name).tableProperty("lakebed.keys", "id").replace()
    assert sql(ROWS) == [(2, "x", 1)]


@pytest.mark.slow
def test_create_or_replace_keeps_a_table_and_its_history(sql: Sql, orders: lakebed.Table) -> None:
    created = "create or replace table lake.shop.{} using lakebed tblproperties ('lakebed.keys' = 'id') as "
    sql(created.format("orders") + NEW)
    assert sql(ROWS) == [(2, "x", 5)]
    assert sql("select count(*) from lake.shop.orders version as of 1") == [(3,)]
    for _ in range(2):
        sql(created.format("other") + NEW)
        assert sql("select * from lake.shop.other") == [(2, "x", 5)]
    assert lakebed.open(orders.path.replace("orders", "other")).properties["lakebed.keys"] == '["id"]'


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "create or replace table lake.shop.orders as select 1L as id",
        "create or replace table lake.shop.orders as select 1L as id, 'x' as region, 1 as m",
        f"create or replace table lake.shop.orders partitioned by (region) as {NEW}",
        f"create or replace table lake.shop.orders tblproperties ('lakebed.keys' = 'n') as {NEW}",
        "create or replace table lake.shop.orders (id bigint, region string, n bigint) using lakebed",
        "replace table lake.shop.orders as select 1L as id",
    ],
)
def test_what_would_be_another_table_is_refused(sql: Sql, orders: lakebed.Table, text: str) -> None:
    before = orders.version
    with pytest.raises(AnalysisException, match=REFUSED):
        sql(text)
    assert orders.version == before


@pytest.mark.slow
def test_rows_are_replaced_where_a_condition_is_true(sql: Sql, tmp_path: Path) -> None:
    sql("create table lake.shop.days (id bigint, day date) partitioned by (day) tblproperties ('lakebed.keys' = 'id')")
    sql("insert into lake.shop.days values (1, date'2026-01-01'), (2, date'2026-01-02'), (3, date'2026-01-03')")
    sql("insert into lake.shop.days replace where day >= date'2026-01-02' select 4L, date'2026-01-03'")
    assert sql("select id from lake.shop.days order by id") == [(1,), (4,)]
    sql("insert into lake.shop.days replace where id > 1 select 5L, date'2026-01-03'")
    assert sql("select id from lake.shop.days order by id") == [(1,), (5,)]
    with pytest.raises(AnalysisException, match="may mean something else in the SQL that finds the rows to replace"):
        sql("insert into lake.shop.days replace where abs(id) > 1 select 4L, date'2026-01-03'")
