"""A heap of due times and a few threads: many jobs, none of them waits for another longer than it must.

What is due and in which order is shown without threads, by a clock of the test. Where threads are the matter, jobs say by
semaphores that they have run.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lakebed.compaction.scheduler import FAILED_SECONDS, ScheduledJob, Scheduler
from tests.clock import Clock

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


def stepped(slow_seconds: float = math.inf) -> tuple[Scheduler, Clock]:
    """One whose jobs run when the test says so, and its clock."""
    clock = Clock()
    return Scheduler("test", 0, slow_seconds, clock), clock


def run_all(scheduler: Scheduler) -> None:
    while scheduler.run_due():
        pass


class Held:
    """A job that runs until it may end."""

    def __init__(self) -> None:
        self.begun, self.may_end, self.runs = threading.Semaphore(0), threading.Semaphore(0), 0
        self.job = ScheduledJob(self)

    def __call__(self) -> None:
        self.runs += 1
        self.begun.release()
        assert self.may_end.acquire(timeout=SECONDS_MAX)


class Counted:
    """A job that counts its runs, and says after each that it has run."""

    def __init__(self, then: Callable[[int], float | None] = lambda runs: None) -> None:
        self.threads, self.ran, self._then = list[int](), threading.Semaphore(0), then
        self.job = ScheduledJob(self)

    def __call__(self) -> float | None:
        self.threads.append(threading.get_ident())
        self.ran.release()
        return self._then(self.runs)

    @property
    def runs(self) -> int:
        return len(self.threads)

    def has_run(self, times: int = 1) -> bool:
        """Waits until it has run so many times more."""
        return all(self.ran.acquire(timeout=SECONDS_MAX) for _ in range(times))


# -- what is due ---------------------------------------------------------------------------------------------------------


def test_a_job_that_is_woken_while_it_runs_runs_again_and_never_twice_at_a_time() -> None:
    one, _ = stepped()

    def woken(runs: int) -> None:
        if runs == 1:
            one.wake(counted.job)
            one.wake(counted.job)
            assert not one.run_due(), "it runs already"

    counted = Counted(woken)
    one.wake(counted.job)
    run_all(one)
    assert counted.runs == 2


def test_an_earlier_time_counts_and_a_later_one_does_not_put_a_job_off() -> None:
    one, clock = stepped()
    counted = Counted()
    for delay in (3600.0, 60.0, 1800.0):
        one.wake(counted.job, delay)
    assert one.next_due == clock() + 60.0 and not one.run_due()
    clock.now += 60.0
    assert one.run_due() and one.next_due == math.inf
    clock.now += 3600.0
    assert not one.run_due() and counted.runs == 1


def test_the_job_that_is_due_for_longest_runs_first_and_a_head_start_counts_as_waiting() -> None:
    one, clock = stepped()
    order = list[str]()
    for name, delay, head_start in (
        ("late", 1.0, 0.0),
        ("urgent", 4.0, 3600.0),
        ("later", 2.0, 0.0),
        ("last", -58.0, 0.0),
    ):
        one.wake(ScheduledJob(lambda name=name: order.append(name), name, head_start), delay)  # type: ignore[misc]
    clock.now += 10.0
    run_all(one)
    assert order == ["last", "urgent", "late", "later"], "a head start is a minute at most"


def test_a_job_that_is_removed_runs_no_more() -> None:
    one, clock = stepped()
    removed, later = Counted(), Counted()
    one.wake(removed.job, 3600.0)
    one.wake(later.job, 3600.0)
    assert one.remove([removed.job])
    one.wake(removed.job)
    clock.now += 7200.0
    run_all(one)
    assert (removed.runs, later.runs) == (0, 1)


def test_a_job_that_fails_is_due_again_and_the_others_go_on() -> None:
    one, clock = stepped()
    failing, other = Counted(lambda runs: 1 // 0), Counted()
    one.wake(failing.job)
    one.wake(other.job)
    run_all(one)
    assert (failing.runs, other.runs) == (1, 1) and one.next_due == clock() + FAILED_SECONDS


# -- the threads ---------------------------------------------------------------------------------------------------------


def test_many_jobs_run_in_few_threads_each_as_often_as_it_says() -> None:
    with scheduler(4) as four:
        all_counted = [Counted(lambda runs: 0.001 if runs < 5 else None) for _ in range(500)]
        for counted in all_counted:
            four.wake(counted.job)
        assert all(counted.has_run(5) for counted in all_counted)
        assert len({thread for counted in all_counted for thread in counted.threads}) <= 4
        assert len(threads_of_tests()) <= 4
    assert not threads_of_tests() and {counted.runs for counted in all_counted} == {5}


def test_jobs_that_wait_have_no_thread_but_one_that_watches_the_clock() -> None:
    with scheduler(4) as four:
        assert not threads_of_tests()
        for _ in range(500):
            four.wake(Counted().job, delay_seconds=3600.0)
        assert len(threads_of_tests()) == 1


def test_an_idle_thread_wakes_up_for_a_job_that_is_due_earlier_than_those_it_watches() -> None:
    with scheduler(1) as one:
        counted = Counted()
        for delay in (3600.0, 0.0, 3600.0):
            one.wake(counted.job, delay)
        assert counted.has_run()


def test_while_one_job_runs_the_others_go_on_even_if_all_came_in_the_same_moment() -> None:
    with scheduler(2) as two:
        held, quick = Held(), Counted()
        two.wake(held.job)
        two.wake(quick.job)
        assert quick.has_run() and held.begun.acquire(timeout=SECONDS_MAX)
        held.may_end.release()


def test_slow_jobs_get_half_of_the_threads_so_that_others_run() -> None:
    with scheduler(4, slow_seconds=0.0) as four:
        slow = [Held() for _ in range(10)]
        for held in slow:
            held.may_end.release()
            four.wake(held.job)
        assert all(held.begun.acquire(timeout=SECONDS_MAX) for held in slow)
        begun = threading.Semaphore(0)
        for held in slow:
            held.begun = begun
            four.wake(held.job)
        assert begun.acquire(timeout=SECONDS_MAX) and begun.acquire(timeout=SECONDS_MAX)
        quick = Counted()
        four.wake(quick.job)
        assert quick.has_run(), "two of four threads run slow jobs"
        assert sum(held.runs for held in slow) == 12
        for held in slow:
            held.may_end.release()
        assert all(begun.acquire(timeout=SECONDS_MAX) for _ in range(8))


def test_who_removes_a_job_that_runs_waits_for_it() -> None:
    with scheduler(2) as two:
        held = Held()
        two.wake(held.job)
        assert held.begun.acquire(timeout=SECONDS_MAX)
        assert not two.remove([held.job], 0.0), "it runs still"
        held.may_end.release()
        assert two.remove([held.job], SECONDS_MAX)


def test_a_job_may_remove_itself_and_close_its_scheduler() -> None:
    one, go = Scheduler("test", 1), threading.Event()

    def run() -> None:
        assert go.wait(SECONDS_MAX)
        one.remove([job], SECONDS_MAX)
        one.close(SECONDS_MAX)

    job = ScheduledJob(run)
    one.wake(job)
    [thread] = threads_of_tests()
    go.set()
    thread.join(SECONDS_MAX)
    assert not thread.is_alive()


def test_an_error_of_a_job_ends_no_thread() -> None:
    with scheduler(1) as one:
        failing, other = Counted(lambda runs: 1 // 0), Counted()
        one.wake(failing.job)
        assert failing.has_run()
        one.wake(other.job)
        assert other.has_run() and other.threads == failing.threads
