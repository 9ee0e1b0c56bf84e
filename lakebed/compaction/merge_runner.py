"""Merges one table: the next plan, and its execution. ``duties`` calls it in the background, and any thread may do so.

1. A worker, that is a thread that asks for the ``next_plan``, notes which parts are taken: those that live claims list, that this
   process merges, or that are parked. The planner leaves these out.
2. The worker takes the first plan that shares no part with what other workers took since step 1, and that still fits beside
   it. Then it runs the plan. If no plan is left because others were faster, it plans again. Replicas do not know each other.
   The first that claims the parts gets the plan, and the planners of the others see the claim.
3. A plan that fails is tried again, later each time. After ``FAILURES_MAX`` failures its parts are parked in the table's log
   (``coordination.failing``), for an hour at first, and this is reported. A part that is corrupt is parked alone, after the first
   failure. So no failure repeats without end, in whichever process. If the log can't be written, this process remembers it.
4. A store that does not answer, or a full disk, is no fault of the parts (``_PASSING``): new ones come, and plans of them would
   fail as well. So no plan is made for a while then, longer each time, until one succeeds. Nothing is parked for it. Then plans
   of other parts come first. Parts that still fail while other plans succeed may need more room than there is: they wait longer.

Where there is a cluster, large plans run there, several side by side, and the others in this process (``sparks.cluster``).
What goes wrong with the cluster is no failure of the plan: it is made again at once, for this process if the cluster is away.

Nothing is planned, read or written under the lock, since planning many parts takes seconds.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from lakebed import events
from lakebed.compaction.merge_values import MergeKernel, MergeOutcome, MergeResult, PlanningView, Progress, no_progress
from lakebed.coordination.failing import failing_of, park_merge, parked_paths
from lakebed.errors import Cancelled, ClusterUnavailable, Contention, Corrupt, LakebedError, Retry, StoreUnavailable
from lakebed.failures import Outage
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.planning.admission import IN_FLIGHT_PLANS
from lakebed.planning.plan import Goal, MergePlan, Planning
from lakebed.planning.planner import plan as make_plans
from lakebed.planning.settling import uploaded_plans
from lakebed.sparks.cluster import Cluster

FAILURES_MAX = 4
_PARKED_SECONDS = 3600.0
BACKOFF_SECONDS_MAX = 60.0
_ALONE_SECONDS_MAX = 600.0
"""The longest pause of parts that fail for the store or the disk while other plans succeed."""
_PASSING = (StoreUnavailable, Contention)
"""Failures that no part has caused."""
CLOSE_SECONDS_MAX = 5.0
_logger = logging.getLogger("lakebed.compact")

_Planner = Callable[[Snapshot, Collection[str], int, int, Mapping[str, int], Goal], Planning]
"""Arguments: snapshot, paths that are taken, time in epoch milliseconds, bytes in flight, reads by path, for which readers."""


class MergeWorker(Protocol):
    """Claims parts, merges them and commits: ``Merger`` or ``VolatileMerger``."""

    @property
    def replica(self) -> str: ...

    def views(self, snapshot: Snapshot, now_ms: int) -> Sequence[PlanningView]: ...

    def run_plan(
        self, plan: MergePlan, kernel: MergeKernel, *, progress: Progress = no_progress, claim_id: str | None = None
    ) -> MergeResult: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class OnCluster:
    """The engine of large merges: a cluster, and the kernel that merges there."""

    cluster: Cluster
    kernel: MergeKernel


@dataclass(slots=True)
class _Failures:
    """How often plans failed, and the time before which there is no other. ``count``: for causes of the part itself; ``passing``:
    for others.
    """

    count: int = 0
    passing: int = 0
    not_before: float = 0.0

    def passed_over(self, now: float, seconds_max: float) -> None:
        """Once more for a cause that passes: wait twice as long as before."""
        self.passing += 1
        self.not_before = now + min(seconds_max, 2.0 ** min(self.passing, 10))


@dataclass(frozen=True, slots=True)
class Running:
    """A merge that this process runs. ``since``: epoch seconds."""

    plan: MergePlan
    since: float


@dataclass(slots=True, eq=False, kw_only=True)
class _Start:
    """The state of this process when a worker began to plan, and what other workers took since."""

    now: float
    taken: frozenset[str]
    failed: frozenset[str]
    passed_over: frozenset[str]  # they failed for a cause that passes: other plans come first
    in_flight_bytes: int
    in_flight_bytes_max: int = 0  # of the table's settings
    taken_since: set[str] = field(default_factory=set)
    bytes_since: int = 0

    def still_holds(self, plan: MergePlan) -> bool:
        """Whether the plan can run beside what other workers took since."""
        if not self.taken_since:
            return True
        in_flight_bytes = self.in_flight_bytes + self.bytes_since + plan.bytes_in
        return self.taken_since.isdisjoint(plan.inputs) and in_flight_bytes <= self.in_flight_bytes_max


@dataclass(slots=True)
class _Shared:
    """What the workers share; guarded by the merge runner's lock."""

    running: dict[int, Running] = field(default_factory=dict)
    failures: dict[str, _Failures] = field(default_factory=dict)
    unavailable: _Failures = field(default_factory=_Failures)  # of the store or the disk, whatever the plan
    planning: set[_Start] = field(default_factory=set)
    next_id: int = 0


