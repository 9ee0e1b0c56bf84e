"""Read one Debezium event exactly, or give the reason why not: the slow path of ``debezium``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from lakebed.decode.debezium.inline_schemas import (
    CHANGES,
    SEND_WHOLE_ROWS,
    FieldsRead,
    OldRow,
    RowFields,
    RowSchemas,
    Unordered,
    UnorderedDelete,
    UnsentKey,
    row_of,
    zeros,
)
from lakebed.decode.debezium.message_key import SHARD_FIELD, EventMetadata, MessageKey, message_key
from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.earlier_rows import EarlierRow
from lakebed.decode.json.connect_types import PLAIN, LogicalType, columns_of_envelope, envelope_of
from lakebed.decode.json.text import Mismatch, Unreadable, parse, shown
from lakebed.decode.json.values import JsonOptions, convert, unlikely_remarks
from lakebed.decode.metadata import metadata_path
from lakebed.decode.slices import (
    CREATES_COLUMN,
    TIME_COLUMN,
    Changes,
    Ignored,
    Reading,
    Record,
    Remarked,
    SchemaNeeded,
    Truncated,
)
from lakebed.decode.source_order import refused, table_name
from lakebed.decode.unknown_fields import (
    KnownFields,
    UnknownMembers,
    UnknownOperation,
    rescued_text,
    unknown_mode,
    unknown_remarks,
)
from lakebed.errors import InvalidSchema
from lakebed.parts.changes import DELETE, OP_COLUMN, SEQUENCE_COLUMN, UNAVAILABLE_COLUMN, UPSERT
from lakebed.positions.positions import SEVERAL
from lakebed.positions.truncates import NO_CUTOFF, Cutoff, position_of
from lakebed.remarks import Remark
from lakebed.schema.fitting import RESCUED_COLUMN

_NOT_ADDED = "evolve adds no column for them, or none can be like them; unknown_fields: ignore leaves them out"
_NOTHING: Mapping[str, Any] = MappingProxyType({})


def read_event(record: Record, schemas: RowSchemas, options: JsonOptions, cutoff: Cutoff = NO_CUTOFF) -> Reading:
    """The changes of one record, at most two. Raises ``Unreadable`` with the reason for the quarantine.

    Raises ``SchemaNeeded`` if the table must become something else first.
    """
    if record.value is None:
        return Ignored()
    event, schema = envelope_of(parse(record.value))
    if event is None:
        return Ignored()
    reading, fields = event_of(event, schema, record, schemas, options)
    if fields.needed is not None:
        reading.check_source(cutoff)
        reading.check_message_key()
        raise SchemaNeeded(fields.needed)
    found = reading.changes(cutoff, fields.known, fields.left_out)
    return replace(found, columns=fields.columns) if isinstance(found, Changes) else found


def event_of(
    event: Any, schema: Any, record: Record, schemas: RowSchemas, options: JsonOptions
) -> tuple[Event, FieldsRead]:
    """The event, which ``envelope_of`` gave, and what is known of the fields of its rows. Raises ``Unreadable``."""
    if not isinstance(event, dict):
        raise Unreadable("not a JSON object")
    fields = schemas.of(schema)
    reading = Event(
        event,
        columns_of_envelope(schema),
        record,
        fields.decoder_schema,
        options,
        has_schema=schema is not None,
        fields=fields.said,
    )
    return reading, fields


class Event:
    """A parsed event, to be read as changes of one table."""

    def __init__(
        self,
        event: dict[str, Any],
        logical_types: dict[str, LogicalType],
        record: Record,
        decoder_schema: DecoderSchema,
        options: JsonOptions,
        *,
        has_schema: bool = False,
        key_of: Callable[[Record], MessageKey | None] | None = None,
        fields: RowFields | None = None,
        is_row: bool = False,
    ) -> None:
        """
        Args:
            event: The parsed JSON.
            logical_types: The types that the schema names, by column.
            record: The record that carries the event.
            decoder_schema: The columns and keys to read.
            options: How values are read.
            has_schema: Whether the record carries its schema.
            key_of: Reads a record's key in place of ``message_key``.
            fields: What the schema says of the columns of rows, by column; None if nobody knows.
            is_row: Whether the record is a plain row, of which all that it has was sent.
        """
        self._key_of = key_of or (lambda record: message_key(record, decoder_schema.keys))
        self._fields = fields
        self._is_row = is_row
        self._event = event
        self._metadata = EventMetadata(event, record)
        self._logical_types = decoder_schema.types_by_column(logical_types)
        self._unknown_mode = unknown_mode(options.unknown_fields, decoder_schema.policy, has_schema=has_schema)
        self._record = record
        self._decoder_schema = decoder_schema
        self._options = options
        self._begin: int | None = None
        self._remarks: list[tuple[Remark, str]] = []
        self._learned: str | None = None

    @property
    def remarks(self) -> Remarked:
        """The remarks on the rows that were read."""
        return tuple(self._remarks)

    def changes(
        self, cutoff: Cutoff = NO_CUTOFF, known: KnownFields | None = None, left_out: tuple[str, ...] = ()
    ) -> Reading:
        """What the event does, as in ``read_event``. ``known`` and ``left_out``: as in ``FieldsRead``."""
        event, keys = self._event, self._decoder_schema.keys
        self._begin = cutoff.begin
        match event.get("op"):
            case "m":
                return Ignored()
            case "t":
                self.check_source(cutoff)
                return self._metadata.position()
            case None:
                raise Unreadable("no change event: it has no 'op'")
            case other if other not in CHANGES:
                raise UnknownOperation(
                    f"unknown operation {shown(other)}", other if isinstance(other, str) else shown(other)
                )
        self.check_source(cutoff)
        self.check_message_key()
        unknown, rescued = self._unknown(known)
        match event["op"]:
            case "c" | "r":
                rows = [self.upsert(rescued)]
            case "u":
                if not keys:
                    raise Unreadable("an update, but the table has no keys to find the row by")
                rows = self.update(rescued)
            case _:
                if not keys:
                    raise Unreadable("a delete, but the table has no keys to find the row by")
                rows = [self.delete()]
        remarks = (*unknown_remarks(unknown), *((Remark.LEFT_OUT_FIELD, name) for name in left_out))
        if cutoff and cutoff.takes(position_of([self._metadata.position()]))[0]:
            return Truncated(remarks)
        remarks += self.remarks
        return Changes(rows, remarks, is_of_snapshot=event["op"] == "r", source=self._learned)

    def check_source(self, cutoff: Cutoff) -> None:
        """Raises an error for an event of a table of the source whose events are not taken (``source_order``)."""
        if self._is_row or self._event.get("op") not in (*CHANGES, "t"):
            return
        name, topic, rules = table_name(self._event.get("source")), self._record.topic, self._decoder_schema.source
        known = dict(cutoff.sources).get(topic)
        if name is not None and rules.learns(known):
            self._learned = name
        if rules.takes(name, known):
            return
        assert name is not None
        if rules.tables or not self._has_shards():
            raise refused(name, known, topic, rules)
        self._learned = SEVERAL

    def is_taken(self, cutoff: Cutoff) -> bool:
        """Whether ``check_source`` raises no error."""
        try:
            self.check_source(cutoff)
        except (Unreadable, InvalidSchema):
            return False
        return True

    def _has_shards(self) -> bool:
        """Whether the message key says of which of several tables the event is."""
        try:
            given = self._key_of(self._record)
        except Unreadable:
            return False
        return given is not None and SHARD_FIELD in given.field_names

    def _unknown(self, known: KnownFields | None) -> tuple[tuple[str, ...], Mapping[str, Any]]:
        """The names that are counted as unknown, and the members that are kept as JSON. Raises UnknownMembers."""
        given = row_of(self._event)
        if known is None or given is None:
            return (), _NOTHING
        row = self._decoder_schema.by_column(given)
        unknown = known.unknown_in(row)
        if not unknown or self._unknown_mode == "warn":
            return unknown, _NOTHING
        if self._options.unknown_fields == "quarantine":
            raise UnknownMembers(unknown)
        if self._event.get("after") is None:
            return unknown, _NOTHING  # of a delete only the key counts
        if self._unknown_mode == "quarantine":
            raise UnknownMembers(unknown, _NOT_ADDED)
        return unknown, {name: row[name] for name in known.members_with_unknown(row)}

    def update(self, rescued: Mapping[str, Any] = _NOTHING) -> list[dict[str, Any]]:
        """See ``upsert``."""
        new = self.upsert(rescued)
        before = self._image("before")
        keys = {} if before is None else self._key_in(before)
        if before is None or any(value is None for value in keys.values()):
            self._check_that_key_stays()
            return [new]
        moved = [key for key, value in keys.items() if new[key] != value]
        if not moved:
            return [new]
        old = self._old_row(before, self._named_key())
        for key in moved:
            self._check_sent(key, keys[key], old)
        return [self._deleted(keys, old, new), new]

    def upsert(self, rescued: Mapping[str, Any] = _NOTHING) -> dict[str, Any]:
        """The new row. ``rescued``: members to be kept as JSON, where the policy rescues."""
        after = self._image("after")
        if after is None:
            raise Unreadable(f"operation {self._event['op']!r} without 'after'")
        row: dict[str, Any] = {OP_COLUMN: UPSERT, CREATES_COLUMN: self._event["op"] == "c"}
        unavailable = []
        rescues = self._decoder_schema.policy.rescues
        kept = dict(rescued)
        for column in self._decoder_schema.columns:
            value = after.get(column.name)
            if self._options.placeholder.stands_for(value, in_update=self._event["op"] == "u"):
                if column.name not in self._decoder_schema.keys:
                    unavailable.append(column.name)
                value = None
            try:
                row[column.name] = self._value(column.name, value)
                kind = self._logical_types.get(column.name, PLAIN)
                remarks = unlikely_remarks(value, column.type, kind, self._options.timestamp_unit)
                self._remarks += [(remark, column.name) for remark in remarks]
            except Mismatch:
                if not rescues or column.name in self._decoder_schema.never_null:
                    raise
                row[column.name], kept[column.name] = None, value
        self._fill_keys(row)
        for name in self._decoder_schema.columns.names:
            if row[name] is None and name in self._decoder_schema.required and name not in unavailable:
                if name in kept:
                    self._value(name, after.get(name))
                raise Mismatch(f"column {name!r} may not be null")
        if kept:
            row[RESCUED_COLUMN] = rescued_text(kept)
        if unavailable:
            row[UNAVAILABLE_COLUMN] = unavailable
        return row | self._metadata_columns()

    def tombstone(self) -> Reading:
        """What a record without a value does in a topic of rows: it deletes the row that its message key names."""
        if self._record.key is None:
            return Ignored()
        if not self._decoder_schema.keys:
            raise Unreadable("a record without a value, but the table has no keys to find the row by")
        if self._key_of(self._record) is None:
            return Ignored()
        self.check_message_key()
        return Changes([self.delete()])

    def delete(self) -> dict[str, Any]:
        if self._event.get("after") is not None:
            raise Unreadable("a delete with 'after'")
        before = self._image("before") or {}
        keys = self._key_in(before)
        named = None if self._is_row else self._named_key()
        old = self._old_row(before, named)
        for key, value in keys.items():
            given = None if named is None or value is None else self._given(key, named)
            if given is not None and given != value:
                if not self._may_be_filled(key, value, old):
                    raise UnsentKey(key, f"key {key!r} is {value} in the old row and {given} in the message key")
                keys[key] = given
            elif value is not None:
                self._check_sent(key, value, old)
        lacking = [key for key, value in keys.items() if value is None]
        if lacking and before and named is None and not self._is_row:
            raise UnsentKey(
                lacking[0], f"key {lacking[0]!r} is null or missing in the old row, and no message key names it"
            )
        self._fill_keys(keys)
        return self._deleted(keys, old)

    def _deleted(self, keys: dict[str, Any], old: OldRow, new: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The delete of an old row; ``new``: the row that it became."""
        row = {**keys, OP_COLUMN: DELETE}
        sequence = self._decoder_schema.sequence_column
        if sequence and sequence not in keys:
            value = self._value(sequence, old.values.get(sequence))
            was_sent = self._is_row or not self._may_be_filled(sequence, value, old) or old.was_sent(sequence)
            row[sequence] = value if was_sent else None
            if row[sequence] is None and new is not None:
                row[sequence] = new[sequence]
            if row[sequence] is None:
                why = "without the" if value is None else f"that may not have the value {value} of the"
                raise UnorderedDelete(sequence, why)
        return row | self._metadata_columns()

    def earlier_row(self) -> EarlierRow | None:
        """What the event says of the row that it replaced."""
        before = self._image("before")
        if before is None:
            return None
        old, values, blank = self._old_row(before, self._named_key()), {}, set()
        for name in self._decoder_schema.columns.names:
            given = before.get(name)
            if name in self._decoder_schema.keys or self._options.placeholder.stands_for(given):
                continue
            try:
                value = self._value(name, given)
            except Unreadable:
                continue
            if not old.was_sent(name) and (value is None or self._may_be_filled(name, value, old)):
                blank.add(name)
            else:
                values[name] = value
        return EarlierRow(values, frozenset(blank))

    # Which row an event is about (``inline_schemas``) -----------------------------------------------------------------

    def _key_in(self, before: Mapping[str, Any]) -> dict[str, Any]:
        """The table's key in an old row."""
        return {key: self._value(key, self._sent(before.get(key))) for key in self._decoder_schema.keys}

    def _named_key(self) -> MessageKey | None:
        """The message key under the names of columns, if it can be read and names its fields."""
        try:
            given = self._key_of(self._record)
            if given is None or given.is_bare:
                return None
            named = MessageKey(
                {
                    name: one
                    for name, one in self._decoder_schema.by_column(given.members).items()
                    if name != SHARD_FIELD
                },
                self._decoder_schema.types_by_column(
                    {name: one for name, one in given.logical_types.items() if name != SHARD_FIELD}
                ),
            )
        except Unreadable:
            return None
        return named if named.field_names else None

    def _given(self, key: str, named: MessageKey) -> Any:
        """The value of a key in the message key; None if there is none that fits the column."""
        try:
            return self._value(key, self._sent(named.members.get(key)), named.logical_types)
        except Unreadable:
            return None

    def _old_row(self, before: Mapping[str, Any], named: MessageKey | None) -> OldRow:
        names = self._decoder_schema.keys if named is None else named.field_names
        values = {name: self._sent(value) for name, value in before.items()}
        return OldRow(values, frozenset(names), self._fields, self._metadata.text("connector"))

    def _may_be_filled(self, column: str, value: Any, old: OldRow) -> bool:
        """Whether a value is one that Debezium fills in."""
        if value is None:
            return False
        kind = self._decoder_schema.columns.field(column).type
        return old.is_default(column) or bool(zeros(pa.array([value], kind))[0])

    def _check_sent(self, key: str, value: Any, old: OldRow) -> None:
        """Raises ``UnsentKey`` if a value of an old key may not have been sent."""
        if not self._is_row and self._may_be_filled(key, value, old) and not old.was_sent(key):
            raise UnsentKey(
                key,
                f"key {key!r} is {value} in the old row, which may stand for a value that was not sent: "
                f"{old.described()}, and nothing shows that the row is whole (REPLICA IDENTITY FULL)",
            )

    def _check_that_key_stays(self) -> None:
        """Raises ``UnsentKey`` if an update without an old row may have changed the key of the table."""
        named = self._named_key()
        if named is None or self._metadata.text("connector") in SEND_WHOLE_ROWS:
            return
        if lacking := [key for key in self._decoder_schema.keys if key not in named.field_names]:
            raise UnsentKey(
                lacking[0],
                f"the message key has {', '.join(sorted(named.field_names))}, not the table's key {lacking[0]!r}, and without "
                "the old row (REPLICA IDENTITY FULL) nothing shows whether the update has changed that",
            )

    def check_message_key(self) -> None:
        """Where the table's keys were taken from the message key, every change has one of the same fields.

        Raises InvalidSchema for one of other fields: then the source has another primary key. Raises ``UnsentKey`` if there is no
        message key: connectors send none if the primary key, or the table, was gone when they looked at it.
        """
        if not self._decoder_schema.source.keys_of_message or self._event.get("op") not in CHANGES:
            return
        named, keys = self._named_key(), ", ".join(self._decoder_schema.keys)
        if self._record.key is None:
            raise UnsentKey(
                keys,
                f"there is no message key, from which the table's key {keys} was taken: the source has no primary key, or was "
                "renamed or dropped; set keys below database.tables to go on without message keys",
            )
        if named is not None and named.field_names == set(self._decoder_schema.keys):
            return
        now = "names no fields" if named is None else f"has {', '.join(sorted(named.field_names))}"
        raise InvalidSchema(
            f"the message key {now}, and had {keys} when the table was made (offset {self._record.offset} of partition "
            f"{self._record.partition}): the source has another primary key. If only a column was renamed, say so in columns; "
            "if the old key is still unique, set keys below database.tables; then resume the table. Otherwise delete its folder "
            "and its topic, and have its rows sent again"
        )

    def _sent(self, value: Any) -> Any:
        """The value, or None if it is the placeholder of an unavailable value."""
        return None if self._options.placeholder.stands_for(value) else value

    def _fill_keys(self, row: dict[str, Any]) -> None:
        """Takes keys that the row lacks from the message key. Raises ``Unreadable`` if one is in neither."""
        lacking = [key for key in self._decoder_schema.keys if row[key] is None]
        if not lacking:
            return
        given = self._key_of(self._record) or MessageKey({})
        fields = self._decoder_schema.by_column(given.members)
        logical_types = self._decoder_schema.types_by_column(given.logical_types)
        for key in lacking:
            row[key] = self._value(key, self._sent(fields.get(key)), logical_types)
            if row[key] is None:
                reason = f"key {key!r} is null or missing, in the row and in the message key"
                raise UnsentKey(key, reason) if self._event["op"] == "d" and not self._is_row else Unreadable(reason)

    def _image(self, side: str) -> Mapping[str, Any] | None:
        image = self._event.get(side)
        if image is None:
            return None
        if not isinstance(image, dict):
            raise Unreadable(f"{side!r} is not a JSON object")
        return self._decoder_schema.by_column(image)

    def _value(self, name: str, value: Any, logical_types: Mapping[str, LogicalType] | None = None) -> Any:
        logical_type = (self._logical_types if logical_types is None else logical_types).get(name, PLAIN)
        try:
            return convert(value, self._decoder_schema.columns.field(name).type, logical_type, self._options)
        except Unreadable as error:
            raise Mismatch(f"column {name!r}: {error}") from error

    def _metadata_columns(self) -> dict[str, Any]:
        row: dict[str, Any] = {TIME_COLUMN: self._metadata.time()}
        path = metadata_path(self._decoder_schema.sequence_metadata)
        if path is not None:
            row[SEQUENCE_COLUMN] = self._metadata.order(path, self._begin)
            if row[SEQUENCE_COLUMN] is None:
                holder = self._event.get(path[0]) if path[0] else self._event
                raise Unordered(path, holder if isinstance(holder, dict) else {})
        return row
