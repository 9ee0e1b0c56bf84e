"""df.writeStream.toTable: a stream into a table by its name, each batch in one commit, once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

import lakebed
from tests.names.conftest import Sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

pytestmark = pytest.mark.slow
SCHEMA = "id bigint, region string, n bigint"
Arrive = Callable[..., None]


@pytest.fixture
def arriving(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """A stream of the files that ``arrive`` writes."""
    folder = tmp_path / "arriving"
    folder.mkdir()
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder))


@pytest.fixture
def arrive(tmp_path: Path) -> Arrive:
    def write(*rows: tuple[int, str | None, int]) -> None:
        at = len([*(tmp_path / "arriving").iterdir()])
        lines = [json.dumps(dict(zip(("id", "region", "n"), row, strict=True))) for row in rows]
        file = tmp_path / "arriving" / f"{at}.json"
        file.write_text("\n".join(lines))
        os.utime(file, (at, at))  # Spark reads the oldest first

    return write


@pytest.fixture
def run(catalog: str, tmp_path: Path) -> Callable[..., None]:
    def run(stream: DataFrame, table: str = "orders", mode: str = "append", checkpoint: str = "checkpoint") -> None:
        writer: DataStreamWriter = stream.writeStream.outputMode(mode).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / checkpoint)).toTable(f"{catalog}.shop.{table}")
        query.awaitTermination()

    return run


def test_a_stream_upserts_into_a_table_with_keys(
    sql: Sql, orders: lakebed.Table, arriving: DataFrame, arrive: Arrive, run: Callable[..., None]
) -> None:
    before = orders.version
    arrive((1, "z", 11), (4, "d", 40))
    arrive((4, "e", 41))
    run(arriving)
    arrive((5, None, 50))
    run(arriving)
    run(arriving)
    assert sql("select * from lake.shop.orders order by id") == [
        (1, "z", 11), (2, "b", 20), (3, "c", 30), (4, "e", 41), (5, None, 50),
    ]  # fmt: skip
    assert orders.version == before + 3
    assert [row["operation"] for row in orders.inspect.timeline().to_pylist()][:3] == ["STREAMING UPDATE"] * 3


def test_a_batch_that_spark_repeats_is_left_out(
    sql: Sql, arriving: DataFrame, arrive: Arrive, run: Callable[..., None], tmp_path: Path
) -> None:
    sql(f"create table lake.shop.log ({SCHEMA})")
    arrive((1, "a", 1))
    run(arriving, "log")
    for commit in (tmp_path / "checkpoint" / "commits").iterdir():  # as if Spark had ended before it wrote them
        commit.unlink()
    run(arriving, "log")
    assert sql("select * from lake.shop.log") == [(1, "a", 1)]


def test_a_table_that_is_not_there_is_made(
    sql: Sql, arriving: DataFrame, arrive: Arrive, run: Callable[..., None]
) -> None:
    arrive((1, "a", 1), (1, "a", 1))
    run(arriving, "made")
    assert sql("select * from lake.shop.made") == [(1, "a", 1)] * 2
    assert ("Provider", "lakebed", "") in sql("describe extended lake.shop.made")


@pytest.mark.long
def test_aggregates_are_updated_by_key_or_replaced(
    sql: Sql, arriving: DataFrame, arrive: Arrive, run: Callable[..., None]
) -> None:
    for name in ("updated", "replaced"):
        sql(f"create table lake.shop.{name} (region string, rows bigint) tblproperties ('lakebed.keys' = 'region')")
    sql("insert into lake.shop.updated values ('z', 1)")
    sql("insert into lake.shop.replaced values ('z', 1)")
    counts = arriving.groupBy("region").count().withColumnRenamed("count", "rows")
    for rows in ([(1, "a", 1), (2, "b", 1)], [(3, "b", 1), (4, "c", 1)]):
        arrive(*rows)
        run(counts, "updated", "update", "of updated")
        run(counts, "replaced", "complete", "of replaced")
    assert sql("select * from lake.shop.updated order by region") == [("a", 1), ("b", 2), ("c", 1), ("z", 1)]
    assert sql("select * from lake.shop.replaced order by region") == [("a", 1), ("b", 2), ("c", 1)]

    sql("create table lake.shop.log (region string, rows bigint)")
    with pytest.raises(StreamingQueryException, match=r"shop\.log does not support Update mode"):
        run(counts, "log", "update", "of log")


def test_a_row_that_does_not_fit_ends_the_query(
    sql: Sql, orders: lakebed.Table, arriving: DataFrame, arrive: Arrive, run: Callable[..., None]
) -> None:
    arrive((7, "a", 1))
    with pytest.raises(StreamingQueryException, match="id"):
        run(arriving.selectExpr("cast(null as bigint) as id", "region", "n"))
    with pytest.raises(StreamingQueryException, match=r"the changes lack.*'n'"):
        run(arriving.select("id", "region"), checkpoint="another")
    assert len(sql("select * from lake.shop.orders")) == 3


def test_a_metadata_table_is_not_written(orders: lakebed.Table, arriving: DataFrame, run: Callable[..., None]) -> None:
    with pytest.raises(AnalysisException, match="it is a metadata table, which can't be changed"):
        run(arriving, "orders.parts")


def test_a_table_is_read_as_a_stream_of_its_rows(
    spark: SparkSession, sql: Sql, catalog: str, orders: lakebed.Table, run: Callable[..., None]
) -> None:
    rows = spark.readStream.table(f"{catalog}.shop.orders").where("id < 9 and region is not null")
    run(rows, "copy")
    sql("insert into lake.shop.orders values (1, 'z', 11), (9, 'y', 90), (8, null, 8)")
    orders.settle()
    run(rows, "copy")
    assert sql("select * from lake.shop.copy order by id, n") == [
        (1, "a", 10), (1, "z", 11), (2, "b", 20), (3, "c", 30),
    ]  # fmt: skip

    sql("delete from lake.shop.orders where id = 8")  # which the query leaves out
    with pytest.raises(
        StreamingQueryException, match=r"rows left lake\d+\.shop\.orders in version \d+.*lakebed_changes"
    ):
        run(rows, "copy")
    after = spark.readStream.option("startingVersion", orders.version + 1).table(f"{catalog}.shop.orders")
    orders.apply([{"id": 5, "region": "e", "n": 50}])
    run(after, "later", checkpoint="of later")
    assert sql("select * from lake.shop.later") == [(5, "e", 50)]


@pytest.mark.long
def test_a_stream_of_rows_goes_on_with_new_columns_but_not_with_another_table(
    spark: SparkSession, sql: Sql, catalog: str, orders: lakebed.Table, run: Callable[..., None]
) -> None:
    def rows() -> DataFrame:
        return spark.readStream.table(f"{catalog}.shop.orders")

    defined = rows()
    run(defined.select("id", "n"), "copy")
    sql("alter table lake.shop.orders rename column region to area")
    sql("alter table lake.shop.orders add column note string")
    sql("insert into lake.shop.orders values (4, 'd', 40, 'new')")
    run(defined.select("id", "n"), "copy")  # by the names of the day on which it was defined
    sql("insert into lake.shop.orders values (5, 'e', 50, 'newer')")
    run(rows().select("id", "n").where("note is not null and area = 'e'"), "copy")
    assert sql("select * from lake.shop.copy order by id") == [(1, 10), (2, 20), (3, 30), (4, 40), (5, 50)]

    sql("drop table lake.shop.orders purge")
    sql("create table lake.shop.orders (id bigint not null, area string, n bigint, note string) "
        "tblproperties ('lakebed.keys' = 'id')")  # fmt: skip
    for id in range(20, 32):
        sql(f"insert into lake.shop.orders values ({id}, 'f', 60, null)")
    with pytest.raises(
        StreamingQueryException, match="another table is in the place of the one that this query has read"
    ):
        run(rows().select("id", "n"), "copy")
    run(rows().select("id", "n"), "fresh", checkpoint="of fresh")
    assert sql("select count(*) from lake.shop.fresh") == [(12,)]


def test_what_a_stream_of_a_table_cannot_be_is_said_at_once(
    spark: SparkSession, catalog: str, orders: lakebed.Table
) -> None:
    for option, value in (("ignoreDeletes", True), ("maxFilesPerTrigger", 1), ("startingVersion", "latest")):
        with pytest.raises(AnalysisException, match="has one option, startingVersion"):
            spark.readStream.option(option, value).table(f"{catalog}.shop.orders")
    with pytest.raises(AnalysisException, match="is a metadata table: it can't be read as a stream"):
        spark.readStream.table(f"{catalog}.shop.orders.parts")
