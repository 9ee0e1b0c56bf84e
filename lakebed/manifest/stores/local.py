"""A log on a local disk, or on a network file system with hard links.

Invariants: an object appears whole or not at all, under its name only after its bytes are on disk (M1); a name once
taken by ``put_if_absent`` stays with the same bytes; files a crashed process left behind are never listed.

``put_if_absent``:
1. Write the bytes to a hidden file of its own in the same folder, and fsync it.
2. ``link`` it to the name. The kernel fails this if the name is taken: that is the decision between two writers.
3. Remove the hidden name and fsync the folder, so that the entry survives a power failure.
"""

from __future__ import annotations

import errno
import os
import uuid
from typing import NoReturn

from lakebed.errors import InvalidInput, StoreUnavailable, Unsupported
from lakebed.manifest.stores.counters import RequestCounter, StoreCounters

TEMPORARY_PREFIX = ".lakebed-tmp-"
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
_NOT_ALLOWED = {errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EPERM}


class LocalLogStore:
    """``LogStore`` over a folder. ``root`` is its absolute path; folders are made on demand."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self._counter = RequestCounter()

    def __repr__(self) -> str:
        return f"LocalLogStore({self.root!r})"

    def counters(self) -> StoreCounters:
        """Operations on the disk so far, by kind."""
        return self._counter.value()

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Create the object durably; False if the name is taken. Raises StoreUnavailable if the outcome is unknown."""
        path = os.path.join(self.root, name)
        self._counter.count("put_if_absent", bytes_written=len(data))
        temporary = _write_temporary(path, data)
        try:
            os.link(temporary, path)
        except OSError as error:
            if error.errno == errno.EEXIST:
                # A network file system may lose the answer of a link that was made and fail its own second try.
                return os.stat(temporary).st_nlink > 1
            if error.errno in _NO_LINKS:
                raise Unsupported(
                    f"{os.path.dirname(path)!r} is on a file system without hard links, so two writers could both take"
                    " one version; put the table on a disk that has them (ext4, xfs, APFS, NFS) or on S3"
                ) from error
            _fail(error, path)
        finally:
            _remove_temporary(temporary)
        fsync_folder(os.path.dirname(path))
        return True

    def put(self, name: str, data: bytes) -> None:
        """Create or replace the object durably and atomically."""
        path = os.path.join(self.root, name)
        self._counter.count("put", bytes_written=len(data))
        temporary = _write_temporary(path, data)
        try:
            os.replace(temporary, path)
        except OSError as error:
            _remove_temporary(temporary)
            _fail(error, path)
        fsync_folder(os.path.dirname(path))

    def read(self, name: str) -> bytes:
        """The object's bytes. Raises FileNotFoundError if there is none, StoreUnavailable if the disk fails."""
        path = os.path.join(self.root, name)
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError as error:
            self._counter.count("read", failures=1)
            _fail(error, path)
        self._counter.count("read", bytes_read=len(data))
        return data

    def list_from(self, folder: str, start: str) -> list[str]:
        """Base names of the objects directly in ``folder``, at or after ``start``, in byte order; none is no error."""
        path = os.path.join(self.root, folder)
        self._counter.count("list_from")
        try:
            with os.scandir(path) as entries:
                names = [e.name for e in entries if e.name >= start and not e.name.startswith(".") and e.is_file()]
        except FileNotFoundError:
            return []
        except OSError as error:
            _fail(error, path)
        return sorted(names)

    def delete(self, name: str) -> None:
        """Remove the object; removing a name that is not there is no error."""
        path = os.path.join(self.root, name)
        self._counter.count("delete")
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        except OSError as error:
            _fail(error, path)


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
        _fail(error, folder)
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
        raise StoreUnavailable(f"could not make the entries of {folder!r} durable ({error}); check the disk") from error


def temporary_path(path: str) -> str:
    """A hidden name beside ``path`` that no other writer uses; the ending is kept, since some writers look at it."""
    ending = os.path.splitext(path)[1]
    return os.path.join(os.path.dirname(path), f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}{ending}")


def _write_temporary(path: str, data: bytes) -> str:
    temporary = temporary_path(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        try:
            descriptor = os.open(temporary, flags, 0o666)
        except FileNotFoundError:
            make_folders(os.path.dirname(path))
            descriptor = os.open(temporary, flags, 0o666)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        _remove_temporary(temporary)
        _fail(error, path)
    return temporary


def _remove_temporary(temporary: str) -> None:
    try:
        os.unlink(temporary)
    except OSError:
        return  # a hidden file that stays is never listed, and a vacuum removes it


def _fail(error: OSError, path: str) -> NoReturn:
    if isinstance(error, FileNotFoundError):
        try:
            raise error
        finally:
            del (
                error
            )  # or else this frame and the error hold each other, and all frames below with what they have in hand
    if error.errno in _NOT_ALLOWED:
        raise InvalidInput(f"{path!r} can't be used ({error.strerror}); check the path and its permissions") from error
    raise StoreUnavailable(f"{path!r} failed ({error.strerror}); check the disk and its free space") from error
