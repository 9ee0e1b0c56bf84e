"""Merges one table: the next plan, and its execution. ``upkeep`` calls it in the background, and any thread may do so.

1. A worker, that is a thread that asks for the ``next_plan``, notes which parts are taken: those that live claims list, that this
   process merges, or that are parked. The planner leaves these out.
2. The worker takes the first plan that shares no part with what other workers took since step 1, and that still fits beside
   it. Then it runs the plan. If no plan is left because others were faster, it plans again. Replicas do not know each other.
   The first that claims the parts gets the plan, and the planners of the others see the claim.
3. A plan that fails is tried again, later each time. After ``FAILURES_MAX`` failures its parts are parked in the table's log
   (``manifest.failing``), for an hour at first, and this is reported. A part that is corrupt is parked alone, after the first
   failure. So no failure repeats without end, in whichever process. If the log can't be written, this process remembers it.

Nothing is planned, read or written under the lock, since planning many parts takes seconds.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from lakebed import events
from lakebed.compaction.merge import MergeKernel, MergeOutcome, MergeResult, PlanningView, Progress, no_progress
from lakebed.errors import Cancelled, Corrupt, LakebedError, Retry
from lakebed.manifest.failing import failing_of, park_merge, parked_paths
from lakebed.manifest.snapshot import Snapshot
from lakebed.manifest.table_log import TableLog
from lakebed.planning.admission import IN_FLIGHT_PLANS
from lakebed.planning.plan import Goal, MergePlan, Planning
from lakebed.planning.planner import plan as make_plans
from lakebed.planning.uploads import uploaded_plans

FAILURES_MAX = 4
PARKED_SECONDS = 3600.0
BACKOFF_SECONDS_MAX = 60.0
CLOSE_SECONDS_MAX = 5.0
_logger = logging.getLogger("lakebed.compact")

Planner = Callable[[Snapshot, Collection[str], int, int, Mapping[str, int], Goal], Planning]
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


@dataclass(slots=True)
class _Failures:
    """How often plans of a part failed, and the time before which it is not planned again."""

    count: int = 0
    not_before: float = 0.0


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
    """What the workers share; guarded by the compactor's lock."""

    running: dict[int, Running] = field(default_factory=dict)
    failures: dict[str, _Failures] = field(default_factory=dict)
    planning: set[_Start] = field(default_factory=set)
    next_id: int = 0


