"""The record format Avro: a writer's schema becomes a reader of its records, each by itself and many at once.

    avro_schema     the text of a schema becomes types, with names, namespaces and references resolved; a default value becomes
                    Avro bytes, which the program reads like any others
    avro_columns    a type becomes Arrow columns
    avro_program    how bytes of the writer's type become columns of the reader's: a flat list of steps

Invariants
    A1  Both ways of running a program give the same rows and the same errors, for all bytes.
    A2  A record that is not exactly one value of the writer's schema is an error, and changes no other record.
    A3  What a record takes in memory is bounded by its bytes and the schema: a count or a length is never trusted, and values
        that take no bytes are counted.

Where native code is built, it runs the program that the schemas become (``_NativeReader``, ``native/avro_to_arrow.c``).
Where there is none, the program is run in Python, one record after the other. Native code is compared with that.
"""

from __future__ import annotations

import ctypes
import struct
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, Inexact
from typing import Any

import numpy as np
import pyarrow as pa

from lakebed.decode.decoder import LEVELS_MAX, Message, ReadRecords, Wanted
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
from lakebed.decode.typed.avro_columns import Column
from lakebed.decode.typed.avro_program import VALUES_A_BYTE, Code, Fault, Program, Step, program_of
from lakebed.decode.typed.avro_schema import Record, Type, Union, defaults_of_structs, parse_schema
from lakebed.schema.nested import nullable

_SCALING = Context(prec=100, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[Inexact])


class _Refused(Exception):
    """The bytes are no record: ``args`` are the fault and the step."""


class _PythonReader:
    def __init__(self, program: Program) -> None:
        self._program = program

    def read(self, values: pa.BinaryArray, rows: pa.DataType) -> tuple[pa.Array, dict[int, tuple[Fault, int]]]:
        """A struct of type ``rows`` for each record, and of those that are none, the fault and the step that found it."""
        reading = _Reading(self._program)
        made: list[dict[str, Any]] = []
        errors: dict[int, tuple[Fault, int]] = {}
        for row, data in enumerate(values.to_pylist()):
            try:
                made.append(reading.record(data))
            except _Refused as refused:
                made.append({})
                errors[row] = refused.args
        return pa.array(made, rows), errors


