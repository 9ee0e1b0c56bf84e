"""A driver: a streaming query maintains a table on S3, with its checkpoint there, until the driver ends or is killed.

    python -m tests.s3.maintenance_on_s3 TABLE CHECKPOINT VALUE (stops | killed)

It makes the table if there is none, applies rows with VALUE, and waits until a listener heard that they were settled. Then it
prints a line of JSON: the query, its batches with what each counted, and whether the listener heard its end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.streaming.listener import StreamingQueryListener

import lakebed
from lakebed.compaction.maintenance_query import OBSERVATION
from lakebed.errors import TableNotFound
from tests.internals import log_of
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 20
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
SETTINGS = {"lakebed.settle_after_changes": "1", "lakebed.read_budget": "1", "lakebed.volatile": "off"}


class Listener(StreamingQueryListener):
    """Notes what it hears."""

    def __init__(self) -> None:
        self.batches: dict[int, dict[str, int]] = {}
        self.started: list[str] = []
        self.ended: list[str | None] = []

    def onQueryStarted(self, event: Any) -> None:
        self.started.append(str(event.id))

    def onQueryProgress(self, event: Any) -> None:
        counted = event.progress.observedMetrics.get(OBSERVATION)
        if counted is not None:
            self.batches[event.progress.batchId] = counted.asDict()

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        self.ended.append(event.exception)


def main(path: str, checkpoint: str, value: int, end: str) -> None:
    spark = lakebed.spark("maintenance", "local[2]", s3=True, conf={"spark.driver.host": "127.0.0.1"})
    spark.sparkContext.setLogLevel("ERROR")
    try:
        table = lakebed.open(path)
    except TableNotFound:
        table = lakebed.create(path, SCHEMA, keys=["id"], properties=SETTINGS)
    listener, before = Listener(), table.version
    spark.streams.addListener(listener)
    maintenance = table.maintain(spark, as_query=True, trigger_seconds=0.2, checkpoint=checkpoint)
    assert maintenance.query is not None
    table.apply([{"id": value + row, "v": value} for row in range(ROWS)])
    wait_until_counted(spark, table, listener, before)
    if end == "stops":
        maintenance.stop()
        wait_until_ended(spark, listener)
    said = {
        "query": maintenance.query.id, "started": listener.started, "ended": listener.ended, "batches": listener.batches,
    }  # fmt: skip
    print(json.dumps(said), flush=True)
    if end == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    spark.stop()


def wait_until_counted(spark: SparkSession, table: lakebed.Table, listener: Listener, before: int) -> None:
    def is_counted() -> bool:
        newest = max((one["version"] for one in listener.batches.values() if one["version"] is not None), default=0)
        settled = sum(one["settled_rows"] for one in listener.batches.values() if (one["version"] or 0) > before)
        return newest > before + 1 and settled >= ROWS and not log_of(table).refresh().tail

    wait_until(is_counted, lambda: f"{listener.batches} of version {table.version}; {spark.streams.active}")


def wait_until_ended(spark: SparkSession, listener: Listener) -> None:
    wait_until(lambda: listener.ended, lambda: f"{spark.streams.active} goes on")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
