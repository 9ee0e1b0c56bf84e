"""The quarantine: a table beside a table, for records that could not become one of its rows."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from lakebed.far_times import finite_column
from lakebed.parts.changes import UNAVAILABLE_COLUMN, WriteSpec
from lakebed.sql.pieces import aliases, by_place, named, registered
from lakebed.storage.engine import connect

QUARANTINE_SUFFIX = "_quarantine"
HEADERS = "headers"
HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
QUARANTINE_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("reason", pa.string()),
        pa.field("time", pa.timestamp("us", "UTC")),
    ]
)
"""A record that could not become a change: its raw bytes, where it was, why, and the record's own time.

Of a change that was decoded already there are no raw bytes: ``value`` is the row as JSON, where integers, texts and
booleans stay as they are and everything else is text; values that the source did not send are not in it.
"""
WITH_HEADERS = QUARANTINE_SCHEMA.append(pa.field(HEADERS, HEADERS_TYPE))
"""With the headers of the record that say how it is decoded. A quarantine has this column from the first such record on."""


@dataclass(frozen=True, slots=True)
class IncompleteRow:
    """Changes, with the hidden columns, and the NOT NULL columns that each has no value for."""

    changes: pa.Table
    lacking: Sequence[Sequence[str]]


def records_of_incomplete(incomplete_rows: IncompleteRow, spec: WriteSpec) -> pa.Table:
    """Changes that lack required values, as records of the quarantine."""
    changes, lacking, unsent = _in_users_names(incomplete_rows, spec)
    shape = spec.incoming
    now = datetime.datetime.now(datetime.UTC)
    records = []
    for row, without, columns in zip(rows_as_json(changes.select(shape.schema.names)), unsent, lacking, strict=True):
        value = {name: value for name, value in row.items() if name not in (without or ())}
        key = ", ".join(f"{name} = {json.dumps(row[name], ensure_ascii=False)}" for name in shape.keys)
        reason = (
            f"column {', '.join(map(repr, columns))} is NOT NULL, but the source did not send its value, and there is no "
            f"row of {key} to keep it from; let the source send whole rows (PostgreSQL: REPLICA IDENTITY FULL), or "
            "begin with a snapshot"
        )
        records.append({"value": json.dumps(value, ensure_ascii=False).encode(), "reason": reason, "time": now})
    return pa.Table.from_pylist(records, QUARANTINE_SCHEMA)


def _in_users_names(
    incomplete: IncompleteRow, spec: WriteSpec
) -> tuple[pa.Table, Sequence[Sequence[str]], Sequence[Sequence[str] | None]]:
    """The changes, the columns that each lacks, and those that its source did not send."""
    unsent = incomplete.changes[UNAVAILABLE_COLUMN].to_pylist()
    columns = spec.columns
    if columns is None or columns.is_identity:
        return incomplete.changes, incomplete.lacking, unsent
    lacking = [columns.logical_names(names) for names in incomplete.lacking]
    return columns.to_logical(incomplete.changes), lacking, [names and columns.logical_names(names) for names in unsent]


def rows_as_json(rows: pa.Table) -> list[dict[str, object]]:
    """The rows as values that JSON has. Texts are made by DuckDB: Python lacks some times and decimals."""
    plain = (pa.types.is_integer, pa.types.is_string, pa.types.is_boolean)
    rows = pa.table({name: _as_text(rows[name]) for name in rows.column_names})
    columns = [
        alias if any(kind(field.type) for kind in plain) else f"{alias}::varchar"
        for field, alias in zip(rows.schema, aliases(rows.column_names).values(), strict=True)
    ]
    connection = connect()
    with registered(connection, "lakebed_incomplete", by_place(rows)) as name:
        found = connection.sql(f"select {', '.join(columns)} from {name}").to_arrow_table()
    as_json: list[dict[str, object]] = named(found, rows.column_names).to_pylist()
    return as_json


def _as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column, as bytes if it claims to be a text and is none, which DuckDB does not take."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return column.cast(pa.binary()) if pa.types.is_string(column.type) else pa.nulls(len(column))
    return finite_column(column)
