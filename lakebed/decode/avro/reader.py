"""The record format Avro: a writer's schema becomes a reader of its records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from lakebed.decode.avro.defaults import defaults_of_structs
from lakebed.decode.avro.native_reader import NativeReader
from lakebed.decode.avro.program import program_of
from lakebed.decode.avro.python_reader import PythonReader
from lakebed.decode.avro.schema import Record, Type, Union, parse_schema
from lakebed.decode.json.connect_types import PLAIN, LogicalType
from lakebed.decode.native.library import library
from lakebed.decode.record_format import Message, ReadRecords, Wanted
from lakebed.schema.nested import nullable


@dataclass(frozen=True, slots=True)
class AvroFormat:
    """``reader_schema``: what all records are read as, whatever schema wrote them; without it, each writer's own schema."""

    reader_schema: str | None = None

    def compile(self, schema_text: str, references: Mapping[str, str], message: Message = None) -> AvroReader:
        """Raises ``Unreadable`` for a schema that is not valid, can't be columns, or can't be read as the reader's."""
        writer = parse_schema(schema_text, references)
        reader = writer if self.reader_schema is None else parse_schema(self.reader_schema)
        return AvroReader(writer, reader)


class AvroReader:
    """Reads the records of one writer's schema (``RecordReader``)."""

    def __init__(self, writer: Type, reader: Type, *, native: bool = True) -> None:
        """Raises ``Unreadable``."""
        program = program_of(writer, reader)
        row = program.columns[0]
        self._types = writer, reader
        self.schema = pa.schema([column.field() for column in row.children])
        self.logical_types: Mapping[str, LogicalType] = {
            column.name: column.logical for column in row.children if column.logical != PLAIN
        }
        self._program = program
        self._rows = nullable(row.arrow)
        self._reader = NativeReader(program) if native and library() else PythonReader(program)

    @property
    def defaults(self) -> Mapping[str, Mapping[str, Any]]:
        """See ``ReaderOfDefaults``."""
        return defaults_of_structs(self._types[1])

    def narrowed(self, fields: Wanted) -> AvroReader:
        """A reader for these fields alone. What it skips makes no columns, but is read by its type."""
        writer, reader = self._types
        return AvroReader(writer, _narrow(reader, fields), native=isinstance(self._reader, NativeReader))

    def read(self, values: pa.BinaryArray) -> ReadRecords:
        """Every field of the rows is nullable, at any depth. Raises ``OverflowError`` if they take more than 2 GiB a column."""
        made, faults = self._reader.read(values, self._rows)
        errors = {row: self._program.reason(*fault) for row, fault in faults.items()}
        return ReadRecords(pa.RecordBatch.from_struct_array(made), errors)


def _narrow(kind: Type, fields: Wanted) -> Type:
    """The record with these fields, also where it may be null. Another type has no fields to leave out."""
    match kind:
        case Record():
            kept = [each for each in kind.fields if each.name in fields]
            inner = [(each, fields[each.name]) for each in kept]
            narrow = [
                each if some is None else replace(each, type=_narrow(each.type, dict.fromkeys(some)))
                for each, some in inner
            ]
            return Record(kind.name, kind.aliases, kind.meaning, narrow)
        case Union() if sum(isinstance(branch, Record) for branch in kind.branches) == 1 and len(kind.branches) <= 2:
            return Union(tuple(_narrow(branch, fields) for branch in kind.branches))
    return kind
