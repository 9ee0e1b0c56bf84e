"""Folders of lakebed on the local disk of this machine: for what can be rebuilt from tables, and of one living process.

The owner holds a lock on a file in its folder. The operating system frees it when the process ends, however it ends, so
whether an owner lives is never guessed from a process number.

``process_folder``: what a process needs on disk only while it lives
1. The first call makes a new folder in the system's temporary folder and locks it. If another process took it for one
   left behind before it was locked, that folder is gone, and a new one is made.
2. It then deletes the folders of the same user that it can lock: their owners were killed.
3. A process that ends removes its own. A forked child gets a folder of its own.

``SpillBuckets``: rows set aside on local disk, bucket by bucket: the first pass of an external distribution sort

A bucket is a file in Arrow's stream format, compressed with lz4; each table added is written as it is, with the dictionaries
that its values need. So it takes the memory of one table, and about the disk space of the compressed rows.

Files and folders are made so that they survive a power failure.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import logging
import os
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import NoReturn

import pyarrow as pa

from lakebed.errors import InvalidInput, LakebedError, StoreUnavailable

TEMPORARY_PREFIX = ".lakebed-tmp-"
NOT_ALLOWED = {errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EPERM}
TOO_MANY_OPEN = {errno.EMFILE, errno.ENFILE}

UNUSED_DAYS = 30
_DAY = 24 * 3600
_LOCK = "lock"
_LOOKED = "looked"
_logger = logging.getLogger("lakebed.storage")

SPILL_BUCKETS_MAX = 500  # each is an open file while rows come in
SPILL_BUCKETS_PREFIX = "spill-buckets-"


class SpillBuckets:
    """``count`` files in a folder of their own, which is deleted when the context ends."""

    def __init__(self, schema: pa.Schema, count: int) -> None:
        self._schema = schema
        self._count = count
        self._stack = ExitStack()
        self._writers: list[pa.ipc.RecordBatchStreamWriter] = []

    def __enter__(self) -> SpillBuckets:
        folder = self._stack.enter_context(
            tempfile.TemporaryDirectory(prefix=SPILL_BUCKETS_PREFIX, dir=process_folder())
        )
        self._folder = Path(folder)
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        try:
            self._writers = [
                pa.ipc.new_stream(str(self._file(number)), self._schema, options=options)
                for number in range(self._count)
            ]
        except OSError as error:  # too many open files, or a full disk
            self._stack.close()
            raise _no_room(self._folder, error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writers = []
        self._stack.close()

    def add(self, number: int, rows: pa.Table) -> None:
        """Append rows to a bucket. Raises StoreUnavailable for a full disk."""
        try:
            self._writers[number].write_table(rows)
        except OSError as error:
            raise _no_room(self._folder, error) from error

    def close(self) -> None:
        """No more rows come. Raises StoreUnavailable for a full disk."""
        try:
            for writer in self._writers:
                writer.close()
        except OSError as error:
            raise _no_room(self._folder, error) from error

    def read(self, number: int, columns: Sequence[str]) -> pa.Table:
        """The rows of a bucket in the order in which they came."""
        with pa.memory_map(str(self._file(number))) as file:
            return pa.ipc.open_stream(file).read_all().select(list(columns))

    def _file(self, number: int) -> Path:
        return self._folder / f"{number}.arrows"


def _no_room(folder: Path, error: OSError) -> LakebedError:
    return trouble(error.errno, f"rows that a merge sets aside can't be written to {folder} ({error})", str(folder))


# -- Where this user's processes keep on local disk what can be rebuilt from tables ----------------------------------------


def base_folder() -> Path:
    """``LAKEBED_CACHE_DIR``, or ``lakebed`` in the user's cache folder."""
    base: str = os.environ.get("LAKEBED_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "lakebed"
    )
    return Path(base)


def cache_folder() -> Path:
    """One folder for all tables."""
    return base_folder() / "tables"


def volatile_folder() -> Path:
    """The materialized parts of this host, a folder a table."""
    return cache_folder() / "volatile"


def remove_unused(top: Path) -> None:
    """Delete the folders of tables in ``top`` that no process has used for ``UNUSED_DAYS``; looks once a day.

    So what is kept of tables that were dropped, or that another host maintains now, does not stay for ever. A folder that is
    used has a lock, right in it or one level below, and its newest change or the last start of a process tells its age.
    """
    looked, now = top / _LOOKED, time.time()
    try:
        if looked.exists() and abs(now - looked.stat().st_mtime) < _DAY:
            return
        looked.touch()
        for folder in entries_of(top):
            places = [folder, *(place.parent for place in folder.glob(f"*/{_LOCK}"))]
            used = [place.stat().st_mtime for each in places for place in (each, each / _LOCK) if place.exists()]
            if len(used) > 1 and now - max(used) > UNUSED_DAYS * _DAY:
                _remove_if_free(folder, [place for place in places if (place / _LOCK).exists()])
    except OSError as error:
        _logger.warning("what is not used any more in %s can't be deleted: %s", top, error)


