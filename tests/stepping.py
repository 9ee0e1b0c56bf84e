"""Maintenance without threads: jobs run in the thread of the test, one after the other, by a clock of the test.

    steps.run()                                what is due now, until nothing is
    steps.run_for(60)                          what becomes due while a minute passes
    steps.run_until(lambda: is_settled(t))     what becomes due until it holds; AssertionError if it does not within an hour

A test shows that something does not happen by running what is due, and looking: it waits for nothing. The fixture ``steps`` takes
the threads from all maintenance and all workers of fleets that the test makes, and from the jobs that these take.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from lakebed import jobs
from lakebed.compaction import settler, table_maintainer
from lakebed.compaction.scheduler import Scheduler
from lakebed.coordination.log_cache import LogCache
from lakebed.fleet import hints, watched, worker
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from tests.clock import Clock

HOUR = 3600.0
ROUNDS_MAX = 500
"""Jobs that go on for longer without any time passing never come to rest."""


class AtOnce(Executor):
    """Runs what it is given at once, in the same thread."""

    def __init__(self, threads: int, thread_name_prefix: str) -> None: ...

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        ended = Future[Any]()
        try:
            ended.set_result(call(*arguments, **named))
        except Exception as error:
            ended.set_exception(error)
        return ended


class Steps:
    """The jobs of the schedulers of a test, and the time by which they are due."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        self._schedulers: list[Scheduler] = []
        self._began = self.clock.now
        clock = SimpleNamespace(monotonic=self.clock, time=self.time)
        for module in (table_maintainer, settler, worker, watched, hints):
            monkeypatch.setattr(module, "time", clock)
        for module in (table_maintainer, worker):
            monkeypatch.setattr(module, "Scheduler", self._scheduler)
        monkeypatch.setattr(worker, "LogCache", partial(LogCache, open_log=self._log))
        monkeypatch.setattr(jobs, "ThreadPoolExecutor", AtOnce)

    def time(self) -> float:
        """Epoch seconds: the time of the machine, and what the test has let pass."""
        return time.time() + self.clock.now - self._began

    def run(self) -> None:
        """Run what is due now, until nothing is."""
        self.run_for(0.0)

    def run_for(self, seconds: float) -> None:
        """Run what becomes due while so much time passes."""
        end = self.clock.now + seconds
        self._run(lambda: False, end)
        self.clock.now = max(self.clock.now, end)

    def run_until(self, holds: Callable[[], object], failure: str = "it did not come about within an hour") -> None:
        """Run what becomes due, one job of each scheduler at a time, until it holds."""
        assert self._run(holds, self.clock.now + HOUR), failure

    def _run(self, holds: Callable[[], object], end: float) -> bool:
        rounds = 0
        while not holds():
            if any([each.run_due() for each in self._schedulers]):
                rounds += 1
                assert rounds < ROUNDS_MAX, "the jobs never come to rest"
                continue
            due = min((each.next_due for each in self._schedulers), default=math.inf)
            if due > end:
                return False
            self.clock.now, rounds = max(self.clock.now, due), 0
        return True

    def _log(self, root: str) -> TableLog:
        return TableLog(open_store(root), self.time)

    def _scheduler(
        self, name: str, threads: int, slow_seconds: float = math.inf, shares: Mapping[str, float] | None = None
    ) -> Scheduler:
        made = Scheduler(name, 0, slow_seconds, self.clock, shares)
        if threads:  # else its owner calls it
            self._schedulers.append(made)
        return made
