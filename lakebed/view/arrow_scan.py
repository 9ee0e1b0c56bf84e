"""Read parts with DuckDB: exactly the live rows of a list of files, as Arrow or through SQL, without Spark.

Invariants
- A dead position is never read, and a row that is not dead is always read.
- A column that a file lacks is null. The value of a partition column comes from the log, whatever the file holds.
- A column is read by its stored name and in the type that it has now, whatever narrower type the file has.

Algorithm
1. Parts without dead rows are read by one `read_parquet`; DuckDB prunes columns and row groups as in any query.
2. Parts with dead rows are read by a second one. A small table holds one row per file: its dead rows as a bit string, and
   its partition values. It is joined by DuckDB's number of the file, and a row is live if its bit is unset.
   - A look-up of a bit costs about ten nanoseconds; an anti join on (file, row) was measured at twenty times that.
   - The join is a left join although every file is in the small table: in an inner join DuckDB may hash the rows and not
     the files, which more than doubles the cost of a read.
   - Scalar subqueries would be faster for whole reads, but predicates and join values are then not pushed into the scan.
     With a list in place of the table, DuckDB 2.0 ignores a LIMIT.
3. Both are one relation, so the predicate of a query is pushed down into each.
4. In a join with few rows, DuckDB 2.0 pushes their values into the scan, which skips row groups by bounds and Bloom
   filters. It can also skip rows before it decodes their other columns, which is several times faster. It does that only
   if it takes the schema from the footers, not if the schema is given. A look-up of many rows is read that way; one of few rows
   is described below.
5. A predicate that is pushed down is evaluated on dead rows too. That changes no result, but it may fail there, as the
   cast of a text may. So a query that failed is run again on a view that evaluates predicates only after dead rows are
   removed (`without_dead_rows`). Such a view is not the default, because no predicate is pushed into its scan.

**Look-ups of few rows** read no more than the wanted columns of row groups that hold none of the rows.

1. Where the rows are. If whole keys are looked up and this process has a key index, it says so for the parts that it has, and
   nothing is read. Of other parts the wanted columns are read, and no other column.
2. Positions of dead rows are left out. The deletion vectors are at hand as bitmaps, so no bit string is made of them.
3. The rows are read by their numbers in the file. DuckDB skips the row groups in which no such row is.

One join of whole rows with the values looks simpler, and reads far more as soon as the values lie far apart. DuckDB takes the
values to the scan as an exact set only if their range is short. In a range of a hundred million it takes a Bloom filter instead,
which one row in a thousand passes wrongly. These rows are everywhere, so nearly all columns of nearly all row groups are
decoded: 201 MB for 20 keys of a table of 100 million rows, in place of 11. With many values the rows are everywhere anyway, and
the join is right (``rows_at_positions`` returns None).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeGuard, TypeVar

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from lakebed.errors import Corrupt, InvalidInput
from lakebed.log.deletion_vector import DeletionVector
from lakebed.log.snapshot import Snapshot
from lakebed.parts.arrow_rows import ArrowArray, ArrowStream, Rows, arrow_rows
from lakebed.quoting import quote
from lakebed.resolve.locate import find_positions
from lakebed.schema.column_mapping import ColumnMapping
from lakebed.schema.nested import table_as_declared
from lakebed.sql.expression import Expression, mistakes
from lakebed.sql.pieces import (
    EVALUATED_FIRST,
    named,
    parquet_of,
    parquet_to_join,
    registered,
    renamed_sql,
    scan_of,
    sql_type,
)
from lakebed.storage.engine import cursor_of
from lakebed.storage.roots import local_file


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanFile:
    """``path`` is relative to the table's root and not url-encoded; ``dead`` holds positions of dead rows, None for none.

    ``deletion_vector`` is set when exactly these dead rows are committed in the log. ``checksum``: see ``Part``.
    """

    path: str
    bytes: int
    rows: int
    partition_values: Mapping[str, str | None] = field(default_factory=dict)
    dead: BitMap64 | None = None
    deletion_vector: DeletionVector | None = None
    stats: str | None = None
    checksum: int | None = None


T = TypeVar("T")


class ReadableFiles(Protocol):
    """The part of ``PartStorage`` that a read needs: the URLs of files."""

    def duckdb_url(self, path: str) -> str: ...


def to_arrow(
    connection: duckdb.DuckDBPyConnection,
    storage: ReadableFiles,
    files: Sequence[ScanFile],
    schema: pa.Schema,
    *,
    columns: Sequence[str] | None = None,
    where: Expression | None = None,
    completed: pa.Table | None = None,
    among: pa.Table | None = None,
    hides_dead_rows: bool = False,
    mapping: ColumnMapping | None = None,
) -> pa.Table:
    """The live rows of `files` and the rows of `completed`, as a table of `columns` (default: all of `schema`).

    `where` may use all columns of `schema`. Rows must be equal to a row of `among` in the columns of `among`. The caller
    leaves out files that can't match these. `hides_dead_rows` and `mapping` as for `register_view`: with it, `where` has
    logical names, all else stored ones.
    Raises InvalidInput for an unknown column or a `where` that DuckDB refuses, Corrupt for a dead position outside its
    file.
    """
    wanted = columns_wanted(schema, columns)
    if mapping is not None:
        wanted = mapping.logical_schema(wanted)
    names = wanted.names
    view = f"lakebed_read_{uuid.uuid4().hex}"
    with cursor_of(connection) as cursor:
        register_view(
            cursor,
            view,
            storage,
            files,
            schema,
            completed=completed,
            is_joined=among is not None,
            hides_dead_rows=hides_dead_rows,
            mapping=mapping,
        )
        # Only the predicate comes from the caller, so a mistake in it is reported as the caller's.
        query = f"select {', '.join(map(quote, names)) or '1'} from {view}"
        if among is not None:
            cursor.register(f"{view}_among", among)
            query += f" semi join {view}_among using ({', '.join(map(quote, among.column_names))})"
        if where is not None:
            query += f" where {where.sql}"
        paths = (local_file(file.path) or file.path for file in files)
        with mistakes(f"where={where.text!r}", paths) if where else nullcontext():
            found = cursor.sql(query).to_arrow_table()
    return table_as_declared(found, wanted) if names else found.select([])


def columns_wanted(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """These columns of a schema, by default all. Raises InvalidInput for an unknown one."""
    names = schema.names if columns is None else columns
    for name in names:
        if schema.get_field_index(name) < 0:
            raise InvalidInput(f"the column {name!r} is not in the table, which has {', '.join(schema.names)}")
    return pa.schema([schema.field(name) for name in names])


def without_dead_rows(files: Sequence[ScanFile], run: Callable[[bool], T]) -> T:
    """The result of `run(False)`; if a user's expression fails in it and there are dead rows, the result of `run(True)`.

    The argument of `run` is whether to hide dead rows from expressions. Raises what `run` raises.
    """
    try:
        return run(False)
    except InvalidInput:
        if not any(file.dead for file in files):
            raise
    return run(True)


def register_view(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    storage: ReadableFiles,
    files: Sequence[ScanFile],
    schema: pa.Schema,
    *,
    completed: pa.Table | None = None,
    is_joined: bool = False,
    hides_dead_rows: bool = False,
    mapping: ColumnMapping | None = None,
) -> None:
    """Make `name` a temporary view of the live rows on this connection. Rows are read only when a query needs them.

    The view keeps these files until the name is registered again. `is_joined`: a query will join the view with few rows,
    so the footers of the files may be read first to make the join fast. `hides_dead_rows`: no expression of a query is
    evaluated on a dead row; otherwise DuckDB may evaluate it before it removes the row. `schema` and `completed` have
    stored names; with `mapping` the view has the logical ones. Raises Corrupt like `to_arrow`.
    """
    logical = schema if mapping is None else mapping.logical_schema(schema)
    kinds = dict(zip(schema.names, map(str, connection.from_arrow(schema.empty_table()).types), strict=True))
    pieces = []
    for is_dirty in (False, True):
        group = [file for file in files if bool(file.dead) == is_dirty]
        if group:
            side = f"{name}_{'dead' if is_dirty else 'clean'}"
            pieces.append(
                _select(
                    connection,
                    side,
                    storage,
                    group,
                    schema,
                    logical,
                    kinds=kinds,
                    is_dirty=is_dirty,
                    is_joined=is_joined,
                    hides_dead_rows=hides_dead_rows,
                )
            )
    if completed is not None and completed.num_rows:
        rows = completed.select(schema.names)
        connection.register(f"{name}_completed", rows if mapping is None else mapping.to_logical(rows))
        pieces.append(f"select * from {quote(f'{name}_completed')}")
    if not pieces:
        connection.register(f"{name}_empty", logical.empty_table())
        pieces.append(f"select * from {quote(f'{name}_empty')}")
    connection.execute(f"create or replace temp view {quote(name)} as {' union all '.join(pieces)}")


def _select(
    connection: duckdb.DuckDBPyConnection,
    side: str,
    storage: ReadableFiles,
    files: Sequence[ScanFile],
    schema: pa.Schema,
    logical: pa.Schema,
    *,
    kinds: dict[str, str],
    is_dirty: bool,
    is_joined: bool,
    hides_dead_rows: bool,
) -> str:
    """A query for the live rows of files, either all with dead rows or all without. Its columns have the logical names."""
    partition_columns = [name for name in schema.names if name in files[0].partition_values]
    stored = {name: f"c{at}" for at, name in enumerate(schema.names) if name not in partition_columns}
    urls = [storage.duckdb_url(file.path) for file in files]
    columns = {name: (alias, kinds[name]) for name, alias in stored.items()}
    source = parquet_to_join(connection, urls, columns) if is_joined else parquet_of(urls, columns)
    values = [f"f.{stored[name]}" if name in stored else f"p.{quote(name)}" for name in schema.names]
    outputs = [
        f"{renamed_sql(value, field.type, wanted.type)} as {quote(wanted.name)}"
        for value, field, wanted in zip(values, schema, logical, strict=True)
    ]
    query = f"select {', '.join(outputs)} from {source} f"
    if partition_columns or is_dirty:
        create_side_table(
            connection, side, files, schema, kinds=kinds, partition_columns=partition_columns, is_dirty=is_dirty
        )
        query += f" left join {quote(side)} p on p._lakebed_file = f.file_index"
    if is_dirty:
        query += " where get_bit(p._lakebed_dead, f.file_row_number::integer) = 0"
        if hides_dead_rows:
            query = f"select * from ({query} {EVALUATED_FIRST})"
    return query


def create_side_table(
    connection: duckdb.DuckDBPyConnection,
    side: str,
    files: Sequence[ScanFile],
    schema: pa.Schema,
    *,
    kinds: dict[str, str],
    partition_columns: Sequence[str],
    is_dirty: bool,
) -> None:
    """Creates a temporary table with one row per file: its number, its partition values, its dead rows as a bit string."""
    columns: dict[str, pa.Array] = {"_lakebed_file": pa.array(range(len(files)), pa.int64())}
    outputs = ["_lakebed_file"]
    for name in partition_columns:
        texts = [file.partition_values[name] or None for file in files]
        if pa.types.is_binary(schema.field(name).type):
            columns[name] = pa.array([None if text is None else text.encode() for text in texts], pa.binary())
        else:
            columns[name] = pa.array(texts, pa.string())
        outputs.append(f"cast({quote(name)} as {kinds[name]}) as {quote(name)}")
    if is_dirty:
        columns["_lakebed_dead"] = pa.array([_bits(file) for file in files], pa.large_binary())
        outputs.append("_lakebed_dead::bit as _lakebed_dead")
    rows = pa.table(columns)
    connection.register(f"{side}_rows", rows)
    connection.execute(
        f"create or replace temp table {quote(side)} as select {', '.join(outputs)} from {quote(f'{side}_rows')}"
    )
    connection.unregister(f"{side}_rows")


def _bits(file: ScanFile) -> bytes:
    """One bit per row, in the order of the rows, set if the row is dead. Raises Corrupt for a position outside the file."""
    assert file.dead is not None
    positions = np.frombuffer(file.dead.to_array(), dtype=np.uint64)
    if int(positions[-1]) >= file.rows:
        raise Corrupt(
            f"{file.path}: its deletion vector marks row {int(positions[-1])}, but the file has {file.rows} rows",
            path=file.path,
            part=file.path,
        )
    flags = np.zeros(file.rows, dtype=bool)
    flags[positions] = True
    return np.packbits(flags).tobytes()


ROWS_MAX = 2_000
"""More rows than these are not read by their numbers."""

_Known = tuple[pa.Table, Collection[str]]
"""Rows of the wanted keys (``part``, ``row``) in some parts, and the paths of all parts of which this is known."""


def rows_at_positions(
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
