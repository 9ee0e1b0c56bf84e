"""Whole rows of the tail and of the base, in one shape: the table's columns, then the hidden ones that decide."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64

from lakebed.log.actions import ChangePart, Part
from lakebed.parts.arrow_source import is_local, read_columns, read_rows
from lakebed.parts.changes import HIDDEN_TYPES, OP_COLUMN, SEQUENCE_COLUMN, UNAVAILABLE_COLUMN, WriteSpec
from lakebed.parts.intact import require_intact, require_intact_pages
from lakebed.schema.nested import as_declared
from lakebed.sql import aliases, by_place, named, parquet_of, registered, scan_of, sql_type
from lakebed.storage.engine import connect, naming_unreadable
from lakebed.storage.part_storage import PartStorage

_Rows = npt.NDArray[np.int64]


def row_schema(spec: WriteSpec) -> pa.Schema:
    """The table's columns, the operation, the sequence if it is hidden, and which columns a change lacks."""
    fields = [*spec.schema, pa.field(OP_COLUMN, pa.string())]
    if spec.sequence_column == SEQUENCE_COLUMN:
        fields.append(pa.field(SEQUENCE_COLUMN, HIDDEN_TYPES[SEQUENCE_COLUMN]))
    fields += [pa.field(name, kind) for name, kind in spec.hidden_orders.items()]
    fields.append(pa.field(UNAVAILABLE_COLUMN, pa.list_(pa.string())))
    return pa.schema([field.with_nullable(True) for field in fields])


def as_rows(piece: pa.Table, schema: pa.Schema) -> pa.Table:
    """The piece with these columns; one that it lacks is null."""
    there = set(piece.column_names)
    columns = [
        as_declared(piece[field.name], field.type) if field.name in there else pa.nulls(len(piece), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def rows_of_tail(
    change_parts: Sequence[ChangePart],
    schema: pa.Schema,
    spec: WriteSpec,
    storage: PartStorage,
    *,
    keys: pa.Table | None = None,
) -> tuple[pa.Table, _Rows, _Rows]:
    """The rows of the keys (default: all) in the order of arrival, and of each the ordinal of its part and its number there."""
    require_intact(change_parts, storage, objects=True)
    whole = _whole_parts(change_parts, schema, storage) if keys is None else None
    if whole is not None:
        return whole
    connection = connect()
    storage.attach(connection)
    stored = {field.name: (f"c{at}", sql_type(field.type)) for at, field in enumerate(schema)}
    source = parquet_of([storage.duckdb_url(part.path) for part in change_parts], stored)
    outputs = ", ".join(f"s.{alias}" for alias, _ in stored.values())
    query = f"select {outputs}, s.file_index as part, s.file_row_number as row from {source} s"
    same = " and ".join(f"s.{stored[name][0]} is not distinct from k.{key}" for name, key in aliases(spec.keys).items())
    if keys is not None:
        query += f" semi join lakebed_keys k on {same}"
    with registered(connection, "lakebed_keys", by_place((keys or schema.empty_table()), spec.keys)):
        found = connection.sql(f"{query} order by s.file_index, s.file_row_number").to_arrow_table()
    return named(found.drop_columns(["part", "row"]), schema.names), found["part"].to_numpy(), found["row"].to_numpy()


def _whole_parts(
    change_parts: Sequence[ChangePart], schema: pa.Schema, storage: PartStorage
) -> tuple[pa.Table, _Rows, _Rows] | None:
    """What ``rows_of_tail`` gives of all rows, by Arrow; None where only DuckDB can read them."""
    pieces, counts = [], np.array([part.rows for part in change_parts], dtype=np.int64)
    for part in change_parts:
        url = storage.duckdb_url(part.path)
        piece = read_columns(part.path, url, schema) if is_local(url) and not part.partition_values else None
        if piece is None:
            return None
        pieces.append(as_rows(piece, schema))
    rows = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return pa.concat_tables([schema.empty_table(), *pieces]), np.repeat(np.arange(len(counts)), counts), rows


def rows_of_part(part: Part, rows: _Rows, schema: pa.Schema, storage: PartStorage) -> pa.Table:
    """Rows of a part of the base, in this order; ``schema`` names the columns. Raises Corrupt."""
    require_intact_pages(part, storage, schema.names, rows.tolist())
    url = storage.duckdb_url(part.path)
    if is_local(url) and not part.partition_values:
        read = read_rows(part.path, url, schema, rows, is_verified=part.checksum is not None)
        if read is not None:
            return as_rows(read, schema)
    connection = connect()
    storage.attach(connection)
    kinds = {field.name: sql_type(field.type) for field in schema}
    scan = scan_of([storage.duckdb_url(part.path)], kinds, part.partition_values, "file_row_number as place")
    wanted = pa.table({"n": np.arange(len(rows)), "place": rows})
    with naming_unreadable([part.path]), registered(connection, "lakebed_wanted", wanted):
        query = (
            f"select {', '.join(aliases(kinds).values())} from ({scan}) join lakebed_wanted using (place) order by n"
        )
        return as_rows(named(connection.sql(query).to_arrow_table(), schema.names), schema)


def are_in(dead: BitMap64, rows: _Rows) -> npt.NDArray[np.bool_]:
    """Which of the rows are dead."""
    if not dead:
        return np.zeros(len(rows), dtype=bool)
    both = dead & BitMap64(rows.astype(np.uint64))
    ascending = np.frombuffer(both.to_array(), dtype=np.uint64).astype(np.int64)
    if not len(ascending):
        return np.zeros(len(rows), dtype=bool)
    at = np.minimum(np.searchsorted(ascending, rows), len(ascending) - 1)  # quicker than ``np.isin``, which sorts
    found: npt.NDArray[np.bool_] = ascending[at] == rows
    return found


def indices_by_part(column: pa.ChunkedArray) -> dict[str, npt.NDArray[np.intp]]:
    """Indices of the rows of each part."""
    combined = column.combine_chunks()
    coded = combined if pa.types.is_dictionary(combined.type) else combined.dictionary_encode()
    codes = coded.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[order], np.arange(len(coded.dictionary) + 1))
    return {
        path: order[bounds[code] : bounds[code + 1]]
        for code, path in enumerate(coded.dictionary.to_pylist())
        if bounds[code] < bounds[code + 1]
    }
