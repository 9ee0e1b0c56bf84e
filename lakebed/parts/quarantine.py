"""The quarantine: a table beside a table, for records that could not become one of its rows.

**The handover** of such records, from the log of a table to the log of its quarantine, is exactly once.

The two tables have a log each, and no commit is in both. So the log of the table decides:

1. The tasks of a batch write the bad records to files in the quarantine's folder.
2. The commit that brings the batch also lists these files, in the entry ``lakebed.quarantined`` of the table. A batch that is not
   committed leaves files that no log refers to.
3. Then the files are committed to the quarantine. Its own entry, with the id of the table, has the number of the newest file that
   it has taken. Files are numbered in the order in which the table lists them, so none is taken twice, whoever does it.
4. The next batch leaves the files out of the entry of the table.

After a crash between 2 and 3 the next batch, of any process, begins with 3. A cleanup of the quarantine leaves alone what the
table lists (``operations.cleanup``).
"""

from __future__ import annotations

import datetime
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from lakebed.far_times import finite_column
from lakebed.log.actions import Action, AddPart, Domain
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.entries import QUARANTINED, Operation
from lakebed.log.entry_values import checked, document_of, integer_of, made, reading
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.parts.changes import UNAVAILABLE_COLUMN, WriteSpec
from lakebed.parts.write import WrittenPart
from lakebed.sql import aliases, by_place, named, registered
from lakebed.storage.data_files import open_part_storage
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


# -- From the log of a table to that of its quarantine -----------------------------------------------------------------


_logger = logging.getLogger("lakebed.ingest")


class Handover:
    """The way from one table to its quarantine. One thread at a time."""

    def __init__(self, table: str, quarantine_log: Callable[..., TableLog]) -> None:
        """``quarantine_log``: opens the log; with True, of a quarantine that has a column of headers."""
        self._table = table
        self._quarantine_log = quarantine_log
        self._taken = 0
        self._own: set[str] = set()

    def entry(self, snapshot: Snapshot, parts: Sequence[WrittenPart]) -> Domain | None:
        """The entry of a commit to the table that brings these files too, and drops those that the quarantine has; None if it is
        the same as before."""
        listed, first = _listed(snapshot)
        left = [(number, part) for number, part in listed if number > self._taken]
        more = [(first + place, orjson.loads(part.to_json())) for place, part in enumerate(parts)]
        self._own.update(part.path for part in parts)
        if not more and len(left) == len(listed):
            return None
        document = {"next": first + len(more), "parts": [*left, *more]}
        return Domain(QUARANTINED, orjson.dumps(document).decode())

    def deliver(self, snapshot: Snapshot) -> None:
        """Commit what the table lists to the quarantine, unless that has it. Raises StoreUnavailable, Contention."""
        listed = [(number, part) for number, part in _listed(snapshot)[0] if number > self._taken]
        if not listed:
            return
        has_headers = any(part.get("has_more_columns") for _, part in listed)
        log = self._quarantine_log(True) if has_headers else self._quarantine_log()
        entry = f"{QUARANTINED}.{snapshot.metadata.id}"

        def build(quarantine: Snapshot) -> Proposal[None] | Finished[None]:
            text = quarantine.domains.get(entry)
            taken = integer_of(entry, text, "taken")
            with reading(QUARANTINED):
                parts = [made(WrittenPart, part) for number, part in listed if number > taken]
            if not parts:
                return Finished(None)
            actions: list[Action] = [
                AddPart(part.base_part(has_op_column=False)) for part in parts if self._is_there(part)
            ]
            actions.append(Domain(entry, orjson.dumps({"taken": listed[-1][0]}).decode()))
            metrics = {"rows": sum(part.rows for part in parts), "parts": len(parts)}
            return Proposal(actions=actions, result=lambda _: None, metrics=metrics)

        commit_loop(log, Operation.QUARANTINE, build)
        self._taken = listed[-1][0]
        self._own.clear()

    def _is_there(self, part: WrittenPart) -> bool:
        """Whether the file is; one that another process listed may be gone with a quarantine that was removed since."""
        there = part.path in self._own or open_part_storage(self._table + QUARANTINE_SUFFIX).exists(part.path)
        if not there:
            _logger.warning("%s: %d quarantined records are gone with their file %s", self._table, part.rows, part.path)
        return there


def _listed(snapshot: Snapshot) -> tuple[list[tuple[int, dict[str, Any]]], int]:
    """The files that a table lists, each with its number, and the number of the next one. Raises Corrupt."""
    text = snapshot.domains.get(QUARANTINED)
    return ([], 1) if text is None else listed_in(QUARANTINED, text)


def listed_in(domain: str, text: str) -> tuple[list[tuple[int, dict[str, Any]]], int]:
    """The files that an entry of the log lists, and the number of the next one. Raises Corrupt."""
    document = document_of(domain, text)
    with reading(domain):
        files = [
            (checked(int, number, "number"), checked(dict[str, Any], part, "part"))
            for number, part in document["parts"]
        ]
        return files, checked(int, document["next"], "next")
