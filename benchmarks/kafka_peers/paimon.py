"""Apache Paimon: Spark's Kafka source into a primary key table, appended to in foreachBatch.

- The table is that of ``benchmarks.peers``: two fixed buckets, one a core; ``sequence.field`` orders the changes of a key,
  ``rowkind.field`` tells deletes; its writer compacts by itself.
- Paimon keeps the newest row of a key within a batch too, so none is dropped before.
- Nothing else writes the table, so a batch is in the first snapshot after the newest one before it; a compaction adds another.

Paimon's own ingestion of change data runs on Flink alone, so it is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.kafka_peers.stream import (
    COLUMNS,
    DDL,
    IN_SPARK_3,
    SPARK_3_KAFKA,
    Commit,
    Feed,
    batch_ends,
    changes,
    records,
)
from benchmarks.peers.paimon import PACKAGE, session

_PROPERTIES = {
    "file.format": "parquet",
    "primary-key": "id",
    "bucket": "2",
    "sequence.field": "lsn",
    "rowkind.field": "kind",
}
_KIND = "case op when 'd' then '-D' when 'u' then '+U' else '+I' end as kind"


class Paimon:
    resolves = True

    def __init__(self, spark: SparkSession, feed: Feed, name: str) -> None:
        self._spark = spark
        self._feed = feed
        self._table = f"peers.bench.{name}"
        self._path = Path(feed.table, "bench.db", name)
        self._checkpoint = Path(feed.table, f"{name}-checkpoint")
        self._written: list[tuple[int, int]] = []
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in _PROPERTIES.items())
        spark.sql("create database if not exists peers.bench")
        spark.sql(f"create table {self._table} ({DDL}, lsn bigint, kind string) tblproperties ({properties})")

    @staticmethod
    def session(feed: Feed) -> Mapping[str, str]:
        own = session(feed.table)
        excluded = f"{own['spark.jars.excludes']},{IN_SPARK_3}"
        return own | {"spark.jars.packages": f"{PACKAGE},{SPARK_3_KAFKA}", "spark.jars.excludes": excluded}

    @property
    def settings(self) -> Mapping[str, str]:
        own = {"jar": PACKAGE, "write": "append in foreachBatch", "maxOffsetsPerTrigger": str(self._feed.batch_records)}
        return own | {"maintenance": "by the writer, as it sees fit"} | _PROPERTIES

    def start(self, topic: str) -> None:
        events = changes(records(self._spark, self._feed, topic))
        query = (
            events.selectExpr(*COLUMNS, "lsn", _KIND)
            .writeStream.option("checkpointLocation", str(self._checkpoint))
            .foreachBatch(self._append)
            .trigger(processingTime="0 seconds")
            .start()
        )
        self.queries = [query]

    def _append(self, batch: DataFrame, number: int) -> None:
        latest = self._path / "snapshot" / "LATEST"
        before = int(latest.read_text()) if latest.exists() else 0
        batch.writeTo(self._table).append()
        self._written.append((number, before + 1))

    def commits(self) -> Mapping[str, list[Commit]]:
        out = []
        while self._written:
            number, snapshot = self._written.pop(0)
            file = self._path / "snapshot" / f"snapshot-{snapshot}"
            out.append(Commit(file.stat().st_mtime, batch_ends(self._checkpoint, number)))
        return {"any Paimon reader": out}

    def stop(self) -> None:
        self.queries[0].stop()

    def rows(self) -> DataFrame:
        return self._spark.table(self._table).select(*COLUMNS)
