"""Lines of a file, or of a range of its bytes, a bounded number at a time.

A range has the lines that begin in it, so ranges that follow each other have each line once. Lines end with a line feed, a
carriage return, or both, or with the separator of the source. Lines of blanks are none. A byte order mark at the beginning is
left out.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.sources.files.codecs import Damaged

PIECE_BYTES = 4 << 20
LINE_BYTES_MAX = 256 << 20
_MARK = codecs.BOM_UTF8
_LF, _CR, _SPACE = 10, 13, 32

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines as they lie in a piece of a file: from ``starts`` to ``ends``, in bytes of ``data``, which begins at ``first``."""

    data: bytes
    first: int
    starts: Positions
    ends: Positions

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def offsets(self) -> pa.Array:
        """Where each line begins in the file."""
        return pa.array(self.starts + self.first, pa.int64())

    def values(self) -> pa.Array:
        """The bytes of each line."""
        count = len(self)
        edges = np.empty(2 * count + 1, np.int32)  # what is between lines counts as a value too, and is not taken
        edges[0:-1:2], edges[1::2] = self.starts, self.ends
        edges[-1] = self.ends[-1] if count else 0
        every = pa.Array.from_buffers(
            pa.binary(), max(0, 2 * count - 1), [None, pa.py_buffer(edges), pa.py_buffer(self.data)]
        )
        return every.take(pa.array(np.arange(0, 2 * count, 2)))

    def text(self, number: int) -> bytes:
        """One line."""
        return self.data[int(self.starts[number]) : int(self.ends[number])]

    def chosen(self, which: npt.NDArray[Any]) -> Lines:
        """Some of the lines: a mask, or their numbers."""
        return Lines(self.data, self.first, self.starts[which], self.ends[which])


def pieces_of(file: Any, start: int = 0) -> Iterator[bytes]:
    """The bytes of a file from a place on."""
    if start:
        file.seek(start)
    while piece := file.read(PIECE_BYTES):
        yield piece


def as_utf8(pieces: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """Pieces of a text in another encoding. Raises Damaged."""
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        for piece in pieces:
            if text := decoder.decode(piece):
                yield text.encode()
        if text := decoder.decode(b"", True):
            yield text.encode()
    except UnicodeError as error:
        raise Damaged(f"its text is not {encoding}: {error}") from None


def lines_of(pieces: Iterable[bytes], start: int, end: int | None, separator: bytes | None) -> Iterator[Lines]:
    """The lines that begin at ``start`` or later, and before ``end``. Raises Damaged for a line that never ends.

    ``pieces``: the bytes from ``start`` on, or from the byte before if ``start`` is not 0, since that one shows whether a line
    begins there.
    """
    first = max(0, start - 1)
    skips = start > 0
    carry = b""
    for piece in pieces:
        data = carry + piece if carry else piece
        edges = _separators(data, separator)
        length = 1 if separator is None else len(separator)
        if not len(edges):
            carry = _bounded(data)
            continue
        starts = np.concatenate([[0], edges[:-1] + length])
        found = Lines(data, first, starts, edges)
        if skips:
            found, skips = found.chosen(np.arange(1, len(found))), False
        carry = data[int(edges[-1]) + length :]
        yield from _within(found, end)
        first += int(edges[-1]) + length
        if end is not None and first >= end:
            return
    if carry and not skips:
        yield from _within(Lines(carry, first, np.array([0]), np.array([len(carry)])), end)


def _separators(data: bytes, separator: bytes | None) -> Positions:
    if separator is not None and len(separator) > 1:
        return np.array([each.start() for each in re.finditer(re.escape(separator), data)], np.int64)
    view = np.frombuffer(data, np.uint8)
    if separator is not None:
        return np.flatnonzero(view == separator[0])
    return np.flatnonzero((view == _LF) | (view == _CR))


def _within(lines: Lines, end: int | None) -> Iterator[Lines]:
    """The lines before the end that are not blank, without the mark."""
    if lines.first == 0 and len(lines) and lines.starts[0] == 0 and lines.data.startswith(_MARK):
        starts = lines.starts.copy()
        starts[0] = min(len(_MARK), int(lines.ends[0]))
        lines = Lines(lines.data, 0, starts, lines.ends)
    kept = lines.ends > lines.starts
    if end is not None:
        kept &= lines.starts + lines.first < end
    lines = lines.chosen(kept)
    leading = np.frombuffer(lines.data, np.uint8)[lines.starts]
    doubtful = np.flatnonzero(leading <= _SPACE)
    blank = [number for number in doubtful.tolist() if not lines.text(number).strip()]
    if blank:
        lines = lines.chosen(np.setdiff1d(np.arange(len(lines)), blank))
    if len(lines):
        yield lines


def _bounded(data: bytes) -> bytes:
    if len(data) > LINE_BYTES_MAX:
        raise Damaged(f"it has a line of more than {LINE_BYTES_MAX >> 20} MB; does it have a document a line?")
    return data
