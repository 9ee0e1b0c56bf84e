"""The merge kernel: several base parts of one partition become few sorted ones, with the provenance of every row.

Invariants: S1, rows are in the order of the table's sort key; S2, exactly the live rows of the sources come out, bit for
bit, and with them the delete rows that a source ``keeps_deletes``.

1. *Which rows.* A flag a row of each source: live by its deletion vector, or a delete to keep.
2. *In which order.* Only the sort columns are read and sorted, with (source, row) as the last tie-break. What comes out is the
   provenance of the whole output. Without a sort key it is known without reading: source after source.
3. *Cut.* Each output part is a stretch of that order. In a source that is sorted it is a range of rows, so most row
   groups of the source are not read.
4. *Write.* Each part is one query: its rows are read, sorted as in step 2, and copied to a file. Where the sources do not
   overlap within the part, reading them one after the other is the order already, and nothing is sorted. Where a part's
   rows are too wide to be sorted at once, stretches of it are, into temporary files that are then copied.

DuckDB's sort of all rows at once spills, which is slow; and with wide rows, or with a union of many scans below it, it runs
out of memory instead of spilling. So step 2 is one scan, and step 4
never sorts more than a third of the connection's memory. Sources of one row group or less are read as one scan in step 4
too, because a scan each costs milliseconds of planning.

Memory: DuckDB's limit, 6 bytes a row of the output for its provenance, and a byte a row of the sources for the flags.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64

from lakebed.errors import Corrupt, InvalidInput, LakebedError, StoreUnavailable
from lakebed.manifest.actions import Part
from lakebed.parts.changes import DELETE, OP_COLUMN, SEQUENCE_COLUMN, UPSERT, TableShape
from lakebed.parts.provenance import SOURCES_MAX, Provenance
from lakebed.parts.sql import file_literal, literal, parquet, parquet_of, quote, quote_all, sql_type
from lakebed.parts.storage import PartStorage
from lakebed.parts.write import PART_ROWS_MAX, ROW_GROUP_ROWS, ordering, write_part

PART_BYTES_MAX = 128 << 20
_ORDINAL, _ROW = "_lakebed_source", "_lakebed_row"
_BATCH_ROWS = 122_880
_VECTOR_ROWS = 2048  # what DuckDB works on at a time

_Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class MergeSource:
    """A part to merge, as it is in the snapshot that the merge reads.

    ``dead``: its dead rows then. ``keeps_deletes``: its delete rows must stay, so that late events meet them.
    ``url``: what DuckDB reads.
    """

    part: Part
    dead: BitMap64
    keeps_deletes: bool
    url: str


@dataclass(frozen=True, slots=True)
class MergedPart:
    """A file that no commit names yet. ``dead``: the delete rows kept, ``deletes`` in number, dead from the start.

    ``provenance``: for each row, which row of which source it was; ordinals are places in the list of sources.
    """

    path: str
    rows: int
    bytes: int
    stats: str
    deletes: int
    has_op_column: bool
    dead: BitMap64
    provenance: Provenance


def merge_parts(
    sources: Sequence[MergeSource],
    shape: TableShape,
    storage: PartStorage,
    connection: duckdb.DuckDBPyConnection,
    *,
    rows_max: int = PART_ROWS_MAX,
    bytes_max: int = PART_BYTES_MAX,
    on_progress: Callable[[int], None] | None = None,
) -> list[MergedPart]:
    """Merge parts of one partition; the output goes to ``storage``, and is empty if no row is live.

    ``connection`` bounds memory and threads (``engine.connect``) and can read the sources' urls (``PartStorage.attach``). An
    output part has at most ``rows_max`` rows, and about ``bytes_max`` bytes of file, judged by the sources'.
    ``on_progress`` gets the rows of the output written so far, before each part and at the end; what it raises ends the
    merge. On any error the files written so far are deleted.

    Raises Corrupt, naming the source that is missing or unreadable; StoreUnavailable for a full disk.
    """
    if len(sources) > SOURCES_MAX:
        raise InvalidInput(f"a merge of {len(sources):,} parts is too large; give at most {SOURCES_MAX:,}")
    if any(source.part.partition_values != sources[0].part.partition_values for source in sources):
        raise InvalidInput("a merge takes parts of one partition")
    if not sources:
        return []
    report = on_progress or (lambda rows: None)
    written: list[MergedPart] = []
    with connection.cursor() as cursor, _explained(cursor, sources):
        merge = _Merge(cursor, sources, shape)
        order = merge.order()
        size = _part_rows(sources, rows_max, bytes_max)
        try:
            for start in range(0, len(order), size):
                report(start)
                piece = Provenance(order.ordinals[start : start + size], order.rows[start : start + size])
                written.append(merge.write(piece, storage))
            report(len(order))
        except BaseException:
            for part in written:
                with suppress(LakebedError):  # then the cleanup finds it
                    storage.delete(part.path)
            raise
    return written


class _Merge:
    """One merge: its sources, and which of their rows it wants."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, sources: Sequence[MergeSource], shape: TableShape) -> None:
        self._cursor = cursor
        self._sources = sources
        self._shape = shape
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
        [(memory, folder)] = cursor.execute(
            "select parse_formatted_bytes(current_setting('memory_limit')), current_setting('temp_directory')"
        ).fetchall()
        self._memory_bytes = int(memory)
        self._temp_folder = str(folder)
        os.makedirs(self._temp_folder, exist_ok=True)
        self._row_bytes = self._bytes_of_a_row()

    def order(self) -> Provenance:
        """The provenance of all rows of the output."""
        total = sum(int(np.count_nonzero(wanted)) for wanted in self._wanted)
        ordinals, rows = np.empty(total, np.uint16), np.empty(total, np.uint32)
        for at, batch in self._places() if total else ():
            ordinals[at : at + len(batch)] = batch.column(0).to_numpy()
            rows[at : at + len(batch)] = batch.column(1).to_numpy()
        return Provenance(ordinals, rows)

    def write(self, piece: Provenance, storage: PartStorage) -> MergedPart:
        """One part of the output."""
        dead = self._dead(piece)
        columns = list(self._kinds) + ([OP_COLUMN] if len(dead) else [])
        row_bytes = self._row_bytes
        row_group_rows = min(ROW_GROUP_ROWS, _whole_vectors(self._memory_bytes // 4 // row_bytes))
        sort_rows = _whole_vectors(self._memory_bytes // 3 // row_bytes)
        with tempfile.TemporaryDirectory(prefix="merge-", dir=self._temp_folder) as folder:
            if len(piece) <= sort_rows or _reading_order(piece) is not None:
                query, parameters = self._sorted(columns, piece)
            else:
                query, parameters = self._sorted_in_stretches(columns, piece, sort_rows, folder), {}
            path, rows, size, stats = write_part(query, parameters, self._shape, storage, self._cursor, row_group_rows)
        if rows != len(piece):
            storage.delete(path)
            raise Corrupt(
                f"merging {', '.join(source.part.path for source in self._sources)} gave {rows} rows instead of {len(piece)}"
            )
        return MergedPart(path, rows, size, stats, len(dead), bool(len(dead)), dead, piece)

    def _places(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """(ordinal, row) of all wanted rows in the order of the output, and where a batch of them begins."""
        if not self._shape.order_by:
            at = 0
            for ordinal, wanted in enumerate(self._wanted):
                rows = np.flatnonzero(wanted)
                yield at, pa.record_batch({"ordinal": np.full(len(rows), ordinal, np.uint16), "row": rows})
                at += len(rows)
            return
        everything = list(range(len(self._sources)))
        parameters: dict[str, Any] = {}
        scan = self._scan(self._shape.order_by, dict(enumerate(self._wanted)), everything, "", parameters)
        # A table, since DuckDB keeps the result of a query with parameters in memory as a whole.
        self._cursor.execute(
            f"create or replace temp table lakebed_places as select {_ORDINAL} as o, {_ROW} as r "
            f"from ({scan}) order by {ordering(self._shape)}, {_ORDINAL}, {_ROW}",
            parameters,
        )
        at = 0
        for batch in self._cursor.sql("select o, r from lakebed_places").to_arrow_reader(_BATCH_ROWS):
            yield at, batch
            at += len(batch)
        self._cursor.execute("drop table lakebed_places")

    def _sorted(self, columns: Sequence[str], piece: Provenance) -> tuple[str, dict[str, Any]]:
        """A query for the rows of a piece, in order, and its parameters."""
        in_order = _reading_order(piece)
        wanted: dict[int, _Flags] = {}
        for ordinal in np.unique(piece.ordinals).tolist():
            wanted[ordinal] = np.zeros(len(self._wanted[ordinal]), dtype=bool)
            wanted[ordinal][piece.rows[piece.ordinals == ordinal]] = True
        if in_order:  # one scan: COPY does not keep the order of a union
            parameters: dict[str, Any] = {}
            scan = self._scan(columns, wanted, in_order, "", parameters)
            return f"select {quote_all(columns)} from ({scan})", parameters
        scans, parameters = self._scans(columns, wanted)
        order = f"{ordering(self._shape)}, {_ORDINAL}, {_ROW}"
        return f"select {quote_all(columns)} from ({scans}) order by {order}", parameters

    def _sorted_in_stretches(self, columns: Sequence[str], piece: Provenance, sort_rows: int, folder: str) -> str:
        """The same, with the rows sorted a stretch at a time into files of the folder."""
        aliases = {name: f"c{place}" for place, name in enumerate(columns)}
        files = []
        for start in range(0, len(piece), sort_rows):
            stretch = Provenance(piece.ordinals[start : start + sort_rows], piece.rows[start : start + sort_rows])
            query, parameters = self._sorted(columns, stretch)
            files.append(os.path.join(folder, f"{start}.parquet"))
            self._cursor.execute(
                f"copy ({query}) to {literal(files[-1])} (format parquet, row_group_size {4 * _VECTOR_ROWS})",
                parameters,
            )
        kinds = {OP_COLUMN: "VARCHAR"} | self._kinds
        outputs = ", ".join(f"{alias} as {quote(name)}" for name, alias in aliases.items())
        return f"select {outputs} from {parquet_of(files, {name: (alias, kinds[name]) for name, alias in aliases.items()})}"

    def _rows_in_file(self, source: MergeSource) -> int:
        scan = f"select num_rows from parquet_file_metadata({file_literal(source.url)})"
        [(rows,)] = self._cursor.execute(scan).fetchall()
        if source.part.rows not in (-1, rows):  # other writers may not say
            raise Corrupt(f"{source.part.path} has {rows} rows, but the log says {source.part.rows}")
        return int(rows)

    def _bytes_of_a_row(self) -> int:
        """What a row takes in memory, about: by the footers, and by the first rows of the largest source."""
        files = ", ".join(file_literal(source.url) for source in self._sources)
        [(size,)] = self._cursor.execute(
            f"select coalesce(sum(total_uncompressed_size), 0) from parquet_metadata([{files}])"
        ).fetchall()
        rows = sum(map(len, self._wanted))
        largest = max(self._sources, key=lambda source: source.part.bytes)
        first = self._cursor.sql(f"select * from {parquet(largest.url)} limit {_VECTOR_ROWS}").to_arrow_table()
        return int(max(size / max(rows, 1), first.nbytes / max(len(first), 1))) + 1

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

    def _scans(self, columns: Sequence[str], wanted: Mapping[int, _Flags]) -> tuple[str, dict[str, Any]]:
        """The wanted rows of sources in no order, with their ordinal and row: small sources as one scan, others alone."""
        small = [ordinal for ordinal in wanted if len(wanted[ordinal]) <= ROW_GROUP_ROWS]
        groups = [small] if small else []
        groups += [[ordinal] for ordinal in wanted if ordinal not in small]
        parameters: dict[str, Any] = {}
        scans = [self._scan(columns, wanted, group, str(at), parameters) for at, group in enumerate(groups)]
        return " union all ".join(scans), parameters

    def _scan(
        self, columns: Sequence[str], wanted: Mapping[int, _Flags], group: Sequence[int], at: str,
        parameters: dict[str, Any],
    ) -> str:  # fmt: skip
        """Sources read as one; DuckDB numbers them by their place in the list. Of a lone one only a range of rows is read."""
        constants = self._sources[group[0]].part.partition_values  # whether a file stores them or not: the log decides
        kinds = {OP_COLUMN: "VARCHAR"} | self._kinds
        aliases = {name: f"c{place}" for place, name in enumerate(columns) if name not in constants}
        outputs = []
        for name in columns:
            value = aliases.get(name) or _constant(constants[name], self._shape.schema.field(name).type, kinds[name])
            outputs.append(f"{_op_or_upsert(value) if name == OP_COLUMN else value} as {quote(name)}")
        urls = [self._sources[ordinal].url for ordinal in group]
        scan = parquet_of(urls, {name: (alias, kinds[name]) for name, alias in aliases.items()})
        if len(group) == 1:
            flags = wanted[group[0]]
            first, last = int(flags.argmax()), len(flags) - 1 - int(flags[::-1].argmax())
            flags = flags[first : last + 1]
            ordinal, place = str(group[0]), f"file_row_number - {first}"
            conditions = [f"file_row_number between {first} and {last}"]
        else:
            flags = np.concatenate([wanted[ordinal] for ordinal in group])
            starts = np.cumsum([0, *(len(wanted[ordinal]) for ordinal in group)])[:-1]
            parameters[f"ordinals{at}"] = list(group)
            if not flags.all():
                parameters[f"starts{at}"] = starts.tolist()
            ordinal = f"($ordinals{at}::integer[])[file_index::bigint + 1]"
            place = f"file_row_number + ($starts{at}::bigint[])[file_index::bigint + 1]"
            conditions = []
        if not flags.all():
            parameters[f"bits{at}"] = np.packbits(flags).tobytes()
            conditions.append(f"get_bit($bits{at}::bit, ({place})::integer) = 1")
        where = f" where {' and '.join(conditions)}" if conditions else ""
        numbers = (
            f"({ordinal})::usmallint as {_ORDINAL}, file_row_number::uinteger as {_ROW}"  # narrow, so cheap to sort
        )
        return f"select {', '.join(outputs)}, {numbers} from {scan}{where}"


def _reading_order(piece: Provenance) -> list[int] | None:
    """The sources in order, if the piece is the rows of one after those of the other, each in the order of its file."""
    changes = np.flatnonzero(piece.ordinals[1:] != piece.ordinals[:-1]) + 1
    starts = [0, *changes.tolist()] if len(changes) < SOURCES_MAX else []
    in_order = [int(piece.ordinals[at]) for at in starts]
    falls = np.flatnonzero(piece.rows[1:] <= piece.rows[:-1]) + 1
    if not in_order or len(set(in_order)) < len(in_order) or not np.all(np.isin(falls, changes)):
        return None
    return in_order


def _whole_vectors(rows: int) -> int:
    return max(1, rows // _VECTOR_ROWS) * _VECTOR_ROWS


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


def _op_or_upsert(column: str) -> str:
    return f"coalesce({column}, {literal(UPSERT)})"


def _constant(text: str | None, kind: pa.DataType, name: str) -> str:
    """A partition value of the log in SQL; Delta reads an empty one as null."""
    if not text:
        return f"null::{name}"
    if pa.types.is_binary(kind):
        return literal("".join(f"\\x{byte:02X}" for byte in text.encode("latin-1"))) + "::blob"
    return f"cast({literal(text)} as {name})"


@contextmanager
def _explained(cursor: duckdb.DuckDBPyConnection, sources: Sequence[MergeSource]) -> Iterator[None]:
    """Turns what DuckDB says into an error that names the part or the disk."""
    try:
        yield
    except duckdb.Error as error:
        if isinstance(error, duckdb.OutOfMemoryException) or "No space left" in str(error):
            raise StoreUnavailable(
                f"the merge of {len(sources)} parts found no room ({error}); free space in the temporary folder and "
                "where parts are written, or allow more memory"
            ) from error
        for source in sources:
            try:
                cursor.execute(f"select bit_xor(hash(columns(*))) from {parquet(source.url)}").fetchall()
            except duckdb.Error as cause:
                raise Corrupt(
                    f"{source.part.path} can't be read ({cause}); it is missing or damaged: restore the file"
                ) from error
        raise
