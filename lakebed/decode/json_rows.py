"""Turn flat JSON objects into changes of a table: the format ``json``.

An object has the table's columns as members; ``unknown_fields`` says what happens to others. A member may give the operation
(``operation_field``): its value is one of ``delete_values`` or of ``upsert_values`` (``Operations``); an object without it is an
upsert, and one with any other value goes to the quarantine. A record without a value deletes the key in its message key, as in
a compacted topic. One without a message key is ignored, and counted; one whose message key can't be used goes to the quarantine.

A record may hold its inline schema, as Kafka Connect's JSON converter writes it: then its payload is the object, unless the table
has a column with the name ``schema`` or ``payload``.

The values are read as in ``debezium``: fast by columns, one by one where that fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.decode.debezium.changes import unlikely_remarks_of
from lakebed.decode.debezium.inline_schemas import InlineSchemas, payloads_of
from lakebed.decode.debezium.record import Event
from lakebed.decode.decoder import Decoded, DecoderSchema
from lakebed.decode.earlier_rows import EarlierRow
from lakebed.decode.json.columns import (
    MISSES,
    ColumnReader,
    Missed,
    json_type,
    micros_of,
    null_unavailable,
    one_of,
    reader_for,
)
from lakebed.decode.json.connect_types import PLAIN, LogicalType, envelope_of, fields_of
from lakebed.decode.json.objects import ObjectParser, Parsed
from lakebed.decode.json.text import Unreadable, parse, shown
from lakebed.decode.json.values import JsonOptions, unlikely
from lakebed.decode.metadata import DELETE_VALUES, Operations, kafka_metadata, metadata_path, text_of
from lakebed.decode.slices import (
    AT_COLUMN,
    ONE_BY_ONE_ROWS,
    TIME_COLUMN,
    Changes,
    FastReading,
    Reading,
    Record,
    decode_records,
    from_arrays,
    joined,
    with_rescued,
)
from lakebed.decode.source_order import Described
from lakebed.decode.unknown_fields import (
    KnownFields,
    UnknownMembers,
    UnknownOperation,
    names_in,
    sample_of,
    unknown_mode,
    unknown_remarks,
)
from lakebed.errors import InvalidInput, InvalidSchema
from lakebed.parts.changes import DELETE, OP_COLUMN, SEQUENCE_COLUMN, UNAVAILABLE_COLUMN, UPSERT
from lakebed.parts.fills import unavailable_names
from lakebed.positions.truncates import NO_CUTOFF, Cutoff
from lakebed.remarks import Remark, remarks_on
from lakebed.schema.change import SchemaChange

_SAMPLES = 64
_OPERATION_TYPES: Mapping[type, pa.DataType] = {str: pa.string(), bool: pa.bool_(), int: pa.int64()}
_DOUBTFUL_SHARE = 16
"""If more than one in so many records is not read, a plan for the types of new samples may read more."""


@dataclass(frozen=True, slots=True)
class JsonRows:
    """Decoder of the format ``json``."""

    decoder_schema: DecoderSchema
    options: JsonOptions = field(default_factory=JsonOptions)
    operation_field: str | None = None
    delete_values: tuple[str, ...] = DELETE_VALUES
    upsert_values: tuple[str, ...] | None = None
    """None: ``UPSERT_VALUES`` but for those that are delete values."""

    def __post_init__(self) -> None:
        path = metadata_path(self.decoder_schema.sequence_metadata)
        if path is not None and path[0] != "kafka":
            raise InvalidSchema(
                f"sequence_by {self.decoder_schema.sequence_by!r}: flat JSON has no such metadata; use a column or kafka.offset"
            )
        if self.operation_field and not self.decoder_schema.keys:
            raise InvalidInput(f"operation_field {self.operation_field!r}: a table without keys takes no deletes")

        Operations.given(self.delete_values, self.upsert_values)

    def bound_to(self, decoder_schema: DecoderSchema) -> JsonRows:
        """The same decoder for a table whose schema changed."""
        return replace(self, decoder_schema=decoder_schema)

    def schema_needed(self, records: pa.Table) -> SchemaChange | None:
        """None: plain JSON has no schema, and no type is made up from values."""
        return None

    def decode(self, records: pa.Table, cutoff: Cutoff = NO_CUTOFF) -> Decoded:
        """The format has no truncates, and a flat object has no position in a source."""
        return decode_records(records, _RowReader(self), self.decoder_schema, cutoff)


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a slice is read as a whole."""

    readers: Mapping[str, ColumnReader]
    names: Mapping[str, tuple[str, ...]]
    """By column, the names that its values are read under."""
    parser: ObjectParser


