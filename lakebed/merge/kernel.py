"""The merge kernel: several base parts of one partition become few sorted ones, with the provenance of every row.

Invariants: S1, rows are in the order of the table's sort key; S2, exactly the live rows of the sources come out, bit for
bit, and with them the delete rows that a source ``keeps_deletes``. No byte of a source is used before the source was verified
(``parts.intact``): damage is never copied into a file that looks whole.

0. *Stage.* A source in the object store is copied to local disk, and verified on its way; a local one is verified where it is.
1. *Which rows* (``reader``). A flag a row of each source: live by its deletion vector, or a delete to keep.
2. *In which order* (``provenance``). The sort columns are read and sorted. The result is the provenance of the whole output.
3. *Cut* (``assembler``). Each output part is a slice of that order, each slice one chunk or more, of as many rows as fit
   in memory (``reader``).
4. *Write* (``assembler``). The rows of a chunk are read (``reader``), taken to their places, and written by row
   groups.

Memory, at most about: two fifths of DuckDB's limit for rows as read (they may hold one dead row for each wanted one), as much
while they are joined to one table; a row group in order; DuckDB's own for a scan; 6 bytes a row of the output for its
provenance, and a byte a row of the sources for the flags (three while rows are spilled).
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import duckdb

from lakebed.errors import InvalidInput, LakebedError, Retry, StoreUnavailable
from lakebed.log.actions import passes_after
from lakebed.merge.assembler import Assembler, MergedPart
from lakebed.merge.provenance import SOURCES_MAX, Provenance, output_order
from lakebed.merge.reader import (
    DEFAULT_LIMITS,
    MergeLimits,
    MergeSource,
    SourceReader,
    budget_of,
    chunk_rows_max,
    footprint_of,
    memory_limit,
    select_rows,
)
from lakebed.parts.arrow_source import ArrowSource, damaged, is_local
from lakebed.parts.changes import WriteSpec
from lakebed.parts.intact import stage, verify_local
from lakebed.parts.write import PART_ROWS_MAX
from lakebed.sql.pieces import parquet
from lakebed.storage.engine import cursor_of
from lakebed.storage.file_errors import is_out_of_memory, is_out_of_room, raise_own, reason
from lakebed.storage.local_folders import process_folder
from lakebed.storage.part_storage import PartStorage

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
) -> tuple[Assembler, Provenance]:
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
    return Assembler(reader, selection, spec, footprint, budget, limits), order


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
