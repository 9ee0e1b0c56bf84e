"""Whole columns of texts that encode bytes or decimals, decoded at once and never to another value.

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
import re
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
