"""Lines of a file, or of a range of its bytes, a bounded number at a time.

A range has the lines that begin in it, so ranges that follow each other have each line once. Lines end with a line feed, a
carriage return, or both, or with the separator of the source. Lines of blanks are none. A byte order mark at the beginning is
left out.

**CSV.** Lines without what is no row: the header, which is compared with the columns, comments, and blank lines. What a line
means is for Spark's parser (``ingest.transform_files``). Where a value may go over several lines (``multiLine``), a line here
is what belongs to one row.

**Compressed files** are told by the ending of their names, as Hadoop does.
"""

from __future__ import annotations

import codecs
import re
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.errors import InvalidChanges
from lakebed.sources.files.settings import Options

_READ_BYTES = 1 << 20
_ARROW = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_BLOCKS = {".lz4": "lz4_raw", ".snappy": "snappy"}
_ENDINGS = (*_ARROW, *_BLOCKS, ".deflate")
_BLOCK_BYTES_MAX = 256 << 20


class Damaged(Exception):
    """The bytes of a file are not what its name, or its format, says."""


def ending_of(path: str) -> str | None:
    """The ending that says how a file is compressed; None if it is not."""
    name = path.lower()
    return next((ending for ending in _ENDINGS if name.endswith(ending)), None)


def decompressed(file: Any, ending: str) -> Iterator[bytes]:
    """Pieces of the bytes of a compressed file. Raises Damaged; what reading ``file`` raises."""
    if ending in _BLOCKS:
        yield from _blocks(file, pa.Codec(_BLOCKS[ending]))
        return
    if ending == ".deflate":
        yield from _inflated(file)
        return
    try:
        with pa.CompressedInputStream(pa.PythonFile(file, "r"), _ARROW[ending]) as stream:
            while piece := stream.read(_READ_BYTES):
                yield piece
    except (pa.ArrowException, OSError) as error:
        # Arrow passes errors of the file itself on, with their number.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise Damaged(str(error).splitlines()[0]) from error


def _inflated(file: Any) -> Iterator[bytes]:
    inflate = zlib.decompressobj()
    try:
        while data := file.read(_READ_BYTES):
            while data:
                if piece := inflate.decompress(data, _READ_BYTES):
                    yield piece
                data = inflate.unconsumed_tail
        if piece := inflate.flush():
            yield piece
    except zlib.error as error:
        raise Damaged(str(error)) from error
    if not inflate.eof:
        raise Damaged("it ends too early")


def _blocks(file: Any, codec: pa.Codec) -> Iterator[bytes]:
    """Hadoop's blocks: the length of a block, then pieces of it, each with its compressed length, until the block is whole."""
    while head := file.read(4):
        left = _length(head)
        while left:
            data = _exactly(file, _length(_exactly(file, 4)))
            try:
                size = _snappy_length(data) if codec.name == "snappy" else _lz4_length(data)
                piece = codec.decompress(data, size, asbytes=True) if size <= left else b""
            except (pa.ArrowException, OSError, IndexError) as error:
                raise Damaged(str(error).splitlines()[0]) from error
            if not piece or len(piece) > left:
                raise Damaged("its blocks are not as long as they say")
            left -= len(piece)
            yield piece


def _length(data: bytes) -> int:
    size = int.from_bytes(data, "big")
    if len(data) < 4 or size > _BLOCK_BYTES_MAX:
        raise Damaged("it has no blocks as Hadoop writes them")
    return size


def _exactly(file: Any, count: int) -> bytes:
    data: bytes = file.read(count)
    if len(data) < count:
        raise Damaged("it ends too early")
    return data


def _snappy_length(data: bytes) -> int:
    """The length of what is compressed, which the data begin with."""
    size = 0
    for place in range(5):
        size |= (data[place] & 0x7F) << (7 * place)
        if data[place] < 0x80:
            break
    return size


def _lz4_length(data: bytes) -> int:
    """The length of what is compressed: of all literals and copies. Without it Arrow returns what is in memory behind it too."""

    def extended(length: int, at: int) -> tuple[int, int]:
        more = 255 if length == 15 else 0
        while more == 255:
            more = data[at]
            length, at = length + more, at + 1
        return length, at

    size = at = 0
    while at < len(data):
        token = data[at]
        literals, at = extended(token >> 4, at + 1)
        size, at = size + literals, at + literals
        if at < len(data):
            copied, at = extended(token & 15, at + 2)
            size += copied + 4
    return size


PIECE_BYTES = 4 << 20
LINE_BYTES_MAX = 256 << 20
_MARK = codecs.BOM_UTF8
_LF, _CR, _SPACE = 10, 13, 32

_Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines as they lie in a piece of a file: from ``starts`` to ``ends``, in bytes of ``data``, which begins at ``first``."""

    data: bytes
    first: int
    starts: _Positions
    ends: _Positions

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


def _separators(data: bytes, separator: bytes | None) -> _Positions:
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


LINE, FILE, AT = "_lakebed_line", "_lakebed_file", "_lakebed_at"
"""A line of CSV; the place of its file in the batch; the byte of the file at which it begins."""

_ROW_BYTES_MAX = 64 << 20
_SHOWN = 500


def rows_of(
    lines: Iterable[Lines], options: Options, columns: Sequence[str], file: str, has_header: bool
) -> Iterator[Lines]:
    """The lines that are rows. ``has_header``: whether a header comes first, which has the names of the ``columns``.

    Raises InvalidChanges, which names the ``file``, for another header.
    """
    comment = options.comment.encode()
    for some in lines:
        if comment:
            is_row = [not some.text(number).startswith(comment) for number in range(len(some))]
            some = some.chosen(np.array(is_row, bool))
        if has_header and len(some):
            has_header = False
            if options.checks_header:
                _compare(some.text(0), options, columns, file)
            some = some.chosen(np.arange(1, len(some)))
        if len(some):
            yield some


def _compare(header: bytes, options: Options, columns: Sequence[str], file: str) -> None:
    names = _values_of(header.decode("utf-8", "replace"), options)
    if [name.lower() for name in names] != [name.lower() for name in columns]:
        raise InvalidChanges(
            f"{file} has the header {', '.join(names)[:_SHOWN]}, and the columns of the table and extra_columns are "
            f"{', '.join(columns)[:_SHOWN]}: columns of CSV files are taken by their place, so bring them into one order, and "
            "name those that the table does not need in extra_columns and except_columns",
            path=file,
        )


def _values_of(line: str, options: Options) -> list[str]:
    """The values of a line, as texts: enough for the names of a header."""
    quote = re.escape(options.quote) if options.quote.strip("\0") else "(?!)"
    value = re.compile(
        rf"\s*{quote}((?:[^{quote}]|{quote}{quote})*){quote}\s*(?={re.escape(options.separator)}|$)", re.DOTALL
    )
    values, at = [], 0
    while at <= len(line):
        found = value.match(line, at)
        end = found.end() if found else line.find(options.separator, at)
        end = len(line) if end < 0 else end
        values.append(found[1].replace(options.quote * 2, options.quote) if found else line[at:end].strip())
        at = end + len(options.separator)
    return values


def rows_over_lines(pieces: Iterable[bytes], options: Options) -> Iterator[Lines]:
    """The rows of a file in which quoted values may have line breaks. Raises Damaged for a quote without its end."""
    pattern = _row(options)
    source = iter(pieces)
    data, first, is_last = b"", 0, False
    while not is_last:
        piece = next(source, None)
        is_last = piece is None
        data += piece or b""
        starts, ends, at = [], [], len(BOM_UTF8) if not first and data.startswith(BOM_UTF8) else 0
        while at < len(data):
            found = pattern.match(data, at)
            # The last row of a piece may go on in the next one.
            if found is None or (not is_last and found.end() >= len(data) - 1):
                break
            if found[1].strip():
                starts.append(at)
                ends.append(found.end(1))
            at = found.end()
        if starts:
            yield Lines(data, first, np.array(starts, np.int64), np.array(ends, np.int64))
        data, first = data[at:], first + at
        if (data and is_last) or len(data) > _ROW_BYTES_MAX:
            raise Damaged(f"the row at byte {first} does not end; is there a quote without its end?")


def _row(options: Options) -> re.Pattern[bytes]:
    """A row and the line break behind it. A quote counts where a value begins."""
    separator = re.escape(options.separator.encode())
    plain = rb"(?:(?!" + separator + rb")[^\r\n])*" if len(options.separator) > 1 else rb"[^\r\n" + separator + rb"]*"
    if options.quote.strip("\0"):
        quote, escape = re.escape(options.quote.encode()), re.escape(options.escape.encode())
        begin = (rb"[ \t]*" if options.ignores_leading_blanks else b"") + quote
        inside = rb"(?:[^" + quote + escape + rb"]++|" + escape + rb".|" + quote + quote + rb")*"
        quoted = begin + inside + quote + rb"[^\r\n]*?(?=" + separator + rb"|\r|\n|\Z)"
        value = rb"(?:" + quoted + rb"|(?!" + begin + rb")" + plain + rb")"
    else:
        value = plain
    return re.compile(rb"(" + value + rb"(?:" + separator + value + rb")*)(?:\r\n|\n|\r|\Z)", re.DOTALL)