class Compactor:
    """Plans merges of one table and executes them. Safe to use from several threads."""

    def __init__(
        self,
        table: str,
        log: TableLog,
        merger: MergeWorker,
        kernel: MergeKernel,
        *,
        planner: Planner | None = None,
        clock: Callable[[], float] = time.time,
        reads: Callable[[Snapshot], Mapping[str, int]] = lambda snapshot: {},
    ) -> None:
        """``planner``: by default that of the table's policy; ``reads``: how often parts were read in the last hour, by path."""
        self._table = table
        self._log = log
        self._merger = merger
        self._kernel = kernel
        self._planner: Planner = planner or partial(make_plans, statistics=log.statistics)
        self._clock = clock
        self._reads = reads
        self._shared = _Shared()
        self._lock = threading.Lock()  # of _shared
        self._closing = False
        self.depth_over_budget = 0
        """By how many runs the deepest point of the base is beyond the read budget, as the last plan found it."""
        self.on_wake: Callable[[], object] = lambda: None
        """What ``wake`` calls: it lets the threads plan that work for this compactor."""

    def wake(self) -> None:
        """Let the threads plan at once, because the table changed. Does not wait for them."""
        self.on_wake()

    def cancel(self) -> None:
        """Cancel the merges that run. What runs ends soon, with nothing committed."""
        self._closing = True

    def close(self) -> None:
        """Cancel the merges and release all claims, also those of merges that still run. Call it when nothing runs any more."""
        self.cancel()
        self._merger.close()

    def running(self) -> list[Running]:
        """The merges that run now."""
        with self._lock:
            return list(self._shared.running.values())

    def run_until_idle(self) -> list[MergeResult]:
        """Run plans in this thread until the planner finds none. Raises the error of a plan that fails."""
        results = []
        while (job := self.next_plan()) is not None:
            results.append(self.run(*job))
        return results

    def parked(self) -> frozenset[str]:
        """Paths of parts that are not planned for now, because plans of them failed, here or in another process."""
        now, newest = self._clock(), self._log.newest
        elsewhere = parked_paths(newest, int(now * 1000)) if newest is not None else frozenset()
        with self._lock:
            return self._parked(now) | elsewhere

    # -- planning and executing ----------------------------------------------------------------------------------------

    def is_due(self) -> bool:
        """Whether there is a plan that could run now."""
        with self._starting() as start:
            return bool(self._plans(start))

    def next_plan(self, looks: bool = True) -> tuple[int, MergePlan] | None:
        """The plan to run next, and its number, for ``run``; None if there is none, or if the compactor closes.

        ``looks``: whether the log is read; if not, the plan is for the newest snapshot in memory.
        """
        while not self._closing:
            with self._starting() as start:
                plans = self._plans(start, looks)
                with self._lock:
                    job = self._take(start, plans)
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
                in_flight_bytes=sum(each.plan.bytes_in for each in running),
            )
            self._shared.planning.add(start)
        try:
            yield start
        finally:
            with self._lock:
                self._shared.planning.discard(start)

    def _plans(self, start: _Start, looks: bool = True) -> list[MergePlan]:
        """What can be merged, best first."""
        snapshot, now_ms = (None if looks else self._log.newest) or self._log.refresh(), int(start.now * 1000)
        views = self._merger.views(snapshot, now_ms)
        gone = [path for path in start.failed if all(path not in view.snapshot.parts for view in views)]
        with self._lock:
            for path in gone:
                self._shared.failures.pop(path, None)
        start.in_flight_bytes_max = IN_FLIGHT_PLANS * snapshot.settings.plan_bytes_max
        reads = self._reads(snapshot)
        for view in views:
            taken = start.taken | view.claimed
            planning = self._planner(view.snapshot, taken, now_ms, start.in_flight_bytes, reads, view.goal)
            self.depth_over_budget = max(0, planning.depth_max - snapshot.settings.read_budget)
            if plans := uploaded_plans(planning, view.below):
                return plans
        return []

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
                other.bytes_since += plan.bytes_in
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
            if self._closing:
                raise Cancelled("the merge stops because its compactor closes")

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
            )
        )
        try:
            result = self._merger.run_plan(plan, self._kernel, progress=stop_if_closing, claim_id=claim)
        except Cancelled:
            result = MergeResult(outcome=MergeOutcome.CANCELLED, claim=claim)
        except Exception as error:
            parked = self._failed(plan, error)
            events.emit(
                events.MergeFailed(
                    table=self._table,
                    kind=kind,
                    level=plan.level,
                    parts=parts,
                    parked=parked,
                    error=str(error),
                    claim=claim,
                    replica=replica,
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
            )
        )
        if result.outcome is MergeOutcome.COMPLETED:
            with self._lock:
                for path in plan.inputs:
                    self._shared.failures.pop(path, None)
        return result

    def release(self, number: int) -> None:
        """Remove the plan with this number from the running ones."""
        with self._lock:
            self._shared.running.pop(number, None)

    def _failed(self, plan: MergePlan, error: Exception) -> bool:
        """Record when the parts may be planned again; returns whether they are parked."""
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
                pause = PARKED_SECONDS if parked else min(BACKOFF_SECONDS_MAX, 2.0**failures.count)
                failures.not_before = now + pause
        _logger.warning(
            "a %s of %d parts of %s failed%s: %s", plan.kind.value, len(plan.inputs), self._table,
            ", its parts are left alone for an hour or longer" if parked else " and will be tried again", error,
            exc_info=None if isinstance(error, LakebedError) else error, extra=events.ALSO_AN_EVENT,
        )  # fmt: skip
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
            for path in paths if is_known else ():  # from now on the log says it, and somebody may resume it
                self._shared.failures.pop(path, None)

    def _parked(self, now: float) -> frozenset[str]:
        return frozenset(path for path, each in self._shared.failures.items() if now < each.not_before)
