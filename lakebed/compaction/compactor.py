"""Runs the planner's merges of one table in the background of a replica, a few at a time.

1. Something happened (``wake``), or some seconds went by: a worker asks the planner for the newest snapshot's plans. Parts
   that live claims name, that this process is merging, or that are parked are left out.
2. It takes the first plan of which no other worker of this process has taken a part since step 1, and runs it. If others
   were faster with all of them, it plans again. It goes on until there is no plan, and rests. Replicas need not know of each
   other: whoever claims first has the plan, and the others' planners see the claim.
3. A plan that fails is tried again, later each time. After ``FAILURES_MAX`` times its parts are parked for an hour and
   reported; a part that the error names is parked alone, and at once. Nothing loops.

Nothing is planned, read or written under the lock: who settles calls ``wake`` after each round, and planning many parts takes
seconds. So neither a plan nor a merge delays settling, which runs in the streaming query.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from lakebed import events
from lakebed.compaction.merge import MergeKernel, MergeOutcome, MergeResult, Progress, no_progress
from lakebed.errors import Cancelled, Corrupt, LakebedError, Retry
from lakebed.manifest.snapshot import Snapshot
from lakebed.manifest.table_log import TableLog
from lakebed.planning.admission import IN_FLIGHT_PLANS
from lakebed.planning.plan import MergePlan, Planning
from lakebed.planning.planner import plan as make_plans

IDLE_SECONDS = 5.0
FAILURES_MAX = 4
PARKED_SECONDS = 3600.0
BACKOFF_SECONDS_MAX = 60.0
CLOSE_SECONDS_MAX = 5.0
_logger = logging.getLogger("lakebed.compact")

Planner = Callable[[Snapshot, Collection[str], int, int, Mapping[str, int]], Planning]
"""Snapshot, paths that are taken, now in epoch milliseconds, bytes in flight, reads by path."""


class MergeWorker(Protocol):
    """``Merger``, or ``VolatileMerger``."""

    @property
    def replica(self) -> str: ...

    def planning_view(self, snapshot: Snapshot, now_ms: int) -> tuple[Snapshot, frozenset[str]]: ...

    def run(
        self, paths: Sequence[str], level: int, kernel: MergeKernel, *, progress: Progress = no_progress,
        predicted: Mapping[str, object] | None = None, claim_id: str | None = None,
    ) -> MergeResult: ...  # fmt: skip

    def close(self) -> None: ...


@dataclass(slots=True)
class _Trouble:
    """What is known of a part whose plans failed."""

    failures: int = 0
    not_before: float = 0.0


@dataclass(frozen=True, slots=True)
class Running:
    """A merge under way in this process."""

    plan: MergePlan
    since: float
    rows_done: int = 0


@dataclass(slots=True, eq=False, kw_only=True)
class _Look:
    """What this process was doing when a worker began to plan, and what others of it took while it planned."""

    now: float
    taken: frozenset[str]
    troubled: frozenset[str]
    in_flight_bytes: int
    in_flight_bytes_max: int = 0  # of the table's settings
    taken_since: set[str] = field(default_factory=set)
    bytes_since: int = 0

    def still_holds(self, plan: MergePlan) -> bool:
        """Whether the plan may run beside what others took since."""
        if not self.taken_since:
            return True
        in_flight_bytes = self.in_flight_bytes + self.bytes_since + plan.bytes_in
        return self.taken_since.isdisjoint(plan.inputs) and in_flight_bytes <= self.in_flight_bytes_max


@dataclass(slots=True)
class _Shared:
    """What the workers share, under the compactor's lock."""

    running: dict[int, Running] = field(default_factory=dict)
    trouble: dict[str, _Trouble] = field(default_factory=dict)
    looks: set[_Look] = field(default_factory=set)
    next_id: int = 0


