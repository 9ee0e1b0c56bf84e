"""Runs a program in Python, one record after the other: where there is no native code, and what that is compared with."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, Inexact
from typing import Any

import numpy as np
import pyarrow as pa

from lakebed.decode.avro.program import VALUES_A_BYTE, Code, Fault, Program, Step
from lakebed.decode.record_format import LEVELS_MAX

_SCALING = Context(prec=100, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[Inexact])


class _Refused(Exception):
    """The bytes are no record: ``args`` are the fault and the step."""


class PythonReader:
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
