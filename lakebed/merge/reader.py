"""The sources of a merge: which of their rows come out (step 1 of ``merge.kernel``), and reading these.

Arrow reads the sources if all are files with the flat columns of the table in its types, in row groups that fit in a chunk
(``parts.arrow_source``). DuckDB reads all others, and casts. With DuckDB, sources of one row group or less are read by one scan,
because the planning of each scan takes milliseconds.

No byte is used unverified. A file with a checksum in the log was verified as a whole before. For other files the checksums of the
pages are compared.

**How much of a merge is in memory at once** follows from the size of a row and the connection's memory limit.

At most about two fifths of the limit hold rows as they were read (there may be one dead row for each wanted one), and as much
again holds them while they are joined to one table. So a chunk of the output is at most a fifth of the limit.

If a row group of each source fits in a chunk, the last ones read are kept for the next chunk, and nothing is read twice. Then
chunks are short, so that what was read is still in the processor's cache when it is written. Of a source in another order each
chunk reads all row groups, so chunks are as long as memory allows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from lakebed.errors import Corrupt
from lakebed.log.actions import Part
from lakebed.parts.arrow_source import ArrowSource, Rows
from lakebed.parts.changes import DELETE, OP_COLUMN, SEQUENCE_COLUMN, UPSERT, VERSION_COLUMN, WriteSpec
from lakebed.parts.intact import verify_pages
from lakebed.parts.order import is_whole
from lakebed.parts.row_origins import versions_of_sources
from lakebed.parts.write import ROW_GROUP_ROWS
from lakebed.quoting import literal
from lakebed.sortkey.sort_key import SortTerm
from lakebed.sql import aliases, constant, named, parquet, parquet_of, scan_of, sql_type
from lakebed.storage.engine import connect

_Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class MergeSource:
    """A part to merge, as it is in the snapshot that the merge reads."""

    part: Part
    dead: BitMap64  # its dead rows in that snapshot
    keeps_deletes: bool  # its delete rows must stay, so that late changes meet them, except those in ``purged``
    url: str  # where DuckDB finds it
    purged: BitMap64 = field(default_factory=BitMap64)


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows that come out of a merge. A source's ordinal is its place in the list of sources."""

    wanted: tuple[_Flags, ...]  # one flag for each row of each source
    deletes: Mapping[int, _Flags]  # which of the wanted rows are deletes, by ordinal

    @property
    def rows_read(self) -> int:
        """Rows of all sources, wanted or not."""
        return sum(map(len, self.wanted))

    def rows(self) -> dict[int, Rows]:
        """The wanted rows of each source, ascending."""
        return {ordinal: np.flatnonzero(wanted) for ordinal, wanted in enumerate(self.wanted)}


def select_rows(
    cursor: duckdb.DuckDBPyConnection, sources: Sequence[MergeSource], footers: Sequence[pq.FileMetaData]
) -> Selection:
    """The live rows, and the deletes of sources that keep them. Raises Corrupt where log and file disagree."""
    wanted: list[_Flags] = []
    deletes: dict[int, _Flags] = {}
    for ordinal, (source, footer) in enumerate(zip(sources, footers, strict=True)):
        flags = _live(source, _rows_in_file(source, footer))
        if source.keeps_deletes and source.part.has_op_column:
            kept = _delete_rows(cursor, source, len(flags))
            kept[np.frombuffer(source.purged.to_array(), dtype=np.uint64)] = False
            if kept.any():
                deletes[ordinal] = kept
                flags |= kept
        wanted.append(flags)
    return Selection(tuple(wanted), deletes)


def _rows_in_file(source: MergeSource, footer: pq.FileMetaData) -> int:
    if source.part.rows not in (-1, footer.num_rows):  # other writers may not say
        raise Corrupt(
            f"{source.part.path} has {footer.num_rows} rows, but the log says {source.part.rows}",
            path=source.part.path,
            part=source.part.path,
        )
    return int(footer.num_rows)


def _live(source: MergeSource, rows: int) -> _Flags:
    flags = np.ones(rows, dtype=bool)
    if source.dead:
        if source.dead.max() >= rows:
            raise Corrupt(
                f"{source.part.path}: its deletion vector marks row {source.dead.max()}, but the file has {rows} rows",
                path=source.part.path,
                part=source.part.path,
            )
        flags[np.frombuffer(source.dead.to_array(), dtype=np.uint64)] = False
    return flags


def _delete_rows(cursor: duckdb.DuckDBPyConnection, source: MergeSource, rows: int) -> _Flags:
    scan = parquet_of([source.url], {OP_COLUMN: ("op", "VARCHAR")})
    query = f"select file_row_number from {scan} where op = {literal(DELETE)}"
    flags = np.zeros(rows, dtype=bool)
    flags[cursor.execute(query).fetchnumpy()["file_row_number"]] = True
    return flags


