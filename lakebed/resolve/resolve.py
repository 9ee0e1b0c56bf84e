"""Resolves the tail against the base: which rows die, and where. No other place decides which change is newest.

Settling commits a resolution, and the merge-on-read view applies the same one without committing it. So both give the same
rows by construction (invariant B2), and a view of a settled table costs no more than a plain read.

Invariants: after it, a key is live at most once (B1). It finds positions; no row is rewritten.

1. Read key, operation, sequence and position of every row of the given change parts, the oldest of the tail first.
2. Keep the newest change of each key: the one with the highest sequence, else the one of the last part. The others are dead in
   their parts.
3. Look the keys up in the base. Live rows with these keys die. With ``sequence_by`` there is an exception: if a live row or a
   settled delete is newer than the change, the change is dead and the base stays.
4. Deletes are dead rows of their own part. They stay there as tombstones, which step 3 finds for late changes.
5. Changes that are part of a move to another key are counted (``resolve.counted_tail``), since the newest of them need not be the
   one that counts.
6. A newest change that lacks values that its source did not send is completed from what was newest when it came (see
   ``resolve.unavailable_values``). The completed row goes into a part of its own, and the incomplete one is dead.

Keys of the whole tail are in memory at once, as Arrow: some 100 bytes a row with an integer key and sequence (8 bytes each),
on top of 100 MB (``benchmarks/long_tail.py``). Longer keys add their length a few times over. Settling takes the tail in
pieces of bounded size, and a view takes all of it. So settle a tail of tens of millions of rows before you read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from lakebed.log.actions import ChangePart, Part
from lakebed.parts.changes import (
    DELETE,
    OP_COLUMN,
    SEQUENCE_COLUMN,
    UNAVAILABLE_COLUMN,
    UPSERT,
    VERSION_COLUMN,
    WriteSpec,
)
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.parts.quarantine import IncompleteRow
from lakebed.resolve.counted_tail import (
    DELETED,
    INCOMPLETE,
    NONE_CROWDED,
    PART,
    ROW,
    CountedOutcome,
    CrowdedKeys,
    counted_outcomes,
    read_tail,
)
from lakebed.resolve.first_rows import resolve_first
from lakebed.resolve.groups import resolve_groups
from lakebed.resolve.locate import KeyLocator
from lakebed.resolve.resolution import Resolution, by_part_path, keys_of_parts, rows_that_die, those_among
from lakebed.resolve.unavailable_values import NOWHERE, Rows, completed, patterns_of, ranked, required_columns
from lakebed.resolve.whole_rows import are_in, as_rows, indices_by_part, row_schema, rows_of_part, rows_of_tail
from lakebed.schema.nested import nullable
from lakebed.sql import aliases, by_place, registered
from lakebed.storage.engine import connect
from lakebed.storage.part_storage import PartStorage

_Rows = npt.NDArray[np.int64]


def resolve(
    base: Mapping[str, Part],
    change_parts: Sequence[ChangePart],
    spec: WriteSpec,
    storage: PartStorage,
    deletion_vectors: DeletionVectorCache,
    locator: KeyLocator,
    *,
    crowded: CrowdedKeys = NONE_CROWDED,
    among: pa.Table | None = None,
) -> Resolution:
    """The resolution of change parts (in order, oldest first) against the base. Reads parts; changes nothing.

    ``crowded``: what the log says of keys with several rows. ``among``: a table of keys; what the resolution says of others means
    nothing then.
    """
    if not change_parts:
        return Resolution()
    if spec.keeps_first:
        return resolve_first(base, change_parts, spec, storage, deletion_vectors, locator, among=among)
    if spec.resolves_by_group:
        return resolve_groups(base, change_parts, spec, storage, deletion_vectors, locator, among=among)
    found = newest_changes(base, change_parts, spec, storage, deletion_vectors, locator, crowded=crowded, among=among)
    newest, outcomes, late = found.newest, found.outcomes, found.late
    survives = ~late & (newest[DELETED].to_numpy() == 0)
    completed: pa.Table | None = None
    incomplete_rows: Mapping[str, IncompleteRow] = {}
    anew = {one.probe: one for one in outcomes if one.is_written_anew and not late[one.probe]}
    if anew or any(part.incomplete for part in change_parts):
        incomplete = survives & newest[INCOMPLETE].to_numpy()
        incomplete[list(anew)] = True
        completed, incomplete_rows = _complete(
            np.flatnonzero(incomplete),
            newest,
            change_parts,
            base,
            found.hits,
            spec,
            storage=storage,
            deletion_vectors=deletion_vectors,
            anew=_Anew.of(anew.values(), found.tail),
            of_all_keys=among is None,
        )
        survives &= ~incomplete
    tail_dead = rows_that_die(newest[PART].to_numpy()[survives], newest[ROW].to_numpy()[survives], change_parts)
    base_dead = {
        path: deletion_vectors.of(base[path]) | BitMap64(rows.astype(np.uint64)) for path, rows in found.dying.items()
    }
    lost = found.lost + np.bincount(newest[PART].to_numpy()[late], minlength=len(found.lost))
    return Resolution(
        change_parts=tuple(change_parts),
        base_dead=base_dead,
        tail_dead=tail_dead,
        completed=completed,
        tombstones=_tombstones(found.tail, outcomes, change_parts, spec),
        incomplete_rows=incomplete_rows,
        keys=keys_of_parts(found.tail, change_parts, spec) if among is None else {},
        rows=len(found.tail),
        lost=by_part_path(lost, change_parts),
        counted=frozenset(one.key for one in outcomes),
        crowded={one.key: one.crowd for one in outcomes if one.crowd is not None},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestChanges:
    """The newest change of each key of some change parts, and what it meets in the base."""

    tail: pa.Table
    """All changes (``read_tail``)."""
    newest: pa.Table
    """One of each key."""
    hits: pa.Table | None
    """The rows of the base with their keys."""
    dying: Mapping[str, _Rows]
    """Those that die, by part."""
    late: npt.NDArray[np.bool_]
    """Which of the newest changes are older than what the base has, so that it stays."""
    lost: _Rows
    """How many changes of each change part lost against one of an earlier part."""
    outcomes: Sequence[CountedOutcome]


def newest_changes(
    base: Mapping[str, Part],
    change_parts: Sequence[ChangePart],
    spec: WriteSpec,
    storage: PartStorage,
    deletion_vectors: DeletionVectorCache,
    locator: KeyLocator,
    *,
    crowded: CrowdedKeys = NONE_CROWDED,
    among: pa.Table | None = None,
) -> NewestChanges:
    """Steps 1 to 3 and 5 of ``resolve``, of a table in which one change of each key counts."""
    has_moves = bool(crowded.keys) or any(part.moves for part in change_parts)
    tail = read_tail(change_parts, spec, storage, with_moves=has_moves)
    if among is not None:
        tail = those_among(tail, among, spec)
    places, lost = _newest(tail, spec, len(change_parts))
    newest = tail if len(places) == len(tail) else tail.take(pa.array(places))
    hits = locator.lookup(base, newest.select(list(spec.keys))) if base and len(newest) else None
    outcomes: list[CountedOutcome] = []
    if has_moves:
        outcomes = counted_outcomes(tail, places, hits, base, spec, deletion_vectors=deletion_vectors, crowded=crowded)
        newest = _counted(tail, places, outcomes)
    dying: dict[str, _Rows] = {}
    late: npt.NDArray[np.bool_] = np.zeros(len(newest), dtype=bool)
    if hits is not None and len(hits):
        dying, late = _dying_rows(hits, newest, base, spec, deletion_vectors)
    return NewestChanges(tail=tail, newest=newest, hits=hits, dying=dying, late=late, lost=lost, outcomes=outcomes)


def _counted(tail: pa.Table, places: _Rows, outcomes: Sequence[CountedOutcome]) -> pa.Table:
    """The newest changes, where those that are counted are what they come to."""
    chosen, gone = places.copy(), dict[int, bool]()
    for one in outcomes:
        chosen[one.probe] = places[one.probe] if one.visible is None else one.visible
        gone[one.probe] = not one.is_live or one.is_written_anew
    newest = tail.take(pa.array(chosen))
    deleted = newest[DELETED].to_numpy().copy()
    deleted[list(gone)] = list(gone.values())
    return newest.set_column(newest.column_names.index(DELETED), DELETED, pa.array(deleted))


def _newest(tail: pa.Table, spec: WriteSpec, parts: int) -> tuple[_Rows, _Rows]:
    """The numbers of one row a key, and how many rows of each part lost against one of an earlier part.

    Within a part a key is once.
    """
    nothing = np.zeros(parts, dtype=np.int64)
    if parts == 1:
        return np.arange(len(tail)), nothing
    # Places in the order of changes: a stable sort, so that of equal sequences the last is the newest.
    places = pc.sort_indices(tail[spec.sequence_column]).to_numpy() if spec.sequence_column else np.arange(len(tail))
    ranks = np.empty(len(tail), dtype=np.int64)
    ranks[places] = np.arange(len(tail))
    connection = connect()
    keys = by_place(tail, spec.keys)
    ranked = keys.append_column("rank", pa.array(ranks)).append_column("part", tail[PART])
    names = ", ".join(keys.column_names)
    with registered(connection, "lakebed_ranked", ranked):
        query = f"select max(rank) as newest from lakebed_ranked group by {names}"
        newest = connection.sql(query).to_arrow_table()["newest"].to_numpy()
        if len(newest) == len(tail):
            return np.arange(len(tail)), nothing
        lost = nothing
        if spec.sequence_column and (np.diff(tail[PART].to_numpy()[places]) < 0).any():
            query = (
                f"select part, count(*) as lost from (select part, first_value(part) over (partition by {names} order by rank "
                "desc) as of_newest from lakebed_ranked) where part > of_newest group by part"
            )
            found = connection.sql(query).fetchnumpy()
            lost[np.asarray(found["part"])] = np.asarray(found["lost"])
    ascending: _Rows = np.sort(places[newest])
    return ascending, lost


def _dying_rows(
    hits: pa.Table, newest: pa.Table, base: Mapping[str, Part], spec: WriteSpec, deletion_vectors: DeletionVectorCache
) -> tuple[dict[str, _Rows], npt.NDArray[np.bool_]]:
    """Base rows that die, by part; and which of the newest changes are late, that is, older than what the base has."""
    probes = hits["probe"].to_numpy()
    rows = hits["row"].to_numpy()
    late = np.zeros(len(newest), dtype=bool)
    by_part = indices_by_part(hits["part"])
    live_at: dict[str, npt.NDArray[np.intp]] = {}
    for path, at in by_part.items():
        live_at[path] = at[~are_in(deletion_vectors.of(base[path]), rows[at])]
    sequence = spec.sequence_column
    if sequence:
        counts = np.zeros(len(hits), dtype=bool)
        for at in live_at.values():
            counts[at] = True
        is_delete = pc.fill_null(pc.equal(hits[OP_COLUMN], DELETE), False).to_numpy()
        stored = pc.cast(hits[SEQUENCE_COLUMN], newest.schema.field(sequence).type)
        newer = pc.fill_null(pc.greater(stored, newest[sequence].take(hits["probe"])), False).to_numpy()
        late[probes[newer & (counts | is_delete)]] = True
        live_at = {path: at[~late[probes[at]]] for path, at in live_at.items()}
    return {path: rows[at] for path, at in live_at.items() if len(at)}, late


def are_late(
    changes: pa.Table,
    base: Mapping[str, Part],
    tail: Sequence[ChangePart],
    spec: WriteSpec,
    storage: PartStorage,
    *,
    deletion_vectors: DeletionVectorCache,
    locator: KeyLocator,
) -> npt.NDArray[np.bool_]:
    """Which changes are older than what the table has of their keys, settled or not; none without an order."""
    late: npt.NDArray[np.bool_] = np.zeros(len(changes), dtype=bool)
    sequence = spec.sequence_column
    if sequence is None:
        return late
    hits = locator.lookup(base, changes.select(list(spec.keys))) if base else None
    if hits is not None and len(hits):
        late = _dying_rows(hits, changes, base, spec, deletion_vectors)[1]
    if tail:
        names, connection = list(dict.fromkeys([*spec.keys, sequence])), connect()
        alias = aliases(names)
        same = " and ".join(f"c.{alias[key]} = t.{alias[key]}" for key in spec.keys)
        rows = by_place(changes, names).append_column("position", pa.array(np.arange(len(changes))))
        with (
            registered(connection, "lakebed_tail", by_place(read_tail(tail, spec, storage), names)),
            registered(connection, "lakebed_late", rows),
        ):
            found = connection.sql(
                f"select position from lakebed_late c semi join lakebed_tail t on {same} "
                f"and t.{alias[sequence]} > c.{alias[sequence]}"
            ).fetchnumpy()
        late[found["position"]] = True
    return late


def _tombstones(
    tail: pa.Table, outcomes: Sequence[CountedOutcome], change_parts: Sequence[ChangePart], spec: WriteSpec
) -> pa.Table | None:
    chosen = [one.tombstone for one in outcomes if one.tombstone is not None]
    if not chosen:
        return None
    rows = tail.take(pa.array(chosen))
    columns = {field.name: pa.nulls(len(rows), nullable(field.type)) for field in spec.schema}
    columns |= {name: rows[name] for name in spec.keys} | {OP_COLUMN: pa.repeat(pa.scalar(DELETE), len(rows))}
    if spec.sequence_column is not None:
        columns[spec.sequence_column] = rows[spec.sequence_column]
    if spec.keeps_versions:
        columns[VERSION_COLUMN] = pa.array([change_parts[part].version for part in rows[PART].to_pylist()], pa.int64())
    return pa.table(columns)


def _complete(
    wanted: npt.NDArray[np.intp],
    newest: pa.Table,
    change_parts: Sequence[ChangePart],
    base: Mapping[str, Part],
    hits: pa.Table | None,
    spec: WriteSpec,
    *,
    storage: PartStorage,
    deletion_vectors: DeletionVectorCache,
    anew: _Anew,
    of_all_keys: bool,
) -> tuple[pa.Table | None, dict[str, IncompleteRow]]:
    """Whole rows for the keys whose newest change lacks values (``resolve.unavailable_values``), from the tail and the base.

    The second value: the changes that can't be whole, by the path of their part. ``of_all_keys``: whether ``newest`` has every
    key of the tail.
    """
    if not len(wanted):
        return None, {}
    keys = newest.select(list(spec.keys)).take(pa.array(wanted))
    schema = row_schema(spec)
    all_wanted = len(wanted) == len(newest)
    is_whole = all_wanted and of_all_keys
    tail_rows, of_part, of_row = rows_of_tail(change_parts, schema, spec, storage, keys=None if is_whole else keys)
    pieces, probes = list[pa.Table](), list[_Rows]()
    if hits is not None:
        of_wanted = hits if all_wanted else hits.filter(np.isin(hits["probe"].to_numpy(), wanted))
        read = schema if anew.rows else _lacked(tail_rows, schema, spec)
        pieces, probes = _rows_of_base(
            of_wanted, newest, base, read, spec, storage=storage, deletion_vectors=deletion_vectors
        )
    from_base = sum(len(piece) for piece in pieces)
    pieces.append(tail_rows)
    rows = pa.concat_tables([as_rows(piece, schema) for piece in pieces])
    if anew.rows or len(tail_rows) > len(wanted):
        of = ranked(rows, spec, connect())
    else:
        of = _of_one_change(rows, np.searchsorted(wanted, np.concatenate([*probes, wanted])), from_base)
    counts, counted = _counting(of, from_base, of_part, of_row, anew)
    done = completed(of, required_columns(spec), base_is_known=True, counts=counts)
    newer = done.newest.copy()  # the change that says how new a completed row is
    is_counted = np.isin(of.group[done.newest], list(counted))
    newer[is_counted] = [counted[group] for group in of.group[done.newest[is_counted]].tolist()]
    chosen = np.flatnonzero(((done.newest >= from_base) | is_counted) & ~of.deleted[done.newest])
    names = [name for name in schema.names if name != UNAVAILABLE_COLUMN]
    columns = {}
    for name in names:
        giver = done.givers.get(name, done.newest)[chosen]
        columns[name] = rows[name].take(pa.array(giver, mask=giver == NOWHERE))
    newer = newer[chosen]
    if SEQUENCE_COLUMN in columns:
        columns[SEQUENCE_COLUMN] = rows[SEQUENCE_COLUMN].take(pa.array(newer))
    whole = pa.table(columns, pa.schema([schema.field(name) for name in names]))
    if spec.keeps_versions and spec.partition_by:
        versions = np.array([part.version for part in change_parts])[of_part[newer - from_base]]
        if len(np.unique(versions)) > 1:
            whole = whole.append_column(VERSION_COLUMN, pa.array(versions, pa.int64()))
    by_part: dict[str, list[int]] = {}
    for row in sorted(done.left_out):
        by_part.setdefault(change_parts[of_part[row - from_base]].path, []).append(row)
    return whole, {
        path: IncompleteRow(rows.take(pa.array(at)), [done.left_out[row] for row in at]) for path, at in by_part.items()
    }


def _of_one_change(rows: pa.Table, key: _Rows, from_base: int) -> Rows:
    """``ranked``, of keys that have one change each in the tail, which is not older than what the base has of its key."""
    rank = (np.arange(len(rows)) >= from_base).astype(np.int64)
    deleted = np.asarray(pc.fill_null(pc.equal(rows[OP_COLUMN], DELETE), False))
    return Rows(key, rank, deleted, *patterns_of(rows[UNAVAILABLE_COLUMN]))


def _lacked(rows: pa.Table, schema: pa.Schema, spec: WriteSpec) -> pa.Schema:
    """What of the table's own rows must be read: what some of these changes lack, and what decides."""
    lacked = pc.unique(pc.list_flatten(rows[UNAVAILABLE_COLUMN])).to_pylist()
    return pa.schema([field for field in schema if field.name in {*lacked, *spec.keys, spec.sequence_column}])


