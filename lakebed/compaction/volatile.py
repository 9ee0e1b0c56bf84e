"""Volatile parts: the output of merges stays on the replica's local disk until an upload pays.

1. The sources are claimed (``compaction.merge``). The output is a *volatile part* from now on; it exists nowhere yet.
2. The merge writes to the local disk. The output is now a *materialized part* of this replica. Its sources stay in the log, so
   readers elsewhere still see the same rows. The lease is extended while the replica lives.
3. Planning for readers on this host, the planner sees materialized parts in place of their sources, so it merges them further.
   The new claim covers all normal parts below. Its commit also ends the claims of the materialized parts.
4. Planning for readers elsewhere, the planner sees the store alone, with a larger read budget. What it merges goes by way of the
   local disk, and is uploaded at once: materialized parts that stand for nothing but its inputs are used, others that stand for
   one of them are dropped. So the store is merged as if there were no local disk, only less often.
5. A part is uploaded too when it is old, or when the local disk is full (``planning.settling``). While that is full, nothing is
   planned for this host alone.
6. To upload is to copy it into the object store and to commit it in place of all normal parts that it covers. Only then do these
   leave. If the commit fails, the object is deleted. If that is not certain, the cleanup decides.
7. When the replica starts again, it takes up what is on its disk and still claimed. Its other claims were lost: their merges
   had not ended when it was killed.

At each of these steps, deletion vectors that the sources got meanwhile are mapped onto the output by row provenance.
Invariants: P1 to P4. The loss of the local disk loses work, but no rows.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from lakebed.compaction.merge import LEASE_SECONDS, Merger
from lakebed.compaction.merge_values import (
    MergeKernel,
    MergeOutcome,
    MergeResult,
    PlanningView,
    Progress,
    Sources,
    local_inputs,
    no_progress,
)
from lakebed.coordination.failing import taken_paths
from lakebed.errors import Corrupt, Retry
from lakebed.log.claims import claims_of
from lakebed.log.entries import Operation
from lakebed.log.removals import purged_before
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.merge.materialized import (
    GRACE_SECONDS,
    Materialized,
    MaterializedFolder,
    overlay,
    replica_folder,
)
from lakebed.parts.changes import write_spec_of
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.planning.plan import Goal, MergePlan
from lakebed.planning.settling import UploadRules
from lakebed.settings import TableSettings
from lakebed.storage.local_folders import trouble
from lakebed.storage.part_storage import PartStorage
from lakebed.storage.roots import LocalRoot, parse_root

ROOM_PLANS = 4
"""A local disk has room if so many times ``lakebed.plan_bytes_max`` are free."""

_logger = logging.getLogger("lakebed.volatile")


class VolatileMerger:
    """Merges of one replica whose output stays on its local disk. Safe to use from several threads."""

    def __init__(
        self,
        log: TableLog,
        storage: PartStorage,
        deletion_vectors: DeletionVectorCache,
        base: Path,
        clock: Callable[[], float] = time.time,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        """``base``: the table's folder for materialized parts on this host; the replica takes a free one of its subfolders."""
        folder, name, self._lock_file = replica_folder(base)
        self._folder = MaterializedFolder(folder)
        self._log = log
        self._storage = storage
        self._deletion_vectors = deletion_vectors
        self._clock = clock
        self._merger = Merger(log, storage, deletion_vectors, name, clock, lease_seconds)
        self._lock = threading.Lock()
        self._held: dict[str, Materialized] = {}
        self._busy: set[str] = set()  # claims whose parts a merge or an upload is using
        self._is_full = False  # as ``tidy`` last found the local disk
        self._purged_before = 0  # as ``tidy`` last found it
        self._tried: set[str] = set()  # claims whose upload may have been committed, by this process or one before it
        try:
            self._take_up()
        except BaseException:
            self.close()  # the next attempt finds its place in the folder free
            raise

    @property
    def replica(self) -> str:
        return self._merger.replica

    def held(self) -> list[Materialized]:
        """The materialized parts of this replica."""
        with self._lock:
            return list(self._held.values())

    def holds_any(self) -> bool:
        """Whether there are materialized parts, so leases to extend."""
        return bool(self._held)

    def close(self) -> None:
        """Release the folder. Claims of materialized parts stay until their leases end, so that a restart takes them up."""
        self._merger.close()
        with self._lock:
            if self._lock_file >= 0:
                os.close(self._lock_file)
            self._lock_file = -1

    # -- what the merge runner asks of a merger -------------------------------------------------------------------------

    def views(self, snapshot: Snapshot, now_ms: int) -> Sequence[PlanningView]:
        """The store for readers elsewhere, then with materialized parts in place of their sources for readers here.

        While the local disk is full: the store for all readers.
        """
        with self._lock:
            idle = [one for one in self._held.values() if one.claim.id not in self._busy]
            is_full = self._is_full
        claimed = taken_paths(snapshot, now_ms)
        below = frozenset(part.path for one in idle for part in one.sources)
        goal = Goal.ALL if is_full else Goal.ELSEWHERE
        store = PlanningView(snapshot=snapshot, claimed=claimed - below, goal=goal, below=below)
        if is_full:
            return [store]
        seen, _ = overlay(snapshot, idle, self._deletion_vectors.of)
        return [store, PlanningView(snapshot=seen, claimed=claimed, goal=Goal.HERE)]

    def run_plan(
        self, plan: MergePlan, kernel: MergeKernel, *, progress: Progress = no_progress, claim_id: str | None = None
    ) -> MergeResult:
        """``run`` what was planned for readers here, ``run_and_upload`` the rest."""
        run = self.run if plan.is_local else self.run_and_upload
        return run(plan.inputs, plan.level, kernel, progress=progress, claim_id=claim_id, kind=plan.kind.value)

    def run(
        self,
        paths: Sequence[str],
        level: int,
        kernel: MergeKernel,
        *,
        progress: Progress = no_progress,
        claim_id: str | None = None,
        kind: str = "",
    ) -> MergeResult:
        """Merge parts of the view for readers here into a materialized part. Raises what the kernel raises.

        What the plan predicted is not reported: an upload is the result of several merges, each with its own plan.
        """
        started = time.perf_counter()
        chosen = self._take(paths)
        try:
            result = self._run(paths, level, kernel, progress, chosen, claim_id, kind=kind)
            return replace(result, seconds=time.perf_counter() - started)
        finally:
            with self._lock:
                self._busy -= {one.claim.id for one in chosen}

    def run_and_upload(
        self,
        paths: Sequence[str],
        level: int,
        kernel: MergeKernel,
        *,
        progress: Progress = no_progress,
        claim_id: str | None = None,
        kind: str = "",
    ) -> MergeResult:
        """Merge parts of the store, and put the output in their place there. Raises what the kernel raises, StoreUnavailable."""
        started, wanted, claim_id = time.perf_counter(), frozenset(paths), claim_id or str(uuid.uuid4())
        with self._lock:
            met = [one for one in self._held.values() if any(part.path in wanted for part in one.sources)]
            ids = {one.claim.id for one in met}
            if ids & self._busy:
                return MergeResult(outcome=MergeOutcome.CLAIMED, claim=claim_id)
            ids.add(claim_id)
            self._busy |= ids
        try:
            inside = [one for one in met if all(part.path in wanted for part in one.sources)]
            for one in met:
                if one not in inside:
                    self._merger.abandon(one.claim)
                    self._forget(one)
            covered = {part.path for one in inside for part in one.sources}
            inputs = [path for path in paths if path not in covered]
            if inputs or len(inside) != 1:
                inputs += [one.url(part) for one in inside for part in one.parts]
                result = self._run(inputs, level, kernel, progress, inside, claim_id, kind=kind, uploads=True)
                if result.outcome is not MergeOutcome.COMPLETED:
                    return result
                with self._lock:
                    inside = [self._held[claim_id]]
            return replace(self.upload(inside[0]), seconds=time.perf_counter() - started)
        finally:
            with self._lock:
                self._busy -= ids

    def _run(
        self,
        paths: Sequence[str],
        level: int,
        kernel: MergeKernel,
        progress: Progress,
        chosen: Sequence[Materialized],
        claim_id: str | None,
        *,
        kind: str,
        uploads: bool = False,
    ) -> MergeResult:
        local = {one.url(part) for one in chosen for part in one.parts}
        normal = [path for path in paths if path not in local]
        sources = [*normal, *(part.path for one in chosen for part in one.sources)]
        ending = [one.claim for one in chosen]
        claimed = self._merger.claim(sources, level, True, ending, claim_id, kind=kind, uploads=uploads)
        if isinstance(claimed, MergeResult):
            return claimed
        claim, snapshot = claimed
        try:
            inputs = local_inputs(claim, snapshot, chosen, self._deletion_vectors.of)
            read = self._merger.sources(claim, snapshot)
            kernel_sources = self._merger.kernel_sources(inputs.read, snapshot)
            with self._merger.heartbeat(claim, restoring=[one.claim for one in chosen]):
                output = self._folder.storage_of(claim)
                merged = kernel.merge(kernel_sources, write_spec_of(snapshot), output, progress)
            parts = inputs.traced(merged)
            is_there = claim.domain in self._log.refresh().domains
            if not is_there:  # a purge has ended it: its rows must not stay here
                self._folder.drop(claim.id, grace_seconds=0)
                return MergeResult(outcome=MergeOutcome.OVERTAKEN, claim=claim.id)
            now_ms = int(self._clock() * 1000)
            one = Materialized(
                claim=replace(claim, is_made=True),
                sources=read.parts,
                dead=read.dead,
                parts=parts,
                folder=str(self._folder.folder / claim.id),
                made_ms=now_ms,
                oldest_ms=min((one.oldest_ms for one in chosen), default=now_ms),
                version=snapshot.version,
            )
            self._folder.keep(one)
        except BaseException as error:
            damaged = [one for one in chosen if isinstance(error, Corrupt) and not self._is_whole(one)]
            with suppress(Retry):
                self._merger.abandon(claim, restoring=[one.claim for one in chosen if one not in damaged])
            for one in damaged:
                self._forget(one)
            self._folder.drop(claim.id, grace_seconds=0)
            raise
        with self._lock:
            self._held[claim.id] = one
            for old in chosen:
                self._held.pop(old.claim.id, None)
        for old in chosen:
            self._folder.drop(old.claim.id)
        return MergeResult(
            outcome=MergeOutcome.COMPLETED,
            claim=claim.id,
            version=snapshot.version,
            parts_in=len(inputs.read.parts),
            parts_out=len(parts),
            rows=sum(part.rows for part in parts),
            bytes_in=sum(part.bytes for part in inputs.read.parts),
            bytes_out=sum(part.bytes for part in parts),
            local=True,
        )

    def upload_due(self, rules: UploadRules) -> list[MergeResult]:
        """Upload what is due by the rules. Raises StoreUnavailable; what was committed stays."""
        now_ms = int(self._clock() * 1000)
        with self._lock:
            idle = [one for one in self._held.values() if one.claim.id not in self._busy]
            due = rules.due(idle, now_ms)
            self._busy |= {one.claim.id for one in due}
        try:
            return [self.upload(one) for one in due]
        finally:
            with self._lock:
                self._busy -= {one.claim.id for one in due}

    def upload(self, one: Materialized) -> MergeResult:
        """Put a materialized part into the object store and commit it in place of the normal parts it covers."""
        started = time.perf_counter()
        try:
            self._folder.verify(one)
        except Corrupt:
            self._forget(one)
            self._merger.abandon(one.claim)
            raise
        snapshot = self._log.refresh()
        if (
            one.claim.domain in snapshot.domains
        ):  # else the claim has ended, and the objects may belong to the table by now
            for part in one.parts:
                self._storage.write_file(part.path, _copier(one.local_path(part)))
        tried_before = one.claim.id in self._tried
        self._tried.add(one.claim.id)
        result = self._merger.commit(
            one.claim,
            Sources(one.sources, one.dead),
            one.parts,
            snapshot,
            operation=Operation.UPLOAD,
            tried_before=tried_before,
        )
        self._forget(one)
        return replace(result, seconds=time.perf_counter() - started)

    def extend(self) -> None:
        """Extend the leases of all materialized parts; those that others took over meanwhile are dropped."""
        held = self.held()
        if not held:
            return
        kept = {claim.id for claim in self._merger.extend([one.claim for one in held])}
        for one in held:
            if one.claim.id not in kept:
                with self._lock:
                    busy = one.claim.id in self._busy
                if not busy:
                    self._forget(one)

    def tidy(self) -> None:
        """Remove files that were kept for readers long enough, and claims of replicas that are gone (``Merger.tidy``)."""
        self._merger.tidy()
        newest = self._log.newest or self._log.refresh()
        settings = newest.settings
        is_full = not self._folder.has_room(settings.volatile_bytes_max, 2 * settings.plan_bytes_max)
        with self._lock:
            self._is_full = is_full
            in_use = set(self._held) | self._busy
        in_flight = {claim.id for claim in claims_of(newest.domains).values() if claim.replica == self.replica}
        before = purged_before(newest.domains)
        grace_seconds = GRACE_SECONDS if before == self._purged_before else 0.0
        self._folder.sweep(lambda name: name in in_use or name in in_flight, grace_seconds)
        self._purged_before = before

    # -- inside ------------------------------------------------------------------------------------------------------

    def _take(self, paths: Collection[str]) -> list[Materialized]:
        with self._lock:
            chosen = [
                one
                for one in self._held.values()
                if one.claim.id not in self._busy and any(one.url(part) in paths for part in one.parts)
            ]
            self._busy |= {one.claim.id for one in chosen}
        return chosen

    def _take_up(self) -> None:
        """Take up the materialized parts of this replica after a restart."""
        snapshot = self._log.refresh()
        in_log = {claim.id: claim for claim in claims_of(snapshot.domains).values() if claim.replica == self.replica}
        for claim_id, one in self._folder.load().items():
            try:
                if claim_id not in in_log or in_log[claim_id].sources != one.claim.sources:
                    raise Corrupt(
                        f"the claim of the materialized part in {one.folder} is not in the log any more",
                        path=one.folder,
                    )
                self._folder.verify(one)
            except Corrupt as error:
                _logger.warning("%s", error)
                self._folder.drop(claim_id, grace_seconds=0)
                continue
            self._held[claim_id] = replace(one, claim=replace(one.claim, is_made=True))
            self._tried.add(claim_id)
        for claim_id, claim in in_log.items():
            if claim_id not in self._held:
                with suppress(Retry):
                    self._merger.give_up(claim)

    def _is_whole(self, one: Materialized) -> bool:
        try:
            self._folder.verify(one)
        except Corrupt as error:
            _logger.warning("%s", error)
            return False
        return True

    def _forget(self, one: Materialized) -> None:
        with self._lock:
            self._held.pop(one.claim.id, None)
            self._tried.discard(one.claim.id)
        self._folder.drop(one.claim.id)


