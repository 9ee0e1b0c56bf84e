"""A heap of due times and a few threads: many jobs, none of them waits for another longer than it must."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lakebed.compaction.scheduler import ScheduledJob, Scheduler
from tests.waiting import wait_until

SECONDS_MAX = 60.0


@contextmanager
def scheduler(
    threads: int, slow_seconds: float = 3600.0, clock: Callable[[], float] = time.monotonic
) -> Iterator[Scheduler]:
    made = Scheduler("test", threads, slow_seconds, clock)
    try:
        yield made
    finally:
        made.close(SECONDS_MAX)


def threads_of_tests() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("lakebed-test")]


class Held:
    """A job that runs until it may end."""

    def __init__(self) -> None:
        self.begun, self.may_end, self.runs = threading.Semaphore(0), threading.Semaphore(0), 0
        self.job = ScheduledJob(self)

    def __call__(self) -> None:
        self.runs += 1
        self.begun.release()
        assert self.may_end.acquire(timeout=SECONDS_MAX)


def counted(then: Callable[[int], float | None] = lambda runs: None) -> tuple[ScheduledJob, list[int]]:
    runs: list[int] = []

    def run() -> float | None:
        runs.append(threading.get_ident())
        return then(len(runs))

    return ScheduledJob(run), runs


def test_many_jobs_run_in_few_threads_each_as_often_as_it_says() -> None:
    with scheduler(4) as four:
        jobs = [counted(lambda runs: 0.001 if runs < 5 else None) for _ in range(500)]
        for job, _ in jobs:
            four.wake(job)
        wait_until(lambda: all(len(runs) == 5 for _, runs in jobs))
        assert len({thread for _, runs in jobs for thread in runs}) <= 4 and len(threads_of_tests()) <= 4
    assert not threads_of_tests()


def test_jobs_that_wait_have_no_thread_but_one_that_watches_the_clock() -> None:
    with scheduler(4) as four:
        assert not threads_of_tests()
        for _ in range(500):
            four.wake(counted()[0], delay_seconds=3600.0)
        assert len(threads_of_tests()) == 1


def test_a_job_that_is_woken_while_it_runs_runs_again_and_never_twice_at_a_time() -> None:
    with scheduler(2) as two:
        held = Held()
        two.wake(held.job)
        assert held.begun.acquire(timeout=SECONDS_MAX)
        two.wake(held.job)
        two.wake(held.job)
        assert not held.begun.acquire(timeout=0.05) and held.runs == 1
        held.may_end.release()
        assert held.begun.acquire(timeout=SECONDS_MAX)
        held.may_end.release()
        assert not held.begun.acquire(timeout=0.05) and held.runs == 2


def test_an_earlier_time_counts_and_a_later_one_does_not_put_a_job_off() -> None:
    with scheduler(1) as one:
        job, runs = counted()
        one.wake(job, 3600.0)
        one.wake(job, 0.0)
        one.wake(job, 3600.0)
        wait_until(lambda: runs)


def test_while_one_job_runs_the_others_go_on_even_if_all_came_in_the_same_moment() -> None:
    with scheduler(2) as two:
        held, (quick, runs) = Held(), counted()
        two.wake(held.job)
        two.wake(quick)
        wait_until(lambda: runs)
        assert held.begun.acquire(timeout=SECONDS_MAX)
        held.may_end.release()


def test_slow_jobs_get_half_of_the_threads_so_that_others_run() -> None:
    with scheduler(4, slow_seconds=0.0) as four:
        slow = [Held() for _ in range(10)]
        for held in slow:
            held.may_end.release()
            four.wake(held.job)
        wait_until(lambda: all(held.runs == 1 and held.job.is_slow for held in slow))
        for held in slow:
            four.wake(held.job)
        wait_until(lambda: sum(held.runs for held in slow) == 12, "two of four threads run slow jobs")
        quick, runs = counted(lambda runs: 0.0 if runs < 1 else None)
        four.wake(quick)
        wait_until(lambda: runs)
        assert sum(held.runs for held in slow) == 12
        for held in slow:
            held.may_end.release()
        wait_until(lambda: all(held.runs == 2 for held in slow))


def test_the_job_that_is_due_for_longest_runs_first_and_a_head_start_counts_as_waiting() -> None:
    now, order = [100.0], list[str]()
    one = Scheduler("test", 1, clock=lambda: now[0])
    held = Held()
    one.wake(held.job)
    assert held.begun.acquire(timeout=SECONDS_MAX)
    for name, delay, head_start in (
        ("late", 1.0, 0.0),
        ("urgent", 4.0, 3600.0),
        ("later", 2.0, 0.0),
        ("last", -58.0, 0.0),
    ):
        one.wake(ScheduledJob(lambda name=name: order.append(name), name, head_start), delay)  # type: ignore[misc]
    now[0] = 110.0
    held.may_end.release()
    wait_until(lambda: len(order) == 4)
    assert order == ["last", "urgent", "late", "later"], "a head start is a minute at most"
    one.close(SECONDS_MAX)


def test_a_job_that_is_removed_runs_no_more_and_who_removes_it_waits_for_it() -> None:
    now = [100.0]
    with scheduler(2, clock=lambda: now[0]) as two:
        held, (waiting, runs), (later, later_runs) = Held(), counted(), counted()
        two.wake(held.job)
        assert held.begun.acquire(timeout=SECONDS_MAX)
        two.wake(waiting, 3600.0)
        assert not two.remove([held.job, waiting], 0.01), "it runs still"
        held.may_end.release()
        assert two.remove([held.job], SECONDS_MAX)
        now[0] += 7200.0
        two.wake(held.job)
        two.wake(waiting)
        two.wake(later, -7200.0)  # before the time that the idle thread waits for, so it looks which jobs are due
        wait_until(lambda: later_runs)
        assert held.runs == 1 and not runs


def test_a_job_may_remove_itself_and_close_its_scheduler() -> None:
    one = Scheduler("test", 1)
    ended = threading.Event()

    def run() -> None:
        one.remove([job], SECONDS_MAX)
        one.close(SECONDS_MAX)
        ended.set()

    job = ScheduledJob(run)
    one.wake(job)
    assert ended.wait(SECONDS_MAX)
    wait_until(lambda: not threads_of_tests())


def test_an_error_of_a_job_ends_no_thread() -> None:
    with scheduler(1) as one:
        job, runs = counted(lambda runs: 1 // 0)
        one.wake(job)
        wait_until(lambda: runs)
        other, others = counted()
        one.wake(other)
        wait_until(lambda: others)