def _counting(
    of: Rows, from_base: int, of_part: _Rows, of_row: _Rows, anew: _Anew
) -> tuple[npt.NDArray[np.bool_], dict[int, int]]:
    """Which rows count; and of each key whose row is written again, the change that says how new it is.

    ``from_base``: how many rows are not of the tail; ``of_part`` and ``of_row``: where the others are.
    """
    counts = np.ones(len(of.group), dtype=bool)
    if not anew.rows:
        return counts, {}
    places = list(zip(of_part.tolist(), of_row.tolist(), strict=True))
    groups = {int(of.group[from_base + at]) for at, place in enumerate(places) if place in anew.rows}
    counted: dict[int, int] = {}
    for row in np.flatnonzero(np.isin(of.group, list(groups))).tolist():
        group = int(of.group[row])
        if group not in counted or of.rank[row] >= of.rank[counted[group]]:
            counted[group] = row
        counts[row] = row < from_base or places[row - from_base] not in anew.void
    return counts, counted


@dataclass(frozen=True, slots=True)
class _Anew:
    """Rows of the tail, by part and row: the changes of the keys whose row is written again, and those that count no more."""

    rows: frozenset[tuple[int, int]]
    void: frozenset[tuple[int, int]]

    @staticmethod
    def of(outcomes: Iterable[CountedOutcome], tail: pa.Table) -> _Anew:
        parts, rows = tail[PART].to_numpy(), tail[ROW].to_numpy()
        several = list(outcomes)

        def places(chosen: Iterable[int]) -> frozenset[tuple[int, int]]:
            return frozenset((int(parts[row]), int(rows[row])) for row in chosen)

        return _Anew(
            places(row for one in several for row in one.rows), places(row for one in several for row in one.void)
        )


