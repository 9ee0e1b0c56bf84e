"""Spark reads: exactly the live rows, natively, with what Spark can prune pruned."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import spark_partition_id

import lakebed
from lakebed.errors import Corrupt
from lakebed.sparks.session import settings
from lakebed.storage.engine import connect
from lakebed.view.arrow_scan import to_arrow
from lakebed.view.spark_scan import layout_of_dead_rows, scan
from tests.view.conftest import SCHEMA, Parts, committed_files, random_rows, same_rows


def read(spark: SparkSession, parts: Parts, files: Any = None) -> DataFrame:
    return scan(
        spark,
        str(parts.root),
        parts.schema_json,
        partition_columns=[],
        table_id="id",
        files=parts.files if files is None else files,
    )


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    out = []
    for row in frame.collect():
        values = row.asDict(recursive=True)
        if values.get("counts") is not None:
            values["counts"] = list(values["counts"].items())
        out.append(values)
    return out


def in_utc(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Python rows of Spark carry local time without a zone; the tests' session is compared through Arrow instead."""
    return [{name: value for name, value in row.items() if name != "at"} for row in rows]


def execution_of(frame: DataFrame) -> Any:
    """Spark's plans of the DataFrame, in the JVM."""
    return frame._jdf.queryExecution()


def files_read(frame: DataFrame) -> int:
    """How many files the scan of a DataFrame opened when it was collected."""
    frame.collect()
    plan = execution_of(frame).executedPlan()
    while plan.children().size():
        plan = plan.children().head()
    plan = plan.executedPlan() if plan.nodeName() == "AdaptiveSparkPlan" else plan
    while plan.children().size():
        plan = plan.children().head()
    return int(plan.metrics().get("numFiles").get().value())


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before) if before is not None else spark.conf.unset(name)


OPEN_COST = next((name, value) for name, value in settings(s3=False).items() if name.endswith("openCostInBytes"))
DEAD = {
    "none": [],
    "the first": [0],
    "the last": [4999],
    "both sides of a block's edge": [1023, 1024, 2047, 2048],
    "every other": range(0, 5000, 2),
    "all but one": [row for row in range(5000) if row != 3100],
    "a run": range(700, 4100),
    "scattered": random.Random(5).sample(range(5000), 60),
}


def test_the_layout_marks_exactly_the_dead_rows() -> None:
    for dead in DEAD.values():
        data = layout_of_dead_rows(BitMap64(dead), 5000, "f")
        found = []
        for row in range(5000):
            start = int.from_bytes(data[(row >> 10) * 4 :][:4], "big")
            found += [row] if data[start + (row % 1024 >> 3)] >> (7 - row % 8) & 1 else []
        assert found == sorted(dead)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.sql.files.maxPartitionBytes", "20000"),
        pytest.param("spark.sql.files.maxPartitionBytes", "10000000", marks=pytest.mark.long),
        pytest.param("spark.sql.parquet.enableVectorizedReader", "false", marks=pytest.mark.long),
        pytest.param("spark.sql.codegen.wholeStage", "false", marks=pytest.mark.long),
    ],
)
def test_dead_rows_are_not_read_and_all_others_are(spark: SparkSession, parts: Parts, name: str, value: str) -> None:
    for at, dead in enumerate(DEAD.values()):
        parts.add(random_rows(5000, at, at * 5000), list(dead))
    with setting(spark, name, value):
        assert value != "20000" or read(spark, parts).rdd.getNumPartitions() > 20
        assert same_rows(in_utc(rows_of(read(spark, parts))), in_utc(parts.rows))


def test_counting_needs_no_column(spark: SparkSession, parts: Parts) -> None:
    parts.add(random_rows(3000, 1), range(1000))
    parts.add(random_rows(3000, 2, 3000))
    assert read(spark, parts).count() == 5000


PREDICATES = (
    *("id = 4321", "id < 1500", "id >= 11000 or small > 298", "small between -10 and -9", "price > 9990.5"),
    *("ratio >= 0.0", "ratio = 0.0 and id < 100", "name = 'zebra7'", "name like '名前4%'", "name > 'é' and flag"),
    *("name is null", "flag is not null", "day in (date '2024-01-05', date '2024-02-01')", "not (id < 14000)"),
    *("at > timestamp '2024-04-25 10:00:00.000500'", "local <= timestamp_ntz '2024-01-01 00:20:00'", "5 > id"),
    *("place.x = 3 and id > 13000", "small in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)", "id <=> null", "id = id + 1"),
    *("array_contains(tags, 't') and id = 3", "raw = x'00' or id = 1", "name in ('a1', null)"),
)


