"""The maintenance of one table: jobs that a scheduler runs, one after each new version of the table's log.

1. The *cycle* looks for a new version: at once after a batch that this process commits, and otherwise after a pause that grows
   while nothing comes. If there is one, or if the tail may have become due, it settles what is due and refreshes the views.
   After an error that may pass it runs again, later each time. The more it is behind (backpressure), the earlier it gets a
   thread.
2. When a cycle has found another base, the merge job makes a plan and executes it, as long as there is one. It plans again now
   and then all the same, since claims and failures expire. The deeper a table is, the earlier it gets a thread.
3. Chores (uploads, checkpoints, cleaning up) run at intervals while they are needed. Leases are extended in a pool of their own,
   so that no merge or settle delays that.

         add()
           |            fails, and the cause may pass
           v          /-------------------------------> waiting
        running <----+------------- pause -----------------/
           |  \\
           |   \\---- fails, and the cause never passes ---> failed
           \\-------- stop(), or Spark ends --------------> stopped

The log is all that it reads, so it does not depend on the writers: it may stop, crash, or run in one or more other processes, and
ingest goes on. ``lakebed.failures`` says which causes pass, and reports the states.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import is_not

from lakebed.compaction.merge_runner import CLOSE_SECONDS_MAX, MergeRunner
from lakebed.compaction.scheduler import ScheduledJob, Scheduler, head_start_seconds
from lakebed.compaction.settler import Settler
from lakebed.errors import Cancelled, LakebedError, Retry
from lakebed.failures import Health, Outage, Restarts, failure_in
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.planning.plan import MergePlan
from lakebed.planning.settling import due_ms, pressure
from lakebed.settings import TIERS
from lakebed.sparks.cluster import MERGES_MAX

ROLE = "maintain"
_SETTLE_LOOK_SECONDS = 5.0
"""How often a tail is looked at that waits: it becomes due with time."""
_MERGE_LOOK_SECONDS = (5.0, 60.0)
"""The pauses between two plans without a new version: the first, and the longest."""
IDLE_SECONDS = 600.0
"""When a table is idle into which nothing came."""
_INDEX_BYTES_KEPT = 64 << 20
"""A key index that is larger stays open while the table is idle: to open it is to read it once."""
_SLOW_SECONDS = 5.0
_logger = logging.getLogger("lakebed.compact")


def always() -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Chore:
    """Work that is done now and then."""

    run: Callable[[], object]
    seconds: float  # between two times
    is_needed: Callable[[], bool] = always  # whether there is anything to do; reads nothing
    extends_leases: bool = False  # it must not be late
    merges: bool = False  # it takes as long as a merge, and is done by the threads that merge
    is_owed: bool = False  # the table does not rest before it is done

    def pool_of(self, pools: Pools) -> Scheduler:
        """The threads that run it."""
        return pools.leases if self.extends_leases else pools.merges if self.merges else pools.chores


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDuties:
    """What the maintenance of one table consists of."""

    path: str
    log: TableLog
    step: Callable[[], None]  # runs one cycle on the newest snapshot that ``log`` has
    settler: Settler
    merge_runner: MergeRunner
    chores: tuple[Chore, ...] = ()
    # lets go of the key index, unless it has more bytes than that
    release: Callable[[int | None], object] = lambda bytes_max: None
    # gives the duties for another beginning, after an error that ended them
    renewed: Callable[[], TableDuties] | None = None
    holds_local_parts: Callable[[], bool] = lambda: False  # whether it has parts that are on this host alone
    spark_runs: Callable[[], bool] = always  # the maintenance ends when it returns False


class Pools:
    """The threads that maintain tables: some for cycles, others for merges, for chores, and to extend leases."""

    def __init__(
        self, cycles: int, merges: int, chores: int, leases: int, shares: Mapping[str, float] | None = None
    ) -> None:
        """``shares``: of pools of tables (``lakebed.pool``) in each kind of threads but those of leases."""
        self.cycles = Scheduler("maintain", cycles, slow_seconds=_SLOW_SECONDS, shares=shares)
        self.merges = Scheduler("merge", merges, shares=shares)
        self.on_cluster = Scheduler("cluster", MERGES_MAX, shares=shares)  # they wait for Spark
        self.chores = Scheduler("chore", chores, slow_seconds=_SLOW_SECONDS, shares=shares)
        self.leases = Scheduler("lease", leases, slow_seconds=_SLOW_SECONDS)

    def close(self, timeout_seconds: float = 0.0) -> None:
        """Run nothing more, and wait so long for the threads to end."""
        deadline = time.monotonic() + timeout_seconds
        for each in (self.merges, self.on_cluster, self.chores, self.leases, self.cycles):
            each.close(max(0.0, deadline - time.monotonic()))


class TableMaintainer:
    """A table under maintenance, from ``start`` until ``stop`` or an error that never passes."""

    def __init__(
        self,
        duties: TableDuties,
        pools: Pools,
        look_seconds: tuple[float, float],
        on_end: Callable[[], object] = lambda: None,
        one_of_many: bool = False,
    ) -> None:
        """``look_seconds``: the first and longest pause between looks at the log; ``on_end``: called before it has ended."""
        self.duties = duties
        self._pools = pools
        self._look_seconds = look_seconds
        self._on_end = on_end
        self._health = Health(duties.path, ROLE, one_of_many)
        self._restarts = Restarts()
        self._restarts.has_started = True
        self._cycles = self._cycles_at_failure = 0
        self._seen, self._pause = ("", -1), look_seconds[0]  # a table's id and version
        self._merge_pause = _MERGE_LOOK_SECONDS[0]
        self._planned: tuple[object, ...] = (None, None)  # what of the table the merges were planned for
        self._stepped_at = self._not_before = 0.0
        self._tail_due_at = math.inf  # by its age, if it was not due at the last step
        self._stopping, self.ended = threading.Event(), threading.Event()
        self.error: LakebedError | None = None
        """The error that ended it."""
        name = f"of {duties.path}"
        self._planning = Outage(f"planning merges {name}", _logger)
        self._cycle = ScheduledJob(self._run_cycle, f"the cycle {name}")
        self._merge = ScheduledJob(self._run_merge, f"the merge {name}")
        self._sent: set[ScheduledJob] = set()  # merges on the cluster
        self._settle = ScheduledJob(self._run_settles, f"the settle {name}")
        self._settles: deque[tuple[int, Future[int | None]]] = deque()
        outage = partial(Outage, f"a chore {name}", _logger)
        chores = [
            (chore, ScheduledJob(partial(self._run_chore, chore, outage()), f"a chore {name}"))
            for chore in duties.chores
        ]
        self._chores = [(chore, job, chore.pool_of(pools)) for chore, job in chores]
        if duties.log.newest is not None:
            self._rank(duties.log.newest)

    def start(self) -> None:
        """Begin, with a look at once."""
        self.duties.merge_runner.on_wake = self._plan_soon
        self._wake_chores()
        self.look()

    @property
    def trouble(self) -> LakebedError | None:
        """The error for which it waits or has ended; None while it runs, and after ``stop``."""
        return self._health.error

    def look(self) -> None:
        """Let the cycle look for a new version at once, or as soon as the pause after a failure is over."""
        self._pools.cycles.wake(self._cycle, max(0.0, self._not_before - time.monotonic()))

    def act(self) -> None:
        """Run a cycle in this thread, where the pool of cycles has none. Raises the error that it waits for or ended with."""
        self.look()
        if self._pools.cycles.run_due() and self.trouble is not None:
            raise self.trouble

    @property
    def pause_seconds(self) -> float | None:
        """How long it waits after an error until it tries again; None if it has ended."""
        return None if self.ended.is_set() else max(0.0, self._not_before - time.monotonic())

    def is_at_rest(self) -> bool:
        """Whether it knows the newest version that this process has seen, and nothing of it runs, waits or is in trouble."""
        newest = self.duties.log.newest
        return (
            newest is not None
            and _version_of(newest) == self._seen
            and not self._settles
            and self.trouble is None
            and not self.duties.merge_runner.running()
            and not self.duties.holds_local_parts()
            and not any(chore.is_owed and chore.is_needed() for chore in self.duties.chores)
        )

    def settle_to(self, version: int) -> Future[int | None]:
        """Settle up to a version as soon as a thread is free. See ``Settler.settle_to``; its errors are the future's."""
        asked: Future[int | None] = Future()
        self._settles.append((version, asked))
        self._pools.cycles.wake(self._settle)
        if self._stopping.is_set():
            self._refuse_settles()
        return asked

    def settle_the_rest(self) -> Future[int | None] | None:
        """Settle the tail, up to the bound if there is one; None if there is none left, or if the table is in trouble."""
        newest, until = self.duties.log.newest, self.duties.settler.until_version
        if newest is None or self.trouble is not None:
            return None
        until = newest.version if until is None else until
        if not any(part.version <= until for part in newest.tail.values()):
            return None
        return self.settle_to(until)

    def stop(self, timeout_seconds: float = CLOSE_SECONDS_MAX) -> None:
        """End after the cycle that runs now; waits so long for it. Merges are cancelled, and their claims released."""
        self._end(timeout_seconds)
        self._health.stopped()

    # -- the jobs ------------------------------------------------------------------------------------------------------

    def _run_cycle(self) -> float | None:
        """Returns the pause until the next look."""
        if self._stopping.is_set():
            return None
        if (left := self._not_before - time.monotonic()) > 0:  # who woke it did not know yet that it had failed
            return left
        try:
            if not self.duties.spark_runs():
                self.stop()
                return None
            return self._look()
        except LakebedError as error:
            return self.failed(error)
        except Exception as error:  # of a Spark job that looks up keys, or of the views
            return self.failed(failure_in(str(error), ROLE)) if self.duties.spark_runs() else 0.0

    def _look(self) -> float:
        log = self.duties.log
        newest = log.newest
        if newest is None or _version_of(newest) == self._seen:  # else this process committed meanwhile
            newest = log.refresh()
        version = _version_of(newest)
        now = time.monotonic()
        waits = bool(newest.tail) and (now - self._stepped_at >= _SETTLE_LOOK_SECONDS or now >= self._tail_due_at)
        if version != self._seen or waits:
            self._rank(newest)
            self.duties.step()
            self._stepped_at = time.monotonic()
            self._cycles += 1
            self._health.runs()
            newest = log.newest or newest
            due_seconds = ((due_ms(newest) or 0) - log.now_ms()) / 1000
            self._tail_due_at = self._stepped_at + due_seconds if due_seconds > 0 else math.inf
        if version != self._seen:
            self._seen, self._pause, log.is_idle = version, self._look_seconds[0], False
            if any(map(is_not, self._planned, base := (newest.parts, newest.metadata))):
                self._planned = base
                self._plan_soon()
            self._wake_chores()
        elif not waits:
            self._pause = min(2 * self._pause, self._look_seconds[1])
            if not log.is_idle and time.monotonic() - self._stepped_at >= IDLE_SECONDS:
                log.is_idle = True
                self.duties.release(_INDEX_BYTES_KEPT)
        pause = min(self._pause, _SETTLE_LOOK_SECONDS) if newest.tail else self._pause
        freshness = newest.settings.freshness_seconds
        pause = pause if freshness is None else max(self._look_seconds[0], min(pause, freshness / 4))
        return min(pause, max(0.0, self._tail_due_at - time.monotonic()))

    def _rank(self, newest: Snapshot) -> None:
        """Say how urgent the jobs are, by the table's settings and by how late its readers see what came."""
        settings = newest.settings
        for job in (self._cycle, self._merge, self._settle, *(job for _, job, _ in self._chores)):
            job.tier, job.pool = TIERS.index(settings.tier), settings.pool
        oldest_ms = min((part.modified_ms for part in newest.tail.values()), default=None)
        late_seconds = 0.0 if oldest_ms is None else max(0.0, time.time() - oldest_ms / 1000)
        lateness = late_seconds / settings.freshness_seconds if settings.freshness_seconds else 0.0
        factor = pressure(newest).factor
        self._cycle.head_start_seconds = head_start_seconds(lateness=lateness, pressure_factor=factor)

    def failed(self, error: LakebedError) -> float | None:
        """Wait or end, since the cycle failed, or what runs it. Returns the pause until the next try; None if there is none."""
        pause = self._restarts.pause_seconds(error, self._cycles > self._cycles_at_failure)
        self._cycles_at_failure = self._cycles
        self._seen = ("", -1)  # whatever comes, the step is tried again
        if pause is None:
            self.error = error
            self._health.failed(error)
            self._end()
            return None
        self._health.waits(error, pause)
        self._not_before = time.monotonic() + pause
        self._plan_soon()
        return pause

    def _run_settles(self) -> None:
        """Settle up to the versions that were asked for, in this order."""
        while self._settles and not self._stopping.is_set():
            version, asked = self._settles.popleft()
            if asked.set_running_or_notify_cancel():
                try:
                    asked.set_result(self.duties.settler.settle_to(version))
                except Exception as error:
                    asked.set_exception(error)

    def _refuse_settles(self) -> None:
        while self._settles:
            asked = self._settles.popleft()[1]
            if asked.set_running_or_notify_cancel():
                asked.set_exception(Cancelled(f"the maintenance of {self.duties.path} has ended"))

    def _run_merge(self) -> float | None:
        """Make a plan and execute it; returns when to plan again."""
        merge_runner = self.duties.merge_runner
        try:
            job = merge_runner.next_plan(looks=False)  # the cycle looks
            self._planning.works()
            self._merge.head_start_seconds = head_start_seconds(depth_over_budget=merge_runner.depth_over_budget)
            if job is not None:
                if job[1].on_cluster:
                    self._send(*job)
                else:
                    with suppress(Exception):  # reported already, and tried again later
                        merge_runner.run(*job)
                self._wake_chores()
                self._merge_pause = _MERGE_LOOK_SECONDS[0]
                return 0.0
        except Retry as error:
            self._planning.failed(error)
        except Exception:
            _logger.exception("planning merges of %s failed", self.duties.path)
        pause, self._merge_pause = self._merge_pause, min(2 * self._merge_pause, _MERGE_LOOK_SECONDS[1])
        return min(pause, merge_runner.pause_seconds() or pause)

    def _send(self, number: int, plan: MergePlan) -> None:
        """Let a thread wait for Spark, so that this one goes on with other plans."""

        def run() -> None:
            with suppress(Exception):  # reported already, and tried again later
                self.duties.merge_runner.run(number, plan)
            self._sent.discard(job)
            self._wake_chores()
            self._plan_soon()

        job = ScheduledJob(run, f"{self._merge.name} on the cluster", tier=self._merge.tier, pool=self._merge.pool)
        self._sent.add(job)
        self._pools.on_cluster.wake(job)

    def _plan_soon(self) -> None:
        self._merge_pause = _MERGE_LOOK_SECONDS[0]
        self._pools.merges.wake(self._merge)

    def _run_chore(self, chore: Chore, outage: Outage) -> float | None:
        try:
            chore.run()
            outage.works()
        except Retry as error:
            outage.failed(error)
        except Exception:
            _logger.exception("a chore of %s failed", self.duties.path)
        return chore.seconds if chore.is_needed() else None

    def _wake_chores(self) -> None:
        """Let those chores run in their time that are needed now."""
        for chore, job, pool in self._chores:
            if chore.is_needed():
                pool.wake(job, chore.seconds)

    # -- the end -------------------------------------------------------------------------------------------------------

    def _end(self, timeout_seconds: float = CLOSE_SECONDS_MAX) -> None:
        """Let what runs end, release the claims, and say so."""
        if self._stopping.is_set():
            self.ended.wait(2 * CLOSE_SECONDS_MAX)
            return
        self._stopping.set()
        merge_runner = self.duties.merge_runner
        merge_runner.cancel()
        deadline = time.monotonic() + timeout_seconds
        cycles = [self._cycle, self._settle]
        jobs = {self._pools.merges: [self._merge], self._pools.cycles: cycles}
        for _, job, pool in self._chores:
            jobs.setdefault(pool, []).append(job)
        self._pools.merges.remove([self._merge])  # it sends no more
        jobs[self._pools.on_cluster] = list(self._sent)
        for pool, theirs in jobs.items():
            pool.remove(theirs)
        for pool, theirs in jobs.items():
            pool.remove(theirs, deadline - time.monotonic())
        merge_runner.close()
        self._refuse_settles()
        self.duties.log.is_idle = False
        self.duties.release(None)
        self._on_end()
        self.ended.set()


def _version_of(snapshot: Snapshot) -> tuple[str, int]:
    return snapshot.metadata.id, snapshot.version
