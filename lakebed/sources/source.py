"""Sources, and the work of a Spark task that turns what they have into changes.

A source is a streaming DataFrame of ranges instead of data (Kafka offsets, versions of a table, bytes of files), and a reader
that fetches the records of a range inside the task. ``RangeChanges`` reads and decodes them.

**What a table reads** of the ranges that were planned is from its own positions up to their ends. A range that was planned means
only "read up to ``end``". So a range may come again, come late, or come from another plan.

**When the next batch begins.** A batch has a fixed cost, so events that come shortly after one wait for each other.

1. An event that comes ``seconds`` or more after the last batch began is a batch at once.
2. One that comes sooner waits until ``seconds`` have passed, counted from when the last batch began. So a batch that takes longer
   is followed by the next one without a pause.
3. After a batch that left events behind, because of a limit, the next one begins at once.

**How much it may read** is said by the log of the table (``BatchLimit``): how far it has read, and whether maintenance is behind.
The size of the next batch is all waiting rows, or fewer while maintenance is behind (``planning.settling``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from lakebed.decode.decoder import Decoded, Decoder
from lakebed.decode.transaction_ids import transaction_ids_of
from lakebed.errors import Retry, TableNotFound, Unexpected
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.parts.quarantine import HEADERS
from lakebed.planning.settling import pressure
from lakebed.positions.positions import Position, positions_of
from lakebed.positions.truncates import NO_CUTOFF, Cutoff
from lakebed.remarks import Counts
from lakebed.schema.change import SchemaChange
from lakebed.sources.cut import Report, TaskCut

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What was planned of one partition: ``first`` is the earliest of its ranges, ``end`` the end of the last one."""

    first: Range
    end: int

    @property
    def place(self) -> Place:
        return self.first.place


def planned(ranges: Iterable[Range]) -> list[Planned]:
    """What was planned, by partition, in their order."""
    found: dict[Place, Planned] = {}
    for one in sorted(ranges, key=lambda one: (one.place, one.start)):
        known = found.get(one.place)
        first = known.first if known else one
        found[one.place] = Planned(first=first, end=max(one.end, known.end if known else one.end))
    return list(found.values())


def clipped(ranges: Iterable[Range], starts: Mapping[Place, int]) -> list[Range]:
    """The ranges from these offsets on, sorted. What lies between an offset and the first range of a partition is one more.

    Partitions that ``starts`` does not have are left out, and so are empty ranges.
    """
    out: list[Range] = []
    reached: dict[Place, int] = {}
    for one in sorted(ranges, key=lambda one: (one.place, one.start)):
        if one.place not in starts:
            continue
        begin = reached.get(one.place, starts[one.place])
        if begin < one.start:
            out.append(replace(one, start=begin, end=one.start))
        if max(begin, one.start) < one.end:
            out.append(replace(one, start=max(begin, one.start)))
        reached[one.place] = max(begin, one.end)
    return out


