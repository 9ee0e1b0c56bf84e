"""Work that a user requested: what each kind of job does, and what runs the jobs of tables.

1. ``look`` at a table takes those of its jobs that are due, as far as threads are free; a job whose runner's lease has ended too.
2. A thread does the work. Another one, for all jobs of the process, asks the log of each now and then whether the job is to be
   cancelled or was taken over, and extends its lease, together with the figures that the work reports.
3. At its end the job's result, or its error, is committed. If the process is killed, the lease ends, and the next process that
   looks at the table runs the job again.
4. ``close`` stops: a job that can be stopped is given back at once, others end first.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.compaction.recluster_job import ReclusterProgress
from lakebed.coordination import jobs
from lakebed.coordination.jobs import Job, JobState, due_jobs, is_current
from lakebed.errors import Cancelled, LakebedError, TableNotFound
from lakebed.log.table_log import TableLog
from lakebed.operations import job_arguments
from lakebed.operations.job_arguments import arguments_of
from lakebed.operations.references import drop
from lakebed.table import Table, internals_of

# -- What each kind of job does, by the verbs of a table, and which arguments it takes -------------------------------------


Schema: TypeAlias = Mapping[str, Any]
_Report: TypeAlias = Callable[[Mapping[str, Any]], object]
_Stop: TypeAlias = Callable[[], bool]

_AGE: Schema = {"type": "string", "maxLength": 100}
_TRUTH: Schema = {"type": "boolean"}
_WHERE: Schema = {"type": "string", "maxLength": 10_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAction:
    """What a kind of job does."""

    summary: str  # for people
    # takes the table, the arguments, a function for progress, and one that says whether to stop; returns the result
    run: Callable[[Table, Mapping[str, Any], _Report, _Stop], Mapping[str, Any]]
    arguments: Mapping[str, Schema] = dataclasses.field(default_factory=dict)  # the JSON Schema of each
    required: tuple[str, ...] = ()  # arguments that must be given
    is_repeatable: bool = True  # it may be begun again if its runner died: nothing is done twice to the table's harm
    is_private: bool = False  # its arguments may have values of rows, so the log must not have them
    ends_table: bool = False  # there is no log when it has succeeded
    destroys: bool = False  # it deletes what no later job brings back, so people are asked once more


def _settle(table: Table, arguments: Mapping[str, Any], report: _Report, stop: _Stop) -> Mapping[str, Any]:
    return _fields_of(table.settle())


def _compact(table: Table, arguments: Mapping[str, Any], report: _Report, stop: _Stop) -> Mapping[str, Any]:
    return _fields_of(table.maintenance.compact())


def _resume(table: Table, arguments: Mapping[str, Any], report: _Report, stop: _Stop) -> Mapping[str, Any]:
    return {"resumed": table.maintenance.resume()}


def _recluster(table: Table, arguments: Mapping[str, Any], report: _Report, stop: _Stop) -> Mapping[str, Any]:
    def progress(far: ReclusterProgress) -> None:
        report(_fields_of(far))

    done = table.maintenance.recluster(**arguments, on_progress=progress, stop=stop)
    return _fields_of(done)


def _cleaned(files: pa.Table) -> Mapping[str, Any]:
    return {"files": len(files), "bytes": pc.sum(files["bytes"]).as_py() or 0}


def _expire(table: Table, arguments: Mapping[str, Any], report: _Report, stop: _Stop) -> Mapping[str, Any]:
    return _cleaned(table.maintenance.expire_snapshots(**arguments, dry_run=False))


def _vacuum(table: Table, arguments: Mapping[str, Any], report: _Report, stop: _Stop) -> Mapping[str, Any]:
    return _cleaned(table.maintenance.vacuum(**arguments, dry_run=False))


def _remove_orphan_files(table: Table, arguments: Mapping[str, Any], report: _Report, stop: _Stop) -> Mapping[str, Any]:
    return _cleaned(table.maintenance.remove_orphan_files(**arguments, dry_run=False))


def _restore(table: Table, arguments: Mapping[str, Any], report: _Report, stop: _Stop) -> Mapping[str, Any]:
    return {"version": table.restore(**arguments)}


def _expire_rows(table: Table, arguments: Mapping[str, Any], report: _Report, stop: _Stop) -> Mapping[str, Any]:
    expired = table.maintenance.expire_rows(dry_run=False)
    return {"parts": len(expired), "rows": pc.sum(expired["expired_rows"]).as_py() or 0}


def _purge(table: Table, arguments: Mapping[str, Any], report: _Report, stop: _Stop) -> Mapping[str, Any]:
    where, force, quarantine = arguments["where"], arguments.get("force", False), arguments.get("quarantine")
    found = table.purge(where, force=force, quarantine=quarantine)
    return {"files": len(found), "files_left": found["gone_at"].null_count, "rows": pc.sum(found["rows"]).as_py() or 0}


def _drop(table: Table, arguments: Mapping[str, Any], report: _Report, stop: _Stop) -> Mapping[str, Any]:
    internals = internals_of(table)
    return {"files": drop(internals.log, internals.storage)}


DROP = "drop"
ACTIONS: Mapping[str, JobAction] = {
    "settle": JobAction(summary="settle the tail, so that every Delta reader sees it", run=_settle),
    "compact": JobAction(summary="merge parts until the plan is empty", run=_compact),
    "resume": JobAction(summary="resume the table, if it is parked, and its parked merges", run=_resume),
    "recluster": JobAction(
        summary="sort parts together, so that fewer cover a point of the sort key",
        run=_recluster,
        arguments={"where": _WHERE, "final": _TRUTH},
    ),
    "expire_snapshots": JobAction(
        summary="expire old versions: delete their log files and data files",
        run=_expire,
        arguments={"older_than": _AGE, "retain_last": {"type": "integer", "minimum": 1, "maximum": 1_000_000}},
        destroys=True,
    ),
    "vacuum": JobAction(
        summary="delete data files of old versions, and orphans",
        run=_vacuum,
        arguments={"retention": _AGE},
        destroys=True,
    ),
    "remove_orphan_files": JobAction(
        summary="delete files that no version refers to",
        run=_remove_orphan_files,
        arguments={"older_than": _AGE},
        destroys=True,
    ),
    "restore": JobAction(
        summary="make the table what it was at an earlier version, in one commit",
        run=_restore,
        arguments={
            "version": {"type": "integer", "minimum": 0, "maximum": 2**53},
            "timestamp": {"type": ["string", "number"], "maxLength": 100},
        },
        is_repeatable=False,
        destroys=True,
    ),
    "expire_rows": JobAction(
        summary="remove the rows whose time to live (lakebed.ttl) has ended", run=_expire_rows, destroys=True
    ),
    "purge": JobAction(
        summary="erase rows for good: no file keeps a byte of them",
        run=_purge,
        arguments={"where": _WHERE, "force": _TRUTH, "quarantine": _WHERE},
        required=("where",),
        is_private=True,
        destroys=True,
    ),
    DROP: JobAction(summary="delete the table with all its files", run=_drop, ends_table=True, destroys=True),
}


def _fields_of(result: Any) -> dict[str, Any]:
    """The fields of a result, as JSON has them."""
    out = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    return {name: _plain(value) for name, value in out.items()}


def _plain(value: Any) -> Any:
    return {str(key): each for key, each in value.items()} if isinstance(value, Mapping) else value


# -- Runs jobs of tables in threads of this process. Any number of processes may run them: the tables' logs say who has which


_LEASE_SECONDS = 120.0
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
        lease_seconds: float = _LEASE_SECONDS,
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
