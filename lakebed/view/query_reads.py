"""Finds the parts that a query in DuckDB reads, by its plan. ``table.query`` leaves the reading to DuckDB, so this runs only when
reads are counted, or many files are to be verified.

1. DuckDB plans the query again. Each scan of Parquet files in the plan shows the conditions that were pushed down to it.
2. Parts that these conditions rule out by their bounds (``part_filter``) do not count as read. DuckDB opens their footers, once a
   process, and skips their rows.

A condition that is pushed down only while the query runs, such as one from a join, is not in the plan. Then more parts count as
read than were read.

The version that a reader asks for is found by its number or by a time (``snapshot_at``).
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import duckdb
import pyarrow as pa

from lakebed.errors import InvalidInput
from lakebed.log.holds import require_unexpired
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.parts.intact import File, not_seen, require_intact, require_intact_reads
from lakebed.parts.part_filter import HasStatistics, parts_that_may_match
from lakebed.quoting import quote
from lakebed.settings import VerifyReads
from lakebed.sql.expression import Expression, parsed
from lakebed.storage.file_errors import may_be_damage
from lakebed.storage.part_storage import PartStorage


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
