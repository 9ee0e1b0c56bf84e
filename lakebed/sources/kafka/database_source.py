"""A streaming source for a whole database: hundreds of topics, each a table's, planned in one process.

Invariants
    KD1  A batch's offset document alone says what the batch reads (``PlannedBatch``), so a replay reads the same.
    KD2  Planning begins where the tables' positions are, and within a run it follows what it has planned. So each record
         after the positions is in a batch of the run. The checkpoint says only where partitions without a position begin.
    KD3  No topic's trouble ends the query: the driver has the ids and offsets with which to judge each table.

How the next batch is planned
    1.  Every few seconds, ask for the partitions. One without a position begins at the starting offsets, or at the earliest one
        if it appears later.
    2.  Twice a second at most, and less often if that costs much, ask for the ends of all partitions in one request. A
        partition that ends below its position begins again at the earliest offset.
    3.  ``Gathering`` says which topics are due. Their ids are asked for: a topic that was created again begins again, too.
    4.  If none is due, and the driver asks for no batch (``Control.tick``), there is none.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakebed.positions.positions import Position
from lakebed.sources.kafka.assignment import assigned
from lakebed.sources.kafka.cluster import DatabaseCluster, Partitions
from lakebed.sources.kafka.gathering import (
    ControlFile,
    Gathering,
    PlannedBatch,
    RecordBytes,
    read_positions,
    write_positions,
)
from lakebed.sources.kafka.settings import KafkaSettings
from lakebed.sources.kafka.source import KafkaReader
from lakebed.sources.range_stream import RangeSource
from lakebed.sources.source import BATCH_SECONDS, Bounds, Place, Range, RangePlanner

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOOK_SECONDS = 5.0
ID_SECONDS = 5.0
ENDS_SECONDS = 0.5
ENDS_SHARE = 0.05
"""Asking for the ends takes at most this share of a core. With thousands of partitions they are asked for less often."""
RECORDS_MAX = 500_000
"""A batch of this size takes some seconds, and other tables wait for it."""
_TOPICS_REPORTED_MAX = 100

log = logging.getLogger(__name__)


@dataclass(slots=True)
class KafkaDatabaseReader(KafkaReader):
    """Fetches a range of offsets inside a task."""

    _cluster: DatabaseCluster | None = field(default=None, init=False, repr=False, compare=False)
    """In the driver: whom ``partitions`` asks."""

    def ranges(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Range]:
        return [] if start == end else list(PlannedBatch.of(end).ranges)

    def bounds(self, places: Sequence[Place]) -> dict[Place, Bounds]:
        cluster = DatabaseCluster(self.settings)
        there = sorted(set(places).intersection(cluster.partitions()))
        earliest, ends, starting = cluster.earliest(there), cluster.latest(there), cluster.starting(there)
        ids = cluster.ids(sorted({topic for topic, _ in there}))
        return {
            place: Bounds(
                earliest=earliest[place], starting=starting[place], end=ends[place], topic_id=ids.get(place[0])
            )
            for place in earliest.keys() & ends.keys() & starting.keys()
        }

    def partitions(self, topics: Collection[str]) -> Mapping[str, int]:
        """The numbers of partitions of those topics that are there and that the settings select. Raises Retry, InvalidInput."""
        self._cluster = self._cluster or DatabaseCluster(self.settings)
        return self._cluster.counts(topics)

    def together(self, ranges: Iterable[Range]) -> AbstractContextManager[None]:
        """While it lasts, this process fetches these ranges at once."""
        return assigned(self.settings, ranges)

    def impatient(self) -> KafkaDatabaseReader:
        return KafkaDatabaseReader(KafkaReader.impatient(self).settings)


@dataclass(frozen=True, slots=True)
class KafkaDatabaseSource:
    """The topics of a database as the source of one pipeline.

    ``folder``: where the driver tells the planner what to do, with ``write_control``. ``positions``: the tables' own, by topic.
    """

    settings: KafkaSettings
    folder: Path
    positions: Mapping[str, Position] = field(default_factory=dict)
    batch_seconds: float = BATCH_SECONDS

    @property
    def reader(self) -> KafkaDatabaseReader:
        return KafkaDatabaseReader(self.settings)

    def stream(self, spark: SparkSession) -> DataFrame:
        write_positions(self.folder, self.positions)
        settings, folder = self.settings.to_json(), str(self.folder)
        return _KafkaDatabaseRanges.frame(spark, settings, self.batch_seconds, folder=folder)


class _KafkaDatabaseRanges(RangeSource):
    FORMAT = "lakebed_kafka_database"

    def planned_by(self, settings: str) -> tuple[KafkaDatabasePlanner, KafkaDatabaseReader]:
        parsed = KafkaSettings.from_json(settings)
        return KafkaDatabasePlanner(parsed, Path(self.options["folder"])), KafkaDatabaseReader(parsed)


class KafkaDatabasePlanner(RangePlanner):
    """Plans what each batch reads."""

    records_each = 20_000

    def __init__(self, settings: KafkaSettings, folder: Path) -> None:
        self._settings = settings
        self._cluster = DatabaseCluster(settings)
        self._control = ControlFile(folder)
        self._tick = 0
        found = read_positions(folder)
        self._ids = {topic: position.topic_id for topic, position in found.items() if position.topic_id is not None}
        self._gathering = Gathering(
            {(topic, number): offset for topic, of in found.items() for number, offset in of.offsets.items()}
        )
        self._identified: dict[str, float] = {}
        self._partitions: list[tuple[str, int]] = []
        self._first: set[tuple[str, int]] = set()
        self._record_bytes = RecordBytes(settings)
        self._begin: Partitions = {}
        self._targets: Partitions | None = None
        self._look_at = self._ends_at = float("-inf")

    def only_what_is_there_now(self) -> None:
        self._partitions = self._cluster.partitions()
        self._targets = self._cluster.latest(self._partitions)

    def newest(self) -> dict[str, Any]:
        """How many records were left when the last batch was planned: in all, and of the topics that have most."""
        unread = self._gathering.unread()
        most = sorted(unread, key=lambda topic: (-unread[topic], topic))[:_TOPICS_REPORTED_MAX]
        return {"left_in_all": sum(unread.values()), "left": {topic: unread[topic] for topic in most}}

    def next(self, start: Mapping[str, Any]) -> dict[str, Any]:
        batch = self._next(PlannedBatch.of(start))
        return dict(start) if batch is None else batch.document()

    # How a batch is planned ------------------------------------------------------------------------------------------

    def _next(self, before: PlannedBatch) -> PlannedBatch | None:
        control = self._control.newest()
        if time.monotonic() >= self._look_at:
            self._look(before)
        if time.monotonic() >= self._ends_at:
            self._ask_ends()
        now = time.monotonic()
        topics = self._gathering.due(control, now) if self._targets is None else self._gathering.all()
        topics = self._still_same(topics)
        notes_begin = not before.number and self._settings.starting_offsets != "earliest"
        if not topics and control.tick <= self._tick and not notes_begin:
            return None
        ranges, self.left_some = self._gathering.take(topics, control, self._records_max(topics), now)
        self._tick = max(self._tick, control.tick)
        planned = tuple(
            replace(each, topic_id=self._ids.get(each.topic), is_first=each.place in self._first) for each in ranges
        )
        self._first.difference_update(each.place for each in ranges)
        left = self._gathering.left(control) if control.together_seconds is not None else ()
        return PlannedBatch(
            number=before.number + 1, tick=self._tick, ranges=planned, begin=self._begin, left=left, more=self.left_some
        )

    def _records_max(self, topics: Sequence[str]) -> int:
        """How many records a batch of these topics may have."""
        records_max, bytes_max = self._settings.max_records_per_batch or RECORDS_MAX, self._settings.max_bytes_per_batch
        if bytes_max is None or not topics:
            return records_max
        topic, partition, start, end = self._gathering.longest(topics)
        return max(1, min(records_max, int(bytes_max / self._record_bytes.mean(topic, partition, start, end))))

    def _look(self, before: PlannedBatch) -> None:
        """Look which partitions there are, and where those begin that are new."""
        self._partitions = self._cluster.partitions()
        self._look_at = time.monotonic() + LOOK_SECONDS
        positions = self._gathering.positions
        new = [partition for partition in self._partitions if partition not in positions]
        known = {partition: before.begin[partition] for partition in new if partition in before.begin}
        others = [partition for partition in new if partition not in known]
        if before.number or self._settings.starting_offsets == "earliest":
            begin = known | self._cluster.earliest(others)
            self._begin |= known if self._settings.starting_offsets == "earliest" else begin
        else:
            begin = self._begin = self._cluster.starting(others)
        self._gathering.start_over(begin)
        self._first |= begin.keys()

    def _ask_ends(self) -> None:
        used = time.process_time()
        positions = self._gathering.positions
        found = self._cluster.latest(self._partitions) if self._targets is None else self._targets
        ends = {p: end for p, end in found.items() if p in positions}
        self._start_over([p for p, end in ends.items() if end < positions[p]], "they end below what was read")
        self._gathering.saw({p: end for p, end in ends.items() if end >= positions[p]}, time.monotonic())
        self._ends_at = time.monotonic() + max(ENDS_SECONDS, (time.process_time() - used) / ENDS_SHARE)

    def _still_same(self, topics: list[str]) -> list[str]:
        """The topics that were not created again; the others begin again and are due at the next look."""
        now = time.monotonic()
        asked = [topic for topic in topics if now - self._identified.get(topic, float("-inf")) >= ID_SECONDS]
        found = self._cluster.ids(asked)
        self._identified |= dict.fromkeys(asked, now)
        anew = {topic for topic, topic_id in found.items() if self._ids.get(topic, topic_id) != topic_id}
        self._ids |= found
        self._start_over([p for p in self._partitions if p[0] in anew], "their topics were created again")
        return [topic for topic in topics if topic not in anew]

    def _start_over(self, partitions: list[tuple[str, int]], why: str) -> None:
        if partitions:
            log.warning("kafka: the reading of these partitions starts over: %s: %s", why, partitions)
            begin = self._cluster.earliest(partitions)
            if self._settings.starting_offsets != "earliest":
                self._begin |= begin
            self._gathering.start_over(begin)
            self._first |= begin.keys()
            self._ends_at = float("-inf")
