"""Finding the rows of keys by reading the key columns of parts: the way without a key index.

For a single look-up in foreign parts, and for wide settles, where every task takes a group of parts. Its result is that
of `KeyIndex.lookup` for the same parts, but for the order of the rows; SQL's equality holds (NaN = NaN, -0.0 = 0.0).

Algorithm
1. DuckDB joins the scan of the parts with the keys, the keys being the hash table. From that it makes by itself a
   filter of their least and greatest values that prunes row groups: a condition of our own made it no faster.
2. Only key columns, payload columns and positions are decoded. Memory is that of the keys and of what is found,
   bounded by the connection's limit (the join spills).
"""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import numpy as np
import pyarrow as pa

from lakebed.errors import InvalidInput

_PROBE = "_lakebed_probe"


def find_positions(
    connection: duckdb.DuckDBPyConnection,
    urls: Sequence[str],
    keys: pa.Table,
    key_columns: Sequence[str],
    payload_columns: Sequence[str] = (),
) -> pa.Table:
    """Every row of each key in `urls`: `probe` int64 (row of `keys`), `file` (dictionary of `urls`), `row` int64, payload.

    `keys` has the key columns in the types of the files. A payload column that no file has comes as nulls. Raises
    InvalidInput for a null key or a missing column.
    """
    missing = [name for name in key_columns if name not in keys.schema.names]
    if missing:
        raise InvalidInput(f"key column {missing[0]!r} is missing from the keys, which have {keys.schema.names}")
    for name in key_columns:
        if keys.column(name).null_count:
            raise InvalidInput(f"key column {name!r} holds {keys.column(name).null_count} nulls; keys must be NOT NULL")
    if not urls or not keys.num_rows:
        return _nothing(payload_columns)
    stored = _stored(connection, urls, payload_columns)
    names = [f"key{i}" for i in range(len(key_columns))]
    probes = pa.table([*(keys.column(name) for name in key_columns), np.arange(keys.num_rows)], names=[*names, _PROBE])
    same = " AND ".join(f"parts.{_quote(name)} = probes.{key}" for name, key in zip(key_columns, names, strict=True))
    payload = [f"parts.{_quote(name)}" if name in stored else f"NULL AS {_quote(name)}" for name in payload_columns]
    columns = ", ".join(
        [f"probes.{_PROBE} AS probe", "parts.file_index::integer AS file", "parts.file_row_number AS row", *payload]
    )
    query = f"SELECT {columns} FROM {_scan(payload_columns)} AS parts JOIN probes ON {same}"
    with connection.cursor() as cursor:
        cursor.register("probes", probes)
        found = cursor.sql(query, params={"urls": [_literal_path(url) for url in urls]}).to_arrow_table()
        cursor.unregister("probes")
    return found.set_column(1, "file", _as_dictionary(found["file"], urls))


def _scan(payload_columns: Sequence[str]) -> str:
    # Older parts may lack a payload column that newer ones have; only then is it worth reading all footers first.
    by_name = ", union_by_name = true" if payload_columns else ""
    return f"read_parquet($urls, file_row_number = true, hive_partitioning = false, can_have_nan = true{by_name})"


def _stored(connection: duckdb.DuckDBPyConnection, urls: Sequence[str], payload_columns: Sequence[str]) -> set[str]:
    if not payload_columns:
        return set()
    with connection.cursor() as cursor:
        paths = [_literal_path(url) for url in urls]
        return set(cursor.sql(f"SELECT * FROM {_scan(payload_columns)}", params={"urls": paths}).columns)


def _as_dictionary(places: pa.ChunkedArray, urls: Sequence[str]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(places.combine_chunks(), pa.array(urls, pa.string()))


def _nothing(payload_columns: Sequence[str]) -> pa.Table:
    columns = [pa.array([], pa.int64()), _as_dictionary(pa.chunked_array([], pa.int32()), []), pa.array([], pa.int64())]
    payload = [pa.nulls(0) for _ in payload_columns]
    return pa.table([*columns, *payload], names=["probe", "file", "row", *payload_columns])


def _literal_path(url: str) -> str:
    """`url` with DuckDB's wildcards made literal; a partition's value may contain them."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in url)


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
