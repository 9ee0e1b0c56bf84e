"""Row provenance: for each row of a merge's output, the source and the row of it that it came from.

With it, rows that died in a source while the merge ran also die in the output, and no key has to be looked up.

Bytes (``to_bytes``): ordinals and rows, each compressed. Rows are grouped by source and written as differences. A source's rows
mostly keep their order in the output, so nearly every difference is one or a small gap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64

from lakebed.errors import Corrupt, InvalidInput

SOURCES_MAX = 1 << 16
_CODEC = "zstd"
_HEADER = np.dtype([("rows", "<u8"), ("ordinals_bytes", "<u8")])


@dataclass(frozen=True, slots=True, eq=False)
class Provenance:
    """``ordinals`` (uint16) and ``rows`` (uint32): the source of each output row and its row there; 6 bytes a row."""

    ordinals: npt.NDArray[np.uint16]
    rows: npt.NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.rows)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Provenance):
            return NotImplemented
        return np.array_equal(self.ordinals, other.ordinals) and np.array_equal(self.rows, other.rows)

    def __reduce__(self) -> tuple[Callable[[bytes], Provenance], tuple[bytes]]:
        return Provenance.from_bytes, (self.to_bytes(),)

    def slice(self, start: int, rows: int) -> Provenance:
        """That of so many rows of the output, or fewer at its end."""
        return Provenance(self.ordinals[start : start + rows], self.rows[start : start + rows])

    def map_rows(self, ordinal: int, rows: BitMap64) -> BitMap64:
        """The output rows that came from these rows of a source; source rows that did not come along are ignored."""
        if not rows:
            return BitMap64()
        places = np.flatnonzero(self.ordinals == ordinal)
        wanted = np.frombuffer(rows.to_array(), dtype=np.uint64)
        return BitMap64(places[np.isin(self.rows[places], wanted)].astype(np.uint64))

    def compose(self, inner: Sequence[Provenance | int]) -> Provenance:
        """The same output in terms of the original parts, where some of its sources were outputs of earlier merges.

        ``inner[i]`` is the provenance of source i, its ordinals being those of the original parts (see ``renumbered``),
        or the ordinal of source i itself where that is an original part.
        """
        ordinals, rows = self.ordinals.copy(), self.rows.copy()
        for ordinal, origin in enumerate(inner):
            at = self.ordinals == ordinal
            if isinstance(origin, Provenance):
                places = self.rows[at]
                ordinals[at], rows[at] = origin.ordinals[places], origin.rows[places]
            else:
                ordinals[at] = _checked(origin)
        return Provenance(ordinals, rows)

    def renumbered(self, ordinals: Sequence[int]) -> Provenance:
        """The same with the sources numbered otherwise: source i becomes ``ordinals[i]``."""
        numbers = np.array([_checked(ordinal) for ordinal in ordinals], dtype=np.uint16)
        return Provenance(numbers[self.ordinals], self.rows)

    def to_bytes(self) -> bytes:
        """A compact form, about a byte a row or less for sorted sources."""
        by_source = np.argsort(self.ordinals, kind="stable")
        steps = np.diff(self.rows[by_source].astype(np.int64), prepend=0).astype("<i8")
        ordinals = _compress(self.ordinals.astype("<u2"))
        header = np.array([(len(self), len(ordinals))], dtype=_HEADER)
        return header.tobytes() + ordinals + _compress(steps)

    @classmethod
    def from_bytes(cls, data: bytes) -> Provenance:
        """What ``to_bytes`` gave. Raises Corrupt."""
        try:
            count, split = (int(value) for value in np.frombuffer(data, _HEADER, 1)[0])
            start = _HEADER.itemsize
            ordinals = _decompress(data[start : start + split], "<u2", count)
            steps = _decompress(data[start + split :], "<i8", count)
        except (ValueError, OSError, OverflowError) as error:
            raise Corrupt(f"a row provenance of {len(data)} bytes can't be read: {error}") from error
        rows = np.empty(count, dtype=np.uint32)
        rows[np.argsort(ordinals, kind="stable")] = np.cumsum(steps)
        return cls(ordinals.astype(np.uint16), rows)


def _checked(ordinal: int) -> int:
    if not 0 <= ordinal < SOURCES_MAX:
        raise InvalidInput(f"source {ordinal} is out of range; a merge takes at most {SOURCES_MAX:,} parts")
    return ordinal


def _compress(values: npt.NDArray[np.generic]) -> bytes:
    compressed: bytes = pa.Codec(_CODEC).compress(values.tobytes(), asbytes=True)
    return compressed


def _decompress(data: bytes, kind: str, count: int) -> npt.NDArray[np.generic]:
    size = count * np.dtype(kind).itemsize
    return np.frombuffer(pa.Codec(_CODEC).decompress(data, size, asbytes=True), kind, count)
