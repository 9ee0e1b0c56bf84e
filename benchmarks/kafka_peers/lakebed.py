"""lakebed as ``lakebed run`` does it: its Kafka source, and ``table.maintain`` in the same process, which settles and merges.

The order of changes and the size of a batch are those of the guide (docs/guides/kafka-debezium.md); all else is a default,
also the options of Java and the settings of Spark. Only the last check, which reads the table with Spark, is slower for them.
Its own reader sees a batch when that is committed, any Delta reader when it is settled.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import lakebed
from benchmarks.kafka import SCHEMA
from benchmarks.kafka_peers.stream import COLUMNS, Commit, DeltaLog, Ends, Feed
from lakebed.decode.debezium.events import DebeziumJson
from lakebed.decode.decoder import DecoderSchema
from lakebed.log.entries import PART, POSITION
from lakebed.pipeline.driver import spark_settings
from lakebed.pipeline.settings import parse_pipeline
from lakebed.sources.kafka.settings import KafkaSettings
from lakebed.sources.kafka.source import KafkaSource
from lakebed.sources.source import RangeChanges
from lakebed.sparks.java import quick_start
from lakebed.sparks.session import settings
from lakebed.table import internals_of
from tests.waiting import started

_SEQUENCE = "source.lsn"
_PIPELINE = """
table: {path: t, keys: [id], schema: {id: long not null}}
source: {kind: kafka, topics: [t], config: {bootstrap.servers: here}}
format: debezium-json
"""


class Lakebed:
    resolves = True

    def __init__(self, spark: SparkSession, feed: Feed, name: str) -> None:
        os.environ["LAKEBED_CACHE_DIR"] = f"{feed.local}/lakebed"
        self._spark = lakebed.spark(session=spark)
        self._feed = feed
        self._table = lakebed.create(f"{feed.table}/{name}", SCHEMA, keys=["id"], sequence_by=_SEQUENCE)
        self._log = DeltaLog(Path(f"{feed.table}/{name}"))
        self._unsettled: deque[tuple[Ends, set[str]]] = deque()

    @staticmethod
    def session(feed: Feed) -> Mapping[str, str]:
        pipeline = parse_pipeline(_PIPELINE, "bench.yml", {})
        quick = quick_start({})
        java = {"spark.driver.extraJavaOptions": " ".join(quick.options)} if quick is not None else {}
        return settings(s3=False) | spark_settings(pipeline).conf | java

    @property
    def settings(self) -> Mapping[str, str]:
        own = {name: value for name, value in self._table.properties.items() if name.startswith("lakebed.")}
        return own | {"max_records_per_batch": str(self._feed.batch_records), "maintenance": "beside (table.maintain)"}

    def start(self, topic: str) -> None:
        kafka = KafkaSettings(
            config={"bootstrap.servers": self._feed.bootstrap},
            topics=(topic,),
            max_records_per_batch=self._feed.batch_records,
        )
        source = KafkaSource(kafka, self._table.path)
        decoder = DebeziumJson(DecoderSchema(SCHEMA, ("id",), _SEQUENCE))
        stream = RangeChanges(source.reader, decoder)
        self.queries = [
            started(partial(internals_of(self._table).start_ingest, stream, source.stream(self._spark))),
            self._table.maintain(self._spark),
        ]

    def commits(self) -> Mapping[str, list[Commit]]:
        committed, settled = [], []
        for time, actions in self._log.commits():
            entries = [action["domainMetadata"] for action in actions if "domainMetadata" in action]
            parts = [entry for entry in entries if entry["domain"].startswith(PART)]
            for position in [entry for entry in entries if entry["domain"].startswith(POSITION)]:
                ends: Ends = json.loads(position["configuration"])["offsets"]
                committed.append(Commit(time, ends))
                self._unsettled.append((ends, {part["domain"] for part in parts if not part["removed"]}))
            gone = {part["domain"] for part in parts if part["removed"]}
            for _, waiting in self._unsettled:
                waiting -= gone
            while self._unsettled and not self._unsettled[0][1]:
                ends, _ = self._unsettled.popleft()
                settled.append(Commit(time, ends))
        return {"own reader": committed, "any Delta reader": settled}

    def stop(self) -> None:
        for query in self.queries:
            query.stop()
        internals_of(self._table).compaction.close()
        self._table.settle()

    def rows(self) -> DataFrame:
        return self._spark.read.format("delta").load(self._table.path).select(*COLUMNS)
