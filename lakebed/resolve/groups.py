"""Resolves changes of a table with groups of columns: each group of a row has a newest change of its own.

What groups mean is in ``lakebed.column_groups``. The *state* of a key has, for each group, the values of its newest change. It is

- a live row, if the row exists;
- a dead row whose operation is a delete, with the values of the groups, if it does not. Look-ups find it as they find tombstones,
  and no reader sees it.

1. Read all rows of the change parts, and the states that the base has of their keys. What is live in the base says something of
   every group, and is later than all deletes that the base remembers.
2. Find the newest change of each key and group (``resolve.unavailable_values``, which also says whence a change that lacks values
   within its group has them).
3. A whole change that is the newest of all groups that have one is the state as it is. Else the state is composed, and written:
   what is written is among the change rows of the settle, and a change that lacks columns is among those of no other version.

States only gain: a later one has, for each group, values at least as new. So of several that the base remembers each group takes
its newest, and it does no harm that the older ones stay. Their versions say which is the last one (``_versions``).
"""

from __future__ import annotations

import decimal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from lakebed.column_groups import Aggregate
from lakebed.log.actions import ChangePart, Part
from lakebed.parts.changes import DELETE, HIDDEN_TYPES, OP_COLUMN, UNAVAILABLE_COLUMN, UPSERT, VERSION_COLUMN, WriteSpec
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.parts.fills import unavailable_names
from lakebed.parts.quarantine import IncompleteRow
from lakebed.resolve.counted_tail import DELETED
from lakebed.resolve.locate import KeyLocator, lookup_schema
from lakebed.resolve.resolution import Resolution, by_part_path, keys_of_parts, rows_that_die
from lakebed.resolve.unavailable_values import NOWHERE, Rows, completed, patterns_of, required_columns
from lakebed.resolve.whole_rows import are_in, as_rows, indices_by_part, row_schema, rows_of_part, rows_of_tail
from lakebed.schema.exact_cast import cast_exactly
from lakebed.sql import aliases, by_place, registered
from lakebed.storage.engine import connect
from lakebed.storage.part_storage import PartStorage

_Places = npt.NDArray[np.int64]
_Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Group:
    """What one stream decides of a row."""

    columns: tuple[str, ...]
    sequence: str
    """The column of a change's row that orders the group, and has a value if the change says something of it."""
    creates: bool = False
    function: Aggregate = "last"
    """Which of the changes count: for ``sum`` all, for the others the last in the order."""

    @property
    def rank(self) -> str:
        """What ranks rows by the sequence ``s``; the highest rank wins. A row without one is the oldest."""
        if self.function == "first":  # of equal ones the last state, or else the first to come
            return "row_number() over (order by {s} desc nulls last, if(position < {known}, position, -position))"
        return f"dense_rank() over (order by {{s}} {'desc' if self.function == 'min' else 'asc'} nulls first)"


@dataclass(frozen=True, slots=True)
class _Sum:
    """What a column comes to, by key."""

    values: pa.Array
    terms: _Places
    """How many values were added."""
    last: _Places
    """The last row that has one."""

    @staticmethod
    def of(column: pa.ChunkedArray, key: _Places, known: int, count: int, name: str) -> _Sum:
        """Adds the last value among the first ``known`` rows, which are states, and those of all others."""
        has_value = np.flatnonzero(np.asarray(column.is_valid()))
        states = has_value[has_value < known]
        last_state = _placed(states, key[states], count)
        chosen = np.sort(np.concatenate([last_state[last_state != NOWHERE], has_value[has_value >= known]]))
        with registered(connection := connect(), "lakebed_terms", _terms(column, key, chosen)) as terms:
            query = f"select key, {_bounded('sum(value)', column.type)} as total from {terms} group by key"
            found = connection.sql(query).to_arrow_table()
        places = _placed(np.arange(len(found)), found["key"].to_numpy(), count)
        totals = cast_exactly(found["total"], column.type, name).combine_chunks()
        return _Sum(
            totals.take(pa.array(places, mask=places == NOWHERE)),
            np.bincount(key[chosen], minlength=count),
            _placed(chosen, key[chosen], count),
        )


