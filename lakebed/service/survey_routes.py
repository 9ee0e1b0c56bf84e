"""Routes about all tables at once: how each is, the jobs of all, and the queue: who works, what runs, what waits and why.

They answer from the survey, so a request costs no look at the tables (``survey``), and an answer is at most ``_LIMIT_MAX`` rows.

**The queue** says what runs on the tables, what waits and why, and who works, from what was read of their logs.

    running    a claim whose lease has not ended, or a job that a runner has
    waiting    what the log says is due, or a job that nobody has taken yet
    parked     a merge or settle that keeps failing, or a table that its pipeline leaves alone; with the error
    held       a merge whose output is on a replica's disk until it is uploaded; nobody has to do anything

What waits stands in the order in which a fleet takes it. The ``owner`` is the worker that looks after the table, and
``standbys`` are those that settle it if its freshness is in danger. The workers work this out in the same way
(``fleet.membership``), so it is true as long as they see the same workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from lakebed.coordination.jobs import Job, JobState, jobs_of
from lakebed.errors import InvalidInput
from lakebed.fleet.membership import Worker, owner_of, standbys_of
from lakebed.health.finding import Severity
from lakebed.service.answers import COUNT, NAME, TIME, TRUTH, WHOLE, Schema, listed, or_null, record, ref, time_text
from lakebed.service.job_routes import job_value
from lakebed.service.routes import Answer, Call, Route
from lakebed.service.survey import Member, Survey, Surveyed, TableState, state_of, urgency

_TASK_STATES = ("running", "waiting", "parked", "held")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A piece of work on a table. ``what``: merge, purge, recluster, resort, settle, upkeep, ingest, or the kind of a job;
    ``who``: the replica or runner that has it; ``until_ms``: the end of its lease, or when it is tried again."""

    member: Member
    table: Surveyed
    state: str
    what: str
    why: str = ""
    who: str = ""
    owner: str | None = None
    standbys: Sequence[str] = ()
    since_ms: int = 0
    until_ms: int = 0
    parts: int = 0
    bytes: int = 0
    progress: Mapping[str, Any] = field(default_factory=dict)
    job: str | None = None


def tasks_of(tables: Sequence[tuple[Member, Surveyed]], workers: Mapping[str, Worker], now_ms: int) -> list[Task]:
    """The work on these tables, by state; what waits as a fleet takes it, the rest by how long it has been so."""
    alive = _alive(workers, now_ms)
    found = [task for member, table in tables for task in _tasks(member, table, alive, now_ms)]

    def place(task: Task) -> tuple[Any, ...]:
        first = urgency(task.table, now_ms) if task.state == "waiting" else (0, 0.0, 0.0)
        return (
            _TASK_STATES.index(task.state),
            *first,
            task.since_ms,
            task.member.name,
            task.what,
            task.job or "",
            task.who,
        )

    return sorted(found, key=place)


def workers_of(survey: Survey, now_ms: int) -> list[dict[str, Any]]:
    """The workers that the log of a fleet lists, as JSON, with how much each runs, and how many of its tables wait."""
    alive = _alive(survey.workers, now_ms)
    waiting = Counter(owner_of(member.root, alive) for member, table in survey.tables if table.why)
    busy = [
        each.claim.replica
        for _, table in survey.tables
        for each in table.claims
        if each.claim.is_live(now_ms) and not each.claim.volatile
    ]
    busy += [job.runner for _, table in survey.tables for job in table.jobs if job.is_held(now_ms)]
    return [
        {
            "id": worker.id,
            "host": worker.host,
            "cores": worker.cores,
            "is_alive": worker.id in alive,
            "since": time_text(worker.since_ms) if worker.since_ms else None,
            "until": time_text(worker.until_ms) if worker.until_ms else None,
            "running": sum(who.startswith(_process(worker.id)) for who in busy),
            "waiting": waiting[worker.id],
        }
        for worker in sorted(survey.workers.values(), key=lambda worker: worker.id)
    ]


def _alive(workers: Mapping[str, Worker], now_ms: int) -> dict[str, float]:
    return {worker.id: worker.cores for worker in workers.values() if worker.until_ms > now_ms}


def _process(worker: str) -> str:
    """What the names of all replicas and runners of a worker's process begin with: its host and its process id."""
    return worker.rpartition("-")[0] + "-"


