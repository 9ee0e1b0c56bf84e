"""A driver on a cluster that overwrites a table four times: beside tasks that fail, tasks that run twice, and lost workers.

    SPARK_MASTER=… SPARK_PY_FILES=… SPARK_EXECUTOR_OPTIONS=… python overwrite_on_cluster.py TABLE GATE

1. The first attempt of each task writes its files and then fails.
2. The first attempt of one task writes its files and then hangs, until Spark has run it a second time (speculation).
3. Rows are overwritten by a condition. Each task that has written waits for the file ``GATE/waits/go``. Meanwhile a worker is
   lost, and a change of one of the rows is committed.
4. One of two days is overwritten. Each task that has read new keys, to join them with those of the other day, waits for
   ``GATE/joins/go``. Meanwhile the other worker is lost.

The first attempt of a task leaves a note of what it wrote: ``GATE/fails/0.note``, and so on.
Prints the rows of the table after each, as Spark reads them, a line of JSON each.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

import lakebed
from lakebed.ingest import sorted_rows
from lakebed.table import internals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Task = sorted_rows.SortedWriteTask  # each kind of unlucky ones replaces it
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


def wait_for(file: Path) -> None:
    """Return when it is there."""
    import time

    while not file.exists():
        time.sleep(0.05)


def unlucky(kind: str, gate: str) -> type[Task]:
    """Tasks whose first attempt does not come to its end, or not soon."""
    notes = Path(gate, kind)

    class Unlucky(Task):
        def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pickle
            import time

            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            is_first, hangs = context.attemptNumber() == 0, kind == "hangs" and context.partitionId() == 0
            answers = list(super().__call__(batches))
            if is_first:
                written = [
                    part.path for one in answers for part in pickle.loads(one["answer"][0].as_py()).written.parts
                ]
                (notes / f"{context.partitionId()}.note").write_text(json.dumps(written))
                if kind == "fails":
                    raise RuntimeError("the first attempt fails after it has written")
                time.sleep(600 if hangs else 0)
            elif kind != "waits":  # so that no file is written when the job has ended
                wait_for(notes / f"{context.partitionId()}.note")
            if kind == "waits":
                wait_for(notes / "go")
            yield from answers

    return Unlucky


def joining(gate: str) -> Callable[[DataFrame, DataFrame], DataFrame]:
    """The join of keys, whose tasks wait when they have read the new ones."""
    notes, whole = Path(gate, "joins"), internals.keys_in_both

    def waited(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        read = list(batches)
        (notes / f"{context.partitionId()}.note").write_text("[]")
        wait_for(notes / "go")
        yield from read

    return lambda own, others: whole(own.repartition(4).mapInArrow(waited, own.schema), others)


def main(path: str, gate: str) -> None:
    conf = {
        **CONF,
        "spark.submit.pyFiles": os.environ["SPARK_PY_FILES"],
        "spark.executor.extraJavaOptions": os.environ["SPARK_EXECUTOR_OPTIONS"],
    }
    spark = lakebed.spark("overwrites on a cluster", os.environ["SPARK_MASTER"], s3=False, conf=conf)
    spark.sparkContext.setLogLevel("ERROR")
    table = lakebed.open(path)
    internals.keys_in_both = joining(gate)
    for kind in ("fails", "hangs", "waits", "joins"):
        sorted_rows.SortedWriteTask = Task if kind == "joins" else unlucky(kind, gate)  # type: ignore[misc]
        rows = spark.range(ROWS).selectExpr("id", "cast(id % 2 as int) as day", f"'{kind}' as value")
        print(json.dumps({"begins": kind}), flush=True)
        if kind == "joins":
            table.overwrite(rows.where("day = 0"), "day = 0")
        else:
            table.overwrite(rows, "value <> 'later'" if kind == "waits" else None)
        found = table.read(spark).groupBy("value").count().collect()
        print(json.dumps({"rows": {row["value"]: row["count"] for row in found}}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
