"""Files and folders of a local disk, made so that they survive a power failure."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NoReturn

from lakebed.errors import InvalidInput, LakebedError, StoreUnavailable


def delete_each(delete: Callable[[str], None], paths: Iterable[str]) -> dict[str, LakebedError]:
    """Delete one after the other; returns the error of each that could not be deleted."""
    failed: dict[str, LakebedError] = {}
    for path in paths:
        try:
            delete(path)
        except LakebedError as error:
            failed[path] = error
    return failed


TEMPORARY_PREFIX = ".lakebed-tmp-"
NOT_ALLOWED = {errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EPERM}


TOO_MANY_OPEN = {errno.EMFILE, errno.ENFILE}


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
