"""Merge: some base parts become few sorted parts of the next level. No writer waits for it.

1. **Claim.** The log gets a claim that lists the sources. If a live claim lists one of them, or one has left the base, the merge
   ends here, before any work is done. Expired claims on them are taken over in the same commit, and count as lost. Parts that
   are in several lost claims are parked in place of being claimed (``coordination.failing``).
2. **Work.** The kernel (``merge.kernel``) reads the sources as they are at the claim's commit and writes new files. Meanwhile a
   heartbeat extends the lease.
3. **Commit.** Rows that died since the claim are in newer deletion vectors of the sources. The row provenance says where these
   rows are in the output, and the output joins the base with them marked dead. The sources leave in the same commit. If a settle
   commits first, step 3 runs again. That takes milliseconds, and neither the settle nor the merge loses work.
4. If the claim is gone, or another commit replaced a source, the new files are deleted. A file is deleted only if every commit
   that lists it was certainly refused. If the store's answer to one was lost, that commit may have succeeded, and a later
   version may have merged or detached its parts. Then the files are left to the cleanup, which knows all kept versions.

Invariants: P1, P3 and P4 by the checks of the log; S1 by the kernel; S2: what is live in the sources at the commit is live in
the output.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TypeAlias

from pyroaring import BitMap64

from lakebed import events
from lakebed.compaction.merge_values import (
    MergeKernel,
    MergeOutcome,
    MergeResult,
    PlanningView,
    Progress,
    Sources,
    found_again,
    no_progress,
)
from lakebed.coordination.failing import Losses, losses, parked_paths, taken_back, taken_paths
from lakebed.errors import LakebedError, Retry
from lakebed.log.actions import Action, AddPart, Part
from lakebed.log.claims import Claim, claims_of
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.conflicts import ReadWriteSet
from lakebed.log.entries import Operation
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import Committed, TableLog
from lakebed.merge.kernel import MergedPart, MergeSource
from lakebed.parts.changes import write_spec_of
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.planning.plan import MergePlan
from lakebed.storage.part_storage import PartStorage

LEASE_SECONDS = 120.0
HEARTBEATS = 4  # in the time of a lease
_logger = logging.getLogger("lakebed.merge")


_Claimed: TypeAlias = tuple[Claim, Snapshot] | MergeResult
"""A claim and the snapshot at its commit, or why there is none."""


class Merger:
    """Runs merges of one replica on one table. Safe to use from several threads, each with its own merge."""

    def __init__(
        self,
        log: TableLog,
        storage: PartStorage,
        deletion_vectors: DeletionVectorCache,
        replica: str,
        clock: Callable[[], float] = time.time,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self._log = log
        self._storage = storage
        self._deletion_vectors = deletion_vectors
        self.replica = replica
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._at_work: dict[str, tuple[Claim, Sequence[Claim]]] = {}
        self._unreleased: dict[str, Claim] = {}  # the store did not answer

    def views(self, snapshot: Snapshot, now_ms: int) -> Sequence[PlanningView]:
        """What plans are made for, the first first: all readers."""
        return [PlanningView(snapshot=snapshot, claimed=taken_paths(snapshot, now_ms))]

    def run_plan(
        self, plan: MergePlan, kernel: MergeKernel, *, progress: Progress = no_progress, claim_id: str | None = None
    ) -> MergeResult:
        """``run`` what was planned."""
        predicted = plan.predicted()
        return self.run(
            plan.inputs,
            plan.level,
            kernel,
            progress=progress,
            predicted=predicted,
            claim_id=claim_id,
            kind=plan.kind.value,
        )

    def run(
        self,
        paths: Sequence[str],
        level: int,
        kernel: MergeKernel,
        *,
        progress: Progress = no_progress,
        predicted: Mapping[str, object] | None = None,
        claim_id: str | None = None,
        kind: str = "",
    ) -> MergeResult:
        """Merge these parts into parts of ``level``.

        ``predicted``: the figures of the plan; the commit repeats them beside the actual ones (``Table.compactions``).
        ``claim_id``: the id of the claim (default: a new uuid); ``kind``: the plan's, which the claim records.
        Raises what the kernel raises (the claim is released first), Contention, StoreUnavailable (whether the output was
        committed may be unknown, so its files are left to the cleanup; ``tidy`` releases the claim).
        """
        started = time.perf_counter()
        claimed = self.claim(paths, level, claim_id=claim_id, kind=kind)
        if isinstance(claimed, MergeResult):
            return claimed
        claim, snapshot = claimed
        sources = self.sources(claim, snapshot)
        try:
            with self.heartbeat(claim):
                kernel_sources = self.kernel_sources(sources, snapshot)
                merged = kernel.merge(kernel_sources, write_spec_of(snapshot), self._storage, progress)
        except BaseException:
            with suppress(Retry):
                self.abandon(claim)
            raise
        try:
            result = self.commit(claim, sources, merged, snapshot, predicted=predicted)
        except Retry:
            self._unreleased[claim.id] = claim
            raise
        return replace(result, seconds=time.perf_counter() - started)

    def close(self) -> None:
        """Release the claims of merges that still work. Their output will not be committed."""
        for claim, restoring in list(self._at_work.values()):
            with suppress(Retry):
                self.abandon(claim, restoring)

    # -- 1. claim ----------------------------------------------------------------------------------------------------

    def claim(
        self,
        paths: Sequence[str],
        level: int,
        volatile: bool = False,
        ending: Sequence[Claim] = (),
        claim_id: str | None = None,
        *,
        kind: str = "",
        uploads: bool = False,
    ) -> _Claimed:
        """A claim on the parts and the snapshot at its commit; or why there is none. Raises StoreUnavailable, Contention.

        ``ending``: claims of this replica that the new one replaces; ``uploads``: see ``Claim``.
        """
        wanted, ours = frozenset(paths), {other.id for other in ending}
        claim_id = claim_id or str(uuid.uuid4())

        def build(snapshot: Snapshot) -> Proposal[_Claimed] | Finished[_Claimed]:
            if not wanted <= snapshot.parts.keys():
                return Finished(MergeResult(outcome=MergeOutcome.REPLACED, claim=claim_id))
            now = int(self._clock() * 1000)
            rivals = [other for other in claims_of(snapshot.domains).values() if not wanted.isdisjoint(other.sources)]
            if any(other.is_live(now) for other in rivals if other.id not in ours):
                return Finished(MergeResult(outcome=MergeOutcome.CLAIMED, claim=claim_id))
            if not ours <= {other.id for other in rivals}:
                return Finished(MergeResult(outcome=MergeOutcome.OVERTAKEN, claim=claim_id))
            lost = [other for other in rivals if other.id not in ours]
            found = losses(snapshot, lost, now)
            if not wanted.isdisjoint(parked_paths(snapshot, now)):
                return Finished(MergeResult(outcome=MergeOutcome.PARKED, claim=claim_id))
            if found.parked is not None:
                return self._parking(lost, found, claim_id)
            lease_ms = now + int(self._lease_seconds * 1000)
            claim = Claim(
                id=claim_id,
                replica=self.replica,
                sources=tuple(paths),
                level=level,
                lease_ms=lease_ms,
                since_ms=now,
                volatile=volatile,
                kind=kind,
                uploads=uploads,
            )

            def result(committed: Committed) -> _Claimed:
                self._emit("taken_over" if lost else "taken", committed.version, claim)
                return claim, committed.snapshot

            domains = found.domains | {other.domain for other in rivals}
            access = ReadWriteSet(claimed=wanted, domains=domains)
            actions = [*(other.ended() for other in rivals), *found.actions, claim.to_action()]
            return Proposal(actions=actions, access=access, result=result, metrics={"parts": len(wanted)})

        return commit_loop(self._log, Operation.CLAIM, build)

    def _parking(self, lost: Sequence[Claim], found: Losses, claim_id: str) -> Proposal[_Claimed]:
        """Ends claims that were lost, and parks what is in too many of them, in place of a claim."""

        def result(committed: Committed) -> _Claimed:
            for claim in lost:
                self._emit("expired", committed.version, claim)
            self._warn(found)
            return MergeResult(outcome=MergeOutcome.PARKED, claim=claim_id)

        access = ReadWriteSet(domains=found.domains | {claim.domain for claim in lost})
        actions = [*(claim.ended() for claim in lost), *found.actions]
        return Proposal(actions=actions, access=access, result=result)

    @contextmanager
    def heartbeat(self, claim: Claim, restoring: Sequence[Claim] = ()) -> Iterator[None]:
        """Extends the claim's lease while the block runs. A heartbeat that fails is tried again at the next one.

        ``restoring``: claims that are restored in its place if ``close`` releases it.
        """
        done = threading.Event()

        def beat() -> None:
            while not done.wait(self._lease_seconds / HEARTBEATS):
                with suppress(Retry):
                    if not self.extend([claim]):
                        return

        thread = threading.Thread(target=beat, name=f"lakebed-lease-{claim.id[:8]}", daemon=True)
        thread.start()
        self._at_work[claim.id] = claim, restoring
        try:
            yield
        finally:
            del self._at_work[claim.id]
            done.set()
            thread.join()

    def extend(self, claims: Sequence[Claim]) -> list[Claim]:
        """Extend the leases of those claims that are still in the log, in one commit; returns these.

        Others are not lost, because this process lives: the commit takes that back, if another process noted it.
        """

        def build(snapshot: Snapshot) -> Proposal[list[Claim]] | Finished[list[Claim]]:
            lease_ms = int(self._clock() * 1000) + int(self._lease_seconds * 1000)
            held = [replace(claim, lease_ms=lease_ms) for claim in claims if claim.domain in snapshot.domains]
            back = taken_back(snapshot, {claim.id for claim in claims if claim.domain not in snapshot.domains})
            actions = [*(claim.to_action() for claim in held), *back]
            return Proposal(actions=actions, result=lambda _: held) if actions else Finished([])

        return commit_loop(self._log, Operation.EXTEND_CLAIM, build)

    def abandon(self, claim: Claim, restoring: Sequence[Claim] = ()) -> None:
        """Remove the claim of this process from the log, if it is still there; ``restoring``: claims that come in its place.

        Raises StoreUnavailable, Contention: then ``tidy`` tries again, so that nobody takes this process for lost.
        """

        def build(snapshot: Snapshot) -> Proposal[None] | Finished[None]:
            if claim.domain not in snapshot.domains:
                back = taken_back(snapshot, [claim.id])
                return Proposal(actions=back, result=lambda _: None) if back else Finished(None)
            old_ones = [old for old in restoring if all(path in snapshot.parts for path in old.sources)]
            access = ReadWriteSet(
                claimed=frozenset(path for old in old_ones for path in old.sources), domains=frozenset([claim.domain])
            )
            lease_ms = int((self._clock() + self._lease_seconds) * 1000)
            restored = [replace(old, lease_ms=lease_ms).to_action() for old in old_ones]
            return Proposal(
                actions=[claim.ended(), *restored],
                access=access,
                result=lambda committed: self._emit("abandoned", committed.version, claim),
            )

        self._unreleased[claim.id] = claim
        commit_loop(self._log, Operation.ABANDON_CLAIM, build)
        self._unreleased.pop(claim.id, None)

    def holds_unreleased(self) -> bool:
        """Whether claims of merges that failed could not be released."""
        return bool(self._unreleased)

    def give_up(self, claim: Claim) -> None:
        """Remove a lost process's claim and note the loss (``failing``). Raises StoreUnavailable, Contention."""

        def build(snapshot: Snapshot) -> Proposal[None] | Finished[None]:
            now = claims_of(snapshot.domains).get(claim.id)
            if now is None:
                return Finished(None)
            found = losses(snapshot, [now], int(self._clock() * 1000))

            def result(committed: Committed) -> None:
                self._emit("expired", committed.version, now)
                self._warn(found)

            access = ReadWriteSet(domains=found.domains | {now.domain})
            return Proposal(actions=[now.ended(), *found.actions], access=access, result=result)

        commit_loop(self._log, Operation.ABANDON_CLAIM, build)

    def _warn(self, found: Losses) -> None:
        if found.parked is not None:
            _logger.warning(
                "%d parts of %s are left alone, because merges of them ended %d processes: %s",
                len(found.parked.sources),
                self._storage.root,
                found.parked.failures,
                found.parked.sources[0],
            )

    def _emit(self, result: str, version: int, claim: Claim) -> None:
        events.emit(
            events.ClaimChanged(
                table=self._storage.root, result=result, version=version, claim=claim.id, replica=claim.replica
            )
        )

    def tidy(self) -> None:
        """Remove claims that nobody needs: those of merges that failed here while the store did not answer, and those of other
        replicas whose leases ended at least one lease ago. One that comes back so late does its work again.
        """
        for claim in list(self._unreleased.values()):
            self.abandon(claim)
        late_ms = int((self._clock() - self._lease_seconds) * 1000)
        newest = self._log.newest or self._log.refresh()  # a claim that others made since is not old enough
        for claim in claims_of(newest.domains).values():
            if claim.replica != self.replica and not claim.is_live(late_ms):
                self.give_up(claim)

    # -- 2. work -----------------------------------------------------------------------------------------------------

    def sources(self, claim: Claim, snapshot: Snapshot) -> Sources:
        """The claim's sources at a snapshot that has them."""
        parts = tuple(snapshot.parts[path] for path in claim.sources)
        return Sources(parts, {part.path: self._deletion_vectors.of(part) for part in parts})

    def kernel_sources(self, sources: Sources, snapshot: Snapshot) -> list[MergeSource]:
        """What the kernel needs to know of each source; deletes younger than the table's ``tombstone_retention`` are kept."""
        now_ms = int(self._clock() * 1000)
        return [
            MergeSource(
                part,
                sources.dead[part.path],
                keeps_deletes=snapshot.keeps_deletes(part, now_ms),
                url=self._storage.duckdb_url(part.path),
            )
            for part in sources.parts
        ]

    # -- 3. commit ---------------------------------------------------------------------------------------------------

    def commit(
        self,
        claim: Claim,
        sources: Sources,
        merged: Sequence[MergedPart],
        read: Snapshot,
        *,
        operation: Operation = Operation.MERGE,
        predicted: Mapping[str, object] | None = None,
        tried_before: bool = False,
    ) -> MergeResult:
        """Put the output in place of the sources. If that is not possible, its files are deleted (step 4).

        After StoreUnavailable call it again, with ``tried_before``. If the earlier commit succeeded after all, it is found,
        unless it is long ago. No file is deleted then.
        """
        attempts = 0

        def build(snapshot: Snapshot) -> Proposal[MergeResult] | Finished[MergeResult]:
            nonlocal attempts
            conflicts, attempts = attempts, attempts + 1
            if claim.domain not in snapshot.domains:
                if any(part.path in snapshot.parts or part.path in snapshot.removed for part in merged):
                    return Finished(found_again(claim, sources, merged, snapshot))
                discard()
                return Finished(MergeResult(outcome=MergeOutcome.OVERTAKEN, claim=claim.id, conflicts=conflicts))
            died = self._died(sources, snapshot)
            if died is None or not write_spec_of(read).fits(write_spec_of(snapshot)):
                discard()
                return Finished(MergeResult(outcome=MergeOutcome.REPLACED, claim=claim.id, conflicts=conflicts))
            actions, result = self._actions(claim, sources, merged, died, snapshot)
            access = ReadWriteSet(
                parts={part.path: part.partition_key for part in sources.parts if part.path in snapshot.parts},
                domains=frozenset([claim.domain]),
            )
            parameters = {"claim": claim.id, "replica": claim.replica, "level": claim.level, **(predicted or {})}
            cost = {
                "rowsIn": sum(part.rows - len(sources.dead[part.path]) for part in sources.parts),
                "rowsOut": sum(action.part.live_rows for action in actions if isinstance(action, AddPart)),
                "seconds": round(self._clock() - claim.since_ms / 1000, 3),
            }
            return Proposal(
                actions=actions,
                access=access,
                result=lambda committed: replace(result, version=committed.version, conflicts=conflicts),
                parameters=parameters,
                metrics=result.metrics() | cost,
            )

        def discard() -> None:
            if not tried_before:
                self._discard(merged)

        result = commit_loop(self._log, operation, build, discard=discard)
        if result.outcome in (MergeOutcome.REPLACED, MergeOutcome.OVERTAKEN):
            self.abandon(claim)
        return result

    def _died(self, sources: Sources, snapshot: Snapshot) -> dict[str, BitMap64] | None:
        """Rows of each source that died since it was read; None if another merge has replaced a source."""
        died: dict[str, BitMap64] = {}
        for part in sources.parts:
            now = snapshot.parts.get(part.path)
            if now is not None:
                dead = self._deletion_vectors.of(now)
            else:
                gone = snapshot.removed.get(part.path)
                if gone is None or not gone.data_change:
                    return None
                dead = BitMap64(range(part.rows))  # its last rows were deleted
            new = dead - sources.dead[part.path]
            if new:
                died[part.path] = new
        return died

    def _actions(
        self,
        claim: Claim,
        sources: Sources,
        merged: Sequence[MergedPart],
        died: Mapping[str, BitMap64],
        snapshot: Snapshot,
    ) -> tuple[list[Action], MergeResult]:
        now_ms = int(self._clock() * 1000)
        dead_of = {part.path: BitMap64(part.dead) for part in merged}
        carried = 0
        for ordinal, source in enumerate(sources.parts):
            if source.path in died:
                for part in merged:
                    found = part.provenance.map_rows(ordinal, died[source.path])
                    carried += len(found)
                    dead_of[part.path] |= found
        kept = [part for part in merged if len(dead_of[part.path]) < part.rows or part.deletes]
        vectors = self._deletion_vectors.write({part.path: dead_of[part.path] for part in kept if dead_of[part.path]})
        leaving = [snapshot.parts[part.path] for part in sources.parts if part.path in snapshot.parts]
        deletes_ms = max((part.newest_delete_ms for part in sources.parts if part.deletes), default=None)
        actions: list[Action] = [part.removed(now_ms, data_change=False) for part in leaving]
        for part in kept:
            output = Part(
                path=part.path,
                rows=part.rows,
                bytes=part.bytes,
                level=claim.level,
                min_block=min(source.min_block for source in sources.parts),
                max_block=max(source.max_block for source in sources.parts),
                sort_key_version=part.sort_key_version,
                deletes=part.deletes,
                has_op_column=part.has_op_column,
                partition_values=sources.parts[0].partition_values,
                stats=part.stats,
                modified_ms=now_ms,
                deletes_ms=deletes_ms if part.deletes else None,
                checksum=part.checksum,
                passes=part.passes,
            )
            actions.append(AddPart(output.marked(vectors.get(part.path)), data_change=False))
        actions.append(claim.ended())
        result = MergeResult(
            outcome=MergeOutcome.COMPLETED,
            claim=claim.id,
            parts_in=len(leaving),
            parts_out=len(kept),
            rows=sum(part.rows for part in kept),
            bytes_in=sum(part.bytes for part in sources.parts),
            bytes_out=sum(part.bytes for part in kept),
            carried_rows=carried,
            vector_bytes=sum(vector.bytes for vector in vectors.values() if vector.storage != "i"),
        )
        return actions, result

    def _discard(self, merged: Sequence[MergedPart]) -> None:
        """Delete files that no commit lists."""
        for part in merged:
            try:
                self._storage.delete(part.path)
            except LakebedError as error:
                _logger.warning("%s is left to the cleanup: %s", part.path, error)
