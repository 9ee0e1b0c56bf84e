"""The merge kernel: several base parts of one partition become few sorted ones, with the provenance of every row.

Invariants: S1, rows are in the order of the table's sort key; S2, exactly the live rows of the sources come out, bit for
bit, and with them the delete rows that a source ``keeps_deletes``. No byte of a source is used before the source was verified
(``parts.intact``): damage is never copied into a file that looks whole.

0. *Stage.* A source in the object store is copied to local disk, and verified on its way; a local one is verified where it is.
1. *Which rows* (``reader``). A flag a row of each source: live by its deletion vector, or a delete to keep.
2. *In which order* (``provenance``). The sort columns are read and sorted. The result is the provenance of the whole output.
3. *Cut*. Each output part is a slice of that order, each slice one chunk or more, of as many rows as fit
   in memory (``reader``).
4. *Write*. The rows of a chunk are read (``reader``), taken to their places, and written by row groups.

Memory, at most about: two fifths of DuckDB's limit for rows as read (they may hold one dead row for each wanted one), as much
while they are joined to one table; a row group in order; DuckDB's own for a scan; 6 bytes a row of the output for its
provenance, and a byte a row of the sources for the flags (three while rows are spilled).
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import duckdb
import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from lakebed.errors import InvalidInput, LakebedError, Retry, StoreUnavailable
from lakebed.log.actions import passes_after
from lakebed.merge.provenance import SOURCES_MAX, Provenance, output_order
from lakebed.merge.reader import (
    DEFAULT_LIMITS,
    Budget,
    Footprint,
    MergeLimits,
    MergeSource,
    Selection,
    SourceReader,
    budget_of,
    chunk_rows_max,
    footprint_of,
    memory_limit,
    select_rows,
)
from lakebed.parts.arrow_source import ArrowSource, Rows, damaged, is_local
from lakebed.parts.changes import OP_COLUMN, VERSION_COLUMN, WriteSpec
from lakebed.parts.intact import stage, verify_local
from lakebed.parts.row_origins import with_versions
from lakebed.parts.write import (
    PART_ROWS_MAX,
    bounds_count_deletes,
    delta_stats,
    order_bound_terms,
    with_needed_order_bounds,
)
from lakebed.parts.write_arrow import write_tables
from lakebed.sortkey.order_values import key_at
from lakebed.sql import parquet
from lakebed.storage.engine import cursor_of, is_out_of_memory, is_out_of_room, raise_own, reason
from lakebed.storage.local_folders import SPILL_BUCKETS_MAX, SpillBuckets, process_folder
from lakebed.storage.part_storage import PartStorage

# -- The parts of the output, written chunk by chunk (steps 3 and 4) -------------------------------------------------------
#
# 1. Each output part is a slice of the order, and each slice has one or more chunks. In a sorted source a chunk is a range of
#    rows, so most row groups of the source are not read for it.
# 2. Where chunks would read the same row groups again and again (short parts, or parts in another order), all rows are read
#    once first, and each is spilled with its chunk (``storage.local_folders``): an external sort by distribution.
# 3. The rows of a chunk are read source after source and moved to their places. The provenance has these, so nothing is sorted
#    twice. They are taken and written by row groups. All chunks of a part go to one file.


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedPart:
    """A file that no commit references yet. ``dead``: the delete rows kept, ``deletes`` in number, dead from the start.

    ``provenance``: for each row, which row of which source it was; ordinals are places in the list of sources.
    ``passes``: see ``log.passes``.
    """

    path: str
    rows: int
    bytes: int
    stats: str
    deletes: int
    has_op_column: bool
    dead: BitMap64
    provenance: Provenance
    sort_key_version: int | None = None  # what its rows are sorted by
    checksum: int | None = None  # of the file (``parts.intact``)
    passes: int = 0


class _Assembler:
    """Takes rows from the sources to their places in the output."""

    def __init__(
        self,
        reader: SourceReader,
        selection: Selection,
        spec: WriteSpec,
        footprint: Footprint,
        budget: Budget,
        limits: MergeLimits,
    ) -> None:
        self._reader = reader
        self._selection = selection
        self._spec = spec
        self._budget = budget
        self._limits = limits
        self._terms = spec.terms
        self._dictionary_columns = [*footprint.dictionary_columns, VERSION_COLUMN]
        leading = [term.columns[0] for term in self._terms[:1] if term.is_plain]  # whose bounds say enough
        self._bloom_columns = [name for name in spec.keys if name not in (*leading, *spec.partition_by)]
        self._spilled: SpillBuckets | None = None
        self._chunks_read = 0

    @contextmanager
    def spilling(self, order: Provenance, part_rows: int) -> Iterator[None]:
        """While this lasts, rows of the output's chunks are read from where they were spilled, if that is less to read."""
        cuts = [
            (at, min(at + self._budget.chunk_rows, start + part_rows, len(order)))
            for start in range(0, len(order), part_rows)
            for at in range(start, min(start + part_rows, len(order)), self._budget.chunk_rows)
        ]
        if len(cuts) > SPILL_BUCKETS_MAX or not self._is_read_again(len(order), len(cuts)):
            yield
            return
        columns = [*self._reader.columns, *([OP_COLUMN] if self._selection.deletes else [])]
        firsts = np.cumsum([0, *map(len, self._selection.wanted)])  # of the sources' rows, all in a row
        chunk_of = np.zeros(firsts[-1], dtype=np.uint16)
        for number, (start, stop) in enumerate(cuts):
            chunk_of[firsts[order.ordinals[start:stop]] + order.rows[start:stop]] = number
        with SpillBuckets(self._reader.schema(columns), len(cuts)) as spilled:
            for ordinal, rows in self._selection.rows().items():
                at = 0
                for table, found in self._reader.read(columns, {ordinal: rows}, [[ordinal]]):
                    of_rows = chunk_of[firsts[ordinal] + rows[at : at + len(found)]]
                    at += len(found)
                    for number in np.unique(of_rows).tolist():
                        places = found[of_rows == number]
                        is_run = places[-1] - places[0] + 1 == len(places)
                        chosen = table.slice(places[0], len(places)) if is_run else table.take(pa.array(places))
                        spilled.add(number, with_used_values(chosen.combine_chunks()))
            spilled.close()
            self._spilled = spilled
            yield
            self._spilled = None

    def _is_read_again(self, rows: int, chunks: int) -> bool:
        """Whether reading chunk by chunk decodes many more rows than there are. Not judged where DuckDB reads."""
        in_order = self._reader.in_order
        if not self._reader.by_arrow or (self._budget.keeps_row_groups and in_order):
            return False
        groups = sum(file.group_rows_max for file in self._reader.files) if in_order else rows
        return chunks * groups > self._limits.reads_of_a_row_max * rows

    def write(self, piece: Provenance, storage: PartStorage, names: str = "") -> MergedPart:
        """One part of the output. ``names``: see ``merge_parts``."""
        dead = self._dead(piece)
        columns = [*self._reader.columns, *([OP_COLUMN] if len(dead) else [])]
        bound_terms = order_bound_terms(self._spec)
        ends: list[list[pa.Scalar]] = []  # the first and the last sort key of the rows that count
        deletes = np.zeros(len(piece), dtype=bool)
        deletes[np.array(dead.to_array(), dtype=np.int64)] = True
        counts = np.ones(len(piece), dtype=bool) if bounds_count_deletes(self._spec) else ~deletes

        def groups() -> Iterator[pa.Table]:
            done = 0
            for at in range(0, len(piece), self._budget.chunk_rows):
                for group in self._row_groups(columns, piece.slice(at, self._budget.chunk_rows)):
                    here = slice(done, done + len(group))
                    counted = np.flatnonzero(counts[here])
                    if self._reader.versions is not None:
                        versions = self._reader.versions[piece.ordinals[here]]
                        group = with_versions(group, versions, None if self._spec.partition_by else deletes[here])
                    done += len(group)
                    if bound_terms and len(counted):
                        first, last = (key_at(group, int(counted[end]), bound_terms) for end in (0, -1))
                        ends[:] = [ends[0] if ends else first, last]
                    yield group

        group_rows = self._limits.row_group_rows
        bloom_filters = {name: min(len(piece), group_rows) for name in self._bloom_columns}
        path, rows, size, checksum, stats = write_tables(
            groups(),
            self._reader.schema(columns),
            self._dictionary_columns,
            group_rows,
            storage,
            bloom_filters=bloom_filters,
            order=self._terms,
            field_ids=self._spec.field_ids,
            names=names,
        )
        stats_json = delta_stats(rows, stats, self._spec.schema)
        if ends:
            stats_json = with_needed_order_bounds(stats_json, bound_terms, *ends)
        return MergedPart(
            path=path,
            rows=rows,
            bytes=size,
            stats=stats_json,
            deletes=len(dead),
            has_op_column=bool(len(dead)),
            dead=dead,
            provenance=piece,
            sort_key_version=self._spec.order_version,
            checksum=checksum,
        )

    def _row_groups(self, columns: Sequence[str], piece: Provenance) -> Iterator[pa.Table]:
        """The rows of a chunk, in its order: read source after source, then each taken to its place."""
        wanted: dict[int, Rows] = {}
        places: dict[int, Rows] = {}
        by_source = np.argsort(piece.ordinals, kind="stable")
        for at in np.split(by_source, np.flatnonzero(np.diff(piece.ordinals[by_source])) + 1):
            ordinal, rows = int(piece.ordinals[at[0]]), piece.rows[at].astype(np.int64)
            if not np.all(rows[:-1] < rows[1:]):
                as_in_file = np.argsort(rows)
                at, rows = at[as_in_file], rows[as_in_file]
            places[ordinal], wanted[ordinal] = at, rows
        positions = np.empty(len(piece), np.int64)
        if self._spilled:
            table = self._spilled.read(self._chunks_read, columns).unify_dictionaries().combine_chunks()
            self._chunks_read += 1
            positions[np.concatenate([places[ordinal] for ordinal in sorted(places)])] = np.arange(len(piece))
        else:
            group_rows = self._limits.row_group_rows
            small = [ordinal for ordinal in wanted if len(self._selection.wanted[ordinal]) <= group_rows]
            groups = [small] if small else []
            groups += [[ordinal] for ordinal in wanted if ordinal not in small]
            table, found = _joined(self._reader.read(columns, wanted, groups, self._budget.keeps_row_groups))
            positions[np.concatenate([places[ordinal] for group in groups for ordinal in group])] = found
        for start in range(0, len(positions), self._limits.row_group_rows):
            yield with_used_values(table.take(pa.array(positions[start : start + self._limits.row_group_rows])))

    def _dead(self, piece: Provenance) -> BitMap64:
        dead = BitMap64()
        for ordinal, deletes in self._selection.deletes.items():
            places = np.flatnonzero(piece.ordinals == ordinal)
            dead |= BitMap64(places[deletes[piece.rows[places]]].astype(np.uint64))
        return dead


