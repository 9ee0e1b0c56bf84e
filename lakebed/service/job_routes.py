"""Routes of jobs: ask for one, see how far it is, cancel it. A table is dropped by a job, too, which waits until its time."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from jsonschema import Draft202012Validator

from lakebed.coordination import jobs
from lakebed.coordination.jobs import Job, JobState, job_of, jobs_of
from lakebed.errors import InvalidInput
from lakebed.jobs import ACTIONS, DROP
from lakebed.operations import job_arguments
from lakebed.service.answers import VERSION, Schema, listed, record, ref, time_text
from lakebed.service.problems import Refused
from lakebed.service.routes import Answer, Call, Route
from lakebed.service.tokens import Role
from lakebed.sql.expression import check_columns_of, expression
from lakebed.storage.open import open_part_storage

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
