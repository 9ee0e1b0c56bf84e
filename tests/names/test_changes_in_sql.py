"""table_changes('lake.shop.orders', from, to): the rows that some versions changed, as a table function."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import lakebed
from lakebed.sparks.versions import spark_version
from tests.names.conftest import Sql

pytestmark = pytest.mark.slow
USAGE = r"table_changes takes the name of a table, and the first and perhaps the last version as numbers"


@pytest.fixture
def changed(orders: lakebed.Table) -> lakebed.Table:
    """``orders`` at version 2, without the row 2."""
    orders.delete("id = 2")
    return orders


def test_changes_are_rows_with_their_kind_and_version(sql: Sql, changed: lakebed.Table) -> None:
    found = sql("select id, n, _change_type, _commit_version from table_changes('lake.shop.orders', 0) order by 4, 1")
    assert found == [(1, 10, "upsert", 1), (2, 20, "upsert", 1), (3, 30, "upsert", 1), (2, 20, "delete", 2)]
    assert sql("select id from table_changes('lake.shop.orders', 2, 2)") == [(2,)]
    assert sql("select count(*) from TABLE_CHANGES('lake.shop.orders', 1, 3 - 2)") == [(3,)]


def test_it_may_stand_wherever_a_table_may(sql: Sql, changed: lakebed.Table) -> None:
    gone = "select id from table_changes('lake.shop.orders', 1) where _change_type = 'delete'"
    assert sql(f"with c as ({gone}) select a.id, b.id from c a cross join c b") == [(2, 2)]
    assert sql(f"select count(*) from lake.shop.orders version as of 1 where id in ({gone})") == [(1,)]
    sql(f"create temporary view gone as {gone}")
    assert sql("select * from gone") == [(2,)]
    sql("drop view gone")
    sql(f"insert into lake.shop.orders {gone.replace('select id', 'select id, region, n')}")
    assert sql("select count(*) from lake.shop.orders") == [(3,)]
    assert "lakebed_changes" in sql(f"explain {gone}")[0][0]


def test_a_name_may_be_short(sql: Sql, changed: lakebed.Table) -> None:
    sql("use lake.shop")
    assert sql("select count(*) from table_changes('orders', 2)") == [(1,)]


def test_a_session_of_its_own_has_it_too(spark: SparkSession, catalog: str, changed: lakebed.Table) -> None:
    other = spark.newSession()
    for key in (f"spark.sql.catalog.{catalog}", f"spark.sql.catalog.{catalog}.warehouse"):
        other.conf.set(key, spark.conf.get(key) or "")
    assert other.sql(f"select * from table_changes('{catalog}.shop.orders', 2)").count() == 1


@pytest.mark.parametrize("given", ["", ", '2026-01-01'", ", 1, 2, 3", ", null", ", 1, cast(null as int)", ", rand()"])
def test_what_it_does_not_take_is_said(sql: Sql, changed: lakebed.Table, given: str) -> None:
    with pytest.raises(AnalysisException, match=USAGE):
        sql(f"select * from table_changes('lake.shop.orders'{given})")


def test_what_is_not_there_is_said(sql: Sql, changed: lakebed.Table) -> None:
    with pytest.raises(AnalysisException, match=r"no table shop\.ordrs below .*; did you mean 'shop\.orders'"):
        sql("select * from table_changes('lake.shop.ordrs', 1)")
    with pytest.raises(AnalysisException, match="there is no version 99: the newest is 2"):
        sql("select * from table_changes('lake.shop.orders', 1, 99)")


@pytest.mark.skipif(spark_version() < "4.2", reason="Spark has CHANGES from 4.2 on")
@pytest.mark.parametrize("of", ["from version 1 to version 2", "from version 1", "from timestamp '2026-01-01'"])
def test_the_changes_that_spark_asks_a_catalog_for_are_refused_with_the_other_way(
    sql: Sql, changed: lakebed.Table, of: str
) -> None:
    with pytest.raises(AnalysisException, match=r"write table_changes\('lake\d+\.shop\.orders', 10, 20\)"):
        sql(f"select * from lake.shop.orders changes {of}")


def test_tables_of_other_catalogs_are_left_to_others(sql: Sql, changed: lakebed.Table) -> None:
    for name in ("spark_catalog.default.orders", "default.orders", "or ders", ""):
        with pytest.raises(AnalysisException, match=r"(?s)^(?!.*takes the name of a table)"):
            sql(f"select * from table_changes('{name}', 1)")
