"""Apache Hudi: Spark's Kafka source into Hudi's own streaming sink, a merge-on-read table with the bucket index.

- The streaming sink compacts beside the writer, after five delta commits, its defaults
  (https://hudi.apache.org/docs/writing_tables_streaming_writes, https://hudi.apache.org/docs/compaction).
- The bucket index needs no look-up of keys (https://hudi.apache.org/docs/indexes#bucket-index); two buckets, one a core.
- ``lsn`` orders the changes of a key, ``_hoodie_is_deleted`` tells deletes within upserts
  (https://hudi.apache.org/docs/writing_data#deletes).
- Kryo, the extension and the catalog as in the quick start; parallelism of shuffles: the cores.

Hudi Streamer is left out: its jar (hudi-utilities-slim-bundle 1.2.0) could not be fetched when this was written. Its Debezium
source wants Avro and a schema registry besides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.kafka_peers.stream import COLUMNS, IN_SPARK_3, SPARK_3_KAFKA, Commit, Feed, batch_ends, changes, records
from benchmarks.peers.hudi import PACKAGE, SESSION

_WRITER = "orders"
_OPTIONS = {
    "hoodie.table.name": "orders",
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.datasource.write.operation": "upsert",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.precombine.field": "lsn",
    "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.NonpartitionedKeyGenerator",
    "hoodie.datasource.write.streaming.checkpoint.identifier": _WRITER,
    "hoodie.index.type": "BUCKET",
    "hoodie.bucket.index.num.buckets": "2",
    "hoodie.parquet.compression.codec": "zstd",
    "hoodie.upsert.shuffle.parallelism": "2",
    "hoodie.insert.shuffle.parallelism": "2",
}
_CHECKPOINT_KEY = "_hudi_streaming_sink_checkpoint"


class Hudi:
    resolves = True

    def __init__(self, spark: SparkSession, feed: Feed, name: str) -> None:
        self._spark = spark
        self._feed = feed
        self._path = f"{feed.table}/{name}"
        self._checkpoint = f"{feed.table}/{name}-checkpoint"
        self._seen = ""
        self._timeline: Any = None

    @staticmethod
    def session(feed: Feed) -> Mapping[str, str]:
        return SESSION | {"spark.jars.packages": f"{PACKAGE},{SPARK_3_KAFKA}", "spark.jars.excludes": IN_SPARK_3}

    @property
    def settings(self) -> Mapping[str, str]:
        return {"jar": PACKAGE, "maxOffsetsPerTrigger": str(self._feed.batch_records)} | _OPTIONS

    def start(self, topic: str) -> None:
        events = changes(records(self._spark, self._feed, topic))
        query = (
            events.selectExpr(*COLUMNS, "lsn", "op = 'd' as _hoodie_is_deleted")
            .writeStream.format("hudi")
            .options(**_OPTIONS)
            .option("checkpointLocation", self._checkpoint)
            .trigger(processingTime="0 seconds")
            .outputMode("append")
            .start(self._path)
        )
        self.queries = [query]

    def commits(self) -> Mapping[str, list[Commit]]:
        return {"snapshot query": self._completed()}

    def _completed(self) -> list[Commit]:
        """Delta commits that were completed since this was asked last, by Hudi's own timeline."""
        if self._timeline is None:
            if not Path(self._path, ".hoodie", "hoodie.properties").exists():
                return []
            jvm: Any = self._spark._jvm
            storage = jvm.org.apache.hudi.hadoop.fs.HadoopFSUtils.getStorageConf(self._spark._jsc.hadoopConfiguration())
            builder = jvm.org.apache.hudi.common.table.HoodieTableMetaClient.builder()
            self._timeline = builder.setConf(storage).setBasePath(self._path).build()
        instants = self._timeline.reloadActiveTimeline().getDeltaCommitTimeline().filterCompletedInstants()
        found = []
        for instant in instants.getInstants():
            completed = instant.getCompletionTime()
            if completed > self._seen:
                found.append((completed, instants.readCommitMetadata(instant)))
        out = []
        for completed, metadata in sorted(found, key=lambda pair: pair[0]):
            self._seen = completed
            if text := metadata.getMetadata(_CHECKPOINT_KEY):
                ends = batch_ends(Path(self._checkpoint), int(json.loads(text)[_WRITER]))
                out.append(Commit(_seconds(completed), ends))
        return out

    def stop(self) -> None:
        self.queries[0].stop()

    def rows(self) -> DataFrame:
        return self._spark.read.format("hudi").load(self._path).select(*COLUMNS)


def _seconds(instant: str) -> float:
    """``yyyyMMddHHmmssSSS`` of the local time zone, in seconds since the epoch."""
    return datetime.strptime(instant[:14], "%Y%m%d%H%M%S").timestamp() + int(instant[14:]) / 1000
