"""Lines of files: each once, at its place, however the file is cut, ended, marked, encoded or compressed."""

from __future__ import annotations

import bz2
import gzip
import io
import random
import zlib
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from lakebed.sources.files import lines as lines_module
from lakebed.sources.files.lines import Damaged, as_utf8, decompressed, ending_of, lines_of
from tests.worlds import seeds


def found(
    data: bytes, start: int = 0, end: int | None = None, piece: int = 7, separator: bytes | None = None
) -> list[tuple[int, bytes]]:
    """The lines of a range, with their offsets."""
    begin = max(0, start - 1)
    pieces = [data[at : at + piece] for at in range(begin, len(data), piece)]
    out: list[tuple[int, bytes]] = []
    for lines in lines_of(pieces, start, end, separator):
        out += zip(lines.offsets.to_pylist(), lines.values().to_pylist(), strict=True)
    return out


def by_hand(data: bytes) -> list[tuple[int, bytes]]:
    at, out = 0, []
    for line in data.replace(b"\r", b"\n").split(b"\n"):
        if line.strip():
            out.append((at, line))
        at += len(line) + 1
    return out


@seeds(12, quick=4)
def test_ranges_that_follow_each_other_have_each_line_once_in_order(seed: int) -> None:
    rng = random.Random(seed)
    some = [b"a", b"bc", b" ", b"\t", b"\n", b"\n", b"\r", b"\r\n", "ü".encode()]
    data = b"".join(rng.choice(some) for _ in range(rng.randint(0, 60)))
    edges = sorted({0, len(data), *(rng.randint(0, len(data)) for _ in range(3))})
    parts = [found(data, low, high, rng.randint(1, 9)) for low, high in pairwise(edges)]
    assert [line for part in parts for line in part] == by_hand(data) == found(data, piece=rng.randint(1, 100))


@pytest.mark.parametrize(
    ("data", "separator", "expected"),
    [
        (b"\xef\xbb\xbf{}\n{}", None, [(3, b"{}"), (6, b"{}")]),
        (b"\xef\xbb\xbf", None, []),
        (b"\xef\xbb\xbf\nx", None, [(4, b"x")]),
        (b"a\nb|c|", b"|", [(0, b"a\nb"), (4, b"c")]),
        (b"a--b-c--", b"--", [(0, b"a"), (3, b"b-c")]),
        (b"", None, []),
        (b" \t \n\n  x \n", None, [(5, b"  x ")]),
    ],
)
def test_marks_separators_and_blanks(data: bytes, separator: bytes | None, expected: list[tuple[int, bytes]]) -> None:
    for piece in (1, 2, 3, 100):
        assert found(data, piece=piece, separator=separator) == expected


def test_a_line_without_end_is_refused_and_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "LINE_BYTES_MAX", 100)
    taken = []

    def endless() -> Iterator[bytes]:
        while True:
            taken.append(1)
            yield b"x" * 10

    with pytest.raises(Damaged, match="a line of more than"):
        list(lines_of(endless(), 0, None, None))
    assert len(taken) == 11


@pytest.mark.parametrize("encoding", ["utf-16", "iso8859-1", "cp1252", "utf-8"])
def test_texts_in_other_encodings_become_utf_8_and_wrong_ones_are_refused(encoding: str) -> None:
    text = "größe\nweiß\n" * 3
    data = text.encode(encoding)
    pieces = list(as_utf8([data[at : at + 3] for at in range(0, len(data), 3)], encoding))
    assert b"".join(pieces).decode() == text
    if encoding.startswith("utf"):
        with pytest.raises(Damaged, match="its text is not"):
            list(as_utf8([data[:-1] if encoding == "utf-16" else b"\xff\xfe\xfa"], encoding))


def _hadoop(codec: str, data: bytes, block: int) -> bytes:
    """As Hadoop writes it: the length of a block, then its pieces, each with its compressed length."""
    out = b""
    for at in range(0, len(data), block):
        whole = data[at : at + block]
        out += len(whole).to_bytes(4, "big")
        for piece in (whole[: block // 2], whole[block // 2 :]):
            if piece:
                packed = pa.Codec(codec).compress(piece, asbytes=True)
                out += len(packed).to_bytes(4, "big") + packed
    return out


PACKED = {
    ".gz": lambda data: gzip.compress(data[:100]) + gzip.compress(data[100:]),  # two members, as after an append
    ".bz2": bz2.compress,
    ".zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
    ".deflate": zlib.compress,
    ".lz4": lambda data: _hadoop("lz4_raw", data, 1000),
    ".snappy": lambda data: _hadoop("snappy", data, 1000),
}


@pytest.mark.parametrize("ending", PACKED)
def test_compressed_files_are_read_by_their_ending_and_damaged_ones_refused(ending: str) -> None:
    rng = np.random.default_rng(1)
    data = b"\n".join(rng.bytes(20).hex().encode() * int(rng.integers(1, 4)) for _ in range(300))
    packed = PACKED[ending](data)
    assert ending_of(f"a.json{ending.upper()}") == ending
    assert b"".join(decompressed(io.BytesIO(packed), ending)) == data
    for broken in (packed[: len(packed) // 2], packed[:-3], b"{}" * 20):
        with pytest.raises(Damaged):
            list(decompressed(io.BytesIO(broken), ending))


def test_a_file_that_is_not_compressed_has_no_ending() -> None:
    assert ending_of("gz.json") is None and ending_of("a.gz.json") is None