def _bounded(total: str, kind: pa.DataType) -> str:
    """A sum that stays at the bound of its type: an error would keep every reader from the table for the sake of one row."""
    if pa.types.is_floating(kind):
        return total
    bound = 2**63 - 1 if pa.types.is_integer(kind) else decimal.Decimal(10**kind.precision - 1).scaleb(-kind.scale)
    return f"greatest(least({total}, {bound}), -{bound})"


def _terms(column: pa.ChunkedArray, key: _Places, chosen: _Places) -> pa.Table:
    return pa.table({"key": key[chosen], "value": column.take(pa.array(chosen))})


@dataclass(frozen=True, slots=True)
class _Newest:
    """The newest change of each key and group. Rows are by number, in the order of arrival; ``NOWHERE`` where there is none."""

    groups: Sequence[_Group]
    """The owner's first."""
    rows: Sequence[_Places]
    """For each group the row of each key."""
    givers: Mapping[str, _Places]
    """For each column the row that gives a key's value."""
    exists: _Mask
    """Which keys have a row."""
    left_out: Mapping[int, Sequence[str]]
    """Rows that lack values that they need, and which."""
    sums: Mapping[str, _Sum]
    """By column."""

    @property
    def last(self) -> _Places:
        """Of each key, the last of the newest changes of its groups."""
        last: _Places = np.max(self.rows, axis=0)
        return last

    @property
    def is_one(self) -> _Mask:
        """Which keys have all their values from one row."""
        last, is_one = self.last, np.ones(len(self.exists), dtype=bool)
        for row in (*self.rows, *self.givers.values()):
            is_one &= (row == last) | (row == NOWHERE)
        for each in self.sums.values():
            is_one &= each.terms <= 1
        return is_one

    def values(self, rows: pa.Table, keys: _Places, spec: WriteSpec) -> dict[str, pa.ChunkedArray]:
        """The columns of the states of some keys."""
        last = self.last[keys]
        columns = {name: rows[name].take(pa.array(last)) for name in spec.keys}
        for name, giver in self.givers.items():
            chosen = giver[keys]
            columns[name] = rows[name].take(pa.array(chosen, mask=chosen == NOWHERE))
        for name, each in self.sums.items():
            columns[name] = pa.chunked_array([each.values.take(pa.array(keys))])
        return columns


