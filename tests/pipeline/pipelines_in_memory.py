"""A pipeline file over topics in memory: what becomes of records, without Kafka and without Spark.

    pipeline = PipelineInMemory(text, {"LAKE": str(tmp_path)})
    pipeline.feed((key, value), (key, value, headers))        one batch
    copy = pipeline.copy()
    copy.rows(), copy.quarantine(), copy.findings()

The file is parsed, its tables are made or opened, and its decoders are chosen by the code that a run uses. Only the source is
another one, and a batch is decoded and written in this process. Keys and values are bytes, texts, or what becomes JSON.

A file with ``table`` has one copy, whatever the topic. In a file with ``database`` a topic is a table: ``none[topic]`` says why a
topic has none, and ``stopped[topic]`` why its table is not read any more, for which a run parks it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lakebed
from lakebed.errors import LakebedError
from lakebed.far_times import python_rows
from lakebed.health.status import Observer
from lakebed.ingest.table_batch import TableIngest, run_alone
from lakebed.parts.quarantine import QUARANTINE_SUFFIX
from lakebed.pipeline.database.introducer import Introduced, Introducer, ingest_of
from lakebed.pipeline.settings import DatabasePipeline, Pipeline, parse_any
from lakebed.pipeline.sources import open_decoder
from lakebed.pipeline.target import open_or_create
from lakebed.sources.source import Range
from lakebed.table import internals_of
from tests.decode.records import Value, as_bytes
from tests.sources.memory_source import Keyed, KeyedTopics, here

TOPIC = "shop.public.t"
Sent = tuple[Value, Value] | tuple[Value, Value, Mapping[str, bytes | None]]
"""Key, value and, if it has some, the headers of a record."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A table that a pipeline keeps."""

    path: str

    @property
    def table(self) -> lakebed.Table:
        return lakebed.open(self.path)

    def rows(self) -> list[dict[str, Any]]:
        """The rows, in no order."""
        return python_rows(self.table.to_arrow())

    def quarantine(self) -> dict[int, str]:
        """Why each record is in the quarantine, by its offset."""
        beside = self.path + QUARANTINE_SUFFIX
        if not Path(beside, "_delta_log").exists():
            return {}
        return {row["offset"]: row["reason"] for row in lakebed.open(beside).to_arrow().to_pylist()}

    def findings(self) -> set[str]:
        """The checks that the table's status has findings of."""
        return {finding.check for finding in Observer(self.path).look().findings}


class PipelineInMemory:
    """What runs a pipeline file. ``environment``: of the variables in it."""

    def __init__(self, text: str, environment: Mapping[str, str]) -> None:
        """Raises InvalidInput, as a run does."""
        self.pipeline = parse_any(text, "pipeline.yml", dict(environment))
        self.source = KeyedTopics()
        self.none: dict[str, str] = {}
        self.stopped: dict[str, str] = {}
        self._ingests: dict[str, TableIngest] = {}
        self._copies: dict[str, Copy] = {}
        self._read: dict[str, int] = {}
        self._introducer: Introducer | None = None

    def feed(self, *records: Sent, topic: str = TOPIC) -> PipelineInMemory:
        """One batch of a topic: these records, and those before them that no table has read."""
        self.source.add(topic, 0, *map(_encoded, records))
        start, end = self._read.get(topic, 0), self.source.topics[topic][0].end
        ranges = [Range(topic, 0, start, end, topic_id=f"id of {topic}", is_first=topic not in self._read)]
        try:
            ingest = self._ingest(topic, ranges)
            if ingest is not None:
                run_alone(ingest.batch(ranges), here)
                self._read[topic] = end
                self.stopped.pop(topic, None)
        except LakebedError as error:
            self.stopped[topic] = str(error)
        return self

    def copy(self, topic: str = TOPIC) -> Copy:
        """The table of a topic. Raises KeyError if there is none."""
        return self._copies[topic]

    def _ingest(self, topic: str, ranges: Sequence[Range]) -> TableIngest | None:
        if topic in self._ingests:
            return self._ingests[topic]
        if isinstance(self.pipeline, DatabasePipeline):
            found = self._introducer_of(self.pipeline).table_for(topic, ranges)
            if not isinstance(found, Introduced):
                self.none[topic] = found.reason
                return None
            self.none.pop(topic, None)
            table, ingest = found.table, ingest_of(self.pipeline, topic, found, self.source)
        else:
            table = open_or_create(self.pipeline)
            ingest = self._ingest_of(self.pipeline, table)
        self._ingests[topic], self._copies[topic] = ingest, Copy(table.path)
        return ingest

    def _introducer_of(self, pipeline: DatabasePipeline) -> Introducer:
        if self._introducer is None:
            self._introducer = Introducer(pipeline, self.source)
        return self._introducer

    def _ingest_of(self, pipeline: Pipeline, table: lakebed.Table) -> TableIngest:
        internals = internals_of(table)
        return TableIngest(
            table.path,
            internals.log,
            self.source,
            open_decoder(pipeline, table),
            quarantine=pipeline.quarantine,
            evolution=internals.evolution("its records need it"),
            quarantine_log=internals.quarantine_log,
        )


def _encoded(record: Sent) -> Keyed:
    key, value = as_bytes(record[0]), as_bytes(record[1])
    return (key, value, record[2]) if len(record) > 2 else (key, value)
