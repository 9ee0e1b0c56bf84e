"""Overwrites whose rows are written by tasks, while others go on committing.

An overwrite of a billion rows takes an hour. It replaces what the table held when it began (the version ``began``), and what
is committed meanwhile counts after it:

1. The tail is settled, and then the version is read that the overwrite begins with. Tasks write the rows (``Tasks.write``).
2. In a table with keys tasks check that each key is once among the rows, and live in none of the parts that stay
   (``Tasks.check``). With ``sequence_by`` deletes that these parts remember are looked up among the rows.
3. The commit removes the region's parts and adds the new ones. Changes that came since are about other keys mostly, which the
   ranges in the log show. The same commit brings the others once more, as the newest changes (``overwrite_since``). So every
   version shows what the log says in its order: the rows, then the changes; and so does a copy that follows ``changes``.
4. In a table without keys rows that were appended since stay where they are.
5. What can't be done once more ends the overwrite, and nothing was changed (Contention): rows that left or came otherwise than
   by a change, a ``delete`` or ``update`` of such rows, changes without all values, sums, and first rows.

Where rows are replaced, not partitions, they are marked dead where they are. An attempt to commit settles nothing, and does only
with those changes something that came since the one before: that is why it ends beside a stream (``overwrite_since``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.errors import Contention, InvalidInput
from lakebed.log.actions import Action, AddChangePart, AddPart, Domain, Part
from lakebed.log.commit_kind import replaced
from lakebed.log.commit_loop import NotYet, Proposal, commit_loop
from lakebed.log.conflicts import ReadWriteSet
from lakebed.log.entries import Operation
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import Committed, TableLog
from lakebed.operations.commit_changes import discard
from lakebed.operations.joining import require_newest
from lakebed.operations.mutate import Matching, rows_marked_dead
from lakebed.operations.mutation import Mutation
from lakebed.operations.overwrite_since import After, Since, named_key
from lakebed.operations.region import Region, overwritten, require_inside, require_same_shape
from lakebed.parts.changes import DELETE, OP_COLUMN, SEQUENCE_COLUMN, WriteSpec, write_spec_of
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.parts.part_filter import KeyRanges
from lakebed.parts.write import WrittenPart
from lakebed.positions.positions import removals
from lakebed.resolve.locate import KeyLocator, read_keys
from lakebed.storage.part_storage import PartStorage


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """What tasks do for an overwrite."""

    write: Callable[[Snapshot], Sequence[WrittenPart]]
    """Writes the rows in the shape of a version, without a column of operations."""
    check: Callable[[Snapshot, Sequence[Part], Sequence[Part], str], None]
    """Raises InvalidInput naming a key that is twice in the first parts, or in the first and live in the second. The text says
    what the first ones are."""
    locator: Callable[[WriteSpec], KeyLocator]
    """Finds some keys in the new parts."""


@dataclass(slots=True, kw_only=True)
class Overwriting:
    """One overwrite."""

    log: TableLog
    storage: PartStorage
    deletion_vectors: DeletionVectorCache
    settle: Callable[[], object]
    locator: Callable[[WriteSpec], KeyLocator]
    """Finds keys in the base."""
    tasks: Tasks
    operation: Operation
    region_of: Callable[[Snapshot], Region]

    def run(self) -> int:
        """Returns the version. Raises InvalidInput, InvalidChanges, Contention, StoreUnavailable."""
        self.region_of(self.log.refresh())  # what was asked for is checked before anything is done
        self.settle()
        began = self.log.refresh()
        region, spec = self.region_of(began), write_spec_of(began)
        matching = self._matching(region, began)
        written = list(self.tasks.write(began))
        since = Since(
            log=self.log,
            storage=self.storage,
            deletion_vectors=self.deletion_vectors,
            in_base=self.locator,
            by_tasks=self.tasks.locator,
            operation=self.operation,
            began=began,
            region=region,
            parts={part.path: part.base_part(has_op_column=False) for part in written},
            matching=matching,
        )
        try:
            require_inside(region, written, began)
            if spec.keys:
                self._check(began, region, since)
        except BaseException:
            discard(written, self.storage)
            raise
        unsettled = False

        def newest() -> Snapshot:
            if unsettled:
                self.settle()
            return self.log.refresh()

        def build(snapshot: Snapshot) -> Proposal[int] | NotYet:
            nonlocal unsettled
            try:
                propose = self._proposal if since.matching is None else self._proposal_of_rows
                proposal = propose(snapshot, spec, since)
            except Contention:  # nothing of it was committed, and nothing is tried again
                discard_all()
                raise
            unsettled = isinstance(proposal, NotYet)
            return proposal

        def discard_all() -> None:
            discard([*written, *since.written], self.storage)

        try:
            return commit_loop(self.log, self.operation, build, newest=newest, discard=discard_all, repeatable=False)
        finally:
            since.close()

    def _matching(self, region: Region, began: Snapshot) -> Matching | None:
        if region.rows is None:
            return None
        matching = Matching(
            storage=self.storage,
            deletion_vectors=self.deletion_vectors,
            statistics=self.log.statistics,
            mutation=Mutation(region.rows),
            began=began,
        )
        matching.of(began)  # a condition that fails on some row fails before the rows are written
        return matching

    def _check(self, began: Snapshot, region: Region, since: Since) -> None:
        """Step 2."""
        new, whose, spec = since.parts, f"the rows for {region.name}", write_spec_of(began)
        ranges = KeyRanges.of(new.values(), spec)
        if since.matching is None:
            parts = [part for part in began.parts.values() if not region.has(part.partition_key)]
        else:  # as if the rows that leave had left
            dying = since.matching.of(began)
            marked = rows_marked_dead(began, dying, self.deletion_vectors)
            parts = [part for path, part in began.parts.items() if path not in dying]
            parts += [action.part for action in marked if isinstance(action, AddPart)]
        staying = [part for part in parts if ranges.may_meet(part)]
        self.tasks.check(began, list(new.values()), staying, whose)
        if spec.sequence_column is None:
            return
        for part in staying:
            if not part.deletes:
                continue
            for batch in read_keys(part, spec, self.storage):
                rows = pa.Table.from_batches([batch])
                deletes = rows.filter(pc.equal(rows[OP_COLUMN], DELETE))
                self._refuse_lost(began, spec, new, part, deletes, whose)

    def _refuse_lost(
        self, began: Snapshot, spec: WriteSpec, new: Mapping[str, Part], part: Part, deletes: pa.Table, whose: str
    ) -> None:
        if not len(deletes):
            return
        locator = self.tasks.locator(spec)
        found = locator.lookup(new, deletes.select(list(spec.keys)))
        lost = pc.greater(deletes[SEQUENCE_COLUMN].take(found["probe"]), found[SEQUENCE_COLUMN])
        hits = found["probe"].filter(lost)
        if len(hits):
            key = named_key(began, deletes.select(list(spec.keys)).take(hits[:1]))
            raise InvalidInput(
                f"{whose} have the key {key}, which was deleted with a newer {began.logical_settings.sequence_by}; leave it "
                "out, or give it one that is not older"
            )
        keys = deletes.select(list(spec.keys)).take(found["probe"])
        require_newest(keys, {**new, part.path: part}, began, self.storage, self.deletion_vectors, locator, whose=whose)

    def _proposal(self, snapshot: Snapshot, spec: WriteSpec, since: Since) -> Proposal[int] | NotYet:
        """Steps 3 to 5."""
        since.follow(snapshot)
        require_same_shape(spec, snapshot)
        if joined := since.joined(snapshot):
            self.tasks.check(snapshot, list(since.parts.values()), joined, f"the rows for {since.region.name}")
        going = since.going(snapshot)
        after = since.partitions(snapshot, going)
        if isinstance(after, NotYet):
            return after
        leaving = removals(snapshot, going.values(), int(time.time() * 1000))
        access = ReadWriteSet(
            parts={path: part.partition_key for path, part in going.items()},
            change_parts=after.awaited,
            claimed=frozenset(going),  # a claim that comes first must end too
            domains=frozenset(action.domain for action in leaving if isinstance(action, Domain)),
            joining=after.ranges,
            inserts_missing=bool(after.again),  # others may take away what such a change brought
        )
        return self._proposed(leaving, since, after, access, snapshot, {"parts": len(going)})

    def _proposal_of_rows(self, snapshot: Snapshot, spec: WriteSpec, since: Since) -> Proposal[int]:
        """Steps 3 to 5, where rows leave and not whole partitions."""
        since.follow(snapshot)
        require_same_shape(spec, snapshot)
        leaving, after = since.rows(snapshot)
        concerned = {path: snapshot.parts[path] for path in leaving}
        access = ReadWriteSet(
            parts={path: part.partition_key for path, part in concerned.items()},
            change_parts=after.awaited,
            joining=after.ranges,
            inserts_missing=True,  # another overwrite may bring rows that match, and take away none of these parts
        )
        metrics = {"parts": len(leaving), "rowsMarkedDead": sum(map(len, leaving.values()))}
        marked = rows_marked_dead(snapshot, leaving, self.deletion_vectors)
        return self._proposed(marked, since, after, access, snapshot, metrics)

    def _proposed(
        self,
        leaving: Sequence[Action],
        since: Since,
        after: After,
        access: ReadWriteSet,
        snapshot: Snapshot,
        metrics: Mapping[str, int],
    ) -> Proposal[int]:
        vectors, region = self.deletion_vectors.write(after.lost), since.region
        coming: list[Action] = [AddPart(part.marked(vectors.get(path))) for path, part in since.parts.items()]
        coming += map(AddChangePart, after.again)
        metrics = {**metrics, "rows": sum(part.rows for part in since.parts.values())}
        if after.again:
            metrics["changesKept"] = sum(part.rows for part in after.again)

        def result(committed: Committed) -> int:
            self.log.checkpoint_if_due(committed.snapshot, slack=2)
            return committed.version

        return Proposal(
            actions=[*leaving, *coming, replaced(region.partition, region.where)],
            access=access,
            result=result,
            parameters=overwritten(region, snapshot),
            metrics=metrics,
        )