@pytest.mark.long
def test_predicates_give_the_same_rows_with_and_without_statistics(spark: SparkSession, parts: Parts) -> None:
    rows = sorted(random_rows(15000, 3), key=lambda row: (row["at"] is not None, row["at"] and row["at"].isoformat()))
    rng = random.Random(9)
    for at in range(0, 15000, 1500):
        parts.add(rows[at : at + 1500], rng.sample(range(1500), 200), row_group_rows=15000)
    pruned, whole = (
        read(spark, parts),
        scan(
            spark,
            str(parts.root),
            parts.schema_json,
            partition_columns=[],
            table_id="other",
            files=parts.without_stats(),
        ),
    )
    live = pa.Table.from_pylist(parts.rows, SCHEMA)
    spark.createDataFrame(live.select(["id"])).createOrReplaceTempView("live_ids")
    for predicate in PREDICATES:
        expected = sorted(row.id for row in whole.where(predicate).select("id").collect())
        assert sorted(row.id for row in pruned.where(predicate).select("id").collect()) == expected, predicate
    assert pruned.join(spark.table("live_ids"), "id", "left_anti").count() == 0


def test_parts_that_cannot_match_are_not_opened(spark: SparkSession, parts: Parts) -> None:
    for at in range(8):
        parts.add(random_rows(100, at, at * 100), [5])
    assert files_read(read(spark, parts).where("id = 350")) == 1
    assert files_read(read(spark, parts).where("id in (1, 2, 799)")) == 2
    assert files_read(read(spark, parts).where("id < 200")) == 2
    assert files_read(read(spark, parts).where("200 >= id and flag")) == 3
    assert files_read(read(spark, parts).where("id > 10000")) == 0
    assert files_read(read(spark, parts)) == 8


def test_predicates_and_columns_reach_the_parquet_reader(spark: SparkSession, parts: Parts) -> None:
    parts.add(random_rows(100, 1), [5])
    plan = (
        read(spark, parts)
        .where("id > 20 and place.x = 3")
        .select("name")
        ._jdf.queryExecution()
        .executedPlan()
        .toString()
    )
    assert "PushedFilters: [IsNotNull(id), IsNotNull(place.x), GreaterThan(id,20), EqualTo(place.x,3)]" in plan
    schema = plan.split("ReadSchema: struct<")[1]
    assert schema.startswith("id:bigint,name:string,place:struct<x:int>")


def test_a_scan_without_dead_rows_is_a_plain_parquet_scan(spark: SparkSession, parts: Parts) -> None:
    parts.add(random_rows(100, 1))
    plan = read(spark, parts)._jdf.queryExecution().executedPlan().toString()
    assert "Filter" not in plan.split("FileScan")[0]
    assert "readInt" not in plan


def test_a_dataframe_stays_at_its_version(spark: SparkSession, parts: Parts) -> None:
    parts.add(random_rows(1000, 1))
    parts.add(random_rows(1000, 2, 1000), [3])
    first = tuple(parts.files)
    before = read(spark, parts, first)
    second = (replace(first[0], dead=BitMap64(range(10))), replace(first[1], dead=BitMap64([3, 4])))
    after = read(spark, parts, second)
    merged = read(spark, parts, (parts.add(random_rows(50, 3, 5000)),))
    assert [before.count(), after.count(), merged.count(), before.count()] == [1999, 1988, 50, 1999]
    assert read(spark, parts, first).count() == 1999
    assert before.join(after, "id", "left_anti").count() == 11
    assert after.join(after, "id").count() == 1988


def test_a_table_without_parts_is_empty(spark: SparkSession, parts: Parts) -> None:
    assert read(spark, parts).where("id > 3").count() == 0
    assert read(spark, parts).columns == SCHEMA.names


def test_a_dead_row_outside_its_file_is_corruption(spark: SparkSession, parts: Parts) -> None:
    file = replace(parts.add(random_rows(10, 1)), dead=BitMap64([10]))
    with pytest.raises(Corrupt, match="row 10, but the file has 10 rows"):
        read(spark, parts, [file])


def test_ten_thousand_parts_are_planned_in_one_call_and_then_kept(spark: SparkSession, parts: Parts) -> None:
    one = parts.add(random_rows(100, 1), [5])
    many = (one, *(replace(one, path=f"_lakebed/{at}.parquet", stats=_id_stats(at)) for at in range(1, 10_000)))
    frame = read(spark, parts, many)
    assert files_read(frame.where("id = 50")) == 1
    assert frame.where("id = 50").count() == 1


