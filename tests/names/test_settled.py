"""Names where the driver runs no lakebed: tables are found, Delta reads them, nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException

import lakebed
from lakebed.discovery import TableName, all_tables_below
from lakebed.log.removals import DROPPED_FOLDER
from lakebed.names.answers import Answers
from lakebed.sparks.jvm import jvm_of
from lakebed.sparks.names import answer_with
from lakebed.sparks.versions import delta_package, spark_version
from tests.names.conftest import Sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(delta_package(spark_version()) is None, reason="Delta has no release for this Spark"),
]

REFUSED = "the driver of this session runs no lakebed, so it reads the settled rows of tables and does nothing else"


@contextmanager
def no_lakebed(spark: SparkSession) -> Iterator[None]:
    """While this is so, the classes in the JVM know of no Python."""
    jvm_of(spark).lakebed.Python.set(None)
    try:
        yield
    finally:
        answer_with(spark, Answers())


@pytest.fixture
def alone(spark: SparkSession) -> Iterator[None]:
    with no_lakebed(spark):
        yield


@pytest.mark.usefixtures("alone")
def test_a_select_reads_the_settled_rows_without_those_that_vectors_hide(sql: Sql, sold: lakebed.Table) -> None:
    assert sql("select * from lake.shop.orders order by id") == [(1, "a", 10), (3, "c", 30)]
    assert len(sold.to_arrow()) == 3
    assert sql(
        "select a.id, b.n from lake.shop.orders a join lake.shop.orders b on a.id = b.id "
        "where a.id in (select id from lake.shop.orders where n > 10)"
    ) == [(3, 30)]


@pytest.mark.long
@pytest.mark.usefixtures("alone")
def test_a_select_names_a_version_or_a_time(sql: Sql, sold: lakebed.Table) -> None:
    created, settled = 0, 2

    assert sql(f"select count(*) from lake.shop.orders version as of {created}") == [(0,)]
    assert sql(f"select count(*) from lake.shop.orders version as of {settled}") == [(3,)]
    times = {row["version"]: row["timestamp"] for row in sold.inspect.timeline().to_pylist()}
    assert sql(f"select count(*) from lake.shop.orders timestamp as of '{times[settled]}'") == [(3,)]
    assert sql("select count(*) from lake.shop.orders timestamp as of now()") == [(2,)]
    with pytest.raises(AnalysisException, match="Cannot time travel Delta table to version 99"):
        sql("select * from lake.shop.orders version as of 99")
    with pytest.raises(AnalysisException, match="VERSION AS OF 'first': versions are numbers"):
        sql("select * from lake.shop.orders version as of 'first'")


@pytest.mark.long
@pytest.mark.usefixtures("alone")
def test_a_view_reads_what_is_settled_when_it_is_asked(sql: Sql, sold: lakebed.Table) -> None:
    sql("create or replace temporary view of_orders as select id from lake.shop.orders")
    assert sql("select count(*) from of_orders") == [(2,)]
    sold.settle()
    assert sql("select * from of_orders order by id") == [(1,), (3,), (4,)]
    sql("drop view of_orders")


def test_tables_have_the_names_that_they_have_with_lakebed(
    spark: SparkSession, catalog: str, sql: Sql, tmp_path: Path
) -> None:
    names = [
        "plain",
        "a.b",
        "a.c.d",
        "default.x",
        "Default.y",
        "s.my table",
        "s.über",
        "s.\x5fhidden",
        "_s.t",
        "s.a/b",
        "s.end.",
    ]
    names += ["s.!41", "s.x_quarantine", "s.X_QUARANTINE", f"s.{'n' * 200}", f"s.{'ü' * 60}", "s.", "s..t", "s.{}$#"]
    folders = [TableName(name).folder for name in names]
    folders += [
        "top",
        "s/by hand",
        "s/as!41is",
        "s/orders_quarantine",
        "other_quarantine",
        "_lakebed/t",
        "s/.t",
        "default/a.b",
    ]
    for folder in folders:
        (tmp_path / folder / "_delta_log").mkdir(parents=True)
    for folder in ("s/gone", "gone", "dropped/alone"):
        (tmp_path / folder / "_delta_log").mkdir(parents=True)
        (tmp_path / folder / DROPPED_FOLDER).mkdir()
    (tmp_path / "empty" / "no_table").mkdir(parents=True)

    def listed() -> list[str]:
        schemas = [row[0] for row in sql("show namespaces in lake")]
        found = [row[1] for row in sql("show tables in lake")]
        return found + [f"{one}.{row[1]}" for one in schemas for row in sql(f"show tables in lake.`{one}`")]

    with_lakebed = listed()
    assert sorted(with_lakebed) == sorted(all_tables_below(str(tmp_path)))
    with no_lakebed(spark):
        assert sorted(listed()) == sorted(with_lakebed)
        for name in [*names, *with_lakebed]:
            if all(parts := name.split(".", 1)):
                shown = ".".join([catalog, *(f"`{part}`" for part in parts)])
                with pytest.raises(AnalysisException, match="DELTA_TABLE_NOT_FOUND"):  # its log is empty, but there
                    spark.table(shown)
        for schema in ("empty", "dropped"):
            with pytest.raises(AnalysisException, match="SCHEMA_NOT_FOUND"):
                sql(f"show tables in lake.{schema}")
        with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
            sql("select * from lake.s.gone")


@pytest.mark.long
@pytest.mark.usefixtures("alone")
def test_a_table_of_the_warehouse_itself_and_one_with_another_name_than_its_folder_are_read(
    sql: Sql, tmp_path: Path
) -> None:
    rows = pa.table({"id": pa.array([1], pa.int64())})
    for folder in ("top", TableName("sales.my täble").folder, TableName("plain").folder):
        lakebed.create(tmp_path / folder, pa.schema([pa.field("id", pa.int64(), False)]), keys=["id"]).apply(rows)
        lakebed.open(tmp_path / folder).settle()

    for name in ("top", "sales.`my täble`", "plain"):
        assert sql(f"select * from lake.{name}") == [(1,)]


@pytest.mark.usefixtures("alone", "sold")
def test_describe_says_that_what_is_settled_is_read(sql: Sql) -> None:
    found = {row[0]: row[1] for row in sql("describe extended lake.shop.orders")}
    assert found["id"] == "bigint"
    assert "lakebed.reads=settled" in found["Table Properties"]
    assert ("lakebed.keys", '["id"]') in sql("show tblproperties lake.shop.orders")


WRITES = [
    "insert into lake.shop.orders values (9, 'q', 9)",
    "insert overwrite lake.shop.orders values (9, 'q', 9)",
    "delete from lake.shop.orders where id = 1",
    "update lake.shop.orders set n = 0",
    "merge into lake.shop.orders t using (select 1L as id) s on t.id = s.id when matched then delete",
    "truncate table lake.shop.orders",
    "create table lake.shop.new (id bigint)",
    "create table lake.shop.new as select 1 as id",
    "alter table lake.shop.orders add column more int",
    "alter table lake.shop.orders set tblproperties ('lakebed.freshness' = '1 minute')",
    "drop table lake.shop.orders",
    "create namespace lake.new",
    "drop namespace lake.shop",
    "call lake.system.settle('shop.orders')",
    "alter table lake.shop.orders recluster final",
    "select * from lake.shop.orders.parts",
]


@pytest.mark.usefixtures("alone")
def test_all_else_is_refused_in_one_sentence(spark: SparkSession, catalog: str, sql: Sql, sold: lakebed.Table) -> None:
    before = sold.inspect.timeline().num_rows
    for write in WRITES:
        with pytest.raises(AnalysisException, match=REFUSED):
            sql(write)
    with pytest.raises(AnalysisException, match="replaced by the rows of a query with the same columns"):
        sql("create or replace table lake.shop.orders as select 1 as id")
    rows = spark.createDataFrame([(9, "q", 9)], "id bigint, region string, n bigint")
    for refused in (
        lambda: rows.writeTo(f"{catalog}.shop.orders").append(),
        lambda: rows.write.mode("append").saveAsTable(f"{catalog}.shop.orders"),
        lambda: rows.write.insertInto(f"{catalog}.shop.orders"),
    ):
        with pytest.raises(AnalysisException, match=REFUSED):
            refused()
    assert sold.inspect.timeline().num_rows == before


@pytest.mark.usefixtures("alone", "sold")
def test_commands_of_delta_do_not_touch_the_table(sql: Sql, sold: lakebed.Table) -> None:
    before: dict[str, Any] = {str(path): path.stat().st_mtime for path in Path(sold.path).rglob("*")}
    for command in ("vacuum", "optimize"):
        with pytest.raises(AnalysisException, match="only supported for Delta tables"):
            sql(f"{command} lake.shop.orders")
    with pytest.raises(AnalysisException, match="only supported for Delta tables"):
        sql("restore table lake.shop.orders to version as of 1")
    assert {str(path): path.stat().st_mtime for path in Path(sold.path).rglob("*")} == before


@pytest.mark.usefixtures("alone")
def test_a_catalog_of_a_point_needs_lakebed(spark: SparkSession, catalog: str, sql: Sql, sold: lakebed.Table) -> None:
    setting = f"spark.sql.catalog.{catalog}.at"
    spark.conf.set(setting, "1")
    try:
        with pytest.raises(AnalysisException, match="is a catalog of the point 1, which lakebed alone finds"):
            sql("select * from lake.shop.orders")
    finally:
        spark.conf.unset(setting)
