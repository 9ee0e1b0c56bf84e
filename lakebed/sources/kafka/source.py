"""A streaming source whose rows are ranges of Kafka offsets: the records stay out of the JVM.

Invariants
    K1  The offset documents alone determine what a batch reads, so a replay gives the same ranges. Therefore the first
        offset of a partition is written into the document in which it first appears (``begin``), and not looked up again.
    K2  With ``read_committed`` a batch ends at the last stable offset: no open transaction is in it.

An offset document is ``{"topics": {topic: {partition: next offset}}, "begin": {topic: {partition: offset}}, "ids":
{topic: id}, "again": how often a batch was planned for what the table is to read again}``; ``{}`` is the state before the
starting offsets were looked up.

How the next batch is planned
    1.  Every few seconds, ask for the topics, their partitions and their ids.
    2.  Ask for the ends of all partitions in one request.
    3.  New partitions get a ``begin``. If a topic has another id, or a partition ends below the position, this raises
        ``DataLoss``, or reading starts over at the earliest offset.
        A partition that the table has read already, by its own log, begins there.
    4.  If there is nothing new, but the table has read less than was planned, a batch without ranges is planned (``again``).
    5.  The limits, and the ``BatchLimit`` of a table that is behind, are shared among the partitions in proportion to
        their unread records.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakebed.decode.metadata import READ
from lakebed.errors import DataLoss
from lakebed.sources.kafka.cluster import KafkaCluster, Partitions
from lakebed.sources.kafka.gathering import RecordBytes, in_proportion
from lakebed.sources.kafka.range import consume_range
from lakebed.sources.kafka.settings import KafkaSettings
from lakebed.sources.range_stream import RangeSource
from lakebed.sources.source import BatchLimit, Bounds, Place, Range, RangePlanner

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

METADATA_SECONDS = 5.0
_IMPATIENT_SECONDS = 5.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class KafkaReader:
    """Fetches a range of offsets inside a task."""

    settings: KafkaSettings
    records_lost: int = 0
    reads_headers: bool = True

    @property
    def skips_losses(self) -> bool:
        return self.settings.on_data_loss == "skip"

    def ranges(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Range]:
        return _ranges_between(start, end)

    def bounds(self, places: Sequence[Place]) -> dict[Place, Bounds]:
        cluster = KafkaCluster(self.settings)
        known, ids = cluster.look()
        there = sorted(set(places).intersection(known))
        earliest, ends, starting = cluster.earliest(there), cluster.latest(there), cluster.starting(known)
        return {
            place: Bounds(
                earliest=earliest[place], starting=starting[place], end=ends[place], topic_id=ids.get(place[0])
            )
            for place in there
        }

    def impatient(self) -> KafkaReader:
        seconds = min(_IMPATIENT_SECONDS, self.settings.timeout_seconds)
        return KafkaReader(replace(self.settings, timeout_seconds=seconds))

    def read(self, chosen: Range) -> Iterator[pa.Table]:
        on_loss = self._lose if self.settings.on_data_loss == "skip" else None
        names = READ if self.reads_headers else ()
        yield from consume_range(
            self.settings, chosen.topic, chosen.partition, chosen.start, chosen.end, on_loss, headers=names
        )

    def _lose(self, offsets: int) -> None:
        self.records_lost += offsets


@dataclass(frozen=True, slots=True)
class KafkaSource:
    """Kafka topics as a source of a pipeline; batches become smaller when ``table`` can't keep up.

    ``batch_seconds``: the pace of batches (``Pace``). ``reads_headers``: whether headers say something to the decoder.
    """

    settings: KafkaSettings
    table: str | None = None
    batch_seconds: float = 0.0
    reads_headers: bool = True

    @property
    def reader(self) -> KafkaReader:
        return KafkaReader(self.settings, reads_headers=self.reads_headers)

    def stream(self, spark: SparkSession) -> DataFrame:
        more = {} if self.table is None else {"table": self.table}
        return _KafkaRanges.frame(spark, self.settings.to_json(), self.batch_seconds, **more)


class _KafkaRanges(RangeSource):
    FORMAT = "lakebed_kafka"

    def planned_by(self, settings: str) -> tuple[KafkaPlanner, KafkaReader]:
        parsed = KafkaSettings.from_json(settings)
        return KafkaPlanner(parsed, self.options.get("table")), KafkaReader(parsed)


class KafkaPlanner(RangePlanner):
    """Plans which offsets each batch reads."""

    def __init__(self, settings: KafkaSettings, table: str | None = None) -> None:
        self._settings = settings
        self._batch_limit = BatchLimit(table)
        self._cluster = KafkaCluster(settings)
        self._ids: dict[str, str] = {}
        self._known: list[tuple[str, int]] = []
        self._looked_at = float("-inf")
        self._asked_at = time.monotonic()
        self._targets: Partitions | None = None
        self._ends: Partitions = {}
        self._record_bytes = RecordBytes(settings)

    def only_what_is_there_now(self) -> None:
        self._look()
        self._targets = self._cluster.latest(self._known)

    def newest(self) -> dict[str, Any] | None:
        return {"topics": _document(self._ends)} if self._ends else None

    def next(self, start: Mapping[str, Any]) -> dict[str, Any]:
        end = self._next(dict(start))
        taken = _partitions(end.get("topics", {}))
        self.left_some = any(taken.get(place, 0) < last for place, last in self._ends.items())
        return end

    # How a batch is planned ------------------------------------------------------------------------------------------

    def _next(self, start: dict[str, Any]) -> dict[str, Any]:
        if time.monotonic() - self._looked_at >= METADATA_SECONDS:
            self._look()
        positions = _partitions(start.get("topics", {}))
        known = self._known
        if self._targets is not None:
            known = [partition for partition in known if partition in self._targets]
            self._ends = self._targets
        else:
            self._ends = self._cluster.latest(known)
        self._check_deleted(positions)
        begin = self._begins(start, positions, known)
        begin |= self._restarts(start, positions, begin)
        if not begin and all(self._ends.get(p, offset) <= offset for p, offset in positions.items()):
            if start and self._is_behind(positions):
                kept = {name: value for name, value in start.items() if name != "begin"}
                return {**kept, "again": start.get("again", 0) + 1}
            return start if start else self._offset(start, positions, begin)
        available = {**positions, **begin}
        taken = self._within(available)
        return self._offset(start, taken, begin)

    def _look(self) -> None:
        self._known, self._ids = self._cluster.look()
        self._looked_at = time.monotonic()

    def _check_deleted(self, positions: Partitions) -> None:
        gone = sorted({topic for topic, _ in positions} - {topic for topic, _ in self._known})
        if gone and self._settings.on_data_loss == "fail" and self._targets is None:
            raise DataLoss(
                f"topics {', '.join(gone)} are gone from the cluster, or the pipeline no longer selects them; "
                "bring them back, or set on_data_loss to 'skip'",
                topic=gone[0],
            )

    def _begins(self, start: Mapping[str, Any], positions: Partitions, known: list[tuple[str, int]]) -> Partitions:
        """The first offsets of partitions that no batch has read yet."""
        new = [partition for partition in known if partition not in positions]
        if not new:
            return {}
        begin = self._cluster.earliest(new) if "topics" in start else self._cluster.starting(new)
        read = self._read()  # by the table, if the checkpoint was lost
        return {
            p: read[p] if offset < read.get(p, offset) <= self._ends.get(p, offset) else offset
            for p, offset in begin.items()
        }

    def _read(self) -> Partitions:
        """Up to where the table has read the topics of now."""
        return {
            (topic, partition): offset
            for topic, position in self._batch_limit.positions().items()
            if self._ids.get(topic, position.topic_id) == position.topic_id
            for partition, offset in position.offsets.items()
        }

    def _is_behind(self, positions: Partitions) -> bool:
        """Whether the table has read less than was planned, as after a rewind. Its log is asked every few seconds."""
        if time.monotonic() - self._asked_at < METADATA_SECONDS:
            return False
        self._asked_at = time.monotonic()
        read = self._read()
        return any(read.get(p, offset) < offset for p, offset in positions.items() if p in self._ends)

    def _restarts(self, start: Mapping[str, Any], positions: Partitions, begin: Partitions) -> Partitions:
        """The new first offsets of partitions whose records were replaced. Raises DataLoss unless losses are skipped."""
        ids = start.get("ids", {})
        another = {topic for topic, old in ids.items() if self._ids.get(topic, old) != old}
        broken = [
            (topic, partition)
            for (topic, partition), offset in positions.items()
            if (topic, partition) in self._ends and (topic in another or self._ends[topic, partition] < offset)
        ]
        if not broken:
            return {}
        if self._settings.on_data_loss == "fail":
            topic, partition = broken[0]
            why = (
                "the topic was deleted and created again"
                if topic in another
                else f"it ends at offset {self._ends[topic, partition]}"
            )
            raise DataLoss(
                f"topic {topic!r} partition {partition}: offset {positions[topic, partition]} is lost: {why}. "
                "To continue with the records that are there now, set on_data_loss to 'skip'",
                topic=topic,
                partition=partition,
            )
        log.warning("reading of these partitions starts over, because their records were replaced: %s", broken)
        return self._cluster.earliest(broken)

    def _within(self, positions: Partitions) -> Partitions:
        """The end offsets of a batch that stays within the limits."""
        waiting = {p: max(0, self._ends.get(p, offset) - offset) for p, offset in positions.items()}
        total = sum(waiting.values())
        records = self._batch_limit.limit(total)
        records = min(records, self._settings.max_records_per_batch or total)
        if self._settings.max_bytes_per_batch is not None and total:
            (topic, partition), count = max(waiting.items(), key=lambda item: item[1])
            start = positions[topic, partition]
            record_bytes = self._record_bytes.mean(topic, partition, start, start + count)
            records = min(records, int(self._settings.max_bytes_per_batch / record_bytes))
        if records >= total:
            return {p: offset + waiting[p] for p, offset in positions.items()}
        shares = in_proportion(waiting, records)
        return {p: offset + shares[p] for p, offset in positions.items()}

    def _offset(self, start: Mapping[str, Any], positions: Partitions, begin: Partitions) -> dict[str, Any]:
        topics = sorted({topic for topic, _ in positions})
        offset: dict[str, Any] = {"topics": _document(positions)}
        if begin:
            offset["begin"] = _document(begin)
        ids = {**start.get("ids", {}), **self._ids}  # keeps an id that the brokers did not return this time
        offset["ids"] = {topic: ids[topic] for topic in topics if topic in ids}
        return offset


def _ranges_between(start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Range]:
    """The ranges of a batch between two offset documents, in a fixed order; empty ones where there is nothing new."""
    ends, ids = _partitions(end.get("topics", {})), end.get("ids", {})
    begin = _partitions(end.get("begin", {})) if start != end else {}  # else they were read already
    starts = {**ends, **_partitions(start.get("topics", {})), **begin} if start != end else ends
    return [
        Range(*p, min(starts[p], ends[p]), ends[p], topic_id=ids.get(p[0]), is_first=p in begin) for p in sorted(ends)
    ]


def _partitions(document: Mapping[str, Mapping[str, int]]) -> Partitions:
    return {(topic, int(number)): offset for topic, offsets in document.items() for number, offset in offsets.items()}


def _document(partitions: Partitions) -> dict[str, dict[str, int]]:
    document: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(partitions):
        document.setdefault(topic, {})[str(partition)] = partitions[topic, partition]
    return document
