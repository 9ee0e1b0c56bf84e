"""The bytes of compressed files, by the ending of a file's name, as Hadoop takes it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

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
