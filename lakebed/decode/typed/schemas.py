"""Which schema a record was written with, and the reader for it: from a registry, by what the record says, or one for all.

Readers are compiled once for a process and kept, also why a schema can't be compiled, ``_READERS_KEPT_MAX`` of them.

**Message keys** whose schema is known: where a row lacks its key, or may lack it, the key of its record has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.decode.debezium.message_key import (
    SHARD_FIELD,
    JsonKeys,
    KeyColumns,
    KeyNames,
    KeyPart,
    MessageKey,
    message_key,
)
from lakebed.decode.decoder import DecoderSchema, Message, NarrowingReader, RecordFormat, RecordReader, Wanted
from lakebed.decode.json.connect_types import PLAIN
from lakebed.decode.json.text import Unreadable
from lakebed.decode.json.values import JsonOptions
from lakebed.decode.metadata import KEY_SCHEMA, headers_of, values_of
from lakebed.decode.slices import Record
from lakebed.decode.source_order import NAMES_OF_TRANSACTIONS, transactions
from lakebed.decode.typed.registry import (
    RegistrySettings,
    Rows,
    SchemaName,
    framed,
    message_in,
    named_in,
    registry_of,
    split_messages,
    text_of,
)
from lakebed.decode.typed.values import column_of, json_value, members_of, plain_logical, plain_values, read_column

_READERS_KEPT_MAX = 1_000
_TRANSACTION_MEMBERS = {
    parent: [name for one, name in NAMES_OF_TRANSACTIONS if one == parent] for parent, _ in NAMES_OF_TRANSACTIONS
}


@dataclass(frozen=True, slots=True)
class Group:
    """Records of one schema: their numbers among the values, and their bytes."""

    reader: RecordReader
    rows: Rows
    payload: pa.BinaryArray


@dataclass(frozen=True, slots=True)
class Grouped:
    """Each value is in one group, or in ``errors`` with the reason."""

    groups: list[Group]
    errors: dict[int, str] = field(default_factory=dict)


class Schemas(Protocol):
    """Picklable."""

    def grouped(self, values: pa.BinaryArray, headers: pa.BinaryArray | None = None) -> Grouped:
        """``values`` has no nulls; ``headers``: what a header of each record says of its schema, null for a record without one.

        Raises Retry if a registry does not answer.
        """


def read_one(schemas: Schemas, value: bytes, header: bytes | None = None) -> tuple[RecordReader, pa.RecordBatch]:
    """The reader of one record, and the record. Raises ``Unreadable``, and Retry if a registry does not answer.

    ``header``: what a header says of the schema.
    """
    grouped = schemas.grouped(pa.array([value], pa.binary()), pa.array([header], pa.binary()))
    for reason in grouped.errors.values():
        raise Unreadable(reason)
    [group] = grouped.groups
    read = group.reader.read(group.payload)
    for reason in read.errors.values():
        raise Unreadable(reason)
    return group.reader, read.rows


def members_of_group(group: Group, wanted: Wanted) -> pa.RecordBatch:
    """Some members of the records of a group, and perhaps others."""
    reader = group.reader
    if isinstance(reader, NarrowingReader):
        reader = reader.narrowed(wanted)
    return reader.read(group.payload).rows


def transactions_of(group: Group) -> pa.StringArray:
    """The transactions of events. Raises TypeError if a member that says them has an unusual type."""
    rows = members_of_group(group, {"op": None, **_TRANSACTION_MEMBERS})
    members = {
        (parent, name): column
        for parent in _TRANSACTION_MEMBERS
        for name, column in members_of(rows, parent)[0].items()
    }
    return transactions(column_of(rows, "op", pa.string()), members)


@dataclass(frozen=True, slots=True)
class FixedSchema:
    """All records are of one schema, and have no header."""

    format: RecordFormat
    text: str = field(repr=False)
    references: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    message: str | None = None

    def grouped(self, values: pa.BinaryArray, headers: pa.BinaryArray | None = None) -> Grouped:
        reader = _compiled(self, self.format, self.text, dict(self.references), self.message)
        if isinstance(reader, str):
            return Grouped([], dict.fromkeys(range(len(values)), reader))
        return Grouped([Group(reader, np.arange(len(values)), values)])


@dataclass(frozen=True, slots=True)
class RegisteredSchemas:
    """Each record names its schema. ``kind``: what the registry calls the format (AVRO, PROTOBUF, JSON)."""

    settings: RegistrySettings
    kind: str
    format: RecordFormat

    def grouped(self, values: pa.BinaryArray, headers: pa.BinaryArray | None = None) -> Grouped:
        if headers is None or headers.null_count == len(headers):
            return self._by_prefix(values)
        has_prefix = np.flatnonzero(np.asarray(headers.is_null()))
        prefixed = self._by_prefix(values.take(pa.array(has_prefix)))
        groups = [replace(group, rows=has_prefix[group.rows]) for group in prefixed.groups]
        out = Grouped(groups, {int(has_prefix[row]): reason for row, reason in prefixed.errors.items()})
        encoded = headers.dictionary_encode()
        codes = np.asarray(encoded.indices.fill_null(-1))
        for code, header in enumerate(encoded.dictionary.to_pylist()):
            rows, reader = np.flatnonzero(codes == code), self._named_in(header)
            if isinstance(reader, str):
                out.errors.update(dict.fromkeys(rows.tolist(), reader))
            else:
                out.groups.append(Group(reader, rows, values.take(pa.array(rows))))
        return out

    def _named_in(self, header: bytes) -> RecordReader | str:
        """The reader of the records with such a header, or why they can't be read."""
        try:
            name, rest = named_in(header)
            message = message_in(rest) if self.kind == "PROTOBUF" else None
        except Unreadable as error:
            return str(error)
        return self._reader(name, message)

    def _by_prefix(self, values: pa.BinaryArray) -> Grouped:
        frames = framed(values)
        out = Grouped([], dict(frames.errors))
        whole = len(frames.groups) == 1 and not frames.errors
        for schema_id, rows in frames.groups.items():
            payload = frames.payload if whole else frames.payload.take(pa.array(rows))
            for message, some, part in self._messages(rows, payload, out.errors):
                reader = self._reader(schema_id, message)
                if isinstance(reader, str):
                    out.errors.update(dict.fromkeys(some.tolist(), reader))
                else:
                    out.groups.append(Group(reader, some, part))
        return out

    def _messages(
        self, rows: Rows, payload: pa.BinaryArray, errors: dict[int, str]
    ) -> Iterator[tuple[Message, Rows, pa.BinaryArray]]:
        """The records of each message of a schema: a schema of Protobuf has several."""
        if self.kind != "PROTOBUF":
            yield None, rows, payload
            return
        split = split_messages(payload)
        errors |= {int(rows[at]): reason for at, reason in split.errors.items()}
        for message, some in split.groups.items():
            whole = len(some) == len(rows)
            yield message, rows[some], split.payloads if whole else split.payloads.take(pa.array(some))

    def _reader(self, name: SchemaName, message: Message) -> RecordReader | str:
        """The reader, or why the records can't be read."""
        place = (self.settings.key, self.format, name, message)
        found = _readers.get(place)
        if found is not None:
            return found
        schema = registry_of(self.settings).schema(name)
        if isinstance(schema, str):
            return schema
        what = text_of(name)
        if schema.kind != self.kind:
            return f"{what} is a schema of {schema.kind}, but the format reads {self.kind}"
        return _compiled(place, self.format, schema.text, schema.references, message, f"{what} can't be used: ")


