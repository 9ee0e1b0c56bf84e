"""Default values of a schema, which are JSON: as the Avro bytes of their types, and as values of a row."""

from __future__ import annotations

import json
import struct

from lakebed.decode.avro.schema import (
    MISSING,
    NO_MEANING,
    Array,
    Enumeration,
    Fixed,
    MapOf,
    Primitive,
    Record,
    Type,
    Union,
    label,
)
from lakebed.decode.debezium.old_rows import ANY_VALUE, is_zero
from lakebed.decode.json.text import Unreadable
from lakebed.decode.record_format import LEVELS_MAX

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
