"""Turn records whose schema is known into changes of a table: rows as they are, and Debezium's events.

What a value, a row and an event mean is what they mean in Debezium's JSON: the same rules, in the same code.

    1.  A slice is grouped by the schemas of its records (``typed.schemas``), and each group is read into columns at once.
    2.  Columns of the writer's types become columns of the table's (``typed.values``), and these become changes
        (``debezium.changes``). A row is an event too: an upsert, or a delete.
    3.  A record that is left, because something in it does not fit or is unusual, is written as JSON has it and read alone by
        ``debezium.record``, which gives its changes or the reason for the quarantine.
    4.  Message keys are read where a row lacks them, by their own schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.decode.debezium.changes import ChangeRules, Events, Mask, MetadataPath
from lakebed.decode.debezium.inline_schemas import CHANGES
from lakebed.decode.debezium.record import Event
from lakebed.decode.decoder import Decoded, DecoderSchema, RecordReader
from lakebed.decode.earlier_rows import EarlierRow
from lakebed.decode.json.connect_types import PLAIN, LogicalType
from lakebed.decode.json.text import Unreadable, shown
from lakebed.decode.json.values import ByColumn, JsonOptions, unlikely
from lakebed.decode.metadata import (
    DELETE_VALUES,
    VALUE_SCHEMA,
    Operations,
    headers_of,
    metadata_path,
    text_of,
    values_of,
    with_headers,
)
from lakebed.decode.slices import (
    FastReading,
    Ignored,
    Reading,
    Record,
    SchemaNeeded,
    decode_records,
    from_arrays,
    joined,
    record_of,
    schema_needed,
)
from lakebed.decode.source_order import Described, described, metadata_type
from lakebed.decode.typed.schemas import Group, Grouped, KeySchemas, MessageKeys, Schemas, read_one, transactions_of
from lakebed.decode.typed.values import (
    Shape,
    column_of,
    json_value,
    members_of,
    metadata_of,
    plain_values,
    read_column,
    shape_of,
    without_unavailable,
)
from lakebed.decode.unknown_fields import UnknownOperation, unknown_mode
from lakebed.errors import InvalidInput, InvalidSchema
from lakebed.parts.changes import DELETE
from lakebed.positions.truncates import NO_CUTOFF, Cutoff
from lakebed.remarks import Remark, remarks_on
from lakebed.schema.change import SchemaChange
from lakebed.schema.fitting import merged

_SHAPES_KEPT_MAX = 1_000
_Readings = dict[int, Reading | Unreadable]


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedSettings:
    """How records are read. ``events``: they are Debezium's; else each record is a row."""

    decoder_schema: DecoderSchema
    values: Schemas
    keys: KeySchemas
    events: bool
    options: JsonOptions = field(default_factory=JsonOptions)
    operation_field: str | None = None
    delete_values: tuple[str, ...] = DELETE_VALUES
    upsert_values: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        path = metadata_path(self.decoder_schema.sequence_metadata)
        if path is not None and path[0] != "kafka" and not self.events:
            raise InvalidSchema(
                f"sequence_by {self.decoder_schema.sequence_by!r}: rows have no such metadata; use a column or kafka.offset"
            )
        if self.operation_field and not self.decoder_schema.keys:
            raise InvalidInput(f"operation_field {self.operation_field!r}: a table without keys takes no deletes")
        Operations.given(self.delete_values, self.upsert_values)


class TypedRecords:
    """Decoder of records whose schema is known."""

    def __init__(self, settings: TypedSettings) -> None:
        self._settings = settings
        self._readers: dict[Cutoff, _TypedReader] = {}

    @property
    def decoder_schema(self) -> DecoderSchema:
        """The columns that it decodes to."""
        return self._settings.decoder_schema

    @property
    def reads_events(self) -> bool:
        """Whether records are Debezium's events."""
        return self._settings.events

    @property
    def value_schemas(self) -> Schemas:
        """Which schema each record has."""
        return self._settings.values

    def bound_to(self, decoder_schema: DecoderSchema) -> TypedRecords:
        """The same decoder for a table whose schema changed."""
        return TypedRecords(replace(self._settings, decoder_schema=decoder_schema))

    def __getstate__(self) -> TypedSettings:
        return self._settings

    def __setstate__(self, settings: TypedSettings) -> None:
        self.__init__(settings)  # type: ignore[misc]

    def decode(self, records: pa.Table, cutoff: Cutoff = NO_CUTOFF) -> Decoded:
        """Truncates are for events: a row has no position in a source. Raises Retry if a registry does not answer."""
        reader = self._reader(cutoff if self._settings.events else NO_CUTOFF)
        return decode_records(records, reader, self.decoder_schema, cutoff)

    def schema_needed(self, records: pa.Table) -> SchemaChange | None:
        """What the table must become before these records can be decoded. Raises as ``decode``."""
        return schema_needed(records, self._reader(next(iter(self._readers), NO_CUTOFF)))

    def _reader(self, cutoff: Cutoff) -> _TypedReader:
        if cutoff not in self._readers:
            self._readers = {cutoff: _TypedReader(self._settings, cutoff)}
        return self._readers[cutoff]


