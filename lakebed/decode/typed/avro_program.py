"""How bytes that were written with one schema become columns of the same or another one: a flat list of steps.

The rules are those of https://avro.apache.org/docs/1.12.0/specification/#schema-resolution: fields by name or alias, defaults for
fields that the writer lacks, wider numbers, and symbols of enums by name. Beyond them, two logical types that differ don't match:
a number of milliseconds is never taken for one of microseconds.

    1.  Each type of the writer becomes a step that reads its bytes, all of them, whether a column wants them or not.
    2.  A step without a column skips. What nobody wants may contain itself, so its steps may form a circle.
    3.  A default is a step that reads the bytes of a constant instead of the record's.
    4.  What can't be resolved is refused here if every record has it, else by the step of the branch or symbol that has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import pyarrow as pa

from lakebed.decode.decoder import LEVELS_MAX
from lakebed.decode.json.text import Unreadable
from lakebed.decode.typed.avro_columns import Column, flat, row_of
from lakebed.decode.typed.avro_schema import (
    MISSING,
    NO_MEANING,
    Array,
    Enumeration,
    Field,
    Fixed,
    MapOf,
    Meaning,
    Primitive,
    Record,
    Type,
    Union,
    encoded,
    label,
    unqualified,
)

_PROMOTIONS = {
    "int": ("int", "long", "float", "double"),
    "long": ("long", "float", "double"),
    "float": ("float", "double"),
    "string": ("string", "bytes"),
    "bytes": ("bytes", "string"),
}
_STEPS_MAX = 100_000
VALUES_MIN, VALUES_A_BYTE = 10_000, 64
"""How many values a record may have that take no bytes, such as the fields of a struct that is null: so many, or each that its
schema has once; and further ones for each byte."""
_TEXT_BYTES_A_VALUE = 16


class Code(IntEnum):
    """``enum code`` of avro_to_arrow.c."""

    NOTHING = 0
    """No bytes; a null for the column."""
    BOOLEAN = 1
    INT = 2
    """A whole number of up to ``size`` bits and a sign."""
    LONG = 3
    """The same."""
    FLOAT = 4
    DOUBLE = 5
    BYTES = 6
    """A length and as many bytes; UTF-8 if ``size`` is 1."""
    FIXED = 7
    """``size`` bytes."""
    UUID = 8
    """16 bytes, which become a text."""
    ENUM = 9
    """``texts`` by the symbol's place; None: the reader's schema lacks it."""
    ARRAY = 10
    """The child is the item's step; none if items take no bytes."""
    MAP = 11
    """The child is the value's step."""
    RECORD = 12
    UNION = 13
    """A child for each branch."""
    MEMBER = 14
    """The child is read into the field ``size`` of a struct whose other fields are null."""
    DEFAULT = 15
    """The child reads ``constant``."""
    REFUSE = 16
    """Any bytes; ``reason`` says why not."""


_PRIMITIVES = {
    "null": Code.NOTHING,
    "boolean": Code.BOOLEAN,
    "int": Code.INT,
    "long": Code.LONG,
    "float": Code.FLOAT,
    "double": Code.DOUBLE,
    "bytes": Code.BYTES,
    "string": Code.BYTES,
}


_SIZES = {"int": 31, "long": 63, "string": 1}


class Fault(IntEnum):
    """Why bytes are no record: ``enum fault`` of avro_to_arrow.c."""

    ENDS = 1
    NEGATIVE = 2
    NUMBER = 3
    RANGE = 4
    TRUTH = 5
    UTF8 = 6
    SYMBOL = 7
    BRANCH = 8
    BLOCK = 9
    DIGITS = 10
    REPEATED = 11
    LEVELS = 12
    LEFT = 13
    UNKNOWN_SYMBOL = 14
    REFUSED = 15
    VALUES = 16


