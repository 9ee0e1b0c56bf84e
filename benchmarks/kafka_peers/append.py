"""The floor: Spark's Kafka source and Delta's own streaming sink, which keeps every event and resolves nothing.

What it leaves behind is not the table. A trigger follows when the last batch is done, Spark's default.
The session is lakebed's, which is Delta's own plus ``snapshotPartitions`` for two cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.kafka_peers.stream import COLUMNS, Commit, DeltaLog, Feed, batch_ends, changes, records
from lakebed.session import settings
from tests.infra.downloads import spark_kafka_jars


def delta_session() -> dict[str, str]:
    """Delta's settings and Spark's Kafka source, of the project's own Spark."""
    jars = ",".join(str(jar) for jar in sorted(spark_kafka_jars().glob("*.jar")))
    return settings(s3=False) | {"spark.jars": jars}


class DeltaBatches:
    """The commits of a query that tells Delta its batches (``txn``)."""

    def __init__(self, table: Path, checkpoint: Path) -> None:
        self._log = DeltaLog(table)
        self._checkpoint = checkpoint

    def commits(self) -> list[Commit]:
        return [
            Commit(time, batch_ends(self._checkpoint, action["txn"]["version"]))
            for time, actions in self._log.commits()
            for action in actions
            if "txn" in action
        ]


class Append:
    resolves = False

    def __init__(self, spark: SparkSession, feed: Feed, name: str) -> None:
        self._spark = spark
        self._feed = feed
        self._path = f"{feed.table}/{name}"
        self._checkpoint = f"{self._path}/_checkpoint"
        self._batches = DeltaBatches(Path(self._path), Path(self._checkpoint))

    @staticmethod
    def session(feed: Feed) -> Mapping[str, str]:
        return delta_session()

    @property
    def settings(self) -> Mapping[str, str]:
        return {
            "write": "from_json, writeStream.format('delta')",
            "maxOffsetsPerTrigger": str(self._feed.batch_records),
        }

    def start(self, topic: str) -> None:
        events = changes(records(self._spark, self._feed, topic))
        query = (
            events.writeStream.format("delta").option("checkpointLocation", self._checkpoint)
            .trigger(processingTime="0 seconds").start(self._path)
        )  # fmt: skip
        self.queries = [query]

    def commits(self) -> Mapping[str, list[Commit]]:
        return {"any Delta reader": self._batches.commits()}

    def stop(self) -> None:
        self.queries[0].stop()

    def rows(self) -> DataFrame:
        return self._spark.read.format("delta").load(self._path).select(*COLUMNS)