def with_used_values(table: pa.Table) -> pa.Table:
    """The same rows; dictionaries keep only the values that they use.

    The file has the dictionary as it is. So a value of rows that were left out would be in it, though no reader ever sees it.
    """
    for place, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            chunks = [_with_used_values(chunk) for chunk in table.column(place).chunks]
            table = table.set_column(place, field, pa.chunked_array(chunks, field.type))
    return table


def _with_used_values(column: pa.DictionaryArray) -> pa.DictionaryArray:
    used = np.zeros(len(column.dictionary), dtype=bool)
    used[column.indices.drop_null().to_numpy()] = True
    if used.all():
        return column
    places = pa.array(np.cumsum(used, dtype=np.int32) - np.int32(1))
    return pa.DictionaryArray.from_arrays(places.take(column.indices), column.dictionary.filter(pa.array(used)))


def _joined(reads: Iterator[tuple[pa.Table, Rows]]) -> tuple[pa.Table, Rows]:
    """One table of all that was read, and the places of the wanted rows in it."""
    tables: list[pa.Table] = []
    places: list[Rows] = []
    start = 0
    for table, found in reads:
        tables.append(table)
        places.append(found + start)
        start += len(table)
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks(), np.concatenate(places)


__all__ = ["MergeSource", "MergedPart", "merge_parts"]

