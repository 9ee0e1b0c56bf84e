"""Rows that a user brings, not records: which of them fit the table, and what becomes of the others."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from lakebed.decode.decoder import Decoded
from lakebed.decode.row_evolution import rescued
from lakebed.errors import InvalidChanges
from lakebed.parts.changes import Fill, WriteSpec, prepare
from lakebed.parts.quarantine import QUARANTINE_SCHEMA, rows_as_json
from lakebed.remarks import Remark, remarks_on
from lakebed.schema.fitting import RESCUED_COLUMN
from lakebed.storage.engine import connect


@dataclass(frozen=True, slots=True)
class RowChanges:
    """Changes from a DataFrame whose rows are structs with the table's columns (and the hidden ones).

    ``spec`` is the table's when the DataFrame was made: its columns have the names and types of that time, whatever the table
    calls them since. A row is one struct because PySpark makes a call to the JVM for each column. With ``strict``, a row that
    violates NOT NULL is an error; otherwise it goes to quarantine.
    """

    spec: WriteSpec
    strict: bool = False
    unknown_columns: tuple[str, ...] = ()
    """Columns of the DataFrame that the table lacks, and that nothing refers to."""
    rescues: bool = False
    """Whether they, and values that do not fit, are kept as JSON."""
    fill: Fill | None = None
    """Which columns of its row a change fills; None for all."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Decoded]:
        connection, incoming = connect(threads=1), self.spec.incoming
        for batch in batches:
            if not batch.num_rows:
                continue
            table = pa.Table.from_struct_array(batch.column(0))
            if self.rescues:
                table, texts = rescued(table, incoming, self.unknown_columns)
                at = table.schema.get_field_index(RESCUED_COLUMN)
                table = table.set_column(at, RESCUED_COLUMN, texts).drop_columns(list(self.unknown_columns))
            try:
                good, bad = prepare(table, incoming, connection, fill=self.fill), QUARANTINE_SCHEMA.empty_table()
            except InvalidChanges:
                if self.strict:
                    raise
                good, bad = split(table, incoming, fill=self.fill)
            names = {} if self.rescues else dict.fromkeys(self.unknown_columns, len(good) + len(bad))
            yield Decoded(changes=good, quarantined=bad, remarks=remarks_on(Remark.UNKNOWN_FIELD, names))


def split(
    table: pa.Table,
    spec: WriteSpec,
    connection: duckdb.DuckDBPyConnection | None = None,
    deletes: str | None = None,
    left_out: Sequence[str] = (),
    fill: Fill | None = None,
) -> tuple[pa.Table, pa.Table]:
    """The rows that fit the table, and those that do not with a reason each, as records of the quarantine.

    The other arguments are those of ``prepare``.
    """
    good, reasons = fitting(table, spec, connection or connect(threads=1), deletes, left_out, fill)
    bad = [_quarantined(table.slice(row, 1), why) for row, why in reasons]
    return good, pa.Table.from_pylist(bad, QUARANTINE_SCHEMA)


def fitting(
    table: pa.Table,
    spec: WriteSpec,
    connection: duckdb.DuckDBPyConnection,
    deletes: str | None = None,
    left_out: Sequence[str] = (),
    fill: Fill | None = None,
) -> tuple[pa.Table, list[tuple[int, str]]]:
    """The rows that fit the table, as ``prepare`` returns them, and why the others do not, by their numbers.

    Halves the batch, so few bad rows cost little. Raises InvalidChanges if no row can be of these columns.
    """
    good: list[pa.Table] = [prepare(table.slice(0, 0), spec, connection, deletes, left_out, fill)]
    reasons: list[tuple[int, str]] = []
    pieces = [(0, len(table))]
    while pieces:
        start, rows = pieces.pop()
        try:
            good.append(prepare(table.slice(start, rows), spec, connection, deletes, left_out, fill))
        except InvalidChanges as error:
            if rows == 1:
                reasons.append((start, str(error)))
            else:
                half = rows // 2
                pieces += [
                    (start + half, rows - half),
                    (start, half),
                ]  # the first half comes first, which keeps the order
    return pa.concat_tables(good), reasons


def quarantined_rows(places: pa.Table, rows: pa.Table, reasons: Sequence[tuple[int, str]], time: str) -> pa.Table:
    """Rows that do not fit, each with its reason, as records of the quarantine.

    ``places``: the topic, partition and offset of each row, and its time in the column ``time``.
    """
    if not reasons:
        return QUARANTINE_SCHEMA.empty_table()
    bad = pa.array([number for number, _ in reasons], pa.int64())
    some, values = places.take(bad), rows.take(bad)
    return pa.table(
        {
            "key": pa.nulls(len(bad), pa.binary()),
            "value": pa.array([row_as_json(values.slice(row, 1)) for row in range(len(bad))], pa.binary()),
            "topic": some["topic"],
            "partition": some["partition"],
            "offset": some["offset"],
            "reason": pa.array([reason for _, reason in reasons], pa.string()),
            "time": some[time],
        },
        schema=QUARANTINE_SCHEMA,
    )


def row_as_json(row: pa.Table) -> bytes:
    """One row as the value of a record of the quarantine."""
    whole = row.take(pa.array([0]))  # DuckDB refuses structs that are slices
    return json.dumps(rows_as_json(whole)[0], ensure_ascii=False).encode()


def _quarantined(row: pa.Table, reason: str) -> dict[str, Any]:
    return {"value": row_as_json(row), "reason": reason, "time": datetime.datetime.now(datetime.UTC)}


def prepare_or_split(
    rows: pa.Table,
    spec: WriteSpec,
    connection: duckdb.DuckDBPyConnection,
    deletes: str | None,
    left_out: Sequence[str],
    fill: Fill | None = None,
) -> tuple[pa.Table, pa.Table]:
    """The rows that fit the table, as ``prepare`` returns them, and the others as records of the quarantine."""
    try:
        return prepare(rows, spec, connection, deletes, left_out, fill), QUARANTINE_SCHEMA.empty_table()
    except InvalidChanges as error:
        why = str(error)
    try:
        prepare(rows.slice(0, 0), spec, connection, deletes, left_out, fill)
    except InvalidChanges:  # no row can be of these columns
        shape = dict.fromkeys([*spec.schema.names, *([spec.sequence_by] if spec.sequence_by else [])])
        types = dict(zip(spec.schema.names, spec.schema.types, strict=True))
        none = {name: pa.array([], types.get(name, pa.int64())) for name in shape}
        bad = [_quarantined(rows.slice(row, 1), why) for row in range(len(rows))]
        return prepare(pa.table(none), spec, connection), pa.Table.from_pylist(bad, QUARANTINE_SCHEMA)
    return split(rows, spec, connection, deletes, left_out, fill)
