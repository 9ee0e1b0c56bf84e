"""Rows that get another key: how many rows a key has within a transaction of the source.

A source may check only at the end of a statement or a transaction that keys are unique. Until then a key may have several rows.
``update t set id = id + 1`` arrives as a delete of 1, a create of 2, a delete of 2, a create of 3: the delete of 2 is of the row
that was there before, not of the row that has just come. So "the newest change of a key counts" would lose that row.

Therefore the rows of a key are counted where changes are part of a move. A change row has in ``MOVES_COLUMN`` the changes that it
stands for, in their order. Each has

    transaction   a number that stands for the transaction of the source
    place         where the change is in the source's log; one that was there before is sent again, and changes nothing
    deletes       whether it is a delete
    count         what it does to the number of rows of its key (``Count``); greater by ``WEAK`` for a change that is no move
                  itself, and is counted only if its transaction moves a row to the key, or from it

and the key has, after each change, as many rows as before it plus those that came minus those that left. It is live if these are
more than none, with the values of the row that came last. When a transaction ends, a key has one row at most.

1.  Within a batch (``folded``) nobody knows whether the table has a row of the key. One row of the batch stands for all changes
    of a key. If there is a row afterwards only if there was one before, ``NEEDS_ROW_COLUMN`` says so.
2.  Where a tail is resolved, the table's own row is known, and the changes of all parts are counted (``CountedKey``).
3.  A settle may cut a transaction in two. If a key has several rows then, the log says so (``resolve.counted_tail``), and the
    next resolution goes on from there.

A change without transaction is whole by itself: an upsert leaves one row, a delete none. So is a row that has a null there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.far_times import python_values
from lakebed.parts.changes import (
    DELETE,
    MOVES_COLUMN,
    MOVES_TYPE,
    NEEDS_ROW_COLUMN,
    OP_COLUMN,
    SEQUENCE_COLUMN,
    WEAK,
    WriteSpec,
)
from lakebed.sql import aliases, by_place, registered

UNKNOWN_TRANSACTION = 1
"""Of all changes that do not say theirs. The place of such a change is a number for what it says, which has no order."""
_CHANGE_MAX = 60
_Lists: TypeAlias = "pa.ListArray | pa.ChunkedArray"


@dataclass(frozen=True, slots=True)
class Count:
    """What a change does to the number of rows of a key."""

    least: int  # how many rows were there before, at least
    change: int  # how many more are there after it

    @property
    def code(self) -> int:
        """The number that is written."""
        return 2 * max(-_CHANGE_MAX, min(self.change, _CHANGE_MAX)) + min(self.least, 1)

    @staticmethod
    def of_code(code: int) -> Count:
        plain = code - WEAK if code > WEAK // 2 else code
        return Count(plain % 2, plain // 2)


CAME, STAYED, LEFT = Count(0, 1), Count(1, 0), Count(1, -1)


@dataclass(frozen=True, slots=True)
class Change:
    """What decides about one change of a key."""

    deletes: bool
    transaction: int | None = None
    place: int | None = None
    count: int | None = None

    @property
    def is_strong(self) -> bool:
        """Whether it is counted in any case."""
        return self.count is not None and self.count < WEAK // 2

    def written(self) -> dict[str, Any]:
        """As a change row has it."""
        return {"transaction": self.transaction, "place": self.place, "deletes": self.deletes, "count": self.count}


@dataclass(slots=True)
class CountedKey:
    """The rows of a key while its changes are visited in their order."""

    rows: int  # how many there are
    transaction: int | None = None
    place: int | None = None
    counts: bool = False
    visible: int | None = None  # the number of the row that has the values; None if that is what was there before
    removal: int | None = None  # the last row that took one away
    after: list[int] = field(default_factory=list)  # the rows since the visible one, which brought no values
    moving: Collection[int | None] = ()  # the transactions that move a row to the key, or from it
    deletes: bool = False  # whether the newest change is a delete

    def take(self, number: int, changes: Sequence[Change], *, has_values: bool) -> None:
        """Visit the next row. ``has_values``: whether it is an upsert."""
        came = False
        for change in changes:
            if self._add(change):
                came = came or (has_values and not change.deletes)
                self.removal = number if change.deletes else self.removal
        if came:
            self.visible, self.after = number, []
        elif changes:
            self.after.append(number)

    def _add(self, change: Change) -> bool:
        """Count a change; False: it is sent again."""
        if change.transaction is None or change.transaction != self.transaction:
            self.rows, self.counts, self.place = min(self.rows, 1), False, None
        elif self._came_before(change):
            return False
        self.transaction, self.deletes = change.transaction, change.deletes
        self.place = self.place if change.place is None else change.place
        self.counts = self.counts or change.is_strong or change.transaction in self.moving
        if self.counts and change.count is not None:
            count = Count.of_code(change.count)
            self.rows = max(0, max(self.rows, count.least) + count.change)
        else:
            self.rows = 0 if change.deletes else 1
        return True

    def _came_before(self, change: Change) -> bool:
        if change.place is None or self.place is None:
            return False
        is_before = change.transaction != UNKNOWN_TRANSACTION and change.place < self.place
        return is_before or (change.place == self.place and change.deletes == self.deletes)


def moving_in(changes: Iterable[Change]) -> set[int | None]:
    """The transactions of the changes of a key that move a row to it, or from it."""
    return {change.transaction for change in changes if change.is_strong}


def are_strong(moves: _Lists) -> npt.NDArray[np.bool_]:
    """Which rows have changes that are counted in any case, from ``MOVES_COLUMN``."""
    found = np.zeros(len(moves), dtype=bool)
    column = _in_one(moves)
    strong = np.asarray(pc.fill_null(pc.less(pc.list_flatten(column).field("count"), WEAK // 2), False))
    if strong.any():
        found[listed(column)[0][strong]] = True
    return found


def listed(moves: _Lists) -> tuple[npt.NDArray[np.int64], pa.StructArray]:
    """The changes of all rows, and the row of each."""
    column = _in_one(moves)
    return pc.list_parent_indices(column).to_numpy(), pc.list_flatten(column)


def _in_one(moves: _Lists) -> pa.ListArray:
    return moves.combine_chunks() if isinstance(moves, pa.ChunkedArray) else moves


def uncounted(changes: pa.Table, keys: Sequence[str]) -> int:
    """How many keys are deleted by their newest change, but may have a row if their changes are counted."""
    if MOVES_COLUMN not in changes.column_names or not are_strong(changes[MOVES_COLUMN]).any():
        return 0
    moved = changes.filter(changes[MOVES_COLUMN].is_valid())
    deleted = pc.equal(moved[OP_COLUMN], DELETE).to_pylist()
    each = changes_of(moved, deleted, range(len(moved)))
    rows_of: dict[tuple[str, ...], list[int]] = {}
    for row, key in enumerate(zip(*(map(repr, python_values(moved[name])) for name in keys), strict=True)):
        rows_of.setdefault(key, []).append(row)
    return sum(bool(deleted[rows[-1]]) and not deleted[_newest(rows, each, deleted)[0]] for rows in rows_of.values())


def without_places(table: pa.Table) -> pa.Table:
    """Changes that count whenever they come: none of them is taken for one that is sent again."""
    if MOVES_COLUMN not in table.column_names:
        return table
    moves = [one and [{**change, "place": None} for change in one] for one in table[MOVES_COLUMN].to_pylist()]
    return _replaced(table, MOVES_COLUMN, pa.array(moves, MOVES_TYPE))


def changes_of(table: pa.Table, deleted: Sequence[bool | None], rows: Sequence[int]) -> dict[int, list[Change]]:
    """What rows of a table stand for, by their number. ``deleted``: of all rows."""
    moves = table[MOVES_COLUMN].take(pa.array(rows, pa.int64())).to_pylist()
    return {
        row: [Change(bool(deleted[row]))] if one is None else [Change(**change) for change in one]
        for row, one in zip(rows, moves, strict=True)
    }


def by_key(
    table: pa.Table,
    chosen: npt.NDArray[np.bool_],
    spec: WriteSpec,
    connection: duckdb.DuckDBPyConnection,
    *,
    alone: npt.NDArray[np.bool_],
) -> list[list[int]]:
    """For each key of the chosen rows, all its rows in the order of arrival.

    ``alone``: rows that are wanted even if their key has no other.
    """
    if have_a_key_each(table, chosen, spec.keys):
        return [[row] for row in np.flatnonzero(chosen & alone).tolist()]
    alias = aliases(spec.keys)
    keys = ", ".join(alias.values())
    numbered = by_place(table, spec.keys).append_column("position", pa.array(np.arange(len(table))))
    numbered = numbered.append_column("alone", pa.array(alone))
    wanted = numbered.filter(pa.array(chosen))
    with registered(connection, "lakebed_numbered", numbered), registered(connection, "lakebed_wanted", wanted):
        same = " and ".join(f"n.{alias[key]} = w.{alias[key]}" for key in spec.keys)
        found = connection.sql(
            f"select list(position order by position) as rows from (select n.* from lakebed_numbered n "
            f"semi join lakebed_wanted w on {same}) group by {keys} having count(*) > 1 or bool_or(alone)"
        ).to_arrow_table()
    rows: list[list[int]] = found["rows"].to_pylist()
    return rows


def on_time(rows: Sequence[int], sequences: Mapping[int, Any], newest: Any = None) -> list[int]:
    """The rows of a key, of those in the order of arrival, that are not older than what came before them.

    An older one changes nothing, whether or not the newer one was settled when it came. ``newest``: the highest sequence that
    was settled; all sequences are None without an order.
    """
    found = []
    for row in rows:
        if newest is None or sequences[row] >= newest:
            newest = sequences[row]
            found.append(row)
    return found


def values_in_order(table: pa.Table, column: str | None, rows: Sequence[int]) -> dict[int, Any]:
    """The values of a column that may have dates which Python lacks, in an order that is theirs."""
    if column is None:
        return dict.fromkeys(rows)
    taken = table[column].take(pa.array(rows, pa.int64()))
    if pa.types.is_temporal(taken.type):
        taken = taken.combine_chunks().view(pa.int32() if taken.type.bit_width == 32 else pa.int64())
    return dict(zip(rows, taken.to_pylist(), strict=True))


def have_a_key_each(table: pa.Table, chosen: npt.NDArray[np.bool_], keys: Sequence[str]) -> bool:
    """Whether no other row has the key of a chosen one, as far as this can be told without DuckDB, which takes milliseconds."""
    columns = [table[key] for key in keys]
    if any(pa.types.is_floating(column.type) for column in columns):  # to DuckDB 0.0 is -0.0
        return False
    mask, others = pa.array(chosen), ~chosen
    is_distinct = False
    for column in columns:
        wanted = column.filter(mask).combine_chunks()
        is_distinct = is_distinct or pc.count_distinct(wanted, mode="all").as_py() == len(wanted)
        if others.any():
            others &= np.asarray(pc.is_in(column, value_set=wanted))
    return is_distinct and not others.any()


def folded(changes: pa.Table, spec: WriteSpec, connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """The changes of a batch, as ``prepare`` returns them, where the newest row of each key stands for all its rows."""
    if MOVES_COLUMN not in changes.column_names:
        return changes
    strong = are_strong(changes[MOVES_COLUMN])
    keys = by_key(changes, np.asarray(changes[MOVES_COLUMN].is_valid()), spec, connection, alone=strong)
    if not keys:
        return changes
    deleted = pc.equal(changes[OP_COLUMN], DELETE).to_pylist()
    chosen = sorted(row for rows in keys for row in rows)
    each = changes_of(changes, deleted, chosen)
    sequences = values_in_order(changes, spec.sequence_column, chosen)
    kept, needs_row = np.ones(len(changes), dtype=bool), np.zeros(len(changes), dtype=bool)
    moves, as_new_as = changes[MOVES_COLUMN].to_pylist(), np.arange(len(changes))
    for every in keys:
        rows = on_time(every, sequences)
        kept[every] = False
        newest, needs_one = _newest(rows, each, deleted)
        needs_row[newest], as_new_as[newest] = needs_one, rows[-1]
        kept[rows[: rows.index(newest) + 1]] = True
        for row in rows:
            moves[row] = []
        moves[newest] = _since_whole([change for row in rows for change in each[row]])
    changes = _replaced(changes, MOVES_COLUMN, pa.array(moves, MOVES_TYPE))
    if spec.sequence_column == SEQUENCE_COLUMN:
        changes = _replaced(changes, SEQUENCE_COLUMN, changes[SEQUENCE_COLUMN].take(pa.array(as_new_as)))
    return changes.append_column(NEEDS_ROW_COLUMN, pa.array(needs_row, mask=~needs_row)).filter(pa.array(kept))


def _replaced(table: pa.Table, name: str, column: pa.Array | pa.ChunkedArray) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, column)


def _newest(
    rows: Sequence[int], each: Mapping[int, Sequence[Change]], deleted: Sequence[bool | None]
) -> tuple[int, bool]:
    """The row that stands for all of a key; and whether it is one only if there was a row before."""
    moving = moving_in(change for row in rows for change in each[row])
    if not moving:
        return rows[-1], False
    without, with_row = (CountedKey(rows=before, moving=moving) for before in (0, 1))
    for key in (without, with_row):
        for row in rows:
            key.take(row, each[row], has_values=not deleted[row])
    if with_row.rows and with_row.visible is not None:
        return with_row.visible, not without.rows
    return rows[-1] if with_row.removal is None else with_row.removal, False


def _since_whole(changes: Sequence[Change]) -> list[dict[str, Any]] | None:
    """The changes from the last one on that is whole by itself; None if there are no others."""
    whole = max((at for at, change in enumerate(changes) if change.transaction is None), default=0)
    left = changes[whole:]
    return None if all(change.transaction is None for change in left) else [change.written() for change in left]
