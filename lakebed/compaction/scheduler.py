"""Runs the jobs of many tables when they are due, in a bounded pool of threads. A job that waits has no thread.

1. A job that waits is in a heap, by the time when it is due. One idle thread sleeps until the first job is due; the other idle
   threads sleep until one that takes a job calls the next, as there is more to do. So few wake up for nothing.
2. Jobs that are due are ready. ``order`` says which of them a thread takes: by pool, by tier, and by how long it is due. No ready
   job waits for ever behind others.
3. A job returns in how many seconds it is due again, or None: then it waits until it is woken. Nothing runs twice at a time: a
   job that is woken while it runs is due again when it returns.
4. A job that took ``slow_seconds`` or longer, such as that of a table whose store does not answer, is *slow* until it is fast
   again. Slow jobs get half of the threads at most, so that the others go on.

Threads start when there is work for them, up to ``threads``. Nothing is read or written under the lock. With no threads, jobs run
where ``run_due`` is called: so a test runs them one by one, by a clock of its own.

**Order** (``ReadyJobs``, without threads or a clock). In which order jobs that are ready get a thread. Pure: no thread, no clock.

1. *Pools* share the threads by their shares (``lakebed.pool``): next is the pool that has used the least time for its share. Time
   counts when a job begins, as long as the jobs of its pool usually take, and is put right when it ends. A pool that had nothing
   ready begins at the time of the pool that was served last: an unused share is lent to the others, and not saved.
2. In a pool the first *tier* comes first (``lakebed.tier``). But every ``FAIR_EVERY``-th job is the one that has waited longest,
   whatever its tier: so no job starves, and of ``FAIR_EVERY`` jobs at most one runs ahead of the first tier.
3. In a tier the job comes first that is ready for longest. A *head start* counts as time that it waited: lateness first, then
   backpressure, then depth (``head_start_seconds``). It is bounded, so in a tier nothing waits for ever either.
4. Slow jobs are in heaps of their own, so that the scheduler may leave them out.

With one pool and one tier this is first in, first out, but for the head starts.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

FAIR_EVERY = 8
HEAD_START_SECONDS_MAX = 60.0
_LATE_SECONDS, _LATE_SECONDS_MAX = 20.0, 40.0
_PRESSED_SECONDS_MAX = _DEEP_SECONDS_MAX = 10.0
_MEMORY = 0.8  # of the usual time of a pool's jobs


def head_start_seconds(*, lateness: float = 0.0, pressure_factor: float = 1.0, depth_over_budget: int = 0) -> float:
    """What counts as time that a job waited. ``lateness``: the age of the oldest change, in units of ``lakebed.freshness``."""
    return (
        min(_LATE_SECONDS_MAX, _LATE_SECONDS * lateness)
        + min(_PRESSED_SECONDS_MAX, pressure_factor - 1)
        + min(_DEEP_SECONDS_MAX, float(depth_over_budget))
    )


@dataclass(frozen=True, slots=True)
class _Taken(Generic[T]):
    """A job that begins. ``expected_seconds``: what its pool was charged for it."""

    item: T
    pool: str
    expected_seconds: float


_Heap = list[tuple[float, int, T]]


@dataclass(slots=True)
class _Pool(Generic[T]):
    share: float
    used: float = 0.0  # seconds for its share
    usual_seconds: float = 0.0
    taken: int = 0
    tiers: dict[int, tuple[_Heap[T], _Heap[T]]] = field(default_factory=dict)  # quick jobs, and slow ones

    def is_empty(self) -> bool:
        return not any(heap for heaps in self.tiers.values() for heap in heaps)


class ReadyJobs(Generic[T]):
    """Jobs that are ready, the one to take next first. For one thread at a time."""

    def __init__(self, is_stale: Callable[[T], bool], shares: Mapping[str, float] | None = None) -> None:
        """``is_stale``: says of a job that it is not ready any more; ``shares``: of pools, 1 for any other."""
        self._is_stale = is_stale
        self._shares = dict(shares or {})
        self._pools: dict[str, _Pool[T]] = {}
        self._now = 0.0  # the time of the pool that was served last

    def __bool__(self) -> bool:
        return any(not pool.is_empty() for pool in self._pools.values())

    def add(self, item: T, ready: float, number: int, *, pool: str = "", tier: int = 0, is_slow: bool = False) -> None:
        """Add a job. ``ready``: since when, less its head start; ``number`` decides between equals."""
        found = self._pools.get(pool)
        if found is None:
            found = self._pools[pool] = _Pool(self._shares.get(pool, 1.0))
        if found.is_empty():
            found.used = max(found.used, self._now)
        heapq.heappush(found.tiers.setdefault(tier, ([], []))[is_slow], (ready, number, item))

    def take(self, slow_too: bool = True) -> _Taken[T] | None:
        """The job to begin now; None if there is none. Its pool is charged for it until ``ended``."""
        ready = {
            name: heap for name in self._pools if (heap := self._next_heap(self._pools[name], slow_too)) is not None
        }
        if not ready:
            return None
        name = min(ready, key=lambda each: (self._pools[each].used, each))
        pool = self._pools[name]
        self._now = pool.used
        pool.used += pool.usual_seconds / pool.share
        pool.taken += 1
        return _Taken(heapq.heappop(ready[name])[2], name, pool.usual_seconds)

    def ended(self, taken: _Taken[T], seconds: float) -> None:
        """The job took so long."""
        pool = self._pools[taken.pool]
        pool.used += (seconds - taken.expected_seconds) / pool.share
        pool.usual_seconds = _MEMORY * pool.usual_seconds + (1 - _MEMORY) * seconds

    def _next_heap(self, pool: _Pool[T], slow_too: bool) -> _Heap[T] | None:
        """The heap whose first job is the pool's next one."""
        firsts: list[tuple[float, float, _Heap[T]]] = []
        is_fair = pool.taken % FAIR_EVERY == FAIR_EVERY - 1
        for tier, heaps in pool.tiers.items():
            for heap in heaps[: 1 + slow_too]:
                while heap and self._is_stale(heap[0][2]):
                    heapq.heappop(heap)
                if heap:
                    firsts.append((-math.inf if is_fair else tier, heap[0][0], heap))
        return min(firsts, key=lambda each: each[:2])[2] if firsts else None


