"""The input of a merge: its sources, and which of their rows come out (step 1 of ``merge.kernel``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from pyroaring import BitMap64

from lakebed.errors import Corrupt
from lakebed.log.actions import Part
from lakebed.parts.arrow_source import Rows
from lakebed.parts.changes import DELETE, OP_COLUMN
from lakebed.quoting import literal
from lakebed.sql.pieces import parquet_of

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class MergeSource:
    """A part to merge, as it is in the snapshot that the merge reads.

    ``dead``: its dead rows then. ``keeps_deletes``: its delete rows must stay, so that late changes meet them, except those in
    ``purged``. ``url``: where DuckDB finds it.
    """

    part: Part
    dead: BitMap64
    keeps_deletes: bool
    url: str
    purged: BitMap64 = field(default_factory=BitMap64)


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows that come out of a merge; a source's ordinal is its place in the list of sources.

    ``wanted``: for each source, one flag a row. ``deletes``: by ordinal, which of the wanted rows are deletes.
    """

    wanted: tuple[Flags, ...]
    deletes: Mapping[int, Flags]

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
    wanted: list[Flags] = []
    deletes: dict[int, Flags] = {}
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


def _live(source: MergeSource, rows: int) -> Flags:
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


def _delete_rows(cursor: duckdb.DuckDBPyConnection, source: MergeSource, rows: int) -> Flags:
    scan = parquet_of([source.url], {OP_COLUMN: ("op", "VARCHAR")})
    query = f"select file_row_number from {scan} where op = {literal(DELETE)}"
    flags = np.zeros(rows, dtype=bool)
    flags[cursor.execute(query).fetchnumpy()["file_row_number"]] = True
    return flags
