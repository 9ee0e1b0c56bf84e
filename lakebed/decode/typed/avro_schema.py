"""Schemas of Avro: from their JSON to types.

https://avro.apache.org/docs/1.12.0/specification/ says what a schema is. As it demands, a logical type that is unknown, or not
valid where it stands, is ignored: its values are read as the type below. Names are compared as written; any form will do,
because a name of Debezium's may be any column's.

**Default values** of a schema, which are JSON, become the Avro bytes of their types, and values of a row.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from lakebed.decode.debezium.inline_schemas import ANY_VALUE, is_zero
from lakebed.decode.decoder import LEVELS_MAX
from lakebed.decode.json.connect_types import KIND_OF_NAME, Kind
from lakebed.decode.json.text import Unreadable

_PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_TIMESTAMPS = ("timestamp-millis", "timestamp-micros", "timestamp-nanos")
_LOGICAL_TYPES = {
    **dict.fromkeys((*_TIMESTAMPS, *(f"local-{name}" for name in _TIMESTAMPS), "time-micros"), ("long",)),
    **dict.fromkeys(("date", "time-millis"), ("int",)),
    "uuid": ("string", "fixed"),
    "decimal": ("bytes", "fixed"),
}
"""Logical types that change how a value is read, and the types that they are valid for."""
SMALL = {"int8": 8, "int16": 16}
_PRECISION_MAX = 1_000_000
_CONNECT_PRECISION = 64
"""What Kafka Connect's converter says of a decimal whose precision nobody set."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a value means beyond its type: Avro's logical type, or else the name that Kafka Connect gave it."""

    logical: str | None = None
    connect: Kind | None = None
    precision: int = 0
    scale: int = 0


NO_MEANING = Meaning()


@dataclass(frozen=True, slots=True, eq=False)
class Primitive:
    name: str
    meaning: Meaning = NO_MEANING
    bits: int = 0
    """Of an int that Kafka Connect says to be smaller: 8 or 16; else 0."""


@dataclass(frozen=True, slots=True, eq=False)
class Fixed:
    name: str
    aliases: frozenset[str]
    size: int
    meaning: Meaning = NO_MEANING


@dataclass(frozen=True, slots=True, eq=False)
class Enumeration:
    name: str
    aliases: frozenset[str]
    symbols: tuple[str, ...]
    default: str | None


@dataclass(frozen=True, slots=True, eq=False)
class Array:
    items: Type


@dataclass(frozen=True, slots=True, eq=False)
class MapOf:
    """Keys are strings."""

    values: Type


@dataclass(frozen=True, slots=True, eq=False)
class Union:
    branches: tuple[Type, ...]


MISSING: Final = object()
"""The default of a field that has none."""


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    name: str
    aliases: frozenset[str]
    type: Type
    default: object


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """``fields`` are filled when the record is read to its end: a record may contain itself."""

    name: str
    aliases: frozenset[str]
    meaning: Meaning = NO_MEANING
    fields: list[Field] = field(default_factory=list)


Type = Primitive | Fixed | Enumeration | Array | MapOf | Union | Record
_Named = Fixed | Enumeration | Record


def parse_schema(text: str, references: Mapping[str, str] | None = None) -> Type:
    """The type that a schema describes. ``references`` come before those that need them. Raises ``Unreadable``."""
    names = _Names()
    for name, reference in (references or {}).items():
        _parsed(reference, f"the Avro schema {name!r}", names)
    return _parsed(text, "the Avro schema", names)


def label(kind: Type) -> str:
    """The type as an error names it."""
    match kind:
        case Primitive():
            return kind.meaning.logical or kind.name
        case Array():
            return "array"
        case MapOf():
            return "map"
        case Union():
            return f"[{', '.join(map(label, kind.branches))}]"
        case _:
            return kind.name


def unqualified(name: str) -> str:
    return name.rpartition(".")[2]


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


class _Names:
    """The named types so far, with the JSON that defined each."""

    def __init__(self) -> None:
        self.types: dict[str, tuple[object, _Named]] = {}


def _parsed(text: str, what: str, names: _Names) -> Type:
    try:
        schema = json.loads(text)
        json.dumps(schema, ensure_ascii=False).encode()  # no half of a surrogate pair
        return _type(schema, "", names, 0)
    except RecursionError:
        raise Unreadable(f"{what} is nested too deep") from None
    except Unreadable as error:
        raise Unreadable(f"{what} can't be used: {error}") from None
    except ValueError as error:
        raise Unreadable(f"{what} is not JSON: {error}") from None


def _type(schema: object, namespace: str, names: _Names, level: int) -> Type:
    if level > LEVELS_MAX:
        raise Unreadable(f"it is nested more than {LEVELS_MAX} levels deep")
    if isinstance(schema, str):
        return Primitive(schema) if schema in _PRIMITIVES else _named(schema, namespace, names)
    if isinstance(schema, list):
        return _union([_type(branch, namespace, names, level + 1) for branch in schema])
    if not isinstance(schema, dict):
        raise Unreadable(f"{_shown(schema)} is no type")
    kind = schema.get("type")
    match kind:
        case str() if kind in _PRIMITIVES:
            bits = SMALL.get(str(schema.get("connect.type")), 0) if kind == "int" else 0
            return Primitive(kind, _meaning(schema, kind), bits)
        case "array":
            return Array(_type(schema.get("items"), namespace, names, level + 1))
        case "map":
            return MapOf(_type(schema.get("values"), namespace, names, level + 1))
        case "record" | "error" | "enum" | "fixed":
            return _definition(schema, namespace, names, level)
        case None:
            raise Unreadable("an object in it has no 'type'")
    return _type(kind, namespace, names, level + 1)


def _named(name: str, namespace: str, names: _Names) -> _Named:
    full = name if "." in name or not namespace else f"{namespace}.{name}"
    found = names.types.get(full) or names.types.get(name)
    if found is None:
        raise Unreadable(f"it names a type {full!r} that neither it nor its references define")
    return found[1]


def _union(branches: Sequence[Type]) -> Union:
    kinds = [kind.name if isinstance(kind, Primitive | _Named) else label(kind) for kind in branches]
    for kind, branch in zip(kinds, branches, strict=True):
        if isinstance(branch, Union):
            raise Unreadable("a union holds a union")
        if kinds.count(kind) > 1:
            raise Unreadable(f"a union has {kind!r} twice")
    if not branches:
        raise Unreadable("a union has no types")
    return Union(tuple(branches))


def _definition(schema: dict[str, Any], outer: str, names: _Names, level: int) -> _Named:
    name, namespace = schema.get("name"), schema.get("namespace", outer)
    if not isinstance(name, str) or not name or not isinstance(namespace, str):
        raise Unreadable(f"a {schema['type']} has no name")
    full = name if "." in name or not namespace else f"{namespace}.{name}"
    namespace = full.rpartition(".")[0]
    before = names.types.get(full)
    if before is not None:
        if before[0] != schema:
            raise Unreadable(f"the type {full!r} is defined twice")
        return before[1]
    aliases = frozenset(
        alias if "." in alias or not namespace else f"{namespace}.{alias}"
        for alias in _texts(schema.get("aliases", []))
    )
    made: _Named
    match schema["type"]:
        case "fixed":
            size = schema.get("size")
            if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 1 << 31:
                raise Unreadable(f"the fixed {full!r} has no size")
            made = Fixed(full, aliases, size, _meaning(schema, "fixed", size))
        case "enum":
            made = _enumeration(full, aliases, schema)
        case _:
            made = Record(full, aliases, _meaning(schema, "record"))
    names.types[full] = schema, made
    if isinstance(made, Record):
        _add_fields(made, schema, namespace, names, level)
    return made


def _enumeration(name: str, aliases: frozenset[str], schema: dict[str, Any]) -> Enumeration:
    symbols, default = tuple(_texts(schema.get("symbols"))), schema.get("default")
    if len(set(symbols)) < len(symbols):
        raise Unreadable(f"the enum {name!r} has a symbol twice")
    if default is not None and default not in symbols:
        raise Unreadable(f"the default of the enum {name!r} is none of its symbols")
    return Enumeration(name, aliases, symbols, default)


def _add_fields(record: Record, schema: dict[str, Any], namespace: str, names: _Names, level: int) -> None:
    fields, seen = schema.get("fields"), set()
    if not isinstance(fields, list):
        raise Unreadable(f"the record {record.name!r} has no fields")
    for described in fields:
        name = described.get("name") if isinstance(described, dict) else None
        if not isinstance(name, str) or not name:
            raise Unreadable(f"a field of the record {record.name!r} has no name")
        if name in seen:
            raise Unreadable(f"the record {record.name!r} has a field {name!r} twice")
        seen.add(name)
        kind = _type(described.get("type"), namespace, names, level + 1)
        aliases = frozenset(_texts(described.get("aliases", [])))
        record.fields.append(Field(name, aliases, kind, described.get("default", MISSING)))


def _texts(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise Unreadable(f"{_shown(value)} is no list of names")
    return cast("list[str]", value)


def _meaning(schema: dict[str, Any], kind: str, size: int = 0) -> Meaning:
    logical = schema.get("logicalType")
    if isinstance(logical, str) and kind in _LOGICAL_TYPES.get(logical, ()):
        if logical == "decimal":
            if made := _decimal(schema, size if kind == "fixed" else None):
                return made
        elif logical != "uuid" or kind == "string" or size == 16:
            return Meaning(logical)
    name = schema.get("connect.name")
    connect = KIND_OF_NAME.get(name) if isinstance(name, str) else None
    if connect is None or not _stores(connect, kind):
        return NO_MEANING
    if connect is not Kind.DECIMAL_BYTES:
        return Meaning(connect=connect)
    parameters = schema.get("connect.parameters")
    parameters = parameters if isinstance(parameters, dict) else {}
    scale, precision = parameters.get("scale"), parameters.get("connect.decimal.precision", str(_CONNECT_PRECISION))
    if not (isinstance(scale, str) and scale.isdecimal() and isinstance(precision, str) and precision.isdecimal()):
        return NO_MEANING
    return Meaning("decimal", precision=int(precision), scale=int(scale))


def _stores(connect: Kind, kind: str) -> bool:
    """Whether Kafka Connect stores the meaning in this type."""
    match connect:
        case Kind.DECIMAL_BYTES | Kind.BYTES:
            return kind == "bytes"
        case Kind.DECIMAL_VARIABLE:
            return kind == "record"
        case Kind.TIMESTAMP_TEXT:
            return kind == "string"
        case _:
            return kind in ("int", "long")


def _decimal(schema: dict[str, Any], size: int | None) -> Meaning | None:
    """A decimal that is valid: its digits fit its bytes, and no more of them are behind the point than it has."""
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if (
        not isinstance(precision, int)
        or not isinstance(scale, int)
        or isinstance(precision, bool)
        or isinstance(scale, bool)
    ):
        return None
    if not 0 <= scale <= precision or not 0 < precision <= _PRECISION_MAX:
        return None
    if size is not None and precision * math.log2(10) > 8 * size - 1:
        return None
    return Meaning("decimal", precision=precision, scale=scale)


_BITS = {"int": 31, "long": 63}


def encoded(kind: Type, value: object, level: int = 0) -> bytes:
    """Raises ``Unreadable`` if the value is none of the type."""
    if level > LEVELS_MAX:
        raise Unreadable("a default value is nested too deep")
    match kind:
        case Primitive():
            return _primitive(kind, value)
        case Fixed() if isinstance(value, str):
            raw = _raw(value, kind)
            if len(raw) == kind.size:
                return raw
        case Enumeration() if isinstance(value, str) and value in kind.symbols:
            return number(kind.symbols.index(value))
        case Array() if isinstance(value, list):
            return _blocks([encoded(kind.items, item, level + 1) for item in value])
        case MapOf() if isinstance(value, dict):
            pairs = value.items()
            return _blocks([_text(key.encode()) + encoded(kind.values, item, level + 1) for key, item in pairs])
        case Record() if isinstance(value, dict):
            return b"".join(_field(kind, value, level))
        case Union():
            for place, branch in enumerate(kind.branches):
                try:
                    return number(place) + encoded(branch, value, level + 1)
                except Unreadable:
                    continue
    raise _wrong(kind, value)


def defaults_of_structs(kind: Type) -> dict[str, dict[str, object]]:
    """``ReaderOfDefaults.defaults`` of a record."""
    found: dict[str, dict[str, object]] = {}
    for each in kind.fields if isinstance(kind, Record) else ():
        branches = each.type.branches if isinstance(each.type, Union) else (each.type,)
        for record in branches:
            if isinstance(record, Record):
                found[each.name] = {
                    one.name: one.default if _is_simple(one.type) or is_zero(one.default) else ANY_VALUE
                    for one in record.fields
                    if one.default is not MISSING and one.default is not None
                }
    return found


def _is_simple(kind: Type) -> bool:
    """Whether JSON has values of a row as it has defaults."""
    branches = kind.branches if isinstance(kind, Union) else (kind,)
    texts = ("null", "boolean", "int", "long", "string")
    return all(isinstance(one, Primitive) and one.name in texts and one.meaning == NO_MEANING for one in branches)


def number(value: int) -> bytes:
    """A whole number of up to 64 bits, as Avro writes an int or long."""
    left = (value << 1) ^ (value >> 63)
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def _field(kind: Record, value: dict[str, object], level: int) -> list[bytes]:
    parts = []
    for each in kind.fields:
        given = value.get(each.name, each.default)
        if given is MISSING:
            raise Unreadable(f"a default value of {kind.name!r} lacks the field {each.name!r}")
        parts.append(encoded(each.type, given, level + 1))
    return parts


def _primitive(kind: Primitive, value: object) -> bytes:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    match kind.name:
        case "null" if value is None:
            return b""
        case "boolean" if isinstance(value, bool):
            return bytes([value])
        case "int" | "long" if is_whole and -(1 << _BITS[kind.name]) <= value < 1 << _BITS[kind.name]:  # type: ignore[operator]
            return number(value)  # type: ignore[arg-type]
        case "float" | "double" if is_whole or isinstance(value, float):
            try:
                return struct.pack("<f" if kind.name == "float" else "<d", value)
            except OverflowError:
                raise _wrong(kind, value) from None
        case "bytes" if isinstance(value, str):
            return _text(_raw(value, kind))
        case "string" if isinstance(value, str):
            return _text(value.encode())
    raise _wrong(kind, value)


def _raw(value: str, kind: Type) -> bytes:
    """Bytes are written as a text of characters up to U+00FF."""
    try:
        return value.encode("latin-1")
    except UnicodeEncodeError:
        raise _wrong(kind, value) from None


def _text(raw: bytes) -> bytes:
    return number(len(raw)) + raw


def _blocks(items: list[bytes]) -> bytes:
    return (number(len(items)) + b"".join(items) if items else b"") + b"\0"


def _wrong(kind: Type, value: object) -> Unreadable:
    return Unreadable(f"a default value of type {label(kind)!r} can't be {json.dumps(value)[:80]}")
