"""The rows of a tail, and what those come to that are part of a move to another key (``parts.key_moves``).

What decides about a row is read first: its key, sequence and operation, and where it is (``read_tail``). Arrow reads few rows of
local parts that have the table's types: that takes a fifth of the time of a query. DuckDB reads all others, and casts.

1.  The changes of each such key are visited in the order of arrival, after the table's own row, and the rows of the key are
    counted. A change that is older than one that came before it changes nothing, whether or not that one was settled.
2.  The change that gave the values of the row that is left takes the place of the newest one. If later changes took other rows of
    the key away, or if the row is the table's own, the row is rewritten: so readers of changes, who saw these deletes, see the
    row again, and it is not older than any delete of its key that the table remembers (B3).

**Keys with several rows**, in a transaction of the source that was settled in part, are kept by an entry of the log.

A settle can cut a transaction of the source in two. If a row has come to a key whose own row has not left yet, the table shows
the row that came, and the entry says that one more will leave (``parts.key_moves``). The key leaves the entry when changes of it
are settled again. An entry of a key that never changes again is of no use, and does no harm: changes of another transaction do
not look at it. So the newest ``KEYS_MAX`` are kept, and ``SINGLE_KEYS_MAX`` of keys that have one row. These are kept because a
connector that dies begins its last transaction again.

Values of keys are not in the entry, only digests of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.errors import Corrupt
from lakebed.log.actions import ChangePart, Domain, Part
from lakebed.log.entries import CROWDED_KEYS
from lakebed.log.entry_values import decoded
from lakebed.log.snapshot import Snapshot
from lakebed.parts.arrow_source import is_local, read_columns
from lakebed.parts.changes import (
    DELETE,
    FEW_ROWS_MAX,
    MOVES_COLUMN,
    NEEDS_ROW_COLUMN,
    OP_COLUMN,
    SEQUENCE_COLUMN,
    UNAVAILABLE_COLUMN,
    WEAK,
    WriteSpec,
)
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.parts.intact import require_intact
from lakebed.parts.key_moves import (
    Change,
    CountedKey,
    are_strong,
    by_key,
    changes_of,
    listed,
    moving_in,
    on_time,
    values_in_order,
)
from lakebed.quoting import literal
from lakebed.sql import aliases, by_place, named, parquet_of, registered, sql_type
from lakebed.storage.engine import connect
from lakebed.storage.part_storage import PartStorage

# -- Keys with several rows --------------------------------------------------------------------------------------------


KEYS_MAX, SINGLE_KEYS_MAX = 10_000, 1_000


@dataclass(frozen=True, slots=True)
class Crowd:
    """``more`` rows of a key will leave in a transaction. ``place``: of the newest change of the key in the source's log;
    ``deletes``: whether that is a delete.

    ``more`` may be 0: then only the place says something, in case that the change is sent again.
    """

    transaction: int
    more: int
    place: int | None = None
    deletes: bool = False


@dataclass(frozen=True, slots=True)
class CrowdedKeys:
    """By the digest of a key, oldest first."""

    keys: Mapping[str, Crowd]

    def after(self, settled: Collection[str], crowded: Mapping[str, Crowd]) -> CrowdedKeys:
        """What is left once changes of some keys are settled, of which some are crowded."""
        left = {**{key: crowd for key, crowd in self.keys.items() if key not in settled}, **crowded}
        single = [key for key, one in left.items() if not one.more]
        for key in single[:-SINGLE_KEYS_MAX]:
            del left[key]
        return CrowdedKeys(dict(list(left.items())[-KEYS_MAX:]))

    def to_entry(self) -> Domain:
        """The entry; it is removed if there are no keys."""
        if not self.keys:
            return Domain(CROWDED_KEYS, "", removed=True)
        keys = {
            key: {"transaction": one.transaction, "more": one.more, "place": one.place, "deletes": one.deletes}
            for key, one in self.keys.items()
        }
        return Domain(CROWDED_KEYS, orjson.dumps({"keys": keys}).decode())


NONE_CROWDED = CrowdedKeys({})


def crowded_keys_of(snapshot: Snapshot) -> CrowdedKeys:
    """Those that the log has. Raises Corrupt."""
    text = snapshot.domains.get(CROWDED_KEYS)
    return NONE_CROWDED if text is None else decoded(CrowdedKeys, CROWDED_KEYS, text)


# -- The rows of a tail ------------------------------------------------------------------------------------------------


PART, ROW, DELETED, INCOMPLETE = "_lakebed_part", "_lakebed_row", "_lakebed_deleted", "_lakebed_incomplete"
"""Beside the keys and the sequence: where a row of the tail is, and what it is."""


def read_tail(
    change_parts: Sequence[ChangePart], spec: WriteSpec, storage: PartStorage, *, with_moves: bool = False
) -> pa.Table:
    """Keys, sequence, operation and place of every row, part after part and in file order. Raises Corrupt.

    ``with_moves``: also what decides about rows that get another key (``parts.key_moves``).
    """
    require_intact(change_parts, storage)
    rows = np.array([part.rows for part in change_parts], dtype=np.int64)
    names = list(dict.fromkeys([*spec.keys, *([spec.sequence_column] if spec.sequence_column else [])]))
    names += [MOVES_COLUMN] if with_moves else []
    table = _read_few(change_parts, names, spec, storage) if rows.sum() <= FEW_ROWS_MAX else None
    if table is None:
        table = _read_many(change_parts, names, spec, storage)
    if len(table) != rows.sum():
        raise Corrupt(f"{len(change_parts)} change parts have {len(table)} rows, but the log says {rows.sum()}")
    first = np.cumsum(rows) - rows
    table = table.append_column(PART, pa.array(np.repeat(np.arange(len(rows), dtype=np.int32), rows)))
    return table.append_column(ROW, pa.array(np.arange(len(table), dtype=np.int64) - np.repeat(first, rows)))


def _read_few(
    change_parts: Sequence[ChangePart], names: Sequence[str], spec: WriteSpec, storage: PartStorage
) -> pa.Table | None:
    """What ``_read_many`` gives, by Arrow; None where only DuckDB can read it."""
    urls = [storage.duckdb_url(part.path) for part in change_parts]
    if not all(map(is_local, urls)):
        return None
    has_incomplete = any(part.incomplete for part in change_parts)
    deciding = (OP_COLUMN, *((UNAVAILABLE_COLUMN, NEEDS_ROW_COLUMN) if has_incomplete else ()))
    wanted = pa.schema([(name, spec.type_of(name)) for name in (*names, *deciding)])
    pieces = []
    for part, url in zip(change_parts, urls, strict=True):
        piece = read_columns(part.path, url, wanted)
        if piece is None:
            return None
        pieces.append(piece)
    found = pa.concat_tables(pieces).combine_chunks()
    is_delete, incomplete = pc.equal(found[OP_COLUMN], DELETE), pa.repeat(pa.scalar(False), len(found))
    if has_incomplete:
        lengths = pc.fill_null(pc.list_value_length(found[UNAVAILABLE_COLUMN]), 0)
        incomplete = pc.or_(pc.greater(lengths, 0), pc.fill_null(found[NEEDS_ROW_COLUMN], False))
    return found.select(list(names)).append_column(DELETED, is_delete).append_column(INCOMPLETE, incomplete)


def _read_many(
    change_parts: Sequence[ChangePart], names: Sequence[str], spec: WriteSpec, storage: PartStorage
) -> pa.Table:
    connection = connect()
    storage.attach(connection)
    stored = {name: (alias, sql_type(spec.type_of(name))) for name, alias in aliases(names).items()}
    outputs = [alias for alias, _ in stored.values()]
    stored |= {OP_COLUMN: ("op", "VARCHAR"), UNAVAILABLE_COLUMN: ("unsent", "VARCHAR[]")}
    stored[NEEDS_ROW_COLUMN] = ("needs_row", "BOOLEAN")
    outputs.append(f"op = {literal(DELETE)} as {DELETED}")
    has_incomplete = any(part.incomplete for part in change_parts)
    incomplete = "coalesce(len(unsent), 0) > 0 or needs_row is true"
    outputs.append(f"{incomplete if has_incomplete else 'false'} as {INCOMPLETE}")
    source = parquet_of([storage.duckdb_url(part.path) for part in change_parts], stored)
    return named(connection.sql(f"select {', '.join(outputs)} from {source}").to_arrow_table(), names)


_Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedOutcome:
    """What the changes of one key come to."""

    probe: int  # the place of the key among the newest changes
    key: str
    rows: Sequence[int]  # its changes in the tail
    is_live: bool
    visible: int | None  # the change that gave the values; None for the table's own row
    is_written_anew: bool
    tombstone: int | None  # if the key is deleted, but no row says so: the change that is as new as the delete
    void: Sequence[int]  # changes that no longer count, because they were of other rows
    crowd: Crowd | None


def counted_outcomes(
    tail: pa.Table,
    newest: _Rows,
    hits: pa.Table | None,
    base: Mapping[str, Part],
    spec: WriteSpec,
    *,
    deletion_vectors: DeletionVectorCache,
    crowded: CrowdedKeys,
) -> list[CountedOutcome]:
    """For each key with counted changes.

    ``newest``: the rows of the tail that are the newest of their keys, in the order in which ``hits`` calls them.
    """
    chosen = are_strong(tail[MOVES_COLUMN])
    if crowded.keys:
        transactions = pa.array({one.transaction for one in crowded.keys.values()}, pa.int64())
        rows_of, every = listed(tail[MOVES_COLUMN])
        chosen[rows_of[np.asarray(pc.is_in(every.field("transaction"), value_set=transactions))]] = True
    if not chosen.any():
        return []
    groups = by_key(tail, chosen, spec, connect(), alone=chosen)
    each = sorted(row for rows in groups for row in rows)
    deleted = tail[DELETED].to_pylist()
    known = _Tail(
        changes=changes_of(tail, deleted, each),
        deleted=deleted,
        incomplete=tail[INCOMPLETE].to_pylist(),
        sequences=values_in_order(tail, spec.sequence_column, each),
        last=_last_transactions(tail),
        is_lsn=spec.sequence_by == "source.lsn",
    )
    probes = dict(zip(newest.tolist(), range(len(newest)), strict=True))
    probe_of = [next(probes[row] for row in rows if row in probes) for rows in groups]
    settled = _settled_rows(hits, probe_of, base, deletion_vectors)
    digests = _digests(tail, [rows[0] for rows in groups], spec)
    outcomes = (
        known.outcome(probe, digest, rows, settled.get(probe, _NOTHING), crowded.keys.get(digest))
        for probe, digest, rows in zip(probe_of, digests, groups, strict=True)
    )
    return [one for one in outcomes if one is not None]


@dataclass(frozen=True, slots=True)
class _Settled:
    """What the base has of a key. ``newest``: the highest sequence, of its live row and its deletes."""

    is_live: bool = False
    sequence: Any = None
    newest: Any = None


_NOTHING = _Settled()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tail:
    """What is known of a tail, by its rows."""

    changes: Mapping[int, Sequence[Change]]
    deleted: Sequence[bool]
    incomplete: Sequence[bool]
    sequences: Mapping[int, Any]
    last: Collection[int]  # see ``_last_transactions``
    is_lsn: bool  # whether sequences are places in the source's log

    def outcome(
        self, probe: int, digest: str, every: Sequence[int], settled: _Settled, crowd: Crowd | None
    ) -> CountedOutcome | None:
        """None if all rows of a key, in the order of arrival, are older than what the base has."""
        rows = on_time(every, self.sequences, settled.newest)
        if not rows:
            return None
        moving = moving_in(change for row in rows for change in self.changes[row])
        key = CountedKey(rows=int(settled.is_live), moving=moving)
        if settled.is_live and crowd is not None:
            key = CountedKey(
                1 + crowd.more, crowd.transaction, crowd.place, counts=True, moving=moving, deletes=crowd.deletes
            )
        for row in rows:
            changes = self.changes[row]
            if settled.is_live and self.is_lsn:
                changes = [change for change in changes if change.deletes or change.place != settled.sequence]
            key.take(row, changes, has_values=not self.deleted[row])
        visible = key.visible
        is_live = key.rows > 0
        return CountedOutcome(
            probe=probe,
            key=digest,
            rows=every,
            is_live=is_live,
            visible=visible,
            is_written_anew=is_live and (visible is None or bool(key.after) or self.incomplete[visible]),
            tombstone=rows[-1] if not is_live and self._lacks_delete(rows, settled) else None,
            void=every if visible is None else [*key.after, *set(every).difference(rows)],
            crowd=self._crowd(key),
        )

    def _lacks_delete(self, rows: Sequence[int], settled: _Settled) -> bool:
        """Whether no row says that a key is deleted, and late changes or readers, who saw a row of the key, have to know."""
        has_order = self.sequences[rows[-1]] is not None
        is_seen = settled.is_live or any(not self.deleted[row] and not self.incomplete[row] for row in rows)
        return not self.deleted[rows[-1]] and (has_order or is_seen)

    def _crowd(self, key: CountedKey) -> Crowd | None:
        """What the log must say of a key; nothing of most."""
        if key.transaction is None or not key.counts or not key.rows:
            return None
        if key.rows == 1 and (key.place is None or key.transaction not in self.last):
            return None
        return Crowd(key.transaction, key.rows - 1, key.place, key.deletes)


def _last_transactions(tail: pa.Table) -> set[int]:
    """Of each part, the last transaction that moved rows. It may have been cut, and begin again if the connector dies."""
    rows, changes = listed(tail[MOVES_COLUMN])
    parts = tail[PART].take(pa.array(rows)).combine_chunks()
    found = pa.table({"part": parts, "place": changes.field("place"), "transaction": changes.field("transaction")})
    found = found.filter(pc.and_(pc.less(changes.field("count"), WEAK // 2), found["place"].is_valid())).sort_by(
        "place"
    )
    return set(dict(zip(found["part"].to_pylist(), found["transaction"].to_pylist(), strict=True)).values())


def _settled_rows(
    hits: pa.Table | None, probes: Sequence[int], base: Mapping[str, Part], deletion_vectors: DeletionVectorCache
) -> dict[int, _Settled]:
    """What the base has, by the probe of the key."""
    if hits is None or not len(hits):
        return {}
    found = hits.filter(pa.array(np.isin(hits["probe"].to_numpy(), probes)))
    has_order = SEQUENCE_COLUMN in found.column_names
    sequences = values_in_order(found, SEQUENCE_COLUMN if has_order else None, range(len(found)))
    ops = found[OP_COLUMN].to_pylist() if has_order else [None] * len(found)
    out: dict[int, _Settled] = {}
    parts, rows = found["part"].to_pylist(), found["row"].to_pylist()
    for at, (probe, part, row) in enumerate(zip(found["probe"].to_pylist(), parts, rows, strict=True)):
        is_live = row not in deletion_vectors.of(base[part])
        if is_live or ops[at] == DELETE:
            one, sequence = out.get(probe, _NOTHING), sequences[at]
            newest = max((each for each in (one.newest, sequence) if each is not None), default=None)
            out[probe] = _Settled(True, sequence, newest) if is_live else replace(one, newest=newest)
    return out


def _digests(tail: pa.Table, rows: Sequence[int], spec: WriteSpec) -> list[str]:
    keys = by_place(tail.take(pa.array(rows, pa.int64())), spec.keys)
    numbered = keys.append_column("position", pa.array(range(len(rows)), pa.int64()))
    text = ", ".join(f"length({alias}::varchar), {alias}::varchar" for alias in aliases(spec.keys).values())
    connection = connect()
    with registered(connection, "lakebed_keys", numbered) as name:
        found = connection.sql(f"select md5(concat_ws(':', {text})) as d from {name} order by position").fetchall()
    return [digest[:16] for (digest,) in found]
