"""The merge kernel: several base parts of one partition become few sorted ones, with the provenance of every row.

Invariants: S1, rows are in the order of the table's sort key; S2, exactly the live rows of the sources come out, bit for
bit, and with them the delete rows that a source ``keeps_deletes``. No byte of a source is used before the source was verified
(``parts.checksum``): damage is never copied into a file that looks whole.

0. *Stage.* A source in the object store is copied to local disk, and verified on its way; a local one is verified where it is.
1. *Which rows.* A flag a row of each source: live by its deletion vector, or a delete to keep.
2. *In which order.* Only the sort columns are read and sorted; rows with equal keys follow each other by (source, row). What
   comes out is the provenance of the whole output. Keys that fit in the memory limit are sorted in memory
   (``parts.order``; as numbers 19 million of 12 bytes in 512 MB), more by DuckDB, which spills; what is no plain column is
   computed by Arrow batch by batch and given to it.
   Without a sort key the order is known without reading: source after source.
3. *Cut.* Each output part is a piece of that order, and each piece one stretch or more, of at most a fifth of the limit. In a
   source that is sorted a stretch is a range of rows, so most row groups of the source are not read.
   Where that would read row groups again and again (short parts, or parts in another order), they are all read once first,
   and each row is set aside with its stretch (``storage.spill_buckets``): an external sort by distribution.
4. *Write.* The rows of a stretch are read, source after source, and taken to their places, which the provenance tells:
   nothing is sorted twice. They are taken and written by row groups. The stretches of a part go to one file.

Arrow reads the sources if all are files that hold the flat columns of the table in its types, in row groups of no more than
a stretch (``parts.arrow_source``). If a row group of each source fits in a fifth of the limit, the last ones read are kept
for the next stretch, so that nothing is read twice, and stretches are short: what is read is in the processor's reach when it is
written. Of a source in another order each stretch reads all row groups, so then stretches are as long as memory allows.

All others are read by DuckDB, which casts; there, sources of one row group or less are one scan, because a scan each costs
milliseconds of planning.

Memory, at most about: two fifths of DuckDB's limit for rows as read (they may hold one dead row for each wanted one), as much
while they are joined to one table; a row group in order; DuckDB's own for a scan; 6 bytes a row of the output for its
provenance, and a byte a row of the sources for the flags (three while rows are set aside).
"""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from lakebed.errors import Corrupt, InvalidInput, LakebedError, StoreUnavailable
from lakebed.manifest.actions import Part
from lakebed.manifest.passes import passes_after
from lakebed.parts.arrow_source import ArrowSource, Rows, damaged, is_local
from lakebed.parts.changes import DELETE, OP_COLUMN, SEQUENCE_COLUMN, UPSERT, TableShape
from lakebed.parts.checksum import stage, verify_local, verify_pages
from lakebed.parts.order import is_whole, key_numbers, sort_order
from lakebed.parts.provenance import SOURCES_MAX, Provenance
from lakebed.parts.sql import (
    aliases,
    constant,
    file_literal,
    literal,
    named,
    parquet,
    parquet_of,
    registered,
    scan_of,
    sql_type,
)
from lakebed.parts.write import PART_ROWS_MAX, ROW_GROUP_ROWS, delta_stats, told_terms, with_told_ends
from lakebed.parts.write_arrow import write_tables
from lakebed.sortkey.order_values import key_at, order_values
from lakebed.storage.file_errors import reason, require_store
from lakebed.storage.part_storage import PartStorage
from lakebed.storage.process_folders import temporary_folder
from lakebed.storage.spill_buckets import STRETCHES_MAX, Stretches

PART_BYTES_MAX = 128 << 20
_ORDINAL, _ROW = "_lakebed_source", "_lakebed_row"
_BATCH_ROWS = 122_880
_SAMPLE_ROWS = 2048
_STRETCHES_IN_MEMORY = 5  # of rows in Arrow would fill the connection's memory
_KEYS_IN_MEMORY = 2  # as read, and joined to one table
_PLACE_BYTES = 32  # of a row, beside its key, while keys are sorted
_NUMBER_BYTES = 16  # of a row, beside its key, while the numbers that stand for keys are made and sorted
_COMPUTED_BYTES = 8  # of a value that is computed for sorting
_INDEX_BYTES = 4  # of a value that a dictionary holds
_SHORT_STRETCH_GROUPS = 8
_READ_AGAIN_MAX = 3  # setting a row aside and reading it there costs about as much as decoding it twice
_DICTIONARY_VALUES_MAX = 256  # of a whole stretch, that each of its row groups may carry

