"""Rows set aside on local disk, bucket by bucket: the first pass of an external distribution sort.

A bucket is a file in Arrow's stream format, compressed with lz4; each table added is written as it is, with the dictionaries
that its values need. So it takes the memory of one table, and about the disk space of the compressed rows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from lakebed.errors import LakebedError
from lakebed.storage.local_files import trouble
from lakebed.storage.local_folders import process_folder

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
