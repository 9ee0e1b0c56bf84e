"""Immutable remote files, read by ranges: each byte is fetched once while it stays in a bounded memory, also for DuckDB.

Invariants: what is kept never exceeds ``bytes_max``; a block in flight is awaited, not asked for twice; a file that was
forgotten (deleted) is never served from memory by a read that begins later.

1. The first request for a file asks for its end: the last ``TAIL_BYTES`` give its size, its Parquet footer, and the
   whole of a small file.
2. Later reads are cut at multiples of ``BLOCK_BYTES``. Blocks that are neither kept nor in flight are fetched in
   as few requests as there are gaps, each one range.
3. The least recently used block is evicted first. A read longer than a part of the memory is passed on and not kept:
   a merge reads everything once and must not evict what settles read repeatedly.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any, Protocol

from fsspec import AbstractFileSystem

from lakebed.errors import Unsupported
from lakebed.failures import as_text

BLOCK_BYTES = 256 << 10
TAIL_BYTES = 1 << 20
_CACHE_BYTES_MAX = 128 << 20
_SIZES_MAX = 100_000

# fetch(file, start, end): the bytes [start, end). fetch_tail(file, length): the last bytes and the size of the file.
_Fetch = Callable[[str, int, int], bytes]
_FetchTail = Callable[[str, int], "tuple[bytes, int]"]


class BlockCache:
    """The memory shared by all readers of a process."""

    def __init__(self, bytes_max: int = _CACHE_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self._lock = threading.Lock()
        self._blocks: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._bytes = 0
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._in_flight: dict[tuple[str, int], Future[bytes]] = {}

    @property
    def bytes_kept(self) -> int:
        """Bytes of blocks in memory."""
        return self._bytes

    def size(self, file: str) -> int | None:
        """The file's size, if it is known."""
        with self._lock:
            return self._sizes.get(file)

    def insert_tail(self, file: str, tail: bytes, size: int) -> None:
        """Keep the last bytes of a file: those of its blocks that are whole in them."""
        begin = size - len(tail)
        with self._lock:
            self._sizes[file] = size
            self._sizes.move_to_end(file)
            while len(self._sizes) > _SIZES_MAX:
                self._sizes.popitem(last=False)
            for block in range(-(-begin // BLOCK_BYTES), -(-size // BLOCK_BYTES)):
                start = block * BLOCK_BYTES - begin
                self._keep((file, block), tail[start : start + BLOCK_BYTES])

    def forget(self, file: str) -> None:
        """Drop a file that was deleted."""
        with self._lock:
            size = self._sizes.pop(file, 0)
            for block in range(-(-size // BLOCK_BYTES)):
                gone = self._blocks.pop((file, block), None)
                self._bytes -= len(gone or b"")

    def read(self, file: str, start: int, length: int, fetch: _Fetch, fetch_tail: _FetchTail) -> bytes:
        """The bytes [start, start + length), cut at the end of the file."""
        size = self.size(file)
        if size is None:
            size = self.meet(file, fetch_tail)
        end = min(start + length, size)
        if end <= start:
            return b""
        first, last = start // BLOCK_BYTES, (end - 1) // BLOCK_BYTES
        blocks = self._blocks_of(file, range(first, last + 1), size, fetch)
        if first == last:
            return blocks[first][start - first * BLOCK_BYTES : end - first * BLOCK_BYTES]
        pieces = [blocks[number] for number in range(first, last + 1)]
        pieces[0] = pieces[0][start - first * BLOCK_BYTES :]
        pieces[-1] = pieces[-1][: end - last * BLOCK_BYTES]
        return b"".join(pieces)

    def meet(self, file: str, fetch_tail: _FetchTail) -> int:
        """The file's size; fetches the file's last bytes first, unless they were fetched or another thread is doing it."""
        tail_key = (file, -1)
        mine: Future[bytes] = Future()
        with self._lock:
            known = self._sizes.get(file)
            if known is not None:
                return known
            others = self._in_flight.get(tail_key)
            if others is None:
                self._in_flight[tail_key] = mine
        if others is not None:
            return int(others.result())
        try:
            tail, size = fetch_tail(file, TAIL_BYTES)
            self.insert_tail(file, tail, size)
        except BaseException as error:
            mine.set_exception(error)
            raise
        else:
            mine.set_result(str(size).encode())
            return size
        finally:
            with self._lock:
                self._in_flight.pop(tail_key, None)

    def _blocks_of(self, file: str, wanted: range, size: int, fetch: _Fetch) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        awaited: dict[int, Future[bytes]] = {}
        missing: dict[int, Future[bytes]] = {}
        with self._lock:
            for number in wanted:
                key = (file, number)
                kept = self._blocks.get(key)
                if kept is not None:
                    self._blocks.move_to_end(key)
                    found[number] = kept
                elif key in self._in_flight:
                    awaited[number] = self._in_flight[key]
                else:
                    missing[number] = self._in_flight[key] = Future()
        try:
            for first, last in _without_gaps(list(missing)):
                data = memoryview(fetch(file, first * BLOCK_BYTES, min((last + 1) * BLOCK_BYTES, size)))
                keep = len(data) <= self.bytes_max // 8
                for number in range(first, last + 1):
                    at = (number - first) * BLOCK_BYTES
                    block = bytes(data[at : at + BLOCK_BYTES])
                    found[number] = block
                    with self._lock:
                        if keep:
                            self._keep((file, number), block)
                        self._in_flight.pop((file, number), None)
                    missing.pop(number).set_result(block)
        except BaseException as error:
            for number, future in missing.items():
                with self._lock:
                    self._in_flight.pop((file, number), None)
                future.set_exception(error)
            raise
        for number, future in awaited.items():
            found[number] = future.result()
        return found

    def _keep(self, key: tuple[str, int], block: bytes) -> None:
        old = self._blocks.pop(key, None)
        self._bytes += len(block) - len(old or b"")
        self._blocks[key] = block
        while self._bytes > self.bytes_max:
            _, gone = self._blocks.popitem(last=False)
            self._bytes -= len(gone)


def _without_gaps(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Ascending numbers as sequences without gaps: (first, last)."""
    at = 0
    while at < len(numbers):
        end = at
        while end + 1 < len(numbers) and numbers[end + 1] == numbers[end] + 1:
            end += 1
        yield numbers[at], numbers[end]
        at = end + 1


# -- Objects as DuckDB reads them: an fsspec file system over ranges that makes no needless request ------------------------


_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
HOST = "table"  # DuckDB grants access to what is below a place, and a scheme alone is not a place


class _Ranges(Protocol):
    """Files that are read by ranges."""

    def meet(self, path: str) -> int:
        """The file's size in bytes. Raises FileNotFoundError."""
        ...

    def read(self, path: str, start: int, length: int) -> bytes:
        """At most ``length`` bytes from ``start``."""
        ...


class _RangeFile:
    """An object as DuckDB reads it: a file of ``_Ranges`` and a position in it."""

    def __init__(self, reader: _Ranges, path: str) -> None:
        self._reader, self._path, self._at = reader, path, 0

    def seekable(self) -> bool:
        """True, so that DuckDB prefetches whole column chunks."""
        return True

    @as_text()
    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to ``offset`` from the start (0), from here (1) or from the end (2)."""
        base = (0, self._at, self._reader.meet(self._path) if whence == 2 else 0)[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        """The position."""
        return self._at

    @as_text()
    def read(self, length: int = -1) -> bytes:
        """The next bytes; all that are left by default."""
        if length < 0:
            length = self._reader.meet(self._path) - self._at
        data = self._reader.read(self._path, self._at, length)
        self._at += len(data)
        return data

    def close(self) -> None:
        """Nothing is held open."""


class RangeFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The part of fsspec that DuckDB calls to read: no listing, no writing, and no request beyond the reads."""

    cachable = False

    def __init__(self, protocol: str, reader: _Ranges) -> None:
        super().__init__(skip_instance_cache=True)
        self.protocol = protocol
        self._reader = reader

    def _path(self, url: str) -> str:
        return url.removeprefix(f"{self.protocol}://{HOST}/")

    @as_text()
    def open(self, path: str, mode: str = "rb", **_: Any) -> _RangeFile:
        """A file to read. Raises FileNotFoundError."""
        if mode != "rb":
            raise Unsupported(f"{path} can't be opened with mode {mode!r}: write with write_file", path=path)
        self._reader.meet(self._path(path))
        return _RangeFile(self._reader, self._path(path))

    def glob(self, path: str, **_: Any) -> list[str]:
        """The path itself: names of parts hold no patterns, and a listing would cost a request."""
        return [path]

    @as_text()
    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Name, size and kind."""
        return {"name": path, "size": self._reader.meet(self._path(path)), "type": "file"}

    @as_text()
    def size(self, path: str) -> int:
        """The file's bytes."""
        return self._reader.meet(self._path(path))

    def modified(self, path: str) -> datetime:
        """Files never change, so any fixed time serves DuckDB's own caches."""
        return _LONG_AGO

    @as_text()
    def exists(self, path: str, **_: Any) -> bool:
        """Whether there is such an object."""
        try:
            self._reader.meet(self._path(path))
        except FileNotFoundError:
            return False
        return True

    def isfile(self, path: str) -> bool:
        """There are no folders."""
        return self.exists(path)
