"""Compaction of one table in this process: chooses merger, kernel and chores by the table's settings; and where a merge works."""

from __future__ import annotations

import logging
import os
import pickle
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakebed import events
from lakebed.compaction.merge import HEARTBEATS, LEASE_SECONDS, Merger
from lakebed.compaction.merge_runner import MergeRunner, OnCluster, Running
from lakebed.compaction.merge_values import MergeOutcome, MergeResult, Progress
from lakebed.compaction.recluster_job import ReclusterJob, ReclusterResult
from lakebed.compaction.replicate import Replication
from lakebed.compaction.table_maintainer import Chore
from lakebed.compaction.volatile import VolatileMerger, volatile_choice
from lakebed.coordination.failing import forget_gone, has_gone, taken_paths
from lakebed.coordination.read_counts import ReadCounts
from lakebed.errors import Cancelled
from lakebed.failures import crosses_spark
from lakebed.log.claims import claims_of
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.merge.kernel import MergedPart, MergeSource, merge_parts
from lakebed.merge.materialized import LocalParts
from lakebed.notebook import HtmlResult
from lakebed.parts.changes import FEW_ROWS_MAX, WriteSpec
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.parts.write_arrow import delete_left
from lakebed.planning.plan import Planning
from lakebed.planning.planner import plan
from lakebed.planning.settling import UploadRules
from lakebed.sparks.cluster import Cluster
from lakebed.sparks.jvm import is_on_one_machine
from lakebed.storage.data_files import open_part_storage
from lakebed.storage.engine import connect
from lakebed.storage.part_storage import PartStorage
from lakebed.telemetry import counted, measured, report_requests

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# -- Where a merge works: in this process, or as a Spark job of one task ---------------------------------------------------
#
# On a local master it works in this process, because a task would take one of the few slots that the next batch of ingest
# needs. On a cluster the driver should not do heavy work, so the merge is a task. Its output goes straight to the object store,
# because executors do not share the disk of the driver.
#
# The names of the files that a task writes begin with an id of the merge. If an executor was lost, or the job was cancelled,
# its task could not delete what it had written. Then whoever asked for the merge lists the files of this id, and deletes those
# that no task returned. What a task writes even later, the cleanup deletes as an orphan.


MEMORY_BYTES_MAX = 512 << 20


@dataclass(frozen=True, slots=True)
class LocalKernel:
    """Merges in this process, on one thread. ``storage`` is where sources are read; ``snapshot`` gives the table's settings."""

    storage: PartStorage
    snapshot: Callable[[], Snapshot]

    def merge(
        self, sources: Sequence[MergeSource], spec: WriteSpec, output: PartStorage, progress: Progress
    ) -> list[MergedPart]:
        settings = self.snapshot().settings
        connection = connect(MEMORY_BYTES_MAX, threads=1)
        are_few = all(0 <= source.part.rows <= FEW_ROWS_MAX for source in sources)
        may_spill = not are_few or sum(source.part.rows for source in sources) > FEW_ROWS_MAX
        with measured(self.storage.root, "merge", may_spill=may_spill):
            return merge_parts(
                sources,
                spec,
                output,
                connection,
                rows_max=settings.target_part_rows,
                bytes_max=settings.target_part_bytes,
                on_progress=progress,
                read_from=self.storage,
            )


@dataclass(frozen=True, slots=True)
class SparkKernel:
    """Merges as Spark jobs of one task. ``root`` is the table's: sources are read there, and the output goes there."""

    cluster: Cluster
    root: str
    snapshot: Callable[[], Snapshot]

    def merge(
        self, sources: Sequence[MergeSource], spec: WriteSpec, output: PartStorage, progress: Progress
    ) -> list[MergedPart]:
        settings, root, names = self.snapshot().settings, self.root, f"{uuid.uuid4()}-"
        work = pickle.dumps((list(sources), spec, settings.target_part_rows, settings.target_part_bytes, names))

        @crosses_spark
        def merge_all(works: Iterable[bytes]) -> Iterator[bytes]:
            for one in works:
                with counted() as requests:
                    merged = merge_in_task(one, root)
                yield pickle.dumps((merged, requests.to_json(), _attempt()))

        progress(0)
        try:
            result = self.cluster.run(work, merge_all, progress)
        except BaseException:
            delete_left(output, names, ())
            raise
        merged: list[MergedPart]
        merged, requests, attempt = pickle.loads(result)
        report_requests(requests)
        if attempt:
            delete_left(output, names, {part.path for part in merged})
        return merged


