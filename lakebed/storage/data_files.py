"""The storage of a root's data files, on a local disk or in an object store.

**On a local disk**, or in a network file system, a file is written beside its place under a hidden name, then fsynced, renamed,
and its folder fsynced. DuckDB reads it directly.

**In an object store** data files are written from local temporary files, read by ranges, and given to DuckDB as a file system.
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
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import duckdb

from lakebed.errors import LakebedError
from lakebed.storage.counters import RequestCounter, StoreCounters
from lakebed.storage.engine import naming_unwritable
from lakebed.storage.local_folders import (
    delete_each,
    fsync_folder,
    make_folders,
    process_folder,
    temporary_path,
    trouble,
)
from lakebed.storage.object_store import open_objects
from lakebed.storage.part_storage import PartStorage
from lakebed.storage.range_files import HOST, TAIL_BYTES, BlockCache, RangeFileSystem
from lakebed.storage.roots import LocalRoot, S3Root, local_file, parse_root

if TYPE_CHECKING:
    from lakebed.storage.s3_objects import S3Objects


T = TypeVar("T")

_local_counters: dict[tuple[int, str], RequestCounter] = {}


@dataclass(frozen=True, slots=True)
class LocalPartStorage:
    """``PartStorage`` over a folder; ``root`` is its absolute path."""

    root: str

    @property
    def spark_root(self) -> str:
        return "file://" + self.root

    @property
    def _counter(self) -> RequestCounter:
        return _local_counters.setdefault((os.getpid(), self.root), RequestCounter())

    def counters(self) -> StoreCounters:
        """See ``PartStorage``; what DuckDB reads by itself is not counted."""
        return self._counter.value()

    def duckdb_url(self, path: str) -> str:
        """See ``PartStorage``."""
        return local_file(path) or os.path.join(self.root, path)

    @property
    def duckdb_folder(self) -> str:
        """See ``PartStorage``."""
        return self.root

    def path_of_url(self, url: str) -> str:
        """See ``PartStorage``."""
        return url.removeprefix(os.path.join(self.root, ""))

    def attach(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Nothing to do: DuckDB reads local files itself."""

    def write_file(self, path: str, writer: Callable[[str], T]) -> T:
        """See ``PartStorage``."""
        final = os.path.join(self.root, path)
        folder = os.path.dirname(final)
        make_folders(folder)
        temporary = temporary_path(final)
        try:
            with naming_unwritable(final, temporary):
                result = writer(temporary)
                descriptor = os.open(temporary, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                    written = os.fstat(descriptor).st_size
                finally:
                    os.close(descriptor)
                os.replace(temporary, final)
        except BaseException:
            _unlink_quietly(temporary)
            raise
        fsync_folder(folder)
        self._counter.count("write_file", bytes_written=written)
        return result

    def write_bytes(self, path: str, data: bytes) -> None:
        """See ``PartStorage``."""

        def write(temporary: str) -> None:
            with open(temporary, "wb") as file:
                file.write(data)

        self.write_file(path, write)

    def read_bytes(self, path: str) -> bytes:
        """See ``PartStorage``."""
        with _readable(os.path.join(self.root, path)), open(os.path.join(self.root, path), "rb") as file:
            data = file.read()
        self._counter.count("read", bytes_read=len(data))
        return data

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """See ``PartStorage``."""
        with _readable(os.path.join(self.root, path)), open(os.path.join(self.root, path), "rb") as file:
            file.seek(start)
            data = file.read(length)
        self._counter.count("read_range", bytes_read=len(data))
        return data

    def size(self, path: str) -> int:
        """See ``PartStorage``."""
        with _readable(os.path.join(self.root, path)):
            return os.stat(os.path.join(self.root, path)).st_size

    def forget(self, path: str) -> None:
        """Nothing to do: nothing is kept."""

    def exists(self, path: str) -> bool:
        """See ``PartStorage``."""
        return os.path.isfile(os.path.join(self.root, path))

    def delete(self, path: str) -> None:
        """See ``PartStorage``."""
        self._counter.count("delete")
        try:
            os.unlink(os.path.join(self.root, path))
        except FileNotFoundError:
            return
        except OSError as error:
            raise trouble(error.errno, f"{path!r} can't be deleted below {self.root!r} ({error})", path) from error

    def delete_many(self, paths: Sequence[str]) -> dict[str, LakebedError]:
        """See ``PartStorage``."""
        return delete_each(self.delete, paths)

    def now(self) -> float:
        """See ``PartStorage``. A network file system has a clock of its own."""
        place = temporary_path(os.path.join(self.root, "now"))
        try:
            with open(place, "wb") as file:
                return os.fstat(file.fileno()).st_mtime
        except OSError as error:
            raise trouble(error.errno, f"{self.root} can't be written to ({error})", self.root) from error
        finally:
            _unlink_quietly(place)

    def list(self, prefix: str = "") -> Iterator[tuple[str, int, float]]:
        """See ``PartStorage``."""
        self._counter.count("list")
        top = os.path.join(self.root, os.path.dirname(prefix))
        for folder, _, names in os.walk(top):
            below = os.path.relpath(folder, self.root)
            for name in names:
                path = name if below == "." else f"{below}/{name}"
                if not path.startswith(prefix):
                    continue
                try:
                    status = os.stat(os.path.join(folder, name), follow_symlinks=False)
                except FileNotFoundError:
                    continue  # removed while we looked
                yield path, status.st_size, status.st_mtime


@contextmanager
def _readable(path: str) -> Iterator[None]:
    """Turns an error of the disk into one that names the path; a missing file stays FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise trouble(error.errno, f"{path!r} can't be read ({error.strerror})", path) from error


def _unlink_quietly(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return  # the vacuum finds it: `list` shows hidden files too


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


def open_part_storage(root: str | os.PathLike[str]) -> PartStorage:
    """The storage of a root: a local path or ``s3://bucket/prefix``. No request is made, nothing is created."""
    place = parse_root(root)
    if isinstance(place, LocalRoot):
        return LocalPartStorage(place.path)
    open_objects(place)  # so that a missing client is reported here
    return RemotePartStorage(place, open_objects)
