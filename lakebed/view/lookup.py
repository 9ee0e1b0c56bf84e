"""Look-ups: the rows with some values. One of few rows reads no more than the wanted columns of row groups without such a row.

1. Where the rows are. If whole keys are looked up and this process has a key index, it says so for the parts that it has, and
   nothing is read. Of other parts the wanted columns are read, and no other column.
2. Positions of dead rows are left out. The deletion vectors are at hand as bitmaps, so no bit string is made of them.
3. The rows are read by their numbers in the file. DuckDB skips the row groups in which no such row is.

One join of whole rows with the values looks simpler, and reads far more as soon as the values lie far apart. DuckDB takes the
values to the scan as an exact set only if their range is short. In a range of a hundred million it takes a Bloom filter instead,
which one row in a thousand passes wrongly. These rows are everywhere, so nearly all columns of nearly all row groups are
decoded: 201 MB for 20 keys of a table of 100 million rows, in place of 11. With many values the rows are everywhere anyway, and
the join is right (``_rows_at_positions`` returns None).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeGuard

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from lakebed.errors import InvalidInput
from lakebed.log.snapshot import Snapshot
from lakebed.parts.arrow_rows import ArrowArray, ArrowStream, Rows, arrow_rows
from lakebed.quoting import quote
from lakebed.resolve.locate import find_positions
from lakebed.schema.nested import table_as_declared
from lakebed.sql import named, registered, scan_of, sql_type
from lakebed.storage.engine import cursor_of
from lakebed.view.arrow_scan import ReadableFiles, ScanFile, columns_wanted, create_side_table, to_arrow

ROWS_MAX = 2_000
"""More rows than these are not read by their numbers."""

_Known = tuple[pa.Table, Collection[str]]
"""Rows of the wanted keys (``part``, ``row``) in some parts, and the paths of all parts of which this is known."""


def _rows_at_positions(
    connection: duckdb.DuckDBPyConnection,
    storage: ReadableFiles,
    files: Sequence[ScanFile],
    schema: pa.Schema,
    among: pa.Table,
    *,
    columns: Sequence[str] | None = None,
    known: _Known | None = None,
    before_reading: Callable[[Sequence[ScanFile]], object] = lambda files: None,
) -> pa.Table | None:
    """The live rows of `files` that are equal to a row of `among` in its columns, as a table of `columns`, one at least
    (default: all).

    `among` has columns of `schema`, in its types; a row of it that has a null is equal to nothing. `known`: what a key index
    knows of these values. `before_reading` is called with files before they are read. Returns None if there are more than
    ``ROWS_MAX`` rows, or if only partition columns are looked up. Raises InvalidInput for an unknown column.
    """
    wanted = columns_wanted(schema, columns)
    among = among.drop_null()
    rows, known_paths = known or (None, ())
    unknown = [file for file in files if file.path not in known_paths]
    before_reading(unknown)
    found = _positions(connection, storage, unknown, schema, among)
    if found is None:
        return None
    if rows is not None:
        found |= _by_path(rows, {file.path for file in files if file.path in known_paths})
    live = [(file, found[file.path] - (file.dead or BitMap64())) for file in files if file.path in found]
    if sum(len(numbers) for _, numbers in live) > ROWS_MAX:
        return None
    chosen = [each for each in live if each[1]]
    before_reading([file for file, _ in chosen])
    return _read(connection, storage, chosen, wanted)


def rows_with(
    connection: duckdb.DuckDBPyConnection,
    storage: ReadableFiles,
    files: Sequence[ScanFile],
    schema: pa.Schema,
    among: pa.Table,
    *,
    columns: Sequence[str],
    completed: pa.Table | None,
    known: _Known | None = None,
    before_reading: Callable[[Sequence[ScanFile]], object],
) -> pa.Table:
    """The live rows of `files` and of `completed` with the values of `among`, whichever way reads less (`_rows_at_positions`)."""
    found = None
    if not set(columns) <= set(among.column_names):  # else there is no other column to be spared
        found = _rows_at_positions(
            connection, storage, files, schema, among, columns=columns, known=known, before_reading=before_reading
        )
    if found is None:
        before_reading(files)
    others = files if found is None else ()
    joined = to_arrow(connection, storage, others, schema, columns=columns, completed=completed, among=among)
    return joined if found is None else pa.concat_tables([found, joined])


def _positions(
    connection: duckdb.DuckDBPyConnection,
    storage: ReadableFiles,
    files: Sequence[ScanFile],
    schema: pa.Schema,
    among: pa.Table,
) -> dict[str, BitMap64] | None:
    """The rows of the files that have the values, dead ones too, by path; None if no stored column is looked up."""
    if not files or not len(among):
        return {}
    constant = [name for name in among.column_names if name in files[0].partition_values]
    stored = [name for name in among.column_names if name not in constant]
    if not stored:
        return None
    urls = [storage.duckdb_url(file.path) for file in files]
    found = find_positions(connection, urls, among, stored, some_may_lack=True)
    places = pa.table(
        {"probe": found["probe"], "file": found["file"].combine_chunks().indices, "row": found["row"]},
    )
    if constant:
        places = _in_partition(connection, places, files, schema, among, constant)
    by_file = places["file"].to_numpy()
    rows = places["row"].to_numpy().astype(np.uint64)
    return {files[at].path: BitMap64(rows[by_file == at]) for at in np.unique(by_file).tolist()}


def _in_partition(
    connection: duckdb.DuckDBPyConnection,
    places: pa.Table,
    files: Sequence[ScanFile],
    schema: pa.Schema,
    among: pa.Table,
    constant: Sequence[str],
) -> pa.Table:
    """Those of the places whose file has the wanted values of the partition columns."""
    kinds = {name: sql_type(schema.field(name).type) for name in constant}
    wanted = among.select(list(constant)).append_column("_lakebed_probe", pa.array(range(len(among)), pa.int64()))
    same = " and ".join(f"a.{quote(name)} = p.{quote(name)}" for name in constant)
    with (
        cursor_of(connection) as cursor,
        registered(cursor, "lakebed_places", places),
        registered(cursor, "lakebed_wanted", wanted),
    ):
        create_side_table(
            cursor, "lakebed_files", files, schema, kinds=kinds, partition_columns=constant, is_dirty=False
        )
        return cursor.sql(
            "select s.file, s.row from lakebed_places s join lakebed_files p on p._lakebed_file = s.file "
            f"join lakebed_wanted a on a._lakebed_probe = s.probe and {same}"
        ).to_arrow_table()


def _by_path(rows: pa.Table, paths: Collection[str]) -> dict[str, BitMap64]:
    """The rows in these parts, by path."""
    kept = rows.filter(pc.is_in(rows["part"].cast(pa.string()), pa.array(sorted(paths), pa.string())))
    out: dict[str, BitMap64] = {}
    for path, row in zip(kept["part"].to_pylist(), kept["row"].to_pylist(), strict=True):
        out.setdefault(path, BitMap64()).add(row)
    return out


def _read(
    connection: duckdb.DuckDBPyConnection,
    storage: ReadableFiles,
    rows: Sequence[tuple[ScanFile, BitMap64]],
    wanted: pa.Schema,
) -> pa.Table:
    """The rows with these numbers. DuckDB skips row groups by a condition on numbers, but only in a scan of one file."""
    if not rows:
        return wanted.empty_table()
    kinds = {field.name: sql_type(field.type) for field in wanted}
    scans = [
        f"({scan_of([storage.duckdb_url(file.path)], kinds, file.partition_values)} "
        f"where file_row_number in ({', '.join(map(str, numbers))}))"
        for file, numbers in rows
    ]
    with cursor_of(connection) as cursor:
        found = cursor.sql(" union all ".join(scans)).to_arrow_table()
    return table_as_declared(named(found, wanted.names), wanted)


def values_to_find(keys: Rows | Sequence[Any], snapshot: Snapshot) -> pa.Table:
    """The values to look up, as a table of columns of the snapshot, by logical name and in its types. Raises InvalidInput."""
    schema = snapshot.logical_schema
    if _are_rows(keys):
        keys = arrow_rows(keys, schema)
    if isinstance(keys, str | bytes) or not isinstance(keys, Iterable | pa.Table):
        raise InvalidInput(
            f"give the values to look up as a list of keys, or as rows (an Arrow table, a list of dicts …), not as {keys!r}"
        )
    names = tuple(keys.column_names) if isinstance(keys, pa.Table) else snapshot.logical_settings.keys
    if not isinstance(keys, pa.Table) and len(names) != 1:
        raise InvalidInput(
            f"the table has {len(names)} key columns: give the values to look up as rows (an Arrow table, a list of dicts …)"
        )
    unknown = [name for name in names if schema.get_field_index(name) < 0]
    if unknown or not names:
        what = f"there is no column {unknown[0]!r} in" if unknown else "give at least one column of"
        raise InvalidInput(f"{what} the table, which has {', '.join(schema.names)}")
    wanted = pa.schema([schema.field(name).with_nullable(True) for name in names])
    try:
        given = keys if isinstance(keys, pa.Table) else pa.table({names[0]: pa.array(list(keys))})
        return pa.table([_as(column, field.type) for column, field in zip(given.columns, wanted, strict=True)], wanted)
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        raise InvalidInput(
            f"the values to look up do not fit {', '.join(f'{field.name} ({field.type})' for field in wanted)}: {error}"
        ) from None


def _are_rows(keys: object) -> TypeGuard[Rows]:
    """Whether it is rows with columns, and not the values of one column (a list, an array, a series of pandas or polars)."""
    if isinstance(keys, Sequence) and not isinstance(keys, str | bytes):
        return bool(keys) and isinstance(keys[0], Mapping)
    is_column = isinstance(keys, pa.Array | pa.ChunkedArray) or hasattr(keys, "dtype")
    return isinstance(keys, ArrowStream | ArrowArray) and not is_column


def _as(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """The values in a column's type, each equal to the given value. Raises ArrowInvalid, ValueError."""
    if pa.types.is_decimal(kind) and pa.types.is_integer(values.type):
        values = values.cast(pa.decimal128(38, kind.scale))
    out = values.cast(kind)
    if pa.types.is_date(kind) and pa.types.is_timestamp(values.type) and not out.cast(values.type).equals(values):
        raise ValueError("a value for a date column has a time of day")
    if pa.types.is_decimal(kind) and pa.types.is_decimal(values.type) and not out.cast(values.type).equals(values):
        raise ValueError(
            "a decimal does not fit the column"
        )  # Arrow does not notice when digits overflow the type's bits
    return out