def merge_in_task(work: bytes, root: str) -> list[MergedPart]:
    """What a task does: the merge of a table at ``root`` that ``SparkKernel`` pickled."""
    sources, spec, rows_max, bytes_max, names = pickle.loads(work)
    storage = open_part_storage(root)
    connection = connect(MEMORY_BYTES_MAX, threads=1)
    with measured(root, "merge"):
        return merge_parts(sources, spec, storage, connection, rows_max=rows_max, bytes_max=bytes_max, names=names)


def _attempt() -> int:
    """Which attempt of its task this is, from 0."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.attemptNumber()


_logger = logging.getLogger("lakebed.compact")
_UPLOAD_LOOK_SECONDS = 2.0
_TIDY_SECONDS = 60.0
_FINISH_LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactResult(HtmlResult):
    """What compacting did."""

    version: int  # of the last commit, or the newest one if there was nothing to do
    merges: int = 0
    parts_in: int = 0  # parts that were merged
    parts_out: int = 0  # parts that took their place
    rows: int = 0  # live rows of the new parts
    bytes_in: int = 0  # of the merged parts
    bytes_out: int = 0  # of the new parts
    seconds: float = 0.0


class Compaction:
    """Plans and runs merges of one table."""

    lease_seconds = LEASE_SECONDS

    def __init__(
        self,
        path: str,
        log: TableLog,
        storage: PartStorage,
        deletion_vectors: DeletionVectorCache,
        local: LocalParts,
        reads: ReadCounts,
    ) -> None:
        """``local``: the table's materialized parts on this host."""
        self._path = path
        self._log = log
        self._storage = storage
        self._deletion_vectors = deletion_vectors
        self.volatile_base = local.base
        self.replication = Replication(log, storage, deletion_vectors, local)
        self._replicates = False
        self._reads = reads
        self._merge_runner: MergeRunner | None = None
        self.cluster: Cluster | None = None
        """Where large groups of ``recluster`` are merged, unless it is given a session."""
        self._tidy: Callable[[], object] = lambda: None
        self._has_unreleased: Callable[[], bool] = lambda: False
        self.volatile_merger: VolatileMerger | None = None

    def plan(self) -> Planning:
        """What the planner would do now, without doing it."""
        snapshot = self._log.refresh()
        now_ms = int(time.time() * 1000)
        claimed, reads = taken_paths(snapshot, now_ms), self._reads.of(snapshot)
        return plan(snapshot, claimed, now_ms, reads=reads, statistics=self._log.statistics)

    def compact(self) -> CompactResult:
        """Merge in this process until the planner finds nothing more. Raises the error of a merge that fails."""
        started = time.perf_counter()
        merger = self.merger()
        merge_runner = MergeRunner(self._path, self._log, merger, self.local_kernel(), reads=self._reads.of)
        done = [result for result in merge_runner.run_until_idle() if result.outcome is MergeOutcome.COMPLETED]
        return CompactResult(
            version=self._log.refresh().version,
            merges=len(done),
            parts_in=sum(each.parts_in for each in done),
            parts_out=sum(each.parts_out for each in done),
            rows=sum(each.rows for each in done),
            bytes_in=sum(each.bytes_in for each in done),
            bytes_out=sum(each.bytes_out for each in done),
            seconds=time.perf_counter() - started,
        )

    def recluster(self, job: ReclusterJob, spark: SparkSession | None = None) -> ReclusterResult:
        """Run a job, with a session on a cluster there, else in this process. Raises the error of a merge that fails."""
        return job.run(self.merger(), self.local_kernel(), self._engine(_cluster_of(spark) or self.cluster))

    def in_background(
        self, spark: SparkSession | None, in_fleet: bool = False, cluster: Cluster | None = None
    ) -> MergeRunner:
        """A merge_runner for this process. On a cluster nothing is volatile.

        A session on a cluster has all merges run there; ``cluster``: only large ones do.
        """
        self.close()
        self._reads.begin_maintaining()
        cluster = cluster or _cluster_of(spark)
        merger: Merger | VolatileMerger
        choice = volatile_choice(
            self._log.refresh().settings,
            self._storage.root,
            self.volatile_base,
            on_cluster=cluster is not None,
            in_fleet=in_fleet,
        )
        _logger.debug(
            "merges of %s %s on local disk: %s", self._path, "stay" if choice.is_on else "do not stay", choice.why
        )
        if choice.is_on:
            merger = self.volatile_merger = VolatileMerger(
                self._log, self._storage, self._deletion_vectors, self.volatile_base, lease_seconds=self.lease_seconds
            )
        else:
            merger, self.volatile_merger = self.merger(), None
            self._has_unreleased = merger.holds_unreleased
        self._replicates = not (cluster or in_fleet)  # else nobody reads on this host
        self._tidy = merger.tidy
        self._merge_runner = MergeRunner(
            self._path, self._log, merger, self.local_kernel(), reads=self._reads.of, on_cluster=self._engine(cluster)
        )
        return self._merge_runner

    def chores(self) -> tuple[Chore, ...]:
        """What is to be done now and then beside the merges of the merge runner in the background."""
        volatile, seconds = self.volatile_merger, min(_TIDY_SECONDS, self.lease_seconds)
        if volatile is None:
            return (Chore(run=self._tidied, seconds=seconds, is_needed=self._has_entries),)
        tidy = Chore(run=self._tidied, seconds=seconds)
        heartbeat = self.lease_seconds / HEARTBEATS
        return (
            tidy,
            Chore(run=self._upload, seconds=_UPLOAD_LOOK_SECONDS, is_needed=volatile.holds_any),
            Chore(run=volatile.extend, seconds=heartbeat, is_needed=volatile.holds_any, extends_leases=True),
        )

    def holds_local_parts(self) -> bool:
        """Whether merges of this process are on its local disk alone."""
        return self.volatile_merger is not None and self.volatile_merger.holds_any()

    def replicates(self) -> bool:
        """Whether this process may have to build or drop replicated parts."""
        return self._replicates and self.replication.is_needed()

    def replicate(self) -> None:
        """Build what another host merges, if that pays (``compaction.replicate``). Raises StoreUnavailable."""

        def stop_if_closing(rows: int) -> None:
            if self._merge_runner is not None and self._merge_runner.is_closing:
                raise Cancelled("what another host merges is not built here, because the maintenance ends")

        with suppress(Cancelled):
            self.replication.look(self.local_kernel(), stop_if_closing)

    def _has_entries(self) -> bool:
        newest = self._log.newest
        return self._has_unreleased() or (newest is not None and (bool(claims_of(newest.domains)) or has_gone(newest)))

    def _tidied(self) -> None:
        self._tidy()
        if self._log.newest is not None and has_gone(self._log.newest):
            forget_gone(self._log)

    def due(self) -> bool:
        """Whether the merge runner of this process has something to merge now."""
        return self._merge_runner is not None and self._merge_runner.is_due()

    def finish(self, seconds: float, waiting: Callable[[], object] = lambda: None) -> bool:
        """Let the merge runner of this process merge what is due, for so long at most; returns whether nothing is left.

        ``waiting`` is called again and again meanwhile.
        """
        if self._merge_runner is None:
            return True
        deadline = time.monotonic() + seconds
        self._merge_runner.wake()
        while self._merge_runner.running() or self._merge_runner.is_due():
            if time.monotonic() >= deadline:
                return False
            waiting()
            time.sleep(_FINISH_LOOK_SECONDS)
        return True

    def close(self) -> None:
        """End the merge runner of this process, if there is one."""
        if self._merge_runner is not None:
            self._merge_runner.close()

    def running(self) -> list[Running]:
        """Merges under way in this process."""
        return self._merge_runner.running() if self._merge_runner else []

    def parked(self) -> frozenset[str]:
        """Paths of parts that are not merged for now, because merges of them failed."""
        return self._merge_runner.parked() if self._merge_runner else frozenset()

    def merger(self) -> Merger:
        """Claims and commits merges of the table under a name of its own."""
        return Merger(
            self._log, self._storage, self._deletion_vectors, _replica_name(), lease_seconds=self.lease_seconds
        )

    def local_kernel(self) -> LocalKernel:
        """Merges in this process."""
        return LocalKernel(self._storage, self._log.refresh)

    def _engine(self, cluster: Cluster | None) -> OnCluster | None:
        return OnCluster(cluster, SparkKernel(cluster, self._path, self._log.refresh)) if cluster else None

    def _upload(self) -> None:
        assert self.volatile_merger is not None
        settings = self._log.refresh().settings
        rules = UploadRules(age_seconds=settings.upload_after_seconds, local_bytes_max=settings.volatile_bytes_max)
        for result in self.volatile_merger.upload_due(rules):
            self._emit_upload(result)

    def _emit_upload(self, result: MergeResult) -> None:
        events.emit(
            events.Uploaded(
                table=self._path,
                outcome=result.outcome.value,
                version=result.version,
                parts_replaced=result.parts_in,
                parts=result.parts_out,
                rows=result.rows,
                bytes=result.bytes_out + result.vector_bytes,
                carried_rows=result.carried_rows,
                seconds=result.seconds,
                claim=result.claim,
                replica=self.volatile_merger.replica if self.volatile_merger else "",
            )
        )


def _cluster_of(spark: SparkSession | None) -> Cluster | None:
    """The cluster of a session; None if there is no session, or if Spark runs in this process."""
    return Cluster.of(spark) if spark and not is_on_one_machine(spark) else None


def _replica_name() -> str:
    return f"{os.uname().nodename}-{os.getpid()}-{uuid.uuid4().hex[:8]}"  # a container's pid is the same every time
