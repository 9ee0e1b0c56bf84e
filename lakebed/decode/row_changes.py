"""Rows that a user brings, not records: how they differ from their table, which fit it, and what becomes of the others.

The columns of the rows are compared with the table's before anything is written (``schema_evolution``). With ``on_mismatch:
rescue`` the values that do not fit their column, and columns that the table lacks, are kept as JSON.

Rows that lack a column of the table are refused, whatever the policy allows. A row takes the place of the one that the table has,
so a null in place of a value that was not sent would erase what another writer put there.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import orjson
import pyarrow as pa

from lakebed.decode.decoder import Decoded
from lakebed.errors import InvalidChanges
from lakebed.parts.changes import WriteSpec, prepare
from lakebed.parts.fills import Fill, lacks
from lakebed.parts.quarantine import QUARANTINE_SCHEMA, rows_as_json
from lakebed.remarks import Remark, remarks_on
from lakebed.schema.column_mapping import by_case
from lakebed.schema.exact_cast import cast_exactly
from lakebed.schema.fitting import RESCUED_COLUMN, EvolvePolicy
from lakebed.schema.nested import nullable
from lakebed.storage.engine import connect


def names_in_rows(columns: Sequence[str], given: Sequence[str], policy: EvolvePolicy) -> dict[str, str]:
    """The name under which rows have each column of the table, as far as they have it.

    Raises InvalidChanges if they have one under two names that ``columns`` says are one.
    """
    there = set(given)
    found = {} if policy.renamed else {column: column for column in columns if column in there}
    for column in columns if policy.renamed else ():
        several = sorted(policy.names_of(column) & there)
        if len(several) > 1:
            raise InvalidChanges(
                f"the changes have {several[0]!r} and {several[1]!r}, which renamed_columns says are one; leave one of them out"
            )
        if several:
            found[column] = several[0]
    lacking = [column for column in columns if column not in found]
    others = [name for name in given if not policy.says(name)] if lacking else []
    if set(others) <= set(columns):
        return found
    return found | {column: name for name, column in by_case(lacking, others).items()}


def columns_left_out(sent: Mapping[str, str], except_columns: Collection[str]) -> list[str]:
    """``except_columns``, and the table's columns that come under these names. ``sent``: as of ``names_in_rows``."""
    return [*except_columns, *(column for column, name in sent.items() if name in except_columns and name != column)]


def under_their_names(rows: pa.Table, spec: WriteSpec, policy: EvolvePolicy) -> pa.Table:
    """The rows with each column of the table under the table's name; other names stay too, since expressions may use them."""
    for column, name in names_in_rows(spec.schema.names, rows.column_names, policy).items():
        if name != column:
            rows = rows.append_column(column, rows[name])
    return rows


def require_columns(
    columns: Sequence[str], given: Sequence[str], policy: EvolvePolicy, except_columns: Collection[str] = ()
) -> None:
    """Raises InvalidChanges if rows lack one of the table's columns. The column for what is rescued is lakebed's own."""
    sent = names_in_rows(columns, given, policy)
    for name in columns:
        if name not in sent and name not in except_columns and name != RESCUED_COLUMN:
            raise lacks(name, given)


def completed(rows: pa.Table, spec: WriteSpec) -> pa.Table:
    """The rows with nulls for the columns that their source does not have, where these may be null."""
    given = set(rows.column_names)
    for field in spec.schema:
        if field.nullable and field.name not in given and field.name != spec.sequence_by:
            rows = rows.append_column(field.name, pa.nulls(len(rows), nullable(field.type)))
    return rows


def rescued(rows: pa.Table, spec: WriteSpec, unknown: Sequence[str]) -> tuple[pa.Table, pa.Array]:
    """The rows with null in place of values that do not fit, and what was taken out of each row, as JSON or null."""
    kept: dict[int, dict[str, Any]] = {}
    places = {name: at for at, name in enumerate(rows.column_names)}
    for name in unknown:
        _keep(kept, rows, name, np.asarray(rows[name].is_valid()))
    for field in spec.schema:
        is_needed = not field.nullable or field.name in (*spec.keys, spec.sequence_by)
        if is_needed or field.name not in places:
            continue
        column = rows[field.name]
        bad = _misfits(column, field.type, field.name)
        if bad.any():
            _keep(kept, rows, field.name, bad)
            if bool((bad == np.asarray(column.is_valid())).all()):
                fitting = pa.chunked_array([pa.nulls(len(rows), nullable(field.type))])
            else:
                fitting = column.take(pa.array(np.arange(len(rows)), mask=bad))
            rows = rows.set_column(places[field.name], field.name, fitting)
    texts = [orjson.dumps(kept[row]).decode() if row in kept else None for row in range(len(rows))]
    return rows, pa.array(texts, pa.string())


def _keep(kept: dict[int, dict[str, Any]], rows: pa.Table, name: str, chosen: np.ndarray[Any, Any]) -> None:
    numbers = np.flatnonzero(chosen)
    if len(numbers):
        some: list[Mapping[str, object]] = rows_as_json(rows.select([name]).take(pa.array(numbers)))  # type: ignore[assignment]
        for number, row in zip(numbers.tolist(), some, strict=True):
            kept.setdefault(number, {})[name] = row[name]


def _misfits(column: pa.ChunkedArray, kind: pa.DataType, name: str) -> np.ndarray[Any, Any]:
    """Which values do not become a value of the type. Halves the column, so few misfits cost little."""
    bad = np.zeros(len(column), bool)
    if not _fits(column.slice(0, 0), kind, name):  # no value of this type does
        return np.asarray(column.is_valid())
    pieces = [(0, len(column))]
    while pieces:
        start, end = pieces.pop()
        if start == end or _fits(column.slice(start, end - start), kind, name):
            continue
        if end - start == 1:
            bad[start] = True
        else:
            middle = (start + end) // 2
            pieces += [(start, middle), (middle, end)]
    return bad


def _fits(column: pa.ChunkedArray, kind: pa.DataType, name: str) -> bool:
    try:
        cast_exactly(column, kind, name)
    except InvalidChanges:
        return False
    return True


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
        shape = dict.fromkeys([*spec.schema.names, spec.sequence_by, *spec.hidden_orders])
        shape.pop(None, None)
        types = dict(zip(spec.schema.names, spec.schema.types, strict=True))
        none = {name: pa.array([], types.get(name, pa.int64())) for name in shape}
        bad = [_quarantined(rows.slice(row, 1), why) for row in range(len(rows))]
        return prepare(pa.table(none), spec, connection), pa.Table.from_pylist(bad, QUARANTINE_SCHEMA)
    return split(rows, spec, connection, deletes, left_out, fill)