_REASONS = {
    Fault.ENDS: "the record ends too early",
    Fault.NEGATIVE: "a length below zero",
    Fault.NUMBER: "a number of more than 64 bits",
    Fault.RANGE: "a number that is too large for its type",
    Fault.TRUTH: "a boolean that is neither 0 nor 1",
    Fault.UTF8: "a text that is not UTF-8",
    Fault.SYMBOL: "a symbol that the enum does not have",
    Fault.BRANCH: "a branch that the union does not have",
    Fault.BLOCK: "a block that is not as long as it says",
    Fault.DIGITS: "a decimal with no digits or too many",
    Fault.REPEATED: "a key twice",
    Fault.LEVELS: f"more than {LEVELS_MAX} levels",
    Fault.LEFT: "bytes behind the record's end",
    Fault.UNKNOWN_SYMBOL: "a symbol that the reader's schema does not have",
    Fault.VALUES: "more values than its few bytes can be meant to have",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    code: Code
    column: int = -1
    """The place of the column that gets the value; -1: none."""
    size: int = 0
    children: tuple[int, ...] = ()
    texts: tuple[bytes | None, ...] = ()
    constant: bytes = b""
    path: str = ""
    reason: str = ""
    values: int = 0
    """How many values it makes beyond the one that its bytes are for."""


@dataclass(frozen=True, slots=True)
class Program:
    """``columns``: in the flat order, the root of the row first. The first step is ``steps[start]``."""

    columns: tuple[Column, ...]
    steps: tuple[Step, ...]
    start: int

    @property
    def values_min(self) -> int:
        return max(VALUES_MIN, sum(step.values for step in self.steps))

    def reason(self, fault: Fault, step: int) -> str:
        """The reason that the quarantine shows."""
        at = self.steps[step]
        where = f" in {at.path!r}" if at.path else ""
        what = at.reason if fault is Fault.REFUSED else _REASONS[fault]
        return f"not a record of its Avro schema: {what}{where}"


def program_of(writer: Type, reader: Type) -> Program:
    """Raises ``Unreadable`` for schemas that can't be columns, or where no record of one can be read as the other."""
    root, column = row_of(reader)
    compiler = _Compiler()
    try:
        start = compiler.step(writer, reader, column, "")
    except _Unresolvable as error:
        raise Unreadable(f"the writer's Avro schema can't be read by the reader's: {error}") from None
    if root is not column:
        start = compiler.add(Step(code=Code.RECORD, column=root.place, children=(start,)))
    return Program(tuple(flat(root)), tuple(compiler.steps), start)


class _Unresolvable(Exception):
    """No value of the writer's type is one of the reader's."""


class _Compiler:
    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._skips: dict[Type, int] = {}

    def add(self, step: Step) -> int:
        if len(self.steps) == _STEPS_MAX:
            raise Unreadable(f"the Avro schema takes more than {_STEPS_MAX:,} steps to read")
        self.steps.append(step)
        return len(self.steps) - 1

    def nothing(self, column: Column | None, path: str) -> int:
        if column is None:
            return self.add(Step(code=Code.NOTHING, path=path))
        return self.add(Step(code=Code.NOTHING, column=column.place, path=path, values=_values(column) - 1))

    def step(self, writer: Type, reader: Type, column: Column | None, path: str) -> int:
        """The step that reads a value of the writer's type as one of the reader's into the column."""
        place = column.place if column else -1
        if isinstance(writer, Union):
            return self._branches(writer, reader, column, path)
        if isinstance(reader, Union):
            return self._branch(writer, reader, column, path)
        match writer, reader:
            case Primitive(), Primitive():
                is_number = reader.meaning.logical == "decimal" and writer.name == "string"
                if is_number or reader.name not in _PROMOTIONS.get(writer.name, (writer.name,)):
                    raise _mismatch(writer, reader, path)
                _check_meaning(writer.meaning, reader.meaning, writer, reader, path)
                if writer.name == "null":
                    return self.nothing(column, path)
                size = reader.bits - 1 if reader.bits else _SIZES.get(writer.name, _SIZES.get(reader.name, 0))
                return self.add(Step(code=_PRIMITIVES[writer.name], column=place, size=size, path=path))
            case Fixed(), Fixed() if _is_same(writer, reader) and writer.size == reader.size:
                _check_meaning(writer.meaning, reader.meaning, writer, reader, path)
                code = Code.UUID if reader.meaning.logical == "uuid" else Code.FIXED
                return self.add(Step(code=code, column=place, size=writer.size, path=path))
            case Enumeration(), Enumeration() if _is_same(writer, reader):
                known = (name if name in reader.symbols else reader.default for name in writer.symbols)
                texts = tuple(None if name is None else name.encode() for name in known)
                values = max((len(text or b"") for text in texts), default=0) // _TEXT_BYTES_A_VALUE
                return self.add(Step(code=Code.ENUM, column=place, texts=texts, path=path, values=values))
            case Array(), Array():
                return self._array(writer, reader, column, path)
            case MapOf(), MapOf():
                assert column is not None
                value = self.step(writer.values, reader.values, column.children[0].children[1], f"{path}.value")
                return self.add(Step(code=Code.MAP, column=place, children=(value,), path=path))
            case Record(), Record() if _is_same(writer, reader):
                return self._record(writer, reader, column, path)
        raise _mismatch(writer, reader, path)

    def _array(self, writer: Array, reader: Array, column: Column | None, path: str) -> int:
        if _least_bytes(writer.items) == 0:
            raise Unreadable(f"the array {path!r} can't be a column: its items take no bytes")
        assert column is not None
        item = self.step(writer.items, reader.items, column.children[0], f"{path}.element")
        return self.add(Step(code=Code.ARRAY, column=column.place, children=(item,), path=path))

    def _record(self, writer: Record, reader: Record, column: Column | None, path: str) -> int:
        assert column is not None
        columns = {child.name: child for child in column.children}
        targets = _targets(writer, reader)
        steps = []
        for each in writer.fields:
            name = f"{path}.{each.name}" if path else each.name
            if (target := targets.get(each.name)) is None:
                steps.append(self.skip(each.type, name))
            else:
                steps.append(self.step(each.type, target.type, columns.get(target.name), name))
        taken = {target.name for target in targets.values()}
        for target in reader.fields:
            if target.name not in taken:
                name = f"{path}.{target.name}" if path else target.name
                steps.append(self._default(target, columns.get(target.name), name))
        return self.add(Step(code=Code.RECORD, column=column.place, children=tuple(steps), path=path, values=1))

    def _default(self, target: Field, column: Column | None, path: str) -> int:
        if target.default is MISSING:
            raise _Unresolvable(f"the field {path!r} is not in the writer's schema and has no default")
        constant = encoded(target.type, target.default)
        place = column.place if column else -1
        if target.default is None:
            return self.nothing(column, path)
        children = (self.step(target.type, target.type, column, path),)
        values = len(constant) + 1
        step = Step(code=Code.DEFAULT, column=place, children=children, constant=constant, path=path, values=values)
        return self.add(step)

    def _branches(self, writer: Union, reader: Type, column: Column | None, path: str) -> int:
        steps, refused = [], []
        for branch in writer.branches:
            try:
                steps.append(self.step(branch, reader, column, path))
            except _Unresolvable as error:
                steps.append(self.add(Step(code=Code.REFUSE, reason=str(error))))
                refused.append(error)
        if len(refused) == len(writer.branches):
            raise refused[0]
        place = column.place if column else -1
        return self.add(Step(code=Code.UNION, column=place, children=tuple(steps), path=path))

    def _branch(self, writer: Type, reader: Union, column: Column | None, path: str) -> int:
        """The reader's union takes the value as the first of its types that is the same, or else matches."""
        for is_exact in (True, False):
            for place, branch in enumerate(reader.branches):
                if not _matches(writer, branch, is_exact):
                    continue
                member = column.members.get(place) if column and column.members else None
                if column is None or member is None:
                    return self.step(writer, branch, column, path)
                children = (self.step(writer, branch, member, path),)
                code, place, others = Code.MEMBER, column.place, _values(column) - _values(member)
                step = Step(code=code, column=place, size=member.place, children=children, path=path, values=others)
                return self.add(step)
        raise _mismatch(writer, reader, path)

    def skip(self, kind: Type, path: str) -> int:
        """The step that reads a value for no column. Within itself, a type is read by the same step."""
        if kind in self._skips:
            return self._skips[kind]
        at = self._skips[kind] = self.add(Step(code=Code.NOTHING))
        children: tuple[int, ...] = ()
        match kind:
            case Primitive():
                step = Step(code=_PRIMITIVES[kind.name], size=_SIZES.get(kind.name, 0), path=path)
            case Fixed():
                step = Step(code=Code.FIXED, size=kind.size, path=path)
            case Enumeration():
                step = Step(code=Code.ENUM, texts=tuple(name.encode() for name in kind.symbols), path=path)
            case Array():
                if _least_bytes(kind.items):
                    children = (self.skip(kind.items, f"{path}.element"),)
                step = Step(code=Code.ARRAY, children=children, path=path)
            case MapOf():
                step = Step(code=Code.MAP, children=(self.skip(kind.values, f"{path}.value"),), path=path)
            case Record():
                children = tuple(self.skip(each.type, f"{path}.{each.name}") for each in kind.fields)
                step = Step(code=Code.RECORD, children=children, path=path)
            case Union():
                children = tuple(self.skip(branch, path) for branch in kind.branches)
                step = Step(code=Code.UNION, children=children, path=path)
        self.steps[at] = step
        del self._skips[kind]
        return at


def _targets(writer: Record, reader: Record) -> dict[str, Field]:
    """The reader's field for each of the writer's that has one: first by name, then by alias."""
    own = {each.name: each for each in reader.fields}
    targets = {each.name: own[each.name] for each in writer.fields if each.name in own}
    for target in reader.fields:
        if target.name not in targets:
            names = [each.name for each in writer.fields if each.name in target.aliases and each.name not in targets]
            if names:
                targets[names[0]] = target
    return targets


def _values(column: Column) -> int:
    """How many columns get a null where this one does."""
    return 1 + (sum(map(_values, column.children)) if pa.types.is_struct(column.arrow) else 0)


def _is_same(writer: Fixed | Enumeration | Record, reader: Fixed | Enumeration | Record) -> bool:
    """Whether the reader's name, or an alias, is the writer's; namespaces may differ."""
    return writer.name in reader.aliases or unqualified(writer.name) == unqualified(reader.name)


def _matches(writer: Type, reader: Type, is_exact: bool) -> bool:
    """Whether the reader's type takes values of the writer's, without looking into records."""
    match writer, reader:
        case Primitive(), Primitive():
            names = (writer.name,) if is_exact else _PROMOTIONS.get(writer.name, (writer.name,))
            return reader.name in names
        case (Fixed(), Fixed()) | (Enumeration(), Enumeration()) | (Record(), Record()):
            if isinstance(writer, Fixed) and isinstance(reader, Fixed) and writer.size != reader.size:
                return False
            return writer.name == reader.name if is_exact else _is_same(writer, reader)  # type: ignore[union-attr,arg-type]
        case Array(), Array():
            return _matches(writer.items, reader.items, is_exact)
        case MapOf(), MapOf():
            return _matches(writer.values, reader.values, is_exact)
        case (Union(), _) | (_, Union()):
            return True
    return False


def _check_meaning(written: Meaning, wanted: Meaning, writer: Type, reader: Type, path: str) -> None:
    if NO_MEANING not in (written, wanted) and written != wanted:
        raise _mismatch(writer, reader, path)


def _mismatch(writer: Type, reader: Type, path: str) -> _Unresolvable:
    where = f"{path!r}: " if path else ""
    return _Unresolvable(f"{where}{label(writer)!r} was written, which is not {label(reader)!r}")


def _least_bytes(kind: Type, seen: set[Type] | None = None) -> int:
    """0 if a value of the type may take no bytes, else 1."""
    seen = set() if seen is None else seen
    match kind:
        case Primitive():
            return int(kind.name != "null")
        case Fixed():
            return int(kind.size > 0)
        case Record():
            if kind in seen:  # it adds nothing to what was found
                return 0
            seen.add(kind)
            return int(any(_least_bytes(each.type, seen) for each in kind.fields))
        case _:
            return 1
