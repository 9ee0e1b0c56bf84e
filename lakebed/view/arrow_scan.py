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

import datetime
import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import duckdb
import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from lakebed.errors import Corrupt, InvalidInput
from lakebed.log.deletion_vector import DeletionVector
from lakebed.log.holds import require_unexpired
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.parts.intact import File, not_seen, require_intact, require_intact_reads
from lakebed.parts.part_filter import HasStatistics, parts_that_may_match
from lakebed.quoting import quote
from lakebed.schema.column_mapping import ColumnMapping
from lakebed.schema.nested import table_as_declared
from lakebed.settings import VerifyReads
from lakebed.sql import (
    EVALUATED_FIRST,
    Expression,
    mistakes,
    parquet_of,
    parquet_to_join,
    parsed,
    renamed_sql,
)
from lakebed.storage.engine import cursor_of, may_be_damage
from lakebed.storage.part_storage import PartStorage
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


# -- The parts that a query in DuckDB reads, by its plan -------------------------------------------------------------------
#
# ``table.query`` leaves the reading to DuckDB, so this runs only when reads are counted, or many files are to be verified.
#
# 1. DuckDB plans the query again. Each scan of Parquet files in the plan shows the conditions that were pushed down to it.
# 2. Parts that these conditions rule out by their bounds (``part_filter``) do not count as read. DuckDB opens their footers,
#    once a process, and skips their rows.
#
# A condition that is pushed down only while the query runs, such as one from a join, is not in the plan. Then more parts count
# as read than were read.
#
# The version that a reader asks for is found by its number or by a time (``snapshot_at``).


def snapshot_at(log: TableLog, version: int | None = None, timestamp: str | float | None = None) -> Snapshot:
    """The newest snapshot, the one of ``version``, or the newest that was committed until ``timestamp``.

    ``timestamp`` is epoch seconds or an ISO text, which is UTC without an offset. Raises VersionNotFound, InvalidInput.
    """
    if version is not None and timestamp is not None:
        raise InvalidInput("give a version or a timestamp, not both")
    newest = log.refresh()
    if timestamp is not None:
        version = log.version_at(epoch_ms(timestamp))
    if version is None:
        return newest
    require_unexpired(newest.domains, version, log.now_ms())
    return log.at_version(version)


def epoch_ms(timestamp: str | float) -> int:
    """Milliseconds of a time: epoch seconds, or an ISO text, which is UTC without an offset. Raises InvalidInput."""
    try:
        if isinstance(timestamp, (int, float)):
            datetime.datetime.fromtimestamp(timestamp, datetime.UTC)  # in the years that messages can show
            return int(timestamp * 1000)
        moment = datetime.datetime.fromisoformat(timestamp.replace("Z", "+00:00"))
    except (ValueError, OverflowError, OSError):  # an infinity, or a year that Python lacks
        raise InvalidInput(f"{timestamp!r} is not a time; write for example '2026-01-31T12:00:00Z'") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return int(moment.timestamp() * 1000)


class _Scan(HasStatistics, File, Protocol):
    """A file as a reader has it."""


_File = TypeVar("_File", bound=HasStatistics)
_Scanned = TypeVar("_Scanned", bound=_Scan)
_PLANNED_BYTES_MIN = 64 << 20
"""Verifying so many bytes takes some 20 ms, which is more than a second planning."""
# Texts stay as they are; the scan's names of columns, and a type that the filter knows by another name, don't.
_WORDS = re.compile(r"'(?:[^']|'')*'|\bc(\d+)\b|\bTIMESTAMP WITH TIME ZONE\b")
_OPTIONAL = "optional: "


def parts_that_a_query_reads(
    connection: duckdb.DuckDBPyConnection, files: Sequence[_File], schema: pa.Schema, sql: str
) -> list[_File]:
    """Those of the files of a view, registered on the connection, that a query's scans can't leave out.

    The scans call the column number n of ``schema`` ``c<n>``. Of several statements the queries count, which must work by
    themselves or after the others have been run. None of the files if one does not.
    """
    try:
        queries = [
            each.query for each in connection.extract_statements(sql) if each.type == duckdb.StatementType.SELECT
        ]
        plans = [connection.execute(f"explain (format json) {query}").fetchall()[0][1] for query in queries]
    except duckdb.Error:
        return []
    read: set[str] = set()
    for conditions in {_where(scan, schema) for plan in plans for root in json.loads(plan) for scan in _scans(root)}:
        read.update(file.path for file in parts_that_may_match(connection, files, schema, _parsed(conditions)))
    return [file for file in files if file.path in read]


def require_intact_for_query(
    connection: duckdb.DuckDBPyConnection,
    storage: PartStorage,
    files: Sequence[_Scanned],
    schema: pa.Schema,
    sql: str,
    verify_reads: VerifyReads,
) -> None:
    """``require_intact_reads`` for the files of a view, registered on the connection, that a query reads.

    Of many bytes, those that its plan reads; all if there are statements besides a query. Raises Corrupt.
    """
    wanted: Sequence[_Scanned] = files
    size = sum(file.bytes for file in not_seen(files, storage, objects=verify_reads == "all"))
    if verify_reads != "off" and size > _PLANNED_BYTES_MIN and _is_query(connection, sql):
        wanted = parts_that_a_query_reads(connection, files, schema, sql)
    require_intact_reads(wanted, storage, verify_reads)


def _is_query(connection: duckdb.DuckDBPyConnection, sql: str) -> bool:
    try:
        return [each.type for each in connection.extract_statements(sql)] == [duckdb.StatementType.SELECT]
    except duckdb.Error:
        return False


@contextmanager
def failures(context: str, files: Iterable[File], storage: PartStorage) -> Iterator[None]:
    """Turns an error of DuckDB that is no mistake in SQL into InvalidInput that begins with ``context``.

    If damage may be behind it, the files are compared first. Raises Corrupt, naming the file that is damaged.
    """
    try:
        yield
    except (duckdb.Error, InvalidInput) as error:
        if may_be_damage(error):
            require_intact(files, storage, objects=True, of_others=True)
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"{context}: {error}") from None  # for example, it takes too much memory


def _parsed(conditions: str | None) -> Expression | None:
    """None, which rules out no part, also for what DuckDB prints and does not read."""
    try:
        return Expression(conditions, parsed(conditions, "a scan's conditions")) if conditions else None
    except InvalidInput:
        return None


def _scans(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if node.get("extra_info", {}).get("Function") == "READ_PARQUET":
        yield node["extra_info"]
    for child in node.get("children", ()):
        yield from _scans(child)


def _where(scan: Mapping[str, Any], schema: pa.Schema) -> str | None:
    """The conditions that were pushed down to a scan, as one expression over the schema's columns."""
    filters = scan.get("Filters", ())
    conditions = [text.removeprefix(_OPTIONAL) for text in ([filters] if isinstance(filters, str) else filters)]

    def as_the_schema_says(word: re.Match[str]) -> str:
        if word[1] is not None:
            return quote(schema.names[int(word[1])]) if int(word[1]) < len(schema.names) else word[0]
        return "TIMESTAMPTZ" if word[0].startswith("TIMESTAMP") else word[0]

    return " and ".join(_WORDS.sub(as_the_schema_says, text) for text in conditions) or None
