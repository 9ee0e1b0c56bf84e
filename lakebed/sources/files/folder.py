"""Folders of files, on a local disk, in S3, or in a place that Arrow can reach: what is in them, and their bytes.

Paths are relative to the folder, with ``/``.

**Which files** of a folder are of the source follows the rules of Spark's file source.

- Hidden files and folders are none (``settings.is_hidden``), nor are files that a pattern leaves out, or without a byte: these
  are still being made.
- Folders below are looked into if the source is recursive, or if they are named like partitions.
- The path of the source may have patterns.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Protocol

import pyarrow as pa
from pyarrow import fs as arrow_fs

from lakebed.errors import InvalidInput, StoreUnavailable, Unsupported
from lakebed.sources.files.settings import (
    FilesSettings,
    Options,
    base_of,
    has_pattern,
    is_hidden,
    is_partition,
    pattern_of,
    quoted,
)
from lakebed.storage.local_folders import trouble
from lakebed.storage.object_store import open_objects
from lakebed.storage.roots import LocalRoot, S3Root, parse_root

_READ_BYTES = 8 << 20
"""Of a file in a store: what one request reads."""
_ARROW_SCHEMES = ("gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What tells a file from one of the same name that is written later. Times are in nanoseconds since the epoch.

    ``arrived_ns``: when it came to be as it is, by the clock of its disk, whatever its own time says.
    """

    modified_ns: int
    size: int
    arrived_ns: int


@dataclass(frozen=True, slots=True)
class _Child:
    """An entry of a folder. ``state`` raises FileNotFoundError if the file is gone by then."""

    name: str
    is_folder: bool
    state: Callable[[], State]


class _Folder(Protocol):
    """Every method raises InvalidInput for what is refused, StoreUnavailable for what may pass."""

    @property
    def url(self) -> str:
        """As in ``settings``, without a slash at its end."""

    @property
    def is_quick(self) -> bool:
        """Whether looking costs next to nothing."""

    def children(self, path: str) -> Iterator[_Child]:
        """What is directly in a folder, files and folders, in no order. Raises FileNotFoundError, NotADirectoryError."""

    def state(self, path: str) -> State:
        """Raises FileNotFoundError."""

    def open(self, path: str, size: int) -> Any:
        """The bytes of a file: a binary file that can be sought in. Raises FileNotFoundError. ``size``: as far as it is known."""


def open_folder(root: str) -> _Folder:
    """The folder at a path or URL. Raises InvalidInput, MissingPrerequisite."""
    scheme = root.partition("://")[0].lower() if "://" in root else ""
    if scheme in _ARROW_SCHEMES:
        return ArrowFolder(root)
    try:
        place = parse_root(root)
    except Unsupported:
        raise InvalidInput(
            f"the folder {root} has the scheme {scheme}://; files are read from local disks, s3://, and by Arrow from "
            f"{', '.join(f'{name}://' for name in _ARROW_SCHEMES)}"
        ) from None
    return LocalFolder(place.path) if isinstance(place, LocalRoot) else _S3Folder(place)


@dataclass(frozen=True)
class LocalFolder:
    """A folder of a local disk."""

    root: str
    is_quick: bool = field(default=True, init=False)

    @cached_property
    def url(self) -> str:
        return "file://" + quoted(self.root.rstrip("/"))

    def children(self, path: str) -> Iterator[_Child]:
        place = os.path.join(self.root, path) if path else self.root
        try:
            entries = os.scandir(place)
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            raise _refused(error, place) from error
        with entries:
            for entry in entries:
                try:
                    is_folder = entry.is_dir()
                    if is_folder or entry.is_file():
                        yield _Child(entry.name, is_folder, partial(_state_of_entry, entry))
                except OSError:
                    continue  # a link that leads nowhere

    def state(self, path: str) -> State:
        place = os.path.join(self.root, path)
        try:
            return _state_of(os.stat(place))
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(place) from None
        except OSError as error:
            raise _refused(error, place) from error

    def open(self, path: str, size: int) -> Any:
        place = os.path.join(self.root, path)
        try:
            return io.FileIO(place)
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(place) from None
        except OSError as error:
            raise _refused(error, place) from error


def _state_of_entry(entry: os.DirEntry[str]) -> State:
    try:
        return _state_of(entry.stat())
    except NotADirectoryError:
        raise FileNotFoundError(entry.path) from None
    except OSError as error:
        raise (error if isinstance(error, FileNotFoundError) else _refused(error, entry.path)) from None


def _state_of(found: os.stat_result) -> State:
    return State(modified_ns=found.st_mtime_ns, size=found.st_size, arrived_ns=found.st_ctime_ns)


def _refused(error: OSError, place: str) -> Exception:
    shown = os.fsencode(place).decode("utf-8", "backslashreplace")
    return trouble(error.errno, f"{shown} can't be read ({error.strerror or error})", shown)


@dataclass(frozen=True)
class _S3Folder:
    """A prefix of a bucket."""

    place: S3Root
    is_quick: bool = field(default=False, init=False)

    @cached_property
    def url(self) -> str:
        return quoted(self.place.spark_root)

    @cached_property
    def _objects(self) -> Any:
        return open_objects(self.place)

    def children(self, path: str) -> Iterator[_Child]:
        for name, size, seconds in self._objects.children(path):
            yield _Child(name, size is None, partial(_in_store, seconds, size or 0))

    def state(self, path: str) -> State:
        name = path.rpartition("/")[2]
        return _in_store(*self._objects.stat(path)) if name else _missing(path)

    def open(self, path: str, size: int) -> Any:
        if size <= _READ_BYTES:
            return io.BytesIO(self._objects.read(path))
        return io.BufferedReader(_RangeReads(self._objects, path, size), _READ_BYTES)


