"""What a run does for a pipeline of one table: ingest, a streaming query, and maintenance, a thread or another query."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from lakebed import events
from lakebed.errors import LakebedError, Unexpected
from lakebed.monitoring.metrics import Metrics
from lakebed.monitoring.progress import Progress
from lakebed.monitoring.table_state import TableState
from lakebed.pipeline.check import Role
from lakebed.pipeline.places import checkpoint_of, take_checkpoint
from lakebed.pipeline.sections import FilesSection, KafkaSection, LakebedSection
from lakebed.pipeline.settings import Pipeline
from lakebed.pipeline.sources import kafka_settings, start_ingest
from lakebed.pipeline.target import open_or_create
from lakebed.pipeline.watches import Watch, folder_watches, kafka_watches, registry_watch, store_watches
from lakebed.sources.kafka.lag import lag_by_topic
from lakebed.table import internals_of
from lakebed.waits import SingleFlight

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from lakebed.compaction.maintenance import Maintenance

_DRAIN_SECONDS_MAX = 10.0
_MERGE_SECONDS_MAX = 10.0


class TableWork:
    """See ``run.Work``."""

    def __init__(self, pipeline: Pipeline, metrics: Metrics, only: Role | None) -> None:
        """Opens or creates the table. Raises LakebedError."""
        self._pipeline = pipeline
        self._metrics = metrics
        self._only = only
        self.table = open_or_create(pipeline)
        if only != "maintain":
            take_checkpoint(pipeline, checkpoint_of(pipeline))
        self.path = self.table.path
        self.progress = Progress(self.path)
        self._internals = internals_of(self.table)
        self._sampler = self._internals.sampler()
        self._sampling_once = SingleFlight[TableState]()
        self._maintenance: Maintenance | None = None
        self.watches: list[Watch] = store_watches(self.path)
        if only != "maintain":
            self.watches += _watches_of_source(pipeline)
        self._ending = threading.Event()
        for watch in self.watches:
            watch.start(self._ending)

    @property
    def ingest_trouble(self) -> LakebedError | None:
        return None  # what fails ends the query

    @property
    def maintain_trouble(self) -> LakebedError | None:
        if self._maintenance is None:
            return None
        if not self._maintenance.isActive:
            raise self._maintenance.exception() or Unexpected("the maintain query was stopped from outside")
        return self._maintenance.trouble

    def wake(self) -> None:
        """Its query is all that waits."""

    def start_ingest(self, spark: SparkSession) -> StreamingQuery:
        return start_ingest(self._pipeline, self.table, spark)

    def maintain(self, spark: SparkSession) -> None:
        section = self._pipeline.maintenance
        # One process at a time ingests with a checkpoint. Any number may maintain the table alone, each with one of its own.
        lasting = None if self._only == "maintain" else f"{checkpoint_of(self._pipeline)}/maintain"
        self._maintenance = self.table.maintain(
            spark, section.as_query, trigger_seconds=section.trigger_seconds, checkpoint=lasting
        )

    def observe(self) -> TableState:
        state = self._sampling_once(self._sampled)
        self._metrics.observe(self.path, state)
        return state

    def report_lag(self, query: StreamingQuery) -> None:
        if isinstance(self._pipeline.source, KafkaSection):
            progress = query.lastProgress
            for topic, records in lag_by_topic(dict(progress) if progress else {}).items():
                events.emit(events.SourceLagged(table=self.path, topic=topic, records=records))

    def end_maintenance(self, waiting: Callable[[], None]) -> None:
        query = self._maintenance
        if query is None:
            return
        deadline = time.monotonic() + _DRAIN_SECONDS_MAX
        while query.isActive and time.monotonic() < deadline:
            if not self._internals.log.refresh().tail:
                break
            waiting()
            time.sleep(0.05)
        if query.isActive:
            self._internals.compaction.finish(_MERGE_SECONDS_MAX, waiting)
        query.stop()
        self._internals.compaction.close()  # running merges release their claims
        if self._internals.log.refresh().tail:
            self.table.settle()

    def end_ingest(self) -> None:
        self._ending.set()

    def abandon(self) -> None:
        if self._maintenance is not None:
            self._maintenance.stop()

    def _sampled(self) -> TableState:
        return replace(self._sampler.sample(), parked_parts=len(self._internals.compaction.parked()))


def _watches_of_source(pipeline: Pipeline) -> list[Watch]:
    found: list[Watch] = []
    section = pipeline.source
    if isinstance(section, KafkaSection):
        found += kafka_watches(kafka_settings(section))
    elif isinstance(section, FilesSection):
        found += folder_watches(section.folder)
    elif isinstance(section, LakebedSection):
        found += folder_watches(section.path)
    if pipeline.registry is not None:
        found.append(registry_watch(pipeline.registry.settings()))
    return found
