"""Turn Debezium's change events in JSON into changes of a table.

Operations
    c, r, u     upsert of ``after``; a ``u`` whose ``before`` has another key deletes the old key first
    d           delete of the key in ``before``, or else in the message key
    t           truncate: returned beside the changes, because it concerns all partitions
    m, and a record without a value (a tombstone): ignored, counted
A delete carries its key and, where ``before`` has it, the table's own ``sequence_by`` column; all other columns are null.

Algorithm
    1.  Records with an inline schema are grouped by the schema's text, which is a common prefix of their values. The
        prefix is cut off and parsed once. The rest of a value looks like an event without a schema.
    2.  A plan holds a reader for each column (``json.columns``). It is made from the table's types, the logical types
        in the schema and a sample of values, and kept until it fails.
    3.  A slice is parsed into ``before``, ``after`` and metadata (``json.objects``). The readers convert the columns, and
        masks made from the operation select the upserts and the deletes. All other rows go to the slow path, also those
        that the parser is not sure of: they are null, so they have no operation.
    4.  The slow path (``debezium.record``) reads one record exactly, or gives the reason why it can't.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.decode.debezium.changes import ChangeRules, Events, Mask
from lakebed.decode.debezium.inline_schemas import CHANGES, FieldsRead, InlineSchemas, RowSchemas, payloads_of, row_of
from lakebed.decode.debezium.message_key import JsonKeys
from lakebed.decode.debezium.record import Event, event_of, read_event
from lakebed.decode.decoder import Decoded, DecoderSchema
from lakebed.decode.earlier_rows import EarlierRow
from lakebed.decode.json.columns import (
    MISSES,
    ColumnReader,
    Missed,
    json_type,
    null_unavailable,
    one_of,
    reader_for,
    shape_of,
)
from lakebed.decode.json.connect_types import PLAIN, LogicalType, columns_of_envelope, envelope_of
from lakebed.decode.json.objects import ObjectParser, Parsed, Path
from lakebed.decode.json.text import Unreadable, loaded, parse
from lakebed.decode.json.values import ByColumn, JsonOptions, unlikely
from lakebed.decode.metadata import metadata_path
from lakebed.decode.slices import (
    ONE_BY_ONE_ROWS,
    FastReading,
    Reading,
    Record,
    SchemaNeeded,
    decode_records,
    from_arrays,
    joined,
    record_of,
    schema_needed,
    with_rescued,
)
from lakebed.decode.source_order import (
    NAMES_OF_TRANSACTIONS,
    Described,
    described,
    metadata_type,
    transactions,
)
from lakebed.decode.unknown_fields import (
    KnownFields,
    UnknownByRecord,
    UnknownMode,
    names_in,
    sample_of,
    unknown_mode,
)
from lakebed.positions.truncates import NO_CUTOFF, Cutoff
from lakebed.remarks import Counts, Remark, remarks_on
from lakebed.schema.change import SchemaChange
from lakebed.schema.fitting import merged

_SAMPLES = 64


class DebeziumJson:
    """Decoder of the format ``debezium-json``."""

    def __init__(self, decoder_schema: DecoderSchema, options: JsonOptions | None = None) -> None:
        self._decoder_schema = decoder_schema
        self._options = options or JsonOptions()
        metadata_path(decoder_schema.sequence_metadata)
        self._readers: dict[Cutoff, _EventReader] = {}

    @property
    def decoder_schema(self) -> DecoderSchema:
        """The columns that it decodes to."""
        return self._decoder_schema

    def bound_to(self, decoder_schema: DecoderSchema) -> DebeziumJson:
        """The same decoder for a table whose schema changed."""
        return DebeziumJson(decoder_schema, self._options)

    def __getstate__(self) -> tuple[DecoderSchema, JsonOptions]:
        return self._decoder_schema, self._options

    def __setstate__(self, state: tuple[DecoderSchema, JsonOptions]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def decode(self, records: pa.Table, cutoff: Cutoff = NO_CUTOFF) -> Decoded:
        return decode_records(records, self._reader(cutoff), self._decoder_schema, cutoff)

    def schema_needed(self, records: pa.Table) -> SchemaChange | None:
        """What the table must become before these records can be decoded, as far as their inline schemas say that."""
        return schema_needed(records, self._reader(next(iter(self._readers), NO_CUTOFF)))

    def _reader(self, cutoff: Cutoff) -> _EventReader:
        if cutoff not in self._readers:
            self._readers = {cutoff: _EventReader(self._decoder_schema, self._options, cutoff)}
        return self._readers[cutoff]


@dataclass(slots=True)
class _Source:
    """Events of one inline schema, or of none."""

    logical_types: dict[str, LogicalType]
    fields: FieldsRead
    mode: UnknownMode = "warn"
    samples: dict[str, Any] = field(default_factory=dict)
    plan: _Plan | None = None

    @property
    def shape(self) -> Any:
        """What a plan depends on."""
        return shape_of(self.samples), self.fields.decoder_schema.spellings


class _EventReader:
    one_by_one_rows = ONE_BY_ONE_ROWS

    def __init__(self, decoder_schema: DecoderSchema, options: JsonOptions, cutoff: Cutoff) -> None:
        self._decoder_schema = decoder_schema
        self._options = options
        self._cutoff = cutoff
        self._keys = JsonKeys(decoder_schema, options)
        self._fields = RowSchemas(decoder_schema, options)
        self._sources = InlineSchemas(self._source(None), self._source)
        self._transaction_parsers: dict[pa.Schema, ObjectParser] = {}

    def read_record(self, record: Record) -> Reading:
        return read_event(record, self._fields, self._options, self._cutoff)

    def described(self, record: Record) -> Described | None:
        """What a record is, beside its rows."""
        return None if record.value is None else described(envelope_of(loaded(record.value))[0])

    def transactions(self, records: pa.RecordBatch) -> Iterator[tuple[Mask, pa.StringArray]]:
        """The transactions of records, for the places of those of which they are found quickly."""
        values = records.column("value")
        for prefix, _, chosen in self._sources.groups(values, np.asarray(values.is_valid())):
            some = values if len(chosen) == len(values) else values.take(pa.array(chosen))
            with suppress(*MISSES, TypeError):
                texts, sure = _transactions(payloads_of(some, prefix), self._transaction_parsers)
                yield chosen[sure], texts.filter(pa.array(sure))

    def earlier_row(self, record: Record) -> EarlierRow | None:
        """What an event says of the row that it replaced."""
        if record.value is None:
            return None
        event, schema = envelope_of(parse(record.value))
        return event_of(event, schema, record, self._fields, self._options)[0].earlier_row()

    def read_slice(self, records: pa.RecordBatch, first: int) -> FastReading:
        values = records.column("value")
        numbers = np.arange(records.num_rows)
        present = np.asarray(values.is_valid())
        groups = self._sources.groups(values, present)
        # A group that is left out here is read one by one.
        groups = [one for one in groups if not one[1].fields.decoder_schema.key_has_twin]
        groups = [one for one in groups if one[1].fields.needed is None or self._takes(records, int(one[2][0]))]
        if needs := [source.fields.needed for _, source, _ in groups if source.fields.needed is not None]:
            if self._decoder_schema.source.keys_of_message and not self._keys.names(records).exact.all():
                raise Missed("records whose message key may have changed are read one by one")
            raise SchemaNeeded(merged(needs))
        parts = []
        if not present.all():
            empty = np.flatnonzero(~present)
            nothing = from_arrays(self._decoder_schema, 0, {})
            parts.append((empty, FastReading(nothing, np.ones(len(empty), bool), len(empty))))
        for prefix, source, chosen in groups:
            some = records if len(chosen) == len(values) else records.take(pa.array(chosen))
            payloads = payloads_of(some.column("value"), prefix)
            fast = self._read_payloads(source, payloads, some, first + numbers[chosen])
            if source.fields.columns is not None:
                fast = replace(fast, schemas={source.fields.columns: np.arange(len(chosen))})
            parts.append((chosen, fast))
        return joined(parts, len(values), self._decoder_schema)

    def _takes(self, records: pa.RecordBatch, row: int) -> bool:
        """Whether an event is of a table whose events are taken. Others with its schema are of the same table."""
        record = record_of(records, row)
        with suppress(Unreadable):
            event, _ = envelope_of(parse(record.value or b""))
            if isinstance(event, dict):
                return Event(event, {}, record, self._decoder_schema, self._options).is_taken(self._cutoff)
        return True

    def schema_needed(self, records: pa.RecordBatch) -> SchemaChange | None:
        """What the inline schemas of the records ask of the table, as far as they are found quickly."""
        needs = [
            one.fields.needed
            for row, one in self._sources.all_of(records.column("value"))
            if one.fields.needed is not None and self._takes(records, row)
        ]
        return merged(needs) if needs else None

    def _mode(self, *, has_schema: bool) -> UnknownMode:
        return unknown_mode(self._options.unknown_fields, self._decoder_schema.policy, has_schema=has_schema)

    def _source(self, schema: Any) -> _Source:
        """For events of an inline schema, or of none. Raises ``Unreadable``."""
        fields = self._fields.of(schema)
        logical_types = fields.decoder_schema.types_by_column(columns_of_envelope(schema))
        return _Source(logical_types, fields, self._mode(has_schema=schema is not None))

    def _read_payloads(
        self, source: _Source, payloads: pa.Array, records: pa.RecordBatch, numbers: Mask
    ) -> FastReading:
        if source.plan is None:
            self._sample(source, payloads)
            source.plan = _plan(self._options, source, self._cutoff, self._keys)
            return self._read_parsed(source, source.plan.parse(payloads), payloads, records, numbers)
        planned_for = source.shape
        try:
            parsed = self._parse_again(source, payloads, source.plan.parse(payloads))
            return self._read_parsed(source, parsed, payloads, records, numbers)
        except MISSES:
            self._sample(source, payloads)
            if source.shape == planned_for:
                raise  # the values have the same types as before, so a new plan would be the same
        source.plan = _plan(self._options, source, self._cutoff, self._keys)
        return self._read_parsed(source, source.plan.parse(payloads), payloads, records, numbers)

    def _read_parsed(
        self, source: _Source, parsed: Parsed, payloads: pa.Array, records: pa.RecordBatch, numbers: Mask
    ) -> FastReading:
        """Reads the rows. Records with unknown members are counted, or left to the slow path, which quarantines them."""
        plan, known = source.plan, source.fields.known
        assert plan is not None
        if known is None:
            return plan.read(parsed, records, numbers)
        row_in = partial(_row_in, source.fields.decoder_schema)
        unknown = _unknown_by_record(known, parsed)
        if source.mode == "warn":
            fast = plan.read(parsed, records, numbers)
            if unknown is not None:
                names = unknown.remarks(fast.handled)
            else:
                sample = sample_of(payloads)
                found, _ = names_in(payloads, sample[fast.handled[sample]], row_in, known)
                names = remarks_on(Remark.UNKNOWN_FIELD, found)
            return fast.remarked({**names, **_left_out(source, parsed, fast)})
        if unknown is None:
            having = np.zeros(len(payloads), bool)
            having[names_in(payloads, range(len(payloads)), row_in, known)[1]] = True
        else:
            having = unknown.having
        if source.mode != "rescue":
            fast = plan.read(parsed.without(having), records, numbers)
            return fast.remarked(_left_out(source, parsed, fast))
        fast = plan.read(parsed, records, numbers)
        fast = with_rescued(fast, numbers, having, lambda row: _rescued(known, row_in(parse(payloads[row].as_py()))))
        if unknown is not None:
            return fast.remarked(unknown.remarks(fast.handled))
        found, _ = names_in(payloads, np.flatnonzero(fast.handled & having), row_in, known)
        return fast.remarked(remarks_on(Remark.UNKNOWN_FIELD, found))

    def _parse_again(self, source: _Source, payloads: pa.Array, parsed: Parsed) -> Parsed:
        """Parses with a plan for the types of the records that are not read, and keeps it if it reads more records."""
        if not parsed.unsure:
            return parsed
        samples, fields, planned_for = dict(source.samples), source.fields, source.shape
        self._sample(source, payloads.filter(pa.array(~parsed.sure)))
        if source.shape != planned_for:
            try:
                plan = _plan(self._options, source, self._cutoff, self._keys)
                again = plan.parse(payloads)
            except MISSES:
                again = parsed
            if again.unsure < parsed.unsure:
                source.plan = plan
                return again
        source.samples, source.fields = samples, fields
        return parsed

    def _sample(self, source: _Source, payloads: pa.Array) -> None:
        """Keeps a value of each column, from which the plan takes the JSON type, and names that differ by case."""
        fresh, names = dict[str, Any](), set[str]()
        for number in np.unique(np.linspace(0, len(payloads) - 1, _SAMPLES, dtype=np.int64)):
            try:
                event = parse(payloads[int(number)].as_py())
            except Unreadable:
                continue
            for side in ("after", "before"):
                row = event.get(side) if isinstance(event, dict) else None
                if not isinstance(row, dict):
                    continue
                names |= row.keys()
                try:
                    row = source.fields.decoder_schema.by_column(row)
                except Unreadable:
                    continue
                for name in self._decoder_schema.columns.names:
                    value = row.get(name)
                    was_sent = not self._options.placeholder.stands_for(value)
                    if json_type(value) is not None and was_sent and value != []:
                        fresh.setdefault(name, value)
        source.samples.update(fresh)
        spelled = source.fields.decoder_schema.reading(names, declared=False)
        source.fields = replace(source.fields, decoder_schema=spelled)


def _transactions(payloads: pa.BinaryArray, parsers: dict[pa.Schema, ObjectParser]) -> tuple[pa.StringArray, Mask]:
    """The transactions of events, and which of them are known. Members have the types that they have in the first event.

    Raises one of ``MISSES``, and TypeError.
    """
    first: Any = None
    with suppress(Unreadable):
        first = loaded(payloads[0].as_py())
    parents: dict[str, list[pa.Field]] = {}
    for (parent, name), kind in NAMES_OF_TRANSACTIONS.items():
        said = first.get(parent) if isinstance(first, dict) else None
        value = said.get(name) if isinstance(said, dict) else None
        kind = {int: pa.int64(), str: pa.string()}.get(type(value), kind)
        parents.setdefault(parent, []).append(pa.field(name, kind))
    schema = pa.schema([("op", pa.string()), *((parent, pa.struct(fields)) for parent, fields in parents.items())])
    if schema not in parsers:
        parsers[schema] = ObjectParser(schema, {}, {})
    parsed = parsers[schema].parse(payloads)
    operation = parsed.rows.column("op")
    members = {path: pc.struct_field(parsed.rows.column(path[0]), path[1]) for path in NAMES_OF_TRANSACTIONS}
    # One without an operation may be an envelope of another form.
    return transactions(operation, members), parsed.sure & np.asarray(operation.is_valid())


def _row_in(decoder_schema: DecoderSchema, event: Any) -> Mapping[str, Any] | None:
    """The row of a parsed event, by column."""
    row = row_of(event)
    try:
        return None if row is None else decoder_schema.by_column(row)
    except Unreadable:
        return None  # the plan can't read it either


def _rescued(known: KnownFields, row: Mapping[str, Any] | None) -> str | None:
    return None if row is None else known.rescued(row)


def _unknown_by_record(known: KnownFields, parsed: Parsed) -> UnknownByRecord | None:
    """The unknown members of each changed row: ``after``, or ``before`` where there is no ``after``."""
    after, before = (known.unknown_by_record(parsed, (side,)) for side in ("after", "before"))
    if after is None or before is None:
        return None
    has_after = np.asarray(parsed.rows.column("after").is_valid())
    met = np.where(_changes(parsed), np.where(has_after, after.met, before.met), np.uint64(0))
    return UnknownByRecord({**after.names, **before.names}, met)


def _left_out(source: _Source, parsed: Parsed, fast: FastReading) -> Counts:
    """The remarks on fields of the schema that no column can be like."""
    if not source.fields.left_out:
        return {}
    count = int(np.count_nonzero(fast.handled & _changes(parsed)))
    return remarks_on(Remark.LEFT_OUT_FIELD, dict.fromkeys(source.fields.left_out, count) if count else {})


def _changes(parsed: Parsed) -> Mask:
    """Which events change a row."""
    return np.asarray(pc.is_in(parsed.rows.column("op"), value_set=pa.array(CHANGES)))


def _plan(options: JsonOptions, source: _Source, cutoff: Cutoff, keys: JsonKeys) -> _Plan:
    decoder_schema = source.fields.decoder_schema
    readers: dict[str, ColumnReader] = {}
    for column in decoder_schema.columns:
        logical_type = source.logical_types.get(column.name, PLAIN)
        reader = reader_for(column.type, logical_type, source.samples.get(column.name), options)
        if reader is None:
            raise Missed(f"column {column.name} is read one by one")
        readers[column.name] = reader
    return _Plan(options, readers, source, cutoff, keys)


class _Plan:
    """How a slice of events with one inline schema, or none, is read as a whole."""

    def __init__(
        self, options: JsonOptions, readers: dict[str, ColumnReader], source: _Source, cutoff: Cutoff, keys: JsonKeys
    ) -> None:
        fields, decoder_schema = source.fields, source.fields.decoder_schema
        self._options = options
        self._keys = keys
        self._defaulted = frozenset(fields.said.defaults if fields.said else ())
        self._readers = readers
        self._types = {
            one.name: (one.type, source.logical_types.get(one.name, PLAIN)) for one in decoder_schema.columns
        }
        self._rules = ChangeRules(decoder_schema, cutoff)
        self._names = {name: decoder_schema.names_of(name) for name in readers}
        known = tuple(one for name in readers if name not in self._rules.before_names for one in self._names[name])
        # A field beside one that differs by case alone is nobody's; where it is not just left out, it is looked at alone.
        left_out = tuple(decoder_schema.twins) if fields.left_out or fields.known is None else ()
        watched: dict[Path, tuple[str, ...]] = {("after",): left_out, ("before",): (*known, *left_out)}
        parsed_as = {one: reader for name, reader in readers.items() for one in self._names[name]}
        self._parser = ObjectParser(self._parse_schema(), parsed_as, watched)

    def _parse_schema(self) -> pa.Schema:
        def struct(names: tuple[str, ...]) -> pa.StructType:
            return pa.struct([pa.field(one, self._readers[name].parsed) for name in names for one in self._names[name]])

        fields = [pa.field("after", struct(tuple(self._readers))), pa.field("op", pa.string())]
        if self._rules.before_names:
            fields.append(pa.field("before", struct(self._rules.before_names)))
        metadata: dict[str, list[pa.Field]] = {}
        for parent, name in self._rules.metadata:
            metadata.setdefault(parent, []).append(pa.field(name, metadata_type(parent, name)))
        for parent, members in metadata.items():
            fields += members if parent == "" else [pa.field(parent, pa.struct(members))]
        return pa.schema(fields)

    def parse(self, payloads: pa.Array) -> Parsed:
        """The events as columns. Raises one of ``MISSES``."""
        return self._parser.parse(payloads)

    def read(self, parsed: Parsed, records: pa.RecordBatch, numbers: Mask) -> FastReading:
        rows = parsed.rows
        after = rows.column("after")
        columns, unavailable, unlikely_ones = self._columns(after.flatten(), tuple(self._readers))
        metadata = {
            (parent, name): rows.column(name) if parent == "" else pc.struct_field(rows.column(parent), name)
            for parent, name in self._rules.metadata
        }
        operation = rows.column("op")
        if parsed.unsure:
            operation = pc.if_else(pa.array(parsed.sure), operation, pa.scalar(None, pa.string()))
        events = Events(
            operation=operation,
            has_after=np.asarray(after.is_valid()),
            after=columns,
            unavailable=unavailable,
            unlikely=unlikely_ones,
            before=self._before(rows),
            metadata=metadata,
            message_keys=self._keys,
            defaulted=self._defaulted,
        )
        return self._rules.changes(events, records, numbers)

    def _columns(
        self, parsed: list[pa.Array], names: tuple[str, ...]
    ) -> tuple[dict[str, pa.Array], dict[str, Mask], ByColumn]:
        """The columns; where values are unavailable; and where numbers were taken for unlikely times."""
        columns, unavailable, unlikely_ones = {}, {}, {}
        arrays = iter(parsed)
        for name in names:
            values = one_of([next(arrays) for _ in self._names[name]])
            values, hits = null_unavailable(values, self._options.placeholder)
            columns[name] = self._readers[name].read(values)
            if hits is not None:
                unavailable[name] = hits
            for remark, found in unlikely(values, *self._types[name], self._options.timestamp_unit).items():
                unlikely_ones[remark, name] = found
        return columns, unavailable, unlikely_ones

    def _before(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        names = self._rules.before_names
        if not names:
            return {}
        before = rows.column("before")
        if before.null_count == len(before):
            return self._rules.no_before(len(before))
        return self._columns(before.flatten(), names)[0]
