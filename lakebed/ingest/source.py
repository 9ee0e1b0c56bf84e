"""Sources, and the work of a Spark task that turns their output into changes.

A source is a streaming DataFrame plus, where that DataFrame holds ranges instead of data, a reader that fetches the
records of a range inside the task. ``Source.carries`` is one of three kinds:

    ranges      one row per range (Kafka offsets, event numbers): ``RangeChanges`` reads and decodes them
    records     ``RECORD_SCHEMA`` rows (lines of files): ``RecordChanges`` decodes them
    rows        rows that have the table's columns already
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.ingest.decoder import RECORD_SCHEMA, Decoded, Decoder
from lakebed.ingest.files_read import of_files
from lakebed.ingest.headers import HEADERS_FIELD
from lakebed.ingest.points.cut import Report, TaskCut
from lakebed.ingest.points.decoders import transaction_ids_of
from lakebed.ingest.truncates import NO_CUTOFF, Cutoff
from lakebed.manifest.schema_change import SchemaChange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Carries = Literal["ranges", "records", "rows"]
RANGE_SCHEMA_DDL = "topic string, partition int, start long, end long, clock_micros long"
"""One row per range, the same for all sources that carry ranges: ``start`` <= offset < ``end``."""
_RANGE_SCHEMA = pa.schema(
    [
        ("topic", pa.string()), ("partition", pa.int32()), ("start", pa.int64()), ("end", pa.int64()),
        ("clock_micros", pa.int64()), ("topic_id", pa.string()), ("is_first", pa.bool_()),
    ]
)  # fmt: skip
JOINED_RECORDS = 4096
WITH_HEADERS = RECORD_SCHEMA.append(HEADERS_FIELD)
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
    """For generated events: the time of event 0 of the stream, in microseconds since the epoch."""
    topic_id: str | None = None
    """Tells a topic from one of the same name that is made after it was deleted; None if the source does not say."""
    is_first: bool = False
    """Whether the stream begins to read the partition here."""

    @property
    def place(self) -> Place:
        return self.topic, self.partition

    @property
    def size(self) -> int:
        """The number of offsets, which is at least that of the records."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a source has of a partition now. ``starting``: the offset where its settings say to begin; ``end`` is exclusive, and
    None where more is always there."""

    earliest: int
    starting: int
    end: int | None
    topic_id: str | None = None


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
    def carries(self) -> Carries: ...

    @property
    def reader(self) -> RangeReader | None:
        """Reads the ranges; None if the stream carries no ranges."""

    def stream(self, spark: SparkSession) -> DataFrame:
        """The streaming DataFrame of a source that carries ranges, records or rows."""


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
        decoding = _Decoding(self.decoder, self.cutoff)
        held: list[pa.Table] = []  # small ends of ranges: each decoding has a fixed cost, so they share one
        for batch in batches:
            for chosen in ranges_of(batch):
                if chosen.topic in self.cuts:
                    yield from self._cut(chosen, decoding)
                    continue
                last: pa.Table | None = None
                for records in self.source.read(chosen):
                    if last is not None:
                        yield decoding.decode(_joined([*held, last]))
                        held = []
                    last = records
                if last is not None:
                    held.append(last)
                if sum(map(len, held)) >= JOINED_RECORDS:
                    yield decoding.decode(_joined(held))
                    held = []
                self.ranges_read.append(chosen)
        if held:
            yield decoding.decode(_joined(held))

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

    def anew(self) -> RangeChanges:
        """The same work with nothing counted yet, in the same process: the decoder is shared, and keeps what it has planned."""
        return replace(self, source=copy(self.source), ranges_read=[], reports=[])


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Records, of which some may have headers."""
    return pa.concat_tables(tables, promote_options="default")


@dataclass(slots=True)
class RecordChanges:
    """Decodes records (``RECORD_SCHEMA``) in a task."""

    decoder: Decoder
    cutoff: Cutoff = NO_CUTOFF
    left_out: frozenset[str] = frozenset()
    """Files that the table has read already; the topic of a record is its file."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Decoded]:
        decoding = _Decoding(self.decoder, self.cutoff)
        for batch in batches:
            records = pa.Table.from_batches([batch])
            records = records.cast(RECORD_SCHEMA if len(records.schema) == len(RECORD_SCHEMA) else WITH_HEADERS)
            if self.left_out:
                records = records.filter(pc.invert(of_files(records["topic"], self.left_out)))
            if len(records):
                yield decoding.decode(records)

    def records_lost(self) -> int:
        return 0
