"""Values that a source did not send: from which row each is taken.

A change may lack values (Debezium does not send unchanged large values of PostgreSQL). Then the row keeps the value that it
had. That value is found in the order of arrival, so it does not depend on when the tail is settled:

1. The changes of a key are visited in the order of arrival, after the table's own row or delete. A change with a lower
   sequence than the newest so far is late: it changes nothing and gives no value.
2. A missing value is taken from the newest row so far. After a delete, or without a row, it is null.
3. A row may then lack a value of a NOT NULL column, because the source never sent one. It can't be a row of the table. It is
   left out and goes to the quarantine, unless a complete change that came later replaces it anyway. So later changes can only
   reduce what a change part loses, and the same rows are never put into the quarantine twice.

Within a batch the table's row is not known. Without a sequence that does not matter: the batch's rows are newer, and what none
of them has stays missing. With a sequence, a row that gives a value may itself be late, and only the table can decide that. So
such rows are kept beside the newest, in layers of one row a key, oldest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.parts.changes import DELETE, OP_COLUMN, UNAVAILABLE_COLUMN, WriteSpec, newest_per_key
from lakebed.parts.key_moves import folded
from lakebed.parts.quarantine import QUARANTINE_SCHEMA, IncompleteRow, records_of_incomplete
from lakebed.sql.pieces import aliases, by_place, registered

_Ranks = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rows:
    """Changes in the order of arrival. ``group`` identifies the key; ``rank`` orders sequences (all equal without one)."""

    group: _Ranks
    rank: _Ranks
    deleted: Sequence[bool | None]
    missing: Sequence[Sequence[str] | None]

    def by_key(self, wanted: npt.NDArray[np.bool_] | None = None) -> Iterator[list[int]]:
        """The rows of each key that has a wanted one (default: one with a missing value), in their order."""
        if wanted is None:
            wanted = np.fromiter((bool(names) for names in self.missing), dtype=bool, count=len(self.missing))
        rows = np.flatnonzero(np.isin(self.group, np.unique(self.group[wanted])))
        rows = rows[np.argsort(self.group[rows], kind="stable")]
        for piece in np.split(rows, np.flatnonzero(np.diff(self.group[rows])) + 1):
            if len(piece):
                yield piece.tolist()


@dataclass(frozen=True, slots=True)
class Completed:
    """``row`` is the newest; ``taken``: the row that each of its missing values comes from, None for null.

    ``unknown`` are the values that no row has; ``left_out`` the rows that could not be whole, and what each lacks.
    """

    row: int | None
    taken: Mapping[str, int | None] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    left_out: Mapping[int, Sequence[str]] = field(default_factory=dict)


def complete(rows: Sequence[int], of: Rows, required: frozenset[str], base_is_known: bool) -> Completed:
    """The newest of one key's rows, given in the order of arrival, and where its missing values come from."""
    newest: int | None = None
    taken: dict[str, int | None] = {}
    unknown: list[str] = []
    left_out: dict[int, list[str]] = {}
    for row in rows:
        if newest is not None and of.rank[row] < of.rank[newest]:
            continue
        from_rows: dict[str, int | None] = {}
        missing: list[str] = []
        for name in () if of.deleted[row] else of.missing[row] or ():
            if newest is None or name in unknown:
                missing.append(name)
            else:
                from_rows[name] = None if of.deleted[newest] else taken.get(name, newest)
        void = {name for name, giver in from_rows.items() if giver is None} | (set(missing) if base_is_known else set())
        if void & required:
            left_out[row] = sorted(void & required)
            continue
        newest, taken, unknown = row, from_rows, missing
        if not from_rows and not missing:
            left_out = {other: lacks for other, lacks in left_out.items() if of.rank[other] > of.rank[row]}
    return Completed(newest, taken, tuple(unknown), left_out)


def givers(rows: Sequence[int], of: Rows) -> list[int]:
    """The rows of one key that its newest may take missing values from, oldest first."""
    chain: list[int] = []
    for row in rows:
        if not chain or of.rank[row] >= of.rank[chain[-1]]:
            chain.append(row)
    newest = chain.pop()
    wanted = set() if of.deleted[newest] else set(of.missing[newest] or ())
    out: list[int] = []
    while chain and wanted:
        row = chain.pop()
        given = wanted if of.deleted[row] else wanted.difference(of.missing[row] or ())
        if given:
            out.append(row)
            wanted = wanted - given
    return out[::-1]


