"""Finds the rows of keys by reading the key columns of parts, without a key index.

It serves single look-ups in parts of other writers, and large settles, where every task takes a group of parts. Its result is
that of `KeyIndex.lookup` for the same parts, but for the order of the rows. SQL's equality holds (NaN = NaN, -0.0 = 0.0).

Algorithm
1. DuckDB joins the scan of the parts with the keys; the keys are the hash table. It derives a filter of their least and
   greatest values, which prunes row groups. (A condition of our own made it no faster.) A column that a file lacks is null, so
   a file without a key column has none of the keys.
2. Only key columns, payload columns and positions are decoded. The memory is that of the keys and of the rows found, bounded
   by the connection's limit: the join spills.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import duckdb
import numpy as np
import pyarrow as pa

from lakebed.errors import InvalidInput
from lakebed.sql.pieces import aliases, by_place, parquet_to_join, registered, sql_type
from lakebed.storage.engine import cursor_of


def find_positions(
    connection: duckdb.DuckDBPyConnection,
    urls: Sequence[str],
    keys: pa.Table,
    key_columns: Sequence[str],
    payload: Mapping[str, tuple[str, pa.DataType]] | None = None,
    *,
    some_may_lack: bool = False,
) -> pa.Table:
    """Every row of each key in `urls`: `probe` int64 (row of `keys`), `file` (dictionary of `urls`), `row` int64, payload.

    `payload`: for each further column of the result its name in the files and its type; one that a file lacks is null.
    `some_may_lack`: a file may lack a key column too; it has no rows of the keys then.
    Keys are read in the types of `keys`. Raises InvalidInput for a null key or a missing column.
    """
    payload = payload or {}
    missing = [name for name in key_columns if keys.schema.get_field_index(name) < 0]
    if missing:
        raise InvalidInput(f"key column {missing[0]!r} is missing from the keys, which have {keys.schema.names}")
    for name in key_columns:
        if keys.column(name).null_count:
            raise InvalidInput(f"key column {name!r} holds {keys.column(name).null_count} nulls; keys must be NOT NULL")
    if not urls or not keys.num_rows:
        return _nothing(payload)
    kinds = {name: keys.schema.field(name).type for name in key_columns} | dict(payload.values())
    alias = aliases(kinds)
    columns = {name: (alias[name], sql_type(kind)) for name, kind in kinds.items()}
    source = parquet_to_join(connection, urls, columns, some_may_lack=some_may_lack or bool(payload))
    probes = by_place(keys, key_columns).append_column("probe", pa.array(np.arange(keys.num_rows)))
    same = " and ".join(f"s.c{at} = p.c{at}" for at in range(len(key_columns)))
    outputs = ["p.probe", "s.file_index::integer as file", "s.file_row_number as row"]
    outputs += [f"s.{alias[stored]} as {name}" for name, (stored, _) in payload.items()]
    query = f"select {', '.join(outputs)} from {source} s join lakebed_probes p on {same}"
    with cursor_of(connection) as cursor, registered(cursor, "lakebed_probes", probes):
        found = cursor.sql(query).to_arrow_table()
    return found.set_column(1, "file", _as_dictionary(found["file"], urls))


def _as_dictionary(files: pa.ChunkedArray, urls: Sequence[str]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(files.combine_chunks(), pa.array(urls, pa.string()))


def _nothing(payload: Mapping[str, tuple[str, pa.DataType]]) -> pa.Table:
    columns = [pa.array([], pa.int64()), _as_dictionary(pa.chunked_array([], pa.int32()), []), pa.array([], pa.int64())]
    columns += [pa.nulls(0, kind) for _, kind in payload.values()]
    return pa.table(columns, names=["probe", "file", "row", *payload])
