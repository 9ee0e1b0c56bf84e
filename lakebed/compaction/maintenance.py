"""The maintenance of a table in a process with Spark: a streaming query, started again when it fails.

         maintain()
             |            fails, and the cause may pass
             v          /-------------------------------> waiting
          running <----+------------- pause -----------------/
             |  \\
             |   \\---- fails, and the cause never passes ---> failed
             \\-------- stop(), or Spark ends --------------> stopped

The compactor runs until the end, also while the query waits: its threads merge and run the chores, which settle what is due.
``lakebed.failures`` says which causes pass, and reports the states.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lakebed.compaction.compactor import CLOSE_SECONDS_MAX, Compactor
from lakebed.compaction.follow import MaintenanceCycle
from lakebed.errors import LakebedError
from lakebed.failures import PROOF_SECONDS, Health, Restarts, failure_in, failure_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

QUERY = "maintain"


class Maintenance:
    """What ``Table.maintain`` returns. It is not the query itself, because each failure is followed by another query."""

    def __init__(
        self,
        start: Callable[[], StreamingQuery],
        cycle: MaintenanceCycle,
        compactor: Compactor,
        health: Health,
        spark_runs: Callable[[], bool],
        stopping: threading.Event,
    ) -> None:
        """``start``: starts the query; ``stopping``: also ends a cycle that waits (``MaintenanceCycle``).

        Raises LakebedError if the first start fails for a cause that does not pass.
        """
        self._start = start
        self._cycle = cycle
        self._compactor = compactor
        self._health = health
        self._spark_runs = spark_runs
        self._stopping = stopping
        self._restarts = Restarts()
        self._query: StreamingQuery | None = None
        self._error: LakebedError | None = None
        self._failure: LakebedError | None = None  # the last one of the query
        self._cycles_before = 0
        pause = self._try()
        if self._error is not None:
            raise self._error
        compactor.start()
        self._thread = threading.Thread(target=self._supervise, args=(pause,), name="lakebed-maintain", daemon=True)
        self._thread.start()

    @property
    def isActive(self) -> bool:
        """Whether the query runs or will be started again."""
        return self._thread.is_alive()

    @property
    def trouble(self) -> LakebedError | None:
        """The error for which the query waits or has ended; None while it runs, and after ``stop``."""
        return self._health.error

    @property
    def name(self) -> str | None:
        """The query's name; None until its first start."""
        return self._query.name if self._query else None

    @property
    def status(self) -> dict[str, Any]:
        """Spark's ``status`` of the current query."""
        waiting = {"message": str(self.trouble or "Stopped"), "isDataAvailable": False, "isTriggerActive": False}
        return dict(self._query.status) if self._query and self.trouble is None else waiting

    @property
    def lastProgress(self) -> Any:
        """Spark's ``lastProgress`` of the current query; None before its first batch."""
        return self._query.lastProgress if self._query else None

    def exception(self) -> LakebedError | None:
        """The error that ended the query; None while it runs or waits, and after ``stop``."""
        return self._error

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait for the end. With ``timeout`` (seconds), returns whether it has ended by then. Raises the error that ended it."""
        self._thread.join(timeout)
        if self._error is not None:
            raise self._error
        return None if timeout is None else not self._thread.is_alive()

    def stop(self) -> None:
        """Stop after the batch that runs now. Merges are cancelled, and their claims released."""
        self._stopping.set()
        if self._query is not None:
            self._query.stop()
        self._thread.join(2 * CLOSE_SECONDS_MAX)
        self._health.stopped()

    def _supervise(self, pause: float | None) -> None:
        while not self._stopping.is_set() and self._error is None:
            if pause is None:
                pause = self._until_it_fails()
            if pause is None or self._stopping.wait(pause):
                break
            pause = self._try()
        with suppress(Exception):  # Spark may be gone
            if self._query is not None:
                self._query.stop()
        self._compactor.close()
        if self._error is None:
            self._health.stopped()

    def _try(self) -> float | None:
        """Start the query; returns the seconds to wait before the next try, None if it runs or must not start (``_error``)."""
        self._cycles_before = self._cycle.done
        try:
            self._query = self._start()
        except LakebedError as error:
            return self._failed(error, made_progress=False)
        except Exception as error:
            return self._failed(failure_in(str(error), QUERY), made_progress=False)
        self._restarts.has_started = True
        if self._failure is None:
            self._health.runs()  # after a failure only time, or a cycle that succeeds, shows that
        return None

    def _until_it_fails(self) -> float | None:
        """The seconds to wait before the next try; None if it was stopped or must not start again (``_error``)."""
        assert self._query is not None
        with suppress(Exception):  # the cause is looked up below
            if not self._query.awaitTermination(PROOF_SECONDS) and self._health.error is self._failure:
                self._health.runs()
            self._query.awaitTermination()
        try:
            error = failure_of(self._query, QUERY)
            if error is None or self._stopping.is_set() or not self._spark_runs():
                return None
        except Exception as gone:  # the JVM does not answer
            error = failure_in(str(gone), QUERY)
        return self._failed(error, made_progress=self._cycle.done > self._cycles_before)

    def _failed(self, error: LakebedError, made_progress: bool) -> float | None:
        self._failure = error
        pause = self._restarts.pause_seconds(error, made_progress)
        if pause is None:
            self._error = error
            self._health.failed(error)
        else:
            self._health.waits(error, pause)
        return pause