@dataclass(slots=True)
class _Source:
    """Objects of one inline schema, or of none."""

    logical_types: Mapping[str, LogicalType]
    decoder_schema: DecoderSchema
    """With the columns of fields whose names differ by case alone."""
    samples: dict[str, Any] = field(default_factory=dict)
    operation_type: pa.DataType = field(default_factory=pa.string)
    plan: _Plan | None = None


class _RowReader:
    one_by_one_rows = ONE_BY_ONE_ROWS

    def __init__(self, decoder: JsonRows) -> None:
        self._decoder = decoder
        self._decoder_schema = decoder.decoder_schema.without_field(decoder.operation_field)
        self._options = decoder.options
        if self._options.decimal_text == "auto":
            self._options = replace(self._options, decimal_text="string")  # a word may look like Debezium's base64
        self._operation = decoder.operation_field
        self._operations = Operations.given(decoder.delete_values, decoder.upsert_values)
        self._mode = unknown_mode(self._options.unknown_fields, self._decoder_schema.policy, has_schema=False)
        self._known: KnownFields | None = None
        if self._options.unknown_fields != "ignore":
            also = [*decoder.decoder_schema.kept, *([] if self._operation is None else [self._operation])]
            self._known = KnownFields(decoder.decoder_schema.columns, self._options.placeholder, also)
        self._sources = InlineSchemas(self._source(None), self._source)
        columns = decoder.decoder_schema.columns.names
        taken = {name.lower() for column in columns for name in decoder.decoder_schema.names_of(column)}
        self._has_envelopes = (taken | {self._operation}).isdisjoint({"schema", "payload"})
        self._sequence = metadata_path(decoder.decoder_schema.sequence_metadata)

    # One by one ------------------------------------------------------------------------------------------------------

    def read_record(self, record: Record) -> Reading:
        if record.value is None:
            return self._event("before", {}, record).tombstone()
        row, columns = parse(record.value), self._decoder_schema
        types: Mapping[str, LogicalType] = {}
        payload, schema = envelope_of(row) if self._has_envelopes else (row, None)
        if isinstance(payload, dict) or isinstance(schema, dict):
            source = self._source(schema)
            row, types, columns = payload, source.logical_types, source.decoder_schema
            if row is None:
                return self._event("before", {}, record).tombstone()
        if not isinstance(row, dict):
            raise Unreadable("not a JSON object")
        is_delete = self._is_delete(row)
        row = dict(columns.by_column(row))
        unknown = self._known.unknown_in(row) if self._known is not None else ()
        if unknown and self._mode == "quarantine":
            raise UnknownMembers(unknown)
        if self._mode == "rescue" and self._known is not None and unknown:
            members = () if is_delete else self._known.members_with_unknown(row)
            rescued = {name: row[name] for name in members}
        else:
            rescued = {}
        if is_delete:
            return Changes([self._event("before", row, record, types).delete()], unknown_remarks(unknown))
        event = self._event("after", row, record, types)
        return Changes([event.upsert(rescued)], unknown_remarks(unknown) + event.remarks)

    def schema_needed(self, records: pa.RecordBatch) -> SchemaChange | None:
        """Nothing."""
        return None

    def _is_delete(self, row: dict[str, Any]) -> bool:
        if self._operation is None:
            return False
        operation = row.get(self._operation)
        meaning = UPSERT if operation is None else self._operations.of(text_of(operation))
        if meaning is None:
            raise UnknownOperation(
                f"unknown operation {shown(operation)}: it is neither among delete_values nor among upsert_values",
                text_of(operation),
            )
        return meaning == DELETE

    def _source(self, schema: Any) -> _Source:
        """For objects of an inline schema, or of none. Raises ``Unreadable``."""
        types = dict(fields_of(schema))
        columns = self._decoder_schema if schema is None else self._decoder_schema.reading(types, declared=True)
        return _Source(columns.types_by_column(types), columns)

    def _event(
        self, side: str, row: dict[str, Any], record: Record, types: Mapping[str, LogicalType] | None = None
    ) -> Event:
        event = {"op": "json", side: row}
        return Event(event, dict(types or {}), record, self._decoder_schema, self._options, is_row=True)

    def described(self, record: Record) -> Described | None:
        """A row says nothing of its transaction, and not whether it is new."""
        return None

    def transactions(self, records: pa.RecordBatch) -> Iterator[tuple[np.ndarray[Any, Any], pa.StringArray]]:
        """None of them has one."""
        yield np.arange(records.num_rows), pa.nulls(records.num_rows, pa.string())

    def earlier_row(self, record: Record) -> EarlierRow | None:
        return None

    # As a whole ------------------------------------------------------------------------------------------------------

    def read_slice(self, records: pa.RecordBatch, first: int) -> FastReading:
        numbers = first + np.arange(records.num_rows)
        parts = []
        for prefix, source, chosen in self._groups(records.column("value")):
            some = records if len(chosen) == records.num_rows else records.take(pa.array(chosen))
            if prefix:
                at = some.schema.get_field_index("value")
                some = some.set_column(at, "value", payloads_of(some.column("value"), prefix))
            parts.append((chosen, self._read_payloads(source, some, numbers[chosen])))
        return joined(parts, records.num_rows, self._decoder_schema)

    def _groups(self, values: pa.BinaryArray) -> list[tuple[bytes, _Source, np.ndarray[Any, Any]]]:
        """Row numbers by inline schema. What may be an envelope of another form is in no group."""
        present = np.asarray(values.is_valid())
        if not self._has_envelopes:
            return [(b"", self._sources.none, np.flatnonzero(present))] if present.any() else []
        if not self._decoder_schema.required:  # else such an envelope lacks what a row needs
            present = present & ~np.asarray(pc.fill_null(pc.match_substring(values, b'"payload"'), True))
        return self._sources.groups(values, present)

    def _read_payloads(self, source: _Source, records: pa.RecordBatch, numbers: np.ndarray[Any, Any]) -> FastReading:
        values = records.column("value")
        if source.plan is not None:
            try:
                parsed = source.plan.parser.parse(values)
                if parsed.unsure * _DOUBTFUL_SHARE <= len(values):
                    return self._read_parsed(parsed, source, records, numbers)
            except MISSES:
                pass
        self._sample(source, values)
        source.plan = self._planned(source)
        return self._read_parsed(source.plan.parser.parse(values), source, records, numbers)

    def _read_parsed(
        self, parsed: Parsed, source: _Source, records: pa.RecordBatch, numbers: np.ndarray[Any, Any]
    ) -> FastReading:
        """Reads the rows. Records with unknown members are counted, or left to be read one by one and quarantined."""
        values, row_in = records.column("value"), partial(_row_in, source.decoder_schema)
        unknown = self._known.unknown_by_record(parsed, ()) if self._known is not None else None
        if self._known is not None and self._mode != "warn":
            if unknown is None:
                having = np.zeros(len(values), bool)
                having[names_in(values, range(len(values)), row_in, self._known)[1]] = True
            else:
                having = unknown.having
            if self._mode == "rescue":
                fast = self._read_columns(parsed, source, records, numbers)
                fast = with_rescued(
                    fast, numbers, having, lambda row: self._rescued(row_in(parse(values[row].as_py())))
                )
                if unknown is not None:
                    return fast.remarked(unknown.remarks(fast.handled))
                names, _ = names_in(values, np.flatnonzero(fast.handled & having), row_in, self._known)
                return fast.remarked(remarks_on(Remark.UNKNOWN_FIELD, names))
            parsed = parsed.without(having)
        fast = self._read_columns(parsed, source, records, numbers)
        if self._known is None or self._mode != "warn":
            return fast
        if unknown is not None:
            return fast.remarked(unknown.remarks(fast.handled))
        sample = sample_of(values)
        names, _ = names_in(values, sample[fast.handled[sample]], row_in, self._known)
        return fast.remarked(remarks_on(Remark.UNKNOWN_FIELD, names))

    def _rescued(self, row: Mapping[str, Any] | None) -> str | None:
        return None if row is None or self._known is None else self._known.rescued(row)

    def _planned(self, source: _Source) -> _Plan:
        readers = {}
        for column in self._decoder_schema.columns:
            logical_type = source.logical_types.get(column.name, PLAIN)
            reader = reader_for(column.type, logical_type, source.samples.get(column.name), self._options)
            if reader is None:
                raise Missed(f"column {column.name} is read one by one")
            readers[column.name] = reader
        names = {name: source.decoder_schema.names_of(name) for name in readers}
        parsed_as = {one: readers[name] for name in readers for one in names[name]}
        fields = [pa.field(name, reader.parsed) for name, reader in parsed_as.items()]
        if self._operation is not None and self._operation not in parsed_as:
            fields.append(pa.field(self._operation, source.operation_type))
        ignored = () if self._known is not None else tuple(source.decoder_schema.twins)
        return _Plan(readers, names, ObjectParser(pa.schema(fields), parsed_as, {(): ignored}))

    def _sample(self, source: _Source, values: pa.Array) -> None:
        names: set[str] = set()
        for number in np.unique(np.linspace(0, len(values) - 1, _SAMPLES, dtype=np.int64)):
            try:
                row = parse(values[int(number)].as_py())
            except Unreadable:
                continue
            names |= row.keys() if isinstance(row, dict) else set()
            row = _row_in(source.decoder_schema, row) or {}
            if self._operation is not None:
                source.operation_type = _OPERATION_TYPES.get(type(row.get(self._operation)), source.operation_type)
            for name in self._decoder_schema.columns.names:
                value = row.get(name)
                if json_type(value) is not None and value != []:
                    source.samples[name] = value
        source.decoder_schema = source.decoder_schema.reading(names, declared=False)

    def _read_columns(
        self, parsed: Parsed, source: _Source, records: pa.RecordBatch, numbers: np.ndarray[Any, Any]
    ) -> FastReading:
        assert source.plan is not None
        columns, unavailable, unlikely_ones = {}, {}, {}
        for name, reader in source.plan.readers.items():
            given = one_of([parsed.rows.column(one) for one in source.plan.names[name]])
            values, hits = null_unavailable(given, self._options.placeholder)
            columns[name] = reader.read(values)
            kind, logical_type = self._decoder_schema.columns.field(name).type, source.logical_types.get(name, PLAIN)
            if hits is not None:
                unavailable[name] = hits
            for remark, found in unlikely(values, kind, logical_type, self._options.timestamp_unit).items():
                unlikely_ones[remark, name] = found
        count = len(numbers)
        delete, good = np.zeros(count, bool), np.ones(count, bool)
        if self._operation is not None:
            operation = parsed.rows.column(self._operation)
            has_text = any(
                kind(operation.type) for kind in (pa.types.is_string, pa.types.is_boolean, pa.types.is_integer)
            )
            if not has_text and operation.null_count < count:
                raise Missed("an operation of a type that has no text")
            delete, good = self._meanings(operation.cast(pa.string()))
        good &= parsed.sure
        for name in self._decoder_schema.required:
            if columns[name].null_count:
                valid = np.asarray(columns[name].is_valid())
                good &= valid if name in self._decoder_schema.keys else valid | delete | unavailable.get(name, False)
        if (sequence := self._decoder_schema.sequence_column) and delete.any():
            good &= ~delete | np.asarray(columns[sequence].is_valid())
        operations: pa.Array = pa.repeat(pa.scalar(UPSERT, pa.string()), count)
        if delete.any():
            deletes = pa.array(delete)
            operations = pc.if_else(deletes, DELETE, UPSERT)
            for name in columns.keys() - {*self._decoder_schema.keys, self._decoder_schema.sequence_column}:
                columns[name] = pc.if_else(deletes, pa.scalar(None, columns[name].type), columns[name])
        times = micros_of(records.column("timestamp").view(pa.int64()))
        metadata = {OP_COLUMN: operations, AT_COLUMN: pa.array(2 * numbers), TIME_COLUMN: times}
        if unavailable:
            metadata[UNAVAILABLE_COLUMN] = unavailable_names(unavailable, ~delete)
        if self._sequence:
            sequence = metadata[SEQUENCE_COLUMN] = kafka_metadata(records, self._sequence[1])
            good &= np.asarray(sequence.is_valid())
        rows = from_arrays(self._decoder_schema, count, {**columns, **metadata})
        fast = FastReading(rows if good.all() else rows.filter(pa.array(good)), good)
        return fast.remarked(unlikely_remarks_of(unlikely_ones, good & ~delete))

    def _meanings(self, operation: pa.StringArray) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """For each record, whether it is a delete, and whether its operation is known."""
        encoded = operation.dictionary_encode()
        operations = np.array(
            [self._operations.of(value) for value in encoded.dictionary.to_pylist()] + [UPSERT], object
        )
        each = operations[np.asarray(encoded.indices.fill_null(len(operations) - 1))]
        return each == DELETE, each != None  # noqa: E711  (for each element)


def _row_in(decoder_schema: DecoderSchema, document: Any) -> Mapping[str, Any] | None:
    """A parsed object, by column."""
    try:
        return decoder_schema.by_column(document) if isinstance(document, dict) else None
    except Unreadable:
        return None  # it is read one by one
