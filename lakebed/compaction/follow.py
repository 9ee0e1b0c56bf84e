"""Rounds of maintenance, and a replica without Spark that does one after each version of the log.

1. Look for a new version, now and then.
2. Do a round: settle what is due, refresh the views. An error that says "try again" is tried again, later each time, until
   it has passed.
3. Tell the compactor, whose threads merge and do the chores meanwhile.

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
    """Calls ``step``, again after its Retry errors until it goes well or ``stop`` is set, and tells the compactor."""

    def __init__(self, step: Callable[[], None], compactor: Compactor, health: Health, stop: threading.Event) -> None:
        self._step = step
        self._compactor = compactor
        self._health = health
        self._stop = stop
        self.done = 0
        """How many rounds went well."""

    def __call__(self) -> None:
        """One round. Raises what ``step`` raises but for Retry."""
        restarts = Restarts()
        while not self._stop.is_set():
            try:
                self._step()
            except Retry as error:
                pause = restarts.pause_seconds(error, got_on=False) or 0.0
                self._health.waits(error, pause)
                self._compactor.wake()
                self._stop.wait(pause)
            else:
                self.done += 1
                self._health.runs()
                break
        self._compactor.wake()


def follow(path: str, log: TableLog, step: Callable[[], None], compactor: Compactor, stop: threading.Event) -> None:
    """Maintain a table in this thread: a round after each new version until ``stop`` is set.

    Returns when the compactor has ended and its merges have given their claims back.
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
                pause = restarts.pause_seconds(error, got_on=False) or 0.0
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