_PART_BYTES_MAX = 128 << 20


def merge_parts(
    sources: Sequence[MergeSource],
    spec: WriteSpec,
    storage: PartStorage,
    connection: duckdb.DuckDBPyConnection,
    *,
    rows_max: int = PART_ROWS_MAX,
    bytes_max: int = _PART_BYTES_MAX,
    on_progress: Callable[[int], None] | None = None,
    read_from: PartStorage | None = None,
    limits: MergeLimits = DEFAULT_LIMITS,
    names: str = "",
) -> list[MergedPart]:
    """Merge parts of one partition; the output goes to ``storage``, and is empty if no row is live.

    ``read_from``: where the sources are (default: ``storage``); those that are not local take their bytes in the temporary
    folder meanwhile. ``connection`` bounds memory and threads (``engine.connect``). An output part has at most ``rows_max`` rows,
    and about ``bytes_max`` bytes of file, judged by the sources'.
    ``names``: what the names of its files begin with, before a uuid.
    ``on_progress`` gets the rows of the output written so far, before each part and at the end; an error that it raises ends the
    merge. On any error the files written so far are deleted.

    Raises Corrupt, naming the source that is missing or damaged; StoreUnavailable for a full disk.
    """
    if len(sources) > SOURCES_MAX:
        raise InvalidInput(f"a merge of {len(sources):,} parts is too large; give at most {SOURCES_MAX:,}")
    if any(source.part.partition_values != sources[0].part.partition_values for source in sources):
        raise InvalidInput("a merge takes parts of one partition")
    if not sources:
        return []
    report = on_progress or (lambda rows: None)
    written: list[MergedPart] = []
    with (
        _verified(sources, read_from or storage, report) as local,
        cursor_of(connection) as cursor,
        _explained(cursor, local),
    ):
        assembler, order = _prepared(cursor, local, spec, limits)
        size = _part_rows(sources, rows_max, bytes_max)
        try:
            with assembler.spilling(order, size):
                for start in range(0, len(order), size):
                    report(start)
                    written.append(assembler.write(order.slice(start, size), storage, names))
            report(len(order))
        except BaseException:
            for part in written:
                with suppress(LakebedError):  # then the cleanup finds it
                    storage.delete(part.path)
            raise
    passes = passes_after([source.part for source in sources], len(order), spec.order_version)
    return [replace(part, passes=passes) for part in written]