def _tasks(member: Member, table: Surveyed, alive: Mapping[str, float], now_ms: int) -> Iterator[Task]:
    for seen in table.claims:
        claim = seen.claim
        if claim.is_live(now_ms):
            yield Task(
                member=member,
                table=table,
                state="held" if claim.volatile else "running",
                what=claim.kind or "merge",
                who=claim.replica,
                since_ms=claim.since_ms,
                until_ms=claim.lease_ms,
                parts=seen.parts,
                bytes=seen.bytes,
            )
    for job in table.jobs:
        if not job.has_ended:
            yield _job_task(member, table, job, now_ms)
    for failing in table.failing:
        if failing.is_parked(now_ms):
            yield Task(
                member=member,
                table=table,
                state="parked",
                what="merge",
                why=f"{failing.kind}: {failing.error}",
                since_ms=failing.since_ms,
                until_ms=failing.not_before_ms,
                parts=len(failing.sources),
            )
    if table.settle is not None and table.is_settle_parked(now_ms):
        yield Task(
            member=member,
            table=table,
            state="parked",
            what="settle",
            why=table.settle.error,
            since_ms=table.settle.since_ms,
            until_ms=table.settle.not_before_ms,
        )
    if table.parked is not None:
        yield Task(
            member=member,
            table=table,
            state="parked",
            what="ingest",
            why=f"{table.parked.kind}: {table.parked.error}",
            since_ms=table.parked.since_ms,
        )
    if table.why and not table.error:
        yield Task(
            member=member,
            table=table,
            state="waiting",
            what="upkeep",
            why=table.why,
            owner=owner_of(member.root, alive),
            standbys=standbys_of(member.root, alive) if table.freshness_seconds else (),
            since_ms=table.tail_since_ms or table.committed_ms,
        )


def _job_task(member: Member, table: Surveyed, job: Job, now_ms: int) -> Task:
    if job.is_held(now_ms):
        state, why = "running", "it is being cancelled" if job.cancel_asked else ""
    else:
        state, why = "waiting", _why_it_waits(table, job, now_ms)
    return Task(
        member=member,
        table=table,
        state=state,
        what=job.kind,
        why=why,
        who=job.runner if state == "running" else "",
        since_ms=job.started_ms if state == "running" else job.asked_ms,
        until_ms=job.until_ms if state == "running" else job.not_before_ms,
        progress=job.progress,
        job=job.id,
    )


def _why_it_waits(table: Surveyed, job: Job, now_ms: int) -> str:
    if job.not_before_ms > now_ms:
        return "its time has not come"
    if any(other.kind == job.kind and other.is_held(now_ms) for other in table.jobs):
        return f"another {job.kind} of this table runs"
    if job.state is JobState.RUNNING:
        return f"its runner {job.runner} is gone; another one takes it over"
    return "for a runner with a free thread: a service, or the fleet's worker that owns the table"


_LIMIT_MAX = 1_000
_LIMIT = 100
_STATES = [state.value for state in TableState]
T = TypeVar("T")


def _about(survey: Survey) -> dict[str, Any]:
    looked = survey.looked_ms
    return {
        "tables": len(survey.tables),
        "unseen": survey.unseen,
        "error": survey.error,
        "looked_at": None if looked is None else time_text(looked),
    }


def _found(survey: Survey, call: Call) -> list[tuple[Member, Surveyed]]:
    """The tables in whose names the text that is searched for is."""
    wanted = str(call.query.get("search", "")).lower()
    return [each for each in survey.tables if wanted in each[0].name.lower()]


def _page_of(rows: Sequence[T], call: Call) -> tuple[Sequence[T], int | None]:
    after, limit = call.query.get("after", 0), call.query.get("limit", _LIMIT)
    end = after + limit
    return rows[after:end], end if end < len(rows) else None


# -- tables --------------------------------------------------------------------------------------------------------------


def _survey(call: Call) -> Answer:
    survey, now_ms = call.surveyor.survey(), call.now_ms
    found = [(*each, state_of(each[1], now_ms)) for each in _found(survey, call)]
    counts = Counter(state for *_, state in found)
    if (wanted := call.query.get("state")) is not None:
        found = [each for each in found if each[2] == wanted]
    sort = call.query.get("sort", "state")
    by = _SORTS[sort]
    descending = call.query.get("descending", sort not in ("name", "state"))
    found.sort(key=lambda each: by(each[0], each[1], each[2], now_ms), reverse=descending)
    page, end = _page_of(found, call)
    rows = [_row(member, table, state, now_ms) for member, table, state in page]
    states = {state.value: counts[state] for state in TableState if counts[state]}
    return Answer(value={"survey": _about(survey), "states": states, "found": len(found), "rows": rows, "next": end})


