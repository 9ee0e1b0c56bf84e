"""What runs on the tables, what waits and why, and who works: from what was read of their logs. Pure.

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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lakebed.coordination.jobs import Job, JobState
from lakebed.fleet.membership import Worker, owner_of, standbys_of
from lakebed.service.answers import time_text
from lakebed.service.survey import Member, Survey, Surveyed, urgency

TASK_STATES = ("running", "waiting", "parked", "held")


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
            TASK_STATES.index(task.state),
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
