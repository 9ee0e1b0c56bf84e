"""Cycles of maintenance, and a loop that runs one after each new version, for a process without Spark.

1. Look for a new version every ``_LOOK_SECONDS``.
2. Run a cycle: settle what is due, refresh the views. After a Retry error run it again, later each time, until it succeeds.
3. Wake the compactor. Its threads merge and run the chores meanwhile.

With Spark, a streaming query over the log takes the place of step 1 (``compaction.maintain``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from lakebed.compaction.compactor import Compactor
from lakebed.errors import Retry
from lakebed.failures import Health, Restarts
from lakebed.manifest.table_log import TableLog

_LOOK_SECONDS = 0.5


class MaintenanceCycle:
    """Calls ``step`` until it raises no Retry error or ``stop`` is set, then wakes the compactor."""

    def __init__(self, step: Callable[[], None], compactor: Compactor, health: Health, stop: threading.Event) -> None:
        self._step = step
        self._compactor = compactor
        self._health = health
        self._stop = stop
        self.done = 0
        """How many cycles succeeded."""

    def __call__(self) -> None:
        """Run one cycle. Raises the errors of ``step`` that are no Retry."""
        restarts = Restarts()
        while not self._stop.is_set():
            try:
                self._step()
            except Retry as error:
                pause = restarts.pause_seconds(error, made_progress=False) or 0.0
                self._health.waits(error, pause)
                self._compactor.wake()
                self._stop.wait(pause)
            else:
                self.done += 1
                self._health.runs()
                break
        self._compactor.wake()


def follow(path: str, log: TableLog, step: Callable[[], None], compactor: Compactor, stop: threading.Event) -> None:
    """Maintain a table in this thread: a cycle after each new version, until ``stop`` is set.

    Returns when the compactor has ended and the claims of its merges are released.
    """
    health, restarts = Health(path, "maintain"), Restarts()
    cycle = MaintenanceCycle(step, compactor, health, stop)
    seen = -1
    compactor.start()
    try:
        while not stop.is_set():
            try:
                version = log.refresh().version
            except Retry as error:
                pause = restarts.pause_seconds(error, made_progress=False) or 0.0
                health.waits(error, pause)
                stop.wait(pause)
                continue
            restarts = Restarts()
            health.runs()
            if version != seen:
                cycle()
                seen = version
            stop.wait(_LOOK_SECONDS)
    finally:
        compactor.close()
        health.stopped()
