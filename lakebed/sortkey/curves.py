"""Space-filling curves: the number of a point of a grid on the Z-order and on the Hilbert curve. Vectorised; pure.

A point is one coordinate a dimension, each of ``bits`` bits. Both curves pass every point of the grid once.

1. Z-order: the coordinates' bits are interleaved, the highest first. Monotone in every coordinate.
2. Hilbert: the coordinates are transformed by John Skilling's algorithm ("Programming the Hilbert curve", AIP Conference
   Proceedings 707, 2004) so that their interleaved bits are the number. Points that follow each other are neighbours.

Own code: the package that numbers points of Hilbert's curve takes 35 times as long
(docs/adr/0010-own-code-where-a-library-exists.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

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