class _Reading:
    """What is left of the record that is read now."""

    def __init__(self, program: Program) -> None:
        self._steps = program.steps
        self._columns = program.columns
        self._start = program.start
        self._values_min = program.values_min
        self._data, self._at, self._end, self._levels, self._values, self._values_max = b"", 0, 0, 0, 0, 0
        self._read: dict[Code, Callable[[int, Step], Any]] = {
            Code.NOTHING: lambda _at, _step: None,
            Code.BOOLEAN: self._boolean,
            Code.INT: self._number,
            Code.LONG: self._number,
            Code.FLOAT: lambda at, _step: struct.unpack("<f", self._take(4, at))[0],
            Code.DOUBLE: lambda at, _step: struct.unpack("<d", self._take(8, at))[0],
            Code.BYTES: lambda at, step: self._meant(self._take(self._length(at), at), at, step),
            Code.FIXED: lambda at, step: self._meant(self._take(step.size, at), at, step),
            Code.UUID: lambda at, _step: str(uuid.UUID(bytes=self._take(16, at))),
            Code.ENUM: self._symbol,
            Code.ARRAY: self._array,
            Code.MAP: self._map,
            Code.RECORD: self._record,
            Code.UNION: self._union,
            Code.MEMBER: self._member,
            Code.DEFAULT: self._default,
            Code.REFUSE: self._refuse,
        }

    def record(self, data: bytes) -> Any:
        """The record's fields by name. Raises ``_Refused``."""
        self._data, self._at, self._end, self._levels, self._values = data, 0, len(data), 0, 0
        self._values_max = self._values_min + VALUES_A_BYTE * len(data)
        value = self._value(self._start)
        if self._at < self._end:
            raise _Refused(Fault.LEFT, self._start)
        return value

    def _value(self, at: int) -> Any:
        step = self._steps[at]
        if step.values:
            self._values += step.values
            if self._values > self._values_max:
                raise _Refused(Fault.VALUES, at)
        return self._read[step.code](at, step)

    def _take(self, count: int, at: int) -> bytes:
        if count > self._end - self._at:
            raise _Refused(Fault.ENDS, at)
        self._at += count
        return self._data[self._at - count : self._at]

    def _whole(self, at: int) -> int:
        value = 0
        for place in range(10):
            if self._at == self._end:
                raise _Refused(Fault.ENDS, at)
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                if value >= 1 << 64:
                    break
                return value >> 1 ^ -(value & 1)
        raise _Refused(Fault.NUMBER, at)

    def _length(self, at: int) -> int:
        length = self._whole(at)
        if length < 0:
            raise _Refused(Fault.NEGATIVE, at)
        return length

    def _boolean(self, at: int, _step: Step) -> bool:
        byte = self._take(1, at)[0]
        if byte > 1:
            raise _Refused(Fault.TRUTH, at)
        return byte == 1

    def _number(self, at: int, step: Step) -> int | float:
        value = self._whole(at)
        if not -(1 << step.size) <= value < 1 << step.size:
            raise _Refused(Fault.RANGE, at)
        kind = self._columns[step.column].arrow if step.column >= 0 else None
        if kind is None or not pa.types.is_floating(kind):
            return value
        return float(np.float32(np.int64(value)) if pa.types.is_float32(kind) else value)

    def _meant(self, raw: bytes, at: int, step: Step) -> Any:
        kind = self._columns[step.column].arrow if step.column >= 0 else pa.binary()
        if pa.types.is_decimal(kind):
            whole = int.from_bytes(raw, "big", signed=True)
            if not raw or abs(whole) >= 10**kind.precision:
                raise _Refused(Fault.DIGITS, at)
            return Decimal(whole).scaleb(-kind.scale, _SCALING)
        if step.code is Code.FIXED or not step.size:
            return raw
        text = self._decoded(raw, at)
        return raw if pa.types.is_binary(kind) else text

    def _decoded(self, raw: bytes, at: int) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise _Refused(Fault.UTF8, at) from None

    def _symbol(self, at: int, step: Step) -> str:
        place = self._whole(at)
        if not 0 <= place < len(step.texts):
            raise _Refused(Fault.SYMBOL, at)
        text = step.texts[place]
        if text is None:
            raise _Refused(Fault.UNKNOWN_SYMBOL, at)
        return text.decode()

    def _deeper(self, at: int) -> None:
        self._levels += 1
        if self._levels > LEVELS_MAX:
            raise _Refused(Fault.LEVELS, at)

    def _blocks(self, at: int, item: Callable[[], None] | None) -> None:
        """Reads blocks of items to the empty one that ends them."""
        self._deeper(at)
        while count := self._whole(at):
            end = None
            if count < 0:
                size = self._length(at)
                if size > self._end - self._at:
                    raise _Refused(Fault.ENDS, at)
                end = self._at + size
            for _ in range(abs(count)) if item else ():
                item()  # type: ignore[misc]
            if end is not None and end != self._at:
                raise _Refused(Fault.BLOCK, at)
        self._levels -= 1

    def _array(self, at: int, step: Step) -> list[Any]:
        items: list[Any] = []
        if not step.children:
            self._blocks(at, None)
        else:
            self._blocks(at, lambda: items.append(self._value(step.children[0])))
        return items

    def _map(self, at: int, step: Step) -> list[tuple[Any, Any]]:
        entries: list[tuple[Any, Any]] = []

        def entry() -> None:
            key = self._decoded(self._take(self._length(at), at), at)
            entries.append((key, self._value(step.children[0])))

        self._blocks(at, entry)
        if step.column >= 0 and len({key for key, _ in entries}) < len(entries):
            raise _Refused(Fault.REPEATED, at)
        return entries

    def _record(self, at: int, step: Step) -> dict[str, Any]:
        self._deeper(at)
        row: dict[str, Any] = {}
        for child in step.children:
            value, column = self._value(child), self._steps[child].column
            if column >= 0:
                row[self._columns[column].name] = value
        self._levels -= 1
        return row

    def _union(self, at: int, step: Step) -> Any:
        place = self._whole(at)
        if not 0 <= place < len(step.children):
            raise _Refused(Fault.BRANCH, at)
        return self._value(step.children[place])

    def _member(self, at: int, step: Step) -> dict[str, Any]:
        self._deeper(at)
        value = {self._columns[step.size].name: self._value(step.children[0])}
        self._levels -= 1
        return value

    def _default(self, _at: int, step: Step) -> Any:
        kept = self._data, self._at, self._end
        self._data, self._at, self._end = step.constant, 0, len(step.constant)
        value = self._value(step.children[0])
        self._data, self._at, self._end = kept
        return value

    def _refuse(self, at: int, _step: Step) -> None:
        raise _Refused(Fault.REFUSED, at)


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
    """The same as ``_PythonReader``; only where ``library()`` is there."""

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
        self._reader = _NativeReader(program) if native and library() else _PythonReader(program)

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