FAILED_SECONDS = 60.0
"""When a job that raised an error is due again. Jobs handle the errors that they expect."""
_logger = logging.getLogger("lakebed.scheduler")


@dataclass(slots=True, eq=False)
class ScheduledJob:
    """What is to be done now and then. ``run`` returns the seconds until it is due again, or None: when it is woken."""

    run: Callable[[], float | None]
    name: str = ""
    # Set by whoever knows how urgent it is; of the head start at most HEAD_START_SECONDS_MAX counts.
    head_start_seconds: float = 0.0
    tier: int = 1
    pool: str = "default"
    # The scheduler's, guarded by its lock.
    _due: float = math.inf
    _woken: float = math.inf  # while it runs: when it was asked to run again
    _thread: int | None = None  # that runs it
    is_slow: bool = False
    _is_removed: bool = False


def _is_stale(job: ScheduledJob) -> bool:
    return job._is_removed or job._thread is not None


class Scheduler:
    """A heap of due times and a bounded pool. Safe to use from several threads."""

    def __init__(
        self,
        name: str,
        threads: int,
        slow_seconds: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
        shares: Mapping[str, float] | None = None,
    ) -> None:
        """``name``: of the threads; ``clock``: seconds that never go back; ``shares``: of pools of jobs, 1 if not given."""
        self._name = name
        self._threads_max = threads
        self._slow_seconds = slow_seconds
        self._slow_max = max(1, threads // 2)
        self._clock = clock
        self._changed = threading.Lock()  # of the fields below
        self._clock_moved = threading.Condition(self._changed)  # the thread that watches the clock waits here
        self._called = threading.Condition(self._changed)  # the other idle threads
        self._ran = threading.Condition(self._changed)  # who removes jobs that run
        self._waiting: list[tuple[float, int, ScheduledJob]] = []
        self._ready = ReadyJobs[ScheduledJob](_is_stale, shares)
        self._numbers = itertools.count()
        self._threads: list[threading.Thread] = []
        self._idle = self._slow_running = 0
        self._watched = math.inf  # until when the thread sleeps that watches the clock
        self._is_watched = self._is_closed = False

    def wake(self, job: ScheduledJob, delay_seconds: float = 0.0) -> None:
        """Let the job be due after ``delay_seconds`` at the latest. The first call adds it. Does not wait for it."""
        with self._changed:
            due = self._clock() + delay_seconds
            if job._is_removed or self._is_closed:
                return
            if job._thread is not None:
                job._woken = min(job._woken, due)
            elif due < job._due:
                self._schedule(job, due)

    def remove(self, jobs: Collection[ScheduledJob], timeout_seconds: float = 0.0) -> bool:
        """Run these jobs no more. Waits so long for those that run, except for the caller itself; returns whether none does."""
        own = threading.get_ident()
        with self._changed:
            for job in jobs:
                job._is_removed = True
            return self._ran.wait_for(
                lambda: not any(job._thread not in (None, own) for job in jobs), max(0.0, timeout_seconds)
            )

    def run_due(self) -> bool:
        """Run one job that is due in the thread of the caller; returns whether there was one."""
        with self._changed:
            taken = self._take_due()
        if taken is not None:
            self._run(taken)
        return taken is not None

    @property
    def next_due(self) -> float:
        """When the next of the jobs that wait is due, by the clock; infinite if none is."""
        with self._changed:
            return min(
                (due for due, _, job in self._waiting if due == job._due and not _is_stale(job)), default=math.inf
            )

    def close(self, timeout_seconds: float = 0.0) -> None:
        """Run nothing more. Waits so long for the threads to end."""
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            self._is_closed = True
            for each in (self._clock_moved, self._called, self._ran):
                each.notify_all()
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    # -- the threads ---------------------------------------------------------------------------------------------------

    def _schedule(self, job: ScheduledJob, due: float) -> None:
        """The job is due then. The caller holds the lock."""
        job._due = due
        heapq.heappush(self._waiting, (due, next(self._numbers), job))
        if due < self._watched:
            self._call_thread()

    def _call_thread(self) -> None:
        """Let an idle thread look, or start one if there is none. It calls the next one. The caller holds the lock."""
        if self._idle:
            (self._clock_moved if self._is_watched else self._called).notify()
        elif len(self._threads) < self._threads_max:
            name = f"lakebed-{self._name}-{len(self._threads)}"
            self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
            self._idle += 1  # until it has begun
            self._threads[-1].start()

    def _work(self) -> None:
        taken = self._take(is_new=True)
        while taken is not None:
            self._run(taken)
            taken = self._take()

    def _run(self, taken: _Taken[ScheduledJob]) -> None:
        job, started, again = taken.item, self._clock(), None
        try:
            again = job.run()
        except Exception:
            _logger.exception("%s failed and will be tried again", job.name or "a job")
            again = FAILED_SECONDS
        self._ended(taken, started, again)

    def _take(self, is_new: bool = False) -> _Taken[ScheduledJob] | None:
        """The next job, when it is due; None if the scheduler closes. A new thread counts as idle until it takes or sleeps."""
        with self._changed:
            self._idle -= is_new
            while not self._is_closed:
                taken = self._take_due()
                if taken is not None:
                    if self._ready or (self._waiting and not self._is_watched):
                        self._call_thread()  # it watches the clock, and takes what else is ready
                    return taken
                self._sleep()
            return None

    def _take_due(self) -> _Taken[ScheduledJob] | None:
        """The next job if one is due. The caller holds the lock."""
        self._collect_due()
        taken = None if self._is_closed else self._ready.take(slow_too=self._slow_running < self._slow_max)
        if taken is not None:
            job = taken.item
            job._thread, job._due = threading.get_ident(), math.inf
            self._slow_running += job.is_slow
        return taken

    def _sleep(self) -> None:
        """Until something changed, or until a job is due if no other thread watches the clock. The caller holds the lock."""
        self._idle += 1
        if self._is_watched:
            self._called.wait()
        else:
            self._is_watched = True
            self._watched = self._waiting[0][0] if self._waiting else math.inf
            self._clock_moved.wait(None if self._watched == math.inf else max(0.0, self._watched - self._clock()))
            self._is_watched, self._watched = False, math.inf
        self._idle -= 1

    def _collect_due(self) -> None:
        now = self._clock()
        while self._waiting and self._waiting[0][0] <= now:
            due, number, job = heapq.heappop(self._waiting)
            if due == job._due and not job._is_removed and job._thread is None:
                start = min(job.head_start_seconds, HEAD_START_SECONDS_MAX)
                self._ready.add(job, due - start, number, pool=job.pool, tier=job.tier, is_slow=job.is_slow)

    def _ended(self, taken: _Taken[ScheduledJob], started: float, again: float | None) -> None:
        job = taken.item
        with self._changed:
            now = self._clock()
            self._ready.ended(taken, now - started)
            self._slow_running -= job.is_slow
            job.is_slow = now - started >= self._slow_seconds
            due = min(job._woken, math.inf if again is None else now + again)
            job._thread, job._woken = None, math.inf
            if job._is_removed:
                self._ran.notify_all()
            elif due < math.inf and not self._is_closed:
                self._schedule(job, due)
