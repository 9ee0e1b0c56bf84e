"""Topics in memory, and processes that bring them into a table, without Spark and without brokers."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

import lakebed
from lakebed.decode.decoder import RECORD_SCHEMA, Decoder, DecoderSchema
from lakebed.decode.formats import decoder
from lakebed.decode.metadata import with_headers
from lakebed.ingest.batch_writer import Written, in_this_process
from lakebed.ingest.table_batch import BatchDone, TableIngest, WriteWork, run_alone
from lakebed.parts.quarantine import QUARANTINE_SUFFIX
from lakebed.schema.fitting import FIXED, EvolvePolicy
from lakebed.sources.source import Bounds, Place, Range, RangeReader
from lakebed.table import internals_of

COLUMNS = pa.schema([pa.field("id", pa.int64()), pa.field("n", pa.int64())])


@dataclass(slots=True)
class Partition:
    """The values of the records from offset ``first`` on."""

    values: list[bytes] = field(default_factory=list)
    first: int = 0

    @property
    def end(self) -> int:
        return self.first + len(self.values)


@dataclass(slots=True)
class MemorySource:
    """Topics whose records are JSON. ``starting``: earliest or latest."""

    topics: dict[str, dict[int, Partition]] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    skips_losses: bool = False
    starting: str = "earliest"
    records_lost: int = 0
    asked: int = 0

    def add(self, topic: str, partition: int, *values: Any) -> None:
        """Append records; what is no bytes is written as JSON."""
        texts = [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values]
        self.topics.setdefault(topic, {}).setdefault(partition, Partition()).values.extend(texts)

    def make_anew(self, topic: str, topic_id: str | None = None) -> None:
        """Delete the topic and create it again, empty."""
        self.topics[topic] = {number: Partition() for number in self.topics[topic]}
        if topic_id:
            self.ids[topic] = topic_id

    def planned(self, since: Mapping[Place, int] | None = None) -> list[Range]:
        """The ranges of a batch up to now; of the first one, without ``since``."""
        out = []
        for topic, partitions in sorted(self.topics.items()):
            for number, partition in sorted(partitions.items()):
                begin = partition.end if self.starting == "latest" else partition.first
                is_first = since is None or (topic, number) not in since
                start = begin if since is None else since.get((topic, number), begin)
                one = Range(
                    topic, number, min(start, partition.end), partition.end, None, self.ids.get(topic), is_first
                )
                out.append(one)
        return out

    def ends(self) -> dict[Place, int]:
        """Where all partitions end now."""
        return {(topic, n): one.end for topic, several in self.topics.items() for n, one in several.items()}

    # What a RangeReader has ---------------------------------------------------------------------------------------------

    def ranges(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Range]:
        raise NotImplementedError

    def bounds(self, places: Sequence[Place]) -> dict[Place, Bounds]:
        self.asked += 1
        found = {}
        for topic, number in places:
            one = self.topics.get(topic, {}).get(number)
            if one is not None:
                starting = one.end if self.starting == "latest" else one.first
                found[topic, number] = Bounds(
                    earliest=one.first, starting=starting, end=one.end, topic_id=self.ids.get(topic)
                )
        return found

    def partitions(self, topics: Collection[str]) -> dict[str, int]:
        return {topic: len(self.topics[topic]) for topic in topics if topic in self.topics}

    def impatient(self) -> MemorySource:
        return self

    def read(self, chosen: Range) -> Iterator[pa.Table]:
        partition = self.topics[chosen.topic][chosen.partition]
        offsets = range(max(chosen.start, partition.first), min(chosen.end, partition.end))
        for first in range(0, len(offsets), 7):
            some = offsets[first : first + 7]
            arrays = [
                pa.nulls(len(some), pa.binary()),
                pa.array([partition.values[offset - partition.first] for offset in some], pa.binary()),
                pa.array([chosen.topic] * len(some), pa.string()),
                pa.array([chosen.partition] * len(some), pa.int32()),
                pa.array(some, pa.int64()),
                pa.array([0] * len(some), pa.int64()).cast(pa.timestamp("ms", "UTC")),
            ]
            yield pa.Table.from_arrays(arrays, schema=RECORD_SCHEMA)


class Process:
    """One process that brings a source into a table: any ``RangeReader``, where ``run`` is given the ranges."""

    def __init__(
        self,
        path: str,
        source: MemorySource | RangeReader,
        *,
        policy: EvolvePolicy = FIXED,
        reading: Decoder | None = None,
        quarantine: str = "table",
    ) -> None:
        self.table = lakebed.open(path)
        internals = internals_of(self.table)
        snapshot = internals.log.refresh()
        keys = snapshot.logical_settings.keys
        columns = DecoderSchema.of_table(snapshot.logical_schema, keys, None, policy)
        self.source = source
        self.ingest = TableIngest(
            path,
            internals.log,
            source,
            reading or decoder("json", columns),
            quarantine=quarantine,
            evolution=internals.evolution("its records need it"),
            quarantine_log=internals.quarantine_log,
        )

    def run(
        self,
        ranges: Sequence[Range] | None = None,
        records_max: int | None = None,
        run: Callable[[WriteWork], Written] | None = None,
    ) -> BatchDone:
        """One batch, by default of all that is there."""
        chosen = self.source.planned() if ranges is None else ranges
        return run_alone(self.ingest.batch(chosen, records_max=records_max), run or here)


def here(work: WriteWork) -> Written:
    """Do the work in this process."""
    return in_this_process(work.task, work.ranges)


def row(number: int) -> dict[str, int]:
    return {"id": number, "n": number}


def ids(table: lakebed.Table) -> list[int]:
    """The ids of all rows, sorted: one that is there twice is listed twice."""
    return sorted(table.to_arrow()["id"].to_pylist())


def quarantined(table: lakebed.Table) -> list[int]:
    """The offsets of all quarantined records, sorted."""
    path = table.path + QUARANTINE_SUFFIX
    return sorted(lakebed.open(path).to_arrow()["offset"].to_pylist()) if Path(path, "_delta_log").exists() else []


Keyed = tuple[bytes | None, bytes | None] | tuple[bytes | None, bytes | None, Mapping[str, bytes | None]]
"""Key, value and, if it has some, the headers of a record."""


@dataclass(slots=True)
class KeyedTopics(MemorySource):
    """Topics whose records have keys and headers. ``piece``: how many records are read at once."""

    records: dict[Place, list[Keyed]] = field(default_factory=dict)
    piece: int = 1_000

    def add(self, topic: str, partition: int, *records: Keyed) -> None:
        MemorySource.add(self, topic, partition, *(record[1] or b"" for record in records))
        self.records.setdefault((topic, partition), []).extend(records)

    def read(self, chosen: Range) -> Iterator[pa.Table]:
        some = self.records[chosen.place][chosen.start : chosen.end]
        for first in range(0, len(some), self.piece):
            piece = some[first : first + self.piece]
            count, begin = len(piece), chosen.start + first
            arrays = [
                pa.array([record[0] for record in piece], pa.binary()),
                pa.array([record[1] for record in piece], pa.binary()),
                pa.array([chosen.topic] * count, pa.string()),
                pa.array([chosen.partition] * count, pa.int32()),
                pa.array(range(begin, begin + count), pa.int64()),
                pa.array([0] * count, pa.int64()).cast(pa.timestamp("ms", "UTC")),
            ]
            headers = [record[2] or None if len(record) > 2 else None for record in piece]
            yield with_headers(pa.Table.from_arrays(arrays, schema=RECORD_SCHEMA), headers)


def ingest_of(table: lakebed.Table, source: MemorySource, reading: Decoder) -> Callable[..., BatchDone]:
    """Reads what is new of the source into a table, a batch a call, which may be given how the work is done."""
    internals, read = internals_of(table), dict[Place, int]()
    ingest = TableIngest(
        table.path,
        internals.log,
        source,
        reading,
        evolution=internals.evolution("its records need it"),
        quarantine_log=internals.quarantine_log,
    )

    def batch(run: Callable[[WriteWork], Written] = here) -> BatchDone:
        ranges = source.planned(read or None)
        read.update(source.ends())
        return run_alone(ingest.batch(ranges), run)

    return batch
