"""Read records in slices: on a fast path where possible, one by one where not.

1.  Records are cut into slices of bounded rows and bytes, so memory does not grow with the batch.
2.  The fast path reads a slice as a whole. Records that it can't be sure of are then read one by one, by it or here.
3.  If the fast path fails for a slice, the slice is halved, until the bad record is among few, which are read one by
    one. So one bad record costs about one more reading of its slice.
4.  All rows are put back into record order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.decode.decoder import Decoded, DecoderSchema, quarantine
from lakebed.decode.earlier_rows import EarlierRow
from lakebed.decode.json.text import Mismatch, Unreadable
from lakebed.decode.key_moves import BatchMoves
from lakebed.decode.metadata import Headers, mappings_of
from lakebed.decode.places import compared, in_order, met_by, partitions_of, regions_of, restarted
from lakebed.decode.source_order import Described
from lakebed.errors import LakebedError
from lakebed.parts.changes import OP_COLUMN, UNAVAILABLE_COLUMN, UPSERT
from lakebed.positions.source_columns import RecordColumns
from lakebed.positions.truncates import Cutoff, Truncate
from lakebed.remarks import Counts, Remark, RemarkCounts, sum_of
from lakebed.schema.change import SchemaChange
from lakebed.schema.fitting import RESCUED_COLUMN, merged

_SLICE_ROWS_MAX = 16_384
_SLICE_BYTES_MAX = 16 * 1024 * 1024
ONE_BY_ONE_ROWS = 32

UNFORESEEN = "it could not be read"
"""How the reason begins for a record on which the decoder failed unexpectedly: a bug of lakebed, but the stream goes on."""

AT_COLUMN = "_lakebed_at"
TIME_COLUMN = "_lakebed_time"
CREATES_COLUMN = "_lakebed_creates"
"""Internal to decoding: twice the record's number (plus one for its second row), its event time in microseconds, and whether the
event is of a row that is new."""


def _row_schema(decoder_schema: DecoderSchema) -> pa.Schema:
    """The schema of change rows with all columns that later steps may need."""
    return (
        decoder_schema.change_schema(with_unavailable=True)
        .append(pa.field(AT_COLUMN, pa.int64()))
        .append(pa.field(TIME_COLUMN, pa.int64()))
        .append(pa.field(CREATES_COLUMN, pa.bool_()))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record for the slow path; ``timestamp`` is milliseconds since the epoch."""

    key: bytes | None
    value: bytes | None
    topic: str
    partition: int
    offset: int
    timestamp: int | None
    headers: Headers = field(default_factory=dict)


Remarked = tuple[tuple[Remark, str], ...]
"""The remarks on one record: their kinds and names."""


@dataclass(frozen=True, slots=True)
class Ignored:
    """The record changes nothing in a table."""


@dataclass(frozen=True, slots=True)
class Truncated:
    """The record is a change from before a truncate."""

    remarks: Remarked = ()


@dataclass(frozen=True, slots=True)
class Changes:
    """The change rows of a record, at most two."""

    rows: list[dict[str, Any]]
    remarks: Remarked = ()
    is_of_snapshot: bool = False
    """Whether it is a row that was read, and no change."""
    columns: RecordColumns | None = None
    """What its schema says of the table's columns, if it has one."""
    source: str | None = None
    """Of which table of the source it is, if the table is to remember that."""


Reading = Changes | Truncate | Ignored | Truncated


