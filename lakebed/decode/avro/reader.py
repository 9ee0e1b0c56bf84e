"""The record format Avro: a writer's schema becomes a reader of its records.

Where native code is built, it runs the program that the schemas become (``_NativeReader``, ``native/avro_to_arrow.c``).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from lakebed.decode.avro.columns import Column
from lakebed.decode.avro.defaults import defaults_of_structs
from lakebed.decode.avro.program import VALUES_A_BYTE, Code, Fault, Program, Step, program_of
from lakebed.decode.avro.python_reader import PythonReader
from lakebed.decode.avro.schema import Record, Type, Union, parse_schema
from lakebed.decode.json.connect_types import PLAIN, LogicalType
from lakebed.decode.native.library import (
    BOOLEAN,
    BYTES,
    DECIMAL,
    DONE,
    FLOATING,
    INTEGER,
    LIST,
    MAP,
    NO_MEMORY,
    STRUCT,
    TEXT,
    ArrowArray,
    Field,
    library,
)
from lakebed.decode.record_format import Message, ReadRecords, Wanted
from lakebed.schema.nested import nullable


class _Span(ctypes.Structure):
    """``struct span`` of avro_to_arrow.c."""

    _fields_ = [("start", ctypes.c_char_p), ("length", ctypes.c_int64)]


class _Step(ctypes.Structure):
    """``struct step`` of avro_to_arrow.c."""

    _fields_ = [
        ("code", ctypes.c_int32),
        ("column", ctypes.c_int32),
        ("size", ctypes.c_int32),
        ("values", ctypes.c_int32),
        ("first", ctypes.c_int32),
        ("children", ctypes.c_int32),
    ]


class _Task(ctypes.Structure):
    """``struct avro_task`` of avro_to_arrow.c."""

    _fields_ = [
        ("fields", ctypes.c_void_p),
        ("steps", ctypes.c_void_p),
        ("children", ctypes.c_void_p),
        ("spans", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
        ("faults", ctypes.c_void_p),
        ("at", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("values_min", ctypes.c_int64),
        ("values_a_byte", ctypes.c_int64),
        ("field_count", ctypes.c_int32),
        ("start", ctypes.c_int32),
    ]


class _NativeReader:
    """The same as ``PythonReader``; only where ``library()`` is there."""

    def __init__(self, program: Program) -> None:
        children: list[int] = []
        spans: list[_Span] = []
        steps = [_step(step, children, spans) for step in program.steps]
        self._start = program.start
        self._values_min = program.values_min
        self._fields = (Field * len(program.columns))(*map(_field, program.columns))
        self._steps = (_Step * len(steps))(*steps)
        self._children = (ctypes.c_int32 * len(children))(*children)
        self._spans = (_Span * len(spans))(*spans)

    def read(self, values: pa.BinaryArray, rows: pa.DataType) -> tuple[pa.Array, dict[int, tuple[Fault, int]]]:
        """A struct of type ``rows`` for each record, and of those that are none, the fault and the step that found it.

        Raises ``MemoryError``, and ``OverflowError`` where a column would be too large for Arrow.
        """
        found = library()
        assert found is not None and pa.types.is_binary(values.type) and values.null_count == 0
        _, offsets, data = values.buffers()
        faults, at, out = np.zeros(len(values), np.int32), np.zeros(len(values), np.int32), ArrowArray()
        task = _Task(
            fields=ctypes.addressof(self._fields),
            steps=ctypes.addressof(self._steps),
            children=ctypes.addressof(self._children),
            spans=ctypes.addressof(self._spans),
            offsets=offsets.address + 4 * values.offset,
            data=data.address if data else None,
            faults=faults.ctypes.data,
            at=at.ctypes.data,
            rows=len(values),
            values_min=self._values_min,
            values_a_byte=VALUES_A_BYTE,
            field_count=len(self._fields),
            start=self._start,
        )
        result = found.lakebed_read_avro(ctypes.byref(task), ctypes.byref(out))
        if result == NO_MEMORY:
            raise MemoryError
        if result != DONE:
            raise OverflowError("a column of more than 2 GiB")
        made = pa.Array._import_from_c(ctypes.addressof(out), rows)
        refused = np.flatnonzero(faults).tolist()
        return made, {row: (Fault(int(faults[row])), int(at[row])) for row in refused}


def _step(step: Step, children: list[int], spans: list[_Span]) -> _Step:
    made = _Step(code=step.code, column=step.column, size=step.size, values=step.values)
    made.first, made.children = len(children), len(step.children)
    children += step.children
    if step.code is Code.ENUM:
        made.first, made.children = len(spans), len(step.texts)
        spans += [_Span(text, -1 if text is None else len(text)) for text in step.texts]
    elif step.code is Code.DEFAULT:
        made.size = len(spans)
        spans.append(_Span(step.constant, len(step.constant)))
    return made


def _field(column: Column) -> Field:
    kind = column.arrow
    field = Field(first_child=column.children[0].place if column.children else 0, children=len(column.children))
    if pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        field.kind, field.width = INTEGER, kind.bit_width // 8
    elif pa.types.is_floating(kind):
        field.kind, field.width = FLOATING, kind.bit_width // 8
    elif pa.types.is_decimal(kind):
        field.kind, field.width, field.precision = DECIMAL, kind.bit_width // 8, kind.precision
    elif pa.types.is_map(kind):
        field.kind = MAP
    elif pa.types.is_list(kind):
        field.kind = LIST
    elif pa.types.is_struct(kind):
        field.kind = STRUCT
    elif pa.types.is_boolean(kind):
        field.kind = BOOLEAN
    else:
        field.kind = TEXT if pa.types.is_string(kind) else BYTES
    return field


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
        self._reader = _NativeReader(program) if native and library() else PythonReader(program)

    @property
    def defaults(self) -> Mapping[str, Mapping[str, Any]]:
        """See ``ReaderOfDefaults``."""
        return defaults_of_structs(self._types[1])

    def narrowed(self, fields: Wanted) -> AvroReader:
        """A reader for these fields alone. What it skips makes no columns, but is read by its type."""
        writer, reader = self._types
        return AvroReader(writer, _narrow(reader, fields), native=isinstance(self._reader, _NativeReader))

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
