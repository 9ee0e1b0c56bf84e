"""The record format ``protobuf``: messages of a ``.proto`` schema to Arrow batches.

    1.  ``protobuf.schema`` compiles the schema, ``protobuf.fields`` makes columns of the message's fields.
    2.  Native code reads the records into raw columns (``native/protobuf_to_arrow.c``). A record that it is not sure of is read
        with google.protobuf (``protobuf.messages``), which decides whether it is an error. Without native code that one reads
        all. So what a record means is decided in one place.
    3.  ``protobuf.values`` makes natural values of the raw ones.

Invariant
    P1  Every record that native code is sure of, google.protobuf reads to the same values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lakebed.decode.json.connect_types import PLAIN, LogicalType
from lakebed.decode.json.text import Unreadable
from lakebed.decode.native.library import DONE, library
from lakebed.decode.protobuf.fields import fields_of_message
from lakebed.decode.protobuf.messages import TOO_MANY, MessageReader
from lakebed.decode.protobuf.native_reader import REFUSED, ProtobufParser
from lakebed.decode.protobuf.schema import compiled
from lakebed.decode.protobuf.values import faults_by_row, natural
from lakebed.decode.record_format import Message, ReadRecords, RecordReader


@dataclass(frozen=True, slots=True)
class ProtobufFormat:
    """Protobuf, of any syntax that protoc knows: proto2, proto3, editions."""

    def compile(self, schema_text: str, references: Mapping[str, str], message: Message = None) -> RecordReader:
        """Raises ``Unreadable``."""
        return ProtobufReader(compiled(schema_text, references, message))


class ProtobufReader:
    """Reads records that are messages of one type. Raises ``Unreadable`` if no columns can hold the type."""

    def __init__(self, descriptor: Any) -> None:
        self._fields = fields_of_message(descriptor)
        self._one_by_one = MessageReader(descriptor, self._fields)
        self.parser = ProtobufParser(self._fields) if library() is not None else None
        """None: all records are read one by one."""
        self.schema = pa.schema([field.arrow() for field in self._fields])
        self._rows = pa.schema([field.with_nullable(True) for field in self.schema])
        self.logical_types: Mapping[str, LogicalType] = {
            field.name: field.logical_type for field in self._fields if field.logical_type != PLAIN
        }

    def read(self, values: pa.BinaryArray) -> ReadRecords:
        """Raises ``MemoryError``, and ``OverflowError`` where a column would be too large for Arrow."""
        errors: dict[int, str] = {}
        raw = self._raw(values, errors)
        columns = [natural(field, raw.column(at)) for at, field in enumerate(self._fields)]
        for row, reason in faults_by_row(columns):
            errors.setdefault(row, reason)
        arrays = [column.values for column in columns]
        if errors:
            arrays = _without(arrays, errors, len(values))
        return ReadRecords(pa.RecordBatch.from_arrays(arrays, schema=self._rows), errors)

    def _raw(self, values: pa.BinaryArray, errors: dict[int, str]) -> pa.RecordBatch:
        """The raw columns; a record in ``errors`` is a row of nulls."""
        if self.parser is None:
            return self._read_one_by_one(values, range(len(values)), errors)
        rows, outcome = self.parser.parse(values)
        errors.update(dict.fromkeys(np.flatnonzero(outcome == REFUSED).tolist(), TOO_MANY))
        unsure = np.flatnonzero((outcome != DONE) & (outcome != REFUSED))
        if not len(unsure):
            return rows
        others = self._read_one_by_one(values, unsure.tolist(), errors)
        order = np.arange(len(values))
        order[unsure] = len(values) + np.arange(len(unsure))
        return pa.Table.from_batches([rows, others]).take(pa.array(order)).combine_chunks().to_batches()[0]

    def _read_one_by_one(self, values: pa.BinaryArray, rows: Any, errors: dict[int, str]) -> pa.RecordBatch:
        read: list[Mapping[str, Any] | None] = []
        for row in rows:
            try:
                read.append(self._one_by_one.read(values[row].as_py()))
            except Unreadable as error:
                read.append(None)
                errors[row] = str(error)
        members = pa.array(read, self._one_by_one.raw).flatten()
        return pa.RecordBatch.from_arrays(members, names=[field.name for field in self._fields])


def _without(arrays: list[pa.Array], errors: Mapping[int, str], rows: int) -> list[pa.Array]:
    """The arrays, null in the rows with errors."""
    mask = np.zeros(rows, bool)
    mask[list(errors)] = True
    order = pa.array(np.arange(rows), mask=mask)
    return [array.take(order) for array in arrays]
