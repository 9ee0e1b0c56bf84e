"""Jobs: work on a table that a user requested, as entries of the table's own log (``lakebed.job.<id>``).

    asked() -> waiting --- take() ---> running --- end() ---> succeeded | failed | cancelled
                  ^  \\                  |    \\
                  |   \\-- cancel() --> cancelled  \\-- cancel(): the runner is asked to stop, and ends it
                  \\---- give_back() ----/
                                        \\---- the lease ends: another runner takes it over

1. A job waits until its time has come (``not_before_ms``), and no job of the same kind runs on the table.
2. A runner takes it by a commit. It runs under a lease, which its runner extends together with the progress. A job whose lease
   has ended may be taken over. It is begun ``ATTEMPTS_MAX`` times at most, so one that kills each runner ends too.
3. Only the runner that has taken a job ends it: a commit that finds another runner or attempt there changes nothing.
4. The newest ``ENDED_MAX`` jobs that have ended are kept, so that users can still see how they ended.

A lease decides who works, never what is right: what a job does is safe also if it runs twice at once. As with claims, a lease
that ends more than a day from now was written by a clock that is ahead, and counts as ended.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

import orjson

from lakebed.errors import InvalidInput
from lakebed.log.actions import Domain
from lakebed.log.claims import LEASE_MS_MAX
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.entries import JOB, Operation
from lakebed.log.entry_values import decoded, readable, readable_or_none
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog

ENDED_MAX = 100
OPEN_MAX = 100
ATTEMPTS_MAX = 5


class JobState(StrEnum):
    """Where a job is. The last three are ends."""

    WAITING = "waiting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


_ENDS = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Work that was asked for. Times are epoch milliseconds, 0 for none."""

    id: str
    kind: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    # a file of the table that has the arguments, where the log must not keep them; deleted at the end
    arguments_file: str = ""
    by: str = ""  # who asked for it
    asked_ms: int = 0
    not_before_ms: int = 0
    state: JobState = JobState.WAITING
    attempts: int = 0  # how often a runner has taken it
    runner: str = ""  # who runs it
    until_ms: int = 0  # when the runner's lease ends
    started_ms: int = 0
    ended_ms: int = 0
    cancel_asked: bool = False
    progress: Mapping[str, Any] = field(default_factory=dict)  # figures of the attempt that runs
    result: Mapping[str, Any] = field(default_factory=dict)  # what it did
    error: str = ""  # why it failed
    error_kind: str = ""  # the class of the error

    @property
    def has_ended(self) -> bool:
        return self.state in _ENDS

    def is_held(self, now_ms: int) -> bool:
        """Whether a runner has it under a lease that has not ended."""
        return self.state is JobState.RUNNING and now_ms < self.until_ms <= now_ms + LEASE_MS_MAX


def jobs_of(snapshot: Snapshot) -> tuple[Job, ...]:
    """The jobs of a table, oldest first. One that can't be read is left out."""
    found = (job for _, job in readable(snapshot.domains, JOB, job_in))
    return tuple(sorted(found, key=lambda job: (job.asked_ms, job.id)))


def job_of(snapshot: Snapshot, job_id: str) -> Job | None:
    """A job by its id; None if there is none, or none any more."""
    return readable_or_none(JOB + job_id, snapshot.domains.get(JOB + job_id), job_in)


def due_jobs(snapshot: Snapshot, now_ms: int) -> tuple[Job, ...]:
    """The jobs that a runner may take now, in the order in which they were asked for: one of a kind at most."""
    jobs = jobs_of(snapshot)
    kinds = {job.kind for job in jobs if job.is_held(now_ms)}
    out: list[Job] = []
    for job in jobs:
        if job.has_ended or job.kind in kinds or job.not_before_ms > now_ms:
            continue
        kinds.add(job.kind)
        out.append(job)
    return tuple(out)


def ask(log: TableLog, job: Job) -> Job:
    """Put a job into the log, unless one with its id is there; returns the one that is there now.

    Raises InvalidInput for an id that is none, or if too many jobs wait already; Contention, StoreUnavailable (repeat it).
    """
    _require_id(job.id)

    def build(snapshot: Snapshot) -> Proposal[Job] | Finished[Job]:
        found = job_of(snapshot, job.id)
        if found is not None:
            return Finished(found)
        if sum(not each.has_ended for each in jobs_of(snapshot)) >= OPEN_MAX:
            raise InvalidInput(
                f"{OPEN_MAX} jobs of this table have not ended yet; wait until some have, or cancel some",
                table=log.root,
            )
        return _proposal(snapshot, replace(job, asked_ms=log.now_ms(), state=JobState.WAITING))

    return commit_loop(log, Operation.JOB, build)


