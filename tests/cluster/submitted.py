"""A program for ``spark-submit``: it fills a table, merges it and replaces a partition, all by tasks of the cluster.

    spark-submit … submitted.py TABLE

Prints a line of JSON: the rows, as Spark reads them, the Python of the driver, and what tasks found where they ran.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

import pyarrow as pa

import lakebed

ROWS = 20_000


def seen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a task finds where it runs."""
    import getpass
    import os
    import sys
    import time

    import lakebed

    time.sleep(1)  # so that both workers have one
    list(batches)
    found = {
        "python": sys.executable, "lakebed": lakebed.__file__, "user": getpass.getuser(), "folder": os.getcwd(),
        "driver_files": os.path.exists(DRIVER_FOLDER),
    }  # fmt: skip
    yield pa.RecordBatch.from_pylist([{"seen": json.dumps(found)}])


DRIVER_FOLDER = os.path.dirname(os.path.abspath(__file__))


def main(path: str) -> None:
    spark = lakebed.spark("submitted", s3=True)
    spark.sparkContext.setLogLevel("ERROR")
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("day", pa.int32()), ("v", pa.string())])
    table = lakebed.create(
        path,
        schema,
        keys=["id"],
        partition_by=["day"],
        properties={"lakebed.read_budget": "1", "lakebed.volatile": "off"},
    )
    rows = spark.range(ROWS).selectExpr("id", "cast(id % 2 as int) as day", "'applied' as v")
    for part in range(3):
        table.apply(rows.where(f"id % 3 = {part}"))
        table.settle()
    table.maintenance.recluster(final=True, spark=spark)
    table.replace_partition({"day": 1}, rows.where("day = 1").selectExpr("id", "day", "'replaced' as v"))
    counted = {row["v"]: row["count"] for row in table.read(spark).groupBy("v").count().collect()}
    found = spark.range(4).repartition(4).mapInArrow(seen, "seen string").collect()
    print(json.dumps({"rows": counted, "tasks": [json.loads(row["seen"]) for row in found], "driver": sys.executable}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
