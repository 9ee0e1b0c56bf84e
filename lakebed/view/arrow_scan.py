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
   by their positions (`lookup`).
5. A predicate that is pushed down is evaluated on dead rows too. That changes no result, but it may fail there, as the
   cast of a text may. So a query that failed is run again on a view that evaluates predicates only after dead rows are
   removed (`without_dead_rows`). Such a view is not the default, because no predicate is pushed into its scan.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import duckdb
import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from lakebed.errors import Corrupt, InvalidInput
from lakebed.log.deletion_vector import DeletionVector
from lakebed.quoting import quote
from lakebed.schema.column_mapping import ColumnMapping
from lakebed.schema.nested import table_as_declared
from lakebed.sql.expression import Expression, mistakes
from lakebed.sql.pieces import (
    EVALUATED_FIRST,
    parquet_of,
    parquet_to_join,
    renamed_sql,
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
