"""Values that a source did not send: from which row each is taken.

A change may lack values (Debezium does not send unchanged large values of PostgreSQL). Then the row keeps the value that it
had. That value is found in the order of arrival, so it does not depend on when the tail is settled:

1. The changes of a key are visited in the order of arrival, after the table's own row or delete. A change with a lower
   sequence than the newest so far is late: it changes nothing and gives no value.
2. A missing value is taken from the newest row so far. After a delete, or without a row, it is null.
3. A row may then lack a value of a NOT NULL column, because the source never sent one. It can't be a row of the table. It is
   left out and goes to the quarantine, unless a complete change that came later replaces it anyway. So later changes can only
   reduce what a change part loses, and the same rows are never put into the quarantine twice.

All keys are judged at once, column by column. Columns that the same rows lack are one column here, so the work is that of the
rows times the few ways in which they lack columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.parts.changes import DELETE, OP_COLUMN, UNAVAILABLE_COLUMN, WriteSpec
from lakebed.sql import aliases, by_place, registered

_Places = npt.NDArray[np.int64]
_Mask = npt.NDArray[np.bool_]
_BITS = 62
NOWHERE = -1
"""In place of a row, where no row gives a value."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Changes in the order of arrival."""

    group: _Places
    """Which key it is; equal for rows of one key."""
    rank: _Places
    """The order of sequences, from 0; all equal without a sequence."""
    deleted: _Mask
    pattern: _Places
    """Which of ``patterns`` a row lacks."""
    patterns: Sequence[frozenset[str]]

    @property
    def names(self) -> list[str]:
        """The columns that some row lacks."""
        return sorted(frozenset().union(*self.patterns))

    def lacks(self, names: Collection[str]) -> _Mask:
        """By row, whether it lacks one of these columns. A delete lacks none."""
        return (
            np.array([not each.isdisjoint(names) for each in self.patterns], dtype=bool)[self.pattern] & ~self.deleted
        )

    def lacking_alike(self) -> Iterator[list[str]]:
        """The columns in groups, so that each row lacks all of a group or none."""
        groups: dict[tuple[bool, ...], list[str]] = {}
        for name in self.names:
            groups.setdefault(tuple(name in each for each in self.patterns), []).append(name)
        yield from groups.values()


@dataclass(frozen=True, slots=True)
class Completed:
    """What the newest row of each key is."""

    newest: _Places
    """The row of each key that has one, by group."""
    givers: Mapping[str, _Places]
    """By column that some row lacks, and for each of ``newest``, the row that gives the value. ``NOWHERE`` gives null."""
    unknown: Mapping[str, _Mask]
    """By column, for which of ``newest`` no row says what the value is."""
    left_out: Mapping[int, Sequence[str]]
    """The rows that could not be whole, and the columns that each lacks."""


def completed(rows: Rows, required: frozenset[str], base_is_known: bool, counts: _Mask | None = None) -> Completed:
    """The newest row of each key, and where its missing values come from.

    Args:
        rows: The changes of all keys. If the table's own rows and deletes are known, they come first.
        required: The columns that have a value in every row of the table.
        base_is_known: Whether ``rows`` has all that the table has of these keys.
        counts: Which rows count; all by default.
    """
    chains = Chains.of(rows, counts)
    alike = list(rows.lacking_alike())
    left_out: dict[int, list[str]] = {}
    while True:  # what follows a row that is left out is judged again: one round for each such row of a key
        void = {
            name: is_void
            for names in alike
            if (needed := required.intersection(names))
            for is_void in [chains.is_void(names, base_is_known)]
            for name in needed
        }
        places = np.flatnonzero(np.logical_or.reduce(list(void.values()))) if void else np.zeros(0, dtype=np.int64)
        if not len(places):
            break
        first = places[np.unique(chains.start[places], return_index=True)[1]]
        for place in first.tolist():
            left_out[int(chains.order[place])] = sorted(name for name in void if void[name][place])
        counts = chains.counts.copy()
        counts[first] = False
        chains = chains.counting(counts)
    newest = chains.newest()
    givers: dict[str, _Places] = {}
    unknown: dict[str, _Mask] = {}
    for names in alike:
        giver, lacks = chains.giver(names)[newest], chains.lacks(names)[newest]
        is_null = lacks & ((giver < 0) | rows.deleted[chains.order[giver]])
        givers |= dict.fromkeys(names, np.where(is_null, NOWHERE, chains.order[np.where(lacks, giver, newest)]))
        unknown |= dict.fromkeys(names, lacks & (giver < 0))
    kept = {row: left_out[row] for row in chains.not_replaced(left_out)}
    return Completed(chains.order[newest], givers, unknown, kept)


