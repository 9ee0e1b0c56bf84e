"""Data files in a folder of a local disk, or of a network file system.

A file is written beside its place under a hidden name, then fsynced, renamed, and its folder fsynced. DuckDB reads it directly.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import duckdb

from lakebed.errors import LakebedError
from lakebed.storage.counters import RequestCounter, StoreCounters
from lakebed.storage.delete_each import delete_each
from lakebed.storage.file_errors import naming_unwritable
from lakebed.storage.local_files import fsync_folder, make_folders, temporary_path, trouble
from lakebed.storage.roots import local_file

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
