"""Where the data files of a table live (parts, deletion vectors), on the same root as its log.

Invariants
- A file appears under its path whole and durable, or not at all: a commit may refer to it once the write has returned.
- Files are immutable and their names are never used again, so what was read once may be kept (see ``range_files``).
- Paths are relative to the root, with ``/``, as a human reads them: not percent-encoded, as they are in the log.
- A storage is a small picklable value: tasks get it, and open what they need in their own process.

Readers must pass ``hive_partitioning=false`` to DuckDB, else a folder such as ``day=1`` on the way adds a column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from lakebed.errors import LakebedError
from lakebed.storage.counters import StoreCounters

if TYPE_CHECKING:
    import duckdb

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
        """The url by which ``read_parquet`` reads a file, on an attached connection; ``file://…`` is a file outside the root."""
        ...

    @property
    def duckdb_folder(self) -> str:
        """The prefix of the urls of the files below the root, without the slash."""
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
        """Drop the file from memory, so that the next read asks the store."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is such a file now."""
        ...

    def delete(self, path: str) -> None:
        """Remove a file; one that is not there is no error."""
        ...

    def delete_many(self, paths: Sequence[str]) -> dict[str, LakebedError]:
        """Remove files in as few requests as the store allows; returns why, for each that could not be removed."""
        ...

    def list(self, prefix: str = "") -> Iterator[tuple[str, int, float]]:
        """All files whose path begins with ``prefix``: (path, bytes, modified in epoch seconds), in no order.

        Includes files that a crashed writer left behind: a vacuum needs to see them.
        """
        ...

    def now(self) -> float:
        """The time by the clock that stamps the files here, in epoch seconds. Raises StoreUnavailable."""
        ...