def _row(member: Member, table: Surveyed, state: TableState, now_ms: int) -> dict[str, Any]:
    was_read = table.version >= 0
    return {
        "name": member.name,
        "root": member.root,
        "state": state.value,
        "why": _why(table, now_ms),
        "version": table.version if was_read else None,
        "committed_at": time_text(table.committed_ms) if was_read else None,
        "rows": table.rows,
        "bytes": table.bytes,
        "parts": table.parts,
        "tail_rows": table.tail_rows,
        "tail_since": None if table.tail_since_ms is None else time_text(table.tail_since_ms),
        "late_seconds": table.late_seconds(now_ms),
        "freshness_seconds": table.freshness_seconds,
        "depth": table.depth,
        "read_budget": table.read_budget,
        "tier": table.tier,
        "pool": table.pool,
        "jobs": sum(not job.has_ended for job in table.jobs),
    }


def _why(table: Surveyed, now_ms: int) -> str:
    if table.error:
        return table.error
    if table.parked is not None:
        return table.parked.error
    if table.settle is not None and table.is_settle_parked(now_ms):
        return table.settle.error
    failing = next((each.error for each in table.failing if each.is_parked(now_ms)), None)
    if failing is not None:
        return failing
    is_critical = bool(table.findings) and table.findings[0].severity is Severity.CRITICAL
    return table.findings[0].what if is_critical or (table.findings and not table.why) else table.why


_Sort = Callable[[Member, Surveyed, TableState, int], tuple[Any, ...]]
_ORDER = list(TableState)
_SORTS: dict[str, _Sort] = {
    "state": lambda member, table, state, now_ms: (
        _ORDER.index(state),
        -(table.late_seconds(now_ms) or 0),
        member.name,
    ),
    "name": lambda member, table, state, now_ms: (member.name,),
    "late": lambda member, table, state, now_ms: (table.late_seconds(now_ms) or 0, member.name),
    "rows": lambda member, table, state, now_ms: (table.rows, member.name),
    "bytes": lambda member, table, state, now_ms: (table.bytes, member.name),
    "parts": lambda member, table, state, now_ms: (table.parts, member.name),
    "depth": lambda member, table, state, now_ms: (table.depth / max(1, table.read_budget), member.name),
    "committed": lambda member, table, state, now_ms: (table.committed_ms, member.name),
}


# -- jobs ----------------------------------------------------------------------------------------------------------------


def _jobs(call: Call) -> Answer:
    survey = call.surveyor.survey()
    if (name := call.query.get("table")) is not None:
        found = [(name, job) for job in jobs_of(call.catalog.newest(name)[1])]
    else:
        found = [(member.name, job) for member, table in survey.tables for job in table.jobs]
    state, kind = call.query.get("state"), call.query.get("kind")
    found = [each for each in found if state in (None, each[1].state.value) and kind in (None, each[1].kind)]
    found.sort(key=lambda each: _place(*each))
    if (after := call.query.get("after")) is not None:
        last = _place_in(after)
        found = [each for each in found if _place(*each) > last]
    limit = call.query.get("limit", _LIMIT)
    page = found[:limit]
    return Answer(
        value={
            "survey": _about(survey),
            "jobs": [job_value(job, name) for name, job in page],
            "next": _cursor(*page[-1]) if len(found) > limit else None,
        }
    )


def _place(name: str, job: Job) -> tuple[int, str, str]:
    """Newest first; a total order, so that no job is left out or repeated between two pages."""
    return -job.asked_ms, job.id, name


def _cursor(name: str, job: Job) -> str:
    return f"{job.asked_ms}:{job.id}:{name}"


def _place_in(cursor: str) -> tuple[int, str, str]:
    asked, _, rest = cursor.partition(":")
    job_id, colon, name = rest.partition(":")
    if not colon or not (asked.isascii() and asked.isdigit() and len(asked) < 20):
        raise InvalidInput(f"after is {cursor[:100]!r}; it must be the next of an earlier answer")
    return -int(asked), job_id, name


# -- the queue -----------------------------------------------------------------------------------------------------------


def _queue(call: Call) -> Answer:
    survey, now_ms = call.surveyor.survey(), call.now_ms
    found = tasks_of(_found(survey, call), survey.workers, now_ms)
    counts = Counter(task.state for task in found)
    if (wanted := call.query.get("state")) is not None:
        found = [task for task in found if task.state == wanted]
    page, end = _page_of(found, call)
    return Answer(
        value={
            "survey": _about(survey),
            "workers": workers_of(survey, now_ms),
            "states": {state: counts[state] for state in _TASK_STATES if counts[state]},
            "found": len(found),
            "tasks": [_task(task, now_ms) for task in page],
            "next": end,
        }
    )