def _rows_of_base(
    hits: pa.Table,
    newest: pa.Table,
    base: Mapping[str, Part],
    schema: pa.Schema,
    spec: WriteSpec,
    *,
    storage: PartStorage,
    deletion_vectors: DeletionVectorCache,
) -> tuple[list[pa.Table], list[_Rows]]:
    """What the base holds for the keys, of these columns, and which of the newest changes has each key.

    Their deletes come first, then their live rows.
    """
    out, probes = [], []
    if spec.sequence_column:
        deletes = hits.filter(pc.equal(hits[OP_COLUMN], DELETE))
        removed = newest.select(list(spec.keys)).take(deletes["probe"]).append_column(OP_COLUMN, deletes[OP_COLUMN])
        if spec.sequence_column not in spec.keys:
            removed = removed.append_column(spec.sequence_column, deletes[SEQUENCE_COLUMN])
        out.append(removed)
        probes.append(deletes["probe"].to_numpy())
    rows = hits["row"].to_numpy()
    stored = pa.schema([field for field in schema if field.name not in (OP_COLUMN, UNAVAILABLE_COLUMN)])
    for path, at in indices_by_part(hits["part"]).items():
        live = at[~are_in(deletion_vectors.of(base[path]), rows[at])]
        if len(live):
            found = rows_of_part(base[path], rows[live], stored, storage)
            out.append(found.append_column(OP_COLUMN, pa.repeat(pa.scalar(UPSERT), len(found))))
            probes.append(hits["probe"].to_numpy()[live])
    return out, probes
