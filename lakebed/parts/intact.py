"""Whether a part's file is what was written, by a CRC-32 of the whole file, which is in the log beside the part.

Pages have checksums of their own. Page headers, the footer, Bloom filters and page indexes have none, and DuckDB and most readers
compare none. A bit that flips in the statistics of a footer leaves out rows without an error. So the writer of a part takes the
checksum of the file as it is on the local disk. Merges and uploads, which make other parts of it, and the checks of the table's
health compare it each time. Otherwise damage would be copied and get a checksum of its own. Everybody else compares it once
(``parts.intact``).

Files of other writers, and of versions of lakebed without checksums, have none in the log. Of such a file, the pages that have a
checksum are verified, by reading all of them with Arrow.

**Once a process.** A part of which rows are read is compared before the process reads it for the first time, and again when the
system says that it was changed. To compare it takes a third of a second for a gigabyte, a small part of what it takes to read the
rows, and a file never changes.

- Reads compare local files (``lakebed.verify_reads``); ``all`` compares objects of a store too, which are fetched for that.
- Whatever writes rows again that it has read, or decides by them what to write, compares them in any case: damage must not be
  copied into a file that looks whole. Where only some rows or columns of an object are read, their pages are compared; so are
  those of keys that a settle or an attach looks up.
- A file of another writer has no checksum in the log. Of such a file the pages are compared that have one, before rows are
  written again.
"""

from __future__ import annotations

import os
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import RawIOBase
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lakebed.errors import LakebedError
from lakebed.parts.arrow_source import damaged, is_local, unreadable
from lakebed.settings import VerifyReads
from lakebed.storage.local_folders import process_folder, trouble
from lakebed.storage.part_storage import PartStorage

_BLOCK_BYTES = 1 << 18
_OBJECT_BLOCK_BYTES = 24 << 20  # more than the cache of ranges keeps of one read, so it pushes nothing out
_BATCH_ROWS = 65_536


class File(Protocol):
    """What the log says of a file with rows; ``bytes`` and ``checksum`` are those of the whole file."""

    @property
    def path(self) -> str: ...
    @property
    def bytes(self) -> int: ...
    @property
    def checksum(self) -> int | None: ...


def verify(part: File, storage: PartStorage) -> None:
    """Read the whole file, of ``storage`` or local (``file://…``).

    Raises Corrupt, naming the file, if it is missing or is not what was written; StoreUnavailable.
    """
    url = storage.duckdb_url(part.path)
    if is_local(url):
        verify_local(part, url)
        return
    if part.checksum is not None:
        for _ in _compared(part, _of_object(part.path, storage)):
            pass
        return
    copy = process_folder() / f"verify-{uuid.uuid4().hex}.parquet"
    try:
        stage(part, storage, copy)
    finally:
        copy.unlink(missing_ok=True)


def verify_local(part: File, local_path: str) -> None:
    """``verify``, of a file at a local place."""
    if part.checksum is None:
        verify_pages(part.path, local_path)
        return
    try:
        value, size = _read(local_path)
    except FileNotFoundError as error:
        raise damaged(part.path, "there is no such file") from error
    except OSError as error:
        raise trouble(error.errno, f"{part.path} can't be read ({error})", part.path) from error
    _require(part, value, size)


def stage(part: File, storage: PartStorage, place: Path) -> None:
    """Copy an object to a local place, verified. Raises Corrupt, naming it; StoreUnavailable, also for a full disk."""
    blocks = _of_object(part.path, storage)
    if part.checksum is not None:
        blocks = _compared(part, blocks)
    try:
        with open(place, "wb") as copy:
            for block in blocks:
                copy.write(block)
    except OSError as error:
        raise trouble(error.errno, f"{part.path} can't be copied to {place} ({error})", part.path) from error
    if part.checksum is None:
        verify_pages(part.path, str(place))


@contextmanager
def naming_damaged(parts: Iterable[File], storage: PartStorage) -> Iterator[None]:
    """Wraps code that reads these parts without comparing checksums. If it fails without a reason, the parts are compared.

    Raises Corrupt, naming the first that is damaged. That reads all of them, after a failure that should never happen.
    """
    try:
        yield
    except LakebedError:
        raise
    except Exception:
        for part in parts:
            verify(part, storage)
        raise