def _copier(source: str) -> Callable[[str], None]:
    def copy(place: str) -> None:
        try:
            shutil.copyfile(source, place)
        except OSError as error:
            raise trouble(error.errno, f"{source} can't be copied to {place} ({error})", source) from error

    return copy


@dataclass(frozen=True, slots=True)
class _VolatileChoice:
    """What was chosen for a process, and why."""

    is_on: bool
    why: str

    def __str__(self) -> str:
        return f"{'on' if self.is_on else 'off'}: {self.why}"


def volatile_choice(
    settings: TableSettings, root: str, folder: Path, on_cluster: bool = False, in_fleet: bool = False
) -> _VolatileChoice:
    """The choice for a process on this host. ``folder``: where it would keep its parts; ``on_cluster``: merges are Spark jobs;
    ``in_fleet``: the process is a worker of a fleet.
    """
    if settings.volatile == "off":
        return _VolatileChoice(False, "lakebed.volatile is off")
    if on_cluster:
        return _VolatileChoice(False, "merges are jobs of a cluster, which has many local disks")
    if settings.volatile == "on":
        return _VolatileChoice(True, "lakebed.volatile is on")
    if isinstance(parse_root(root), LocalRoot):
        return _VolatileChoice(False, "lakebed.volatile is auto, the table is on a file system")
    if in_fleet:
        return _VolatileChoice(False, "lakebed.volatile is auto, and no reader runs on the host of a fleet's worker")
    room, place = ROOM_PLANS * settings.plan_bytes_max, _existing(folder)
    if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
        return _VolatileChoice(False, f"lakebed.volatile is auto, and {place} is no folder that can be written")
    free = shutil.disk_usage(place).free
    text = f"{free / 1e9:,.1f} GB are free at {place}"
    if free < room:
        return _VolatileChoice(False, f"lakebed.volatile is auto, and only {text}; it takes {room / 1e9:,.1f} GB")
    return _VolatileChoice(True, f"lakebed.volatile is auto, the table is in an object store, and {text}")


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