@dataclass(frozen=True, slots=True)
class FastReading:
    rows: pa.Table
    """Change rows in ``_row_schema``."""
    handled: np.ndarray[Any, Any]
    """For each record of the slice, whether it is done: its rows are in ``rows``, or it is counted."""
    ignored: int = 0
    truncated: int = 0
    remarks: Counts = field(default_factory=dict)
    """On the handled records."""
    of_snapshot: int = 0
    """How many of the handled records are rows that were read, and no changes."""
    one_by_one: Mapping[int, Reading | Unreadable] = field(default_factory=dict)
    """By their place in the slice, what records are that the fast path has read one by one; ``handled`` has them too."""
    schemas: Mapping[RecordColumns, np.ndarray[Any, Any]] = field(default_factory=dict)
    """By what their schema says of the table's columns, the places of records in the slice, as far as they have schemas."""
    sources: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Of which tables of the source they are, if the table is to remember that: topic and name, with the number of the first."""

    def remarked(self, counts: Counts) -> FastReading:
        """With further remarks."""
        return replace(self, remarks=sum_of([self.remarks, counts])) if counts else self


def joined(
    parts: Sequence[tuple[np.ndarray[Any, Any], FastReading]], count: int, decoder_schema: DecoderSchema
) -> FastReading:
    """The readings of groups of records, each with the places of its records in the slice, as one.

    ``count``: of all records in the slice. Those in no group are not handled.
    """
    handled = np.zeros(count, bool)
    one_by_one: dict[int, Reading | Unreadable] = {}
    schemas: dict[RecordColumns, np.ndarray[Any, Any]] = {}
    for places, fast in parts:
        for columns, rows in fast.schemas.items():
            schemas[columns] = np.concatenate([schemas[columns], places[rows]]) if columns in schemas else places[rows]
        handled[places] = fast.handled
        one_by_one |= {int(places[row]): reading for row, reading in fast.one_by_one.items()}
    return FastReading(
        pa.concat_tables([fast.rows for _, fast in parts] or [from_arrays(decoder_schema, 0, {})]),
        handled,
        sum(fast.ignored for _, fast in parts),
        sum(fast.truncated for _, fast in parts),
        sum_of(fast.remarks for _, fast in parts),
        sum(fast.of_snapshot for _, fast in parts),
        one_by_one,
        schemas,
        _lowest(fast.sources for _, fast in parts),
    )


def _lowest(several: Iterable[Mapping[tuple[str, str], int]]) -> dict[tuple[str, str], int]:
    """The lowest number of each name."""
    found: dict[tuple[str, str], int] = {}
    for one in several:
        for name, number in one.items():
            found[name] = min(found.get(name, number), number)
    return found


class _Reader(Protocol):
    one_by_one_rows: int
    """Slices of so many records are not halved, if they can't be read as a whole: their records are read one by one."""

    def read_slice(self, records: pa.RecordBatch, first: int) -> FastReading:
        """Reads records as a whole; ``first`` is the number of the first one. Raises if that is not possible.

        A LakebedError ends the batch.
        """

    def read_record(self, record: Record) -> Reading:
        """Reads one record exactly. Raises ``Unreadable`` with the reason for the quarantine."""

    def schema_needed(self, records: pa.RecordBatch) -> SchemaChange | None:
        """What the schemas of the records ask of the table; None if nothing. No row is read."""

    def described(self, record: Record) -> Described | None:
        """What an event is beside its rows; None if the record changes no row, or does not say it. May raise anything."""

    def transactions(self, records: pa.RecordBatch) -> Iterable[tuple[np.ndarray[Any, Any], pa.StringArray]]:
        """What ``described`` says of transactions, with the places of records for which it is quick. May raise anything."""

    def earlier_row(self, record: Record) -> EarlierRow | None:
        """What an event says of the row that it replaced; None if nothing. May raise anything."""


def record_of(records: pa.RecordBatch, row: int) -> Record:
    """One of the records."""
    values = {name: records.column(name)[row].as_py() for name in ("key", "value", "topic", "partition", "offset")}
    timestamp = records.column("timestamp").view(pa.int64())[row].as_py()
    return Record(**values, timestamp=timestamp, headers=mappings_of(records.slice(row, 1))[0])


class SchemaNeeded(Exception):
    """A reader may raise it in place of reading: the table must become something else first."""

    def __init__(self, change: SchemaChange) -> None:
        super().__init__(change)
        self.change = change