def _id_stats(at: int) -> str:
    bounds = f'"minValues":{{"id":{at * 100}}},"maxValues":{{"id":{at * 100 + 99}}}'
    return f'{{"numRecords":100,{bounds},"nullCount":{{"id":0}}}}'


@pytest.mark.long
def test_a_delta_table_reads_as_delta_reads_it(spark: SparkSession, tmp_path: Path) -> None:
    root = str(tmp_path / "a table")
    rows = [dict(row, p=f"a b/{row['id'] % 3}:%41=ä") for row in random_rows(1200, 4)]
    source = pa.Table.from_pylist(rows, pa.schema([*SCHEMA, ("p", pa.string())]))
    frame = spark.createDataFrame(source).selectExpr(
        "*", "if(id % 5 = 0, null, date_add(date'2024-01-01', cast(id % 2 as int))) as q"
    )
    options = {"delta.enableDeletionVectors": "true"}
    frame.repartition(2).write.format("delta").partitionBy("p", "q").options(**options).save(root)
    spark.sql(f"delete from delta.`{root}` where id % 4 = 1 or (q is null and id < 300)")
    spark.sql(f"delete from delta.`{root}` where small > 0 and id % 3 = 0")
    delta = spark.read.format("delta").load(root)
    files = committed_files(Path(root))
    assert any(file.dead for file in files)
    schema_json = delta.schema.json()
    ours = scan(spark, root, schema_json, partition_columns=["p", "q"], table_id="delta", files=files)
    assert ours.schema == delta.schema
    for predicate in (
        "true",
        "q is null",
        "q = date'2024-01-02' and p like '%1:%'",
        "p > 'a b/1' and id < 600 or q is null",
    ):
        ids = [sorted(row.id for row in side.where(predicate).select("id").collect()) for side in (ours, delta)]
        assert ids[0] == ids[1], predicate
    assert 0 < files_read(ours.where("q is null")) < len(files)

    schema = source.schema.append(pa.field("q", pa.date32()))
    by_id = [("id", "ascending")]
    expected = delta.select(*schema.names).toArrow().cast(schema).sort_by(by_id).to_pylist()
    assert ours.select(*schema.names).toArrow().cast(schema).sort_by(by_id).to_pylist() == expected
    without_spark = to_arrow(connect(threads=2), Parts(Path(root)), files, schema)
    assert without_spark.sort_by(by_id).to_pylist() == expected


def test_session_time_and_values_survive(spark: SparkSession, parts: Parts) -> None:
    parts.add(random_rows(500, 8), [1, 2, 3])
    found = read(spark, parts).select("id", "at", "local").toArrow().sort_by("id")
    expected = [{name: row[name] for name in ("id", "at", "local")} for row in parts.rows]
    assert found.cast(pa.schema([SCHEMA.field(name) for name in ("id", "at", "local")])).to_pylist() == expected


def test_a_large_part_beside_small_ones_is_read_by_more_than_one_task(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64())])
    table = lakebed.create(tmp_path / "t", schema, keys=["id"])
    rows, few = 400_000, 1000
    noise = np.random.default_rng(1).random(rows)
    table.apply(pa.table({"id": range(rows), "x": noise}, schema))
    for start in range(0, 7 * few, few):
        table.apply(pa.table({"id": range(start, start + few), "x": noise[:few]}, schema))
        table.settle()
    with setting(spark, *OPEN_COST):
        frame = table.read(spark).groupBy(spark_partition_id()).count()
        assert max(row["count"] for row in frame.collect()) <= 0.75 * rows


def test_spark_compares_the_checksums_of_the_pages_that_it_reads(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64())])
    table = lakebed.create(tmp_path / "t", schema)
    table.apply(pa.table({"id": range(5000), "x": [number / 7 for number in range(5000)]}, schema))
    [part] = table.inspect.parts()["path"].to_pylist()
    file = Path(table.path, part)
    at = pq.read_metadata(file).row_group(0).column(1).data_page_offset + 2000
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    frame = table.read(spark)
    assert frame.select("id").distinct().count() == 5000, "of columns that are not read nothing is compared"
    with pytest.raises(Exception, match="CRC checksum verification failed"):
        frame.selectExpr("sum(x)").collect()
    table.set_properties({"lakebed.verify_reads": "off"})
    table.read(spark).selectExpr("sum(x)").collect()
