"""Tables that keep the first row of a key (``lakebed.keep = first``): for streams of events of which some come more than once.

The first row of a key is the one with the lowest sequence, and the first to come of equal ones; without ``sequence_by`` the first
to come. A later one is a duplicate and changes nothing. A delete counts whenever it comes; what comes after it is first again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from lakebed.log.actions import ChangePart, Part
from lakebed.parts.changes import DELETE, OP_COLUMN, SEQUENCE_COLUMN, WriteSpec
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.resolve.counted_tail import DELETED, PART, ROW, read_tail
from lakebed.resolve.locate import KeyLocator
from lakebed.resolve.resolution import Resolution, keys_of_parts, rows_that_die, those_among
from lakebed.resolve.whole_rows import indices_by_part
from lakebed.sql import aliases, by_place, registered
from lakebed.storage.engine import connect
from lakebed.storage.part_storage import PartStorage

_Places = npt.NDArray[np.int64]
_Mask = npt.NDArray[np.bool_]


def _first_of_keys(rows: pa.Table, deleted: _Mask, spec: WriteSpec, connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """For each key ``first``, the row that counts after its last delete, and ``deletes``, that delete; null where there is none.

    Args:
        rows: Changes in the order of arrival, with the keys and the sequence.
        deleted: Which of them are deletes.
        spec: The table's.
        connection: To ask.
    """
    names = list(dict.fromkeys([*spec.keys, *([spec.sequence_column] if spec.sequence_column else [])]))
    alias = aliases(names)
    numbered = by_place(rows, names).append_column("n", pa.array(np.arange(len(rows))))
    numbered = numbered.append_column("d", pa.array(deleted))
    keys = ", ".join(alias[key] for key in spec.keys)
    order = f"{{'s': {alias[spec.sequence_column]}, 'n': n}}" if spec.sequence_column else "n"
    with registered(connection, "lakebed_first", numbered) as name:
        return connection.sql(
            f"select arg_min(n, {order}) filter (where not d and n > coalesce(last, -1)) as first, any_value(last) as deletes "
            f"from (select *, max(n) filter (where d) over (partition by {keys}) as last from {name}) group by {keys}"
        ).to_arrow_table()


def layers_of_first(changes: pa.Table, spec: WriteSpec, connection: duckdb.DuckDBPyConnection) -> Iterable[pa.Table]:
    """What of a batch counts: the last delete of each key, then the first row after it."""
    found = _first_of_keys(changes, np.asarray(pc.equal(changes[OP_COLUMN], DELETE)), spec, connection)
    first, deletes = found["first"], found["deletes"]
    before = deletes.filter(first.is_valid()).drop_null().to_numpy()
    if len(before):
        yield changes.take(pa.array(np.sort(before)))
    yield changes.take(pa.array(np.sort(pc.coalesce(first, deletes).to_numpy())))


def resolve_first(
    base: Mapping[str, Part],
    change_parts: Sequence[ChangePart],
    spec: WriteSpec,
    storage: PartStorage,
    deletion_vectors: DeletionVectorCache,
    locator: KeyLocator,
    *,
    among: pa.Table | None = None,
) -> Resolution:
    """``resolve`` for a table that keeps first rows."""
    tail = read_tail(change_parts, spec, storage)
    if among is not None:
        tail = those_among(tail, among, spec)
    found = _first_of_keys(tail, tail[DELETED].to_numpy(), spec, connect())
    places = pc.coalesce(found["first"], found["deletes"]).to_numpy()
    counting, replaces = tail.take(pa.array(places)), np.asarray(found["deletes"].is_valid())
    base_new: dict[str, _Places] = {}
    duplicate = np.zeros(len(counting), dtype=bool)
    if base and len(counting):
        hits = locator.lookup(base, counting.select(list(spec.keys)))
        base_new, duplicate = _dying(hits, counting, replaces, base, spec, deletion_vectors)
    survives = ~duplicate & (counting[DELETED].to_numpy() == 0)
    return Resolution(
        change_parts=tuple(change_parts),
        base_dead={
            path: deletion_vectors.of(base[path]) | BitMap64(rows.astype(np.uint64)) for path, rows in base_new.items()
        },
        tail_dead=rows_that_die(counting[PART].to_numpy()[survives], counting[ROW].to_numpy()[survives], change_parts),
        keys=keys_of_parts(tail, change_parts, spec) if among is None else {},
        rows=len(tail),
    )


def _dying(
    hits: pa.Table,
    first: pa.Table,
    replaces: _Mask,
    base: Mapping[str, Part],
    spec: WriteSpec,
    deletion_vectors: DeletionVectorCache,
) -> tuple[dict[str, _Places], _Mask]:
    """Base rows that die, by part; and which of the first rows of the tail are duplicates of what the base has.

    ``replaces``: which of them count whatever the base has, because of a delete.
    """
    probes, rows = hits["probe"].to_numpy(), hits["row"].to_numpy()
    by_part = indices_by_part(hits["part"])
    live = np.zeros(len(hits), dtype=bool)
    for path, at in by_part.items():
        dead: BitMap64 = deletion_vectors.of(base[path])
        live[at] = [row not in dead for row in rows[at].tolist()]
    is_older = np.zeros(len(hits), dtype=bool)
    if spec.sequence_column is not None:
        came = first[spec.sequence_column].take(hits["probe"])
        is_older = np.asarray(pc.fill_null(pc.less(came, pc.cast(hits[SEQUENCE_COLUMN], came.type)), False))
    dies = live & (replaces[probes] | is_older)
    duplicate = np.zeros(len(first), dtype=bool)
    duplicate[probes[live & ~dies]] = True
    return {path: rows[at[dies[at]]] for path, at in by_part.items() if dies[at].any()}, duplicate
