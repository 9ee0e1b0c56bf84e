"""Reads what decides about the rows of a tail: keys, sequence, operation, and where each row is.

Arrow reads few rows of local parts that have the table's types: that takes a fifth of the time of a query. DuckDB reads all
others, and casts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.errors import Corrupt
from lakebed.log.actions import ChangePart
from lakebed.parts.arrow_source import is_local, read_columns
from lakebed.parts.changes import (
    DELETE,
    FEW_ROWS_MAX,
    MOVES_COLUMN,
    NEEDS_ROW_COLUMN,
    OP_COLUMN,
    UNAVAILABLE_COLUMN,
    WriteSpec,
)
from lakebed.parts.intact import require_intact
from lakebed.quoting import literal
from lakebed.sql.pieces import aliases, named, parquet_of, sql_type
from lakebed.storage.engine import connect
from lakebed.storage.part_storage import PartStorage

PART, ROW, DELETED, INCOMPLETE = "_lakebed_part", "_lakebed_row", "_lakebed_deleted", "_lakebed_incomplete"
"""Beside the keys and the sequence: where a row of the tail is, and what it is."""


def read_tail(
    change_parts: Sequence[ChangePart], spec: WriteSpec, storage: PartStorage, *, with_moves: bool = False
) -> pa.Table:
    """Keys, sequence, operation and place of every row, part after part and in file order. Raises Corrupt.

    ``with_moves``: also what decides about rows that get another key (``parts.key_moves``).
    """
    require_intact(change_parts, storage)
    rows = np.array([part.rows for part in change_parts], dtype=np.int64)
    names = list(dict.fromkeys([*spec.keys, *([spec.sequence_column] if spec.sequence_column else [])]))
    names += [MOVES_COLUMN] if with_moves else []
    table = _read_few(change_parts, names, spec, storage) if rows.sum() <= FEW_ROWS_MAX else None
    if table is None:
        table = _read_many(change_parts, names, spec, storage)
    if len(table) != rows.sum():
        raise Corrupt(f"{len(change_parts)} change parts have {len(table)} rows, but the log says {rows.sum()}")
    first = np.cumsum(rows) - rows
    table = table.append_column(PART, pa.array(np.repeat(np.arange(len(rows), dtype=np.int32), rows)))
    return table.append_column(ROW, pa.array(np.arange(len(table), dtype=np.int64) - np.repeat(first, rows)))


def _read_few(
    change_parts: Sequence[ChangePart], names: Sequence[str], spec: WriteSpec, storage: PartStorage
) -> pa.Table | None:
    """What ``_read_many`` gives, by Arrow; None where only DuckDB can read it."""
    urls = [storage.duckdb_url(part.path) for part in change_parts]
    if not all(map(is_local, urls)) or any(part.incomplete for part in change_parts):
        return None
    wanted = pa.schema([*((name, spec.type_of(name)) for name in names), (OP_COLUMN, pa.string())])
    pieces = []
    for part, url in zip(change_parts, urls, strict=True):
        piece = read_columns(part.path, url, wanted)
        if piece is None:
            return None
        pieces.append(piece)
    found = pa.concat_tables(pieces).combine_chunks()
    is_delete, whole = pc.equal(found[OP_COLUMN], DELETE), pa.repeat(pa.scalar(False), len(found))
    return found.select(list(names)).append_column(DELETED, is_delete).append_column(INCOMPLETE, whole)


def _read_many(
    change_parts: Sequence[ChangePart], names: Sequence[str], spec: WriteSpec, storage: PartStorage
) -> pa.Table:
    connection = connect()
    storage.attach(connection)
    stored = {name: (alias, sql_type(spec.type_of(name))) for name, alias in aliases(names).items()}
    outputs = [alias for alias, _ in stored.values()]
    stored |= {OP_COLUMN: ("op", "VARCHAR"), UNAVAILABLE_COLUMN: ("unsent", "VARCHAR[]")}
    stored[NEEDS_ROW_COLUMN] = ("needs_row", "BOOLEAN")
    outputs.append(f"op = {literal(DELETE)} as {DELETED}")
    has_incomplete = any(part.incomplete for part in change_parts)
    incomplete = "coalesce(len(unsent), 0) > 0 or needs_row is true"
    outputs.append(f"{incomplete if has_incomplete else 'false'} as {INCOMPLETE}")
    source = parquet_of([storage.duckdb_url(part.path) for part in change_parts], stored)
    return named(connection.sql(f"select {', '.join(outputs)} from {source}").to_arrow_table(), names)
