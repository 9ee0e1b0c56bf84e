"""Routes of jobs: ask for one, see how far it is, cancel it. A table is dropped by a job, too, which waits until its time.

**Jobs run** in this process (``JobLoop``): at once those that it was asked for, later those that others left. Now and then it
looks at all tables, for jobs whose runner died, whose time has come, or that were asked for elsewhere. That takes at most a
twentieth of the time.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from jsonschema import Draft202012Validator

from lakebed.coordination import jobs
from lakebed.coordination.jobs import Job, JobState, due_jobs, job_of, jobs_of
from lakebed.errors import InvalidInput, LakebedError
from lakebed.jobs import ACTIONS, DROP, JobRunner
from lakebed.operations import job_arguments
from lakebed.service.answers import VERSION, Refused, Schema, listed, record, ref, time_text
from lakebed.service.catalog import Catalog
from lakebed.service.routes import Answer, Call, Route
from lakebed.service.tokens import Role
from lakebed.sql import check_columns_of, expression
from lakebed.storage.data_files import open_part_storage
from lakebed.table import Table

_DELAY_SECONDS = 7 * 86_400
_DELAY_SECONDS_MAX = 365 * 86_400


def job_value(job: Job, table: str) -> dict[str, Any]:
    """A job as JSON."""
    times = {"asked": job.asked_ms, "not_before": job.not_before_ms, "started": job.started_ms, "ended": job.ended_ms}
    return {
        "id": job.id,
        "table": table,
        "kind": job.kind,
        "arguments": dict(job.arguments),
        "by": job.by,
        "state": job.state.value,
        **{name: time_text(value) if value else None for name, value in times.items()},
        "attempts": job.attempts,
        "runner": job.runner,
        "cancel_asked": job.cancel_asked,
        "progress": dict(job.progress),
        "result": dict(job.result),
        "error": job.error,
        "error_kind": job.error_kind,
    }


def _ask(call: Call) -> Answer:
    asked: dict[str, Any] = call.body
    kind, arguments = asked["kind"], asked.get("arguments", {})
    _check(kind, arguments)
    log, snapshot = call.catalog.newest(call.name)
    if "where" in arguments:
        check_columns_of(expression(arguments["where"], "where"), snapshot.logical_schema.names)
    job_id = asked.get("id") or jobs.new_id()
    job = Job(id=job_id, kind=kind, arguments=arguments, by=call.caller.name)
    if ACTIONS[kind].is_private:
        if (known := job_of(snapshot, job_id)) is not None:
            return _accepted(call, known)
        storage = open_part_storage(log.root)
        file = job_arguments.keep(storage, arguments)
        try:
            asked_for = jobs.ask(log, Job(id=job_id, kind=kind, by=call.caller.name, arguments_file=file))
        except InvalidInput:
            job_arguments.sweep(log, storage, also=file)
            raise
        if asked_for.arguments_file != file:  # another request was faster with the same id
            job_arguments.sweep(log, storage, also=file)
        return _accepted(call, asked_for)
    return _accepted(call, jobs.ask(log, job))


def _drop(call: Call) -> Answer:
    log, snapshot = call.catalog.newest(call.name)
    waiting = next((job for job in jobs_of(snapshot) if job.kind == DROP and not job.has_ended), None)
    if waiting is not None:
        return _accepted(call, waiting)
    seconds = call.query.get("delay_seconds", _DELAY_SECONDS)
    not_before_ms = log.now_ms() + seconds * 1000
    return _accepted(
        call, jobs.ask(log, Job(id=jobs.new_id(), kind=DROP, by=call.caller.name, not_before_ms=not_before_ms))
    )


def _accepted(call: Call, job: Job) -> Answer:
    root = call.catalog.root_of(call.name)
    call.catalog.hint(root)
    call.surveyor.hint(root)
    return Answer(
        value=job_value(job, call.name),
        status=HTTPStatus.ACCEPTED,
        headers={"Location": f"/v1/tables/{quote(call.name, safe='')}/jobs/{job.id}"},
    )


def _list(call: Call) -> Answer:
    _, snapshot = call.catalog.newest(call.name)
    state = call.query.get("state")
    found = [job_value(job, call.name) for job in reversed(jobs_of(snapshot)) if state in (None, job.state.value)]
    return Answer(value={"version": snapshot.version, "jobs": found})


def _see(call: Call) -> Answer:
    _, snapshot = call.catalog.newest(call.name)
    return Answer(value=job_value(_found(job_of(snapshot, call.path["id"]), call), call.name))


def _cancel(call: Call) -> Answer:
    log, _ = call.catalog.newest(call.name)
    job = _found(jobs.cancel(log, call.path["id"]), call)
    if job.arguments_file and job.has_ended:
        job_arguments.sweep(log, open_part_storage(log.root))
    call.surveyor.hint(log.root)
    return Answer(value=job_value(job, call.name))


def _found(job: Job | None, call: Call) -> Job:
    if job is None:
        raise Refused(
            HTTPStatus.NOT_FOUND,
            f"there is no job {call.path['id'][:64]!r} of {call.name}; the newest {jobs.ENDED_MAX} that have ended are kept",
        )
    return job


def _check(kind: str, arguments: dict[str, Any]) -> None:
    """Raises InvalidInput for arguments that this kind of job does not take."""
    for error in _VALIDATORS[kind].iter_errors(arguments):
        where = "".join(f".{step}" for step in error.absolute_path)
        raise InvalidInput(f"arguments{where} of a job {kind}: {error.message[:1_000]}")


def _arguments_of(kind: str) -> Schema:
    action = ACTIONS[kind]
    optional = {name: schema for name, schema in action.arguments.items() if name not in action.required}
    return record({name: action.arguments[name] for name in action.required}, optional)


_KINDS = tuple(kind for kind in ACTIONS if kind != DROP)
_VALIDATORS = {kind: Draft202012Validator(_arguments_of(kind)) for kind in ACTIONS}
_STATE: Schema = {"type": "string", "enum": [state.value for state in JobState]}
_ID: Schema = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"}
ROUTES = (
    Route(
        method="POST", path="/v1/tables/{name}/jobs", operation="start_job", role=Role.OPERATOR,
        summary="Ask for a job. A request with the same id again gets the same job.",
        body={
            "oneOf": [
                {**record({"kind": {"const": kind}}, {"arguments": _arguments_of(kind), "id": _ID}),
                 "description": ACTIONS[kind].summary, "x-destroys": ACTIONS[kind].destroys}
                for kind in _KINDS
            ]
        },
        answers={202: ref("Job")}, handle=_ask,
    ),
    Route(
        method="GET", path="/v1/tables/{name}/jobs", operation="list_jobs", summary="The jobs of a table, newest first.",
        query={"state": _STATE}, answers={200: record({"version": VERSION, "jobs": listed(ref("Job"))})}, handle=_list,
    ),
    Route(
        method="GET", path="/v1/tables/{name}/jobs/{id}", operation="see_job", summary="How far a job is.",
        answers={200: ref("Job")}, handle=_see,
    ),
    Route(
        method="DELETE", path="/v1/tables/{name}/jobs/{id}", operation="cancel_job", role=Role.OPERATOR,
        summary="Cancel a job: one that waits at once, one that runs when its runner sees it.",
        answers={200: ref("Job")}, handle=_cancel,
    ),
    Route(
        method="DELETE", path="/v1/tables/{name}", operation="drop_table", role=Role.OPERATOR,
        summary="Drop a table by a job, after a delay (default: 7 days). Cancelling the job keeps the table.",
        query={"delay_seconds": {"type": "integer", "minimum": 0, "maximum": _DELAY_SECONDS_MAX}},
        answers={202: ref("Job")}, handle=_drop,
    ),
)  # fmt: skip


_THREADS = 2
LOOK_SECONDS = 5.0
PASS_SECONDS = 60.0
_SHARE = 0.05
_HINTS_MAX = 10_000
_logger = logging.getLogger("lakebed.service")


class JobLoop:
    """From ``start`` until ``close``."""

    def __init__(
        self,
        catalog: Catalog,
        *,
        pass_seconds: float = PASS_SECONDS,
        runner: Callable[[Callable[[str], Table]], JobRunner] = lambda open_table: JobRunner(
            open_table, threads=_THREADS
        ),
    ) -> None:
        """``runner`` makes what runs the jobs of tables that it opens."""
        self._catalog = catalog
        self._pass_seconds = pass_seconds
        self._runner = runner(lambda root: Table(catalog.opened_at(root)))
        self._hints: queue.Queue[str | None] = queue.Queue(_HINTS_MAX)
        self._open: set[str] = set()  # roots of tables with jobs that have not ended, as of the last look
        self._thread = threading.Thread(target=self._follow, name="lakebed-jobs", daemon=True)
        catalog.on_hint = self.hint

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Take no more jobs; those that can be stopped are given back."""
        self._hints.put(None)
        self._thread.join()
        self._runner.close()

    def hint(self, root: str) -> None:
        """A job of this table was requested."""
        with suppress(queue.Full):  # the next pass finds it
            self._hints.put_nowait(root)

    def _follow(self) -> None:
        next_pass = 0.0
        while True:
            with suppress(queue.Empty):
                root = self._hints.get(timeout=min(LOOK_SECONDS, max(0.0, next_pass - time.monotonic())))
                if root is None:
                    return
                self._look(root)
                continue
            for root in tuple(self._open):
                self._look(root)
            if time.monotonic() >= next_pass:
                began = time.monotonic()
                if not self._pass():
                    return
                took = time.monotonic() - began
                next_pass = time.monotonic() + max(self._pass_seconds, took * (1 / _SHARE - 1))

    def _pass(self) -> bool:
        """Look at all tables; False if it shall end. What is requested meanwhile comes first."""
        try:
            found = {root for roots in self._catalog.tables().values() for root in roots}
        except LakebedError as error:
            _logger.warning("the tables can't be listed, so no jobs are looked for: %s", error)
            return True
        for root in sorted(found):
            with suppress(queue.Empty):
                while True:
                    hinted = self._hints.get_nowait()
                    if hinted is None:
                        return False
                    self._look(hinted)
            self._look(root)
        return True

    def _look(self, root: str) -> None:
        try:
            log = self._catalog.logs.open(root)
            snapshot = log.refresh()
            is_open = any(not job.has_ended for job in jobs_of(snapshot))
            (self._open.add if is_open else self._open.discard)(root)
            if due_jobs(snapshot, log.now_ms()):
                self._runner.look(root)
        except LakebedError as error:  # the table's trouble alone
            self._open.discard(root)
            _logger.debug("no jobs of %s are looked for: %s", root, error)
        except Exception:
            self._open.discard(root)
            _logger.exception("looking for jobs of %s failed", root)