def _prepared(
    cursor: duckdb.DuckDBPyConnection, sources: Sequence[MergeSource], spec: WriteSpec, limits: MergeLimits
) -> tuple[_Assembler, Provenance]:
    """Steps 1 and 2: what writes the output, and the order of its rows."""
    memory, terms = memory_limit(cursor), spec.terms
    files = [ArrowSource(source.part.path, source.url, source.part.checksum is not None) for source in sources]
    footers = [file.footer for file in files]
    selection = select_rows(cursor, sources, footers)
    footprint = footprint_of(cursor, sources, footers, selection.rows_read)
    reader = SourceReader(
        cursor,
        sources,
        files,
        selection,
        spec,
        dictionary_columns=footprint.dictionary_columns,
        group_rows_max=chunk_rows_max(memory, footprint.row_bytes, limits),
    )
    budget = budget_of(
        memory,
        footprint,
        limits,
        terms=terms,
        files=reader.files,
        kept_dictionaries=reader.kept_dictionaries,
        in_order=reader.in_order,
    )
    order = output_order(cursor, reader, selection, terms, budget)
    return _Assembler(reader, selection, spec, footprint, budget, limits), order


def _part_rows(sources: Sequence[MergeSource], rows_max: int, bytes_max: int) -> int:
    """Rows of an output part of about ``bytes_max`` bytes, at what a row of the sources takes."""
    rows, size = sum(max(source.part.rows, 0) for source in sources), sum(source.part.bytes for source in sources)
    return max(1, min(rows_max, bytes_max * rows // size if rows and size else rows_max))


@contextmanager
def _verified(
    sources: Sequence[MergeSource], storage: PartStorage, report: Callable[[int], None]
) -> Iterator[list[MergeSource]]:
    """The sources as local files that are what was written; copies of those in the object store go in the end."""
    folder = process_folder() / f"merge-{uuid.uuid4().hex}"
    folder.mkdir()
    try:
        local = []
        for ordinal, source in enumerate(sources):
            if not is_local(source.url):
                report(0)
                copy = folder / f"{ordinal}.parquet"
                stage(source.part, storage, copy)
                source = replace(source, url=str(copy))
            elif source.part.checksum is not None:
                verify_local(source.part, source.url)
            local.append(source)
        yield local
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _explained(cursor: duckdb.DuckDBPyConnection, sources: Sequence[MergeSource]) -> Iterator[None]:
    """Turns errors of DuckDB into one that names the part or the disk."""
    try:
        yield
    except duckdb.Error as error:
        raise_own(error)
        if is_out_of_room(error):
            raise StoreUnavailable(
                f"the merge of {len(sources)} parts found no room ({error}); free space in the temporary folder and "
                "where parts are written"
            ) from error
        if is_out_of_memory(error):
            raise Retry(
                f"the merge of {len(sources)} parts needs more memory ({error}); allow more, or let less be merged at once "
                "(lakebed.plan_bytes_max)"
            ) from error
        for source in sources:
            try:
                cursor.execute(f"select bit_xor(hash(columns(*))) from {parquet(source.url)}").fetchall()
            except duckdb.Error as cause:
                raise_own(cause)
                raise damaged(source.part.path, reason(cause)) from error
        raise