@dataclass(slots=True, kw_only=True)
class _Collected:
    cutoff: Cutoff
    tables: list[pa.Table] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    bad: list[tuple[int, str]] = field(default_factory=list)
    mismatched: int = 0
    mismatch: str = ""
    needs: list[SchemaChange] = field(default_factory=list)
    truncates: list[Truncate] = field(default_factory=list)
    ignored: int = 0
    truncated: int = 0
    of_snapshot: int = 0
    schemas: dict[RecordColumns, list[np.ndarray[Any, Any]]] = field(default_factory=dict)
    remarks: RemarkCounts = field(default_factory=RemarkCounts)
    sources: dict[tuple[str, str], int] = field(default_factory=dict)

    def take(self, at: int, reading: Reading, topic: str) -> None:
        """What the record of this number is."""
        if isinstance(reading, Truncate):
            if self.cutoff.knows(reading):
                self.ignored += 1
            else:
                self.truncates.append(reading)
        elif isinstance(reading, Truncated):
            self.truncated += 1
            self.remark(reading.remarks)
        elif isinstance(reading, Ignored):
            self.ignored += 1
        else:
            self.of_snapshot += reading.is_of_snapshot
            if reading.columns is not None:
                self.schemas.setdefault(reading.columns, []).append(np.array([at]))
            self.remark(reading.remarks)
            if reading.source is not None:
                self.sources = _lowest([self.sources, {(topic, reading.source): at}])
            for second, row in enumerate(reading.rows):
                self.rows.append({**row, AT_COLUMN: 2 * at + second})

    def need(self, change: SchemaChange | None) -> None:
        """The table must become this first."""
        if change is not None:
            self.needs.append(change)

    def refuse(self, at: int, error: Unreadable) -> None:
        """A record goes to the quarantine."""
        self.bad.append((at, str(error)))
        if isinstance(error, Mismatch):
            self.mismatched += 1
            self.mismatch = self.mismatch or str(error)
        self.remark(error.remarks)

    def remark(self, remarks: Remarked) -> None:
        """Count the remarks on a record."""
        for kind, name in remarks:
            self.remarks.add(kind, name)


def decode_records(records: pa.Table, reader: _Reader, decoder_schema: DecoderSchema, cutoff: Cutoff) -> Decoded:
    collected = _Collected(cutoff=cutoff)
    first = 0
    for batch in _slices(records):
        if collected.needs:
            collected.need(reader.schema_needed(batch))
        else:
            _read(batch, first, reader, collected)
        first += batch.num_rows
    if collected.needs:
        return Decoded.needing(merged(collected.needs), decoder_schema)
    return _assemble(records, collected, reader, decoder_schema)


def schema_needed(records: pa.Table, reader: _Reader) -> SchemaChange | None:
    """What the schemas of the records ask of the table."""
    needs = [change for batch in _slices(records) if (change := reader.schema_needed(batch)) is not None]
    return merged(needs) if needs else None


