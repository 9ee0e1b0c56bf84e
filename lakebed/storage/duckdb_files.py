"""Objects as DuckDB reads them: an fsspec file system over ranges that makes no needless request."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Protocol

from fsspec import AbstractFileSystem

from lakebed.error_transport import as_text
from lakebed.errors import Unsupported

_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
HOST = "table"  # DuckDB grants access to what is below a place, and a scheme alone is not a place


class Ranges(Protocol):
    """Files that are read by ranges."""

    def meet(self, path: str) -> int:
        """The file's size in bytes. Raises FileNotFoundError."""
        ...

    def read(self, path: str, start: int, length: int) -> bytes:
        """At most ``length`` bytes from ``start``."""
        ...


class RangeFile:
    """An object as DuckDB reads it: a file of ``Ranges`` and a position in it."""

    def __init__(self, reader: Ranges, path: str) -> None:
        self._reader, self._path, self._at = reader, path, 0

    def seekable(self) -> bool:
        """True, so that DuckDB prefetches whole column chunks."""
        return True

    @as_text()
    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to ``offset`` from the start (0), from here (1) or from the end (2)."""
        base = (0, self._at, self._reader.meet(self._path) if whence == 2 else 0)[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        """The position."""
        return self._at

    @as_text()
    def read(self, length: int = -1) -> bytes:
        """The next bytes; all that are left by default."""
        if length < 0:
            length = self._reader.meet(self._path) - self._at
        data = self._reader.read(self._path, self._at, length)
        self._at += len(data)
        return data

    def close(self) -> None:
        """Nothing is held open."""


class RangeFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The part of fsspec that DuckDB calls to read: no listing, no writing, and no request beyond the reads."""

    cachable = False

    def __init__(self, protocol: str, reader: Ranges) -> None:
        super().__init__(skip_instance_cache=True)
        self.protocol = protocol
        self._reader = reader

    def _path(self, url: str) -> str:
        return url.removeprefix(f"{self.protocol}://{HOST}/")

    @as_text()
    def open(self, path: str, mode: str = "rb", **_: Any) -> RangeFile:
        """A file to read. Raises FileNotFoundError."""
        if mode != "rb":
            raise Unsupported(f"{path} can't be opened with mode {mode!r}: write with write_file", path=path)
        self._reader.meet(self._path(path))
        return RangeFile(self._reader, self._path(path))

    def glob(self, path: str, **_: Any) -> list[str]:
        """The path itself: names of parts hold no patterns, and a listing would cost a request."""
        return [path]

    @as_text()
    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Name, size and kind."""
        return {"name": path, "size": self._reader.meet(self._path(path)), "type": "file"}

    @as_text()
    def size(self, path: str) -> int:
        """The file's bytes."""
        return self._reader.meet(self._path(path))

    def modified(self, path: str) -> datetime:
        """Files never change, so any fixed time serves DuckDB's own caches."""
        return _LONG_AGO

    @as_text()
    def exists(self, path: str, **_: Any) -> bool:
        """Whether there is such an object."""
        try:
            self._reader.meet(self._path(path))
        except FileNotFoundError:
            return False
        return True

    def isfile(self, path: str) -> bool:
        """There are no folders."""
        return self.exists(path)