class MergeRunner:
    """Plans merges of one table and executes them. Safe to use from several threads."""

    def __init__(
        self,
        table: str,
        log: TableLog,
        merger: MergeWorker,
        kernel: MergeKernel,
        *,
        planner: _Planner | None = None,
        clock: Callable[[], float] = time.time,
        reads: Callable[[Snapshot], Mapping[str, int]] = lambda snapshot: {},
        on_cluster: OnCluster | None = None,
    ) -> None:
        """``planner``: by default that of the table's policy; ``reads``: how often parts were read in the last hour, by path;
        ``on_cluster``: where large merges run, if not in this process.
        """
        self._table = table
        self._log = log
        self._merger = merger
        self._kernel = kernel
        self._on_cluster = on_cluster
        self._planner: _Planner = planner or partial(make_plans, statistics=log.statistics)
        self._clock = clock
        self._reads = reads
        self._shared = _Shared()
        self._lock = threading.Lock()  # of _shared
        self._outage = Outage(f"merging {table}", _logger)
        self._trouble: LakebedError | None = None
        self._closing = False
        self._gives_up = False  # a plan failed, and those beside it end
        self.depth_over_budget = 0
        """By how many runs the deepest point of the base is beyond the read budget, as the last plan found it."""
        self.on_wake: Callable[[], object] = lambda: None
        """What ``wake`` calls: it lets the threads plan that work for this merge runner."""

    def wake(self) -> None:
        """Let the threads plan at once, because the table changed. Does not wait for them."""
        self.on_wake()

    def cancel(self) -> None:
        """Cancel the merges that run. What runs ends soon, with nothing committed."""
        self._closing = True

    @property
    def is_closing(self) -> bool:
        """Whether ``cancel`` or ``close`` was called."""
        return self._closing

    def close(self) -> None:
        """Cancel the merges and release all claims, also those of merges that still run. Call it when nothing runs any more."""
        self.cancel()
        self._merger.close()

    def running(self) -> list[Running]:
        """The merges that run now."""
        with self._lock:
            return list(self._shared.running.values())

    def run_until_idle(self) -> list[MergeResult]:
        """Run plans until the planner finds none: those of the cluster side by side, the others in this thread.

        Raises the error of a plan that fails, when those beside it were cancelled.
        """
        results: list[MergeResult] = []
        sent: set[Future[MergeResult]] = set()
        try:
            with ThreadPoolExecutor(self._on_cluster.cluster.room if self._on_cluster else 1) as threads:
                try:
                    while (job := self.next_plan()) is not None or sent:
                        if job is not None and job[1].on_cluster:
                            sent.add(threads.submit(self.run, *job))
                        elif job is not None:
                            results.append(self.run(*job))
                        done, sent = wait(sent, None if job is None else 0, FIRST_COMPLETED)
                        for each in done:
                            with suppress(ClusterUnavailable):  # it is planned again
                                results.append(each.result())
                except BaseException:
                    self._gives_up = True
                    raise
        finally:
            self._gives_up = False
        return results

    def parked(self) -> frozenset[str]:
        """Paths of parts that are not planned for now, because plans of them failed for a cause of theirs, here or elsewhere."""
        now, newest = self._clock(), self._log.newest
        elsewhere = parked_paths(newest, int(now * 1000)) if newest is not None else frozenset()
        with self._lock:
            failed = {path for path, each in self._shared.failures.items() if each.count}
            return (self._parked(now) & failed) | elsewhere

    @property
    def trouble(self) -> LakebedError | None:
        """Why plans wait: the store or a disk has failed, and parts that waited for it have not been merged since."""
        return self._trouble

    def pause_seconds(self) -> float:
        """How long no plan is made, because the store or a disk failed."""
        return max(0.0, self._shared.unavailable.not_before - self._clock())

    # -- planning and executing ----------------------------------------------------------------------------------------

    def is_due(self) -> bool:
        """Whether there is a plan that could run now."""
        with self._starting() as start:
            return bool(self._plans(start))

    def next_plan(self, looks: bool = True) -> tuple[int, MergePlan] | None:
        """The plan to run next, and its number, for ``run``; None if there is none, or if the merge runner closes.

        ``looks``: whether the log is read; if not, the plan is for the newest snapshot in memory.
        """
        while not self._closing and self._clock() >= self._shared.unavailable.not_before:
            with self._starting() as start:
                plans = self._plans(start, looks, start.passed_over) if start.passed_over else []
                plans = plans or self._plans(start, looks)
                with self._lock:
                    job = self._take(start, plans)
                self._end_outage()  # others may have merged what waited
                if job is not None or not plans:
                    return job
        return None

    @contextmanager
    def _starting(self) -> Iterator[_Start]:
        with self._lock:
            now, running = self._clock(), self._shared.running.values()
            taken = self._parked(now).union(*(each.plan.inputs for each in running))
            start = _Start(
                now=now,
                taken=taken,
                failed=frozenset(self._shared.failures),
                passed_over=frozenset(path for path, each in self._shared.failures.items() if each.passing),
                in_flight_bytes=sum(each.plan.bytes_in for each in running if not each.plan.on_cluster),
            )
            self._shared.planning.add(start)
        try:
            yield start
        finally:
            with self._lock:
                self._shared.planning.discard(start)

    def _plans(self, start: _Start, looks: bool = True, but: frozenset[str] = frozenset()) -> list[MergePlan]:
        """What can be merged, best first. ``but``: parts that are left out."""
        snapshot, now_ms = (None if looks else self._log.newest) or self._log.refresh(), int(start.now * 1000)
        views = self._merger.views(snapshot, now_ms)
        gone = [path for path in start.failed if all(path not in view.snapshot.parts for view in views)]
        with self._lock:
            for path in gone:
                self._shared.failures.pop(path, None)
        start.in_flight_bytes_max = IN_FLIGHT_PLANS * snapshot.settings.plan_bytes_max
        reads = self._reads(snapshot)
        for view in views:
            taken = start.taken | view.claimed | but
            planning = self._planner(view.snapshot, taken, now_ms, start.in_flight_bytes, reads, view.goal)
            self.depth_over_budget = max(0, planning.depth_max - snapshot.settings.read_budget)
            if plans := uploaded_plans(planning, view.below):
                return self._placed(plans)
        return []

    def _placed(self, plans: list[MergePlan]) -> list[MergePlan]:
        """The plans with where they run, without those for which the cluster has no room now."""
        if self._on_cluster is None:
            return plans
        cluster = self._on_cluster.cluster
        with self._lock:
            has_room = sum(each.plan.on_cluster for each in self._shared.running.values()) < cluster.room
        placed = [replace(plan, on_cluster=not plan.is_local and cluster.takes(plan.bytes_in)) for plan in plans]
        return [plan for plan in placed if has_room or not plan.on_cluster]

    def _take(self, start: _Start, plans: Sequence[MergePlan]) -> tuple[int, MergePlan] | None:
        """The first plan that can still run, now among the running ones. The caller holds the lock."""
        for plan in plans:
            if not start.still_holds(plan):
                continue
            number = self._shared.next_id
            self._shared.next_id += 1
            self._shared.running[number] = Running(plan, start.now)
            for other in self._shared.planning:
                other.taken_since.update(plan.inputs)
                other.bytes_since += 0 if plan.on_cluster else plan.bytes_in
            return number, plan
        return None

    def run(self, number: int, plan: MergePlan) -> MergeResult:
        """Run what ``next_plan`` returned. Raises the error of a plan that fails; its parts are planned again later."""
        try:
            return self._merge(plan)
        finally:
            self.release(number)

    def _merge(self, plan: MergePlan) -> MergeResult:
        def stop_if_closing(rows: int) -> None:
            if self._closing or self._gives_up:
                raise Cancelled("the merge stops because its merge runner closes, or a merge beside it failed")

        claim, replica = str(uuid.uuid4()), self._merger.replica
        kind, parts = plan.kind.value, len(plan.inputs)
        events.emit(
            events.MergeBegan(
                table=self._table,
                kind=kind,
                level=plan.level,
                parts=parts,
                bytes=plan.bytes_in,
                claim=claim,
                replica=replica,
                engine=plan.engine,
            )
        )
        try:
            cluster = self._on_cluster if plan.on_cluster else None
            if cluster is not None:
                stop_if_closing(0)  # before a session begins
            with cluster.cluster.slot(stop_if_closing) if cluster else nullcontext():
                kernel = cluster.kernel if cluster else self._kernel
                result = self._merger.run_plan(plan, kernel, progress=stop_if_closing, claim_id=claim)
        except Cancelled:
            result = MergeResult(outcome=MergeOutcome.CANCELLED, claim=claim)
        except Exception as error:
            parked = not isinstance(error, ClusterUnavailable) and self._failed(plan, error)
            events.emit(
                events.MergeFailed(
                    table=self._table,
                    kind=kind,
                    level=plan.level,
                    parts=parts,
                    parked=parked,
                    passes=isinstance(error, _PASSING),
                    error=str(error),
                    claim=claim,
                    replica=replica,
                    engine=plan.engine,
                )
            )
            raise
        events.emit(
            events.MergeEnded(
                table=self._table,
                kind=kind,
                level=plan.level,
                outcome=result.outcome.value,
                version=result.version,
                parts_in=result.parts_in,
                parts_out=result.parts_out,
                rows=result.rows,
                bytes_in=result.bytes_in,
                bytes_out=result.bytes_out + result.vector_bytes,
                carried_rows=result.carried_rows,
                conflicts=result.conflicts,
                seconds=result.seconds,
                local=result.local,
                claim=claim,
                replica=replica,
                engine=plan.engine,
            )
        )
        if result.outcome is MergeOutcome.COMPLETED:
            self._succeeded(plan)
        return result

    def release(self, number: int) -> None:
        """Remove the plan with this number from the running ones."""
        with self._lock:
            self._shared.running.pop(number, None)

    def _succeeded(self, plan: MergePlan) -> None:
        with self._lock:
            self._shared.unavailable = _Failures()
            for path in plan.inputs:
                self._shared.failures.pop(path, None)
        self._end_outage()

    def _waits(self, plan: MergePlan, error: LakebedError) -> None:
        """Record that all plans wait, because of the store or a disk; say so once."""
        now = self._clock()
        with self._lock:
            others_work = self._shared.unavailable.passing == 0
            self._shared.unavailable.passed_over(now, BACKOFF_SECONDS_MAX)
            for path in plan.inputs:
                failures = self._shared.failures.setdefault(path, _Failures())
                if others_work:
                    failures.passed_over(now, _ALONE_SECONDS_MAX)
        self._trouble = error
        self._outage.failed(error)

    def _end_outage(self) -> None:
        """Nothing waits for the store or a disk, if no parts are left that do."""
        with self._lock:
            is_over = not any(each.passing for each in self._shared.failures.values())
        if is_over and self._trouble is not None:
            self._trouble = None
            self._outage.works()

    def _failed(self, plan: MergePlan, error: Exception) -> bool:
        """Record when the parts may be planned again; returns whether they are parked."""
        if isinstance(error, _PASSING):
            self._waits(plan, error)
            return False
        corrupt = [path for path in plan.inputs if isinstance(error, Corrupt) and path in (error.part, error.path)]
        now, newest = self._clock(), self._log.newest
        known = {path for each in failing_of(newest).values() for path in each.sources} if newest is not None else set()
        parked, count = False, 0
        with self._lock:
            for path in corrupt or plan.inputs:
                failures = self._shared.failures.setdefault(path, _Failures())
                at_once = path in known or (corrupt and not isinstance(error, Retry))
                failures.count = max(failures.count + 1, FAILURES_MAX if at_once else 0)
                count, parked = failures.count, failures.count >= FAILURES_MAX
                pause = _PARKED_SECONDS if parked else min(BACKOFF_SECONDS_MAX, 2.0**failures.count)
                failures.not_before = now + pause
        _logger.warning(
            "a %s of %d parts of %s failed%s: %s",
            plan.kind.value,
            len(plan.inputs),
            self._table,
            ", its parts are left alone for an hour or longer" if parked else " and will be tried again",
            error,
            exc_info=None if isinstance(error, LakebedError) else error,
            extra=events.ALSO_AN_EVENT,
        )
        if parked:
            self._park(corrupt or plan.inputs, error, count)
        return parked

    def _park(self, paths: Sequence[str], error: Exception, failures: int) -> None:
        """Park a merge in the log, which all processes read; while that does not succeed, this one remembers it."""
        try:
            is_known = park_merge(self._log, paths, error, failures, int(self._clock() * 1000)) is not None
        except LakebedError as unparked:
            _logger.warning("that a merge of %s keeps failing is not in its log: %s", self._table, unparked)
            return
        with self._lock:
            for path in paths if is_known else ():  # from now on the log says it, and it can be resumed
                self._shared.failures.pop(path, None)

    def _parked(self, now: float) -> frozenset[str]:
        return frozenset(path for path, each in self._shared.failures.items() if now < each.not_before)
