"""Settle: the oldest change parts of the tail become level-0 base parts, and the rows that they replace are marked dead.

Files are written first, then committed. Deletion vectors have new names, so an attempt that does not commit leaves at most an
orphan file.

1. Take change parts from the old end of the tail, up to ``_CHANGES_MAX`` rows a commit. This bounds the memory.
2. Resolve them against the base (``resolve.resolve``). The result is positions; no row is rewritten.
3. Write the deletion vectors, and a part for rows that had to be completed. Changes that can't become rows go to the quarantine
   now, once for each change part. So a crash before step 4 loses none, and a second attempt adds none. What is to be said of
   changes that lost by their order goes into the commit (``_remarks``).
4. Commit. Marked parts are removed and added with their new vector; change parts leave the tail and join the base. On a conflict
   (another commit replaced a part, settled the same change parts, or brought new keys) steps 1 to 3 run again on the newest
   snapshot (``commit_loop``). The key index then reads only the parts that it does not have yet.

*Up to a version*: change parts of later versions wait in the tail. Then other readers see, at the version of the last commit, the
rows that the table had at the version asked for, unless something else that came after it is in the base already. Whether that
is so follows from the commits in between (``is_as_of``).

Invariants: B1, B2, T1.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from lakebed.coordination.failing import ended
from lakebed.lateness import Lateness
from lakebed.log.actions import Action, AddChangePart, AddPart, ChangePart, Part, RemoveChangePart, RemovePart
from lakebed.log.commit_kind import CommitKind, kind_of, settles, truncates
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.conflicts import ReadWriteSet
from lakebed.log.entries import REMARKS, Operation
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import Committed, TableLog
from lakebed.parts.changes import (
    MOVES_COLUMN,
    NEEDS_ROW_COLUMN,
    OP_COLUMN,
    UNAVAILABLE_COLUMN,
    VERSION_COLUMN,
    WriteSpec,
    write_spec_of,
)
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.parts.intact import naming_damaged, require_intact_keys
from lakebed.parts.quarantine import records_of_incomplete
from lakebed.parts.write import WrittenPart, write_parts
from lakebed.positions.remarks import remarks_of
from lakebed.remarks import OTHERS, Counts, Remark, RemarkCounts, sum_of
from lakebed.resolve.counted_tail import crowded_keys_of
from lakebed.resolve.locate import KeyLocator, columns_of_keys
from lakebed.resolve.resolution import Resolution
from lakebed.resolve.resolve import resolve
from lakebed.storage.engine import naming_unreadable
from lakebed.storage.part_storage import PartStorage

if TYPE_CHECKING:
    from lakebed.log.deletion_vector import DeletionVector
from lakebed.notebook import HtmlResult

_DECIDING = (OP_COLUMN, UNAVAILABLE_COLUMN, MOVES_COLUMN, NEEDS_ROW_COLUMN)
"""Columns that decide, beside keys and sequence, what becomes of a change."""
_CHANGES_MAX = 2_000_000
_LEAVES_ROWS = frozenset(
    {
        CommitKind.APPEND,
        CommitKind.MUTATION,
        CommitKind.SETTLE,
        CommitKind.MERGE,
        CommitKind.UPLOAD,
        CommitKind.PROPERTIES,
        CommitKind.CLAIM,
        CommitKind.HOLD,
        CommitKind.EXPIRE,
        CommitKind.DROP_DETACHED,
        CommitKind.OTHER,
    }
)
"""Kinds of commits that change no columns, and no rows either unless their parts say so."""
_logger = logging.getLogger("lakebed.compaction")


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleResult(HtmlResult):
    """What settling did."""

    version: int  # of the last commit, or the newest one if there was nothing to settle
    commits: int = 0
    change_parts: int = 0  # that joined the base
    rows: int = 0  # of these change parts
    rows_marked_dead: int = 0  # rows of the base that newer changes replaced
    base_parts_marked: int = 0  # parts of the base that got new dead rows
    late_or_superseded_rows: int = 0  # changes that a newer one of their key outweighs
    late_rows: int = 0  # those of them that lost against what had come in an earlier batch
    waiting_rows: int = 0  # keys that have a new value of a group of columns, and no row of its owner
    completed_rows: int = 0  # changes that got values which their source did not send
    quarantined_rows: int = 0  # changes that can't be completed
    bytes_written: int = 0  # of deletion vectors and completed rows
    conflicts: int = 0  # commits that were tried again
    seconds: float = 0.0
    remarks: Counts = field(default_factory=dict)  # what needs attention, by kind and name, with the number of records


_Step: TypeAlias = tuple[SettleResult | None, Snapshot]
"""What a commit settled, None if nothing was left to settle; the table after it."""


def settle(
    log: TableLog,
    storage: PartStorage,
    deletion_vectors: DeletionVectorCache,
    locator: Callable[[WriteSpec], KeyLocator],
    set_aside: Callable[[ChangePart, pa.Table], None],
    *,
    changes_max: int = _CHANGES_MAX,
    checkpoint_slack: int = 1,
    until_version: int | None = None,
    first: Snapshot | None = None,
) -> SettleResult:
    """Settle everything that is in the tail now. Raises Contention, StoreUnavailable (settling again is safe).

    ``set_aside`` commits records of a change part to the quarantine, unless records of that part are there already.
    ``checkpoint_slack``: a checkpoint is written after so many times the table's checkpoint interval. ``until_version``: change
    parts of later versions stay in the tail. ``first``: the snapshot to begin with (default: the newest).
    """
    started = time.perf_counter()
    snapshot = first or log.refresh()
    until = snapshot.version if until_version is None else min(until_version, snapshot.version)
    settling = _Settling(
        log=log,
        storage=storage,
        deletion_vectors=deletion_vectors,
        locator=locator,
        set_aside=set_aside,
        changes_max=changes_max,
        checkpoint_slack=checkpoint_slack,
        until=until,
    )
    result = SettleResult(version=-1)
    while True:
        step, snapshot = commit_loop(log, Operation.SETTLE, settling.build, first=snapshot)
        if step is None:
            conflicts = settling.attempts - result.commits
            return replace(result, version=snapshot.version, conflicts=conflicts, seconds=time.perf_counter() - started)
        result = _plus(result, step)


@dataclass(slots=True, kw_only=True)
class _Settling:
    """Settles change parts up to the version ``until``, oldest first, commit by commit. ``attempts``: commits that were tried."""

    log: TableLog
    storage: PartStorage
    deletion_vectors: DeletionVectorCache
    locator: Callable[[WriteSpec], KeyLocator]
    set_aside: Callable[[ChangePart, pa.Table], None]
    changes_max: int
    checkpoint_slack: int
    until: int
    attempts: int = 0

    def build(self, snapshot: Snapshot) -> Proposal[_Step] | Finished[_Step]:
        """Steps 1 to 3."""
        tail = [part for part in snapshot.tail_in_order() if part.version <= self.until]
        change_parts = _oldest(tail, self.changes_max)
        if not change_parts:
            return Finished((None, snapshot))
        self.attempts += 1
        spec = write_spec_of(snapshot)
        found = self.locator(spec)
        read: list[Part | ChangePart] = [*change_parts, *snapshot.parts.values()]
        with naming_damaged(read, self.storage), naming_unreadable(part.path for part in read):
            require_intact_keys(change_parts, self.storage, [*columns_of_keys(spec), *_DECIDING])
            crowded = crowded_keys_of(snapshot)
            resolution = resolve(
                snapshot.parts, change_parts, spec, self.storage, self.deletion_vectors, found, crowded=crowded
            )
        actions, step = _actions(snapshot, resolution, spec, self.storage, self.deletion_vectors)
        actions += ended(snapshot)
        if step.remarks:
            actions.append(remarks_of(snapshot).plus(step.remarks, self.log.now_ms()).to_entry())
        left = crowded.after(resolution.counted, resolution.crowded)
        actions += [] if left == crowded else [left.to_entry()]
        _quarantine(resolution, spec, self.set_aside)
        access = ReadWriteSet(
            parts={path: snapshot.parts[path].partition_key for path in resolution.base_dead},
            change_parts=frozenset(part.domain for part in change_parts),
            looked_up_keys=True,
            domains=frozenset([REMARKS] if step.remarks else ()),
        )

        def result(committed: Committed) -> _Step:
            for path, keys in resolution.keys.items():
                if path in committed.snapshot.parts:
                    found.learn(path, keys)
            self.deletion_vectors.forget_removed(committed.snapshot.parts)
            self.log.checkpoint_if_due(committed.snapshot, self.checkpoint_slack)
            return replace(step, version=committed.version), committed.snapshot

        return Proposal(actions=actions, access=access, result=result, metrics=_metrics(step))


def is_as_of(until: int, now: Snapshot, log: TableLog) -> bool:
    """Whether the base has the rows and columns that the table had at the version ``until``, up to which the tail is settled.

    Reads the commits in between. False if one of them is not kept any more.
    """
    for version in range(until + 1, now.version + 1):
        commit = log.read_commit(version)
        if commit is None or truncates(commit) or kind_of(commit) not in _LEAVES_ROWS:
            return False
        for action in commit.actions:
            match action:
                case AddChangePart(part) if part.domain not in now.tail:
                    return False
                case AddPart(data_change=True) | RemovePart(data_change=True) if not settles(commit):
                    return False
                case _:
                    pass
    return True


def _plus(result: SettleResult, step: SettleResult) -> SettleResult:
    """The result, with one more commit added."""
    return replace(
        result,
        version=step.version,
        commits=result.commits + 1,
        change_parts=result.change_parts + step.change_parts,
        rows=result.rows + step.rows,
        rows_marked_dead=result.rows_marked_dead + step.rows_marked_dead,
        base_parts_marked=result.base_parts_marked + step.base_parts_marked,
        late_or_superseded_rows=result.late_or_superseded_rows + step.late_or_superseded_rows,
        late_rows=result.late_rows + step.late_rows,
        waiting_rows=result.waiting_rows + step.waiting_rows,
        completed_rows=result.completed_rows + step.completed_rows,
        quarantined_rows=result.quarantined_rows + step.quarantined_rows,
        bytes_written=result.bytes_written + step.bytes_written,
        remarks=sum_of((result.remarks, step.remarks)),
    )


def _oldest(tail: Sequence[ChangePart], changes_max: int) -> list[ChangePart]:
    taken: list[ChangePart] = []
    rows = 0
    for part in tail:
        if taken and rows + part.rows > changes_max:
            break
        taken.append(part)
        rows += part.rows
    if len(taken) == len(tail):
        return taken
    # Other readers see a commit as a whole, unless it alone is beyond the bound.
    whole = [part for part in taken if part.version < tail[len(taken)].version]
    return whole or taken


def _quarantine(resolution: Resolution, spec: WriteSpec, set_aside: Callable[[ChangePart, pa.Table], None]) -> None:
    for part in resolution.change_parts:
        if part.path in resolution.incomplete_rows:
            records = records_of_incomplete(resolution.incomplete_rows[part.path], spec)
            set_aside(part, records)
            _logger.warning(
                "%d changes go to the quarantine; the first: %s", len(records), records["reason"][0].as_py()
            )


def _actions(
    snapshot: Snapshot,
    resolution: Resolution,
    spec: WriteSpec,
    storage: PartStorage,
    deletion_vectors: DeletionVectorCache,
) -> tuple[list[Action], SettleResult]:
    now_ms = int(time.time() * 1000)
    kept = [part for part in resolution.change_parts if resolution.keeps(part, spec)]
    emptied = {
        path
        for path, dead in resolution.base_dead.items()
        if len(dead) == snapshot.parts[path].rows and not _has_tombstones(snapshot.parts[path], spec)
    }
    bitmaps: dict[str, BitMap64] = {path: dead for path, dead in resolution.base_dead.items() if path not in emptied}
    bitmaps |= {part.path: resolution.tail_dead[part.path] for part in kept if part.path in resolution.tail_dead}
    vectors: Mapping[str, DeletionVector] = deletion_vectors.write(bitmaps)
    actions: list[Action] = []
    marked = 0
    for path, dead in resolution.base_dead.items():
        part = snapshot.parts[path]
        marked += len(dead) - part.dead_rows
        actions.append(part.removed(now_ms))
        if path not in emptied:
            actions.append(AddPart(part.marked(vectors[path])))
    actions += [RemoveChangePart(part.domain) for part in resolution.change_parts]
    actions += [AddPart(part.settled(vectors.get(part.path))) for part in kept]
    completed, bytes_written = 0, sum(vector.bytes for vector in vectors.values() if vector.storage != "i")
    if resolution.completed is not None:
        for written in write_parts(resolution.completed, spec, storage):
            completed += written.rows
            bytes_written += written.bytes
            actions.append(AddPart(_completed_part(written, resolution.completed, resolution.change_parts)))
    if resolution.tombstones is not None:
        for written in write_parts(resolution.tombstones, spec, storage):
            bytes_written += written.bytes
            all_dead = deletion_vectors.write({written.path: BitMap64(range(written.rows))})[written.path]
            part = _completed_part(written, resolution.tombstones, resolution.change_parts)
            actions.append(AddPart(replace(part, deletes=written.rows).marked(all_dead)))
    superseded = sum(len(dead) for dead in resolution.tail_dead.values()) - completed
    step = SettleResult(
        version=-1,
        change_parts=len(resolution.change_parts),
        rows=resolution.rows,
        rows_marked_dead=marked,
        base_parts_marked=len(resolution.base_dead),
        late_or_superseded_rows=superseded - sum(part.deletes for part in resolution.change_parts),
        late_rows=sum(resolution.lost.values()),
        waiting_rows=sum(resolution.waiting.values()),
        remarks=_remarks(resolution, spec),
        completed_rows=completed,
        quarantined_rows=sum(len(incomplete_rows.lacking) for incomplete_rows in resolution.incomplete_rows.values()),
        bytes_written=bytes_written,
    )
    return actions, step


def _remarks(resolution: Resolution, spec: WriteSpec) -> Counts:
    """What is to be said of changes that wait, and of those that lost by their order.

    Those that were sent again lose rightly (``lateness``).
    """
    remarks = RemarkCounts()
    for group, count in resolution.waiting.items():
        remarks.add(Remark.WAITING, group, count)
    order = str(spec.sequence_by if spec.columns is None else spec.incoming.sequence_by)
    batches: dict[int, list[ChangePart]] = {}
    for part in resolution.change_parts:
        batches.setdefault(part.version, []).append(part)
    for parts in batches.values():
        lost = sum(resolution.lost.get(part.path, 0) for part in parts)
        if not lost:
            continue
        if spec.resolves_by_group:  # late in their groups, each of which has an order of its own
            remarks.add(Remark.LOST, OTHERS, lost)
            continue
        remarks.add(Remark.LOST, order, lost)
        late = {part.late for part in parts}
        if Lateness.LOWER in late:
            remarks.add(Remark.ORDER_BEGAN_AGAIN, order, lost)
        elif Lateness.AGAIN not in late and lost == sum(part.rows for part in parts):
            remarks.add(Remark.BATCH_LOST, order, lost)
    return remarks.counts


def _has_tombstones(part: Part, spec: WriteSpec) -> bool:
    return spec.sequence_by is not None and part.deletes > 0


def _completed_part(written: WrittenPart, rows: pa.Table, change_parts: Sequence[ChangePart]) -> Part:
    """``rows``: what was written, perhaps with the version of each."""
    blocks = [part.version for part in change_parts]
    if VERSION_COLUMN in rows.column_names:
        blocks = pc.unique(rows[VERSION_COLUMN]).to_pylist()
    return replace(written.base_part(has_op_column=True), min_block=min(blocks), max_block=max(blocks))


def _metrics(step: SettleResult) -> dict[str, int]:
    some = {"lateRows": step.late_rows, "waitingRows": step.waiting_rows}
    return {
        "changeParts": step.change_parts,
        "rows": step.rows,
        "rowsMarkedDead": step.rows_marked_dead,
        "basePartsMarked": step.base_parts_marked,
        "completedRows": step.completed_rows,
        "quarantinedRows": step.quarantined_rows,
    } | {name: count for name, count in some.items() if count}
