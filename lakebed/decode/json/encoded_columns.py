"""Whole columns of texts that encode bytes or decimals, decoded at once and never to another value; and the text that stands for
a value that the database did not give.

**Bytes** are decoded from strings, and decimals from strings or bytes. Most strings are base64.

The standard library decodes. One call per string would dominate the cost, so decimals are decoded many in one call:

1.  Rows are grouped by the length of their string and by its padding: all strings of a group decode to the same number
    of bytes.
2.  The padding is replaced by zero bits, so that the strings of a group, joined, are valid base64 too.
3.  The decoded bytes form a matrix with one row per string; the bytes that the zero bits produced are cut off.
4.  The big-endian two's complement bytes are sign-extended to the 16 bytes of Arrow's decimal128.

**Decimals** get a precision and scale. Arrow checks a decimal's precision. But where it raises the scale, it may not notice
that the product overflows the type's bits. So nothing is rescaled here that could overflow:

    1.  Digits are read into a type that has room for every number of so many digits after the shift by the scale.
    2.  From there a cast checks the rest. Before a cast from a decimal of a lower scale, the size of the numbers is
        checked.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import struct
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.decode.json.text import Number, Unreadable

_DIGITS_MAX = 38


class _DoesNotFit(ValueError):
    """At least one decimal of the column does not fit its type, or may not fit."""


def parsed_as(target: pa.Decimal128Type) -> pa.DataType:
    """The type of ``target``'s scale that Arrow may read digits as; Arrow refuses a number with more digits than its precision.

    ``digits + scale`` is at most what the type's bits hold, so a shift by the scale does not overflow. The type is never
    ``target`` itself: then Arrow would do no cast, and so no check.
    """
    if target.precision + target.scale < _DIGITS_MAX:
        return pa.decimal128(_DIGITS_MAX - target.scale, target.scale)
    return pa.decimal256(_DIGITS_MAX, target.scale)


def of_digits(texts: pa.StringArray, target: pa.Decimal128Type) -> pa.Decimal128Array:
    """Decimals from texts of digits, with or without a sign and a point. Raises ``ValueError``."""
    longest = pc.max(pc.binary_length(texts)).as_py() or 0
    if longest > _DIGITS_MAX:
        raise _DoesNotFit(f"perhaps more than {_DIGITS_MAX} digits")
    narrow = longest + target.scale <= _DIGITS_MAX
    wide = pa.decimal128(_DIGITS_MAX, target.scale) if narrow else pa.decimal256(2 * _DIGITS_MAX, target.scale)
    return texts.cast(wide).cast(target)


def fitted(values: pa.Decimal128Array, target: pa.Decimal128Type) -> pa.Decimal128Array:
    """The same numbers in another precision and scale. Raises ``ValueError``."""
    if values.type == target:
        return values
    limit = target.precision - target.scale + values.type.scale
    if values.type.scale < target.scale and limit < _DIGITS_MAX:
        bound = pa.scalar(Decimal((0, (1,), limit - values.type.scale)), pa.decimal128(_DIGITS_MAX, values.type.scale))
        low, high = pc.less(values, pc.negate(bound)), pc.greater(values, bound)
        if pc.any(pc.or_(low, high)).as_py():
            raise _DoesNotFit(f"numbers too large for {target}")
    return values.cast(target)


_LENGTHS_MAX = 64
_LENGTH_BYTES_MAX = 256
"""With more lengths, or longer strings, values are decoded one by one: the matrices would be many, or large."""

BinaryForm = Literal["base64", "base64-url-safe", "hex"]
"""How a string holds bytes; the names are those of Debezium's ``binary.handling.mode``."""

_URL_SAFE = str.maketrans("-_+/", "+/==")
_HEX = re.compile("(?:[0-9a-fA-F]{2})*")

_Matrix = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
"""(Row numbers, bytes of those rows as a matrix); several have every row that is not null."""

_PAD = ord("=")
_ZERO_BITS = ord("A")


class NotBase64(ValueError):
    """At least one string of the column is not base64, or is too long for a decimal."""


def bytes_of(text: str, form: BinaryForm) -> bytes:
    """The bytes that a string holds. Raises ``ValueError``."""
    if form == "hex":
        if not _HEX.fullmatch(text):
            raise ValueError("not pairs of hexadecimal digits")
        return bytes.fromhex(text)
    if form == "base64-url-safe":
        text = text.translate(_URL_SAFE)
    return base64.b64decode(text, validate=True)


def to_binary(strings: pa.StringArray, form: BinaryForm = "base64") -> pa.BinaryArray:
    """Decodes every string; nulls stay null."""
    try:
        decoded = [None if text is None else bytes_of(text, form) for text in strings.to_pylist()]
    except ValueError as error:
        raise NotBase64(str(error)) from error
    return pa.array(decoded, pa.binary())


def to_decimal(strings: pa.StringArray, scale: int) -> pa.Decimal128Array:
    """Decodes every string as the unscaled value of a decimal128(38, scale); nulls stay null."""
    return _decimals(strings, _matrices(strings), scale)


def decimals_of_bytes(values: pa.BinaryArray, scale: int) -> pa.Decimal128Array:
    """Each value as the unscaled big-endian bytes of a decimal128(38, scale); nulls stay null. Raises ``NotBase64``."""
    return _decimals(values, _matrices_of_bytes(values), scale)