def limited(ranges: Sequence[Range], records_max: int | None) -> list[Range]:
    """The beginning of each partition's ranges, about ``records_max`` offsets in all, in proportion to what a partition has."""
    total = sum(one.size for one in ranges)
    if records_max is None or total <= records_max:
        return list(ranges)
    waiting: dict[Place, int] = {}
    for one in ranges:
        waiting[one.place] = waiting.get(one.place, 0) + one.size
    shares = {place: max(1, size * records_max // total) for place, size in waiting.items()}
    out: list[Range] = []
    for one in ranges:
        taken = min(one.size, shares[one.place])
        shares[one.place] -= taken
        if taken:
            out.append(replace(one, end=one.start + taken))
    return out


def joined(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """The same with one range for each partition; those of a partition follow each other without a gap."""
    out: dict[Place, Range] = {}
    for one in sorted(ranges, key=lambda one: (one.place, one.start)):
        out[one.place] = replace(out[one.place], end=one.end) if one.place in out else one
    return tuple(out.values())


def read_to(starts: Mapping[Place, int], read: Iterable[Range]) -> dict[Place, int]:
    """Up to where each partition was read, from these offsets on. Raises Unexpected if something between was not read."""
    reached = dict(starts)
    for one in sorted(read, key=lambda one: (one.place, one.start)):
        if reached.get(one.place) != one.start:
            raise Unexpected(
                f"topic {one.topic!r} partition {one.partition}: offsets from {one.start} were read, and not those from "
                f"{reached.get(one.place)} on"
            )
        reached[one.place] = one.end
    return reached


def grouped(ranges: Sequence[Range], records_each: int) -> list[list[Range]]:
    """The ranges for tasks, in their order: small ones share a task, up to about so many records."""
    groups: list[list[Range]] = []
    held = 0
    for one in ranges:
        if not groups or held + one.records > records_each:
            groups.append([])
            held = 0
        groups[-1].append(one)
        held += one.records
    return groups


_RANGE_SCHEMA = pa.schema(
    [
        ("topic", pa.string()), ("partition", pa.int32()), ("start", pa.int64()), ("end", pa.int64()),
        ("clock_micros", pa.int64()), ("topic_id", pa.string()), ("is_first", pa.bool_()),
        ("offsets_each", pa.int64()),
    ]
)  # fmt: skip
_JOINED_RECORDS = 4096
Place = tuple[str, int]
"""A partition of a topic."""


@dataclass(frozen=True, slots=True)
class Range:
    """Records of one partition of one topic: start <= offset < end. An empty one says how far the partition was read."""

    topic: str
    partition: int
    start: int
    end: int
    clock_micros: int | None = None
    """In microseconds since the epoch. For generated events: the time of event 0 of the stream; for files: the file's time."""
    topic_id: str | None = None
    """Tells a topic from one of the same name that is made after it was deleted; None if the source does not say."""
    is_first: bool = False
    """Whether the stream begins to read the partition here."""
    offsets_each: int = 1
    """About how many offsets a record takes: of a file they are bytes."""

    @property
    def place(self) -> Place:
        return self.topic, self.partition

    @property
    def size(self) -> int:
        """The number of offsets, which is at least that of the records."""
        return self.end - self.start

    @property
    def records(self) -> int:
        """About how many records there are, by which work is shared out."""
        return -(-self.size // self.offsets_each)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a source has of a partition now. ``starting``: the offset where its settings say to begin; ``end`` is exclusive, and
    None where more is always there."""

    earliest: int
    starting: int
    end: int | None
    topic_id: str | None = None


class RangePlanner:
    """Plans the batches of one pipeline, in one process beside the driver. One thread at a time.

    Batches follow each other by offset documents: JSON objects, of which ``{}`` is the first. What a batch reads follows from the
    documents before and after it alone (``RangeReader.ranges``).
    """

    left_some: bool = False
    """Whether there is something that the batches so far do not read."""
    records_each: int = 1
    """Up to about so many records, ranges share a task."""

    def next(self, start: Mapping[str, Any]) -> dict[str, Any]:
        """The document of the next batch; one that is equal to ``start`` if there is nothing to read."""
        raise NotImplementedError

    def only_what_is_there_now(self) -> None:
        """From now on plan what is there now, and nothing that comes later."""
        raise NotImplementedError

    def newest(self) -> dict[str, Any] | None:
        """What there is to read, for the progress of the query; None if that is not known."""
        return None


class RangeReader(Protocol):
    """Fetches the records of a range, the same ones every time. Picklable; lives in a task."""

    records_lost: int
    """The number of offsets that the source no longer had, where the settings allow to continue without them."""

    @property
    def skips_losses(self) -> bool:
        """Whether the settings allow to continue without records that the source no longer has."""

    def ranges(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Range]:
        """The ranges of a batch between two offset documents of the stream, in its order.

        A partition of which the batch reads nothing has an empty one. Those of one partition follow each other without a gap.
        """

    def bounds(self, places: Sequence[Place]) -> dict[Place, Bounds]:
        """What the source has of these partitions now, without those that are gone. It is asked rarely. Raises Retry."""

    def impatient(self) -> RangeReader:
        """A reader that raises Retry after a few seconds in which the source sends nothing."""

    def read(self, chosen: Range) -> Iterator[pa.Table]:
        """Tables of ``RECORD_SCHEMA``, and headers where records have some, in the order of the range."""


class Source(Protocol):
    """Where changes come from."""

    @property
    def reader(self) -> RangeReader:
        """Reads the ranges."""

    def stream(self, spark: SparkSession) -> DataFrame:
        """The streaming DataFrame of ranges."""


def ranges_of(batch: pa.RecordBatch) -> list[Range]:
    return [Range(**row) for row in batch.to_pylist()]


def batch_of(ranges: Iterable[Range]) -> pa.RecordBatch:
    """The ranges as a task gets them: the reverse of ``ranges_of``."""
    return pa.RecordBatch.from_pylist(list(map(asdict, ranges)), _RANGE_SCHEMA)


@dataclass(slots=True)
class _Decoding:
    """Decodes until something is needed of the table first; from then on it only looks for more that is needed."""

    decoder: Decoder
    cutoff: Cutoff
    needs: bool = False

    def decode(self, records: pa.Table) -> Decoded:
        if self.needs:
            change = self.decoder.schema_needed(records) or SchemaChange()
            return Decoded.needing(change, self.decoder.decoder_schema)
        decoded = self.decoder.decode(records, self.cutoff)
        self.needs = decoded.schema_needed is not None
        return decoded

    def decode_all(self, several: Sequence[pa.Table]) -> Iterator[Decoded]:
        """Records in their order. Those that follow each other are decoded together, if they differ in their headers alone."""
        for _, group in groupby(several, key=lambda records: [one for one in records.schema if one.name != HEADERS]):
            alike = list(group)
            joined = pa.concat_tables(alike, promote_options="default") if len(alike) > 1 else alike[0]
            yield self.decode(joined.combine_chunks())


@dataclass(slots=True)
class RangeChanges:
    """Reads and decodes ranges in a task, a bounded number of records at a time."""

    source: RangeReader
    decoder: Decoder
    cutoff: Cutoff = NO_CUTOFF
    cuts: Mapping[str, TaskCut] = field(default_factory=dict)
    """Where the partitions of a topic are cut, so that transactions stay whole; one that is cut is a single range."""
    ranges_read: list[Range] = field(default_factory=list)
    """What was read, whole: the table's positions follow from it."""
    reports: list[tuple[str, int, Report]] = field(default_factory=list)
    """What there is to say of partitions that may be cut."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Decoded]:
        """What is in the ranges that Spark gives a task."""
        return self.decoded(chosen for batch in batches for chosen in ranges_of(batch))

    def decoded(self, ranges: Iterable[Range]) -> Iterator[Decoded]:
        """What is in the ranges, in their order."""
        decoding = _Decoding(self.decoder, self.cutoff)
        held: list[pa.Table] = []  # small ends of ranges: each decoding has a fixed cost, so they share one
        for chosen in ranges:
            if chosen.topic in self.cuts:
                yield from self._cut(chosen, decoding)
                continue
            last: pa.Table | None = None
            for records in self.source.read(chosen):
                if last is not None:
                    yield from decoding.decode_all([*held, last])
                    held = []
                last = records
            if last is not None:
                held.append(last)
            if sum(map(len, held)) >= _JOINED_RECORDS:
                yield from decoding.decode_all(held)
                held = []
            self.ranges_read.append(chosen)
        yield from decoding.decode_all(held)

    def _cut(self, chosen: Range, decoding: _Decoding) -> Iterator[Decoded]:
        """Reads a partition up to the cut."""
        reader = transaction_ids_of(self.decoder)
        cutting, end = self.cuts[chosen.topic].begin(chosen.partition), chosen.end
        for records in self.source.read(chosen):
            before, stopped = cutting.take(records, reader.read(records))
            yield decoding.decode(before)
            if stopped is not None:
                end = stopped
                break
        self.ranges_read.append(replace(chosen, end=end))
        self.reports.append((chosen.topic, chosen.partition, cutting.report()))

    def records_lost(self) -> int:
        return self.source.records_lost

    def remarks(self) -> Counts:
        """What the source has to say of what was read."""
        told: Callable[[], Counts] | None = getattr(self.source, "remarks", None)
        return {} if told is None else told()

    def anew(self) -> RangeChanges:
        """The same work with nothing counted yet, in the same process: the decoder is shared, and keeps what it has planned."""
        return replace(self, source=copy(self.source), ranges_read=[], reports=[])


# -- When the next batch begins, and how much it may read --------------------------------------------------------------


BATCH_SECONDS = 0.75
"""The pace of a pipeline. A shorter one costs more, and a longer one makes events older."""
HOT_RECORDS = 1_000
"""About as many cost as much to decode and write as a table's commit and all that follows it."""


class Pace:
    """Says how long the next batch still waits."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._due = clock()

    def wait_seconds(self) -> float:
        """Seconds until a batch may begin; 0 or less if it may now."""
        return self._due - self._clock()

    def began(self, left_some: bool = False) -> None:
        """A batch begins now; ``left_some``: events that were there are not in it."""
        self._due = self._clock() + (0.0 if left_some else self._seconds)


_ROWS_AT_FIRST = 200_000


class BatchLimit:
    """Limits the rows of the next batch. It reads the table's log itself, since a separate process plans the batches."""

    def __init__(self, table: str | None) -> None:
        """Without a table there is no backpressure, so no limit."""
        self._log = None if table is None else TableLog(open_store(table))
        self._usual = _ROWS_AT_FIRST

    def snapshot(self) -> Snapshot | None:
        """The table as it is; None if that is not known now."""
        if self._log is None:
            return None
        try:
            return self._log.refresh()
        except (TableNotFound, Retry):
            return None

    def positions(self) -> dict[str, Position]:
        """Up to where the table has read its topics; nothing if that is not known now."""
        snapshot = self.snapshot()
        return {} if snapshot is None else positions_of(snapshot)

    def limit(self, waiting: int) -> int:
        """How many of the ``waiting`` rows the next batch may take."""
        snapshot = self.snapshot() if waiting else None
        if snapshot is None:
            return waiting
        now = pressure(snapshot)
        if now.factor == 1:
            self._usual = waiting
            return waiting
        return min(waiting, now.limit(self._usual))