@dataclass(frozen=True, slots=True)
class _Columns:
    """Columns of the table's types."""

    columns: dict[str, pa.Array]
    unavailable: dict[str, Mask]
    unlikely: ByColumn
    """As in ``Events``."""
    wrong: Mask
    """The rows in which a value does not fit."""


class _TypedReader:
    one_by_one_rows = 1

    def __init__(self, settings: TypedSettings, cutoff: Cutoff) -> None:
        self._settings = settings
        self._decoder_schema = settings.decoder_schema.without_field(settings.operation_field)
        self._options = replace(settings.options, decimal_text="string")  # the schema says which texts are base64
        self._cutoff = cutoff
        self._rules = ChangeRules(self._decoder_schema, cutoff)
        self._operations = Operations.given(settings.delete_values, settings.upsert_values)
        self._mode = unknown_mode(self._options.unknown_fields, self._decoder_schema.policy, has_schema=True)
        self._keys = MessageKeys(settings.keys, settings.decoder_schema, self._options)
        self._shapes: dict[int, Shape] = {}

    def read_record(self, record: Record) -> Reading:
        """For a record that can't be read in a slice of one. Raises what the slice raises."""
        columns = [
            [record.key],
            [record.value],
            [record.topic],
            [record.partition],
            [record.offset],
            [record.timestamp],
        ]
        types = [pa.binary(), pa.binary(), pa.string(), pa.int32(), pa.int64(), pa.timestamp("ms", "UTC")]
        arrays = [pa.array(values, kind) for values, kind in zip(columns, types, strict=True)]
        names = ["key", "value", "topic", "partition", "offset", "timestamp"]
        [batch] = with_headers(pa.Table.from_arrays(arrays, names=names), [record.headers or None]).to_batches()
        self.read_slice(batch, 0)
        return Ignored()

    def read_slice(self, records: pa.RecordBatch, first: int) -> FastReading:
        values = records.column("value")
        present = np.asarray(values.is_valid())
        parts: list[tuple[np.ndarray[Any, Any], FastReading]] = []
        if not present.all():
            empty = np.flatnonzero(~present)
            parts.append((empty, self._without_value(records.take(pa.array(empty)), first + empty)))
        rows = np.flatnonzero(present)
        grouped = self._grouped(records)
        bad: _Readings = {int(rows[row]): Unreadable(reason) for row, reason in grouped.errors.items()}
        needs = self._needs(grouped, records, rows)
        has_same_key = not self._decoder_schema.source.keys_of_message
        if needs and (has_same_key or self._keys.names(records).exact.all()):
            raise SchemaNeeded(merged(needs))
        for group in grouped.groups:
            whole = len(group.rows) == records.num_rows
            chosen = rows[group.rows]
            some = records if whole else records.take(pa.array(chosen))
            parts.append((chosen, self._read_group(group, some, first + chosen)))
        if needs:  # and no message key has changed, for which the table is left as it is
            raise SchemaNeeded(merged(needs))
        fast = joined(parts, records.num_rows, self._decoder_schema)
        return replace(fast, handled=np.ones(records.num_rows, bool), one_by_one={**fast.one_by_one, **bad})

    def schema_needed(self, records: pa.RecordBatch) -> SchemaChange | None:
        """What the schemas of the records ask of the table."""
        rows = np.flatnonzero(np.asarray(records.column("value").is_valid()))
        needs = self._needs(self._grouped(records), records, rows)
        return merged(needs) if needs else None

    def _needs(self, grouped: Grouped, records: pa.RecordBatch, rows: Mask) -> list[SchemaChange]:
        """What the schemas of the groups ask of the table, but for those of events that are not taken.

        ``rows``: those that have values.
        """
        needs = []
        for group in grouped.groups:
            shape = self._shape(group.reader)
            if shape.needed is not None and self._takes(group, shape, record_of(records, int(rows[group.rows[0]]))):
                needs.append(shape.needed)
        return needs

    def _takes(self, group: Group, shape: Shape, record: Record) -> bool:
        """Whether the first event of a group is of a table whose events are taken; those of a schema are of one table."""
        read = shape.reader.read(group.payload.slice(0, 1))
        if read.errors or not self._settings.events:
            return True
        [event] = _as_json(read.rows)
        return isinstance(event, Unreadable) or self._event(event, {}, record).is_taken(self._cutoff)

    def _grouped(self, records: pa.RecordBatch) -> Grouped:
        """The values, without nulls, by their schemas."""
        values, headers = records.column("value"), values_of(headers_of(records), VALUE_SCHEMA)
        if values.null_count and headers is not None:
            headers = headers.filter(values.is_valid())
        return self._settings.values.grouped(values.drop_null() if values.null_count else values, headers)

    # Records without a value ------------------------------------------------------------------------------------------

    def _without_value(self, records: pa.RecordBatch, numbers: Mask) -> FastReading:
        """A tombstone. In a topic of rows it deletes the key; behind a delete of Debezium's it says nothing more."""
        count = records.num_rows
        if self._settings.events:
            return FastReading(from_arrays(self._decoder_schema, 0, {}), np.ones(count, bool), count)
        events = Events(
            operation=pa.array(["d"] * count, pa.string()),
            has_after=np.zeros(count, bool),
            after={column.name: pa.nulls(count, column.type) for column in self._decoder_schema.columns},
            before={**self._rules.no_before(count), **self._keys.columns_of_tombstones(records).columns},
            metadata=self._no_metadata(count),
            message_keys=self._keys,
            are_rows=True,
        )
        fast = self._rules.changes(events, records, numbers)
        readings: _Readings = {}
        for row in np.flatnonzero(~fast.handled).tolist():
            record = record_of(records, row)
            try:
                readings[row] = self._event({"op": "d"}, {}, record).tombstone()
            except Unreadable as error:
                readings[row] = error
        return replace(fast, handled=np.ones(count, bool), one_by_one=readings)

    # Records with a value ---------------------------------------------------------------------------------------------

    def _read_group(self, group: Group, records: pa.RecordBatch, numbers: Mask) -> FastReading:
        shape = self._shape(group.reader)
        read = shape.narrow.read(group.payload)
        rows = read.rows
        is_good = np.ones(rows.num_rows, bool)
        is_good[list(read.errors)] = False
        events = self._events(rows, shape, is_good)
        if (shape.unknown and self._mode != "warn") or shape.decoder_schema.key_has_twin:  # they are read one by one
            events = replace(events, operation=pa.nulls(rows.num_rows, pa.string()))
        fast = self._rules.changes(events, records, numbers)
        one_by_one: _Readings = {row: Unreadable(reason) for row, reason in read.errors.items()}
        left = np.flatnonzero(~fast.handled & is_good)
        if len(left):
            one_by_one |= self._alone(group.payload, shape, records, left)
        changed = int((fast.handled & np.asarray(pc.is_in(events.operation, value_set=pa.array(CHANGES)))).sum())
        names = dict.fromkeys(shape.unknown, changed) if changed else {}
        if shape.known is not None:
            names |= self._beyond_schema(read.unknown_fields)
        left_out = dict.fromkeys(shape.left_out, changed) if changed else {}
        every = np.arange(rows.num_rows)
        schemas = {} if shape.columns is None else {shape.columns: every}
        fast = replace(fast, handled=every >= 0, one_by_one=one_by_one, schemas=schemas)
        return fast.remarked({**remarks_on(Remark.UNKNOWN_FIELD, names), **remarks_on(Remark.LEFT_OUT_FIELD, left_out)})

    def _beyond_schema(self, names: Mapping[str, int]) -> dict[str, int]:
        """The members of rows that the writer's schema lacks."""
        if not self._settings.events:
            return dict(names)
        sides = ("after.", "before.")
        return {name.split(".", 1)[1]: count for name, count in names.items() if name.startswith(sides)}

    def _shape(self, reader: RecordReader) -> Shape:
        found = self._shapes.get(id(reader))
        if found is None or found.reader is not reader:
            if len(self._shapes) >= _SHAPES_KEPT_MAX:
                self._shapes.clear()
            rules, operation = self._rules if self._settings.events else None, self._settings.operation_field
            found = self._shapes[id(reader)] = shape_of(reader, self._decoder_schema, self._options, rules, operation)
        return found

    def _events(self, rows: pa.RecordBatch, shape: Shape, is_good: Mask) -> Events:
        """The records as events. One that must be read alone has no operation."""
        count = rows.num_rows
        if self._settings.events:
            after, has_after = members_of(rows, "after")
            before, _ = members_of(rows, "before")
            operation = column_of(rows, "op", pa.string())
            metadata = {path: metadata_of(rows, path) for path in self._rules.metadata}
        else:
            after = dict(zip(rows.schema.names, rows.columns, strict=True))
            operation = self._operation(rows)
            deletes = np.asarray(pc.fill_null(pc.equal(operation, "d"), False))
            before, has_after = after, ~deletes
            metadata = self._no_metadata(count)
        updates = np.asarray(pc.fill_null(pc.equal(operation, "u"), False))
        schema, logical = shape.decoder_schema, shape.of_row
        rows_after = self._columns(schema, after, logical, schema.columns.names, updates)
        rows_before = self._columns(schema, before, logical, self._rules.before_names, np.zeros(count, bool))
        columns, wrong, wrong_before = rows_after.columns, rows_after.wrong, rows_before.wrong
        if not self._settings.events and not has_after.all():
            deleted = pa.array(~has_after)
            columns = {name: pc.if_else(deleted, pa.scalar(None, one.type), one) for name, one in columns.items()}
            wrong &= has_after
            wrong_before &= ~has_after
        doubtful = ~is_good | wrong | wrong_before
        if doubtful.any():
            operation = pc.if_else(pa.array(doubtful), pa.scalar(None, pa.string()), operation)
        return Events(
            operation=operation,
            has_after=has_after,
            after=columns,
            unavailable=rows_after.unavailable,
            unlikely=rows_after.unlikely,
            before=rows_before.columns,
            metadata=metadata,
            message_keys=self._keys,
            are_rows=not self._settings.events,
            defaulted=frozenset(shape.said.defaults if shape.said else ()),
        )

    def _columns(
        self,
        schema: DecoderSchema,
        given: Mapping[str, pa.Array],
        logical: Mapping[str, LogicalType],
        names: Iterable[str],
        updates: Mask,
    ) -> _Columns:
        """``updates``: which rows are the new ones of updates."""
        count = len(updates)
        columns: dict[str, pa.Array] = {}
        unavailable: dict[str, Mask] = {}
        unlikely_ones: dict[tuple[Remark, str], Mask] = {}
        wrong = np.zeros(count, bool)
        for name in names:
            target = schema.columns.field(name).type
            columns[name] = pa.nulls(count, target)
            for given_name in schema.names_of(name):
                if given_name not in given or given[given_name].null_count == count:
                    continue
                values, hits = without_unavailable(given[given_name], self._options.placeholder, updates)
                if hits is not None:
                    unavailable[name] = hits | unavailable.get(name, False)
                kind = logical.get(given_name, PLAIN)
                column, misfits = read_column(values, kind, target, self._options)
                for remark, found in unlikely(values, target, kind, self._options.timestamp_unit).items():
                    unlikely_ones[remark, name] = found | unlikely_ones.get((remark, name), False)
                if misfits is not None:
                    wrong |= misfits
                if columns[name].null_count < count:  # under two names: a record may have one of them
                    wrong |= np.asarray(columns[name].is_valid()) & np.asarray(given[given_name].is_valid())
                    column = pc.coalesce(columns[name], column)
                columns[name] = column
        return _Columns(columns, unavailable, unlikely_ones, wrong)

    def _operation(self, rows: pa.RecordBatch) -> pa.Array:
        """``c`` for an upsert and ``d`` for a delete; null for an operation that is not known."""
        name = self._settings.operation_field
        if name is None or name not in rows.schema.names:
            return pa.array(["c"] * rows.num_rows, pa.string())
        encoded = _as_text(rows.column(name)).dictionary_encode()
        meanings = [self._operations.of(value) for value in encoded.dictionary.to_pylist()]
        table = pa.array(["d" if meaning == DELETE else meaning and "c" for meaning in meanings] + ["c"], pa.string())
        return table.take(encoded.indices.fill_null(len(meanings)))

    def _no_metadata(self, count: int) -> dict[MetadataPath, pa.Array]:
        return {path: pa.nulls(count, metadata_type(*path)) for path in self._rules.metadata}

    def described(self, record: Record) -> Described | None:
        """What a record is, beside its rows."""
        if record.value is None or not self._settings.events:
            return None
        return described(self._written(record)[0])

    def transactions(self, records: pa.RecordBatch) -> Iterator[tuple[Mask, pa.StringArray]]:
        """The transactions of records that have values, for the places of those of which they are found quickly."""
        if not self._settings.events:
            yield np.arange(records.num_rows), pa.nulls(records.num_rows, pa.string())
            return
        for group in self._grouped(records).groups:
            with suppress(TypeError):
                yield np.asarray(group.rows), transactions_of(group)

    def earlier_row(self, record: Record) -> EarlierRow | None:
        """What an event says of the row that it replaced."""
        if record.value is None or not self._settings.events:
            return None
        event, shape = self._written(record)
        return self._event(event, dict(shape.written), record, shape).earlier_row()

    def _written(self, record: Record) -> tuple[dict[str, Any], Shape]:
        """A record as JSON has it."""
        reader, rows = read_one(self._settings.values, record.value or b"", record.headers.get(VALUE_SCHEMA))
        [written] = _as_json(rows)
        if isinstance(written, Unreadable):
            raise written
        return written, self._shape(reader)

    # One by one -------------------------------------------------------------------------------------------------------

    def _alone(self, values: pa.BinaryArray, shape: Shape, records: pa.RecordBatch, chosen: Mask) -> _Readings:
        read = shape.reader.read(values.take(pa.array(chosen)))
        out: _Readings = {int(chosen[at]): Unreadable(reason) for at, reason in read.errors.items()}
        for row, written in zip(chosen.tolist(), _as_json(read.rows), strict=True):
            if row in out:
                continue
            try:
                if isinstance(written, Unreadable):
                    raise written
                event = written if self._settings.events else self._as_event(written)
                reading = self._event(event, dict(shape.written), record_of(records, row), shape)
                out[row] = reading.changes(self._cutoff, shape.known, shape.left_out)
            except Unreadable as error:
                out[row] = error
        return out

    def _as_event(self, row: dict[str, Any]) -> dict[str, Any]:
        """The event that a plain row stands for. Raises ``UnknownOperation``."""
        operation = row.get(self._settings.operation_field) if self._settings.operation_field else None
        if operation is None:
            return {"op": "c", "after": row}
        text = text_of(operation)
        meaning = self._operations.of(text)
        if meaning is None:
            raise UnknownOperation(
                f"unknown operation {shown(operation)}: it is neither among delete_values nor among upsert_values", text
            )
        return {"op": "d", "before": row} if meaning == DELETE else {"op": "c", "after": row}

    def _event(
        self, event: dict[str, Any], logical: dict[str, LogicalType], record: Record, shape: Shape | None = None
    ) -> Event:
        schema, said = (self._decoder_schema, None) if shape is None else (shape.decoder_schema, shape.said)
        return Event(
            event,
            logical,
            record,
            schema,
            self._options,
            has_schema=True,
            key_of=self._keys.of,
            fields=said,
            is_row=not self._settings.events,
        )


def _as_json(rows: pa.RecordBatch) -> Iterator[dict[str, Any] | Unreadable]:
    """Records as JSON has them, or why it can't have them."""
    columns = [plain_values(column) for column in rows.columns]
    for values in zip(*(column.to_pylist() for column in columns), strict=True):
        each = zip(rows.schema.names, values, columns, strict=True)
        try:
            yield {name: json_value(value, column.type) for name, value, column in each}
        except Unreadable as error:
            yield error


def _as_text(values: pa.Array) -> pa.StringArray:
    """Texts as they are, truth values and whole numbers as JSON writes them; of other values none, so each is looked at alone."""
    if pa.types.is_string(values.type) or pa.types.is_boolean(values.type) or pa.types.is_integer(values.type):
        return values.cast(pa.string())
    return pa.array(["\0"] * len(values), pa.string())
