"""Which schema a record was written with, and the reader for it: from a registry, by what the record says, or one for all.

Readers are compiled once for a process and kept, also why a schema can't be compiled, ``_READERS_KEPT_MAX`` of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from lakebed.decode.json.text import Unreadable
from lakebed.decode.record_format import Message, RecordFormat, RecordReader
from lakebed.decode.typed.registry import RegistrySettings, registry_of, text_of
from lakebed.decode.typed.wire_format import Rows, SchemaName, framed, message_in, named_in, split_messages

_READERS_KEPT_MAX = 1_000


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
