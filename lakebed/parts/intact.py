"""Files that this process has seen to be what was written, so that each is compared once.

No checksum of Parquet covers page headers and footers, and DuckDB compares not even those of pages. So a bit that flips becomes
another value, without an error. The log has a checksum of each whole file (``parts.checksum``). To compare it takes a third of a
second for a gigabyte, a small part of what it takes to read the rows, and a file never changes. So a local file is compared as a
whole before the process reads it for the first time, and again when the system says that it was changed.

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
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from lakebed.parts.arrow_source import damaged, is_local
from lakebed.parts.checksum import File, ObjectReader, verify, verify_pages
from lakebed.settings import VerifyReads
from lakebed.storage.part_storage import PartStorage

_FILES_MAX = 1 << 16
_YOUNG_SECONDS = 2.0
"""A file that changed so lately may change again without another time of change: it is compared at each read."""
_ALONE_BYTES_MAX = 8 << 20
"""So much is compared by the thread that asks."""

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
    wanted = not_seen(files, storage, objects=objects, of_others=of_others)

    def compare(file: File) -> None:
        url = storage.duckdb_url(file.path)
        stamp = _stamp(url)
        verify(file, storage)
        if _is_settled(url, stamp):
            if len(_seen) >= _FILES_MAX:
                _seen.clear()
            _seen[url] = stamp, file.checksum

    if len(wanted) < 2 or sum(file.bytes for file in wanted) <= _ALONE_BYTES_MAX:
        for file in wanted:
            compare(file)
        return
    with ThreadPoolExecutor(min(len(wanted), _THREADS_MAX), "lakebed-verify") as pool:
        for _ in pool.map(compare, wanted):
            pass


def not_seen(
    files: Iterable[_File], storage: PartStorage, *, objects: bool = False, of_others: bool = False
) -> list[_File]:
    """Those of the files that ``require_intact`` would compare now."""
    wanted = []
    for file in files:
        url = storage.duckdb_url(file.path)
        counts = (file.checksum is not None or of_others) and (objects or is_local(url))
        if counts and _seen.get(url) != (_stamp(url), file.checksum):
            wanted.append(file)
    return wanted


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
        verify_pages(file.path, url if is_local(url) else ObjectReader(file.path, storage), columns, rows)
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


def _stamp(url: str) -> _Stamp:
    """What changes with a local file; empty for one that is not there, and for an object, whose name is never used again."""
    if not is_local(url):
        return ()
    try:
        found = os.stat(url)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _is_settled(url: str, stamp: _Stamp) -> bool:
    """Whether what was compared is what the stamp says, and a later change will have another one."""
    if not is_local(url):
        return True
    now = _stamp(url)
    return now == stamp and not 0 <= time.time() - now[-1] / 1e9 < _YOUNG_SECONDS