def checksum_of(local_path: str) -> int:
    """The CRC-32 of a local file. Raises OSError."""
    return _read(local_path)[0]


def verify_pages(
    path: str, place: str | RawIOBase, columns: Sequence[str] | None = None, rows: Sequence[int] | None = None
) -> None:
    """Decode a file, comparing the checksums of those pages that have one. Raises Corrupt, naming ``path``; StoreUnavailable.

    ``place``: a local file, or what reads another one. ``columns``: which to decode, those that the file lacks left out; of the
    row groups that hold ``rows``. None: all of them.
    """
    try:
        with pq.ParquetFile(place, pre_buffer=False, page_checksum_verification=True) as file:
            groups = None if rows is None else _groups_of(file.metadata, rows)
            for _ in file.iter_batches(_BATCH_ROWS, groups, _there(file.schema_arrow, columns), use_threads=False):
                pass
    except (pa.ArrowMemoryError, pa.ArrowNotImplementedError):  # the latter: a type or codec that Arrow lacks
        return
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:  # the latter: a name in a damaged footer
        raise unreadable(path, error) from error


class _ObjectReader(RawIOBase):
    """Reads an object of a store through the cache of its ranges."""

    def __init__(self, path: str, storage: PartStorage) -> None:
        self._path = path
        self._storage = storage
        self._size = storage.size(path)
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        found = self._storage.read_range(self._path, self._at, len(buffer))
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)


def _groups_of(footer: pq.FileMetaData, rows: Sequence[int]) -> list[int]:
    """The row groups that hold these rows."""
    ends = np.cumsum([footer.row_group(number).num_rows for number in range(footer.num_row_groups)])
    groups: list[int] = np.unique(np.searchsorted(ends, np.asarray(rows), side="right")).tolist()
    return groups


def _there(schema: pa.Schema, columns: Sequence[str] | None) -> list[str] | None:
    return None if columns is None else [name for name in columns if schema.get_field_index(name) >= 0]


def _read(local_path: str) -> tuple[int, int]:
    """The CRC-32 of a file, and its size."""
    value = size = 0
    block = memoryview(bytearray(_BLOCK_BYTES))
    with open(local_path, "rb", buffering=0) as file:
        while count := file.readinto(block):
            value, size = zlib.crc32(block[:count], value), size + count
    return value, size


