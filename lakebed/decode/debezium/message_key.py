"""Message keys of records: one read exactly (``message_key``), or many as columns.

As columns they are what the fast path compares old rows with (``inline_schemas``).

A key that names the fields of the table's key, in JSON with an inline schema or without, is read like a row (``json.columns``).

What else a record says of its event beside the rows is ``EventMetadata``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.decode.debezium.inline_schemas import SCHEMAS_KEPT_MAX, InlineSchemas, payloads_of
from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.json.columns import MISSES, ColumnReader, Missed, one_of, reader_for, shape_of
from lakebed.decode.json.connect_types import INTEGER, PLAIN, LogicalType, envelope_of, fields_of, logical_type_of
from lakebed.decode.json.objects import UNKNOWN_MAX, ObjectParser, Parsed
from lakebed.decode.json.text import Unreadable, is_unicode, parse
from lakebed.decode.json.values import JsonOptions
from lakebed.decode.slices import Record
from lakebed.decode.source_order import LOG_POSITION, ORDERS, not_before
from lakebed.positions.truncates import Truncate

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
SHARD_FIELD = "__dbz__physicalTableIdentifier"
"""The field of a key in which Debezium's ByLogicalTableRouter says which source table a row is of."""


@dataclass(frozen=True, slots=True)
class MessageKey:
    """The members of a key by name, with their logical types."""

    members: Mapping[str, Any]
    logical_types: Mapping[str, LogicalType] = field(default_factory=dict)
    is_bare: bool = False
    """Whether the key is one value, which has the name of the table's key here."""

    @property
    def field_names(self) -> frozenset[str]:
        """Those of its fields, which its schema says too."""
        return frozenset(self.members) | frozenset(self.logical_types)


def message_key(record: Record, names: tuple[str, ...]) -> MessageKey | None:
    """None for a record without a key, or whose key is null. ``names``: the key columns of the table. Raises ``Unreadable``."""
    if record.key is None:
        return None
    try:
        payload, schema = envelope_of(parse(record.key))
        if payload is None:
            return None
        if isinstance(payload, dict):
            return MessageKey(payload, dict(fields_of(schema)))
        if isinstance(payload, list):
            raise Unreadable("it is a list")
        if len(names) != 1:
            raise Unreadable(f"it is one value, but the key of the table is {', '.join(names) or 'empty'}")
        logical_types = {} if schema is None else {names[0]: logical_type_of(schema)}
        return MessageKey({names[0]: payload}, logical_types, is_bare=True)
    except Unreadable as error:
        raise Unreadable(f"message key: {error}") from error


_Mask = np.ndarray[Any, Any]
_FIRST_MEMBER = re.compile(rb'\{"[^"\\]*":')
_HEADS_KEPT_MAX = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyNames:
    """What is known of the names of the fields of message keys, one element each."""

    nameless: _Mask
    """There is no key, or it names no fields."""
    complete: _Mask
    """It has all key columns of the table."""
    exact: _Mask
    """It has these and no others."""


@dataclass(frozen=True, slots=True)
class KeyPart:
    """Some keys that name fields: their places among all, and the table's key columns, null where a field is missing."""

    places: _Mask
    columns: Mapping[str, pa.Array]
    exact: _Mask


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyColumns:
    """Message keys, one element each. Of a key that is neither ``nameless`` nor ``named``, nothing is known."""

    nameless: _Mask
    named: _Mask
    exact: _Mask
    columns: Mapping[str, pa.Array]

    @staticmethod
    def of(parts: Sequence[KeyPart], nameless: _Mask, columns: pa.Schema) -> KeyColumns:
        """``columns``: those of the table's key."""
        count = len(nameless)
        named, exact = np.zeros(count, bool), np.zeros(count, bool)
        if len(parts) == 1 and len(parts[0].places) == count:
            return KeyColumns(nameless=nameless, named=~nameless, exact=parts[0].exact, columns=parts[0].columns)
        order = np.full(count, -1)
        first = 0
        for part in parts:
            named[part.places] = True
            exact[part.places] = part.exact
            order[part.places] = first + np.arange(len(part.places))
            first += len(part.places)
        found = {one.name: pa.nulls(count, one.type) for one in columns}
        if first:
            taken = pa.array(order, mask=order < 0)
            for name in found:
                found[name] = pa.concat_arrays([part.columns[name] for part in parts]).take(taken)
        return KeyColumns(nameless=nameless, named=named, exact=exact, columns=found)

    @property
    def names(self) -> KeyNames:
        """What this says of the names alone."""
        complete = self.named.copy()
        for column in self.columns.values():
            complete &= np.asarray(column.is_valid())
        return KeyNames(nameless=self.nameless, complete=complete, exact=self.exact)