@dataclass(frozen=True, slots=True)
class Chains:
    """The rows of each key together, in the order of arrival. Arrays are by place in this order.

    A *chain* are the rows of a key that were the newest when they came.
    """

    rows: Rows
    order: _Places
    """The number of each row."""
    start: _Places
    """The place of the first row of the same key."""
    counts: _Mask
    is_chained: _Mask

    @staticmethod
    def of(rows: Rows, counts: _Mask | None = None) -> Chains:
        order = np.argsort(rows.group, kind="stable")
        group = rows.group[order]
        is_first = np.ones(len(group), dtype=bool)
        is_first[1:] = group[1:] != group[:-1]
        start = np.maximum.accumulate(np.where(is_first, np.arange(len(group)), 0))
        every = np.ones(len(group), dtype=bool)
        return Chains(rows, order, start, every, every).counting(every if counts is None else counts[order])

    def counting(self, counts: _Mask) -> Chains:
        """The chains if the rows at these places count, and the others don't."""
        ranks = np.where(counts, self.rows.rank[self.order], NOWHERE)
        ranks = ranks + self.start * (int(self.rows.rank.max(initial=0)) + 2)  # each key above the one before it
        is_chained = counts & (ranks >= np.maximum.accumulate(ranks))
        return replace(self, counts=counts, is_chained=is_chained)

    def lacks(self, names: Collection[str]) -> _Mask:
        return self.rows.lacks(names)[self.order]

    def newest(self) -> _Places:
        """The last place of each chain."""
        chained = np.flatnonzero(self.is_chained)
        starts = self.start[chained]
        return chained[np.flatnonzero(np.diff(starts, append=NOWHERE))]

    def giver(self, names: Collection[str]) -> _Places:
        """For each place, the last one before it in the chain that says what these columns are; ``NOWHERE`` without one."""
        says = self.is_chained & ~self.lacks(names)
        last = np.maximum.accumulate(np.where(says, np.arange(len(says)), NOWHERE))
        before = np.concatenate([[NOWHERE], last[:-1]])
        return np.where(before >= self.start, before, NOWHERE)

    def is_void(self, names: Collection[str], base_is_known: bool) -> _Mask:
        """For each place in a chain, whether it lacks these columns and gets null."""
        giver = self.giver(names)
        is_null = np.where(giver < 0, base_is_known, self.rows.deleted[self.order[giver]])
        return self.is_chained & self.lacks(names) & is_null

    def not_replaced(self, left_out: Collection[int]) -> list[int]:
        """Those of the rows that no whole row has replaced which came later."""
        if not left_out:
            return []
        rank = self.rows.rank
        place = np.empty(len(self.order), dtype=np.int64)
        place[self.order] = np.arange(len(self.order))
        whole = np.flatnonzero(self.is_chained & ~self.lacks(self.rows.names))
        last = dict(zip(self.start[whole].tolist(), whole.tolist(), strict=True))
        kept = []
        for row in left_out:
            by = last.get(int(self.start[place[row]]), NOWHERE)
            if by < place[row] or rank[self.order[by]] < rank[row]:
                kept.append(row)
        return kept


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
    deleted = pc.equal(changes[OP_COLUMN], DELETE).fill_null(False).to_numpy()
    return Rows(found["r0"].to_numpy(), rank, deleted, *patterns_of(changes[UNAVAILABLE_COLUMN]))


def patterns_of(unsent: pa.ChunkedArray) -> tuple[_Places, list[frozenset[str]]]:
    """Lists of names, of which few are different: by row the number of its list, and the lists."""
    lists = unsent.combine_chunks()
    listed = pc.list_flatten(lists).dictionary_encode()
    codes, names = listed.indices.to_numpy(), listed.dictionary.to_pylist()
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    full = np.flatnonzero(lengths)
    starts = (np.cumsum(lengths) - lengths)[full]
    pattern, patterns = np.zeros(len(lists), dtype=np.int64), [frozenset[str]()]
    for first in range(0, len(names), _BITS):  # so many names of a list are a number, with a bit for each
        some = names[first : first + _BITS]
        bits = np.where((codes >= first) & (codes < first + len(some)), np.int64(1) << (codes - first) % _BITS, 0)
        found = np.zeros(len(lists), dtype=np.int64)
        found[full] = np.bitwise_or.reduceat(bits, starts)
        values, number = np.unique(found, return_inverse=True)
        lacking = [frozenset(name for at, name in enumerate(some) if value >> at & 1) for value in values.tolist()]
        pairs, pattern = np.unique(pattern * len(lacking) + number, return_inverse=True)
        patterns = [patterns[pair // len(lacking)] | lacking[pair % len(lacking)] for pair in pairs.tolist()]
    return pattern, patterns


def required_columns(spec: WriteSpec) -> frozenset[str]:
    """Columns that have a value in every row."""
    return frozenset(field.name for field in spec.schema if not field.nullable)
