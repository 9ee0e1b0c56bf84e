"""Cycles of maintenance, one after each new version of a table's log.

1. Look for a new version: at once after a batch that this process commits, and otherwise after a pause. The pauses grow while
   nothing comes.
2. Run a cycle: settle what is due, refresh the views. After a Retry error run it again, later each time, until it succeeds.
3. Wake the compactor. Its threads merge and run the chores meanwhile.

``follow`` does so in a process without Spark; ``compaction.maintenance`` does so beside a Spark session.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from lakebed import events
from lakebed.compaction.compactor import Compactor
from lakebed.errors import Retry
from lakebed.failures import Health, Restarts
from lakebed.manifest.table_log import TableLog

_FIRST_LOOK_SECONDS = 0.02
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


def run_cycles(log: TableLog, cycle: Callable[[], None], ended: Callable[[], bool], look_seconds: float) -> None:
    """Run a cycle at once and after each new version, until ``ended``. Raises the errors of the log and of ``cycle``.

    ``look_seconds``: the longest pause between two looks at the log, which is also the longest that ``ended`` waits.
    """
    came = threading.Event()
    seen, pause = -1, _FIRST_LOOK_SECONDS
    stop_listening = events.listen(
        lambda event: came.set() if isinstance(event, events.BatchCommitted) and event.table == log.root else None
    )
    try:
        while not ended():
            came.clear()
            version = log.refresh().version
            if version != seen:
                cycle()
                seen, pause = version, _FIRST_LOOK_SECONDS
            elif not came.wait(pause):
                pause = min(2 * pause, look_seconds)
    finally:
        stop_listening()


def follow(path: str, log: TableLog, step: Callable[[], None], compactor: Compactor, stop: threading.Event) -> None:
    """Maintain a table in this thread: a cycle after each new version, until ``stop`` is set.

    Returns when the compactor has ended and the claims of its merges are released.
    """
    health, restarts = Health(path, "maintain"), Restarts()
    cycle = MaintenanceCycle(step, compactor, health, stop)
    compactor.start()
    try:
        while not stop.is_set():
            before = cycle.done
            try:
                run_cycles(log, cycle, stop.is_set, _LOOK_SECONDS)
            except Retry as error:
                pause = restarts.pause_seconds(error, made_progress=cycle.done > before) or 0.0
                health.waits(error, pause)
                stop.wait(pause)
    finally:
        compactor.close()
        health.stopped()