class KeyReader(Protocol):
    """Reads the keys of records. ``records`` has no columns but keys and headers."""

    def columns(self, records: pa.RecordBatch) -> KeyColumns:
        """The keys as columns, as far as they can be read at once."""

    def names(self, records: pa.RecordBatch) -> KeyNames:
        """What they have, which is known sooner than their values."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """How keys of one inline schema, or none, are read, whose values have the same types."""

    readers: Mapping[str, ColumnReader]
    names: Mapping[str, tuple[str, ...]]
    """The names of the fields of each column."""
    parser: ObjectParser


@dataclass(frozen=True, slots=True)
class _KeySchema:
    """The logical types of the fields of an inline schema, by column, and the plans by the JSON types of values."""

    types: Mapping[str, LogicalType]
    decoder_schema: DecoderSchema
    """With the columns of fields whose names differ by case alone."""
    plans: dict[str, _Plan] = field(default_factory=dict)


class JsonKeys:
    """Reads keys in JSON."""

    def __init__(self, decoder_schema: DecoderSchema, options: JsonOptions) -> None:
        self._decoder_schema = decoder_schema
        self._options = options
        self._columns = pa.schema([decoder_schema.columns.field(key) for key in decoder_schema.keys])
        self._schemas = InlineSchemas(_KeySchema({}, decoder_schema), self._schema_of)
        self._heads: dict[bytes, bytes] = {}

    def columns(self, records: pa.RecordBatch) -> KeyColumns:
        """See ``KeyReader``."""
        keys = records.column("key")
        nameless = np.asarray(keys.is_null())
        parts = []
        with suppress(*MISSES):
            for prefix, schema, places in self._schemas.groups(keys, ~nameless):
                payloads = payloads_of(keys if len(places) == len(keys) else keys.take(pa.array(places)), prefix)
                try:
                    part = self._part(schema, payloads, places)
                except MISSES:
                    part = KeyPart(
                        places[:0], {one.name: pa.nulls(0, one.type) for one in self._columns}, places[:0] > 0
                    )
                parts.append(part)
                if len(part.places) < len(places):
                    nameless[places[_begin_no_object(payloads)]] = True
                elif part.exact.any():
                    self._learn(keys[int(part.places[np.argmax(part.exact)])].as_py(), prefix, schema)
        return KeyColumns.of(parts, nameless, self._columns)

    def names(self, records: pa.RecordBatch) -> KeyNames:
        """See ``KeyReader``. Keys that begin like an earlier one need not be read."""
        keys = records.column("key")
        nameless = np.asarray(keys.is_null())
        exact = np.zeros(len(keys), bool)
        for head, tail in self._heads.items():
            alike = pc.and_(pc.starts_with(keys, head), pc.ends_with(keys, tail))
            if pc.any(alike).as_py():
                inner = pc.binary_slice(keys, len(head), -len(tail))
                for mark in (b"}",) if len(tail) > 1 else (b"}", b","):
                    alike = pc.and_(alike, pc.invert(pc.match_substring(inner, mark)))
                exact |= _true(alike)
        left = np.flatnonzero(~exact & ~nameless)
        if not len(left):
            return KeyNames(nameless=nameless, complete=exact, exact=exact)
        found = self.columns(records.take(pa.array(left))).names
        nameless, complete = nameless.copy(), exact.copy()
        nameless[left], complete[left], exact[left] = found.nameless, found.complete, found.exact
        return KeyNames(nameless=nameless, complete=complete, exact=exact)

    def _learn(self, key: bytes, prefix: bytes, schema: _KeySchema) -> None:
        """Remembers how a key begins and ends that has exactly the fields of the table's key, if others are like it."""
        head, tail = prefix + b"{", b"}}"
        if schema.types.keys() != set(self._decoder_schema.keys):
            member = _FIRST_MEMBER.match(key)
            if prefix or member is None or len(self._columns) > 1:
                return
            head, tail = member[0], b"}"
        if len(self._heads) >= _HEADS_KEPT_MAX:
            self._heads.clear()
        self._heads[head] = tail

    def _schema_of(self, schema: Any) -> _KeySchema:
        types = dict(fields_of(schema))
        decoder_schema = self._decoder_schema.reading(types, declared=True)
        return _KeySchema(decoder_schema.types_by_column(types), decoder_schema)

    def _part(self, schema: _KeySchema, payloads: pa.BinaryArray, places: _Mask) -> KeyPart:
        """Raises one of ``MISSES``."""
        plan = self._plan(schema, payloads)
        parsed = plan.parser.parse(payloads)
        columns = {
            name: reader.read(one_of([parsed.rows.column(one) for one in plan.names[name]]))
            for name, reader in plan.readers.items()
        }
        exact: _Mask = np.full(len(places), schema.types.keys() == set(self._decoder_schema.keys))
        if parsed.met is not None:  # the parser tells what else is in a key; else its schema does
            exact = parsed.met == 0
        sure = parsed.sure & ~_enveloped(parsed, payloads)
        if not sure.all():
            columns = {name: column.filter(pa.array(sure)) for name, column in columns.items()}
            places, exact = places[sure], exact[sure]
        return KeyPart(places, columns, exact)

    def _plan(self, schema: _KeySchema, payloads: pa.BinaryArray) -> _Plan:
        """Raises one of ``MISSES``."""
        first = self._first(payloads)
        decoder_schema = schema.decoder_schema.reading(first, declared=False)
        sample = self._sample(first, decoder_schema)
        shape = repr((shape_of(sample), decoder_schema.spellings))
        if shape not in schema.plans:
            readers: dict[str, ColumnReader] = {}
            for column in self._columns:
                logical_type = schema.types.get(column.name, PLAIN)
                reader = reader_for(column.type, logical_type, sample.get(column.name), self._options)
                if reader is None:
                    raise Missed(f"key {column.name} is read one by one")
                readers[column.name] = reader
            names = {name: decoder_schema.names_of(name) for name in readers}
            parsed_as = {one: readers[name] for name in readers for one in names[name]}
            fields = [pa.field(name, reader.parsed) for name, reader in parsed_as.items()]
            if len(schema.plans) >= SCHEMAS_KEPT_MAX:
                schema.plans.clear()
            schema.plans[shape] = _Plan(readers, names, ObjectParser(pa.schema(fields), parsed_as, {(): ()}))
        return schema.plans[shape]

    def _first(self, payloads: pa.BinaryArray) -> Mapping[str, Any]:
        """The first key, whose names and JSON types the others should have."""
        try:
            key = parse(payloads[0].as_py())
        except Unreadable:
            return {}
        return key if isinstance(key, dict) else {}

    def _sample(self, key: Mapping[str, Any], decoder_schema: DecoderSchema) -> Mapping[str, Any]:
        """Values of the table's key columns."""
        try:
            members = decoder_schema.by_column(key)
        except Unreadable:
            return {}
        return {name: members.get(name) for name in self._columns.names}


