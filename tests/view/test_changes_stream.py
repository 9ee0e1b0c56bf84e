"""The change rows of a table as a streaming source for the next layer."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import lakebed
from lakebed.parts.changes import UNAVAILABLE_COLUMN
from tests.waiting import ended, started


@pytest.mark.slow
def test_a_stream_of_changes_gives_each_commit_once_and_goes_on_after_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.string())])
    table = lakebed.create(tmp_path / "orders", schema, keys=["id"])
    seen: list[tuple[int, str | None, str]] = []

    def run() -> None:
        frame = spark.readStream.format("lakebed_changes").option("path", table.path).load()
        writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).foreachBatch(
            lambda batch, _: seen.extend((row["id"], row["v"], row["_change_type"]) for row in batch.collect())
        )
        ended(started(query.start))

    table.apply(pa.table({"id": [1, 2], "v": ["a", "b"]}))
    table.settle()
    run()
    assert sorted(seen) == [(1, "a", "upsert"), (2, "b", "upsert")], "settling changes no row"
    seen.clear()
    table.apply(pa.table({"id": [1], "v": ["c"], "op": ["d"]}), apply_as_deletes="op = 'd'")
    run()
    assert [(key, kind) for key, _, kind in seen] == [(1, "delete")]


@pytest.mark.long
@pytest.mark.slow
def test_a_copy_that_a_stream_of_changes_makes_equals_its_table(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.string()), ("large", pa.string())])
    table = lakebed.create(tmp_path / "orders", schema, keys=["id"])
    copy = lakebed.create(tmp_path / "copy", schema, keys=["id"])
    unsent = schema.append(pa.field(UNAVAILABLE_COLUMN, pa.list_(pa.string())))

    def follow(batch: DataFrame, _: int) -> None:
        emptied = batch.where("_change_type = 'truncate'").agg({"_commit_version": "max"}).first()
        assert emptied is not None
        if emptied[0] is not None:
            copy.truncate()
            batch = batch.where(f"_commit_version >= {emptied[0]} and _change_type <> 'truncate'")
        copy.apply(batch, apply_as_deletes="_change_type = 'delete'")

    def run() -> None:
        frame = spark.readStream.format("lakebed_changes").option("path", table.path).load()
        writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        ended(started(writer.trigger(availableNow=True).foreachBatch(follow).start))
        assert sorted(copy.to_arrow().to_pylist(), key=repr) == sorted(table.to_arrow().to_pylist(), key=repr)

    table.apply(pa.table({"id": [9], "v": ["gone"], "large": ["gone"]}))
    table.truncate()
    table.apply(pa.table({"id": [1, 2, 3], "v": ["a", "b", "c"], "large": ["A", "B", "C"]}))
    run()
    table.apply(pa.table([[1, 2], ["x", "y"], [None, None], [["large"], ["large"]]], schema=unsent))
    table.delete("id = 2")
    table.settle()
    run()
    assert table.to_arrow(where="id = 1").to_pylist() == [{"id": 1, "v": "x", "large": "A"}]
