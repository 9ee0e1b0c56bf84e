"""Reads some rows of a local part with Arrow, by row groups, for a merge.

Arrow is faster at this than DuckDB, and keeps dictionaries as they are from file to file. It can neither cast nor read from the
object store; ``suits`` says which files it can read. Checksums of pages are compared unless the whole file was verified.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from lakebed.errors import Corrupt, LakebedError
from lakebed.storage.file_errors import refusal_in
from lakebed.storage.local_files import trouble

Rows = npt.NDArray[np.int64]
_Read = tuple[pa.Table, Rows]


class ArrowSource:
    """One file. Errors show it as ``path``."""

    def __init__(self, path: str, url: str, is_verified: bool = False) -> None:
        """Reads the footer. ``is_verified``: the file is known to be what was written. Raises Corrupt."""
        self._is_verified = is_verified
        self._path = path
        self._url = url
        self._kept: tuple[int, tuple[str, ...], pa.Table] | None = None
        with self._opened([]) as file:
            self._schema = file.schema_arrow
            counts = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        self._ends = np.cumsum(counts, dtype=np.int64)
        self.group_rows_max = max(counts, default=0)

    def suits(self, schema: pa.Schema, constants: Mapping[str, str | None]) -> bool:
        """Whether each column of this schema but ``constants`` has its type in the file or is missing. None may be nested."""
        stored = {field.name.lower(): field for field in self._schema}
        for field in schema:
            found = stored.get(field.name.lower())
            if found is None or field.name in constants:
                continue
            if (found.name, found.type) != (field.name, field.type) or pa.types.is_nested(field.type):
                return False
        return True

    def read(self, columns: Sequence[str], dictionaries: Sequence[str], rows: Rows, keeps: bool) -> Iterator[_Read]:
        """Pieces of the file and where in them the rows are; ``rows`` are ascending. Columns that it lacks are left out.

        ``keeps``: the last row group stays in memory, for the next call with the same columns.
        """
        if not len(rows):
            return
        groups = np.searchsorted(self._ends, rows, side="right")
        numbers, firsts = np.unique(groups, return_index=True)
        with self._opened(dictionaries) as file:
            for number, wanted in zip(numbers.tolist(), np.split(rows, firsts[1:]), strict=True):
                if keeps and self._kept and self._kept[:2] == (number, tuple(columns)):
                    table = self._kept[2]
                else:
                    table = file.read_row_group(number, list(columns), use_threads=False)
                if keeps and number == numbers[-1]:
                    self._kept = number, tuple(columns), table
                found = wanted - (self._ends[number] - len(table))
                held = found[-1] - found[0] if keeps else len(table)  # a slice holds on to its row group
                if 2 * len(found) < held:
                    yield table.take(pa.array(found)), np.arange(len(found))
                else:
                    yield table.slice(found[0], found[-1] - found[0] + 1), found - found[0]

    @contextmanager
    def _opened(self, dictionaries: Sequence[str]) -> Iterator[pq.ParquetFile]:
        try:
            with pq.ParquetFile(
                self._url,
                read_dictionary=list(dictionaries),
                pre_buffer=False,
                page_checksum_verification=not self._is_verified,
            ) as file:
                yield file
        except pa.ArrowMemoryError:
            raise
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:  # the latter: a name in a damaged footer
            raise unreadable(self._path, error) from error


def is_local(url: str) -> bool:
    """Whether Arrow can open it."""
    return os.path.isabs(url)


def unreadable(path: str, error: Exception) -> LakebedError:
    """The error for a file that Arrow can't read: Corrupt, unless the system refused it, whole as it may be."""
    if isinstance(error, OSError) and (code := refusal_in(str(error))) is not None:
        return trouble(code, f"{path} can't be read ({error})", path)
    return damaged(path, str(error))


def damaged(path: str, reason: str) -> Corrupt:
    """The error for a file that can't be read."""
    return Corrupt(f"{path} can't be read ({reason}); it is missing or damaged: restore the file", path=path, part=path)
