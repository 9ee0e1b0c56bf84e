"""Waiting in tests: for a condition or for a process, with no deadline that a busy machine would miss.

A wait gives up only when nothing moves:

- ``moving`` tells how far things came: a version, an offset, the length of a log. When it changes, the time begins anew.
  Of a process that is waited for it is the processor time of it and its descendants.
- Time counts as on a quiet machine: while six processes want two cores, three seconds count as one.
- What moves for ever ends after twenty minutes.

A condition that is costly to look at is looked at less often, so that waiting takes little from what is waited for. So wait for
what stays true, such as a version that was reached: what comes and goes within two seconds may never be seen.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tests.infra.processes import processor_seconds

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

STILL_SECONDS_MAX = 60.0
SECONDS_MAX = 1200.0
PAUSE_SECONDS = 0.05
PAUSE_SECONDS_MAX = 2.0
LOOKING_SHARE = 0.1
"""Of the time that a wait spends on its condition, until the pause is as long as it may be."""
IDLE_SHARE = 0.02
"""Of a core: what a process uses that only waits, such as a stream without records."""

Result = TypeVar("Result")


class Patience:
    """Whether it still makes sense to wait. Ask at least once a second or so."""

    def __init__(
        self, moving: Callable[[], object] = lambda: None, still_seconds_max: float = STILL_SECONDS_MAX
    ) -> None:
        self._moving = moving
        self._still_seconds_max = still_seconds_max
        self._began = self._asked = time.monotonic()
        self._reached = moving()
        self._still_seconds = 0.0

    def is_over(self) -> bool:
        """Nothing has moved for as long as a quiet machine would need."""
        now, reached = time.monotonic(), self._moving()
        self._still_seconds += (now - self._asked) / _wanted_cores()
        if reached != self._reached:
            self._reached, self._still_seconds = reached, 0.0
        self._asked = now
        return self._still_seconds > self._still_seconds_max or now - self._began > SECONDS_MAX


def wait_until(
    holds: Callable[[], Result],
    failure: str | Callable[[], str] = "it did not come about",
    moving: Callable[[], object] = lambda: None,
    still_seconds_max: float = STILL_SECONDS_MAX,
) -> Result:
    """Waits for a true answer and returns it. Raises AssertionError with the failure's text when nothing moves any more."""
    patience, looked = Patience(moving, still_seconds_max), time.monotonic()
    while not (answer := holds()):
        if patience.is_over():
            raise AssertionError(failure if isinstance(failure, str) else failure())
        pause(time.monotonic() - looked)
        looked = time.monotonic()
    return answer


def pause(looked_seconds: float) -> None:
    """Waits until the next look at something; the longer the last look took, the longer."""
    wanted = looked_seconds * (1 / LOOKING_SHARE - 1)
    time.sleep(min(max(wanted, PAUSE_SECONDS), PAUSE_SECONDS_MAX))


def outcome(process: subprocess.Popen[Any], still_seconds_max: float = STILL_SECONDS_MAX) -> tuple[Any, Any]:
    """What a process printed until it ended, and its errors. One that does nothing any more is killed: AssertionError."""
    patience = Patience(work_of(process.pid), still_seconds_max)
    while True:
        try:
            return process.communicate(timeout=1.0)
        except subprocess.TimeoutExpired:
            if patience.is_over():
                process.kill()
                raise AssertionError(
                    f"{process.args} does nothing, and does not end; it said: {process.communicate()}"
                ) from None


def ran(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """``subprocess.run`` of a command, with what it prints as text, for as long as it works."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    with subprocess.Popen(command, **options) as process:
        try:
            said, errors = outcome(process)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, said, errors)


def started(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Starts a query and returns when its source answers.

    Spark gives the Python process of a source ten seconds to call back, and fails the query if it is late. So on a
    busy machine queries start one after the other, and one that failed before it began starts again.
    """
    patience = Patience()
    while True:
        query = start()
        while query.isActive and query.status["message"].startswith("Initializing"):
            time.sleep(PAUSE_SECONDS)
        failure = query.exception()
        if failure is None:
            return query
        if "connect back" not in str(failure) or patience.is_over():
            raise failure


def ended(query: StreamingQuery, still_seconds_max: float = STILL_SECONDS_MAX) -> None:
    """Returns when a streaming query has ended by itself. Raises its failure, AssertionError if it does nothing any more."""
    patience = Patience(work_of(os.getpid()), still_seconds_max)  # the JVM is a child of this process
    while not query.awaitTermination(1):
        if patience.is_over():
            query.stop()
            raise AssertionError(f"the query {query.name} does nothing, and does not end: {query.status}")


def whole_lines(text: str) -> list[str]:
    """The lines of a text that is still being written, without a last one that has no line end yet."""
    return text[: text.rfind("\n") + 1].splitlines()


def length_of(*files: Path) -> Callable[[], object]:
    """How far files have grown: a process that writes to one is alive."""
    return lambda: [file.stat().st_size if file.exists() else -1 for file in files]


def work_of(pid: int) -> Callable[[], object]:
    """Changes whenever the processes of the tree have used more processor time than those need that only wait."""
    steps, looked, used = 0, time.monotonic(), 0.0

    def work() -> int:
        nonlocal steps, looked, used
        now, uses = time.monotonic(), processor_seconds(pid)
        if uses - used > 0.5 + IDLE_SHARE * (now - looked):
            steps, looked, used = steps + 1, now, uses
        return steps

    return work


def _wanted_cores() -> float:
    """How many processes want each core; at least one."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
