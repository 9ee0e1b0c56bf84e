"""What every system must do to be measured, and what those have in common that read with Spark's own Kafka source.

A module a system; each runs in the environment of its own, with Spark alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

COLUMNS = ("id", "customer", "region", "status", "amount", "note", "updated_at")
DDL = "id bigint, customer bigint, region string, status string, amount double, note string, updated_at timestamp"
SPARK_3_KAFKA = "org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.7"
"""Spark's Kafka source for Spark 3.5; the newest that could be fetched when this was written."""
IN_SPARK_3 = (
    "org.apache.hadoop:*,org.slf4j:*,org.lz4:*,org.xerial.snappy:*,com.google.code.findbugs:*,commons-logging:*"
)
"""What would come with it, and Spark has."""
_EVENT = (
    "before struct<id: bigint>, after struct<id: bigint, customer: bigint, region: string, status: string, amount: double, "
    "note: string, updated_at: bigint>, op string, source struct<lsn: bigint>"
)

Ends = Mapping[str, int]
"""The next offset of each partition."""


@dataclass(frozen=True, slots=True)
class Feed:
    """Where a system reads, and where it lives. ``table``: the folder whose bytes are counted, checkpoints included;
    ``local``: what an object store would never see. A batch takes at most ``batch_records``.
    """

    bootstrap: str
    table: str
    local: str
    batch_records: int


@dataclass(frozen=True, slots=True)
class Commit:
    """All events before ``ends`` are visible from ``time`` on, in seconds since the epoch."""

    time: float
    ends: Ends


class Stream(Protocol):
    """One system, ingesting one topic into one table until it is stopped."""

    resolves: bool
    """Whether its rows are the newest ones. The floor only appends."""
    queries: list[StreamingQuery]
    """What runs from ``start`` to ``stop``; one that fails ends the measurement."""

    def __init__(self, spark: SparkSession, feed: Feed, name: str) -> None:
        """Make the empty table ``name``."""
        ...

    @staticmethod
    def session(feed: Feed) -> Mapping[str, str]:
        """Spark's settings for it, jars among them."""
        ...

    @property
    def settings(self) -> Mapping[str, str]:
        """How it is configured, as it is printed beside the results."""
        ...

    def start(self, topic: str) -> None:
        """Begin with the topic's first event; goes on by itself."""
        ...

    def commits(self) -> Mapping[str, list[Commit]]:
        """The commits since this was asked last, oldest first, by the reader that sees them; the one of ``rows`` is the last."""
        ...

    def stop(self) -> None:
        """End it, with what is under way either committed or given up."""
        ...

    def rows(self) -> DataFrame:
        """The table's columns at its newest version."""
        ...


def records(spark: SparkSession, feed: Feed, topic: str) -> DataFrame:
    """The topic as Spark's own source reads it."""
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", feed.bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", feed.batch_records)
        .load()
    )


def changes(records: DataFrame) -> DataFrame:
    """The table's columns, ``op`` and ``lsn`` of each event; of a delete nothing but the key."""
    parsed = records.selectExpr(f"from_json(cast(value as string), '{_EVENT}') as e")
    values = [name for name in COLUMNS if name not in ("id", "updated_at")]
    return parsed.selectExpr(
        "coalesce(e.after.id, e.before.id) as id",
        *(f"e.after.{name}" for name in values),
        "timestamp_micros(e.after.updated_at) as updated_at",
        "e.op as op",
        "e.source.lsn as lsn",
    )


def newest(changes: DataFrame) -> DataFrame:
    """The newest change of each key. Spark drops older ones before it shuffles (a limit within each group)."""
    number = "row_number() over (partition by id order by lsn desc) as newest"
    return changes.selectExpr("*", number).where("newest = 1").drop("newest")


def batch_ends(checkpoint: Path, batch: int) -> Ends:
    """Where a batch of a query ends, by its checkpoint."""
    (ends,) = json.loads((checkpoint / "offsets" / str(batch)).read_text().splitlines()[2]).values()
    return {partition: int(end) for partition, end in ends.items()}


class DeltaLog:
    """Follows a Delta log: each commit with the time at which its file was written."""

    def __init__(self, table: Path) -> None:
        self._folder = table / "_delta_log"
        self._next = 0

    def commits(self) -> Iterator[tuple[float, list[dict[str, Any]]]]:
        """The actions of commits since this was asked last."""
        while (file := self._folder / f"{self._next:020}.json").exists():
            yield file.stat().st_mtime, [json.loads(line) for line in file.read_text().splitlines()]
            self._next += 1
