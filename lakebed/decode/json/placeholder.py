"""Recognize the placeholder that Debezium sends for a value which its database did not give it.

PostgreSQL leaves unchanged large (TOASTed) values out of an update; other databases leave out LOBs. In their place Debezium sends
the text of ``unavailable.value.placeholder``, or what the type of the column makes of its bytes:

    text, json, xml, …          the text
    bytes                       the bytes; with ``binary.handling.mode`` their base64, their hexadecimal digits, or the text
    array of texts or of bytes  a list of that one element
    uuid[]                      a list of one UUID: that of version 3 of the bytes
    hstore                      a map from the text to the text, or the JSON of it
    array of numbers, of dates  a number for each byte, signed as in Java; of decimals, each has the byte as its unscaled value
    boolean[]                   for each byte whether it is not zero
    geometry, geography, point  a fixed place that is not on Earth, or a step from the North Pole; or the bytes as ``wkb``

Only PostgreSQL's connector reads ``hex:…`` as the bytes themselves, so a setting of that form stands for both readings.

A database holds such a value only if a user put it there on purpose. The exception is a ``boolean[]`` of as many trues as the
placeholder has bytes (28). It counts as the placeholder in updates only: events of other operations have all values.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import struct
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

from lakebed.decode.json.text import Number, Unreadable

SRID, NOWHERE = 4326, -99_999_999.0
"""Of a geometry in the place of an unavailable one; and both coordinates of a point in such a place."""
_EWKB_POINT, _WKB_POINT = 0x2000_0001, 1
_GEOMETRIES = (
    struct.pack("<BIIdd", 1, _EWKB_POINT, SRID, NOWHERE, NOWHERE),  # geometry
    struct.pack("<BIIdd", 1, _EWKB_POINT, SRID, 179.999999, 89.999999),  # geography
    struct.pack("<BIdd", 1, _WKB_POINT, NOWHERE, NOWHERE),  # point
)
_HEX = re.compile("hex:((?:[0-9a-fA-F]{2})+)")
_SCALES = range(39)


@dataclass(frozen=True, slots=True)
class Placeholder:
    """All forms of one placeholder. Values may be JSON as ``json.text.parse`` gives it, or Python's values of Arrow's types."""

    texts: frozenset[str]
    """In place of a text, and of bytes that are written as text."""
    raw: frozenset[bytes]
    """In place of bytes."""
    elements: frozenset[str | bytes]
    """The one element of a list."""
    numbers: frozenset[tuple[Decimal, ...]]
    """In place of arrays of numbers, at every scale."""
    firsts: frozenset[Decimal]
    """The first elements of these arrays."""
    truths: frozenset[tuple[bool, ...]]
    """In place of arrays of booleans."""
    members: Mapping[str, frozenset[Any]]
    """In place of geometries: what a member is. The first of these members that an object has decides."""

    @staticmethod
    @lru_cache(maxsize=16)
    def of(setting: str) -> Placeholder:
        """The placeholder of a connector whose ``unavailable.value.placeholder`` is this; of an empty text there is none."""
        raws = [setting.encode()] if setting else []
        if match := _HEX.fullmatch(setting):
            raws.append(bytes.fromhex(match[1]))
        texts = {form for raw in raws for form in _texts(raw)}
        uuids = {str(uuid.UUID(bytes=hashlib.md5(raw, usedforsecurity=False).digest(), version=3)) for raw in raws}
        signed = [struct.unpack(f"{len(raw)}b", raw) for raw in raws]
        geometries = {*_GEOMETRIES, *raws}
        members: dict[str, frozenset[Any]] = {
            "wkb": frozenset([*geometries, *(base64.b64encode(one).decode() for one in geometries)]),
            "x": frozenset([NOWHERE]),
            "y": frozenset([NOWHERE]),
            "srid": frozenset([SRID]),
        }
        numbers = {tuple(Decimal(n).scaleb(-scale) for n in one) for one in signed for scale in _SCALES}
        return Placeholder(
            texts=frozenset(texts),
            raw=frozenset(raws),
            elements=frozenset([*texts, *uuids, *raws]),
            numbers=frozenset(numbers),
            firsts=frozenset(one[0] for one in numbers),
            truths=frozenset(tuple(n != 0 for n in one) for one in signed),
            members=members if raws else {},
        )

    @property
    def lengths(self) -> frozenset[int]:
        """How long arrays of numbers and of booleans are."""
        return frozenset(map(len, self.raw))

    def stands_for(self, value: Any, *, in_update: bool = False) -> bool:
        """Whether the value is the placeholder. ``in_update``: whether it is of the new row of an update."""
        if isinstance(value, str):
            return value in self.texts
        if isinstance(value, bytes):
            return value in self.raw
        if isinstance(value, list):
            return self._is_list(value, in_update)
        return isinstance(value, dict) and self._is_object(value)

    def may_begin(self, element: Any) -> bool:
        """Whether a list that begins with the element may be the placeholder. This is much cheaper than to look at the list."""
        is_one = isinstance(element, str | bytes) and element in self.elements
        return is_one or isinstance(element, bool) or _number_of(element) in self.firsts

    def _is_list(self, value: list[Any], in_update: bool) -> bool:
        if len(value) == 1 and isinstance(value[0], str | bytes) and value[0] in self.elements:
            return True
        if len(value) not in self.lengths:
            return False
        if isinstance(value[0], bool):
            return in_update and all(isinstance(one, bool) for one in value) and tuple(value) in self.truths
        return tuple(map(_number_of, value)) in self.numbers

    def _is_object(self, value: dict[Any, Any]) -> bool:
        if len(value) == 1:
            [(key, item)] = value.items()
            if key in self.texts and item == key:
                return True
        wkb, nowhere = value.get("wkb"), self.members.get("x", ())
        if isinstance(wkb, str | bytes):
            return wkb in self.members.get("wkb", ())
        return all(_number_of(value.get(name)) in nowhere for name in ("x", "y"))


def _texts(raw: bytes) -> Iterable[str]:
    text = raw.decode("utf-8", "replace")
    yield text
    yield json.dumps({text: text}, ensure_ascii=False, separators=(",", ":"))
    yield base64.b64encode(raw).decode()
    yield base64.urlsafe_b64encode(raw).decode()
    yield raw.hex()
    yield raw.hex().upper()


def _number_of(value: Any) -> Decimal | None:
    """An element of an array of numbers: as it is, or as the unscaled bytes of a decimal, in base64 or with their scale."""
    match value:
        case bool():
            return None
        case int() | Decimal():
            return Decimal(value)
        case float():
            return Decimal(repr(value))
        case Number():
            try:
                return value.decimal()
            except Unreadable:
                return None
        case str():
            return _unscaled(value)
        case bytes():
            return Decimal(int.from_bytes(value, "big", signed=True)) if len(value) == 1 else None
        case {"scale": 0, "value": str() | bytes() as unscaled}:
            return _number_of(unscaled)
    return None


def _unscaled(text: str) -> Decimal | None:
    """The decimal of one byte in base64."""
    try:
        return _number_of(base64.b64decode(text, validate=True)) if len(text) == 4 else None
    except ValueError:
        return None
