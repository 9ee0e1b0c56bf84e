"""The outcome of resolving change parts, and what of it follows from which of their rows live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from lakebed.log.actions import ChangePart
from lakebed.parts.changes import DELETE, OP_COLUMN, SEQUENCE_COLUMN, UPSERT, WriteSpec
from lakebed.parts.quarantine import IncompleteRow
from lakebed.resolve.counted_tail import DELETED, Crowd
from lakebed.sql import aliases, by_place, registered
from lakebed.storage.engine import connect

_Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """The outcome for some change parts."""

    change_parts: tuple[ChangePart, ...] = ()
    """Oldest first."""
    base_dead: Mapping[str, BitMap64] = field(default_factory=dict)
    """All dead rows of each base part that gains some."""
    tail_dead: Mapping[str, BitMap64] = field(default_factory=dict)
    """The dead rows of each change part."""
    completed: pa.Table | None = None
    """Rows to be added beside them: the table's columns and hidden ones."""
    tombstones: pa.Table | None = None
    """Deletes to be added, for late changes and readers of changes; they may have values of groups of columns."""
    incomplete_rows: Mapping[str, IncompleteRow] = field(default_factory=dict)
    """By the path of the change part, its changes that lack a value they need."""
    keys: Mapping[str, pa.Table] = field(default_factory=dict)
    """The keys of each change part, for a key index; none if only some keys were resolved."""
    rows: int = 0
    """How many changes there were."""
    lost: Mapping[str, int] = field(default_factory=dict)
    """How many changes of each change part lost by their order, against the base or an earlier change part."""
    waiting: Mapping[str, int] = field(default_factory=dict)
    """For each group of columns, how many keys have a new value of it and no row of the owner."""
    counted: frozenset[str] = frozenset()
    """The keys whose rows were counted, since rows moved to them or from them."""
    crowded: Mapping[str, Crowd] = field(default_factory=dict)
    """Of these, those with several rows in a transaction that may go on."""

    def keeps(self, part: ChangePart, spec: WriteSpec) -> bool:
        """Whether a change part is worth having in the base: it has a live row, or deletes that late changes must meet."""
        dead = self.tail_dead.get(part.path)
        return dead is None or len(dead) < part.rows or (spec.sequence_by is not None and part.deletes > 0)


def those_among(tail: pa.Table, among: pa.Table, spec: WriteSpec) -> pa.Table:
    """The rows of a tail with these keys, in its order."""
    numbered = by_place(tail, spec.keys).append_column("position", pa.array(np.arange(len(tail))))
    same = " and ".join(f"t.{name} = a.{name}" for name in aliases(spec.keys).values())
    connection = connect()
    with (
        registered(connection, "lakebed_tail", numbered),
        registered(connection, "lakebed_among", by_place(among, spec.keys)),
    ):
        found = connection.sql(f"select position from lakebed_tail t semi join lakebed_among a on {same}").fetchnumpy()
    return tail.take(pa.array(np.sort(found["position"]), pa.int64()))


def rows_that_die(parts: _Rows, rows: _Rows, change_parts: Sequence[ChangePart]) -> dict[str, BitMap64]:
    """The dead rows of each change part: all but the survivors, of which ``parts`` are the ordinals of their parts."""
    order = np.argsort(parts, kind="stable")
    parts, rows = parts[order], rows[order]
    bounds = np.searchsorted(parts, np.arange(len(change_parts) + 1))
    out = {}
    for ordinal, part in enumerate(change_parts):
        live = rows[bounds[ordinal] : bounds[ordinal + 1]]
        if len(live) < part.rows:
            out[part.path] = BitMap64(range(part.rows)) - BitMap64(live.astype(np.uint64))
    return out


def keys_of_parts(tail: pa.Table, change_parts: Sequence[ChangePart], spec: WriteSpec) -> dict[str, pa.Table]:
    """What a key index keeps of each change part."""
    table = tail.select(list(spec.keys))
    if spec.sequence_column:
        ops = pc.if_else(tail[DELETED], pa.scalar(DELETE), pa.scalar(UPSERT))
        table = table.append_column(SEQUENCE_COLUMN, tail[spec.sequence_column]).append_column(OP_COLUMN, ops)
    out, at = {}, 0
    for part in change_parts:
        out[part.path] = table.slice(at, part.rows)
        at += part.rows
    return out


def by_part_path(counts: _Rows, change_parts: Sequence[ChangePart]) -> dict[str, int]:
    return {part.path: count for part, count in zip(change_parts, counts.tolist(), strict=True) if count}
