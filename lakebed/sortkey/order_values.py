"""The values that rows are sorted by: the terms of a sort key, evaluated on Arrow tables. There is no second implementation.

1. Truncations are arithmetic on days and microseconds since 1970.
2. A bucket hashes a value's bytes as Iceberg does: whole numbers, dates and times as eight bytes, little endian; a decimal's
   digits as few bytes as hold them, big endian; texts and binaries as they are.
3. A curve scales each column to a grid, 63 bits shared evenly: null is 0, NaN the last coordinate, values lie between. A value
   outside the column's frame counts as its end. The scale is linear from end to end; of a text it is that of the number which
   the first eight bytes after the ends' common prefix make. A column without a frame is scaled over its whole type, floating
   point and texts by their leading bits. So a greater value never has a smaller coordinate.

The values of a dictionary are evaluated once.

The hash of a bucket (``murmur3``) is MurmurHash3 (x86, 32 bits, seed 0), after Austin Appleby's reference, in the public domain.
All strings are hashed block by block of four bytes: the first blocks of all that have one, then the second ones, and so on.

The curves (``z_order``, ``hilbert``) number the points of a grid. A point is one coordinate a dimension, each of ``bits`` bits,
and a curve passes every point once. Z-order interleaves the coordinates' bits, the highest first, so it is monotone in every
coordinate. For Hilbert's curve the coordinates are transformed by John Skilling's algorithm ("Programming the Hilbert curve",
AIP Conference Proceedings 707, 2004) so that their interleaved bits are the number: points that follow each other are
neighbours.

Both are own code, since packages hash one string a call or bring all of Iceberg, and number points of Hilbert's curve 35 times as
slowly (docs/adr/0010-own-code-where-a-library-exists.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.sortkey.sort_key import CURVE_BITS, Edges, SortTerm

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]
_Hashes = npt.NDArray[np.uint32]


def murmur3(data: Bytes, starts: Places, lengths: Places) -> _Hashes:
    """The hash of each string: ``data[start : start + length]``."""
    hashes = np.zeros(len(starts), dtype=np.uint32)
    active = np.arange(len(starts))
    block = 0
    while len(active := active[lengths[active] >= 4 * (block + 1)]):
        at = starts[active] + 4 * block
        word = np.zeros(len(active), dtype=np.uint32)
        for byte in range(4):
            word |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
        mixed = _rotated(hashes[active] ^ _mixed(word), 13)
        hashes[active] = mixed * np.uint32(5) + np.uint32(0xE6546B64)
        block += 1
    rest = lengths % 4
    tail = np.zeros_like(hashes)
    for byte in range(3):
        has = np.flatnonzero(rest > byte)
        tail[has] |= data[starts[has] + lengths[has] - rest[has] + byte].astype(np.uint32) << np.uint32(8 * byte)
    hashes ^= _mixed(tail)  # of no bytes it is 0
    hashes ^= lengths.astype(np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        hashes ^= hashes >> np.uint32(shift)
        hashes *= np.uint32(factor)
    hashes ^= hashes >> np.uint32(16)
    return hashes


def _mixed(word: _Hashes) -> _Hashes:
    mixed: _Hashes = _rotated(word * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    return mixed


def _rotated(word: _Hashes, bits: int) -> _Hashes:
    rotated: _Hashes = (word << np.uint32(bits)) | (word >> np.uint32(32 - bits))
    return rotated


Numbers = npt.NDArray[np.int64]
_BLOCK = 32_768  # points whose coordinates stay in the processor's cache
_BYTE = np.arange(256, dtype=np.int64)


def z_order(coordinates: Sequence[Numbers], bits: int) -> Numbers:
    """Each point's number on the Z-order curve. ``len(coordinates) * bits`` is at most 63."""
    count = len(coordinates)
    spread = sum(((_BYTE >> bit) & 1) << (bit * count) for bit in range(min(bits, 8)))
    out = np.zeros(len(coordinates[0]), dtype=np.int64)
    for place, values in enumerate(coordinates):
        for byte in range(-(-bits // 8)):
            out |= np.take(spread, (values >> (8 * byte)) & 255) << (8 * byte * count + count - 1 - place)
    return out


def hilbert(coordinates: Sequence[Numbers], bits: int) -> Numbers:
    """Each point's number on the Hilbert curve. ``len(coordinates) * bits`` is at most 63."""
    pieces = [
        z_order(_transposed([values[start : start + _BLOCK] for values in coordinates], bits), bits)
        for start in range(0, len(coordinates[0]), _BLOCK)
    ]
    return np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int64)


def _transposed(coordinates: Sequence[Numbers], bits: int) -> list[Numbers]:
    """Skilling's ``AxestoTranspose``; where the original branches on a bit, a mask of all ones or none is made of it."""
    axes = [values.copy() for values in coordinates]
    first = axes[0]
    for bit in range(bits - 1, 0, -1):
        below = (1 << bit) - 1
        for axis in axes:
            is_set = -((axis >> bit) & 1)
            swapped = (first ^ axis) & below & ~is_set
            first ^= (is_set & below) | swapped
            if axis is not first:
                axis ^= swapped
    for place in range(1, len(axes)):
        axes[place] ^= axes[place - 1]
    flips = np.zeros_like(first)
    for bit in range(bits - 1, 0, -1):
        flips ^= -((axes[-1] >> bit) & 1) & ((1 << bit) - 1)
    for axis in axes:
        axis ^= flips
    return axes


_DAY_US = 86_400_000_000
_HOUR_US = 3_600_000_000
_SIGN_BIT = np.uint64(1 << 63)
_WORD_DIGITS = 18  # decimals of at most these digits fit into 64 bits
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # of the years 1 and 9999

_Unsigned = npt.NDArray[np.uint64]


def order_values(table: pa.Table, term: SortTerm) -> pa.ChunkedArray | pa.Array:
    """The value of the term for each row, of ``term.type`` (of a column itself: as it is in the table, so maybe a dictionary)."""
    if term.is_plain:
        return table[term.columns[0]]
    columns = [_one_array(table[name]) for name in term.columns]
    if term.is_curve:
        return _on_curve(columns, term)
    return _single(columns[0], term)


def key_at(table: pa.Table, row: int, terms: Sequence[SortTerm]) -> list[pa.Scalar]:
    """One row's values of the terms."""
    named = {name: table[name].slice(row, 1) for term in terms for name in term.columns}
    one = {name: column.cast(_value_type(column.type)) for name, column in named.items()}
    return [order_values(pa.table(one), term)[0] for term in terms]


def corners(term: SortTerm, lows: Sequence[Any], highs: Sequence[Any]) -> tuple[int, int]:
    """The numbers of a Z-order curve that no row is below, nor above, by its columns' bounds; None where unknown."""
    bits = CURVE_BITS // len(term.columns)
    coordinates = []
    for low, high, kind, edges in zip(lows, highs, term.kinds, _frame_of(term), strict=True):
        ends = _coordinates(pa.array([low, high], kind), edges, bits)  # None is the least
        ends[1] = ends[1] if high is not None else (1 << bits) - 1
        coordinates.append(ends)
    first, last = z_order(coordinates, bits).tolist()
    return first, last


def _one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _single(values: pa.Array, term: SortTerm) -> pa.Array:
    if pa.types.is_dictionary(values.type):
        found = _single(values.dictionary, term)
        if term.function == "substr":
            return pa.DictionaryArray.from_arrays(values.indices, found)
        return found.take(values.indices)
    if term.function == "substr":
        start = term.numbers[0] - 1
        cut = pc.utf8_slice_codeunits if pa.types.is_string(values.type) else pc.binary_slice
        return cut(values, start, start + term.numbers[1])
    if term.function == "bucket":
        hashes = _hashes(values) & np.uint32(0x7FFFFFFF)
        return _with_nulls((hashes % np.uint32(term.numbers[0])).astype(np.int64), values)
    return _truncated(values, term.function)


def _with_nulls(numbers: Numbers, values: pa.Array) -> pa.Array:
    """The numbers, null where the value is."""
    return pa.array(numbers, mask=np.asarray(pc.is_null(values)) if values.null_count else None)


def _truncated(values: pa.Array, function: str) -> pa.Array:
    numbers = _whole(values)
    is_date = pa.types.is_date(values.type)
    if function in ("date", "day"):
        days = _with_nulls(numbers if is_date else numbers // _DAY_US, values)
        return days if function == "day" else days.cast(pa.int32()).view(pa.date32())
    if function == "hour":
        return _with_nulls(numbers // _HOUR_US, values)
    moments = numbers.astype("datetime64[D]" if is_date else "datetime64[us]")
    return _with_nulls(
        moments.astype("datetime64[Y]" if function == "year" else "datetime64[M]").astype(np.int64), values
    )


def _whole(values: pa.Array) -> Numbers:
    """Whole numbers, days or microseconds as they are stored; 0 for null."""
    if pa.types.is_date32(values.type):
        values = values.view(pa.int32())
    elif pa.types.is_timestamp(values.type):
        values = values.view(pa.int64())
    if values.null_count:
        values = values.fill_null(False if pa.types.is_boolean(values.type) else 0)
    return np.asarray(values.cast(pa.int64()))


# -- buckets ---------------------------------------------------------------------------------------------------------


def _hashes(values: pa.Array) -> npt.NDArray[np.uint32]:
    if pa.types.is_string(values.type) or pa.types.is_binary(values.type):
        data, starts, lengths = _bytes_of(values)
        return murmur3(data, starts, lengths)
    if pa.types.is_decimal(values.type):
        data = _decimal_words(values)[:, ::-1].astype(">i8").view(np.uint8).reshape(len(values), 16)
        # A leading byte says nothing that the sign of the next one does not say.
        is_sign = data[:, :-1] == np.where(data[:, 1:] & 128, 255, 0)
        spare = np.cumprod(is_sign & (data[:, :1] == data[:, :-1]), axis=1).sum(axis=1)
        return murmur3(data.ravel(), np.arange(len(values)) * 16 + spare, 16 - spare)
    data = _whole(values).astype("<i8").view(np.uint8)
    return murmur3(data, np.arange(len(values)) * 8, np.full(len(values), 8))


def _bytes_of(values: pa.Array) -> tuple[npt.NDArray[np.uint8], Numbers, Numbers]:
    """The bytes of all texts or binaries, and where each begins and how long it is."""
    _, offsets, data = values.buffers()
    ends = np.zeros(len(values) + 1, dtype=np.int64)
    if offsets:
        ends[:] = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    lengths = np.diff(ends)
    if values.null_count:
        lengths[np.asarray(pc.is_null(values))] = 0
    return np.frombuffer(data, np.uint8) if data else np.zeros(0, np.uint8), ends[:-1], lengths


def _decimal_words(values: pa.Array) -> Numbers:
    """The two halves of each decimal's digits, the low one first; 0 for null."""
    words = np.frombuffer(values.buffers()[1], np.int64).reshape(-1, 2)[values.offset : values.offset + len(values)]
    if values.null_count:
        words = words.copy()
        words[np.asarray(pc.is_null(values))] = 0
    return words


# -- curves ----------------------------------------------------------------------------------------------------------


def _on_curve(columns: Sequence[pa.Array], term: SortTerm) -> pa.Array:
    bits = CURVE_BITS // len(columns)
    coordinates = [_coordinates(column, edges, bits) for column, edges in zip(columns, _frame_of(term), strict=True)]
    return pa.array((z_order if term.function == "zorder" else hilbert)(coordinates, bits))


def _frame_of(term: SortTerm) -> Sequence[Edges | None]:
    return term.frame or (None,) * len(term.columns)


def _coordinates(values: pa.Array, edges: Edges | None, bits: int) -> Numbers:
    """From 0 to ``2 ** bits - 1``, never smaller for a greater value."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        out = _coordinates(values.dictionary, edges, bits)
        places = np.asarray(values.indices.fill_null(0))
        out = out[places] if len(out) else np.zeros(len(values), dtype=np.int64)
    elif pa.types.is_floating(kind):
        numbers = np.asarray(values.cast(pa.float64()).fill_null(0.0))
        out = _of_floats(numbers, edges, bits)
        out[np.isnan(numbers)] = (1 << bits) - 1
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        out = _of_texts(values.cast(pa.binary()), edges, bits)
    elif pa.types.is_decimal(kind):
        ends = edges or (1 - 10**kind.precision, 10**kind.precision - 1)
        out = _of_decimals(_decimal_words(values), kind, ends, bits)
    else:
        low, high = edges or _ends(kind)
        out = _scaled(_whole(values), low, high, bits)
    if values.null_count:
        out[np.asarray(pc.is_null(values))] = 0
    return out


def _ends(kind: pa.DataType) -> tuple[int, int]:
    """The least and the greatest number of a type; of times, those of the years that people use."""
    if pa.types.is_date(kind):
        return _FIRST_DAY, _LAST_DAY
    if pa.types.is_timestamp(kind):
        return _FIRST_DAY * _DAY_US, (_LAST_DAY + 1) * _DAY_US - 1
    if pa.types.is_boolean(kind):
        return 0, 1
    return -(1 << (kind.bit_width - 1)), (1 << (kind.bit_width - 1)) - 1


def _scaled(numbers: Numbers, low: int, high: int, bits: int) -> Numbers:
    """From 1, for ``low`` or less, to ``2 ** bits - 2``, for ``high`` or more."""
    distances = np.clip(numbers, low, high).view(np.uint64) - np.uint64(low % (1 << 64))
    return _spread(distances.astype(np.float64) / max(high - low, 1), bits)


def _spread(shares: npt.NDArray[np.float64], bits: int) -> Numbers:
    """Shares from 0 to 1 as coordinates of values."""
    values = (1 << bits) - 2
    coordinates: Numbers = np.minimum(1 + (shares * values).astype(np.int64), values)
    return coordinates


def _leading(numbers: _Unsigned, bits: int) -> Numbers:
    coordinates: Numbers = np.clip((numbers >> np.uint64(64 - bits)).astype(np.int64), 1, (1 << bits) - 2)
    return coordinates


def _of_floats(numbers: npt.NDArray[np.float64], edges: Edges | None, bits: int) -> Numbers:
    """Coordinates of floating point numbers; that of NaN is arbitrary."""
    if edges is None:
        words = (numbers + 0.0).view(np.uint64)  # no negative zero
        return _leading(np.where(words & _SIGN_BIT, ~words, words | _SIGN_BIT), bits)
    low, high = edges
    span = high / 2 - low / 2  # half of it, so that it is a number
    halves = np.clip(np.nan_to_num(numbers, nan=low, posinf=high, neginf=low), low, high) / 2 - low / 2
    return _spread(halves / span if span else halves, bits)


def _of_texts(values: pa.Array, edges: Edges | None, bits: int) -> Numbers:
    data, starts, lengths = _bytes_of(values)
    if edges is None:
        return _leading(_eight_bytes(data, starts, lengths), bits)
    prefix = _common_prefix(*edges)
    low, high = (int.from_bytes(edge[len(prefix) : len(prefix) + 8].ljust(8, b"\0"), "big") for edge in edges)
    skip = np.minimum(lengths, len(prefix))
    numbers = np.clip(_eight_bytes(data, starts + skip, lengths - skip), np.uint64(low), np.uint64(high))
    if prefix:
        is_inside = np.asarray(pc.starts_with(values, pattern=prefix).fill_null(False))
        is_below = np.asarray(pc.less(values, prefix).fill_null(False))
        numbers[~is_inside] = np.uint64(high)
        numbers[is_below] = np.uint64(low)
    return _spread((numbers - np.uint64(low)).astype(np.float64) / max(high - low, 1), bits)


def _common_prefix(one: bytes, other: bytes) -> bytes:
    length = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
    return one[:length] if length is not None else min(one, other, key=len)


def _eight_bytes(data: npt.NDArray[np.uint8], starts: Numbers, lengths: Numbers) -> _Unsigned:
    """The first eight bytes as a number, zeros where a text is shorter."""
    out = np.zeros(len(starts), dtype=np.uint64)
    for byte in range(8):
        has = lengths > byte
        at = np.where(has, starts + byte, 0)
        found = data[at].astype(np.uint64) if len(data) else out
        out = (out << np.uint64(8)) | np.where(has, found, np.uint64(0))
    return out


def _of_decimals(words: Numbers, kind: pa.DataType, ends: Edges, bits: int) -> Numbers:
    """Digits that need more than 64 bits are cut to those that the frame's ends need."""
    low, high = ends
    if kind.precision <= _WORD_DIGITS:
        return _scaled(words[:, 0], low, high, bits)
    cut = max(0, max(abs(low), abs(high)).bit_length() - 62)
    lower, upper = words[:, 0].view(np.uint64), words[:, 1]
    if cut >= 64:
        numbers = upper >> (cut - 64)
    elif cut:
        numbers = (upper << (64 - cut)) | (lower >> np.uint64(cut)).view(np.int64)
    else:
        numbers = lower.view(np.int64)
    for end, is_beyond in ((low, _less(upper, lower, low)), (high, ~_less(upper, lower, high))):
        numbers = np.where(is_beyond, end >> cut, numbers)
    return _scaled(numbers, low >> cut, high >> cut, bits)


def _less(upper: Numbers, lower: _Unsigned, number: int) -> npt.NDArray[np.bool_]:
    """Whether the 128-bit numbers are less than this one."""
    top, rest = number >> 64, np.uint64(number % (1 << 64))
    is_less: npt.NDArray[np.bool_] = (upper < top) | ((upper == top) & (lower < rest))
    return is_less
