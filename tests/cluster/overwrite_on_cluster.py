"""A driver on a cluster that overwrites a table three times: beside tasks that fail, tasks that run twice, and lost workers.

    SPARK_MASTER=… SPARK_PY_FILES=… SPARK_EXECUTOR_OPTIONS=… python overwrite_on_cluster.py TABLE GATE

1. The first attempt of each task writes its files and then fails.
2. The first attempt of one task writes its files and then hangs, until Spark has run it a second time (speculation).
3. Each task that has written leaves a note in the folder GATE, and waits for the file ``go`` there. Meanwhile a worker is lost.

Prints the rows of the table after each, as Spark reads them, a line of JSON each.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

import pyarrow as pa

import lakebed
from lakebed.ingest import sorted_rows

ROWS = 4000
CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.locality.wait": "0",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "500ms",
}


def unlucky(kind: str, gate: str) -> type[sorted_rows.SortedWriteTask]:
    """Tasks whose first attempt does not come to its end, or not soon."""

    class Unlucky(sorted_rows.SortedWriteTask):
        def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import time
            import uuid
            from pathlib import Path

            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            is_first = context.attemptNumber() == 0
            answers = list(super().__call__(batches))
            if kind == "fails" and is_first:
                raise RuntimeError("the first attempt fails after it has written")
            if kind == "hangs" and is_first and context.partitionId() == 0:
                time.sleep(600)
            if kind == "waits":
                Path(gate, f"{uuid.uuid4().hex}.written").touch()
                while not Path(gate, "go").exists():
                    time.sleep(0.05)
            yield from answers

    return Unlucky


def main(path: str, gate: str) -> None:
    conf = {
        **CONF,
        "spark.submit.pyFiles": os.environ["SPARK_PY_FILES"],
        "spark.executor.extraJavaOptions": os.environ["SPARK_EXECUTOR_OPTIONS"],
    }
    spark = lakebed.spark("overwrites on a cluster", os.environ["SPARK_MASTER"], s3=False, conf=conf)
    spark.sparkContext.setLogLevel("ERROR")
    table = lakebed.open(path)
    for kind in ("fails", "hangs", "waits"):
        sorted_rows.SortedWriteTask = unlucky(kind, gate)  # type: ignore[misc]
        rows = spark.range(ROWS).selectExpr("id", "cast(id % 2 as int) as day", f"'{kind}' as value")
        print(json.dumps({"begins": kind}), flush=True)
        table.overwrite(rows)
        found = table.read(spark).groupBy("value").count().collect()
        print(json.dumps({"rows": {row["value"]: row["count"] for row in found}}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