def newest_in_layers(
    changes: pa.Table, spec: WriteSpec, connection: duckdb.DuckDBPyConnection
) -> tuple[Iterable[pa.Table], pa.Table]:
    """The newest change of each key, as ``prepare`` returns changes; before it, if need be, what it depends on.

    Each table holds a key once, and is newer than the tables before it. The second value are records for the quarantine:
    changes that can't be whole, whatever the table holds.
    """
    nothing = QUARANTINE_SCHEMA.empty_table()
    if spec.keys:
        changes = folded(changes, spec, connection)
    if not spec.keys or len(changes) < 2 or not _lacks_values(changes):
        return [newest_per_key(changes, spec, connection)], nothing
    of = ranked(changes, spec, connection)
    if spec.sequence_column is None:
        filled, left_out = _filled(changes, of, spec)
        return [newest_per_key(filled, spec, connection)], left_out
    return _layers(changes, of, spec, connection), nothing


def _layers(changes: pa.Table, of: Rows, spec: WriteSpec, connection: duckdb.DuckDBPyConnection) -> Iterator[pa.Table]:
    layers: list[list[int]] = []
    for rows in of.by_key():
        for depth, row in enumerate(givers(rows, of)):
            if depth == len(layers):
                layers.append([])
            layers[depth].append(row)
    for layer in layers:
        yield changes.take(pa.array(sorted(layer)))
    yield newest_per_key(changes, spec, connection)


def _lacks_values(changes: pa.Table) -> bool:
    if UNAVAILABLE_COLUMN not in changes.column_names:
        return False
    return bool(pc.max(pc.list_value_length(changes[UNAVAILABLE_COLUMN])).as_py())


def ranked(changes: pa.Table, spec: WriteSpec, connection: duckdb.DuckDBPyConnection) -> Rows:
    """What decides about the changes, without their values. By DuckDB, whose equality the keys follow everywhere."""
    names = list(dict.fromkeys([*spec.keys, *([spec.sequence_column] if spec.sequence_column else [])]))
    alias = aliases(names)
    columns = [f"dense_rank() over (order by {', '.join(alias[key] for key in spec.keys)})"]
    if spec.sequence_column:
        columns.append(f"dense_rank() over (order by {alias[spec.sequence_column]} nulls first)")
    numbered = by_place(changes, names).append_column("position", pa.array(np.arange(len(changes))))
    with registered(connection, "lakebed_ranked", numbered) as name:
        listed = ", ".join(f"{column} as r{at}" for at, column in enumerate(columns))
        found = connection.sql(f"select {listed} from {name} order by position").to_arrow_table()
    rank = found["r1"].to_numpy() if len(columns) > 1 else np.zeros(len(changes), dtype=np.int64)
    deleted = pc.equal(changes[OP_COLUMN], DELETE).to_pylist()
    return Rows(found["r0"].to_numpy(), rank, deleted, changes[UNAVAILABLE_COLUMN].to_pylist())


def _filled(changes: pa.Table, of: Rows, spec: WriteSpec) -> tuple[pa.Table, pa.Table]:
    """The changes, each key's newest with the values that older ones of the batch give, and records of those left out."""
    required = required_columns(spec)
    missing = list(of.missing)
    sources: dict[str, npt.NDArray[np.float64]] = {}
    left_out: dict[int, Sequence[str]] = {}
    for rows in of.by_key():
        done = complete(rows, of, required, base_is_known=False)
        left_out |= done.left_out
        if done.row is None:
            continue
        for name, giver in done.taken.items():
            source = sources.setdefault(name, np.arange(len(changes), dtype=np.float64))
            source[done.row] = np.nan if giver is None else giver
        missing[done.row] = list(done.unknown)
    incomplete_rows = IncompleteRow(changes.take(pa.array(list(left_out), pa.int64())), list(left_out.values()))
    aside = records_of_incomplete(incomplete_rows, spec)
    for name, source in sources.items():
        at = changes.schema.get_field_index(name)
        values = changes[name].take(pa.array(source, from_pandas=True).cast(pa.int64()))
        changes = changes.set_column(at, changes.schema.field(name), values)
    at = changes.column_names.index(UNAVAILABLE_COLUMN)
    changes = changes.set_column(at, UNAVAILABLE_COLUMN, pa.array(missing, pa.list_(pa.string())))
    if left_out:
        changes = changes.take(pa.array(np.setdiff1d(np.arange(len(changes)), list(left_out))))
    return changes, aside


def required_columns(spec: WriteSpec) -> frozenset[str]:
    """Columns that have a value in every row."""
    return frozenset(field.name for field in spec.schema if not field.nullable)
