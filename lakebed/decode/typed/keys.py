"""Message keys whose schema is known: where a row lacks its key, or may lack it, the key of its record has it."""

from __future__ import annotations

from typing import Literal

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
from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.json.connect_types import PLAIN
from lakebed.decode.json.text import Unreadable
from lakebed.decode.json.values import JsonOptions
from lakebed.decode.metadata import KEY_SCHEMA, headers_of, values_of
from lakebed.decode.record_format import RecordReader
from lakebed.decode.slices import Record
from lakebed.decode.typed.schemas import Group, Schemas
from lakebed.decode.typed.values import json_value, plain_logical, plain_values, read_column
from lakebed.decode.typed.wire_format import Rows

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