def _in_store(seconds: float, size: int) -> State:
    modified = round(seconds * 1000) * 1_000_000
    return State(modified_ns=modified, size=size, arrived_ns=modified)


def _missing(path: str) -> State:
    raise FileNotFoundError(path)


class _RangeReads(io.RawIOBase):
    """A file in S3, read by requests for ranges of its bytes."""

    def __init__(self, objects: Any, path: str, size: int) -> None:
        self._objects, self._path, self._size, self._at = objects, path, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._size)
        if end <= self._at:
            return 0
        data = self._objects.read_range(self._path, self._at, end)
        buffer[: len(data)] = data
        self._at = end
        return len(data)


@dataclass(frozen=True)
class ArrowFolder:
    """A folder in a place that Arrow can reach by its URL."""

    root: str
    is_quick: bool = field(default=False, init=False)

    @cached_property
    def url(self) -> str:
        return quoted(self.root.rstrip("/"))

    @cached_property
    def _place(self) -> tuple[arrow_fs.FileSystem, str]:
        try:
            system, path = arrow_fs.FileSystem.from_uri(self.root)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise InvalidInput(f"{self.root} can't be reached: {str(error).splitlines()[0]}") from None
        return system, path.rstrip("/")

    def children(self, path: str) -> Iterator[_Child]:
        system, root = self._place
        place = f"{root}/{path}" if path else root
        for found in self._asked(lambda: system.get_file_info(arrow_fs.FileSelector(place)), place):
            is_folder = found.type == arrow_fs.FileType.Directory
            yield _Child(found.base_name, is_folder, partial(_of_arrow, found))

    def state(self, path: str) -> State:
        system, root = self._place
        return _of_arrow(self._asked(lambda: system.get_file_info(f"{root}/{path}"), path))

    def open(self, path: str, size: int) -> Any:
        system, root = self._place
        return self._asked(lambda: system.open_input_file(f"{root}/{path}"), path)

    def _asked(self, ask: Callable[[], Any], path: str) -> Any:
        try:
            return ask()
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise StoreUnavailable(f"{path} can't be read: {str(error).splitlines()[0]}", path=path) from error


def _of_arrow(found: arrow_fs.FileInfo) -> State:
    if found.type == arrow_fs.FileType.NotFound:
        raise FileNotFoundError(found.path)
    modified = found.mtime_ns or 0
    return State(modified_ns=modified, size=found.size or 0, arrived_ns=modified)


DEPTH_MAX = 64
"""Of folders in folders: a link that leads back would have no end."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file of the source. ``path``: from the folder on."""

    path: str
    state: State


class Looker:
    """Looks into the folder of a source."""

    def __init__(self, settings: FilesSettings) -> None:
        options = Options.of(settings)
        base, self._patterns = base_of(settings.folder)
        self.folder: _Folder = open_folder(base)
        self._name = pattern_of(options.name_pattern) if options.name_pattern else None
        self._options = options
        self._shown = settings.folder

    def url(self, path: str) -> str:
        """The URL of a file, which tells it from all others."""
        return f"{self.folder.url}/{quoted(path)}"

    def files(self, is_wanted: Callable[[str], bool] = lambda path: True) -> Iterator[Found]:
        """The files that are there now, in no order. Only those of wanted paths are asked for their states.

        Raises StoreUnavailable if the folder is not there, or does not answer; InvalidInput if it can't be read.
        """
        for path, child in self._paths():
            if is_wanted(path):
                try:
                    state = child.state()
                except FileNotFoundError:
                    continue
                if state.size and self._is_of_time(state):
                    yield Found(path, state)

    def paths(self) -> Iterator[str]:
        """The paths of all files, also of empty ones."""
        return (path for path, _ in self._paths())

    def _is_of_time(self, state: State) -> bool:
        before, after = self._options.modified_before_ns, self._options.modified_after_ns
        return (before is None or state.modified_ns < before) and (after is None or state.modified_ns > after)

    def _paths(self) -> Iterator[tuple[str, _Child]]:
        for path, child in self._places("", self._patterns):
            if child is None or child.is_folder:
                yield from self._below(path, 0)
            elif self._selects(child.name):
                yield path, child

    def _places(self, path: str, names: tuple[str, ...]) -> Iterator[tuple[str, _Child | None]]:
        """Where to look: what the patterns of the source's path match."""
        if not names:
            yield path, None
            return
        pattern, rest = pattern_of(names[0]), names[1:]
        for child in self._children(path):
            if pattern.fullmatch(child.name) and not (has_pattern(names[0]) and is_hidden(child.name)):
                inside = _joined(path, child.name)
                if not rest:
                    yield inside, child
                elif child.is_folder:
                    yield from self._places(inside, rest)

    def _below(self, path: str, depth: int) -> Iterator[tuple[str, _Child]]:
        if depth > DEPTH_MAX:
            raise InvalidInput(f"{self._shown} has folders without end, below {path}; is there a link that leads back?")
        for child in self._children(path):
            if child.is_folder:
                if not is_hidden(child.name) and (self._options.recursive or is_partition(child.name)):
                    yield from self._below(_joined(path, child.name), depth + 1)
            elif self._selects(child.name):
                yield _joined(path, child.name), child

    def _selects(self, name: str) -> bool:
        return not is_hidden(name) and (self._name is None or self._name.fullmatch(name) is not None)

    def _children(self, path: str) -> Iterator[_Child]:
        try:
            yield from self.folder.children(path)
        except FileNotFoundError:
            if not path:
                raise StoreUnavailable(
                    f"the folder {self._shown} is not there; is it mounted?", path=self._shown
                ) from None
        except NotADirectoryError:
            pass


def _joined(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name
