"""Runs jobs of tables in threads of this process. Any number of processes may run them: the tables' logs say who has which.

1. ``look`` at a table takes those of its jobs that are due, as far as threads are free; a job whose runner's lease has ended too.
2. A thread does the work. Another one, for all jobs of the process, asks the log of each now and then whether the job is to be
   cancelled or was taken over, and extends its lease, together with the figures that the work reports.
3. At its end the job's result, or its error, is committed. If the process is killed, the lease ends, and the next process that
   looks at the table runs the job again.
4. ``close`` stops: a job that can be stopped is given back at once, others end first.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from lakebed.coordination import jobs
from lakebed.coordination.jobs import Job, JobState, due_jobs, is_current
from lakebed.errors import Cancelled, LakebedError, TableNotFound
from lakebed.jobs.actions import ACTIONS, JobAction
from lakebed.log.table_log import TableLog
from lakebed.operations import job_arguments
from lakebed.operations.job_arguments import arguments_of
from lakebed.table import Table
from lakebed.table.table import internals_of

LEASE_SECONDS = 120.0
LOOK_SECONDS = 2.0
_EXTENSIONS = 4  # in the time of a lease
_ERROR_MAX = 2_000
_UNKNOWN = (
    "its runner ended before it did, and whether it was done is unknown: look into the timeline, and ask for another {kind} if "
    "it was not"
)
_logger = logging.getLogger("lakebed.jobs")


@dataclass(slots=True)
class _Running:
    """A job that this process runs. ``stop``: it shall end; ``gone``: another runner has it now."""

    job: Job
    log: TableLog
    extended: float
    progress: Mapping[str, Any] = field(default_factory=dict)
    stop: threading.Event = field(default_factory=threading.Event)
    gone: bool = False


class JobRunner:
    """Takes and runs jobs, from its making until ``close``. Safe to use from several threads."""

    def __init__(
        self,
        open_table: Callable[[str], Table],
        *,
        threads: int = 2,
        lease_seconds: float = LEASE_SECONDS,
        look_seconds: float = LOOK_SECONDS,
        actions: Mapping[str, JobAction] = ACTIONS,
    ) -> None:
        """``open_table``: the table at a root. ``threads``: jobs that run at once."""
        self.name = f"{os.uname().nodename}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._open_table = open_table
        self._threads = threads
        self._lease_seconds = lease_seconds
        self._look_seconds = look_seconds
        self._actions = actions
        self._running: dict[str, _Running] = {}
        self._lock = threading.Lock()  # of the jobs that run here
        self._closed = threading.Event()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="lakebed-job")
        self._keeper = threading.Thread(target=self._keep, name="lakebed-job-leases", daemon=True)
        self._keeper.start()

    @property
    def running(self) -> tuple[str, ...]:
        """The ids of the jobs that run here."""
        return tuple(self._running)

    def look(self, root: str) -> int:
        """Take jobs of a table that are due, as long as threads are free; returns how many. Raises what opening it raises."""
        table, taken = self._open_table(root), 0
        log = internals_of(table).log
        for job in due_jobs(log.refresh(), log.now_ms()):
            if job.kind not in self._actions or self._closed.is_set() or len(self._running) >= self._threads:
                continue
            mine = jobs.take(log, job.id, self.name, self._lease_ms)
            if mine is None:
                if job.arguments_file:  # it may have ended by that
                    job_arguments.sweep(log, internals_of(table).storage)
                continue
            running = _Running(mine, log, time.monotonic())
            with self._lock:
                self._running[mine.id] = running
            self._pool.submit(self._run, table, running)
            taken += 1
        return taken

    def close(self, timeout_seconds: float = 30.0) -> None:
        """Stop jobs that can be stopped, wait so long for the others, and give back what has not ended."""
        self._closed.set()
        for each in list(self._running.values()):
            each.stop.set()
        deadline = time.monotonic() + timeout_seconds
        while self._running and time.monotonic() < deadline:
            time.sleep(0.05)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._keeper.join()

    @property
    def _lease_ms(self) -> int:
        return int(self._lease_seconds * 1000)

    def _run(self, table: Table, running: _Running) -> None:
        job = running.job
        try:
            self._end(running, *self._outcome(table, running))
        except LakebedError as error:  # its lease ends, and another runner runs it again
            _logger.warning("job %s (%s) of %s can't be ended in the log: %s", job.id, job.kind, table.path, error)
        finally:
            with self._lock:
                self._running.pop(job.id, None)

    def _outcome(self, table: Table, running: _Running) -> tuple[JobState | None, Mapping[str, Any], str, str]:
        """The state that the job ends in (None: it is given back), its result, and its error with the class of it."""
        job = running.job
        action = self._actions[job.kind]
        if job.attempts > 1 and not action.is_repeatable:
            return JobState.FAILED, {}, _UNKNOWN.format(kind=job.kind), "Unexpected"

        def report(figures: Mapping[str, Any]) -> None:
            running.progress = figures

        try:
            result = action.run(table, arguments_of(internals_of(table).storage, job), report, running.stop.is_set)
        except Cancelled:
            return self._stopped(running, {})
        except Exception as error:
            if not isinstance(error, LakebedError):
                _logger.exception("job %s (%s) of %s failed", job.id, job.kind, table.path)
            text = f"{job.kind} failed; the log of the runner {self.name} says why" if action.is_private else str(error)
            if action.is_private:
                _logger.warning("job %s (%s) of %s failed: %s", job.id, job.kind, table.path, error)
            kind = type(error).__name__ if isinstance(error, LakebedError) else "Unexpected"
            return JobState.FAILED, {}, text[:_ERROR_MAX] or kind, kind
        if running.stop.is_set() and result.get("finished") is False:
            return self._stopped(running, result)
        return JobState.SUCCEEDED, result, "", ""

    def _stopped(
        self, running: _Running, result: Mapping[str, Any]
    ) -> tuple[JobState | None, Mapping[str, Any], str, str]:
        """It was stopped before its end: cancelled if a user requested that, else another runner goes on with it."""
        now = is_current(running.log.refresh(), running.job)
        return (JobState.CANCELLED if now is None or now.cancel_asked else None), result, "", ""

    def _end(self, running: _Running, state: JobState | None, result: Mapping[str, Any], error: str, kind: str) -> None:
        job, log = running.job, running.log
        if running.gone or (state is JobState.SUCCEEDED and self._actions[job.kind].ends_table):
            return
        try:
            if state is None:
                jobs.give_back(log, job)
                return
            ended = jobs.end(log, job, state, result=result, error=error, kind=kind)
        except TableNotFound:  # the job was to drop it
            return
        if ended is not None and job.arguments_file:
            job_arguments.sweep(log, internals_of(self._open_table(log.root)).storage)

    # -- the thread that keeps the leases --------------------------------------------------------------------------------

    def _keep(self) -> None:
        while not (self._closed.is_set() and not self._running):
            for running in list(self._running.values()):
                try:
                    self._look_after(running)
                except LakebedError as error:  # the next look tries again
                    _logger.warning("job %s: %s", running.job.id, error)
            self._closed.wait(self._look_seconds) if not self._closed.is_set() else time.sleep(0.05)

    def _look_after(self, running: _Running) -> None:
        now = is_current(running.log.refresh(), running.job)
        if now is None:  # it has ended just now, or another runner took it over
            running.gone = running.job.id in self._running
            running.stop.set()
            return
        if now.cancel_asked:
            running.stop.set()
        if time.monotonic() - running.extended >= self._lease_seconds / _EXTENSIONS:
            jobs.extend(running.log, running.job, running.progress, self._lease_ms)
            running.extended = time.monotonic()
