"""A driver: ingest files as a stream into a table, maintain it, and say what is read afterwards.

    python pipeline_on_s3.py TABLE FOLDER FIRST LAST

Writes the input files FIRST to LAST-1 of the folder, ingests whatever the stream has not seen, and prints one line of
JSON: what every reader reads, as a count, a sum and a number of batches. The checkpoint stands where the table stands.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

import lakebed
from lakebed.errors import TableNotFound
from tests.internals import storage_of

ROWS = 200
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])


def changes(number: int) -> pa.Table:
    """Every file writes half of the keys of the one before anew, and deletes one of them."""
    ids = list(range(number * ROWS // 2, number * ROWS // 2 + ROWS))
    return pa.table({"id": ids, "v": [number] * ROWS, "op": ["d"] + ["u"] * (ROWS - 1)})


def expected(files: int) -> list[int]:
    rows: dict[int, int] = {}
    for number in range(files):
        for row in changes(number).to_pylist():
            rows[row["id"]] = row["v"]
            if row["op"] == "d":
                del rows[row["id"]]
    return [len(rows), sum(rows), sum(rows.values())]


def main(path: str, folder: str, first: int, last: int) -> None:
    # Local mode, or the cluster that the environment names.
    pyfiles = {"spark.submit.pyFiles": os.environ["SPARK_PY_FILES"]} if "SPARK_PY_FILES" in os.environ else {}
    conf = {"spark.sql.shuffle.partitions": "2", "spark.driver.host": "127.0.0.1", **pyfiles}
    spark = lakebed.spark("pipeline", os.environ.get("SPARK_MASTER", "local[2]"), s3=True, conf=conf)
    spark.sparkContext.setLogLevel("ERROR")
    hadoop: Any = spark._jvm
    least = hadoop.org.apache.hadoop.fs.s3a.impl.AWSClientConfig.getMinimumOperationDuration().toSeconds()
    arriving = Path(folder, "arriving")
    arriving.mkdir(exist_ok=True)
    for number in range(first, last):
        pq.write_table(changes(number), arriving / f"{number:05d}.parquet")
    try:
        table = lakebed.open(path)
    except TableNotFound:
        table = lakebed.create(path, SCHEMA, keys=["id"])
    stream = (
        spark.readStream.schema("id long, v long, op string")
        .option("maxFilesPerTrigger", 1)
        .parquet(f"file://{arriving}")
    )
    maintenance = table.maintain(spark)
    table.ingest(stream, apply_as_deletes="op = 'd'", trigger={"availableNow": True}).awaitTermination()
    table.settle()
    maintenance.stop()
    frame = table.read(spark)
    by_delta = spark.read.format("delta").load(storage_of(table).spark_root)
    rows = table.to_arrow().to_pylist()
    batches = [
        row for row in table.inspect.timeline().to_pylist() if row["operation"] not in ("SETTLE", "CREATE TABLE")
    ]
    print(
        json.dumps(
            {
                "rows": [len(rows), sum(row["id"] for row in rows), sum(row["v"] for row in rows)],
                "expected": expected(last),
                "read_over_s3a": summed(frame),
                "read_by_delta_spark": summed(by_delta),
                "batches": len(batches),
                "s3a_seconds_min": least,
            }
        )
    )
    spark.stop()


def summed(frame: DataFrame) -> list[int]:
    return list(frame.selectExpr("count(*)", "sum(id)", "sum(v)").first() or ())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
