"""Which changes would lose if they were committed now: against a newer row, or a newer delete that the table remembers.

They are resolved as the newest of the tail, by what settles and views resolve it with. Of tail and base only what is of their
keys is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from lakebed.log.actions import ChangePart
from lakebed.log.snapshot import Snapshot
from lakebed.parts.changes import WriteSpec, write_spec_of
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.parts.part_filter import parts_that_may_hold
from lakebed.parts.write import WrittenPart
from lakebed.resolve.counted_tail import PART, read_tail
from lakebed.resolve.crowded_keys import crowded_keys_of
from lakebed.resolve.groups import changes_of_groups
from lakebed.resolve.locate import KeyLocator
from lakebed.resolve.resolve import newest_changes
from lakebed.storage.engine import connect
from lakebed.storage.part_storage import PartStorage


def losing(
    snapshot: Snapshot,
    parts: Sequence[WrittenPart],
    storage: PartStorage,
    deletion_vectors: DeletionVectorCache,
    locator: KeyLocator,
) -> pa.Table:
    """The keys of changes in ``parts`` that would change nothing of some column that they set, by their stored names, a row each.

    None of a table without ``sequence_by``, where what comes last wins, and of one that keeps first rows, where losing is what
    later rows are for. Whatever its order is, a column of which all changes count (a sum, a maximum) loses nothing.
    Raises Corrupt, StoreUnavailable.
    """
    spec = write_spec_of(snapshot)
    ours = [part.change_part(at) for at, part in enumerate(parts)]
    if not ours or not spec.keys or spec.sequence_by is None or spec.keeps_first:
        return pa.schema([spec.schema.field(name) for name in spec.keys]).empty_table()
    keys = read_tail(ours, spec, storage).select(list(spec.keys))
    tail = parts_that_may_hold(connect(), snapshot.tail_in_order(), spec.schema, keys)
    find = _of_groups if spec.resolves_by_group else _of_rows
    return find(
        snapshot,
        [*tail, *ours],
        len(tail),
        keys,
        spec,
        storage=storage,
        deletion_vectors=deletion_vectors,
        locator=locator,
    )


def _of_rows(
    snapshot: Snapshot,
    change_parts: Sequence[ChangePart],
    first: int,
    keys: pa.Table,
    spec: WriteSpec,
    *,
    storage: PartStorage,
    deletion_vectors: DeletionVectorCache,
    locator: KeyLocator,
) -> pa.Table:
    """``first``: of the change parts the first that is ours."""
    found = newest_changes(
        snapshot.parts,
        change_parts,
        spec,
        storage,
        deletion_vectors,
        locator,
        crowded=crowded_keys_of(snapshot),
        among=keys,
    )
    lost = found.late | (found.newest[PART].to_numpy() < first)
    lost[[one.probe for one in found.outcomes if one.is_live and one.visible is None]] = (
        True  # the table's own row stays
    )
    return found.newest.select(list(spec.keys)).filter(pa.array(lost))


def _of_groups(
    snapshot: Snapshot,
    change_parts: Sequence[ChangePart],
    first: int,
    keys: pa.Table,
    spec: WriteSpec,
    *,
    storage: PartStorage,
    deletion_vectors: DeletionVectorCache,
    locator: KeyLocator,
) -> pa.Table:
    met = changes_of_groups(snapshot.parts, change_parts, spec, storage, deletion_vectors, locator, among=keys)
    known = len(met.found.rows)
    before = known + int(np.count_nonzero(met.of_part < first))  # rows from here on are ours
    lost = np.zeros(len(met.rows), dtype=bool)
    for group, of_key in zip(met.newest.groups, met.newest.rows, strict=True):
        if group.function == "last":
            says = np.asarray(met.rows[group.sequence].is_valid())
            lost |= says & (of_key[met.key] < before)
    lost[:before] = False
    _, places = np.unique(met.key[lost], return_index=True)
    return met.rows.select(list(spec.keys)).take(pa.array(np.flatnonzero(lost)[places]))
