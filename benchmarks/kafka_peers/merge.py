"""Delta Lake: MERGE of each batch's newest changes, in foreachBatch, as its documentation writes change data into a table.

- One row a key, the newest by ``source.lsn``, since MERGE demands it
  (https://docs.delta.io/latest/delta-update.html#write-change-data-into-a-delta-table).
- Deletion vectors let MERGE mark rows in place of rewriting files (https://docs.delta.io/latest/delta-deletion-vectors.html).
- ``txnAppId`` and ``txnVersion`` make a batch that comes again count once
  (https://docs.delta.io/latest/delta-streaming.html#idempotent-table-writes-in-foreachbatch).
- A trigger follows when the last batch is done: what waits becomes one MERGE, and larger ones cost less an event.
- MERGE materializes its source by itself, so no ``persist``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.kafka_peers.append import DeltaBatches, delta_session
from benchmarks.kafka_peers.stream import COLUMNS, DDL, Commit, Feed, changes, newest, records


class Merge:
    resolves = True

    def __init__(self, spark: SparkSession, feed: Feed, name: str) -> None:
        self._spark = spark
        self._feed = feed
        self._name = name
        self._path = f"{feed.table}/{name}"
        self._checkpoint = f"{self._path}/_checkpoint"
        self._batches = DeltaBatches(Path(self._path), Path(self._checkpoint))
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in _PROPERTIES.items())
        spark.sql(f"create table delta.`{self._path}` ({DDL}) using delta tblproperties ({properties})")

    @staticmethod
    def session(feed: Feed) -> Mapping[str, str]:
        return delta_session()

    @property
    def settings(self) -> Mapping[str, str]:
        own = {"write": "newest a key, MERGE in foreachBatch", "maxOffsetsPerTrigger": str(self._feed.batch_records)}
        return own | _PROPERTIES

    def start(self, topic: str) -> None:
        events = changes(records(self._spark, self._feed, topic))
        query = (
            events.writeStream.option("checkpointLocation", self._checkpoint).foreachBatch(self._merge)
            .trigger(processingTime="0 seconds").start()
        )  # fmt: skip
        self.queries = [query]

    def _merge(self, batch: DataFrame, number: int) -> None:
        spark = batch.sparkSession
        spark.conf.set("spark.databricks.delta.write.txnAppId", self._name)
        spark.conf.set("spark.databricks.delta.write.txnVersion", str(number))
        newest(batch).createOrReplaceTempView("newest_changes")
        spark.sql(
            f"merge into delta.`{self._path}` t using newest_changes s on t.id = s.id "
            "when matched and s.op = 'd' then delete "
            f"when matched then update set {', '.join(f't.{name} = s.{name}' for name in COLUMNS)} "
            f"when not matched and s.op <> 'd' then insert ({', '.join(COLUMNS)}) "
            f"values ({', '.join(f's.{name}' for name in COLUMNS)})"
        ).collect()

    def commits(self) -> Mapping[str, list[Commit]]:
        return {"any Delta reader": self._batches.commits()}

    def stop(self) -> None:
        self.queries[0].stop()

    def rows(self) -> DataFrame:
        return self._spark.read.format("delta").load(self._path).select(*COLUMNS)


_PROPERTIES = {"delta.enableDeletionVectors": "true"}
