"""Reads local parts with Arrow: some rows by row groups, for a merge; columns of a whole file, for a settle of few rows.

Arrow is faster at this than DuckDB, and keeps dictionaries as they are from file to file. It can neither cast nor read from the
object store; ``suits`` says which files it can read. Checksums of pages are compared unless the whole file was verified.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from lakebed.errors import Corrupt, LakebedError
from lakebed.parts.changes import UNAVAILABLE_COLUMN
from lakebed.storage.engine import refusal_in
from lakebed.storage.local_folders import trouble

_SMALL_BYTES_MAX = 1 << 18
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
        with _opened(path, url, is_verified) as file:
            self._schema = file.schema_arrow
            self.footer: pq.FileMetaData = file.metadata
        groups = [self.footer.row_group(number) for number in range(self.footer.num_row_groups)]
        counts = [group.num_rows for group in groups]
        self._ends = np.cumsum(counts, dtype=np.int64)
        self.group_rows_max = max(counts, default=0)
        self.decoded_bytes = sum(group.total_byte_size for group in groups)
        self._names = frozenset(self._schema.names)
        self._whole: pa.Table | None = None

    def suits(self, schema: pa.Schema, constants: Mapping[str, str | None]) -> bool:
        """Whether each column of this schema but ``constants`` has its type in the file or is missing. None may be nested."""
        return _suits(self._schema, [field for field in schema if field.name not in constants])

    def read(
        self,
        columns: Sequence[str],
        dictionaries: Sequence[str],
        rows: Rows,
        keeps: bool,
        at_once: Sequence[str] = (),
    ) -> Iterator[_Read]:
        """Pieces of the file and where in them the rows are; ``rows`` are ascending. Columns that it lacks are left out.

        ``keeps``: the last row group stays in memory, for the next call with the same columns. ``at_once``: if given, all columns
        that calls ask for: the first call reads these of the whole file, and they stay in memory.
        """
        if not len(rows):
            return
        dictionaries = [name for name in dictionaries if name in self._names]
        if at_once:
            if self._whole is None:
                with _opened(self._path, self._url, self._is_verified, dictionaries, self.footer) as file:
                    self._whole = file.read(list(at_once), use_threads=False)
            there = set(self._whole.column_names)
            yield self._whole.select([name for name in columns if name in there]), rows
            return
        groups = np.searchsorted(self._ends, rows, side="right")
        numbers, firsts = np.unique(groups, return_index=True)
        with _opened(self._path, self._url, self._is_verified, dictionaries, self.footer) as file:
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


def read_columns(path: str, url: str, schema: pa.Schema) -> pa.Table | None:
    """These columns of a whole file, null where it lacks them; None if their types in it are others. Raises Corrupt."""
    with _opened(path, url, is_verified=False) as file:
        stored = file.schema_arrow
        if not _suits(stored, schema):
            return None
        there = set(stored.names)
        found = file.read([name for name in schema.names if name in there], use_threads=False)
    columns = [found[each.name] if each.name in there else pa.nulls(len(found), each.type) for each in schema]
    return pa.table(columns, names=schema.names)


def read_rows(path: str, url: str, schema: pa.Schema, rows: Rows, *, is_verified: bool) -> pa.Table | None:
    """These columns of some rows of a file, in the order of ``rows``; row groups without such rows are not read.

    A column that the file lacks is null. None if types in the file are others. Raises Corrupt.
    """
    order = np.argsort(rows, kind="stable")
    places = np.empty(len(rows), dtype=np.int64)
    places[order] = np.arange(len(rows))
    with _opened(path, url, is_verified) as file:
        stored, footer = file.schema_arrow, file.metadata
        if not _suits(stored, schema):
            return None
        there = _stored_columns(schema, frozenset(stored.names))
        ends = np.cumsum([footer.row_group(number).num_rows for number in range(footer.num_row_groups)])
        numbers, firsts = np.unique(np.searchsorted(ends, rows[order], side="right"), return_index=True)
        pieces = [there.empty_table()]
        for number, wanted in zip(numbers.tolist(), np.split(rows[order], firsts[1:]), strict=True):
            group = file.read_row_group(number, there.names, use_threads=len(numbers) > 1)
            pieces.append(group.take(pa.array(wanted - (ends[number] - len(group)))))
    found = pa.concat_tables(pieces).take(pa.array(places))
    columns = [found[each.name] if each in there else pa.nulls(len(rows), each.type) for each in schema]
    return pa.table(columns, names=schema.names)


def _stored_columns(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    """Those of the columns that a file with these names has."""
    return pa.schema([field for field in schema if field.name in names])


def _suits(stored: pa.Schema, fields: Iterable[pa.Field]) -> bool:
    """Whether each of these columns has its type among the stored ones or is missing. None of a user's may be nested."""
    by_name = {field.name.lower(): field for field in stored}
    for field in fields:
        found = by_name.get(field.name.lower())
        if found is None:
            continue
        is_nested = pa.types.is_nested(field.type) and field.name != UNAVAILABLE_COLUMN
        if (found.name, found.type) != (field.name, field.type) or is_nested:
            return False
    return True


@contextmanager
def _opened(
    path: str, url: str, is_verified: bool, dictionaries: Sequence[str] = (), footer: pq.FileMetaData | None = None
) -> Iterator[pq.ParquetFile]:
    """``footer``: of the same file, if it was read before."""
    try:
        with pq.ParquetFile(
            _bytes_of(url) or url,
            metadata=footer,
            read_dictionary=list(dictionaries),
            pre_buffer=False,
            page_checksum_verification=not is_verified,
        ) as file:
            yield file
    except pa.ArrowMemoryError:
        raise
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:  # the latter: a name in a damaged footer
        raise unreadable(path, error) from error


def _bytes_of(url: str) -> pa.BufferReader | None:
    """A small file as a whole: Arrow reads a file piece by piece, and looks for its file system first. None for a larger one."""
    with open(url, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        return pa.BufferReader(file.read()) if 0 < size <= _SMALL_BYTES_MAX else None


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