_readers: dict[object, RecordReader | str] = {}


def _compiled(
    place: object,
    record_format: RecordFormat,
    text: str,
    references: Mapping[str, str],
    message: Message,
    otherwise: str = "the schema can't be used: ",
) -> RecordReader | str:
    found = _readers.get(place)
    if found is not None:
        return found
    reader: RecordReader | str
    try:
        reader = record_format.compile(text, references, message)
    except Unreadable as error:
        reader = otherwise + str(error)
    if len(_readers) >= _READERS_KEPT_MAX:
        _readers.clear()
    _readers[place] = reader
    return reader


KeySchemas = Schemas | Literal["json", "none"] | None
"""What message keys are read by; ``none``: they are no keys of the table; None: nobody said how to read them."""


class MessageKeys:
    """Reads the keys of records for a table."""

    def __init__(self, schemas: KeySchemas, decoder_schema: DecoderSchema, options: JsonOptions) -> None:
        self._schemas = schemas
        self._decoder_schema = decoder_schema
        self._options = options
        self._names = decoder_schema.keys
        self._json = JsonKeys(decoder_schema, options)

    def columns(self, records: pa.RecordBatch) -> KeyColumns:
        """See ``KeyReader``."""
        return self._json.columns(records) if self._schemas == "json" else self._read(records)

    def columns_of_tombstones(self, records: pa.RecordBatch) -> KeyColumns:
        """The same where one value is the table's only key."""
        return self._json.columns(records) if self._schemas == "json" else self._read(records, bare=True)

    def names(self, records: pa.RecordBatch) -> KeyNames:
        """See ``KeyReader``."""
        if self._schemas == "json":
            return self._json.names(records)
        nameless, groups = self._grouped(records, bare=False)
        complete, exact = np.zeros(len(nameless), bool), np.zeros(len(nameless), bool)
        for group, places in groups:
            fields, wanted = self._fields_of(group.reader), set(self._names)
            complete[places], exact[places] = fields >= wanted, fields == wanted
        return KeyNames(nameless=nameless, complete=complete, exact=exact)

    def _read(self, records: pa.RecordBatch, *, bare: bool = False) -> KeyColumns:
        nameless, groups = self._grouped(records, bare=bare)
        parts = [part for group, places in groups if (part := self._part(group, places)) is not None]
        columns = pa.schema([self._decoder_schema.columns.field(name) for name in self._names])
        return KeyColumns.of(parts, nameless, columns)

    def _grouped(self, records: pa.RecordBatch, *, bare: bool) -> tuple[Rows, list[tuple[Group, Rows]]]:
        """Which records have no key that names fields, and the other keys with their places."""
        keys = records.column("key")
        if self._schemas is None or isinstance(self._schemas, str):
            return np.ones(len(keys), bool), []
        nameless, present = np.array(keys.is_null()), np.flatnonzero(np.asarray(keys.is_valid()))
        headers = values_of(headers_of(records), KEY_SCHEMA)
        named = None if headers is None else headers.take(pa.array(present))
        grouped = self._schemas.grouped(keys.drop_null(), named)
        nameless[present[list(grouped.errors)]] = True
        groups = []
        for group in grouped.groups:
            places = present[group.rows]
            if not self._fields_of(group.reader) - {SHARD_FIELD} or (self._is_bare(group.reader) and not bare):
                nameless[places] = True
            else:
                groups.append((group, places))
        return nameless, groups

    def of(self, record: Record) -> MessageKey | None:
        """As ``message_key``. Raises ``Unreadable``."""
        if self._schemas == "none" or record.key is None:
            return None
        if self._schemas is None:
            raise Unreadable("message key: it has no schema; set format.key_schema_file, or key_format: json or none")
        if self._schemas == "json":
            return message_key(record, self._names)
        header = pa.array([record.headers.get(KEY_SCHEMA)], pa.binary())
        grouped = self._schemas.grouped(pa.array([record.key], pa.binary()), header)
        for reason in grouped.errors.values():
            raise Unreadable(f"message key: {reason}")
        reader = grouped.groups[0].reader
        read = reader.read(grouped.groups[0].payload)
        for reason in read.errors.values():
            raise Unreadable(f"message key: {reason}")
        is_bare = self._is_bare(reader)
        names = self._names if is_bare and len(self._names) == 1 else read.rows.schema.names
        columns = [plain_values(column) for column in read.rows.columns]
        values = [json_value(column[0].as_py(), column.type) for column in columns]
        kinds = [plain_logical(f.type, reader.logical_types.get(f.name, PLAIN)) for f in read.rows.schema]
        return MessageKey(dict(zip(names, values, strict=True)), dict(zip(names, kinds, strict=True)), is_bare)

    def _is_bare(self, reader: RecordReader) -> bool:
        """Whether keys are one value, not a record of fields."""
        return reader.schema.names == ["value"] and "value" not in self._names

    def _fields_of(self, reader: RecordReader) -> set[str]:
        """The columns of the fields of keys."""
        decoder_schema = self._decoder_schema.reading(reader.schema.names, declared=True)
        return {decoder_schema.column_for(name) or name for name in reader.schema.names}

    def _part(self, group: Group, places: Rows) -> KeyPart | None:
        read = group.reader.read(group.payload)
        if read.errors:
            return None  # they are read one by one
        given = dict(zip(read.rows.schema.names, read.rows.columns, strict=True))
        logical = group.reader.logical_types
        if self._is_bare(group.reader) and len(self._names) == 1:
            given = {self._names[0]: given["value"]}
            logical = {self._names[0]: logical.get("value", PLAIN)}
        decoder_schema = self._decoder_schema.reading(given, declared=True)
        columns, wrong = {}, np.zeros(len(places), bool)
        for name in self._names:
            target = self._decoder_schema.columns.field(name).type
            columns[name] = pa.nulls(len(places), target)
            for other in decoder_schema.names_of(name):
                if other not in given:
                    continue
                column, misfits = read_column(given[other], logical.get(other, PLAIN), target, self._options)
                wrong |= np.asarray(columns[name].is_valid()) & np.asarray(column.is_valid())
                if misfits is not None:
                    wrong |= misfits
                columns[name] = pc.coalesce(columns[name], column)
        exact = self._fields_of(group.reader) == set(self._names)
        good = ~wrong
        kept = {name: column.filter(pa.array(good)) for name, column in columns.items()} if wrong.any() else columns
        return KeyPart(places[good], kept, np.full(int(good.sum()), exact))
