"""In which order jobs that are ready get a thread. Pure: no thread, no clock.

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
import math
from collections.abc import Callable, Mapping
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
class Taken(Generic[T]):
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

    def take(self, slow_too: bool = True) -> Taken[T] | None:
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
        return Taken(heapq.heappop(ready[name])[2], name, pool.usual_seconds)

    def ended(self, taken: Taken[T], seconds: float) -> None:
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
