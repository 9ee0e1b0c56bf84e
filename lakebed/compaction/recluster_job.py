"""A recluster job: rounds of merges, until the depth of the table's levels is within their thresholds.

1. The job covers the parts that exist when it begins. Later parts are left to the next job, so it ends whatever comes in.
2. The estimate says how much will be read and written, and whether there is room for it.
3. The next round is planned on the newest snapshot, and its first group is merged like any other merge (claim, kernel, commit:
   ``compaction.merge``). Then the rest is planned again. So if another replica claimed a group first, or replaced one of its
   parts, only the planning was wasted. Deletes that are committed meanwhile are carried over. On a cluster the groups of a round
   are merged side by side, and the next round begins when the last of them has ended.
4. With ``final`` it goes on until no level is above its threshold and every part is sorted by the table's sort key. It waits for
   parts that others have claimed. Without ``final`` it ends after one round.

The state of a job is in the table alone. A job that was stopped or killed goes on where it was when it is called again; the
claims of one that was killed end with their leases.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lakebed.compaction.merge_runner import MergeRunner, MergeWorker, OnCluster
from lakebed.compaction.merge_values import MergeKernel, MergeOutcome, MergeResult, Progress
from lakebed.coordination.failing import taken_paths
from lakebed.errors import Cancelled, InvalidInput, StoreUnavailable
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.merge.kernel import MergedPart, MergeSource
from lakebed.notebook import HtmlResult
from lakebed.parts.changes import WriteSpec
from lakebed.parts.part_filter import parts_that_may_match
from lakebed.planning.plan import Goal, MergeKind, MergePlan, Planning
from lakebed.planning.rounds import Estimate, depth_by_level, estimate, round_plans
from lakebed.sql import check_condition, expression
from lakebed.storage.data_files import LocalPartStorage
from lakebed.storage.engine import connect
from lakebed.storage.part_storage import PartStorage

_WAIT_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclusterProgress:
    """How far a job is: rows written, plans begun, and how many of both were estimated when it began.

    ``waiting``: others have claimed the parts that are left.
    """

    rounds: int
    plans: int
    plans_estimated: int
    rows: int
    rows_estimated: int
    seconds: float
    waiting: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclusterResult(HtmlResult):
    """What a job did, or with ``estimated`` will do.

    Depths are averages over the parts of each level. Levels that are still deeper than their threshold (``depth_after``) are
    left to the next round, or have parts so large that not even two fit into ``lakebed.plan_bytes_max``.
    """

    version: int  # the newest one at its end
    rounds: int = 0
    plans: int = 0  # groups of parts that were sorted together
    parts_in: int = 0  # parts that were merged
    parts_out: int = 0  # parts that took their place
    rows: int = 0  # live rows of the new parts
    bytes_in: int = 0  # of the merged parts
    bytes_out: int = 0  # of the new parts
    gave_way: int = 0  # merges that were given up because others claimed or committed first
    depth_before: Mapping[int, float] = field(default_factory=dict)  # by level
    depth_after: Mapping[int, float] = field(default_factory=dict)  # by level
    finished: bool = True  # it was not stopped
    estimated: bool = False  # nothing was done; these are predictions
    seconds: float = 0.0


class ReclusterJob:
    """One job on one table. Raises InvalidInput for a table without an order, or a ``where`` that can't be evaluated."""

    def __init__(
        self,
        table: str,
        log: TableLog,
        storage: PartStorage,
        *,
        where: str | None,
        final: bool,
        on_progress: Callable[[ReclusterProgress], object] | None,
        stop: Callable[[], bool],
        reads: Callable[[Snapshot], Mapping[str, int]] = lambda snapshot: {},
    ) -> None:
        """``reads``: how often parts were read of late, by path."""
        self._table = table
        self._log = log
        self._storage = storage
        self._where = None if where is None else expression(where, "where")
        self._final = final
        self._on_progress = on_progress or (lambda progress: None)
        self._stop = stop
        self._reads = reads
        self._begun = time.perf_counter()
        snapshot = log.refresh()
        if not snapshot.settings.order_by:
            raise InvalidInput(
                f"the table at {table} has neither a sort key nor keys, so there is no order to recluster it by; "
                "set one with set_sort_key (lakebed alter --sort-key)"
            )
        if self._where is not None:
            check_condition(self._where, snapshot.logical_schema)
        self._until = snapshot.version
        self._estimate = Estimate()
        self._round: tuple[MergeKind, int] | None = None
        self._rounds = 0
        self._results: list[MergeResult] = []
        self._merge_runner: MergeRunner | None = None
        self._numbers = itertools.count()
        self._reporting = threading.Lock()  # of the field below
        self._rows: dict[int, int] = {}  # written so far, by the number of a plan that began

    def estimate(self) -> Estimate:
        """What the job will read and write, by the table's statistics."""
        snapshot = self._log.refresh()
        claimed = taken_paths(snapshot, self._log.now_ms())
        return estimate(self._seen(snapshot), claimed, self._final, self._log.statistics)

    def predicted(self) -> ReclusterResult:
        """The estimate in the form of a result."""
        found = self.estimate()
        return ReclusterResult(
            version=self._log.refresh().version,
            rounds=found.rounds,
            plans=found.plans,
            parts_in=found.parts_in,
            parts_out=found.parts_out,
            rows=found.rows,
            bytes_in=found.bytes_in,
            bytes_out=found.bytes_out,
            gave_way=0,
            depth_before=found.depth_before,
            depth_after=found.depth_after,
            estimated=True,
            seconds=time.perf_counter() - self._begun,
        )

    def run(self, merger: MergeWorker, kernel: MergeKernel, on_cluster: OnCluster | None = None) -> ReclusterResult:
        """Raises the error of a merge that fails, and StoreUnavailable if there is no room. What was committed stays.

        ``on_cluster``: where large groups are merged, side by side.
        """
        self._estimate = self.estimate()
        self._require_room()
        before = self._depths(self._log.refresh())
        if on_cluster is not None:
            on_cluster = replace(on_cluster, kernel=self._watched(on_cluster.kernel))
        self._merge_runner = merge_runner = MergeRunner(
            self._table,
            self._log,
            merger,
            self._watched(kernel),
            planner=self._plan,
            clock=lambda: self._log.now_ms() / 1000,
            reads=self._reads,
            on_cluster=on_cluster,
        )
        while True:
            self._results += merge_runner.run_until_idle()
            if self._stop() or not self._final or not self._is_anything_left(merger):
                break
            self._report(waiting=True)  # claims block the rest, or did until a moment ago
            time.sleep(_WAIT_SECONDS)
        self._report()
        newest = self._log.refresh()
        done = [result for result in self._results if result.outcome is MergeOutcome.COMPLETED]
        return ReclusterResult(
            version=newest.version,
            rounds=self._rounds,
            plans=len(done),
            parts_in=sum(each.parts_in for each in done),
            parts_out=sum(each.parts_out for each in done),
            rows=sum(each.rows for each in done),
            bytes_in=sum(each.bytes_in for each in done),
            bytes_out=sum(each.bytes_out for each in done),
            gave_way=len(self._results) - len(done),
            depth_before=before,
            depth_after=self._depths(newest),
            finished=not self._stop(),
            estimated=False,
            seconds=time.perf_counter() - self._begun,
        )

    # -- inside ------------------------------------------------------------------------------------------------------

    def _seen(self, snapshot: Snapshot) -> Snapshot:
        """The table with only the parts that the job covers."""
        parts = [part for part in snapshot.parts.values() if part.max_block <= self._until]
        if self._where is not None:
            statistics, columns = self._log.statistics, snapshot.columns
            parts = parts_that_may_match(connect(), parts, snapshot.schema, self._where, statistics, columns)
        return replace(snapshot, parts={part.path: part for part in parts})

    def _depths(self, snapshot: Snapshot) -> Mapping[int, float]:
        return depth_by_level(self._seen(snapshot), self._log.statistics)

    def _plan(
        self,
        snapshot: Snapshot,
        taken: Collection[str],
        now_ms: int,
        in_flight_bytes: int,
        reads: Mapping[str, int],
        goal: Goal,
    ) -> Planning:
        """The next plan: of the round that has begun, or with ``final`` of the one after it."""
        plans = round_plans(self._seen(snapshot), taken, now_ms, reads, self._log.statistics)
        found = None if self._stop() else next(plans, None)
        if found is None:
            return Planning()
        number = _round_of(found)
        if number != self._round:
            is_under_way = self._merge_runner is not None and bool(self._merge_runner.running())
            if self._round is not None and (is_under_way or not self._final):
                return Planning()
            self._round, self._rounds = number, self._rounds + 1
        return Planning(merges=(found,))

    def _is_anything_left(self, merger: MergeWorker) -> bool:
        """Whether something would be left to do if nobody had a claim."""
        view = merger.views(self._log.refresh(), self._log.now_ms())[0]
        now_ms, statistics = self._log.now_ms(), self._log.statistics
        return next(round_plans(self._seen(view.snapshot), (), now_ms, statistics=statistics), None) is not None

    def _watched(self, kernel: MergeKernel) -> MergeKernel:
        return _WatchedKernel(kernel, lambda: next(self._numbers), self._note_rows, self._report)

    def _note_rows(self, number: int, rows: int) -> None:
        if self._stop():
            raise Cancelled("the merge stops because its job was stopped")
        self._report({number: rows})

    def _report(self, rows: Mapping[int, int] | None = None, waiting: bool = False) -> None:
        with self._reporting:  # one at a time: merges side by side report too
            self._rows |= rows or {}
            self._on_progress(
                ReclusterProgress(
                    rounds=self._rounds,
                    plans=len(self._rows),
                    plans_estimated=self._estimate.plans,
                    rows=sum(self._rows.values()),
                    rows_estimated=self._estimate.rows,
                    seconds=time.perf_counter() - self._begun,
                    waiting=waiting,
                )
            )

    def _require_room(self) -> None:
        needs = [(tempfile.gettempdir(), self._estimate.plan_bytes_max, "what a merge spills")]
        if isinstance(self._storage, LocalPartStorage):
            why = "new parts, beside those that they replace until these are cleaned up"
            needs.append((self._storage.root, self._estimate.bytes_out, why))
        for folder, needed, why in needs:
            free = shutil.disk_usage(folder).free
            if needed > free:
                raise StoreUnavailable(
                    f"reclustering {self._table} needs about {needed:,} bytes in {folder} for {why}, and {free:,} are "
                    "free; free space (lakebed clean --only vacuum), or recluster less at once with where",
                    table=self._table,
                    path=str(folder),
                )


def _round_of(plan: MergePlan) -> tuple[MergeKind, int]:
    """What distinguishes the plans of one round from those of another."""
    return plan.kind, plan.level if plan.kind is MergeKind.RECLUSTER else 0


@dataclass(frozen=True, slots=True)
class _WatchedKernel:
    """A kernel that reports when a merge begins, and how far it is."""

    kernel: MergeKernel
    begin: Callable[[], int]
    note: Callable[[int, int], object]
    end: Callable[[Mapping[int, int]], object]

    def merge(
        self, sources: Sequence[MergeSource], spec: WriteSpec, output: PartStorage, progress: Progress
    ) -> list[MergedPart]:
        number = self.begin()

        def report(rows: int) -> None:
            progress(rows)
            self.note(number, rows)

        merged = self.kernel.merge(sources, spec, output, report)
        self.end({number: sum(part.rows for part in merged)})  # a task reports none on its way
        return merged