def _enveloped(parsed: Parsed, payloads: pa.BinaryArray) -> _Mask:
    """Which objects may be an inline schema and a payload, in this order or another."""
    if parsed.met is None:
        return _true(pc.match_substring_regex(payloads, r'"payload"|\\'))
    bits = sum(1 << bit for bit, path in enumerate(parsed.unknown) if path == ("payload",))
    found: _Mask = (parsed.met & np.uint64(bits | 1 << UNKNOWN_MAX)) != 0
    return found


def _begin_no_object(payloads: pa.BinaryArray) -> _Mask:
    """Which keys are certainly no objects, by their first byte."""
    first = pc.binary_slice(payloads, 0, 1)
    return ~np.asarray(pc.is_in(first, value_set=pa.array([b"{", b" ", b"\t", b"\n", b"\r", b""], pa.binary())))


def _true(mask: pa.Array) -> _Mask:
    """The mask as a NumPy array, with null as False."""
    return np.asarray(pc.fill_null(mask, False), dtype=bool)


class EventMetadata:
    """When and where in its source an event was made, as the event and its record say."""

    def __init__(self, event: Mapping[str, Any], record: Record) -> None:
        self._event, self._record = event, record

    def order(self, path: tuple[str, str], begin: int | None) -> int | None:
        """The place of the event in the order that ``path`` means (``source_order``). ``begin``: as in ``Cutoff``."""
        order = ORDERS.get(path)
        if order is None:
            return self._number(*path)
        beside = self._member(order.beside) if order.beside else None
        place = order.place(self._member(path[1]), beside)
        if place is None or begin is None or path != LOG_POSITION:
            return place
        return not_before(begin, place, beside)

    def text(self, name: str) -> str | None:
        """A member of ``source`` that is a text."""
        source = self._event.get("source")
        text = source.get(name) if isinstance(source, dict) else None
        return text if isinstance(text, str) and is_unicode(text) else None

    def time(self) -> int | None:
        """The time of the event in epoch microseconds: by the source's clock, by the connector's, or that of the record."""
        for millis in (self._number("source", "ts_ms"), self._number("", "ts_ms"), self._record.timestamp):
            if millis is not None:
                return millis * 1000 if abs(millis) * 1000 <= _INT64_MAX else None
        return None

    def position(self) -> Truncate:
        """The source's position at the event, which orders the event and truncates."""
        record = self._record
        micros = self._number("source", "ts_us")
        lsn, server_id, pos = (self._number("source", name) for name in ("lsn", "server_id", "pos"))
        return Truncate(
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            time_us=self.time() if micros is None else micros,
            lsn=lsn,
            server_id=server_id,
            file=self.text("file"),
            pos=pos,
        )

    def _member(self, name: str) -> int | str | None:
        """A member of ``source`` that is a whole number or a text."""
        number = self._number("source", name)
        return self.text(name) if number is None else number

    def _number(self, parent: str, name: str) -> int | None:
        if parent == "kafka":
            return int(getattr(self._record, name)) if getattr(self._record, name) is not None else None
        holder = self._event.get(parent) if parent else self._event
        value = holder.get(name) if isinstance(holder, dict) else None
        if isinstance(value, str) and INTEGER.fullmatch(value):
            value = int(value)
        whole = isinstance(value, int) and not isinstance(value, bool) and _INT64_MIN <= value <= _INT64_MAX
        return value if whole else None
