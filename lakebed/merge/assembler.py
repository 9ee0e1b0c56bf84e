"""Writes the parts of a merge's output, chunk by chunk (steps 3 and 4 of ``merge.kernel``).

1. Each output part is a slice of the order, and each slice has one or more chunks. In a sorted source a chunk is a range of rows,
   so most row groups of the source are not read for it.
2. Where chunks would read the same row groups again and again (short parts, or parts in another order), all rows are read once
   first, and each is spilled with its chunk (``storage.local_folders``): an external sort by distribution.
3. The rows of a chunk are read source after source and moved to their places. The provenance has these, so nothing is sorted
   twice. They are taken and written by row groups. All chunks of a part go to one file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from lakebed.merge.provenance import Provenance
from lakebed.merge.reader import Budget, Footprint, MergeLimits, Selection, SourceReader
from lakebed.parts.arrow_source import Rows
from lakebed.parts.changes import OP_COLUMN, VERSION_COLUMN, WriteSpec
from lakebed.parts.row_origins import with_versions
from lakebed.parts.write import bounds_count_deletes, delta_stats, order_bound_terms, with_needed_order_bounds
from lakebed.parts.write_arrow import write_tables
from lakebed.sortkey.order_values import key_at
from lakebed.storage.local_folders import SPILL_BUCKETS_MAX, SpillBuckets
from lakebed.storage.part_storage import PartStorage


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


class Assembler:
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