_Flags = npt.NDArray[np.bool_]
_Read = tuple[pa.Table, Rows]  # rows, and the places of the wanted ones among them


@dataclass(frozen=True, slots=True)
class MergeSource:
    """A part to merge, as it is in the snapshot that the merge reads.

    ``dead``: its dead rows then. ``keeps_deletes``: its delete rows must stay, so that late events meet them.
    ``url``: where it is, as its storage tells DuckDB.
    """

    part: Part
    dead: BitMap64
    keeps_deletes: bool
    url: str


@dataclass(frozen=True, slots=True)
class MergedPart:
    """A file that no commit names yet. ``dead``: the delete rows kept, ``deletes`` in number, dead from the start.

    ``provenance``: for each row, which row of which source it was; ordinals are places in the list of sources.
    ``passes``: see ``manifest.passes``.
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
    checksum: int | None = None  # of the file (``parts.checksum``)
    passes: int = 0


def merge_parts(
    sources: Sequence[MergeSource],
    shape: TableShape,
    storage: PartStorage,
    connection: duckdb.DuckDBPyConnection,
    *,
    rows_max: int = PART_ROWS_MAX,
    bytes_max: int = PART_BYTES_MAX,
    on_progress: Callable[[int], None] | None = None,
    read_from: PartStorage | None = None,
) -> list[MergedPart]:
    """Merge parts of one partition; the output goes to ``storage``, and is empty if no row is live.

    ``read_from``: where the sources are (default: ``storage``); those that are not local take their bytes in the temporary
    folder meanwhile. ``connection`` bounds memory and threads (``engine.connect``). An output part has at most ``rows_max`` rows,
    and about ``bytes_max`` bytes of file, judged by the sources'.
    ``on_progress`` gets the rows of the output written so far, before each part and at the end; what it raises ends the
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
        connection.cursor() as cursor,
        _explained(cursor, local),
    ):
        merge = _Merge(cursor, local, shape)
        order = merge.order()
        size = _part_rows(sources, rows_max, bytes_max)
        try:
            with merge.set_aside(order, size):
                for start in range(0, len(order), size):
                    report(start)
                    written.append(merge.write(_slice(order, start, size), storage))
            report(len(order))
        except BaseException:
            for part in written:
                with suppress(LakebedError):  # then the cleanup finds it
                    storage.delete(part.path)
            raise
    passes = passes_after([source.part for source in sources], len(order), shape.order_version)
    return [replace(part, passes=passes) for part in written]