def resolve_groups(
    base: Mapping[str, Part],
    change_parts: Sequence[ChangePart],
    spec: WriteSpec,
    storage: PartStorage,
    deletion_vectors: DeletionVectorCache,
    locator: KeyLocator,
    *,
    among: pa.Table | None = None,
) -> Resolution:
    """``resolve`` for a table with groups."""
    met = changes_of_groups(base, change_parts, spec, storage, deletion_vectors, locator, among=among)
    tail, of_part, of_row, found = met.tail, met.of_part, met.of_row, met.found
    rows, key, newest, known = met.rows, met.key, met.newest, len(met.found.rows)
    last, is_deleted = newest.last, _is_delete(rows)
    is_whole = np.asarray(pc.fill_null(pc.list_value_length(rows[UNAVAILABLE_COLUMN]), 0)) == 0
    version, is_later = _versions(met, change_parts)
    changes, stays = last >= known, newest.is_one & (is_deleted[last] != newest.exists) & is_whole[last] & is_later
    survives = last[changes & stays & newest.exists] - known
    composed = changes & ~stays
    live_of_changed = changes[found.live_key]
    base_dead = {
        path: deletion_vectors.of(base[path]) | BitMap64(found.live_row[at[live_of_changed[at]]].astype(np.uint64))
        for path, at in indices_by_part(found.live_part).items()
        if live_of_changed[at].any()
    }
    whole = _composed(newest, rows, np.flatnonzero(composed & newest.exists), spec, is_live=True)
    waiting = np.flatnonzero(composed & ~newest.exists)
    tombstones = _composed(newest, rows, waiting, spec, is_live=False)
    if tombstones is not None:
        tombstones = tombstones.append_column(VERSION_COLUMN, pa.array(version[waiting], pa.int64()))
    if whole is not None and spec.partition_by:
        whole = whole.append_column(VERSION_COLUMN, pa.array(version[composed & newest.exists], pa.int64()))
    return Resolution(
        change_parts=tuple(change_parts),
        base_dead=base_dead,
        tail_dead=rows_that_die(of_part[survives], of_row[survives], change_parts),
        completed=whole,
        tombstones=tombstones,
        incomplete_rows=_incomplete(newest, rows, known, of_part, change_parts),
        keys=keys_of_parts(tail.append_column(DELETED, pa.array(is_deleted[known:])), change_parts, spec)
        if among is None
        else {},
        rows=len(tail),
        lost=_lost(newest, rows, key, known, of_part, change_parts),
        waiting={
            group.name: count
            for group, of_key in zip(spec.groups, newest.rows[1 : 1 + len(spec.groups)], strict=True)
            if (count := int(np.count_nonzero((of_key >= known) & ~newest.exists)))
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesOfGroups:
    """Changes, what the base has of their keys, and what is newest."""

    tail: pa.Table
    of_part: _Places
    """Of each change the ordinal of its part."""
    of_row: _Places
    found: States
    rows: pa.Table
    """Those of ``found``, then those of ``tail``."""
    key: _Places
    """The number of the key of each row."""
    newest: _Newest


def changes_of_groups(
    base: Mapping[str, Part],
    change_parts: Sequence[ChangePart],
    spec: WriteSpec,
    storage: PartStorage,
    deletion_vectors: DeletionVectorCache,
    locator: KeyLocator,
    *,
    among: pa.Table | None,
) -> ChangesOfGroups:
    """Steps 1 and 2; ``among``: of these keys alone."""
    schema = row_schema(spec)
    tail, of_part, of_row = rows_of_tail(change_parts, schema, spec, storage, keys=among)
    key, first = numbered_keys(tail, spec)
    keys = tail.select(list(spec.keys)).take(pa.array(first))
    found = States.of_base(keys, base, spec, storage, deletion_vectors, locator)
    rows, key = pa.concat_tables([found.rows, as_rows(tail, schema)]), np.concatenate([found.key, key])
    is_live = np.concatenate([found.is_live, np.zeros(len(tail), dtype=bool)])
    newest = newest_of_groups(rows, key, spec, is_live=is_live, known=len(found.rows))
    return ChangesOfGroups(tail=tail, of_part=of_part, of_row=of_row, found=found, rows=rows, key=key, newest=newest)


def layers_of_groups(changes: pa.Table, spec: WriteSpec, connection: duckdb.DuckDBPyConnection) -> Iterable[pa.Table]:
    """The changes of a batch, as ``prepare`` returns them, with one row a key for the newest of each of its groups.

    If a change lacks values within a group, an earlier one may give them. Which, only the table can decide; so all rows of
    its key are kept, one a layer, oldest first.
    """
    key, first = numbered_keys(changes, spec, connection)
    if len(first) == len(changes):
        yield changes
        return
    rows = changes
    if UNAVAILABLE_COLUMN not in rows.column_names:
        rows = rows.append_column(UNAVAILABLE_COLUMN, pa.nulls(len(rows), HIDDEN_TYPES[UNAVAILABLE_COLUMN]))
    newest = newest_of_groups(rows, key, spec, is_live=np.zeros(len(rows), dtype=bool), known=0)
    apart = np.zeros(len(first), dtype=bool)
    for group, lacks in _lacking(rows, newest.groups):
        apart[key[lacks & np.asarray(rows[group.sequence].is_valid())]] = True
    alone = newest.is_one & ~apart
    kept = np.sort(newest.last[alone])
    composed = _composed_change(newest, rows, np.flatnonzero(~apart & ~alone), spec)
    yield pa.concat_tables([rows.take(pa.array(kept)), composed.select(rows.column_names)])
    several = np.flatnonzero(apart[key])
    order = several[np.argsort(key[several], kind="stable")]
    depth = np.arange(len(order)) - np.searchsorted(key[order], key[order])
    for layer in range(int(depth.max(initial=NOWHERE)) + 1):
        yield rows.take(pa.array(np.sort(order[depth == layer])))


def _groups_of(spec: WriteSpec) -> list[_Group]:
    """The owner, the groups, and a group for each column whose value comes from all changes."""
    alone = {one.column: one for one in spec.aggregates if one.counts_all}
    grouped = {name for group in spec.groups for name in group.columns}
    order = str(spec.sequence_column)
    own = [name for name in spec.schema.names if name not in {*grouped, *spec.keys, *alone}]
    groups = [_Group(tuple(dict.fromkeys([*own, order])), order)]
    for group in spec.groups:
        columns = tuple(name for name in group.columns if name not in alone)
        groups.append(_Group(columns, group.sequence_by, group.creates))
    for name, one in alone.items():
        columns = (name,) if one.order_column is None else (name, one.order_column)
        groups.append(_Group(columns, columns[-1], function=one.function))
    return groups


def numbered_keys(
    rows: pa.Table, spec: WriteSpec, connection: duckdb.DuckDBPyConnection | None = None
) -> tuple[_Places, _Places]:
    """A number for the key of each row, and the first row of each key."""
    connection = connection or connect()
    numbered = by_place(rows, spec.keys).append_column("position", pa.array(np.arange(len(rows))))
    listed = ", ".join(aliases(spec.keys).values())
    with registered(connection, "lakebed_keys", numbered) as name:
        found = connection.sql(f"select dense_rank() over (order by {listed}) - 1 as k from {name} order by position")
        key: _Places = found.to_arrow_table()["k"].to_numpy()
    return key, np.unique(key, return_index=True)[1]


def _ranks(rows: pa.Table, groups: Sequence[_Group], known: int) -> list[_Places]:
    """For each group the order of the rows' sequences, from 0."""
    connection, names = connect(), list(dict.fromkeys(group.sequence for group in groups))
    numbered = by_place(rows, names).append_column("position", pa.array(np.arange(len(rows))))
    alias = aliases(names)
    ranks = [group.rank.format(s=alias[group.sequence], known=known) for group in groups]
    listed = ", ".join(f"{rank} as r{at}" for at, rank in enumerate(ranks))
    with registered(connection, "lakebed_ranked", numbered) as name:
        found = connection.sql(f"select {listed} from {name} order by position").to_arrow_table()
    return [column.to_numpy() for column in found.columns]


def newest_of_groups(rows: pa.Table, key: _Places, spec: WriteSpec, *, is_live: _Mask, known: int) -> _Newest:
    """The newest change of each key and group.

    Args:
        rows: States, then changes, each in the order of arrival.
        key: The number of the key of each row.
        spec: The table's.
        is_live: Which rows are live in the base, so say something of every group.
        known: How many of the rows are states.
    """
    groups, deleted, nothing = _groups_of(spec), _is_delete(rows), np.zeros(len(rows), dtype=bool)
    pattern, patterns = patterns_of(rows[UNAVAILABLE_COLUMN])
    count = int(key.max(initial=NOWHERE)) + 1
    found, givers, left_out = list[_Places](), dict[str, _Places](), dict[int, Sequence[str]]()
    sums: dict[str, _Sum] = {}
    for group, rank in zip(groups, _ranks(rows, groups, known), strict=True):
        if group.function == "sum":
            name = group.sequence
            sums[name] = _Sum.of(rows[name], key, known, count, name)
            found.append(sums[name].last)
            continue
        owns = group is groups[0]
        own = frozenset(group.columns)
        each = Rows(key, rank, deleted if owns else nothing, pattern, [own & lacked for lacked in patterns])
        # Where all changes decide, a state says something only if it has a value; perhaps of before the column was aggregated.
        has_state = is_live if group.function == "last" else is_live & np.asarray(rows[group.columns[0]].is_valid())
        says = has_state | np.asarray(rows[group.sequence].is_valid())
        required = required_columns(spec) & own if owns else frozenset[str]()
        done = completed(each, required, base_is_known=True, counts=says)
        of_group = key[done.newest]
        newest = _placed(done.newest, of_group, count)
        found.append(newest)
        left_out |= done.left_out
        for name in group.columns:
            givers[name] = _placed(done.givers[name], of_group, count) if name in done.givers else newest
            if owns and name != group.sequence:  # a delete may have the values of the row that it deletes
                givers[name] = np.where((newest == NOWHERE) | deleted[newest], NOWHERE, givers[name])
    owner = found[0]
    exists = (owner != NOWHERE) & ~deleted[owner]
    for group, of_key in zip(groups, found, strict=True):
        if group.creates:
            exists |= (owner == NOWHERE) & (of_key != NOWHERE)
    return _Newest(groups, found, givers, exists, left_out, sums)


def _placed(values: _Places, keys: _Places, count: int) -> _Places:
    out = np.full(count, NOWHERE, dtype=np.int64)
    out[keys] = values
    return out


def _is_delete(rows: pa.Table) -> _Mask:
    return np.asarray(pc.fill_null(pc.equal(rows[OP_COLUMN], DELETE), False))


def _lacking(rows: pa.Table, groups: Sequence[_Group]) -> Iterable[tuple[_Group, _Mask]]:
    """For each group, which rows lack one of its columns."""
    pattern, patterns = patterns_of(rows[UNAVAILABLE_COLUMN])
    for group in groups:
        yield group, np.array([not each.isdisjoint(group.columns) for each in patterns], dtype=bool)[pattern]


def _composed(newest: _Newest, rows: pa.Table, keys: _Places, spec: WriteSpec, *, is_live: bool) -> pa.Table | None:
    """The states of some keys, as rows for a part; None without any."""
    if not len(keys):
        return None
    columns = newest.values(rows, keys, spec)
    columns[OP_COLUMN] = pa.repeat(pa.scalar(UPSERT if is_live else DELETE), len(keys))
    return pa.table({name: columns[name] for name in rows.column_names if name != UNAVAILABLE_COLUMN})


def _composed_change(newest: _Newest, rows: pa.Table, keys: _Places, spec: WriteSpec) -> pa.Table:
    """The changes that say of each group what its newest change says."""
    columns: dict[str, pa.ChunkedArray | pa.Array] = dict(newest.values(rows, keys, spec))
    owner = newest.rows[0][keys]
    deletes = _is_delete(rows)[owner]  # where none says anything of the owner, none is a delete
    columns[OP_COLUMN] = pc.if_else(pa.array(deletes), pa.scalar(DELETE), pa.scalar(UPSERT))
    lacks = {
        name: of_key[keys] == NOWHERE
        for group, of_key in zip(newest.groups, newest.rows, strict=True)
        for name in group.columns
    }
    columns[UNAVAILABLE_COLUMN] = unavailable_names(lacks, ~deletes)
    return pa.table(columns)


def _versions(met: ChangesOfGroups, change_parts: Sequence[ChangePart]) -> tuple[_Places, _Mask]:
    """Of each key the version of its state if that is composed, and whether its last row has one that will do.

    A state of no row is newer than all that the base remembers then of its key, also where a version has it in several parts.
    """
    rows, key, last = met.rows, met.key, met.newest.last
    version = np.concatenate([met.found.versions, np.array([part.version for part in change_parts])[met.of_part]])
    says = [np.asarray(rows[group.sequence].is_valid()) for group in met.newest.groups[1:]]
    remembered = _is_delete(rows) & np.logical_or.reduce(says)  # of others it does not matter which is newer
    others = np.flatnonzero(remembered & (last[key] != np.arange(len(rows))) & ~met.newest.exists[key])
    before = np.full(len(last), NOWHERE, dtype=np.int64)
    np.maximum.at(before, key[others], version[others])
    return np.maximum(version[last] + remembered[last], before + 1), before < version[last]


def _incomplete(
    newest: _Newest, rows: pa.Table, known: int, of_part: _Places, change_parts: Sequence[ChangePart]
) -> dict[str, IncompleteRow]:
    by_part: dict[str, list[int]] = {}
    for row in sorted(newest.left_out):
        by_part.setdefault(change_parts[of_part[row - known]].path, []).append(row)
    return {
        path: IncompleteRow(rows.take(pa.array(at)), [newest.left_out[row] for row in at])
        for path, at in by_part.items()
    }


def _lost(
    newest: _Newest, rows: pa.Table, key: _Places, known: int, of_part: _Places, change_parts: Sequence[ChangePart]
) -> dict[str, int]:
    """How many changes of each part were late in all groups that they say something of."""
    late = np.ones(len(rows), dtype=bool)
    for group, of_key in zip(newest.groups, newest.rows, strict=True):
        says = np.asarray(rows[group.sequence].is_valid())
        late &= ~says | (of_key[key] < np.arange(len(rows)))
    late[list(newest.left_out)] = False
    return by_part_path(np.bincount(of_part[late[known:]], minlength=len(change_parts)), change_parts)


@dataclass(frozen=True, slots=True)
class States:
    """What the base has of some keys: deletes that it remembers, oldest first, then live rows."""

    rows: pa.Table
    key: _Places
    is_live: _Mask
    live_part: pa.ChunkedArray
    """Of each live row its part."""
    live_row: _Places
    live_key: _Places
    versions: _Places
    """Which version brought each row."""

    @staticmethod
    def of_base(
        keys: pa.Table,
        base: Mapping[str, Part],
        spec: WriteSpec,
        storage: PartStorage,
        deletion_vectors: DeletionVectorCache,
        locator: KeyLocator,
    ) -> States:
        schema = row_schema(spec)
        read = schema.append(pa.field(VERSION_COLUMN, HIDDEN_TYPES[VERSION_COLUMN]))
        hits = locator.lookup(base, keys) if base and len(keys) else lookup_schema(spec).empty_table()
        places, probes = hits["row"].to_numpy(), hits["probe"].to_numpy()
        is_delete = _is_delete(hits)
        pieces, keys_of, live, versions, live_hits = [schema.empty_table()], [], [], [], []
        for path, at in indices_by_part(hits["part"]).items():
            part = base[path]
            is_live = ~are_in(deletion_vectors.of(part), places[at])
            wanted = is_live | is_delete[at]
            if not wanted.any():
                continue
            found = rows_of_part(part, places[at[wanted]], read, storage)
            ops = pc.if_else(pa.array(is_live[wanted]), pa.scalar(UPSERT), pa.scalar(DELETE))
            versions.append(pc.fill_null(found[VERSION_COLUMN], part.max_block).to_numpy())
            found = found.drop_columns([VERSION_COLUMN, OP_COLUMN]).append_column(OP_COLUMN, ops)
            pieces.append(as_rows(found, schema))
            keys_of.append(probes[at[wanted]])
            live.append(is_live[wanted])
            live_hits.append(at[is_live])
        nothing = np.zeros(0, dtype=np.int64)
        is_live = np.concatenate([np.zeros(0, dtype=bool), *live])
        brought = np.concatenate([nothing, *versions])
        order = np.lexsort([brought, is_live])
        chosen = np.concatenate([nothing, *live_hits])
        return States(
            rows=pa.concat_tables(pieces).take(pa.array(order)),
            key=np.concatenate([nothing, *keys_of])[order],
            is_live=is_live[order],
            live_part=hits["part"].take(pa.array(chosen)),
            live_row=places[chosen],
            live_key=probes[chosen],
            versions=brought[order],
        )
