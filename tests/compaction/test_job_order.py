"""The order of ready jobs: shares hold, the first tier comes first, lateness counts, and nothing starves."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest

from lakebed.compaction.scheduler import FAIR_EVERY, HEAD_START_SECONDS_MAX, ReadyJobs, head_start_seconds
from tests.worlds import seeds


@dataclass(eq=False)
class Job:
    pool: str
    seconds: float
    tier: int = 0
    ready: float = 0.0


class Threads:
    """Some threads that run ready jobs, on a clock of their own."""

    def __init__(self, count: int, shares: Mapping[str, float] | None = None) -> None:
        self.jobs = ReadyJobs[Job](lambda job: False, shares)
        self.count, self.now, self.number = count, 0.0, 0
        self.running: list[tuple[float, int, Job, object]] = []
        self.used = Counter[str]()
        self.begun: list[Job] = []

    def add(self, job: Job, head_start: float = 0.0) -> None:
        self.number += 1
        job.ready = self.now
        self.jobs.add(job, self.now - head_start, self.number, pool=job.pool, tier=job.tier)

    def run(self, until: float, again: Callable[[Job], Job | None] = lambda job: None) -> None:
        """``again``: what is added when a job has ended."""
        while self.now < until:
            while len(self.running) < self.count and (taken := self.jobs.take()) is not None:
                self.begun.append(taken.item)
                self.running.append((self.now + taken.item.seconds, self.number, taken.item, taken))
            if not self.running:
                return
            self.running.sort(key=lambda each: each[:2])
            self.now, _, job, ended = self.running.pop(0)
            self.used[job.pool] += job.seconds  # type: ignore[assignment]
            self.jobs.ended(ended, job.seconds)  # type: ignore[arg-type]
            if (following := again(job)) is not None:
                self.add(following)


@pytest.mark.few(3)
@seeds(6, quick=2)
def test_busy_pools_get_their_shares_within_a_tenth(seed: int) -> None:
    draw = random.Random(seed)
    shares = {name: draw.choice((1.0, 2.0, 3.0, 5.0)) for name in "abc"}
    threads = Threads(draw.randint(1, 8), shares)
    lengths = {name: draw.choice((0.1, 1.0, 10.0)) for name in shares}

    def job(name: str) -> Job:
        return Job(name, lengths[name] * draw.uniform(0.2, 1.8), draw.randint(0, 2))

    for name in shares:
        for _ in range(50):
            threads.add(job(name))
    threads.run(1000.0, lambda ended: job(ended.pool))
    total = sum(threads.used.values())
    for name, share in shares.items():
        due = share / sum(shares.values())
        assert abs(threads.used[name] / total - due) < 0.1 * due, (shares, threads.used)


def test_an_idle_share_is_lent_and_not_saved() -> None:
    threads = Threads(1, {"a": 1.0, "b": 1.0})
    for _ in range(5):
        threads.add(Job("a", 1.0))
    threads.run(1000.0, lambda ended: Job("a", 1.0))
    assert threads.used["a"] >= 1000
    for _ in range(5):
        threads.add(Job("b", 1.0))
    before = Counter(threads.used)
    threads.run(1100.0, lambda ended: Job(ended.pool, 1.0))
    assert 40 <= threads.used["b"] - before["b"] <= 60, (
        "b neither makes up for the time in which it was idle, nor waits"
    )


def test_a_flood_of_a_later_tier_delays_the_first_tier_by_little() -> None:
    threads = Threads(2)
    for _ in range(10_000):
        threads.add(Job("", 1.0, tier=2))

    def again(ended: Job) -> Job | None:
        return Job("", 1.0, tier=0) if ended.tier == 0 else None

    threads.run(50.0)
    threads.add(Job("", 1.0, tier=0))
    threads.run(500.0, again)
    begun = [job for job in threads.begun if job.tier == 0]
    assert len(begun) > 200
    first, last = threads.begun.index(begun[0]), threads.begun.index(begun[-1])
    assert last - first < 2.6 * len(begun), "the other thread, and one job in eight, go on with the flood"


def test_no_job_starves_behind_a_flood_of_the_first_tier() -> None:
    threads = Threads(1)
    for _ in range(10):
        threads.add(Job("", 1.0, tier=0))
    low = [Job("", 1.0, tier=2) for _ in range(20)]
    for job in low:
        threads.add(job)
    threads.run(float(FAIR_EVERY * 40), lambda ended: Job("", 1.0, tier=0) if ended.tier == 0 else None)
    assert all(job in threads.begun for job in low)


def test_a_flood_in_one_pool_delays_another_by_one_job_at_most() -> None:
    threads = Threads(1)
    for _ in range(1000):
        threads.add(Job("flood", 5.0))
    threads.run(100.0)
    threads.add(urgent := Job("small", 1.0))
    at = len(threads.begun)
    threads.run(120.0)
    assert threads.begun.index(urgent) <= at + 1


def test_one_pool_and_one_tier_is_first_in_first_out() -> None:
    threads = Threads(1)
    jobs = [Job("", 1.0) for _ in range(30)]
    for job in jobs:
        threads.add(job)
    threads.run(100.0)
    assert threads.begun == jobs


def test_lateness_comes_before_backpressure_and_that_before_nothing_and_all_is_bounded() -> None:
    threads = Threads(1)
    plain, pressed, late = Job("", 1.0), Job("", 1.0), Job("", 1.0)
    threads.add(plain)
    threads.add(pressed, head_start_seconds(pressure_factor=20.0))
    threads.add(late, head_start_seconds(lateness=1.0))
    threads.run(10.0)
    assert threads.begun == [late, pressed, plain]
    most = head_start_seconds(lateness=1e9, pressure_factor=1e9, depth_over_budget=10**9)
    assert most == HEAD_START_SECONDS_MAX


def test_a_job_that_is_not_ready_any_more_is_left_out() -> None:
    gone = {"b"}
    jobs = ReadyJobs[str](gone.__contains__)
    for number, name in enumerate("abc"):
        jobs.add(name, 0.0, number)
    taken = [found.item for _ in range(3) if (found := jobs.take()) is not None]
    assert taken == ["a", "c"] and not jobs
