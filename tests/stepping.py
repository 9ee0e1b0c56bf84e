"""Maintenance without threads: jobs run in the thread of the test, one after the other, by a clock of the test.

    steps.run()                                what is due now, until nothing is
    steps.run_for(60)                          what becomes due while a minute passes
    steps.run_until(lambda: is_settled(t))     what becomes due until it holds; AssertionError if it does not within an hour

A test shows that something does not happen by running what is due, and looking: it waits for nothing. The fixture ``steps`` takes
the threads from all maintenance and all workers of fleets that the test makes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace

import pytest

from lakebed.compaction import settler, table_maintainer
from lakebed.compaction.scheduler import Scheduler
from lakebed.fleet import hint_pace, watched, worker
from tests.clock import Clock

HOUR = 3600.0
JOBS_MAX = 20_000
"""So many jobs are no way to come to rest."""


class Steps:
    """The jobs of the schedulers of a test, and the time by which they are due."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        self._schedulers: list[Scheduler] = []
        began = self.clock.now
        clock = SimpleNamespace(monotonic=self.clock, time=lambda: time.time() + self.clock.now - began)
        for module in (table_maintainer, settler, worker, watched, hint_pace):
            monkeypatch.setattr(module, "time", clock)
        for module in (table_maintainer, worker):
            monkeypatch.setattr(module, "Scheduler", self._scheduler)

    def run(self) -> None:
        """Run what is due now, until nothing is."""
        self.run_for(0.0)

    def run_for(self, seconds: float) -> None:
        """Run what becomes due while so much time passes."""
        end = self.clock.now + seconds
        self._run(lambda: False, end)
        self.clock.now = end

    def run_until(self, holds: Callable[[], object], failure: str = "nothing more happens within an hour") -> None:
        """Run what becomes due, one job of each scheduler at a time, until it holds."""
        assert self._run(holds, self.clock.now + HOUR), failure

    def _run(self, holds: Callable[[], object], end: float) -> bool:
        for _ in range(JOBS_MAX):
            if holds():
                return True
            if any([each.run_due() for each in self._schedulers]):
                continue
            due = min((each.next_due for each in self._schedulers), default=math.inf)
            if due > end:
                return False
            self.clock.now = max(self.clock.now, due)
        raise AssertionError("the jobs never come to rest")

    def _scheduler(
        self, name: str, threads: int, slow_seconds: float = math.inf, shares: Mapping[str, float] | None = None
    ) -> Scheduler:
        self._schedulers.append(Scheduler(name, 0, slow_seconds, self.clock, shares))
        return self._schedulers[-1]
