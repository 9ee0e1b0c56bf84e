"""The change rows of a table as a streaming source for the next layer."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lakebed


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
        started = query.start()
        assert started.awaitTermination(120) and started.exception() is None

    table.apply(pa.table({"id": [1, 2], "v": ["a", "b"]}))
    table.settle()
    run()
    assert sorted(seen) == [(1, "a", "upsert"), (2, "b", "upsert")], "settling changes no row"
    seen.clear()
    table.apply(pa.table({"id": [1], "v": ["c"], "op": ["d"]}), apply_as_deletes="op = 'd'")
    run()
    assert [(key, kind) for key, _, kind in seen] == [(1, "delete")]
