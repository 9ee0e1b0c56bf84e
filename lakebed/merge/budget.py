"""Says how much of a merge is in memory at once, from the size of a row and the connection's memory limit.

At most about two fifths of the limit hold rows as they were read (there may be one dead row for each wanted one), and as much
again holds them while they are joined to one table. So a chunk of the output is at most a fifth of the limit.

If a row group of each source fits in a chunk, the last ones read are kept for the next chunk, and nothing is read twice. Then
chunks are short, so that what was read is still in the processor's cache when it is written. Of a source in another order each
chunk reads all row groups, so chunks are as long as memory allows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from lakebed.merge.reader import MergeSource
from lakebed.parts.arrow_source import ArrowSource
from lakebed.parts.order import is_whole
from lakebed.parts.write import ROW_GROUP_ROWS
from lakebed.sortkey.sort_key import SortTerm
from lakebed.sql.pieces import parquet

_SAMPLE_ROWS = 2048
_SHORT_CHUNK_GROUPS = 8
_PLACE_BYTES = 32  # of a row, beside its key, while keys are sorted
_COMPUTED_BYTES = 8  # of a value that is computed for sorting
_INDEX_BYTES = 4  # of a value that a dictionary holds


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeLimits:
    """What bounds a merge beside the memory limit; tests make these small to reach every path with few rows."""

    row_group_rows: int = ROW_GROUP_ROWS  # of the output, and of sources that DuckDB scans together
    chunks_in_memory: int = 5  # how many chunks fill the memory limit
    key_copies: int = 2  # of the sort keys, while they are sorted: as read, and joined to one table
    number_bytes: int = 16  # of a row, beside its key, while the number that stands for its key is made and sorted
    # with more reads than this, rows are spilled: to spill a row and read it back costs about as much as to decode it twice
    reads_of_a_row_max: int = 3


DEFAULT_LIMITS = MergeLimits()


@dataclass(frozen=True, slots=True)
class Footprint:
    """About how many bytes a row takes in memory, and each of its columns; columns that are mostly stored as dictionaries."""

    row_bytes: int
    column_bytes: Mapping[str, int]
    dictionary_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Budget:
    """How many rows fit in memory."""

    chunk_rows: int  # rows of the output that are read and put in order together
    key_rows: int  # rows whose keys are sorted in memory
    number_rows: int  # the same, if one number stands for each key; 0 if none does
    keeps_row_groups: bool  # the last row group of each source stays in memory for the next chunk


def memory_limit(cursor: duckdb.DuckDBPyConnection) -> int:
    """The connection's, in bytes."""
    [(memory,)] = cursor.execute("select parse_formatted_bytes(current_setting('memory_limit'))").fetchall()
    return int(memory)


def footprint_of(
    cursor: duckdb.DuckDBPyConnection, sources: Sequence[MergeSource], footers: Sequence[pq.FileMetaData], rows: int
) -> Footprint:
    """By the footers of all sources, ``rows`` in all, and by the first rows of the largest one."""
    size, values, in_dictionary = 0, Counter[str](), Counter[str]()
    for footer in footers:  # by Arrow: DuckDB would convert all statistics too, and fails on some
        for group in map(footer.row_group, range(footer.num_row_groups)):
            for leaf in map(group.column, range(group.num_columns)):
                size += leaf.total_uncompressed_size
                values[leaf.path_in_schema] += leaf.num_values
                in_dictionary[leaf.path_in_schema] += leaf.num_values if leaf.has_dictionary_page else 0
    largest = max(sources, key=lambda source: source.part.bytes)
    first = _first_rows(cursor, largest)
    row_bytes = int(max(size / max(rows, 1), first.nbytes / max(len(first), 1))) + 1
    widths = {name: first[name].nbytes // max(len(first), 1) + 1 for name in first.column_names}
    return Footprint(
        row_bytes, widths, tuple(sorted(path for path in values if 2 * in_dictionary[path] > values[path]))
    )


def _first_rows(cursor: duckdb.DuckDBPyConnection, source: MergeSource) -> pa.Table:
    if 0 <= source.part.rows <= _SAMPLE_ROWS:
        with suppress(pa.ArrowException), pq.ParquetFile(source.url) as file:  # of a type or codec that Arrow lacks
            return file.read(use_threads=False)
    return cursor.sql(f"select * from {parquet(source.url)} limit {_SAMPLE_ROWS}").to_arrow_table()


def chunk_rows_max(memory_bytes: int, row_bytes: int, limits: MergeLimits) -> int:
    """The longest chunk that memory allows; whole row groups if it is more than one."""
    rows = max(1, memory_bytes // limits.chunks_in_memory // row_bytes)
    return rows - rows % limits.row_group_rows if rows > limits.row_group_rows else rows


def budget_of(
    memory_bytes: int,
    footprint: Footprint,
    limits: MergeLimits,
    *,
    terms: Sequence[SortTerm],
    files: Sequence[ArrowSource],
    kept_dictionaries: Sequence[str],
    in_order: bool,
) -> Budget:
    """The budget of a merge.

    ``files``: the sources as Arrow reads them (none: DuckDB does), which then keeps ``kept_dictionaries`` as they are;
    ``in_order``: all sources are in the order of ``terms``.
    """
    columns = dict.fromkeys(name for term in terms for name in term.columns)
    key_bytes = sum(
        _INDEX_BYTES if files and name in kept_dictionaries else footprint.column_bytes.get(name, 0) for name in columns
    )
    key_bytes += sum(_COMPUTED_BYTES for term in terms if not term.is_plain)
    may_be_numbers = files and all(term.columns[0] in kept_dictionaries or is_whole(term.type) for term in terms)
    chunk_rows = chunk_rows_max(memory_bytes, footprint.row_bytes, limits)
    keeps = sum(file.group_rows_max for file in files) <= chunk_rows
    if files and keeps and in_order:
        chunk_rows = min(chunk_rows, _SHORT_CHUNK_GROUPS * limits.row_group_rows)
    return Budget(
        chunk_rows=chunk_rows,
        key_rows=memory_bytes // (limits.key_copies * key_bytes + _PLACE_BYTES),
        number_rows=memory_bytes // (key_bytes + limits.number_bytes) if may_be_numbers else 0,
        keeps_row_groups=keeps,
    )