def _decimals(values: pa.Array, matrices: Iterable[_Matrix], scale: int) -> pa.Decimal128Array:
    words = np.zeros((len(values), 16), np.uint8)
    for rows, raw in matrices:
        width = raw.shape[1]
        if not 0 < width <= 15:
            raise NotBase64(f"a decimal of {width} bytes")
        words[rows] = np.where(raw[:, :1] & 0x80, np.uint8(255), np.uint8(0))
        words[rows, :width] = raw[:, ::-1]
    validity = None
    if values.null_count:
        validity = pa.array(values.is_valid()).buffers()[1]
    return pa.Array.from_buffers(pa.decimal128(38, scale), len(values), [validity, pa.py_buffer(words)])


def _buffers(values: pa.Array) -> tuple[np.ndarray[Any, Any], ...]:
    """Of texts or bytes: their offsets, their bytes, and for each its length and whether it is no null."""
    values = values if values.offset == 0 else pa.concat_arrays([values])
    offsets = np.frombuffer(values.buffers()[1], np.int32)[: len(values) + 1].astype(np.int64)
    data = np.frombuffer(values.buffers()[2] or b"", np.uint8)
    return offsets, data, np.diff(offsets), np.asarray(values.is_valid())


def _matrices_of_bytes(values: pa.BinaryArray) -> Iterator[_Matrix]:
    offsets, data, lengths, valid = _buffers(values)
    distinct = np.unique(lengths[valid])
    if len(distinct) and distinct[-1] > 15:
        raise NotBase64(f"a decimal of {distinct[-1]} bytes")
    for length in distinct:
        rows = np.flatnonzero(valid & (lengths == length))
        yield rows, data[offsets[rows, None] + np.arange(length)]


def _matrices(strings: pa.StringArray) -> Iterator[_Matrix]:
    offsets, data, lengths, valid = _buffers(strings)
    distinct = np.unique(lengths[valid])
    if len(distinct) > _LENGTHS_MAX or (len(distinct) and distinct[-1] > _LENGTH_BYTES_MAX):
        raise NotBase64("strings too long or of too many lengths for decimals")
    for length in distinct:
        if length == 0 or length % 4:
            raise NotBase64(f"a string of {length} characters")
        rows = np.flatnonzero(valid & (lengths == length))
        characters = data[offsets[rows, None] + np.arange(length)]
        padding = (characters[:, -1] == _PAD).astype(np.int8) + (
            (characters[:, -2] == _PAD) & (characters[:, -1] == _PAD)
        )
        for pad in (0, 1, 2):
            chosen = padding == pad
            if chosen.any():
                yield rows[chosen], _bytes_of(characters[chosen], pad)


def _bytes_of(characters: np.ndarray[Any, Any], pad: int) -> np.ndarray[Any, Any]:
    count, length = characters.shape
    if pad:
        characters[:, length - pad :] = _ZERO_BITS
    try:
        decoded = binascii.a2b_base64(characters.tobytes(), strict_mode=True)
    except binascii.Error as error:
        raise NotBase64(str(error)) from error
    return np.frombuffer(decoded, np.uint8).reshape(count, length // 4 * 3)[:, : length // 4 * 3 - pad]


# -- The placeholder that Debezium sends for a value which its database did not give it ------------------------------------
#
# PostgreSQL leaves unchanged large (TOASTed) values out of an update; other databases leave out LOBs. In their place Debezium
# sends the text of ``unavailable.value.placeholder``, or what the type of the column makes of its bytes:
#
#     text, json, xml, …          the text
#     bytes                       the bytes; with ``binary.handling.mode`` their base64, their hexadecimal digits, or the text
#     array of texts or of bytes  a list of that one element
#     uuid[]                      a list of one UUID: that of version 3 of the bytes
#     hstore                      a map from the text to the text, or the JSON of it
#     array of numbers, of dates  a number for each byte, signed as in Java; of decimals, each has the byte as its unscaled value
#     boolean[]                   for each byte whether it is not zero
#     geometry, geography, point  a fixed place that is not on Earth, or a step from the North Pole; or the bytes as ``wkb``
#
# Only PostgreSQL's connector reads ``hex:…`` as the bytes themselves, so a setting of that form stands for both readings.
#
# A database holds such a value only if a user put it there on purpose. The exception is a ``boolean[]`` of as many trues as the
# placeholder has bytes (28). It counts as the placeholder in updates only: events of other operations have all values.


SRID, NOWHERE = 4326, -99_999_999.0
"""Of a geometry in the place of an unavailable one; and both coordinates of a point in such a place."""
_EWKB_POINT, _WKB_POINT = 0x2000_0001, 1
_GEOMETRIES = (
    struct.pack("<BIIdd", 1, _EWKB_POINT, SRID, NOWHERE, NOWHERE),  # geometry
    struct.pack("<BIIdd", 1, _EWKB_POINT, SRID, 179.999999, 89.999999),  # geography
    struct.pack("<BIdd", 1, _WKB_POINT, NOWHERE, NOWHERE),  # point
)
_HEX_TEXT = re.compile("hex:((?:[0-9a-fA-F]{2})+)")
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
        if match := _HEX_TEXT.fullmatch(setting):
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