class Compactor:
    """``workers`` threads that merge while there is something to merge. ``close`` ends them."""

    def __init__(
        self,
        table: str,
        log: TableLog,
        merger: MergeWorker,
        kernel: MergeKernel,
        planner: Planner | None = None,
        workers: int = 1,
        chores: Mapping[Callable[[], object], float] | None = None,
        clock: Callable[[], float] = time.time,
        reads: Callable[[Snapshot], Mapping[str, int]] = lambda snapshot: {},
    ) -> None:
        """``chores``: what else is to be done in the background, each with its seconds from one time to the next.

        Each has a thread of its own: leases are extended also while an upload or a cleanup takes minutes.
        ``planner``: by default the table's policy; ``reads``: how often parts were read of late, by path.
        """
        self._table = table
        self._log = log
        self._merger = merger
        self._kernel = kernel
        self._planner: Planner = planner or partial(make_plans, statistics=log.statistics)
        self._clock = clock
        self._reads = reads
        self._shared = _Shared()
        self._lock = threading.Lock()  # of the fields below
        self._wake = threading.Condition(self._lock)
        self._poked = 0
        self._closing = False
        self._threads = [
            threading.Thread(target=self._work, name=f"lakebed-merge-{number}", daemon=True)
            for number in range(workers)
        ]
        self._threads += [
            threading.Thread(target=self._do_chore, args=chore, name=f"lakebed-chore-{number}", daemon=True)
            for number, chore in enumerate((chores or {}).items())
        ]

    def start(self) -> None:
        """Start the workers."""
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """The table changed: look at once what is to be done. Costs nothing."""
        with self._wake:
            self._poked += 1
            self._wake.notify_all()

    def close(self, timeout_seconds: float = CLOSE_SECONDS_MAX) -> None:
        """Cancel what runs and end the workers; claims are given back, also of merges that do not end in time."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        deadline = time.monotonic() + timeout_seconds
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))
        self._merger.close()

    def running(self) -> list[Running]:
        """The merges under way."""
        with self._lock:
            return list(self._shared.running.values())

    def run_until_idle(self) -> list[MergeResult]:
        """Do in this thread all that the planner finds, until it finds nothing; for a call instead of a service.

        Raises what a plan fails with.
        """
        results = []
        while (job := self.next_plan()) is not None:
            results.append(self.run(*job))
        return results

    def parked(self) -> frozenset[str]:
        """Paths of parts that are left alone for now because their plans failed."""
        now = self._clock()
        with self._lock:
            return self._parked(now)

    # -- the workers -------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        seen = -1
        while not self._closing:
            try:
                while not self._closing and (job := self.next_plan()) is not None:
                    with suppress(Exception):  # reported already, and tried again later
                        self.run(*job)
            except Retry as error:
                _logger.warning("planning merges of %s will be tried again: %s", self._table, error)
            except Exception:
                _logger.exception("planning merges of %s failed", self._table)
            with self._wake:
                if not self._closing and seen == self._poked:
                    self._wake.wait(IDLE_SECONDS)
                seen = self._poked

    def _do_chore(self, chore: Callable[[], object], seconds: float) -> None:
        due = time.monotonic() + seconds
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._closing, max(0.0, due - time.monotonic()))
            if self._closing:
                return
            try:
                chore()
            except Retry as error:
                _logger.warning("a chore of %s will be tried again: %s", self._table, error)
            except Exception:
                _logger.exception("a chore of %s failed", self._table)
            due = time.monotonic() + seconds

    def is_due(self) -> bool:
        """Whether there is a plan that could run now."""
        with self._look() as look:
            return bool(self._plans(look))

    def next_plan(self) -> tuple[int, MergePlan] | None:
        """The plan to run next, noted as running; None if there is none."""
        while True:
            with self._look() as look:
                plans = self._plans(look)
                with self._lock:
                    job = self._take(look, plans)
                if job is not None or not plans:
                    return job

    @contextmanager
    def _look(self) -> Iterator[_Look]:
        with self._lock:
            now, running = self._clock(), self._shared.running.values()
            taken = self._parked(now).union(*(each.plan.inputs for each in running))
            look = _Look(
                now=now,
                taken=taken,
                troubled=frozenset(self._shared.trouble),
                in_flight_bytes=sum(each.plan.bytes_in for each in running),
            )
            self._shared.looks.add(look)
        try:
            yield look
        finally:
            with self._lock:
                self._shared.looks.discard(look)

    def _plans(self, look: _Look) -> list[MergePlan]:
        """What there is to merge, best first."""
        snapshot, now_ms = self._log.refresh(), int(look.now * 1000)
        seen, claimed = self._merger.planning_view(snapshot, now_ms)
        gone = [path for path in look.troubled if path not in seen.parts]
        with self._lock:
            for path in gone:
                self._shared.trouble.pop(path, None)
        planning = self._planner(seen, look.taken | claimed, now_ms, look.in_flight_bytes, self._reads(snapshot))
        look.in_flight_bytes_max = IN_FLIGHT_PLANS * seen.settings.plan_bytes_max
        return list(planning.merges)

    def _take(self, look: _Look, plans: Sequence[MergePlan]) -> tuple[int, MergePlan] | None:
        """Note the first plan that still can run as running; called with the lock held."""
        for plan in plans:
            if not look.still_holds(plan):
                continue
            number = self._shared.next_id
            self._shared.next_id += 1
            self._shared.running[number] = Running(plan, look.now)
            for other in self._shared.looks:
                other.taken_since.update(plan.inputs)
                other.bytes_since += plan.bytes_in
            return number, plan
        return None

    def run(self, number: int, plan: MergePlan) -> MergeResult:
        """Merge what ``next_plan`` gave. Raises what the plan fails with; then its parts are tried again later."""
        try:
            return self._merge(number, plan)
        finally:
            self.release(number)

    def _merge(self, number: int, plan: MergePlan) -> MergeResult:
        def progress(rows: int) -> None:
            if self._closing:
                raise Cancelled("the merge stops because its compactor closes")
            with self._lock:
                running = self._shared.running[number]
                self._shared.running[number] = Running(plan, running.since, rows)

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
            result = self._merger.run(
                plan.inputs, plan.level, self._kernel, progress=progress, predicted=plan.predicted(), claim_id=claim
            )
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
                    self._shared.trouble.pop(path, None)
        return result

    def release(self, number: int) -> None:
        """The plan that ``next_plan`` gave under this number does not run any more."""
        with self._lock:
            self._shared.running.pop(number, None)

    def _failed(self, plan: MergePlan, error: Exception) -> bool:
        """Note which parts are left alone, and for how long; returns whether they are parked."""
        named = [path for path in plan.inputs if isinstance(error, Corrupt) and path in (error.part, error.path)]
        now = self._clock()
        parked = False
        with self._lock:
            for path in named or plan.inputs:
                trouble = self._shared.trouble.setdefault(path, _Trouble())
                trouble.failures = FAILURES_MAX if named and not isinstance(error, Retry) else trouble.failures + 1
                parked = trouble.failures >= FAILURES_MAX
                pause = PARKED_SECONDS if parked else min(BACKOFF_SECONDS_MAX, 2.0**trouble.failures)
                trouble.not_before = now + pause
        _logger.warning(
            "a %s of %d parts of %s failed%s: %s", plan.kind.value, len(plan.inputs), self._table,
            ", its parts are left alone for an hour" if parked else " and will be tried again", error,
            exc_info=None if isinstance(error, LakebedError) else error, extra=events.TOLD,
        )  # fmt: skip
        return parked

    def _parked(self, now: float) -> frozenset[str]:
        return frozenset(path for path, trouble in self._shared.trouble.items() if now < trouble.not_before)
