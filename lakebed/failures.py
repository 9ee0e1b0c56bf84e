"""Why a streaming query of Spark ended, whether it starts again, and how that is told.

1. lakebed's own error comes out of the text of Spark's (``failure_in``). What Spark says when a worker, an executor or a
   socket was slow is a Retry: nothing is wrong.
2. Whether the query starts again is decided by the cause (``Restarts``). A Retry passes: again without end, later each time.
   A plain LakebedError is one of Spark's own of which nobody knows: again, if it ever started, but a bounded number of times
   in a row. Any other (bad settings, corrupt, lost records) never passes: the query has ended.
3. Every change is told in the log, as an event (so in the metrics), and in ``lakebed.status`` of this process (``Health``).
"""

from __future__ import annotations

import logging
import re
import threading
from typing import TYPE_CHECKING

from lakebed import errors, events
from lakebed.errors import LakebedError, Retry

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

UNKNOWN_FAILURES_MAX = 5
PAUSE_SECONDS_MAX = 30.0
PROOF_SECONDS = 30
"""A query that failed runs again when it has done some work, or was up for so long: its start alone proves nothing yet."""
_OWN = re.compile(r"lakebed\.errors\.([A-Za-z]+): ([^\n]*)")
_PASSING = {
    # Spark waits ten seconds for the Python process of a source, and no setting changes that: too short on a busy machine.
    "Python worker failed to connect back": "a Python worker of Spark did not start in time; is the machine busy?",
    "Timed out while waiting for the Python worker": "a Python worker of Spark did not start in time; is the machine busy?",
    "CANNOT_OPEN_SOCKET": "Spark did not answer its Python half in time; is the machine busy?",
    "Accept timed out": "Spark's Python half did not answer in time; is the machine busy?",
    "Futures timed out": "a part of Spark did not answer another in time; is the machine or the network busy?",
    "ExecutorLostFailure": "Spark lost an executor",
}
_TWO_WRITE = "CONCURRENT_STREAM_LOG_UPDATE"
"""What Spark says to the query that finds the batch it wants to write already in the checkpoint."""
_logger = logging.getLogger("lakebed.query")


def failure_of(query: StreamingQuery, name: str) -> LakebedError | None:
    """The error of a query that failed; None if it runs, or was stopped."""
    error = query.exception()
    return None if error is None else failure_in(str(error), name)


def failure_in(text: str, name: str) -> LakebedError:
    """The error in the text of a failed query."""
    found = list(_OWN.finditer(text))
    for match in reversed(found):
        kind = getattr(errors, match[1], None)
        if isinstance(kind, type) and issubclass(kind, LakebedError):
            return kind(match[2].strip())
    if _TWO_WRITE in text:  # started again it would only end the other one
        return errors.InvalidInput(
            f"another process runs this pipeline, or did: while this {name} query ran, it wrote the next batch into the same "
            "checkpoint. So this one ends. Run one process a pipeline; two pipelines of one table need the setting "
            "'checkpoint', a folder each"
        )
    for said, cause in _PASSING.items():
        if said in text:
            return Retry(f"the {name} query failed: {cause}")
    lines = [line.strip().removeprefix(": ") for line in text.splitlines() if line.strip()]
    python = [line for line in lines if re.match(r"^[A-Za-z_][\w.]*(Error|Exception): ", line)]
    said = python[-1] if python else (lines[0] if lines else "no reason given")
    return LakebedError(f"the {name} query failed: {said}")


class Restarts:
    """When something that failed starts again."""

    def __init__(self) -> None:
        self._failures = 0
        self.has_started = False
        """Whether it ever started. What it fails with before, and of which nothing is known, is how it was asked for."""

    def pause_seconds(self, error: LakebedError, got_on: bool) -> float | None:
        """How long to wait first; None: it does not start again. ``got_on``: it did some of its work since the last failure."""
        self._failures = 1 if got_on else self._failures + 1
        may_pass = type(error) is LakebedError and self.has_started and self._failures <= UNKNOWN_FAILURES_MAX
        if not isinstance(error, Retry) and not may_pass:
            return None
        return float(min(PAUSE_SECONDS_MAX, 2 ** min(self._failures - 1, 10)))


class Health:
    """How one table's ingest or maintenance does in this process (``role``: ingest, maintain). For several threads."""

    def __init__(self, table: str, role: str) -> None:
        self.table = table
        self.role = role
        self.error: LakebedError | None = None
        self.pause_seconds: float | None = None
        self._state = ""
        self._lock = threading.Lock()
        with _here_lock:
            _here[table, role] = self

    def runs(self) -> None:
        """It runs, for the first time or again."""
        if self._becomes("running", None, None):
            events.emit(events.QueryChanged(table=self.table, role=self.role, state="running"))

    def waits(self, error: LakebedError, pause_seconds: float) -> None:
        """It failed, and will be tried again."""
        self._becomes("waiting", error, pause_seconds)
        kind = type(error).__name__
        _logger.warning(
            "%s of %s starts again in %.0f s: %s", self.role, self.table, pause_seconds, error, extra=events.TOLD
        )
        events.emit(
            events.QueryChanged(
                table=self.table,
                role=self.role,
                state="waiting",
                error=kind,
                reason=str(error),
                pause_seconds=pause_seconds,
            )
        )

    def failed(self, error: LakebedError) -> None:
        """It failed, and is not tried again."""
        self._becomes("failed", error, None)
        kind = type(error).__name__
        _logger.error("%s of %s has ended: %s", self.role, self.table, error, extra=events.TOLD)
        events.emit(
            events.QueryChanged(table=self.table, role=self.role, state="failed", error=kind, reason=str(error))
        )

    def stopped(self) -> None:
        """Somebody stopped it, and nothing more is to be said of it."""
        with _here_lock:
            if _here.get((self.table, self.role)) is self:
                del _here[self.table, self.role]
        if self._becomes("stopped", None, None):
            events.emit(events.QueryChanged(table=self.table, role=self.role, state="stopped"))

    def _becomes(self, state: str, error: LakebedError | None, pause_seconds: float | None) -> bool:
        with self._lock:
            before, self._state = self._state, state
            self.error, self.pause_seconds = error, pause_seconds
        return before != state


_here: dict[tuple[str, str], Health] = {}
_here_lock = threading.Lock()


def unwell_here(table: str) -> list[Health]:
    """What this process has started on a table (by its root) and does not run."""
    with _here_lock:
        return [health for (of, _), health in _here.items() if of == table and health.error is not None]