def _slices(records: pa.Table) -> Iterator[pa.RecordBatch]:
    for batch in records.to_batches(max_chunksize=_SLICE_ROWS_MAX):
        bytes_per_row = max(1, batch.column("value").nbytes // max(1, batch.num_rows))
        step = max(1, min(_SLICE_ROWS_MAX, _SLICE_BYTES_MAX // bytes_per_row))
        for start in range(0, batch.num_rows, step):
            yield batch.slice(start, step)


def _read(batch: pa.RecordBatch, first: int, reader: _Reader, collected: _Collected) -> None:
    try:
        fast = reader.read_slice(batch, first)
    except (MemoryError, LakebedError):
        raise
    except SchemaNeeded as needed:
        collected.need(needed.change)
        return
    except Exception:  # whatever the error is: the slow path decides for each record, and gives reasons
        if batch.num_rows <= reader.one_by_one_rows:
            _read_one_by_one(batch, np.arange(batch.num_rows), first, reader, collected)
            return
        half = batch.num_rows // 2
        _read(batch.slice(0, half), first, reader, collected)
        _read(batch.slice(half), first + half, reader, collected)
        return
    collected.tables.append(fast.rows)
    collected.ignored += fast.ignored
    collected.truncated += fast.truncated
    collected.of_snapshot += fast.of_snapshot
    collected.remarks.add_all(fast.remarks)
    for columns, places in fast.schemas.items():
        collected.schemas.setdefault(columns, []).append(first + places)
    collected.sources = _lowest([collected.sources, fast.sources])
    for number, reading in fast.one_by_one.items():
        if isinstance(reading, Unreadable):
            collected.refuse(first + number, reading)
        else:
            collected.take(first + number, reading, batch.column("topic")[number].as_py())
    if not fast.handled.all():
        _read_one_by_one(batch, np.flatnonzero(~fast.handled), first, reader, collected)


def _read_one_by_one(
    batch: pa.RecordBatch, chosen: np.ndarray[Any, Any], first: int, reader: _Reader, collected: _Collected
) -> None:
    some = batch.take(pa.array(chosen))
    millis = some.column("timestamp").view(pa.int64()).to_pylist()
    columns = [some.column(name).to_pylist() for name in ("key", "value", "topic", "partition", "offset")]
    headers = mappings_of(some)
    for number, key, value, topic, partition, offset, timestamp, named in zip(
        chosen, *columns, millis, headers, strict=True
    ):
        at = first + int(number)
        record = Record(
            key=key, value=value, topic=topic, partition=partition, offset=offset, timestamp=timestamp, headers=named
        )
        try:
            reading = reader.read_record(record)
        except Unreadable as error:
            collected.refuse(at, error)
            continue
        except (MemoryError, LakebedError):
            raise
        except SchemaNeeded as needed:
            collected.need(needed.change)
            continue
        except Exception as error:  # a stream must not stop for one record
            collected.bad.append((at, f"{UNFORESEEN}: {type(error).__name__}: {error}"))
            continue
        collected.take(at, reading, topic)


@dataclass(frozen=True, slots=True)
class _Events:
    """What records say, by their numbers."""

    records: pa.Table
    reader: _Reader

    def described(self, number: int) -> Described | None:
        return self.reader.described(self._record(number))

    def transactions(self, numbers: np.ndarray[Any, Any]) -> Iterator[tuple[np.ndarray[Any, Any], pa.StringArray]]:
        first = 0
        for batch in _slices(self.records):
            low, high = np.searchsorted(numbers, [first, first + batch.num_rows])
            if low < high:
                chosen = numbers[low:high]
                for places, texts in self.reader.transactions(batch.take(pa.array(chosen - first))):
                    yield chosen[places], texts
            first += batch.num_rows

    def earlier_row(self, number: int) -> EarlierRow | None:
        return self.reader.earlier_row(self._record(number))

    def _record(self, number: int) -> Record:
        return record_of(self.records.slice(number, 1).to_batches()[0], 0)


def _assemble(records: pa.Table, collected: _Collected, reader: _Reader, decoder_schema: DecoderSchema) -> Decoded:
    schema = _row_schema(decoder_schema)
    tables = list(collected.tables)
    if collected.rows:
        tables.append(_table_of(collected, schema))
    rows = in_order(pa.concat_tables(tables) if tables else schema.empty_table(), AT_COLUMN)
    numbers, times_of_rows = rows.column(AT_COLUMN).to_numpy() // 2, rows.column(TIME_COLUMN)
    rows = restarted(rows, records, numbers, collected.cutoff)
    regions = regions_of(records)
    partitions = partitions_of(records, regions)
    newest, again = compared(rows, partitions, numbers, times_of_rows, decoder_schema, collected.cutoff)
    met = met_by(records, partitions, numbers, times_of_rows, collected.schemas)
    if again:
        collected.remarks.add(Remark.ORDER_BEGAN_AGAIN, str(decoder_schema.sequence_by), again)
    creates = np.asarray(pc.fill_null(rows.column(CREATES_COLUMN), False))
    at = rows.column(AT_COLUMN).to_numpy()
    events, before = _Events(records, reader), collected.cutoff.last
    moves = BatchMoves(rows, at, creates, records, events, decoder_schema, regions=regions, before=before).found()
    rows = moves.rows
    collected.bad += moves.bad
    collected.ignored += moves.ignored
    collected.remark(tuple(moves.remarks))
    dropped = [AT_COLUMN, TIME_COLUMN, CREATES_COLUMN]
    if rows.column(UNAVAILABLE_COLUMN).null_count == rows.num_rows:
        dropped.append(UNAVAILABLE_COLUMN)
    if decoder_schema.policy.rescues and not decoder_schema.has_rescued:
        if rows.column(RESCUED_COLUMN).null_count < rows.num_rows:
            return Decoded.needing(SchemaChange(add={RESCUED_COLUMN: pa.string()}), decoder_schema)
        dropped.append(RESCUED_COLUMN)
    return Decoded(
        changes=rows.drop_columns(dropped),
        quarantined=quarantine(records, collected.bad),
        truncates=tuple(collected.truncates),
        event_time_max=pc.max(times_of_rows).as_py(),
        ignored=collected.ignored,
        truncated=collected.truncated,
        of_snapshot=collected.of_snapshot,
        newest=newest,
        last=moves.last,
        met=met,
        remarks=collected.remarks.counts,
        mismatched=collected.mismatched,
        mismatch=collected.mismatch,
        sources=_sources(records, collected),
    )


def _sources(records: pa.Table, collected: _Collected) -> dict[str, dict[str, tuple[int, int]]]:
    """The source tables that came, with the places of their first records."""
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for (topic, name), at in collected.sources.items():
        place = (records["partition"][at].as_py(), records["offset"][at].as_py())
        found.setdefault(topic, {})[name] = place
    return found


def _table_of(collected: _Collected, schema: pa.Schema) -> pa.Table:
    """The rows that were read one by one, as a table. A record whose rows Arrow refuses becomes a bad record."""

    def table(rows: list[dict[str, Any]]) -> pa.Table:
        columns = [pa.array([row.get(f.name) for row in rows], f.type) for f in schema]
        return pa.Table.from_arrays(columns, schema=schema)

    try:
        return table(collected.rows)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        by_record: dict[int, list[dict[str, Any]]] = {}
        for row in collected.rows:
            by_record.setdefault(row[AT_COLUMN] // 2, []).append(row)
    good = [schema.empty_table()]
    for at, rows in by_record.items():
        try:
            good.append(table(rows))
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            collected.bad.append((at, f"{UNFORESEEN}: {type(error).__name__}: {error}"))
    return pa.concat_tables(good)


def with_rescued(
    fast: FastReading,
    numbers: np.ndarray[Any, Any],
    having: np.ndarray[Any, Any],
    text_of: Callable[[int], str | None],
) -> FastReading:
    """The rows with what no column takes of their records, as JSON.

    ``numbers``: of the records; ``having``: those with unknown members; ``text_of``: what is kept of a record. Records of which
    it can't be kept are left to be read one by one.
    """
    is_upsert = np.asarray(pc.equal(fast.rows.column(OP_COLUMN), UPSERT))
    row_numbers = fast.rows.column(AT_COLUMN).to_numpy() // 2
    wanted = having & np.isin(numbers, row_numbers[is_upsert])
    texts: dict[int, str | None] = {}
    handled, failed = fast.handled, set[int]()
    for row in np.flatnonzero(wanted).tolist():
        try:
            texts[int(numbers[row])] = text_of(row)
        except Unreadable:
            failed.add(int(numbers[row]))
    if not texts and not failed:
        return fast
    kept = [texts.get(number) if own else None for number, own in zip(row_numbers.tolist(), is_upsert, strict=True)]
    at = fast.rows.column_names.index(RESCUED_COLUMN)
    rows = fast.rows.set_column(at, RESCUED_COLUMN, pa.array(kept, pa.string()))
    if failed:
        handled = handled & ~np.isin(numbers, list(failed))
        rows = rows.filter(pa.array(~np.isin(row_numbers, list(failed))))
    return replace(fast, rows=rows, handled=handled)


def from_arrays(decoder_schema: DecoderSchema, rows: int, columns: dict[str, pa.Array]) -> pa.Table:
    """A table of ``_row_schema``; columns not given are null."""
    schema = _row_schema(decoder_schema)
    arrays = [columns[f.name] if f.name in columns else pa.nulls(rows, f.type) for f in schema]
    return pa.Table.from_arrays(arrays, schema=schema)
