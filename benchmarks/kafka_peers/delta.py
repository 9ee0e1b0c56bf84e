"""What the two ways into a plain Delta table share: the session, where the table is, which commits it has, its rows.

The session is lakebed's, which is Delta's own plus ``snapshotPartitions`` for two cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.kafka_peers.stream import COLUMNS, Commit, DeltaLog, Feed, batch_ends
from lakebed.sparks.session import settings
from tests.infra.downloads import spark_kafka_jars


class DeltaStream:
    """A query that tells Delta its batches (``txn``)."""

    queries: list[StreamingQuery]

    def __init__(self, spark: SparkSession, feed: Feed, name: str) -> None:
        self._spark = spark
        self._feed = feed
        self._path = f"{feed.table}/{name}"
        self._checkpoint = f"{self._path}/_checkpoint"
        self._log = DeltaLog(Path(self._path))

    @staticmethod
    def session(feed: Feed) -> Mapping[str, str]:
        jars = ",".join(str(jar) for jar in sorted(spark_kafka_jars().glob("*.jar")))
        return settings(s3=False) | {"spark.jars": jars}

    def commits(self) -> Mapping[str, list[Commit]]:
        batches = [
            Commit(time, batch_ends(Path(self._checkpoint), action["txn"]["version"]))
            for time, actions in self._log.commits()
            for action in actions
            if "txn" in action
        ]
        return {"any Delta reader": batches}

    def stop(self) -> None:
        self.queries[0].stop()

    def rows(self) -> DataFrame:
        return self._spark.read.format("delta").load(self._path).select(*COLUMNS)
