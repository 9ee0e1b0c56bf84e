"""A driver on a cluster: ingest files as a stream, a few a batch, while somebody may take workers away.

    SPARK_MASTER=… SPARK_PY_FILES=… SPARK_EXECUTOR_OPTIONS=… python ingest_on_cluster.py TABLE ARRIVING

Every row is written with the folder of the executor that had it and the place that lakebed was imported from there.
Prints one line of JSON when all files are in the table.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.streaming.query import StreamingQuery

import lakebed


def on_a_worker(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import os
    import time

    import lakebed.ingest

    time.sleep(0.4)  # so that two tasks of a batch run at once, and one is there to be killed
    for batch in batches:
        seen = [os.getcwd()] * len(batch), [str(lakebed.ingest.__file__)] * len(batch)
        yield pa.RecordBatch.from_arrays(
            [*batch.columns, *map(pa.array, seen)], [*batch.schema.names, "worker", "module"]
        )


def commits_seen(query: StreamingQuery) -> int:
    return sum(progress.observedMetrics["lakebed"].commits for progress in query.recentProgress)


def main(path: str, arriving: str) -> None:
    conf = {
        "spark.submit.pyFiles": os.environ["SPARK_PY_FILES"],
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": os.environ["SPARK_EXECUTOR_OPTIONS"],
        "spark.cores.max": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.locality.wait": "0",
        "spark.sql.shuffle.partitions": "2",
    }
    spark = lakebed.spark("ingest on a cluster", os.environ["SPARK_MASTER"], s3=False, conf=conf)
    spark.sparkContext.setLogLevel("ERROR")
    table = lakebed.open(path)
    source = spark.readStream.schema("id long, v long, op string").option("maxFilesPerTrigger", 2).parquet(arriving)
    changes = source.mapInArrow(on_a_worker, "id long, v long, op string, worker string, module string")
    maintenance = table.maintain(spark)
    table.ingest(changes, apply_as_deletes="op = 'd'", trigger={"availableNow": True}).awaitTermination()
    assert maintenance.query is not None, "on a cluster it is a streaming query"
    while not (commits := commits_seen(maintenance.query)):
        maintenance.awaitTermination(0.1)
    maintenance.stop()
    table.settle()
    rows = table.read(spark).count()
    print(json.dumps({"rows_on_the_cluster": rows, "commits_seen_by_maintenance": commits}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
