"""Read one Debezium event exactly, or give the reason why not: the slow path of ``debezium``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from lakebed.ingest.debezium.connect_types import INTEGER, PLAIN, LogicalType, columns_of_envelope, envelope_of
from lakebed.ingest.debezium.message_key import MessageKey, message_key
from lakebed.ingest.decoder import DecoderSchema
from lakebed.ingest.json.early_times import is_early
from lakebed.ingest.json.text import Mismatch, Unreadable, is_unicode, parse, shown
from lakebed.ingest.json.values import JsonOptions, convert
from lakebed.ingest.metadata import metadata_path
from lakebed.ingest.schema_evolution import RESCUED_COLUMN
from lakebed.ingest.slices import TIME_COLUMN, Changes, Ignored, Reading, Record, Remarked, SchemaNeeded, Truncated
from lakebed.ingest.source_order import LOG_POSITION, ORDERS, not_before
from lakebed.ingest.truncates import NO_CUTOFF, Cutoff, Truncate, position_of
from lakebed.ingest.unknown_fields import (
    KnownFields,
    UnknownMembers,
    UnknownOperation,
    rescued_text,
    unknown_mode,
    unknown_remarks,
)
from lakebed.manifest.remarks import Remark
from lakebed.manifest.schema_change import SchemaChange
from lakebed.parts.changes import DELETE, OP_COLUMN, SEQUENCE_COLUMN, UNAVAILABLE_COLUMN, UPSERT

NOT_ADDED = "evolve adds no column for them, or none can be like them; unknown_fields: ignore leaves them out"
NOTHING: Mapping[str, Any] = MappingProxyType({})
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1


def read_event(
    record: Record,
    decoder_schema: DecoderSchema,
    options: JsonOptions,
    cutoff: Cutoff = NO_CUTOFF,
    known: KnownFields | None = None,
    needed: Callable[[Any], SchemaChange | None] | None = None,
) -> Reading:
    """The changes of one record, at most two. Raises ``Unreadable`` with the reason for the quarantine.

    ``known``: None where members that no column takes are ignored. ``needed``: what an inline schema asks of the table; if it is
    something, this raises ``SchemaNeeded``.
    """
    if record.value is None:
        return Ignored()
    event, schema = envelope_of(parse(record.value))
    if event is None:
        return Ignored()
    if not isinstance(event, dict):
        raise Unreadable("not a JSON object")
    change = needed(schema) if needed is not None and schema is not None else None
    if change is not None:
        raise SchemaNeeded(change)
    logical_types = columns_of_envelope(schema)
    reading = Event(event, logical_types, record, decoder_schema, options, has_schema=schema is not None)
    return reading.changes(cutoff, known)


def row_of(event: Any) -> dict[str, Any] | None:
    """The row of a parsed event that changes one: ``after``, or else ``before``; None if it has none."""
    if not isinstance(event, dict) or event.get("op") not in ("c", "r", "u", "d"):
        return None
    for side in ("after", "before"):
        if isinstance(event.get(side), dict):
            row: dict[str, Any] = event[side]
            return row
    return None


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
    ) -> None:
        """``has_schema``: whether the record carries its schema; ``key_of``: reads a record's key in place of ``message_key``."""
        self._key_of = key_of or (lambda record: message_key(record, decoder_schema.keys))
        self._event = event
        self._logical_types = decoder_schema.types_by_column(logical_types)
        self._unknown_mode = unknown_mode(options.unknown_fields, decoder_schema.policy, has_schema=has_schema)
        self._record = record
        self._decoder_schema = decoder_schema
        self._options = options
        self._begin: int | None = None
        self._early: list[str] = []

    @property
    def remarks(self) -> Remarked:
        """The remarks on the rows that were read."""
        return tuple((Remark.JANUARY_1970, name) for name in self._early)

    def changes(self, cutoff: Cutoff = NO_CUTOFF, known: KnownFields | None = None) -> Reading:
        """What the event does, as in ``read_event``."""
        event, keys = self._event, self._decoder_schema.keys
        self._begin = cutoff.begin
        match event.get("op"):
            case "m":
                return Ignored()
            case "t":
                return self.position()
            case None:
                raise Unreadable("no change event: it has no 'op'")
            case other if other not in ("c", "r", "u", "d"):
                raise UnknownOperation(
                    f"unknown operation {shown(other)}", other if isinstance(other, str) else shown(other)
                )
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
        if cutoff and cutoff.takes(position_of([self.position()]))[0]:
            return Truncated(unknown_remarks(unknown))
        return Changes(rows, unknown_remarks(unknown) + self.remarks, is_of_snapshot=event["op"] == "r")

    def _unknown(self, known: KnownFields | None) -> tuple[tuple[str, ...], Mapping[str, Any]]:
        """The names that are counted as unknown, and the members that are kept as JSON. Raises UnknownMembers."""
        given = row_of(self._event)
        if known is None or given is None:
            return (), NOTHING
        row = self._decoder_schema.by_column(given)
        unknown = known.unknown_in(row)
        if not unknown or self._unknown_mode == "warn":
            return unknown, NOTHING
        if self._options.unknown_fields == "quarantine":
            raise UnknownMembers(unknown)
        if self._event.get("after") is None:
            return unknown, NOTHING  # of a delete only the key counts
        if self._unknown_mode == "quarantine":
            raise UnknownMembers(unknown, NOT_ADDED)
        return unknown, {name: row[name] for name in known.members_with_unknown(row)}

    def update(self, rescued: Mapping[str, Any] = NOTHING) -> list[dict[str, Any]]:
        """See ``upsert``."""
        new = self.upsert(rescued)
        old = self._image("before")
        if old is None:
            return [new]
        keys = {key: self._value(key, self._sent(old.get(key))) for key in self._decoder_schema.keys}
        if any(value is None for value in keys.values()) or all(new[key] == value for key, value in keys.items()):
            return [new]
        return [self._deleted(keys, old), new]

    def upsert(self, rescued: Mapping[str, Any] = NOTHING) -> dict[str, Any]:
        """The new row. ``rescued``: members to be kept as JSON, where the policy rescues."""
        after = self._image("after")
        if after is None:
            raise Unreadable(f"operation {self._event['op']!r} without 'after'")
        row: dict[str, Any] = {OP_COLUMN: UPSERT}
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
                if is_early(value, column.type, kind, self._options.timestamp_unit):
                    self._early.append(column.name)
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
        return Ignored() if self._key_of(self._record) is None else Changes([self.delete()])

    def delete(self) -> dict[str, Any]:
        if self._event.get("after") is not None:
            raise Unreadable("a delete with 'after'")
        before = self._image("before") or {}
        row = {key: self._value(key, self._sent(before.get(key))) for key in self._decoder_schema.keys}
        self._fill_keys(row)
        return self._deleted(row, before)

    def _deleted(self, keys: dict[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
        row = {**keys, OP_COLUMN: DELETE}
        sequence = self._decoder_schema.sequence_column
        if sequence and sequence not in keys:
            row[sequence] = self._value(sequence, self._sent(before.get(sequence)))
        return row | self._metadata_columns()

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
                raise Unreadable(f"key {key!r} is null or missing, in the row and in the message key")

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
        row: dict[str, Any] = {TIME_COLUMN: self._time()}
        path = metadata_path(self._decoder_schema.sequence_metadata)
        if path is not None:
            row[SEQUENCE_COLUMN] = self._ordering(path)
            if row[SEQUENCE_COLUMN] is None:
                needs = ORDERS[path].needs if path in ORDERS else ""
                raise Unreadable(
                    f"sequence_by {self._decoder_schema.sequence_metadata!r}{needs} is null, missing or not an integer"
                )
        return row

    def _ordering(self, path: tuple[str, str]) -> int | None:
        order = ORDERS.get(path)
        if order is None:
            return self._metadata(*path)
        beside = self._member(order.beside) if order.beside else None
        place = order.place(self._member(path[1]), beside)
        if place is None or self._begin is None or path != LOG_POSITION:
            return place
        return not_before(self._begin, place, beside)

    def _member(self, name: str) -> int | str | None:
        """A member of ``source`` that is a whole number or a text."""
        number = self._metadata("source", name)
        return self._text(name) if number is None else number

    def _text(self, name: str) -> str | None:
        """A member of ``source`` that is a text."""
        source = self._event.get("source")
        text = source.get(name) if isinstance(source, dict) else None
        return text if isinstance(text, str) and is_unicode(text) else None

    def _metadata(self, parent: str, name: str) -> int | None:
        if parent == "kafka":
            return int(getattr(self._record, name)) if getattr(self._record, name) is not None else None
        holder = self._event.get(parent) if parent else self._event
        value = holder.get(name) if isinstance(holder, dict) else None
        if isinstance(value, str) and INTEGER.fullmatch(value):
            value = int(value)
        whole = isinstance(value, int) and not isinstance(value, bool) and INT64_MIN <= value <= INT64_MAX
        return value if whole else None

    def _time(self) -> int | None:
        for millis in (self._metadata("source", "ts_ms"), self._metadata("", "ts_ms"), self._record.timestamp):
            if millis is not None:
                return millis * 1000 if abs(millis) * 1000 <= INT64_MAX else None
        return None

    def position(self) -> Truncate:
        """The source's position at the event, which orders the event and truncates."""
        record = self._record
        micros = self._metadata("source", "ts_us")
        lsn, server_id, pos = (self._metadata("source", name) for name in ("lsn", "server_id", "pos"))
        return Truncate(
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            time_us=self._time() if micros is None else micros,
            lsn=lsn,
            server_id=server_id,
            file=self._text("file"),
            pos=pos,
        )
