"""Where the data files of a table live (parts, deletion vectors), on the same root as its log.

Invariants
- A file appears under its path whole and durable, or not at all: a commit may name it as soon as the write returned.
- Files are immutable and their names are never used again, so what was read once may be kept (see ``range_cache``).
- Paths are relative to the root, with ``/``, as a human reads them: not percent-encoded, as they are in the log.
- A storage is a small picklable value: tasks get it, and open what they need in their own process.

Local files are written beside their place under a hidden name, then fsynced, renamed and their folder fsynced.
DuckDB reads them directly; objects in S3 it reads through a file system of ours (``s3_storage``) that ``attach`` adds.
Readers must pass ``hive_partitioning=false`` to DuckDB, else a folder such as ``day=1`` on the way adds a column.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import duckdb

from lakebed.errors import InvalidInput, LakebedError, MissingPrerequisite, StoreUnavailable
from lakebed.storage.counters import OperationCount, RequestCounter, StoreCounters
from lakebed.storage.file_errors import naming_unwritable
from lakebed.storage.local_files import fsync_folder, make_folders, temporary_path
from lakebed.storage.roots import LocalRoot, local_file, parse_root

if TYPE_CHECKING:
    from lakebed.storage.s3_part_storage import S3PartStorage

__all__ = [
    "LocalPartStorage",
    "OperationCount",
    "PartStorage",
    "StoreCounters",
    "open_part_storage",
]

T = TypeVar("T")


class PartStorage(Protocol):
    """The data files below one root."""

    @property
    def root(self) -> str:
        """The root, normalised: an absolute path or ``s3://bucket/prefix``."""
        ...

    @property
    def spark_root(self) -> str:
        """The root as Spark spells it: ``file:///…`` or ``s3a://…``."""
        ...

    def counters(self) -> StoreCounters:
        """Requests and bytes of this process on this root so far; take the difference of two values."""
        ...

    def duckdb_url(self, path: str) -> str:
        """What ``read_parquet`` takes for a file, on a connection that was attached; ``file://…`` is a file elsewhere."""
        ...

    @property
    def duckdb_folder(self) -> str:
        """What the urls of the files below the root begin with, without the slash."""
        ...

    def path_of_url(self, url: str) -> str:
        """The path of a url, as DuckDB's ``filename`` column gives it back."""
        ...

    def attach(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Let a connection, and all cursors of its database, read the urls; doing it again is no error."""
        ...

    def write_file(self, path: str, writer: Callable[[str], T]) -> T:
        """Call ``writer`` with a local path to write to; on return the file is durable at ``path``."""
        ...

    def write_bytes(self, path: str, data: bytes) -> None:
        """Make a file of these bytes durable at ``path``."""
        ...

    def read_bytes(self, path: str) -> bytes:
        """The whole file. Raises FileNotFoundError, StoreUnavailable."""
        ...

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """At most ``length`` bytes from ``start`` (fewer at the end of the file)."""
        ...

    def size(self, path: str) -> int:
        """The file's bytes. Raises FileNotFoundError."""
        ...

    def forget(self, path: str) -> None:
        """The next read asks the store: nothing of the file is taken from memory."""
        ...

    def exists(self, path: str) -> bool:
        """Is there such a file now?"""
        ...

    def delete(self, path: str) -> None:
        """Remove a file; one that is not there is no error."""
        ...

    def delete_many(self, paths: Sequence[str]) -> dict[str, LakebedError]:
        """Remove files in as few requests as the store allows; returns why, for each that could not be removed."""
        ...

    def list(self, prefix: str = "") -> Iterator[tuple[str, int, float]]:
        """All files whose path begins with ``prefix``: (path, bytes, modified in epoch seconds), in no order.

        Also what a crashed writer left behind: a vacuum wants to see everything.
        """
        ...

    def now(self) -> float:
        """The time by the clock that stamps the files here, in epoch seconds. Raises StoreUnavailable."""
        ...


def open_part_storage(root: str | os.PathLike[str]) -> PartStorage:
    """The storage of a root: a local path or ``s3://bucket/prefix``. No request is made, nothing is created."""
    place = parse_root(root)
    if isinstance(place, LocalRoot):
        return LocalPartStorage(place.path)
    try:
        module = importlib.import_module("lakebed.storage.s3_part_storage")  # boto3 is wanted only by those who use S3
    except ModuleNotFoundError as error:
        raise MissingPrerequisite(f"{place} needs boto3: pip install 'lakebed[s3]'") from error
    storage: S3PartStorage = module.S3PartStorage(place)
    return storage


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
            raise InvalidInput(
                f"{path!r} can't be deleted below {self.root!r} ({error}); check its permissions"
            ) from error

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
            raise StoreUnavailable(f"{self.root} can't be written to ({error}); check the disk") from error
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


def delete_each(delete: Callable[[str], None], paths: Iterable[str]) -> dict[str, LakebedError]:
    """Delete one after the other; returns why, for each that could not be."""
    failed: dict[str, LakebedError] = {}
    for path in paths:
        try:
            delete(path)
        except LakebedError as error:
            failed[path] = error
    return failed


@contextmanager
def _readable(path: str) -> Iterator[None]:
    """Turns what a failing disk says into an error that names the path; a missing file stays FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (PermissionError, IsADirectoryError, NotADirectoryError) as error:
        raise InvalidInput(f"{path!r} can't be read ({error.strerror}); check its permissions") from error
    except OSError as error:
        raise StoreUnavailable(f"{path!r} can't be read ({error.strerror}); check the disk") from error


def _unlink_quietly(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return  # the vacuum finds it: `list` shows hidden files too
