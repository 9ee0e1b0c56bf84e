"""Delta Lake: MERGE of each batch's newest changes, in foreachBatch, as its documentation writes change data into a table.

- One row a key, the newest by ``source.lsn``, since MERGE demands it
  (https://docs.delta.io/latest/delta-update.html#write-change-data-into-a-delta-table).
- Deletion vectors let MERGE mark rows in place of rewriting files (https://docs.delta.io/latest/delta-deletion-vectors.html).
- ``txnAppId`` and ``txnVersion`` make a batch that comes again count once
  (https://docs.delta.io/latest/delta-streaming.html#idempotent-table-writes-in-foreachbatch).
- A trigger follows when the last batch is done: what waits becomes one MERGE, and larger ones cost less an event.
- No ``persist``: Delta materializes a source that is no Delta table by itself (``merge.materializeSource``, ``auto``).
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from benchmarks.kafka_peers.delta import DeltaStream
from benchmarks.kafka_peers.stream import COLUMNS, DDL, Feed, changes, newest, records

_PROPERTIES = {"delta.enableDeletionVectors": "true"}


class Merge(DeltaStream):
    resolves = True

    def __init__(self, spark: SparkSession, feed: Feed, name: str) -> None:
        super().__init__(spark, feed, name)
        self._name = name
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in _PROPERTIES.items())
        spark.sql(f"create table delta.`{self._path}` ({DDL}) using delta tblproperties ({properties})")

    @property
    def settings(self) -> Mapping[str, str]:
        own = {"write": "newest a key, MERGE in foreachBatch", "maxOffsetsPerTrigger": str(self._feed.batch_records)}
        return own | _PROPERTIES

    def start(self, topic: str) -> None:
        events = changes(records(self._spark, self._feed, topic))
        query = (
            events.writeStream.option("checkpointLocation", self._checkpoint)
            .foreachBatch(self._merge)
            .trigger(processingTime="0 seconds")
            .start()
        )
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
