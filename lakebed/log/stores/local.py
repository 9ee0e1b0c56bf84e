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

from lakebed.errors import Unsupported
from lakebed.storage.counters import RequestCounter, StoreCounters
from lakebed.storage.local_files import fsync_folder, make_folders, raise_for, temporary_path

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}


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
                    " one version; put the table on a disk that has them (ext4, xfs, APFS, NFS) or on S3",
                    path=path,
                ) from error
            raise_for(error, path)
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
            raise_for(error, path)
        fsync_folder(os.path.dirname(path))

    def read(self, name: str) -> bytes:
        """The object's bytes. Raises FileNotFoundError if there is none, StoreUnavailable if the disk fails."""
        path = os.path.join(self.root, name)
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError as error:
            self._counter.count("read", failures=1)
            raise_for(error, path)
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
            raise_for(error, path)
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
            raise_for(error, path)


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
        raise_for(error, path)
    return temporary


def _remove_temporary(temporary: str) -> None:
    try:
        os.unlink(temporary)
    except OSError:
        return  # a hidden file that stays is never listed, and a vacuum removes it
