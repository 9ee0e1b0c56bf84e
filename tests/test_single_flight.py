"""Calls at the same time share runs, and no result is older than the call that it answers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from lakebed import waits
from lakebed.waits import SingleFlight


class Run:
    """Counts how often it is called; a call waits until it may go on."""

    def __init__(self, fails: Callable[[int], bool] = lambda number: False) -> None:
        self.calls = 0
        self.fails = fails
        self.begun, self.may_end = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self) -> int:
        self.calls += 1
        number = self.calls
        self.begun.release()
        assert self.may_end.acquire(timeout=60)
        if self.fails(number):
            raise ValueError(f"run {number} failed")
        return number


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Released whenever a call begins to wait for another's run."""
    begun = threading.Semaphore(0)

    class Counted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            begun.release()
            return super().wait(timeout)

    monkeypatch.setattr(waits, "Event", Counted)
    return begun


def test_calls_during_a_run_share_the_one_after_it(waiting: threading.Semaphore) -> None:
    flight, run = SingleFlight[int](), Run()
    with ThreadPoolExecutor(6) as pool:
        first = pool.submit(flight, run)
        assert run.begun.acquire(timeout=60)
        others = [pool.submit(flight, run) for _ in range(5)]
        for _ in others:
            assert waiting.acquire(timeout=60)
        run.may_end.release(2)
        assert first.result(60) == 1
        assert [other.result(60) for other in others] == [2] * 5
    assert run.calls == 2


def test_a_run_that_fails_raises_in_its_own_thread_alone(waiting: threading.Semaphore) -> None:
    flight, run = SingleFlight[int](), Run(fails=lambda number: number <= 2)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(flight, run)
        assert run.begun.acquire(timeout=60)
        others = [pool.submit(flight, run) for _ in range(3)]
        for _ in others:
            assert waiting.acquire(timeout=60)
        run.may_end.release(10)
        assert isinstance(first.exception(60), ValueError)
        failed = [other for other in others if other.exception(60) is not None]
        assert len(failed) == 1, "the one that ran; the others ran again"
        assert all(other.result(60) >= 3 for other in others if other not in failed)


def test_one_call_after_the_other_runs_each_time() -> None:
    flight, run = SingleFlight[int](), Run()
    run.may_end.release(3)
    assert [flight(run) for _ in range(3)] == [1, 2, 3]