def take(log: TableLog, job_id: str, runner: str, lease_ms: int) -> Job | None:
    """Take a job that is due, also one whose runner's lease has ended; None if it is not due any more.

    One that was taken too often ends as failed, and one whose runner died after it was cancelled as cancelled.
    """

    def build(snapshot: Snapshot) -> Proposal[Job | None] | Finished[Job | None]:
        now_ms = log.now_ms()
        job = next((each for each in due_jobs(snapshot, now_ms) if each.id == job_id), None)
        if job is None:
            return Finished(None)
        if job.cancel_asked:
            return _proposal(snapshot, replace(job, state=JobState.CANCELLED, ended_ms=now_ms), None)
        if job.attempts >= ATTEMPTS_MAX:
            why = f"it was begun {job.attempts} times, and its runner ended each time before it did; the last was {job.runner}"
            failed = replace(job, state=JobState.FAILED, error=why, error_kind="Unexpected", ended_ms=now_ms)
            return _proposal(snapshot, failed, None)
        taken = replace(
            job,
            state=JobState.RUNNING,
            runner=runner,
            attempts=job.attempts + 1,
            started_ms=now_ms,
            until_ms=now_ms + lease_ms,
            progress={},
        )
        return _proposal(snapshot, taken, taken)

    return commit_loop(log, Operation.JOB, build)


def extend(log: TableLog, job: Job, progress: Mapping[str, Any], lease_ms: int) -> Job | None:
    """Extend the lease of a job that was taken, and say how far it is; None if another runner has taken it over, or ended it."""
    return _as_its_runner(
        log, job, lambda now, now_ms: replace(now, progress=dict(progress), until_ms=now_ms + lease_ms)
    )


def end(
    log: TableLog,
    job: Job,
    state: JobState,
    *,
    result: Mapping[str, Any] | None = None,
    error: str = "",
    kind: str = "",
) -> Job | None:
    """End a job that was taken; None if another runner has taken it over, or ended it. ``kind``: the class of the error."""
    return _as_its_runner(
        log,
        job,
        lambda now, now_ms: replace(
            now, state=state, result=dict(result or {}), error=error, error_kind=kind, ended_ms=now_ms, until_ms=0
        ),
    )


def give_back(log: TableLog, job: Job) -> Job | None:
    """Let another runner take a job at once: this one stops. The attempt does not count."""
    return _as_its_runner(
        log,
        job,
        lambda now, now_ms: replace(now, state=JobState.WAITING, until_ms=0, attempts=max(0, now.attempts - 1)),
    )


def cancel(log: TableLog, job_id: str) -> Job | None:
    """Cancel a job: one that waits ends at once, one that runs when its runner sees it. None if there is none.

    Returns the job as it is then; one that has ended stays as it is.
    """

    def build(snapshot: Snapshot) -> Proposal[Job | None] | Finished[Job | None]:
        job = job_of(snapshot, job_id)
        if job is None or job.has_ended or (job.cancel_asked and job.state is JobState.RUNNING):
            return Finished(job)
        if job.state is JobState.WAITING:
            changed = replace(job, state=JobState.CANCELLED, cancel_asked=True, ended_ms=log.now_ms())
        else:
            changed = replace(job, cancel_asked=True)
        return _proposal(snapshot, changed, changed)

    return commit_loop(log, Operation.JOB, build)


def new_id() -> str:
    """An id for a job."""
    return uuid.uuid4().hex


def is_current(snapshot: Snapshot, job: Job) -> Job | None:
    """The job as it is in a snapshot, if the runner that took ``job`` still has it; else None."""
    now = job_of(snapshot, job.id)
    same = now is not None and (now.state, now.runner, now.attempts) == (JobState.RUNNING, job.runner, job.attempts)
    return now if same else None


def _as_its_runner(log: TableLog, job: Job, change: Callable[[Job, int], Job]) -> Job | None:
    def build(snapshot: Snapshot) -> Proposal[Job | None] | Finished[Job | None]:
        now = is_current(snapshot, job)
        if now is None:
            return Finished(None)
        changed = change(now, log.now_ms())
        return _proposal(snapshot, changed, changed)

    return commit_loop(log, Operation.JOB, build)


def _proposal(snapshot: Snapshot, job: Job, *result: Any) -> Proposal[Any]:
    """A commit that sets one job; if it ends, the oldest of those that have ended longer ago are dropped."""
    actions = [Domain(JOB + job.id, orjson.dumps(asdict(job)).decode())]
    if job.has_ended:
        ended = [each for each in jobs_of(snapshot) if each.has_ended and each.id != job.id]
        ended.sort(key=lambda each: (each.ended_ms, each.id))
        gone = ended[: max(0, len(ended) + 1 - ENDED_MAX)]
        actions += [Domain(JOB + each.id, "", removed=True) for each in gone]
    answer = result[0] if result else job
    parameters = {"job": job.id, "kind": job.kind, "state": job.state.value}
    return Proposal(actions=actions, result=lambda _: answer, parameters=parameters)


def job_in(domain: str, text: str) -> Job:
    """The job in an entry of the log. Raises Corrupt."""
    return decoded(Job, domain, text, id=domain.removeprefix(JOB))


def _require_id(job_id: str) -> None:
    if not (1 <= len(job_id) <= 64 and job_id.isascii() and job_id.replace("-", "").replace("_", "").isalnum()):
        raise InvalidInput(
            f"the id of a job is {job_id[:100]!r}; it must be 1 to 64 letters, digits, - and _, for example a UUID"
        )
