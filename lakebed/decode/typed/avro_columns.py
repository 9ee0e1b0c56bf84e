"""The Arrow columns that a type of Avro becomes (``decode.decoder`` lists the natural types).

record              struct
array, map          list, map
enum, string, UUID  string
fixed, bytes        binary; a decimal of up to 38 digits ``decimal128``
union               the type beside null; of several, a struct of one nullable field a type: ``member_int``, ``member_<name of
                    the record>``, … in lower case. So a type that joins a union later is a new field, and no other moves.
                    ``[int, long]`` is a long and ``[float, double]`` a double.
null                no column, for it says nothing
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from lakebed.decode.decoder import LEVELS_MAX
from lakebed.decode.json.connect_types import PLAIN, Kind, LogicalType
from lakebed.decode.json.text import Unreadable
from lakebed.decode.typed.avro_schema import (
    Array,
    Enumeration,
    Fixed,
    MapOf,
    Meaning,
    Primitive,
    Record,
    Type,
    Union,
    label,
    unqualified,
)

_COLUMNS_MAX = 10_000
"""Types that are named again and again may stand for any number of columns in a short schema."""
_DECIMAL_DIGITS_MAX = 38
_TIMES = {
    "date": (pa.date32(), PLAIN),
    "time-millis": (pa.int64(), LogicalType(Kind.TIME_MS)),
    "time-micros": (pa.int64(), LogicalType(Kind.TIME_US)),
    "timestamp-millis": (pa.timestamp("ms", "UTC"), PLAIN),
    "timestamp-micros": (pa.timestamp("us", "UTC"), PLAIN),
    "timestamp-nanos": (pa.timestamp("ns", "UTC"), PLAIN),
    "local-timestamp-millis": (pa.timestamp("ms"), PLAIN),
    "local-timestamp-micros": (pa.timestamp("us"), PLAIN),
    "local-timestamp-nanos": (pa.timestamp("ns"), PLAIN),
}
_PRIMITIVES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_SMALL = {8: pa.int8(), 16: pa.int16()}
_WIDER = {frozenset(("int", "long")): "long", frozenset(("float", "double")): "double"}


@dataclass(slots=True, eq=False, kw_only=True)
class Column:
    """``members``: which child takes which branch of the union, by the branch's place; None where no union has several.

    The only child of a map is the struct of its key and value.
    """

    name: str
    arrow: pa.DataType
    nullable: bool = False
    logical: LogicalType = PLAIN
    children: list[Column] = field(default_factory=list)
    members: dict[int, Column] | None = None
    place: int = -1
    """In the flat list of all columns, where the children of a column follow each other."""

    def field(self) -> pa.Field:
        return pa.field(self.name, self.arrow, self.nullable)


def row_of(kind: Type) -> tuple[Column, Column | None]:
    """The root of the columns of a record, a struct, and the column of the value: the root too, or its only child where the value
    is no struct. Raises ``Unreadable`` for a schema that can't be mapped.
    """
    root = column = _Columns().column(kind, "value", (), 0)
    if root is None or root.nullable or not pa.types.is_struct(root.arrow):
        children = [root] if root else []
        root = Column(name="", arrow=_struct(children), children=children)
    for place, each in enumerate(flat(root)):
        each.place = place
    return root, column


def flat(root: Column) -> Iterator[Column]:
    """All columns, the children of a column side by side."""
    waiting = [root]
    yield root
    while waiting:
        column = waiting.pop(0)
        yield from column.children
        waiting.extend(column.children)


class _Columns:
    def __init__(self) -> None:
        self._count = 0

    def column(self, kind: Type, name: str, within: tuple[Type, ...], level: int) -> Column | None:
        """None for a type that is always null. ``within``: the records around it."""
        self._count += 1
        if self._count > _COLUMNS_MAX:
            raise Unreadable(f"the Avro schema has more than {_COLUMNS_MAX:,} columns")
        if level > LEVELS_MAX:
            raise Unreadable(f"the Avro schema is nested more than {LEVELS_MAX} levels deep")
        match kind:
            case Primitive():
                return _primitive(kind, name)
            case Enumeration():
                return Column(name=name, arrow=pa.string())
            case Fixed():
                return _fixed(kind, name)
            case Union():
                return self._union(kind, name, within, level)
            case Array():
                item = self._item(kind.items, "element", within, level)
                logical = LogicalType(item=item.logical) if item.logical != PLAIN else PLAIN
                return Column(name=name, arrow=pa.list_(item.field()), logical=logical, children=[item])
            case MapOf():
                return self._map(kind, name, within, level)
            case Record():
                return self._record(kind, name, within, level)

    def _item(self, kind: Type, name: str, within: tuple[Type, ...], level: int) -> Column:
        item = self.column(kind, name, within, level + 1)
        if item is None:
            raise Unreadable("an array or map of nulls can't be a column")
        return item

    def _map(self, kind: MapOf, name: str, within: tuple[Type, ...], level: int) -> Column:
        key, value = Column(name="key", arrow=pa.string()), self._item(kind.values, "value", within, level)
        entry = Column(name="entries", arrow=_struct([key, value]), children=[key, value])
        logical = LogicalType(item=value.logical) if value.logical != PLAIN else PLAIN
        arrow = pa.map_(pa.string(), value.field())
        return Column(name=name, arrow=arrow, logical=logical, children=[entry])

    def _record(self, kind: Record, name: str, within: tuple[Type, ...], level: int) -> Column:
        if kind in within:
            raise Unreadable(
                f"the record {kind.name!r} contains itself, so it can't be columns; a reader's schema may leave "
                "that field out"
            )
        made = [self.column(each.type, each.name, (*within, kind), level + 1) for each in kind.fields]
        children = [column for column in made if column is not None]
        logical = _logical_of(children, kind.meaning)
        return Column(name=name, arrow=_struct(children), logical=logical, children=children)

    def _union(self, kind: Union, name: str, within: tuple[Type, ...], level: int) -> Column | None:
        valued = {place: branch for place, branch in enumerate(kind.branches) if not _is_null(branch)}
        nullable = len(valued) < len(kind.branches)
        if not valued:
            return None
        branches = list(valued.values())
        if len(branches) == 1:
            column = self.column(branches[0], name, within, level)
        elif wider := _wider(branches):
            column = _primitive(Primitive(wider), name)
        else:
            column = self._members(valued, name, within, level)
        assert column is not None
        column.nullable = nullable
        return column

    def _members(self, valued: dict[int, Type], name: str, within: tuple[Type, ...], level: int) -> Column:
        members: dict[int, Column] = {}
        for place, branch in valued.items():
            column = self.column(branch, f"member_{unqualified(_name(branch)).lower()}", within, level + 1)
            assert column is not None
            column.nullable = True
            members[place] = column
        names = Counter(column.name for column in members.values())
        for taken, count in names.items():
            if count > 1:
                raise Unreadable(
                    f"{count} types of a union would be the field {taken!r}; their names differ too little"
                )
        children = list(members.values())
        logical = _logical_of(children)
        return Column(name=name, arrow=_struct(children), logical=logical, children=children, members=members)


def _struct(children: list[Column]) -> pa.DataType:
    return pa.struct([column.field() for column in children])


def _logical_of(children: list[Column], meaning: Meaning | None = None) -> LogicalType:
    fields = tuple((column.name, column.logical) for column in children if column.logical != PLAIN)
    kind = meaning.connect if meaning and meaning.connect else Kind.PLAIN
    return LogicalType(kind, fields=fields)


def _is_null(kind: Type) -> bool:
    return isinstance(kind, Primitive) and kind.name == "null"


def _wider(branches: list[Type]) -> str | None:
    if not all(isinstance(branch, Primitive) and branch.meaning == Meaning() for branch in branches):
        return None
    return _WIDER.get(frozenset(_name(branch) for branch in branches))


def _name(kind: Type) -> str:
    return kind.name if isinstance(kind, Primitive | Fixed | Enumeration | Record) else label(kind)


def _primitive(kind: Primitive, name: str) -> Column | None:
    if kind.name == "null":
        return None
    meaning = kind.meaning
    if meaning.logical in _TIMES:
        arrow, logical = _TIMES[meaning.logical]
        return Column(name=name, arrow=arrow, logical=logical)
    if meaning.logical == "decimal":
        return _decimal(meaning, name)
    if meaning.connect:
        return Column(name=name, arrow=_PRIMITIVES[kind.name], logical=LogicalType(meaning.connect))
    return Column(name=name, arrow=_SMALL.get(kind.bits, _PRIMITIVES[kind.name]))


def _fixed(kind: Fixed, name: str) -> Column:
    match kind.meaning.logical:
        case "decimal":
            return _decimal(kind.meaning, name)
        case "uuid":
            return Column(name=name, arrow=pa.string())
    return Column(name=name, arrow=pa.binary())


def _decimal(meaning: Meaning, name: str) -> Column:
    if meaning.precision <= _DECIMAL_DIGITS_MAX:
        return Column(name=name, arrow=pa.decimal128(meaning.precision, meaning.scale))
    return Column(name=name, arrow=pa.binary(), logical=LogicalType(Kind.DECIMAL_BYTES, scale=meaning.scale))
