"""The maintenance of a table in a process with Spark: a thread that follows the log, and starts again when it fails.

         Maintenance()
             |            fails, and the cause may pass
             v          /-------------------------------> waiting
          running <----+------------- pause -----------------/
             |  \\
             |   \\---- fails, and the cause never passes ---> failed
             \\-------- stop(), or Spark ends --------------> stopped

The log is all that it reads, so it does not depend on the writers: it may stop, crash, or run in one or more other processes, and
ingest goes on. It is no streaming query, since Spark would do more for each commit than a settle costs (ADR 12).

The compactor runs until the end, also while the thread waits: its threads merge and run the chores, which settle what is due.
``lakebed.failures`` says which causes pass, and reports the states. A process without Spark does the same in ``follow``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from lakebed.compaction.compactor import CLOSE_SECONDS_MAX, Compactor
from lakebed.compaction.follow import MaintenanceCycle, run_cycles
from lakebed.errors import LakebedError
from lakebed.failures import Health, Restarts, failure_in
from lakebed.manifest.table_log import TableLog

QUERY = "maintain"
_LOOK_SECONDS = 0.2


class Maintenance:
    """What ``Table.maintain`` returns: a handle to stop the maintenance, wait for it and see its state."""

    def __init__(
        self, path: str, log: TableLog, step: Callable[[], None], compactor: Compactor, spark_runs: Callable[[], bool]
    ) -> None:
        """``step``: runs one cycle on the newest snapshot. After a Retry error it is called again."""
        self._log = log
        self._compactor = compactor
        self._spark_runs = spark_runs
        self._health = Health(path, QUERY)
        self._stopping = threading.Event()
        self._cycle = MaintenanceCycle(step, compactor, self._health, self._stopping)
        self._restarts = Restarts()
        self._restarts.has_started = True
        self._error: LakebedError | None = None
        compactor.start()
        self._thread = threading.Thread(target=self._supervise, name="lakebed-maintain", daemon=True)
        self._thread.start()

    @property
    def isActive(self) -> bool:
        """Whether it runs or will start again."""
        return self._thread.is_alive()

    @property
    def trouble(self) -> LakebedError | None:
        """The error for which it waits or has ended; None while it runs, and after ``stop``."""
        return self._health.error

    def exception(self) -> LakebedError | None:
        """The error that ended it; None while it runs or waits, and after ``stop``."""
        return self._error

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait for the end. With ``timeout`` (seconds), returns whether it has ended by then. Raises the error that ended it."""
        self._thread.join(timeout)
        if self._error is not None:
            raise self._error
        return None if timeout is None else not self._thread.is_alive()

    def stop(self) -> None:
        """Stop after the cycle that runs now. Merges are cancelled, and their claims released."""
        self._stopping.set()
        self._thread.join(2 * CLOSE_SECONDS_MAX)
        self._health.stopped()

    def _supervise(self) -> None:
        while not self._ended() and self._error is None:
            cycles_before = self._cycle.done
            try:
                run_cycles(self._log, self._cycle, self._ended, _LOOK_SECONDS)
            except LakebedError as error:
                self._failed(error, self._cycle.done > cycles_before)
            except Exception as error:  # of a Spark job that looks up keys, or of the views
                if not self._ended():
                    self._failed(failure_in(str(error), QUERY), self._cycle.done > cycles_before)
        self._compactor.close()
        if self._error is None:
            self._health.stopped()

    def _ended(self) -> bool:
        return self._stopping.is_set() or not self._spark_runs()

    def _failed(self, error: LakebedError, made_progress: bool) -> None:
        """Wait for the next try, or end with ``_error`` if there is none."""
        pause = self._restarts.pause_seconds(error, made_progress)
        if pause is None:
            self._error = error
            self._health.failed(error)
        else:
            self._health.waits(error, pause)
            self._stopping.wait(pause)
