"""Replicated parts: what other hosts merge and keep on their disks, built here once more for the readers of this host.

A claim in the log lists the sources of a merge. When its output stays on the claimant's disk (``compaction.volatile``), readers
elsewhere have the sources alone. With ``lakebed.replicate_local`` each other host that maintains the table builds the same rows
from these sources, for itself. Nothing is committed for that. One process of a host does it, the one that has the lock of the
folder; all processes there read what it built. At each look:

1. A part is dropped when no claim in the log covers its sources any more (it was completed, given up, ended by a purge, or
   removed because its lease ended), when a source has left, when a part on this host covers it, or when it was damaged. Its files
   stay for a while for readers that have begun, but not after a purge.
2. Of the live claims of replicas on other hosts, the one is taken that saves a read most parts for its bytes. A claim is left
   alone if its output is uploaded at once, if it saves no part, and if building it failed or was broken off by the end of the
   process: a merge that kills its process shall not kill this one again and again. Replicated parts within it are its inputs.
3. If the local disk has no room for it, the part that is worth least goes. When that has gone, its room can be used.
4. The merge reads the sources as they are at the newest version. The part is given to readers only if the claim is still there.

What makes reads right is not the claim: ``overlay`` uses a part only at versions from the one on that its merge read, which have
all its sources, with at least the dead rows that the merge left out, and hides the rows that died since. So a part may come late
or stay too long, and no clock matters.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from enum import Enum
from pathlib import Path

from lakebed import events
from lakebed.compaction.merge import Merger
from lakebed.compaction.merge_values import MergeKernel, Progress, local_inputs, no_progress
from lakebed.errors import Cancelled, Corrupt, LakebedError
from lakebed.log.claims import Claim, claims_of
from lakebed.log.removals import purged_before
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.merge.materialized import (
    GRACE_SECONDS,
    REPLICATED,
    LocalParts,
    Materialized,
    MaterializedFolder,
    bytes_below,
    overlay,
    replicas_on_this_host,
)
from lakebed.parts.changes import write_spec_of
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.settings import TableSettings
from lakebed.storage.local_folders import lock_folder, trouble
from lakebed.storage.part_storage import PartStorage

SAVED_MIN = 1
"""A part is built if a read opens at least so many fewer with it."""
FAILURES_MAX = 3  # attempts to build a claim's part
_CLOSE_SECONDS_MAX = 5.0
_BEGUN = "begun"
_logger = logging.getLogger("lakebed.volatile")


class _Room(Enum):
    """When there is room for a part."""

    NOW = "now"
    LATER = "later"  # when the files of others have gone
    NEVER = "never"  # what is there is worth more


class Replication:
    """The replicated parts of one table on this host. Safe to use from several threads; one builds at a time."""

    def __init__(
        self,
        log: TableLog,
        storage: PartStorage,
        deletion_vectors: DeletionVectorCache,
        local: LocalParts,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``local``: the table's materialized parts on this host."""
        self._log = log
        self._deletion_vectors = deletion_vectors
        self._local = local
        self._root = storage.root
        self._clock = clock
        self._folder = MaterializedFolder(local.base / REPLICATED)
        self._reader = Merger(log, storage, deletion_vectors, "", clock)  # for what kernels read: it claims nothing
        self._failures: Counter[str] = Counter()  # by claim
        self._purged_before = 0
        self._looking = threading.Lock()
        self._lock_file = -1

    def is_needed(self) -> bool:
        """Whether there is something to build, as far as is known without a look, or to drop."""
        newest = self._log.newest
        return (newest is not None and newest.settings.replicate_local) or self._folder.folder.exists()

    def look(self, kernel: MergeKernel, progress: Progress = no_progress) -> events.PartReplicated | None:
        """Drop what is of no use, and build one part if that pays; returns what was built.

        Returns None too while another thread or process of this host is at it. Raises what ``progress`` raises, StoreUnavailable.
        """
        if not self._looking.acquire(blocking=False):
            return None
        try:
            snapshot = self._log.newest or self._log.refresh()
            if not (self._folder.folder.exists() or snapshot.settings.replicate_local) or not self._take_folder():
                return None
            self._drop_useless(snapshot)
            if not snapshot.settings.replicate_local:
                self._leave_folder_if_empty()
                return None
            claim = self._chosen(snapshot)
            return None if claim is None else self._try(claim, snapshot, kernel, progress)
        finally:
            self._looking.release()

    def close(self) -> None:
        """Let another process of this host build. What is there stays, for readers."""
        waited = self._looking.acquire(timeout=_CLOSE_SECONDS_MAX)
        self._release()
        if waited:
            self._looking.release()

    # -- the folder --------------------------------------------------------------------------------------------------

    def _take_folder(self) -> bool:
        """Whether this process has the folder. What an earlier one left is looked at when it is taken."""
        if self._lock_file >= 0:
            return True
        lock = lock_folder(self._folder.folder)
        if lock is None:
            return False
        self._lock_file = lock
        for place in self._folder.folder.glob(f"*/{_BEGUN}"):
            _logger.warning("a process ended while it built %s: that is not tried again", place.parent)
            self._failures[place.parent.name] = FAILURES_MAX
            self._folder.drop(place.parent.name, grace_seconds=0)
            _begin(place)  # also for the next process, as long as the claim is there
        self._local.give_up_damaged()
        return True

    def _leave_folder_if_empty(self) -> None:
        if not any(entry.is_dir() for entry in self._folder.folder.iterdir()):
            shutil.rmtree(self._folder.folder, ignore_errors=True)
            self._release()

    def _release(self) -> None:
        if self._lock_file >= 0:
            os.close(self._lock_file)
            self._lock_file = -1

    def _held(self) -> list[Materialized]:
        """The replicated parts; a reader may have given one up meanwhile."""
        return [one for one in self._local.load() if Path(one.folder).parent == self._folder.folder]

    def _drop_useless(self, snapshot: Snapshot) -> None:
        """Step 1."""
        before = purged_before(snapshot.domains)
        grace_seconds = GRACE_SECONDS if before == self._purged_before else 0.0
        self._purged_before = before
        is_on = snapshot.settings.replicate_local
        claims = claims_of(snapshot.domains) if is_on else {}
        self._failures = Counter({id: count for id, count in self._failures.items() if id in claims})
        covers = [frozenset(claim.sources) for claim in claims.values()]
        local = {one.folder: frozenset(one.claim.sources) for one in self._local.load()}
        for one in self._held():
            sources = local[one.folder]
            is_covered = any(
                sources < other or (sources == other and folder < one.folder) for folder, other in local.items()
            )
            is_wanted = any(sources <= cover for cover in covers) and sources <= snapshot.parts.keys()
            if is_covered or not is_wanted:
                self._folder.drop(one.claim.id, grace_seconds)
        self._folder.sweep(lambda name: self._failures[name] >= FAILURES_MAX, grace_seconds)

    # -- what to build -----------------------------------------------------------------------------------------------

    def _chosen(self, snapshot: Snapshot) -> Claim | None:
        """Steps 2 and 3: the claim to build now."""
        here, held = replicas_on_this_host(self._local.base), self._held()
        local = [frozenset(one.claim.sources) for one in self._local.load()]
        now_ms = int(self._clock() * 1000)
        worth: dict[Claim, float] = {}
        for claim in claims_of(snapshot.domains).values():
            sources = frozenset(claim.sources)
            if not claim.volatile or claim.uploads or claim.replica in here or not claim.is_live(now_ms):
                continue
            if self._failures[claim.id] >= FAILURES_MAX or any(sources <= other for other in local):
                continue
            if sources <= snapshot.parts.keys():
                inside = [one for one in held if sources.issuperset(one.claim.sources)]
                saved = len(sources) - 1 - sum(len(one.sources) - len(one.parts) for one in inside)
                if saved >= SAVED_MIN:
                    worth[claim] = saved / (1 + _bytes_of(claim, snapshot))
        for claim in sorted(worth, key=lambda claim: (-worth[claim], claim.id)):
            room = self._room(_bytes_of(claim, snapshot), worth[claim], snapshot.settings)
            if room is not _Room.NEVER:  # what is worth less does not take the room that it waits for
                return claim if room is _Room.NOW else None
        return None

    def _room(self, size: int, worth: float, settings: TableSettings) -> _Room:
        """When the local disk has room for a part of ``size``; what is worth less than it is dropped for it if need be."""
        place = self._folder.folder
        try:
            used, free = bytes_below(self._local.base), shutil.disk_usage(place).free
        except FileNotFoundError:
            return _Room.LATER  # the folder was removed meanwhile; the next look counts again
        except OSError as error:
            raise trouble(error.errno, f"{place} can't be read ({error})", str(place)) from error
        if used + size <= settings.volatile_bytes_max and free - size >= 2 * settings.plan_bytes_max:
            return _Room.NOW
        over = sum(one.bytes for one in self._local.load()) + size - settings.volatile_bytes_max
        lesser = sorted((one for one in self._held() if _worth(one) < worth), key=_worth)
        if over > sum(one.bytes for one in lesser):
            return _Room.NEVER
        if over > 0:  # else it is enough to wait for what is kept for readers
            self._folder.drop(lesser[0].claim.id)
        return _Room.LATER

    # -- building ----------------------------------------------------------------------------------------------------

    def _try(
        self, claim: Claim, snapshot: Snapshot, kernel: MergeKernel, progress: Progress
    ) -> events.PartReplicated | None:
        """Step 4. A claim that ended meanwhile is no failure."""
        try:
            return self._build(claim, snapshot, kernel, progress)
        except BaseException as error:
            self._folder.drop(claim.id, grace_seconds=0)
            if isinstance(error, Cancelled) or not isinstance(error, Exception):
                raise
            if isinstance(error, Corrupt):
                self._local.give_up_damaged()  # it may be one of the inputs
            self._failures[claim.id] += 1
            _logger.warning(
                "what %s merges of %s could not be built here: %s",
                claim.replica,
                self._root,
                error,
                exc_info=None if isinstance(error, LakebedError) else error,
            )
            return None

    def _build(
        self, claim: Claim, snapshot: Snapshot, kernel: MergeKernel, progress: Progress
    ) -> events.PartReplicated | None:
        started = time.perf_counter()
        begun = self._folder.folder / claim.id / _BEGUN
        _begin(begun)
        within = [one for one in self._held() if set(one.claim.sources) <= set(claim.sources)]
        _, substitutes = overlay(snapshot, within, self._deletion_vectors.of)
        chosen = list({id(each.of): each.of for each in substitutes.values()}.values())
        inputs = local_inputs(claim, snapshot, chosen, self._deletion_vectors.of)
        sources = self._reader.sources(claim, snapshot)
        output = self._folder.storage_of(claim)
        kernel_sources = self._reader.kernel_sources(inputs.read, snapshot)
        parts = inputs.traced(kernel.merge(kernel_sources, write_spec_of(snapshot), output, progress))
        if claim.domain not in self._log.refresh().domains:  # a purge may have ended it: its rows must not stay here
            self._folder.drop(claim.id, grace_seconds=0)
            return None
        now_ms = int(self._clock() * 1000)
        one = Materialized(
            claim=claim,
            sources=sources.parts,
            dead=sources.dead,
            parts=parts,
            folder=str(begun.parent),
            made_ms=now_ms,
            oldest_ms=now_ms,
            version=snapshot.version,
        )
        self._folder.keep(one)
        begun.unlink(missing_ok=True)
        for old in within:
            self._folder.drop(old.claim.id)
        built = events.PartReplicated(
            table=self._root,
            claim=claim.id,
            replica=claim.replica,
            version=snapshot.version,
            parts_in=len(inputs.read.parts),
            parts_out=len(parts),
            rows=sum(part.rows for part in parts),
            bytes_in=sum(part.bytes for part in inputs.read.parts),
            bytes_out=one.bytes,
            seconds=time.perf_counter() - started,
        )
        events.emit(built)
        return built


def _begin(place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.touch()


def _bytes_of(claim: Claim, snapshot: Snapshot) -> int:
    return sum(snapshot.parts[path].bytes for path in claim.sources)


def _worth(one: Materialized) -> float:
    """How many parts it saves a read, for each byte of its sources."""
    return (len(one.sources) - len(one.parts)) / (1 + sum(part.bytes for part in one.sources))
