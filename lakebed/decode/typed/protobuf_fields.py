"""From the descriptor of a Protobuf message to columns: the tree of its fields.

A field has two types. ``raw`` is what the wire says: an enum is its number, a Timestamp a struct of seconds and nanoseconds.
``type`` is the natural type of the column (``protobuf_values`` makes it from ``raw``).

    scalars       as they are; uint32 is int64, uint64 is decimal(20, 0)
    enum          string: the name of the value; of an open enum the number, as text, where it has no name
    message       struct; one without fields is a boolean that is true; one that contains itself is refused
    map           map with keys of the scalar's type
    Timestamp     timestamp[us, UTC]; what is below a microsecond is cut
    Duration      decimal(21, 9): seconds
    wrappers      the value, or null (Int32Value and so on)
    Struct        string: JSON; also Value and ListValue
    google.type.Date, TimeOfDay    date32; int64 with Kind.TIME_NS
    confluent.type.Decimal         decimal, if the schema gives precision and scale (``confluent.field_meta``)

Absence: a field without presence has the zero of its type. A field with presence is null, or has the default that proto2
declares. A list or map is empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from typing import Any

import pyarrow as pa
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor

from lakebed.decode.decoder import LEVELS_MAX
from lakebed.decode.json.connect_types import PLAIN, Kind, LogicalType
from lakebed.decode.json.text import Unreadable

_FIELDS_MAX = 10_000
"""Of a message with all messages in it."""


class Encoding(IntEnum):
    """``enum encoding`` of protobuf_to_arrow.c."""

    NESTED, VARINT, ZIGZAG, FIXED, DELIMITED, GROUP, ENTRY = range(7)


class _Absence(IntEnum):
    """``enum absence`` of protobuf_to_arrow.c: what a message without the field says of it."""

    NULL, ZERO, ERROR = range(3)


class Meaning(Enum):
    """How ``type`` is made of ``raw``, where it is not by casts."""

    PLAIN = "plain"
    ENUM = "enum"
    EMPTY = "a message without fields"
    WRAPPER = "a wrapper"
    JSON = "google.protobuf.Struct, Value or ListValue"
    TIMESTAMP = "google.protobuf.Timestamp"
    DURATION = "google.protobuf.Duration"
    DATE = "google.type.Date"
    TIME = "google.type.TimeOfDay"
    DECIMAL = "confluent.type.Decimal"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtobufField:
    """A field of a message; or an element of a list, or the entry of a map, whose entry has the children key and value."""

    name: str
    descriptor: Any
    raw: pa.DataType
    type: pa.DataType
    encoding: Encoding
    absence: _Absence = _Absence.NULL
    meaning: Meaning = Meaning.PLAIN
    children: tuple[ProtobufField, ...] = ()
    logical_type: LogicalType = PLAIN
    default: Any = None
    """What an absent value is instead of null, as a value of ``raw``."""
    nullable: bool = True

    @property
    def number(self) -> int:
        return int(self.descriptor.number)

    @property
    def is_list(self) -> bool:
        return bool(pa.types.is_list(self.raw))

    @property
    def is_map(self) -> bool:
        return bool(pa.types.is_map(self.raw))

    @property
    def nodes(self) -> int:
        """Itself and all below it that are null where it is."""
        return 1 + (sum(child.nodes for child in self.children) if pa.types.is_struct(self.raw) else 0)

    def arrow(self) -> pa.Field:
        return pa.field(self.name, self.type, self.nullable)


def fields_of_message(descriptor: Any) -> tuple[ProtobufField, ...]:
    """The fields of the message that records are. Raises ``Unreadable`` where no columns can hold them."""
    fields = _Compiler().members(descriptor, "", (descriptor.full_name,))
    if not fields:
        raise Unreadable(f"the Protobuf message {descriptor.full_name} has no fields")
    return fields


_SCALARS: Mapping[int, tuple[pa.DataType, Encoding]] = {
    FieldDescriptor.TYPE_DOUBLE: (pa.float64(), Encoding.FIXED),
    FieldDescriptor.TYPE_FLOAT: (pa.float32(), Encoding.FIXED),
    FieldDescriptor.TYPE_INT64: (pa.int64(), Encoding.VARINT),
    FieldDescriptor.TYPE_UINT64: (pa.uint64(), Encoding.VARINT),
    FieldDescriptor.TYPE_INT32: (pa.int32(), Encoding.VARINT),
    FieldDescriptor.TYPE_FIXED64: (pa.uint64(), Encoding.FIXED),
    FieldDescriptor.TYPE_FIXED32: (pa.uint32(), Encoding.FIXED),
    FieldDescriptor.TYPE_BOOL: (pa.bool_(), Encoding.VARINT),
    FieldDescriptor.TYPE_STRING: (pa.string(), Encoding.DELIMITED),
    FieldDescriptor.TYPE_BYTES: (pa.binary(), Encoding.DELIMITED),
    FieldDescriptor.TYPE_UINT32: (pa.uint32(), Encoding.VARINT),
    FieldDescriptor.TYPE_ENUM: (pa.int32(), Encoding.VARINT),
    FieldDescriptor.TYPE_SFIXED32: (pa.int32(), Encoding.FIXED),
    FieldDescriptor.TYPE_SFIXED64: (pa.int64(), Encoding.FIXED),
    FieldDescriptor.TYPE_SINT32: (pa.int32(), Encoding.ZIGZAG),
    FieldDescriptor.TYPE_SINT64: (pa.int64(), Encoding.ZIGZAG),
}
_NATURAL = {pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0)}
_SMALL = {"int8": pa.int8(), "int16": pa.int16()}
_JSON_MESSAGES = ("google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue")
_WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
_LONG, _INT, _UINT, _BYTES = (
    FieldDescriptor.TYPE_INT64,
    FieldDescriptor.TYPE_INT32,
    FieldDescriptor.TYPE_UINT32,
    FieldDescriptor.TYPE_BYTES,
)
_KNOWN: Mapping[str, tuple[Meaning, pa.DataType, Mapping[str, int]]] = {
    "google.protobuf.Timestamp": (Meaning.TIMESTAMP, pa.timestamp("us", "UTC"), {"seconds": _LONG, "nanos": _INT}),
    "google.protobuf.Duration": (Meaning.DURATION, pa.decimal128(21, 9), {"seconds": _LONG, "nanos": _INT}),
    "google.type.Date": (Meaning.DATE, pa.date32(), {"year": _INT, "month": _INT, "day": _INT}),
    "google.type.TimeOfDay": (
        Meaning.TIME,
        pa.int64(),
        {"hours": _INT, "minutes": _INT, "seconds": _INT, "nanos": _INT},
    ),
}
_DECIMAL = {"value": _BYTES, "precision": _UINT, "scale": _INT}
_VARIABLE_DECIMAL = {"scale": _INT, "value": _BYTES}


class _Compiler:
    def __init__(self) -> None:
        self._left = _FIELDS_MAX

    def members(self, message: Any, path: str, inside: tuple[str, ...]) -> tuple[ProtobufField, ...]:
        """The fields of a message. ``inside``: the names of the messages that it is in, and its own."""
        return tuple(self._field(field, f"{path}{field.name}", inside) for field in message.fields)

    def _field(self, field: Any, path: str, inside: tuple[str, ...]) -> ProtobufField:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            return self._map(field, path, inside)
        value = self._value(field, path, inside)
        if not field.is_repeated:
            return self._with_absence(field, value)
        element = replace(value, name="element", absence=_Absence.ERROR, nullable=False)
        return ProtobufField(
            name=field.name,
            descriptor=field,
            raw=pa.list_(pa.field("element", element.raw)),
            type=pa.list_(element.arrow()),
            encoding=Encoding.NESTED,
            absence=_Absence.ZERO,
            children=(element,),
            logical_type=PLAIN if element.logical_type == PLAIN else LogicalType(item=element.logical_type),
            nullable=False,
        )

    def _map(self, field: Any, path: str, inside: tuple[str, ...]) -> ProtobufField:
        key, value = (self._value(one, f"{path}.{one.name}", inside) for one in field.message_type.fields)
        key = replace(key, absence=_Absence.ZERO, nullable=False)
        scalar = field.message_type.fields[1].message_type is None
        value = replace(value, absence=_Absence.ZERO if scalar else _Absence.ERROR, nullable=False)
        self._spend(path)
        entry = ProtobufField(
            name="entries",
            descriptor=field,
            raw=pa.struct([("key", key.raw), ("value", value.raw)]),
            type=pa.struct([key.arrow(), value.arrow()]),
            encoding=Encoding.ENTRY,
            absence=_Absence.ERROR,
            children=(key, value),
            nullable=False,
        )
        return ProtobufField(
            name=field.name,
            descriptor=field,
            raw=pa.map_(key.raw, value.raw),
            type=pa.map_(key.type, pa.field("value", value.type, nullable=False)),
            encoding=Encoding.NESTED,
            absence=_Absence.ZERO,
            children=(entry,),
            logical_type=PLAIN if value.logical_type == PLAIN else LogicalType(item=value.logical_type),
            nullable=False,
        )

    def _with_absence(self, field: Any, value: ProtobufField) -> ProtobufField:
        if field.is_required:
            return replace(value, absence=_Absence.ERROR, nullable=False)
        if not field.has_presence:
            return replace(value, absence=_Absence.ZERO, nullable=False)
        if field.has_default_value and field.containing_oneof is None:
            return replace(value, default=field.default_value, nullable=False)
        return value

    def _value(self, field: Any, path: str, inside: tuple[str, ...]) -> ProtobufField:
        """One value of the field, as if it were neither repeated nor absent."""
        self._spend(path)
        if field.message_type is not None:
            return self._message(field, path, inside)
        raw, encoding = _SCALARS[field.type]
        natural = _NATURAL.get(raw, raw)
        if field.enum_type is not None:
            return ProtobufField(
                name=field.name, descriptor=field, raw=raw, type=pa.string(), encoding=encoding, meaning=Meaning.ENUM
            )
        if field.type == _INT:
            natural = _SMALL.get(_parameters(field).get("connect.type", ""), natural)
        return ProtobufField(name=field.name, descriptor=field, raw=raw, type=natural, encoding=encoding)

    def _message(self, field: Any, path: str, inside: tuple[str, ...]) -> ProtobufField:
        message = field.message_type
        is_group = field.type == FieldDescriptor.TYPE_GROUP
        if message.full_name in _JSON_MESSAGES and not is_group:
            return ProtobufField(
                name=field.name,
                descriptor=field,
                raw=pa.binary(),
                type=pa.string(),
                encoding=Encoding.DELIMITED,
                meaning=Meaning.JSON,
            )
        if message.full_name in inside:
            raise Unreadable(
                f"the Protobuf field {path!r} can't become a column: its message {message.full_name} contains itself, and"
                " columns nest only so deep as their type says"
            )
        if len(inside) >= LEVELS_MAX:
            raise Unreadable(
                f"the Protobuf field {path[:200]!r} can't become a column: it is nested more than {LEVELS_MAX} deep"
            )
        children = self.members(message, f"{path}.", (*inside, message.full_name))
        meaning, natural, logical_type = _natural(field, children)
        return ProtobufField(
            name=field.name,
            descriptor=field,
            raw=pa.struct([pa.field(child.name, child.raw) for child in children]),
            type=natural,
            encoding=Encoding.GROUP if is_group else Encoding.NESTED,
            meaning=meaning,
            children=children,
            logical_type=logical_type,
        )

    def _spend(self, path: str) -> None:
        self._left -= 1
        if self._left < 0:
            raise Unreadable(
                f"the Protobuf schema has more than {_FIELDS_MAX} fields, counting those of its nested messages ({path[:200]})"
            )


def _natural(field: Any, children: tuple[ProtobufField, ...]) -> tuple[Meaning, pa.DataType, LogicalType]:
    """What a message is as a column."""
    name, types = field.message_type.full_name, {child.name: child.descriptor.type for child in children}
    if not children:
        return Meaning.EMPTY, pa.bool_(), PLAIN
    if name in _WRAPPERS and list(types) == ["value"]:
        return Meaning.WRAPPER, children[0].type, PLAIN
    if name in _KNOWN and types == _KNOWN[name][2]:
        meaning, natural, _ = _KNOWN[name]
        return meaning, natural, LogicalType(Kind.TIME_NS) if meaning is Meaning.TIME else PLAIN
    if name == "confluent.type.Decimal" and types == _DECIMAL:
        return _decimal(field)
    if name.rpartition(".")[2] == "VariableScaleDecimal" and types == _VARIABLE_DECIMAL:
        return Meaning.PLAIN, pa.struct([child.arrow() for child in children]), LogicalType(Kind.DECIMAL_VARIABLE)
    members = tuple((child.name, child.logical_type) for child in children if child.logical_type != PLAIN)
    return (
        Meaning.PLAIN,
        pa.struct([child.arrow() for child in children]),
        LogicalType(fields=members) if members else PLAIN,
    )


def _decimal(field: Any) -> tuple[Meaning, pa.DataType, LogicalType]:
    """A decimal of the schema's precision and scale; else its unscaled bytes; else these and the scale of each value."""
    parameters = _parameters(field)
    scale, precision = _whole(parameters.get("scale")), _whole(parameters.get("precision"))
    if scale is None:
        parts = [pa.field("scale", pa.int32(), False), pa.field("value", pa.binary(), False)]
        return Meaning.DECIMAL, pa.struct(parts), LogicalType(Kind.DECIMAL_VARIABLE)
    if precision is not None and 0 < precision <= 38 and 0 <= scale <= precision:
        return Meaning.DECIMAL, pa.decimal128(precision, scale), PLAIN
    return Meaning.DECIMAL, pa.binary(), LogicalType(Kind.DECIMAL_BYTES, scale=scale)


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.lstrip("-").isdigit() and len(text) < 6 else None


def _parameters(field: Any) -> Mapping[str, str]:
    """What Kafka Connect's converter says of a field: ``connect.type``, ``precision``, ``scale``."""
    options = field.GetOptions().SerializeToString()
    if not options:
        return {}
    pool = field.file.pool
    try:
        known = message_factory.GetMessageClass(pool.FindMessageTypeByName("google.protobuf.FieldOptions"))
        extension = pool.FindExtensionByName("confluent.field_meta")
        return dict(known.FromString(options).Extensions[extension].params)
    except (KeyError, AttributeError):  # the schema does not import confluent/meta.proto, or another one
        return {}
