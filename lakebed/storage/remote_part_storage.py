"""Data files in an object store: written from local temporary files, read by ranges, given to DuckDB as a file system.

Read: every range goes through the process's ``BlockCache``, so footers, small parts and blocks that settles read again
cost no request. A small file is in it as soon as it is written: the settle after it asks for nothing.
Write: one PutObject up to ``SINGLE_PUT_BYTES_MAX``, above it a multipart upload with a few parts in flight.
"""

from __future__ import annotations

import os
import threading
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import duckdb

from lakebed.errors import LakebedError
from lakebed.storage.counters import StoreCounters
from lakebed.storage.file_errors import naming_unwritable
from lakebed.storage.local_folders import process_folder
from lakebed.storage.range_files import HOST, TAIL_BYTES, BlockCache, RangeFileSystem
from lakebed.storage.roots import S3Root, local_file

if TYPE_CHECKING:
    from lakebed.storage.s3.objects import S3Objects

T = TypeVar("T")

SINGLE_PUT_BYTES_MAX = 32 << 20

_lock = threading.Lock()
_cache = BlockCache()
_readers: dict[S3Root, _CachedObjects] = {}


def _after_fork_in_child() -> None:
    global _lock, _cache
    _lock = threading.Lock()
    _cache = BlockCache()
    _readers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


@dataclass(frozen=True, slots=True)
class RemotePartStorage:
    """``PartStorage`` over a bucket and a prefix.

    ``open_objects`` gives what sends the requests, once in each process: locks and counts must not pass through a fork.
    """

    place: S3Root
    open_objects: Callable[[S3Root], S3Objects] = field(compare=False)

    @property
    def root(self) -> str:
        return str(self.place)

    @property
    def spark_root(self) -> str:
        return self.place.spark_root

    @property
    def _reader(self) -> _CachedObjects:
        with _lock:
            reader = _readers.get(self.place)
            if reader is None:
                reader = _readers[self.place] = _CachedObjects(self.open_objects(self.place), _cache)
            return reader

    @property
    def _protocol(self) -> str:
        """A scheme for this root alone, so that a connection may read several roots."""
        return f"lakebed{zlib.crc32(self.root.encode()):08x}"

    def counters(self) -> StoreCounters:
        """See ``PartStorage``."""
        return self._reader.objects.counters()

    def duckdb_url(self, path: str) -> str:
        """See ``PartStorage``."""
        return local_file(path) or f"{self.duckdb_folder}/{path}"

    @property
    def duckdb_folder(self) -> str:
        """See ``PartStorage``."""
        return f"{self._protocol}://{HOST}"

    def path_of_url(self, url: str) -> str:
        """See ``PartStorage``."""
        return url.removeprefix(f"{self.duckdb_folder}/")

    def attach(self, connection: duckdb.DuckDBPyConnection) -> None:
        """See ``PartStorage``."""
        with _lock:
            attached = connection.filesystem_is_registered(self._protocol)
        if not attached:
            try:
                connection.register_filesystem(RangeFileSystem(self._protocol, self._reader))
            except duckdb.Error:
                if not connection.filesystem_is_registered(self._protocol):  # else another thread was faster
                    raise

    def write_file(self, path: str, writer: Callable[[str], T]) -> T:
        """See ``PartStorage``."""
        ending = os.path.splitext(path)[1]
        temporary = str(process_folder() / f"upload-{uuid.uuid4().hex}{ending}")
        try:
            with naming_unwritable(temporary, temporary):
                result = writer(temporary)
                size = os.stat(temporary).st_size
            if size <= SINGLE_PUT_BYTES_MAX:
                with open(temporary, "rb") as file:
                    self.write_bytes(path, file.read())
            else:
                self._reader.objects.upload(path, temporary, size)
        finally:
            if os.path.exists(temporary):
                os.unlink(temporary)
        return result

    def write_bytes(self, path: str, data: bytes) -> None:
        """See ``PartStorage``."""
        self._reader.put(path, data)

    def read_bytes(self, path: str) -> bytes:
        """See ``PartStorage``."""
        return self._reader.read(path, 0, self._reader.meet(path))

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """See ``PartStorage``."""
        return self._reader.read(path, start, length)

    def size(self, path: str) -> int:
        """See ``PartStorage``."""
        known = _cache.size(self._reader.key(path))
        return self._reader.objects.size(path) if known is None else known

    def forget(self, path: str) -> None:
        """See ``PartStorage``."""
        self._reader.forget(path)

    def exists(self, path: str) -> bool:
        """See ``PartStorage``. Always asks the store."""
        try:
            self._reader.objects.size(path)
        except FileNotFoundError:
            return False
        return True

    def delete(self, path: str) -> None:
        """See ``PartStorage``."""
        self._reader.delete(path)

    def delete_many(self, paths: Sequence[str]) -> dict[str, LakebedError]:
        """See ``PartStorage``."""
        return self._reader.delete_many(paths)

    def list(self, prefix: str = "") -> Iterator[tuple[str, int, float]]:
        """See ``PartStorage``."""
        return self._reader.objects.list(prefix)

    def now(self) -> float:
        """See ``PartStorage``."""
        return self._reader.objects.now()


class _CachedObjects:
    """The objects below one root, whose ranges are kept in this process's cache."""

    def __init__(self, objects: S3Objects, cache: BlockCache) -> None:
        self.objects = objects
        self._cache = cache

    def key(self, path: str) -> str:
        """The name of a file in the cache."""
        return f"{self.objects.root}/{path}"

    def meet(self, path: str) -> int:
        """The file's size; of a new file this fetches the last bytes."""
        return self._cache.meet(self.key(path), lambda _, length: self.objects.read_tail(path, length))

    def read(self, path: str, start: int, length: int) -> bytes:
        """At most ``length`` bytes from ``start``."""
        return self._cache.read(
            self.key(path),
            start,
            length,
            lambda _, begin, end: self.objects.read_range(path, begin, end),
            lambda _, wanted: self.objects.read_tail(path, wanted),
        )

    def put(self, path: str, data: bytes) -> None:
        """Write a file; a small one stays in the cache, since the next settle reads it."""
        self.objects.put(path, data)
        if len(data) <= TAIL_BYTES:
            self._cache.insert_tail(self.key(path), data, len(data))

    def forget(self, path: str) -> None:
        """Drop the file from the cache, so that the next read asks the store."""
        self._cache.forget(self.key(path))

    def delete(self, path: str) -> None:
        """Remove a file; one that is not there is no error."""
        self.forget(path)
        self.objects.delete(path)

    def delete_many(self, paths: Sequence[str]) -> dict[str, LakebedError]:
        """Remove files; returns why, for each that could not be removed."""
        for path in paths:
            self.forget(path)
        return self.objects.delete_many(paths)