class _Merge:
    """One merge: its sources, and which of their rows it wants."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, sources: Sequence[MergeSource], shape: TableShape) -> None:
        self._cursor = cursor
        self._sources = sources
        self._shape = shape
        self._terms = shape.terms
        self._order_columns = list(dict.fromkeys(name for term in shape.terms for name in term.columns))
        self._kinds = {field.name: sql_type(field.type) for field in shape.schema}
        if shape.sequence_column == SEQUENCE_COLUMN:
            self._kinds[SEQUENCE_COLUMN] = sql_type(pa.int64())
        self._wanted: list[_Flags] = []
        self._deletes: dict[int, _Flags] = {}
        for ordinal, source in enumerate(sources):
            wanted = _live(source, self._rows_in_file(source))
            if source.keeps_deletes and source.part.has_op_column:
                deletes = self._delete_rows(source, len(wanted))
                if deletes.any():
                    self._deletes[ordinal] = deletes
                    wanted |= deletes
            self._wanted.append(wanted)
        [(memory,)] = cursor.execute("select parse_formatted_bytes(current_setting('memory_limit'))").fetchall()
        row_bytes, widths, self._dictionary = self._layout()
        self._stretch_rows = max(1, int(memory) // _STRETCHES_IN_MEMORY // row_bytes)
        if self._stretch_rows > ROW_GROUP_ROWS:
            self._stretch_rows -= self._stretch_rows % ROW_GROUP_ROWS
        nothing = ", ".join(f"null::{kind}" for kind in self._kinds.values())
        found = cursor.sql(f"select {nothing} limit 0").to_arrow_table()
        self._schema: pa.Schema = named(found, list(self._kinds)).schema
        leading = [term.columns[0] for term in shape.terms[:1] if term.is_plain]  # whose bounds say enough
        self._sought = [name for name in shape.keys if name not in (*leading, *shape.partition_by)]
        self._kept_dictionaries = [
            field.name
            for field in self._schema
            if field.name in self._dictionary
            and field.name not in shape.partition_by
            and (pa.types.is_string(field.type) or pa.types.is_binary(field.type))
        ]
        self._files = self._arrow_files()
        for source in () if self._files else sources:
            if source.part.checksum is None:  # Arrow verifies what it reads, DuckDB does not
                verify_pages(source.part.path, source.url)
        key_bytes = sum(
            _INDEX_BYTES if self._files and name in self._kept_dictionaries else widths.get(name, 0)
            for name in self._order_columns
        )
        key_bytes += sum(_COMPUTED_BYTES for term in self._terms if not term.is_plain)
        self._key_rows = int(memory) // (_KEYS_IN_MEMORY * key_bytes + _PLACE_BYTES)
        may_have_numbers = self._files and all(
            term.columns[0] in self._kept_dictionaries or is_whole(term.type) for term in self._terms
        )
        self._number_rows = int(memory) // (key_bytes + _NUMBER_BYTES) if may_have_numbers else 0
        self._aside: Stretches | None = None
        self._stretches_written = 0
        self._keeps = sum(file.group_rows_max for file in self._files) <= self._stretch_rows
        self._in_order = all(source.part.sort_key_version == shape.order_version for source in sources)
        if self._files and self._keeps and self._in_order:
            self._stretch_rows = min(self._stretch_rows, _SHORT_STRETCH_GROUPS * ROW_GROUP_ROWS)

    def order(self) -> Provenance:
        """The provenance of all rows of the output."""
        counts = [int(np.count_nonzero(wanted)) for wanted in self._wanted]
        ordinals = np.repeat(np.arange(len(counts), dtype=np.uint16), counts)
        rows = np.concatenate([np.flatnonzero(wanted).astype(np.uint32) for wanted in self._wanted])
        if not self._terms or not len(rows):
            return Provenance(ordinals, rows)
        if len(rows) <= max(self._key_rows, self._number_rows):
            order = self._sorted_in_memory(len(rows))
            if order is not None:
                return Provenance(ordinals[order], rows[order])
        at = 0
        for batch in self._sorted_by_duckdb():
            ordinals[at : at + len(batch)] = batch.column(0).to_numpy()
            rows[at : at + len(batch)] = batch.column(1).to_numpy()
            at += len(batch)
        return Provenance(ordinals, rows)

    def _sorted_in_memory(self, rows: int) -> Rows | None:
        """The places of the wanted rows in order; None if that takes more memory than there is."""
        keys = self._keys()
        if rows <= self._key_rows:
            return sort_order(keys, self._terms)
        numbers = key_numbers(keys, self._terms)
        del keys
        return None if numbers is None else np.argsort(numbers, kind="stable")

    def _sorted_by_duckdb(self) -> Iterator[pa.RecordBatch]:
        """Ordinal and row of all wanted rows, in order."""
        wanted = self._all_wanted()
        scan, *_ = self._scan(self._order_columns, wanted, list(wanted), only_wanted=True)
        alias = aliases(self._order_columns)
        if all(term.is_plain for term in self._terms):
            columns = [alias[term.columns[0]] for term in self._terms]
            yield from self._cursor.sql(self._sort(f"({scan})", columns)).to_arrow_reader(_BATCH_ROWS)
            return
        names = [f"k{place}" for place in range(len(self._terms))]
        with self._cursor.cursor() as sorter:  # its temporary table goes with it
            make = "create temp table keys as"
            for batch in self._cursor.sql(scan).to_arrow_reader(_BATCH_ROWS):
                table = named(pa.Table.from_batches([batch]), self._order_columns)
                values = [order_values(table, term) for term in self._terms]
                keys = pa.table([*values, table[_ORDINAL], table[_ROW]], [*names, _ORDINAL, _ROW])
                with registered(sorter, "computed", keys) as computed:
                    sorter.execute(f"{make} select * from {computed}")
                make = "insert into keys"
            yield from sorter.sql(self._sort("keys", names)).to_arrow_reader(_BATCH_ROWS)

    def _sort(self, relation: str, names: Sequence[str]) -> str:
        """The query that sorts rows by the terms, whose values are in the columns of these names."""
        terms = [
            f"{name} {'desc' if term.is_descending else 'asc'} nulls {'last' if term.nulls_last else 'first'}"
            for name, term in zip(names, self._terms, strict=True)
        ]
        return f"select {_ORDINAL}, {_ROW} from {relation} order by {', '.join([*terms, _ORDINAL, _ROW])}"

    def _keys(self) -> pa.Table:
        """The sort columns of all wanted rows, source after source."""
        wanted = self._all_wanted()
        tables = []
        for table, found in self._tables(self._order_columns, wanted, [list(wanted)], keeps=False):
            chosen = table if len(found) == len(table) else table.take(pa.array(found))
            columns = {
                name: chosen[name].dictionary_encode() if name in self._kept_dictionaries else chosen[name]
                for name in chosen.column_names  # Arrow has read the dictionaries, DuckDB has not
            }
            tables.append(pa.table(columns))
        return pa.concat_tables(tables)

    def _all_wanted(self) -> dict[int, Rows]:
        return {ordinal: np.flatnonzero(wanted) for ordinal, wanted in enumerate(self._wanted)}

    @contextmanager
    def set_aside(self, order: Provenance, part_rows: int) -> Iterator[None]:
        """While this lasts, rows of the output's stretches are read from where they were set aside, if that is less to read."""
        cuts = [
            (at, min(at + self._stretch_rows, start + part_rows, len(order)))
            for start in range(0, len(order), part_rows)
            for at in range(start, min(start + part_rows, len(order)), self._stretch_rows)
        ]
        if not self._files or len(cuts) > STRETCHES_MAX or not self._is_read_again(len(order), len(cuts)):
            yield
            return
        columns = list(self._kinds) + ([OP_COLUMN] if self._deletes else [])
        firsts = np.cumsum([0, *map(len, self._wanted)])  # of the sources' rows, all in a row
        stretch = np.zeros(firsts[-1], dtype=np.uint16)
        for number, (start, stop) in enumerate(cuts):
            stretch[firsts[order.ordinals[start:stop]] + order.rows[start:stop]] = number
        with Stretches(pa.schema([self._field(name) for name in columns]), len(cuts)) as aside:
            for ordinal, rows in self._all_wanted().items():
                at = 0
                for table, found in self._read_by_arrow(columns, {ordinal: rows}, [[ordinal]], False):
                    of_rows = stretch[firsts[ordinal] + rows[at : at + len(found)]]
                    at += len(found)
                    for number in np.unique(of_rows).tolist():
                        places = found[of_rows == number]
                        is_run = places[-1] - places[0] + 1 == len(places)
                        chosen = table.slice(places[0], len(places)) if is_run else table.take(pa.array(places))
                        aside.add(number, _compact(chosen.combine_chunks()))
            aside.close()
            self._aside = aside
            yield
            self._aside = None

    def _is_read_again(self, rows: int, stretches: int) -> bool:
        """Whether reading stretch by stretch decodes much more rows than there are."""
        if self._keeps and self._in_order:
            return False
        groups = sum(file.group_rows_max for file in self._files) if self._in_order else rows
        return stretches * groups > _READ_AGAIN_MAX * rows

    def write(self, piece: Provenance, storage: PartStorage) -> MergedPart:
        """One part of the output."""
        dead = self._dead(piece)
        columns = list(self._kinds) + ([OP_COLUMN] if len(dead) else [])
        told = told_terms(self._shape)
        ends: list[list[pa.Scalar]] = []  # the first and the last row's sort key

        def groups() -> Iterator[pa.Table]:
            for at in range(0, len(piece), self._stretch_rows):
                for group in self._row_groups(columns, _slice(piece, at, self._stretch_rows)):
                    if told and not ends:
                        ends.append(key_at(group, 0, told))
                    if told:
                        ends[1:] = [key_at(group, len(group) - 1, told)]
                    yield group

        schema = pa.schema([self._field(name) for name in columns])
        sought = {name: min(len(piece), ROW_GROUP_ROWS) for name in self._sought}
        path, rows, size, checksum, stats = write_tables(
            groups(), schema, self._dictionary, ROW_GROUP_ROWS, storage, sought, self._terms
        )
        stats_json = delta_stats(rows, stats, self._shape.schema)
        if ends:
            stats_json = with_told_ends(stats_json, told, *ends)
        return MergedPart(
            path, rows, size, stats_json, len(dead), bool(len(dead)), dead, piece, self._shape.order_version, checksum
        )

    def _field(self, name: str) -> pa.Field:
        if name == OP_COLUMN:
            return pa.field(name, pa.string())
        field = self._schema.field(name)
        is_kept = self._files and name in self._kept_dictionaries
        return field.with_type(pa.dictionary(pa.int32(), field.type)) if is_kept else field

    def _row_groups(self, columns: Sequence[str], piece: Provenance) -> Iterator[pa.Table]:
        """The rows of a piece, in its order: read source after source, then each taken to its place."""
        wanted: dict[int, Rows] = {}
        places: dict[int, Rows] = {}
        by_source = np.argsort(piece.ordinals, kind="stable")
        for at in np.split(by_source, np.flatnonzero(np.diff(piece.ordinals[by_source])) + 1):
            ordinal, rows = int(piece.ordinals[at[0]]), piece.rows[at].astype(np.int64)
            if not np.all(rows[:-1] < rows[1:]):
                as_in_file = np.argsort(rows)
                at, rows = at[as_in_file], rows[as_in_file]
            places[ordinal], wanted[ordinal] = at, rows
        sought = np.empty(len(piece), np.int64)
        if self._aside:
            table = self._aside.read(self._stretches_written, columns).unify_dictionaries().combine_chunks()
            self._stretches_written += 1
            sought[np.concatenate([places[ordinal] for ordinal in sorted(places)])] = np.arange(len(piece))
            yield from self._taken(table, sought)
            return
        small = [ordinal for ordinal in wanted if len(self._wanted[ordinal]) <= ROW_GROUP_ROWS]
        groups = [small] if small else []
        groups += [[ordinal] for ordinal in wanted if ordinal not in small]
        table, found = self._read(columns, wanted, groups, self._keeps)
        sought[np.concatenate([places[ordinal] for group in groups for ordinal in group])] = found
        yield from self._taken(table, sought)

    def _taken(self, table: pa.Table, sought: Rows) -> Iterator[pa.Table]:
        for start in range(0, len(sought), ROW_GROUP_ROWS):
            yield _compact(table.take(pa.array(sought[start : start + ROW_GROUP_ROWS])))

    def _read(
        self, columns: Sequence[str], wanted: Mapping[int, Rows], groups: Sequence[Sequence[int]], keeps: bool
    ) -> _Read:
        """Rows of the sources, group after group, and the places of the wanted ones among them."""
        tables: list[pa.Table] = []
        places: list[Rows] = []
        start = 0
        for table, found in self._tables(columns, wanted, groups, keeps):
            tables.append(table)
            places.append(found + start)
            start += len(table)
        return pa.concat_tables(tables).unify_dictionaries().combine_chunks(), np.concatenate(places)

    def _tables(
        self, columns: Sequence[str], wanted: Mapping[int, Rows], groups: Sequence[Sequence[int]], keeps: bool
    ) -> Iterator[_Read]:
        if self._files:
            return self._read_by_arrow(columns, wanted, groups, keeps)
        return self._read_by_duckdb(columns, wanted, groups)

    def _read_by_duckdb(
        self, columns: Sequence[str], wanted: Mapping[int, Rows], groups: Sequence[Sequence[int]]
    ) -> Iterator[_Read]:
        for group in groups:
            scan, count, found = self._scan(columns, wanted, group)
            outputs = [
                f"coalesce({alias}, {literal(UPSERT)})" if name == OP_COLUMN else alias
                for name, alias in aliases(columns).items()
            ]
            rows = self._cursor.sql(f"select {', '.join(outputs)} from ({scan})").to_arrow_table()
            table = named(rows, columns)
            if len(table) != count:
                names = ", ".join(self._sources[ordinal].part.path for ordinal in group)
                raise Corrupt(f"reading {names} gave {len(table)} rows instead of {count}")
            yield table, found

    def _read_by_arrow(
        self, columns: Sequence[str], wanted: Mapping[int, Rows], groups: Sequence[Sequence[int]], keeps: bool
    ) -> Iterator[_Read]:
        schema = pa.schema([self._field(name) for name in columns])
        for ordinal in (ordinal for group in groups for ordinal in group):
            file, source = self._files[ordinal], self._sources[ordinal]
            for table, found in file.read(columns, self._kept_dictionaries, wanted[ordinal], keeps):
                yield pa.table([self._column(source, table, field) for field in schema], schema=schema), found

    def _column(self, source: MergeSource, table: pa.Table, field: pa.Field) -> pa.ChunkedArray | pa.Array:
        """A column of rows read from a source, or what stands for it."""
        constants = source.part.partition_values  # whether a file stores them or not: the log decides
        if field.name in constants:
            value = constant(constants[field.name], self._kinds[field.name])
            [scalar] = self._cursor.sql(f"select {value} as c").to_arrow_table()["c"]
            return pa.repeat(scalar, len(table))
        if field.name == OP_COLUMN:
            ops = table[OP_COLUMN] if OP_COLUMN in table.column_names else pa.nulls(len(table))
            return ops.cast(pa.string()).fill_null(UPSERT)
        return table[field.name] if field.name in table.column_names else pa.nulls(len(table), field.type)

    def _arrow_files(self) -> list[ArrowSource]:
        """The sources as Arrow reads them; none if DuckDB must read them."""
        files: list[ArrowSource] = []
        for source in self._sources:
            file = ArrowSource(source.part.path, source.url, source.part.checksum is not None)
            if file.group_rows_max > self._stretch_rows or not file.suits(self._schema, source.part.partition_values):
                return []
            files.append(file)
        return files

    def _rows_in_file(self, source: MergeSource) -> int:
        scan = f"select num_rows from parquet_file_metadata({file_literal(source.url)})"
        [(rows,)] = self._cursor.execute(scan).fetchall()
        if source.part.rows not in (-1, rows):  # other writers may not say
            raise Corrupt(f"{source.part.path} has {rows} rows, but the log says {source.part.rows}")
        return int(rows)

    def _layout(self) -> tuple[int, dict[str, int], list[str]]:
        """About what a row takes in memory, and each of its columns; the paths of columns mostly stored as dictionaries.

        By the footers, and by the first rows of the largest source.
        """
        size, values, in_dictionary = 0, Counter[str](), Counter[str]()
        for source in self._sources:
            footer = pq.read_metadata(source.url)  # DuckDB would convert all statistics too, and fails on some
            for group in map(footer.row_group, range(footer.num_row_groups)):
                for leaf in map(group.column, range(group.num_columns)):
                    size += leaf.total_uncompressed_size
                    values[leaf.path_in_schema] += leaf.num_values
                    in_dictionary[leaf.path_in_schema] += leaf.num_values if leaf.has_dictionary_page else 0
        rows = sum(map(len, self._wanted))
        largest = max(self._sources, key=lambda source: source.part.bytes)
        first = self._cursor.sql(f"select * from {parquet(largest.url)} limit {_SAMPLE_ROWS}").to_arrow_table()
        row_bytes = int(max(size / max(rows, 1), first.nbytes / max(len(first), 1))) + 1
        widths = {name: first[name].nbytes // max(len(first), 1) + 1 for name in first.column_names}
        return row_bytes, widths, sorted(path for path in values if 2 * in_dictionary[path] > values[path])

    def _delete_rows(self, source: MergeSource, rows: int) -> _Flags:
        scan = parquet_of([source.url], {OP_COLUMN: ("op", "VARCHAR")})
        query = f"select file_row_number from {scan} where op = {literal(DELETE)}"
        flags = np.zeros(rows, dtype=bool)
        flags[self._cursor.execute(query).fetchnumpy()["file_row_number"]] = True
        return flags

    def _dead(self, piece: Provenance) -> BitMap64:
        dead = BitMap64()
        for ordinal, deletes in self._deletes.items():
            places = np.flatnonzero(piece.ordinals == ordinal)
            dead |= BitMap64(places[deletes[piece.rows[places]]].astype(np.uint64))
        return dead

    def _flags(self, ordinal: int, wanted: Mapping[int, Rows]) -> _Flags:
        flags = np.zeros(len(self._wanted[ordinal]), dtype=bool)
        flags[wanted[ordinal]] = True
        return flags

    def _set(self, name: str, value: Any, kind: str) -> None:
        """A variable of the connection: DuckDB keeps the result of a query with parameters in memory as a whole."""
        self._cursor.execute(f"set variable lakebed_{name} = $value::{kind}", {"value": value})

    def _scan(
        self, columns: Sequence[str], wanted: Mapping[int, Rows], group: Sequence[int], only_wanted: bool = False
    ) -> tuple[str, int, Rows]:
        """A scan of sources, one after the other, with ordinal and row; how many rows it gives; where the wanted ones are.

        DuckDB numbers the sources by their place in the list. Of a lone one only a range of rows is read. Other rows are
        left out where they are many: else it is cheaper to pass them over later.
        """
        constants = self._sources[group[0]].part.partition_values  # whether a file stores them or not: the log decides
        kinds = {name: "VARCHAR" if name == OP_COLUMN else self._kinds[name] for name in columns}
        urls = [self._sources[ordinal].url for ordinal in group]
        if len(group) == 1:
            first, last = int(wanted[group[0]][0]), int(wanted[group[0]][-1])
            flags = self._flags(group[0], wanted)[first : last + 1]
            ordinal, place = str(group[0]), f"file_row_number - {first}"
            conditions = [f"file_row_number between {first} and {last}"]
        else:
            flags = np.concatenate([self._flags(ordinal, wanted) for ordinal in group])
            starts = np.cumsum([0, *(len(self._wanted[ordinal]) for ordinal in group)])[:-1]
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
        numbers = (
            f"({ordinal})::usmallint as {_ORDINAL}, file_row_number::uinteger as {_ROW}"  # narrow, so cheap to sort
        )
        return f"{scan_of(urls, kinds, constants, numbers)}{where}", count, found


def _compact(table: pa.Table) -> pa.Table:
    """The same rows; a large dictionary keeps only the values that they have."""
    for place, field in enumerate(table.schema):
        column = table.column(place)
        if pa.types.is_dictionary(field.type) and len(column.chunk(0).dictionary) > _DICTIONARY_VALUES_MAX:
            table = table.set_column(place, field, column.cast(field.type.value_type).dictionary_encode())
    return table


def _slice(order: Provenance, start: int, rows: int) -> Provenance:
    return Provenance(order.ordinals[start : start + rows], order.rows[start : start + rows])


def _live(source: MergeSource, rows: int) -> _Flags:
    flags = np.ones(rows, dtype=bool)
    if source.dead:
        if source.dead.max() >= rows:
            raise Corrupt(
                f"{source.part.path}: its deletion vector marks row {source.dead.max()}, but the file has {rows} rows"
            )
        flags[np.frombuffer(source.dead.to_array(), dtype=np.uint64)] = False
    return flags


def _part_rows(sources: Sequence[MergeSource], rows_max: int, bytes_max: int) -> int:
    """Rows of an output part of about ``bytes_max`` bytes, at what a row of the sources takes."""
    rows, size = sum(max(source.part.rows, 0) for source in sources), sum(source.part.bytes for source in sources)
    return max(1, min(rows_max, bytes_max * rows // size if rows and size else rows_max))


@contextmanager
def _verified(
    sources: Sequence[MergeSource], storage: PartStorage, report: Callable[[int], None]
) -> Iterator[list[MergeSource]]:
    """The sources as local files that are what was written; copies of those in the object store go in the end."""
    folder = temporary_folder() / f"merge-{uuid.uuid4().hex}"
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
    """Turns what DuckDB says into an error that names the part or the disk."""
    try:
        yield
    except duckdb.Error as error:
        require_store(error)
        if isinstance(error, duckdb.OutOfMemoryException) or "No space left" in str(error):
            raise StoreUnavailable(
                f"the merge of {len(sources)} parts found no room ({error}); free space in the temporary folder and "
                "where parts are written, or allow more memory"
            ) from error
        for source in sources:
            try:
                cursor.execute(f"select bit_xor(hash(columns(*))) from {parquet(source.url)}").fetchall()
            except duckdb.Error as cause:
                require_store(cause)
                raise damaged(source.part.path, reason(cause)) from error
        raise
