"""Spark reads parts of older schemas: by their stored names, in the types that they have now, with all that it can skip."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import lakebed
from lakebed.parts.changes import UNAVAILABLE_COLUMN
from lakebed.table import Table
from tests.view.test_reads_follow_the_schema import same
from tests.view.test_spark_scan import execution_of, files_read, setting
from tests.waiting import started

DAY = datetime.date(2024, 1, 1)
STRUCT = pa.struct([("a", pa.int32()), ("x", pa.string())])
SCHEMA = pa.schema(
    [
        ("id", pa.int64()), ("small", pa.int8()), ("whole", pa.int32()), ("share", pa.float32()), ("day", pa.date32()),
        ("price", pa.decimal128(5, 2)), ("count", pa.int64()), ("place", STRUCT),
        ("items", pa.list_(pa.field("element", STRUCT))), ("by", pa.map_(pa.string(), STRUCT)),
        ("region", pa.string()), ("old", pa.string()),
    ]
)  # fmt: skip
WIDER: dict[str, Any] = {
    "small": pa.int32(), "whole": pa.float64(), "share": pa.float64(), "day": pa.timestamp("us"), "price": pa.decimal128(20, 4),
    "count": pa.decimal128(22, 1), "place.a": pa.int64(), "items.element.a": pa.decimal128(12, 2), "by.value.a": pa.float64(),
}  # fmt: skip


def rows(first: int) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "id": key, "small": at, "whole": key, "share": 0.1, "day": DAY + datetime.timedelta(days=key % 60),
                "price": Decimal("1.25") + at, "count": key, "place": {"a": key, "x": f"p{key}"} if at else None,
                "items": [{"a": at, "x": None}], "by": [("k", {"a": at, "x": "m"})], "region": "eu" if at % 2 else "us",
                "old": "gone",
            }
            for at, key in enumerate(range(first, first + 4))
        ],
        SCHEMA,
    )  # fmt: skip


def altered(path: Path) -> Table:
    """Parts from before and after each kind of change, with dead rows among them, some settled and some in the tail."""
    table = lakebed.create(path / "orders", SCHEMA, keys=["id"], partition_by=["region"])
    table.apply(rows(0))
    table.apply(rows(100))
    table.settle()
    table.alter(widen=WIDER)
    table.alter(
        rename={
            "whole": "id two",
            "place": "Where",
            "place.a": "b.c",
            "items.element.a": "x y",
            "region": "old2",
            "by": "count2",
        },
    )
    table.alter(rename={"count": "whole", "day": "count"}, drop=["old"])
    table.alter(add={"old": pa.int32(), "Where.a": pa.date32(), "note": pa.string()})
    newer = [
        row
        | {
            "whole": Decimal(key) + Decimal("0.5"),
            "count": datetime.datetime(2024, 6, 1, 5),
            "note": f"n{key}",
            "old": key,
        }
        for row in table.to_arrow(where="id in (101, 102)").to_pylist()
        for key in [row["id"]]
    ]
    newer += [row | {"id": row["id"] + 400} for row in newer]
    table.apply(pa.Table.from_pylist(newer, table.schema))
    unsent = table.schema.append(pa.field(UNAVAILABLE_COLUMN, pa.list_(pa.string())))
    (row,) = table.lookup([103]).to_pylist()
    table.apply(pa.Table.from_pylist([row | {"Where": None, UNAVAILABLE_COLUMN: ["Where"]}], unsent))
    return table


def of_spark(frame: DataFrame) -> list[dict[str, Any]]:
    return frame.toArrow().to_pylist()


CONDITIONS = [
    "`id two` > 101.5", "`id two` = 2.0", "whole >= 101.5", "whole = 3", "count >= timestamp_ntz'2024-05-01'",
    "count < timestamp_ntz'2024-01-03 00:00:01'", "share > 0.1", "share <= 0.1", "price = 2.25", "small = 1", "old2 = 'eu'",
    "old2 is null or id > 400", "Where.`b.c` = 3", "Where.x = 'p101' and Where.`b.c` > 1", "Where is null", "old is null",
    "note = 'n101'", "count2['k'].a > 1.5", "items[0].`x y` = 2.00", "id in (1, 502)",
]  # fmt: skip


def test_spark_reads_what_to_arrow_reads(spark: SparkSession, tmp_path: Path) -> None:
    table = altered(tmp_path)
    frame = table.read(spark)
    assert [field.name for field in frame.schema] == table.schema.names
    assert "delta." not in frame.schema.json(), "a table that is made of the frame must not inherit the names of files"
    same(of_spark(frame), table.to_arrow().to_pylist())
    whole = of_spark(frame)
    holds = [f"coalesce({condition}, false) as c{at}" for at, condition in enumerate(CONDITIONS)]
    # Without parts, so that nothing can be skipped.
    expected = of_spark(spark.createDataFrame(table.to_arrow(), frame.schema).selectExpr("id", *holds))
    for at, condition in enumerate(CONDITIONS):
        keys = sorted(row["id"] for row in expected if row[f"c{at}"])
        assert sorted(row["id"] for row in frame.where(condition).select("id").collect()) == keys, condition
    with setting(spark, "spark.sql.parquet.enableVectorizedReader", "false"):
        same(of_spark(table.read(spark)), whole)


def test_spark_skips_parts_and_reads_only_the_fields_that_it_needs(spark: SparkSession, tmp_path: Path) -> None:
    frame = altered(tmp_path).read(spark)
    every = files_read(frame)
    assert files_read(frame.where("`id two` < 50.5")) < every, (
        "by bounds of a whole number, written before it was widened"
    )
    assert files_read(frame.where("count < timestamp_ntz'2024-01-02'")) == 1, "by bounds of a date"
    assert files_read(frame.where("old2 = 'us'")) < every, "by a partition value"
    plan = execution_of(frame.where("Where.x = 'p3'").select("Where.x")).executedPlan().toString()
    assert "PushedFilters: [IsNotNull(Where.x), EqualTo(Where.x,p3)]" in plan
    assert "Where:struct<x:string>" in plan, "nested fields are pruned"


def test_a_version_is_read_with_the_schema_that_it_had(spark: SparkSession, tmp_path: Path) -> None:
    table = altered(tmp_path)
    before = pa.concat_tables([rows(0), rows(100)])
    same(of_spark(table.read(spark, version=3)), before.to_pylist())
    assert table.read(spark, version=3).schema.simpleString() == spark.createDataFrame(before).schema.simpleString()


def test_a_table_without_renames_is_read_by_sparks_own_format(spark: SparkSession, tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "orders", SCHEMA, keys=["id"])
    table.apply(rows(0))

    def format_of(frame: DataFrame) -> str:
        plan = execution_of(frame).analyzed()
        while plan.children().size():
            plan = plan.children().head()
        return str(plan.relation().fileFormat().getClass().getName())

    assert format_of(table.read(spark)).endswith(".ParquetFileFormat")
    table.alter(rename={"old": "older"})
    assert format_of(table.read(spark)).endswith("$StoredNames")


@pytest.mark.slow
def test_a_stream_of_changes_goes_on_with_its_columns_until_a_value_does_not_fit(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = lakebed.create(
        tmp_path / "orders", pa.schema([("id", pa.int64()), ("qty", pa.int32()), ("note", pa.string())]), keys=["id"]
    )
    seen: list[dict[str, Any]] = []

    def start() -> Any:
        frame = spark.readStream.format("lakebed_changes").option("path", table.path).load().drop("_commit_timestamp")
        writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.foreachBatch(lambda batch, _: seen.extend(row.asDict() for row in batch.collect())).start()

    def values(*names: str) -> list[Any]:
        return sorted(tuple(row[name] for name in names) for row in seen)

    def apply(batch: dict[str, list[Any]]) -> None:
        table.apply(pa.table(batch))

    apply({"id": [1], "qty": [10], "note": ["a"]})
    query = started(start)
    query.processAllAvailable()
    table.alter(rename={"note": "comment"})
    table.alter(widen={"qty": pa.int64()}, add={"note": pa.string()})
    apply({"id": [2], "qty": [20], "comment": ["b"], "note": ["new"]})
    query.processAllAvailable()
    assert values("id", "qty", "note") == [(1, 10, "a"), (2, 20, "b")], "note is the column that it was at the start"
    apply({"id": [3], "qty": [2**40], "comment": ["c"], "note": ["new"]})
    with pytest.raises(Exception, match=rf"column 'qty' has the value {2**40} in version 5.*start the query again"):
        query.processAllAvailable()
    seen.clear()
    query = started(start)
    query.processAllAvailable()
    query.stop()
    assert values("id", "qty", "comment", "note") == [(3, 2**40, "c", "new")]


def test_change_rows_of_a_frame_from_before_a_change_have_the_columns_of_the_frame(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = lakebed.create(tmp_path / "orders", pa.schema([("id", pa.int64()), ("v", pa.int32())]), keys=["id"])
    table.apply(pa.table({"id": [1], "v": pa.array([1], pa.int32())}))
    frame = table.changes(0, spark=spark)
    table.alter(rename={"v": "w"})
    table.alter(widen={"w": pa.float64()})
    assert [(row["id"], row["v"]) for row in frame.collect()] == [(1, 1)]
    assert [(row["id"], row["w"]) for row in table.changes(0, spark=spark).collect()] == [(1, 1.0)]