def _task(task: Task, now_ms: int) -> dict[str, Any]:
    times = {"since": task.since_ms, "until": task.until_ms}
    return {
        "table": task.member.name,
        "root": task.member.root,
        "state": task.state,
        "what": task.what,
        "why": task.why,
        "who": task.who,
        "owner": task.owner,
        "standbys": list(task.standbys),
        "tier": task.table.tier,
        "pool": task.table.pool,
        **{name: time_text(value) if value else None for name, value in times.items()},
        "tail_since": None if task.table.tail_since_ms is None else time_text(task.table.tail_since_ms),
        "late_seconds": task.table.late_seconds(now_ms),
        "parts": task.parts,
        "bytes": task.bytes,
        "progress": dict(task.progress),
        "job": task.job,
    }


_TEXT: Schema = {"type": "string"}
_SECONDS: Schema = or_null({"type": "number", "minimum": 0})
_LIMITS: Schema = {"type": "integer", "minimum": 1, "maximum": _LIMIT_MAX}
_COUNTS: Schema = {"type": "object", "additionalProperties": COUNT}
_ABOUT = record({"tables": COUNT, "unseen": COUNT, "looked_at": or_null(TIME), "error": _TEXT})
_TABLE = record(
    {
        "name": _TEXT, "root": _TEXT, "state": {"enum": _STATES}, "why": _TEXT, "version": or_null(COUNT),
        "committed_at": or_null(TIME), "rows": WHOLE, "bytes": COUNT, "parts": COUNT, "tail_rows": COUNT,
        "tail_since": or_null(TIME), "late_seconds": _SECONDS, "freshness_seconds": or_null(COUNT), "depth": COUNT,
        "read_budget": COUNT, "tier": _TEXT,
        "pool": _TEXT, "jobs": COUNT,
    }
)  # fmt: skip
_WORKER = record(
    {
        "id": _TEXT, "host": _TEXT, "cores": {"type": "number"}, "since": or_null(TIME), "until": or_null(TIME),
        "is_alive": TRUTH, "running": COUNT, "waiting": COUNT,
    }
)  # fmt: skip
_TASK = record(
    {
        "table": _TEXT, "root": _TEXT, "state": {"enum": list(_TASK_STATES)}, "what": _TEXT, "why": _TEXT, "who": _TEXT,
        "owner": or_null(_TEXT), "standbys": listed(_TEXT), "tier": _TEXT, "pool": _TEXT, "since": or_null(TIME),
        "until": or_null(TIME),
        "tail_since": or_null(TIME), "late_seconds": _SECONDS, "parts": COUNT,
        "bytes": COUNT, "progress": {"type": "object"}, "job": or_null(_TEXT),
    }
)  # fmt: skip
ROUTES = (
    Route(
        method="GET", path="/v1/survey", operation="survey_tables",
        summary="The state of each table and its reason, how late it is, its rows, parts and depth, the worst first.",
        query={
            "search": NAME, "state": {"type": "string", "enum": _STATES}, "sort": {"type": "string", "enum": list(_SORTS)},
            "descending": TRUTH, "after": COUNT, "limit": _LIMITS,
        },
        answers={200: record(
            {"survey": _ABOUT, "states": _COUNTS, "found": COUNT, "rows": listed(_TABLE), "next": or_null(COUNT)}
        )},
        handle=_survey,
    ),
    Route(
        method="GET", path="/v1/jobs", operation="list_all_jobs", summary="The jobs of all tables, newest first.",
        query={
            "state": {"type": "string", "enum": [state.value for state in JobState]}, "kind": NAME, "table": NAME, "after": NAME,
            "limit": _LIMITS,
        },
        answers={200: record({"survey": _ABOUT, "jobs": listed(ref("Job")), "next": or_null(_TEXT)})}, handle=_jobs,
    ),
    Route(
        method="GET", path="/v1/queue", operation="see_queue",
        summary="For all tables: who works, what runs, what waits and why, and what is parked with which error.",
        query={"search": NAME, "state": {"type": "string", "enum": list(_TASK_STATES)}, "after": COUNT, "limit": _LIMITS},
        answers={200: record(
            {
                "survey": _ABOUT, "workers": listed(_WORKER), "states": _COUNTS, "found": COUNT, "tasks": listed(_TASK),
                "next": or_null(COUNT),
            }
        )},
        handle=_queue,
    ),
)  # fmt: skip