ORDINAL, ROW = "_lakebed_source", "_lakebed_row"
"""Columns of a scan: the source's ordinal and the row in its file."""

_AT_ONCE_BYTES_MAX = 8 << 20
"""Sources that are smaller than that together are read as a whole, and stay in memory while they are merged."""
Read = tuple[pa.Table, Rows]
"""Rows as they were read, and the places of the wanted ones among them."""


class SourceReader:
    """Reads the columns of the table, and the operation column, of the sources of one merge.

    ``by_arrow``: Arrow reads them. ``kept_dictionaries``: columns that stay dictionaries then. ``in_order``: all sources are
    sorted by the table's sort key. ``versions``: see ``versions_of_sources``.
    """

    def __init__(
        self,
        cursor: duckdb.DuckDBPyConnection,
        sources: Sequence[MergeSource],
        files: Sequence[ArrowSource],
        selection: Selection,
        spec: WriteSpec,
        *,
        dictionary_columns: Sequence[str],
        group_rows_max: int,
    ) -> None:
        """``files``: the sources' files; Arrow reads them only if no row group has more rows than ``group_rows_max``."""
        self._cursor = cursor
        self._sources = sources
        self._selection = selection
        self._kinds = {field.name: sql_type(field.type) for field in spec.schema}
        if spec.sequence_column == SEQUENCE_COLUMN:
            self._kinds[SEQUENCE_COLUMN] = sql_type(pa.int64())
        self._kinds |= {name: sql_type(kind) for name, kind in spec.hidden_orders.items()}
        self.versions = versions_of_sources([source.part for source in sources], spec, bool(selection.deletes))
        if self.versions is not None:
            self._kinds[VERSION_COLUMN] = sql_type(pa.int64())
        fields = zip(self._kinds, _arrow_types(tuple(self._kinds.values())), strict=True)
        self._schema: pa.Schema = pa.schema(list(fields))
        self.columns: tuple[str, ...] = tuple(self._kinds)
        self.by_arrow = all(
            file.group_rows_max <= group_rows_max and file.suits(self._schema, source.part.partition_values)
            for file, source in zip(files, sources, strict=True)
        )
        self.files: Sequence[ArrowSource] = files if self.by_arrow else ()
        # A file is opened as many times as it is read, which takes most of the time of a small one.
        are_small = sum(file.decoded_bytes for file in files) <= _AT_ONCE_BYTES_MAX
        self._at_once: Sequence[str] = (*self.columns, OP_COLUMN) if are_small else ()
        self.in_order = all(source.part.sort_key_version == spec.order_version for source in sources)
        self.kept_dictionaries = [
            field.name
            for field in self._schema
            if field.name in dictionary_columns
            and field.name not in spec.partition_by
            and (pa.types.is_string(field.type) or pa.types.is_binary(field.type))
        ]
        for source in () if self.files else sources:
            if source.part.checksum is None:  # Arrow verifies what it reads, DuckDB does not
                verify_pages(source.part.path, source.url)

    def field(self, name: str) -> pa.Field:
        """The field of a column in the tables that are read."""
        if name == OP_COLUMN:
            return pa.field(name, pa.string())
        field = self._schema.field(name)
        is_kept = self.by_arrow and name in self.kept_dictionaries
        return field.with_type(pa.dictionary(pa.int32(), field.type)) if is_kept else field

    def schema(self, columns: Sequence[str]) -> pa.Schema:
        return pa.schema([self.field(name) for name in columns])

    def read(
        self, columns: Sequence[str], rows: Mapping[int, Rows], groups: Sequence[Sequence[int]], keeps: bool = False
    ) -> Iterator[Read]:
        """These rows of the sources, by ordinal and ascending, source after source in the order of ``groups``.

        Each group is one scan where DuckDB reads. ``keeps``: the last row group of each source stays in memory for the next call.
        """
        if self.by_arrow:
            return self._read_by_arrow(columns, rows, groups, keeps)
        return self._read_by_duckdb(columns, rows, groups)

    def scan_wanted(self, columns: Sequence[str]) -> str:
        """DuckDB's scan of the wanted rows of all sources: the columns as ``c0``, ``c1``, …, then ORDINAL and ROW."""
        rows = self._selection.rows()
        scan, _, _ = self._scan(columns, rows, list(rows), only_wanted=True)
        return scan

    # -- by Arrow ----------------------------------------------------------------------------------------------------

    def _read_by_arrow(
        self, columns: Sequence[str], rows: Mapping[int, Rows], groups: Sequence[Sequence[int]], keeps: bool
    ) -> Iterator[Read]:
        schema = self.schema(columns)
        for ordinal in (ordinal for group in groups for ordinal in group):
            file, source = self.files[ordinal], self._sources[ordinal]
            for table, found in file.read(columns, self.kept_dictionaries, rows[ordinal], keeps, self._at_once):
                yield pa.table([self._column(source, table, field) for field in schema], schema=schema), found

    def _column(self, source: MergeSource, table: pa.Table, field: pa.Field) -> pa.ChunkedArray | pa.Array:
        """A column of rows read from a source, or the value in its place."""
        constants = source.part.partition_values  # the log decides, whether a file stores them or not
        if field.name in constants:
            value = constant(constants[field.name], self._kinds[field.name])
            [scalar] = self._cursor.sql(f"select {value} as c").to_arrow_table()["c"]
            return pa.repeat(scalar, len(table))
        if field.name == OP_COLUMN:
            ops = table[OP_COLUMN] if OP_COLUMN in table.column_names else pa.nulls(len(table))
            return ops.cast(pa.string()).fill_null(UPSERT)
        return table[field.name] if field.name in table.column_names else pa.nulls(len(table), field.type)

    # -- by DuckDB ---------------------------------------------------------------------------------------------------

    def _read_by_duckdb(
        self, columns: Sequence[str], rows: Mapping[int, Rows], groups: Sequence[Sequence[int]]
    ) -> Iterator[Read]:
        for group in groups:
            scan, count, found = self._scan(columns, rows, group)
            outputs = [
                f"coalesce({alias}, {literal(UPSERT)})" if name == OP_COLUMN else alias
                for name, alias in aliases(columns).items()
            ]
            result = self._cursor.sql(f"select {', '.join(outputs)} from ({scan})").to_arrow_table()
            table = named(result, columns)
            if len(table) != count:
                names = ", ".join(self._sources[ordinal].part.path for ordinal in group)
                raise Corrupt(f"reading {names} gave {len(table)} rows instead of {count}")
            yield table, found

    def _scan(
        self, columns: Sequence[str], rows: Mapping[int, Rows], group: Sequence[int], only_wanted: bool = False
    ) -> tuple[str, int, Rows]:
        """A scan of sources, one after the other, with ordinal and row; how many rows it gives; where the wanted ones are.

        DuckDB numbers the sources by their place in the list. Of a lone one only a range of rows is read. Other rows are
        filtered out where they are many; else it is cheaper to skip them later.
        """
        constants = self._sources[group[0]].part.partition_values  # the log decides, whether a file stores them or not
        kinds = {name: "VARCHAR" if name == OP_COLUMN else self._kinds[name] for name in columns}
        urls = [self._sources[ordinal].url for ordinal in group]
        if len(group) == 1:
            first, last = int(rows[group[0]][0]), int(rows[group[0]][-1])
            flags = self._flags(group[0], rows)[first : last + 1]
            ordinal, place = str(group[0]), f"file_row_number - {first}"
            conditions = [f"file_row_number between {first} and {last}"]
        else:
            flags = np.concatenate([self._flags(ordinal, rows) for ordinal in group])
            starts = np.cumsum([0, *(len(self._selection.wanted[ordinal]) for ordinal in group)])[:-1]
            self._set("ordinals", list(group), "integer[]")
            self._set("starts", starts.tolist(), "bigint[]")
            ordinal = "getvariable('lakebed_ordinals')[file_index::bigint + 1]"
            place = "file_row_number + getvariable('lakebed_starts')[file_index::bigint + 1]"
            conditions = []
        count, found = len(flags), np.flatnonzero(flags)
        if not flags.all() and (only_wanted or 2 * len(found) < len(flags)):
            self._set("bits", np.packbits(flags).tobytes(), "bit")
            conditions.append(f"get_bit(getvariable('lakebed_bits'), ({place})::integer) = 1")
            count, found = len(found), np.arange(len(found))
        where = f" where {' and '.join(conditions)}" if conditions else ""
        numbers = f"({ordinal})::usmallint as {ORDINAL}, file_row_number::uinteger as {ROW}"  # narrow, so cheap to sort
        return f"{scan_of(urls, kinds, constants, numbers)}{where}", count, found

    def _flags(self, ordinal: int, rows: Mapping[int, Rows]) -> _Flags:
        flags = np.zeros(len(self._selection.wanted[ordinal]), dtype=bool)
        flags[rows[ordinal]] = True
        return flags

    def _set(self, name: str, value: Any, kind: str) -> None:
        """A variable of the connection: DuckDB keeps the result of a query with parameters in memory as a whole."""
        self._cursor.execute(f"set variable lakebed_{name} = $value::{kind}", {"value": value})


@lru_cache(maxsize=256)
def _arrow_types(kinds: tuple[str, ...]) -> tuple[pa.DataType, ...]:
    """The types in which DuckDB gives columns of these SQL types to Arrow."""
    nothing = ", ".join(f"null::{kind}" for kind in kinds)
    with connect() as connection:
        return tuple(connection.sql(f"select {nothing} limit 0").to_arrow_table().schema.types)


# -- How much is in memory at once -------------------------------------------------------------------------------------


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
