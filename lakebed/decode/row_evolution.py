"""Rows that a caller brings (``table.apply``, ``table.ingest``) and their table, where they differ.

The columns of the rows are compared with the table's before anything is written (``schema_evolution``). With ``on_mismatch:
rescue`` the values that do not fit their column, and columns that the table lacks, are kept as JSON.

Rows that lack a column of the table are refused, whatever the policy allows. A row takes the place of the one that the table has,
so a null in place of a value that was not sent would erase what another writer put there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from lakebed.errors import InvalidChanges
from lakebed.parts.changes import WriteSpec, lacks
from lakebed.parts.quarantine import rows_as_json
from lakebed.schema.exact_cast import cast_exactly
from lakebed.schema.field_names import by_case
from lakebed.schema.fitting import RESCUED_COLUMN, EvolvePolicy
from lakebed.schema.nested import nullable


def names_in_rows(columns: Sequence[str], given: Sequence[str], policy: EvolvePolicy) -> dict[str, str]:
    """The name under which rows have each column of the table, as far as they have it.

    Raises InvalidChanges if they have one under two names that ``columns`` says are one.
    """
    found: dict[str, str] = {}
    there = set(given)
    for column in columns:
        several = sorted(policy.names_of(column) & there)
        if len(several) > 1:
            raise InvalidChanges(
                f"the changes have {several[0]!r} and {several[1]!r}, which renamed_columns says are one; leave one of them out"
            )
        if several:
            found[column] = several[0]
    lacking = [column for column in columns if column not in found]
    others = [name for name in given if not policy.says(name)]
    if not lacking or set(others) <= set(columns):
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