def _remove_if_free(folder: Path, places: Iterable[Path]) -> None:
    locks = [_lock(place, 0) for place in places]
    if None not in locks:
        shutil.rmtree(folder, ignore_errors=True)
    for lock in locks:
        if lock is not None:
            os.close(lock)


# -- Local folders that belong to one living process -----------------------------------------------------------------------


_PREFIX = "lakebed-process-"
_guard = threading.Lock()
_own: dict[str, tuple[Path, int]] = {}  # by the system's temporary folder


def lock_folder(folder: Path) -> int | None:
    """Make the folder this process's: an open file, to be kept open; None if it is another living process's.

    The folder is made if need be.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = _lock(folder, os.O_CREAT)
    if lock is not None:
        os.utime(lock)
    return lock


def process_folder() -> Path:
    """The folder of this process in the system's temporary folder; it is deleted when the process ends."""
    top = tempfile.gettempdir()
    with _guard:
        is_missing = top not in _own or not _own[top][0].exists()  # some systems delete old files there
        if is_missing:
            while True:
                folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
                lock = _lock(folder, os.O_CREAT)
                if lock is not None:
                    break
            _own[top] = folder, lock
        own, _ = _own[top]
    if is_missing:
        _remove_abandoned(Path(top))  # they may be large: only the first caller waits for it
    return own


def _lock(folder: Path, flags: int) -> int | None:
    """The folder's lock file, locked; None if it is another's or not there."""
    place = folder / _LOCK
    try:
        lock = os.open(place, os.O_RDWR | flags, 0o644)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), os.stat(place)):
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(lock)
    return None


def _remove_abandoned(top: Path) -> None:
    for folder in _folders_of_this_user(top):
        lock = _lock(folder, 0)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _folders_of_this_user(top: Path) -> Iterator[Path]:
    with os.scandir(top) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False):
                try:
                    if entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                        yield Path(entry.path)
                except FileNotFoundError:
                    continue


def _remove_own() -> None:
    for folder, lock in _own.values():
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
    _own.clear()


def _forget_inherited() -> None:
    global _guard
    for _, lock in _own.values():
        os.close(lock)  # the parent's folder stays locked: the lock is freed when all who share it have closed it
    _own.clear()
    _guard = threading.Lock()  # another thread of the parent may have held the old one


atexit.register(_remove_own)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_inherited)


def delete_each(delete: Callable[[str], None], paths: Iterable[str]) -> dict[str, LakebedError]:
    """Delete one after the other; returns the error of each that could not be deleted."""
    failed: dict[str, LakebedError] = {}
    for path in paths:
        try:
            delete(path)
        except LakebedError as error:
            failed[path] = error
    return failed


def make_folders(folder: str) -> None:
    """Make a folder and those above it, each entry durable."""
    if os.path.isdir(folder):
        return
    parent = os.path.dirname(folder)
    if parent != folder:
        make_folders(parent)
    try:
        os.mkdir(folder)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise InvalidInput(f"{folder!r} is a file, so no table can lie below it; choose another path") from None
    except OSError as error:
        raise_for(error, folder)
    fsync_folder(parent)


def fsync_folder(folder: str) -> None:
    """Make the entries of a folder durable."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return  # some network file systems have no fsync of folders; their entries are durable when made
        raise trouble(error.errno, f"could not make the entries of {folder!r} durable ({error})", folder) from error


def entries_of(folder: Path) -> list[Path]:
    """What is directly in a folder; nothing if it is gone, or this user may not read it. Raises OSError."""
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


def files_below(folder: Path) -> Iterator[tuple[str, int]]:
    """Paths of all files in a folder and in those below it, with their bytes.

    What is removed meanwhile is left out, and so is a folder that can't be listed; ``Path.rglob`` raises FileNotFoundError there.
    Raises OSError.
    """
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            try:
                size = os.path.getsize(path)
            except FileNotFoundError:
                continue
            yield path, size


def temporary_path(path: str) -> str:
    """A hidden name beside ``path`` that no other writer uses; the ending is kept, since some writers look at it."""
    ending = os.path.splitext(path)[1]
    return os.path.join(os.path.dirname(path), f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}{ending}")


def raise_for(error: OSError, path: str) -> NoReturn:
    """Raise FileNotFoundError as it is, InvalidInput for a path that can't be used, StoreUnavailable for all else."""
    if isinstance(error, FileNotFoundError):
        try:
            raise error
        finally:
            del error  # the frame would keep the error, and the error the frame, with all that the callers hold
    raise trouble(error.errno, f"{path!r} can't be used ({error.strerror or error})", path) from error


def trouble(code: int | None, what: str, path: str) -> InvalidInput | StoreUnavailable:
    """The error for a file or folder that the system refused with this ``errno``; ``what`` says to whom what happened.

    InvalidInput for what does not pass by itself: a permission, a read-only file system, a path that can't be. A full disk, or
    too many open files, may pass: StoreUnavailable.
    """
    if code in NOT_ALLOWED:
        return InvalidInput(f"{what}; check the path and its permissions", path=path)
    remedy = "allow more open files (ulimit -n)" if code in TOO_MANY_OPEN else "check the disk and its free space"
    return StoreUnavailable(f"{what}; {remedy}", path=path)