def _compared(part: File, blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The blocks; after the last one raises Corrupt if they are not what was written."""
    value = size = 0
    for block in blocks:
        value, size = zlib.crc32(block, value), size + len(block)
        yield block
    _require(part, value, size)


def _require(part: File, value: int, size: int) -> None:
    if size != part.bytes:
        raise damaged(part.path, f"it has {size:,} bytes and the log says {part.bytes:,}")
    if value != part.checksum:
        raise damaged(part.path, "its bytes are not those that were written: their checksum differs")


def _of_object(path: str, storage: PartStorage) -> Iterator[bytes]:
    at = 0
    try:
        while block := storage.read_range(path, at, _OBJECT_BLOCK_BYTES):
            at += len(block)
            yield block
    except FileNotFoundError as error:
        raise damaged(path, "there is no such object") from error


_FILES_MAX = 1 << 16
_YOUNG_SECONDS = 2.0
"""A file that changed so lately may change again without another time of change: it is compared at each read."""
_ALONE_BYTES_MAX = 8 << 20  # up to this size, the thread that asks compares the file itself

_THREADS_MAX = 4

_File = TypeVar("_File", bound=File)
_Stamp = tuple[int, ...]
_seen: dict[str, tuple[_Stamp, int | None]] = {}  # by url
_seen_pages: dict[str, frozenset[str]] = {}  # the columns of an object whose pages were compared, by url


def require_intact(
    files: Iterable[File], storage: PartStorage, *, objects: bool = False, of_others: bool = False
) -> None:
    """Raises Corrupt, naming the file, if one is missing or not what was written; StoreUnavailable.

    ``objects``: compare files in an object store too; ``of_others``: decode files without a checksum, to compare their pages.
    """
    wanted = list(_not_seen(files, storage, objects=objects, of_others=of_others))

    def compare(one: tuple[File, str, _Stamp]) -> None:
        file, url, stamp = one
        verify(file, storage)
        if not is_local(url) or _is_settled(stamp, _stamp(url)):
            if len(_seen) >= _FILES_MAX:
                _seen.clear()
            _seen[url] = stamp, file.checksum

    if len(wanted) < 2 or sum(file.bytes for file, *_ in wanted) <= _ALONE_BYTES_MAX:
        for one in wanted:
            compare(one)
        return
    with ThreadPoolExecutor(min(len(wanted), _THREADS_MAX), "lakebed-verify") as pool:
        for _ in pool.map(compare, wanted):
            pass


def not_seen(
    files: Iterable[_File], storage: PartStorage, *, objects: bool = False, of_others: bool = False
) -> list[_File]:
    """Those of the files that ``require_intact`` would compare now."""
    return [file for file, *_ in _not_seen(files, storage, objects=objects, of_others=of_others)]


def _not_seen(
    files: Iterable[_File], storage: PartStorage, *, objects: bool, of_others: bool
) -> Iterator[tuple[_File, str, _Stamp]]:
    """Each with its URL and its stamp; that of an object is empty, since its name is never used again."""
    for file in files:
        if file.checksum is None and not of_others:
            continue
        url = storage.duckdb_url(file.path)
        is_here = is_local(url)
        if not is_here and not objects:
            continue
        stamp = _stamp(url) if is_here else ()
        if _seen.get(url) != (stamp, file.checksum):
            yield file, url, stamp


def require_intact_reads(files: Iterable[File], storage: PartStorage, verify_reads: VerifyReads) -> None:
    """``require_intact``, as a table's property says for reads."""
    if verify_reads != "off":
        require_intact(files, storage, objects=verify_reads == "all")


def require_intact_pages(
    file: File, storage: PartStorage, columns: Sequence[str], rows: Sequence[int] | None = None
) -> None:
    """What ``require_intact`` does for a local file; of an object, compare the pages of these columns alone.

    ``rows``: the row groups that hold them; None for all.
    """
    url = storage.duckdb_url(file.path)
    if is_local(url) and file.checksum is not None:
        require_intact([file], storage)
        return
    try:
        verify_pages(file.path, url if is_local(url) else _ObjectReader(file.path, storage), columns, rows)
    except FileNotFoundError as error:
        raise damaged(file.path, "there is no such object") from error


def require_intact_keys(files: Iterable[File], storage: PartStorage, columns: Sequence[str]) -> None:
    """Before keys are looked up, to decide by them what to write: compare local files, and of objects the pages of these columns.

    Pages of an object are compared once. Raises Corrupt, naming the file; StoreUnavailable.
    """
    files = list(files)
    require_intact(files, storage)
    of_objects = [(url, file) for file in files if not is_local(url := storage.duckdb_url(file.path))]
    wanted = [
        (url, file)
        for url, file in of_objects
        if file.checksum is not None and not _pages_seen(url).issuperset(columns)
    ]

    def compare(one: tuple[str, File]) -> None:
        url, file = one
        require_intact_pages(file, storage, columns)
        if len(_seen_pages) >= _FILES_MAX:
            _seen_pages.clear()
        _seen_pages[url] = _pages_seen(url).union(columns)

    if len(wanted) < 2:
        for one in wanted:
            compare(one)
        return
    with ThreadPoolExecutor(min(len(wanted), _THREADS_MAX), "lakebed-verify") as pool:
        for _ in pool.map(compare, wanted):
            pass


def _pages_seen(url: str) -> frozenset[str]:
    return _seen_pages.get(url, frozenset())


def _stamp(path: str) -> _Stamp:
    """What changes with a local file; empty for one that is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _is_settled(stamp: _Stamp, now: _Stamp) -> bool:
    """Whether what was compared is what the stamp says, and a later change will have another one."""
    return now == stamp and not 0 <= time.time() - now[-1] / 1e9 < _YOUNG_SECONDS
