"""Jobs in the log of a table: who may take which, and that nothing is lost when runners die."""

from __future__ import annotations

import pytest

from lakebed.coordination import jobs
from lakebed.coordination.jobs import Job, JobState, due_jobs, job_of, jobs_of
from lakebed.errors import InvalidInput
from lakebed.log.conflicts import BLIND
from lakebed.log.stores import MemoryLogStore
from lakebed.log.table_log import TableLog
from tests.log.test_table_log import INFO, change_part, committed, new_log

LEASE_MS = 60_000


class Now:
    """A clock that is set."""

    def __init__(self, seconds: float = 1_900_000_000.0) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds


def logs(count: int) -> tuple[Now, list[TableLog]]:
    """The log of one table as several processes have it, by one clock."""
    store, now = MemoryLogStore(), Now()
    new_log(store=store)
    return now, [TableLog(store, now, sleep=lambda seconds: None) for _ in range(count)]


def asked(log: TableLog, job_id: str = "a", kind: str = "settle") -> Job:
    return jobs.ask(log, Job(id=job_id, kind=kind, by="alice", arguments={"final": True}))


def test_a_job_is_taken_by_one_runner_and_ends_with_its_result() -> None:
    _now, (one, other) = logs(2)
    assert asked(one).state is JobState.WAITING
    mine = jobs.take(one, "a", "one", LEASE_MS)
    assert mine is not None and mine.attempts == 1 and mine.arguments == {"final": True}
    assert jobs.take(other, "a", "other", LEASE_MS) is None and due_jobs(other.refresh(), other.now_ms()) == ()
    extended = jobs.extend(one, mine, {"rows": 7}, LEASE_MS)
    assert extended is not None and extended.progress == {"rows": 7}
    jobs.end(one, mine, JobState.SUCCEEDED, result={"rows": 8})
    [ended] = jobs_of(other.refresh())
    assert ended.state is JobState.SUCCEEDED and ended.result == {"rows": 8} and ended.ended_ms == other.now_ms()


def test_asking_again_with_the_same_id_is_the_same_job() -> None:
    _, (one, other) = logs(2)
    first = asked(one)
    assert asked(other) == first and len(jobs_of(one.refresh())) == 1
    mine = jobs.take(one, "a", "one", LEASE_MS)
    assert mine is not None and asked(other) == mine


def test_a_job_whose_runner_died_is_taken_over_and_the_dead_one_can_t_end_it() -> None:
    now, (one, other) = logs(2)
    asked(one)
    lost = jobs.take(one, "a", "one", LEASE_MS)
    assert lost is not None
    now.seconds += LEASE_MS / 1000 - 1
    assert jobs.take(other, "a", "other", LEASE_MS) is None
    now.seconds += 1
    taken = jobs.take(other, "a", "other", LEASE_MS)
    assert taken is not None and taken.attempts == 2 and taken.runner == "other"
    assert jobs.extend(one, lost, {}, LEASE_MS) is None
    assert jobs.end(one, lost, JobState.FAILED, error="late") is None
    assert jobs.end(other, taken, JobState.SUCCEEDED) is not None


def test_a_runner_that_takes_its_own_job_over_does_not_confuse_the_attempts() -> None:
    now, (one,) = logs(1)
    asked(one)
    first = jobs.take(one, "a", "one", LEASE_MS)
    now.seconds += LEASE_MS
    second = jobs.take(one, "a", "one", LEASE_MS)
    assert first is not None and second is not None and (first.runner, second.attempts) == (second.runner, 2)
    assert jobs.end(one, first, JobState.SUCCEEDED) is None


def test_a_job_that_kills_every_runner_ends_as_failed() -> None:
    now, (one,) = logs(1)
    asked(one)
    for attempt in range(1, jobs.ATTEMPTS_MAX + 1):
        mine = jobs.take(one, "a", f"runner {attempt}", LEASE_MS)
        assert mine is not None and mine.attempts == attempt
        now.seconds += LEASE_MS
    assert jobs.take(one, "a", "another", LEASE_MS) is None
    ended = job_of(one.refresh(), "a")
    assert ended is not None and ended.state is JobState.FAILED and f"begun {jobs.ATTEMPTS_MAX} times" in ended.error


def test_a_lease_by_a_clock_that_is_days_ahead_keeps_nobody_from_the_job() -> None:
    now, (one, other) = logs(2)
    asked(one)
    now.seconds += 10 * 86_400
    jobs.take(one, "a", "ahead", LEASE_MS)
    now.seconds -= 10 * 86_400
    assert jobs.take(other, "a", "other", LEASE_MS) is not None


def test_a_job_that_waits_is_cancelled_at_once_and_one_that_runs_is_asked_to_end() -> None:
    _now, (one, other) = logs(2)
    asked(one)
    cancelled = jobs.cancel(other, "a")
    assert cancelled is not None and cancelled.state is JobState.CANCELLED
    assert jobs.take(one, "a", "one", LEASE_MS) is None
    asked(one, "b")
    mine = jobs.take(one, "b", "one", LEASE_MS)
    running = jobs.cancel(other, "b")
    assert running is not None and running.cancel_asked and running.state is JobState.RUNNING
    assert mine is not None and jobs.extend(one, mine, {}, LEASE_MS) is not None
    kept = job_of(one.refresh(), "b")
    assert kept is not None and kept.cancel_asked  # extending the lease does not lose the wish
    assert jobs.cancel(other, "nobody's") is None


def test_a_job_that_was_cancelled_and_whose_runner_died_ends() -> None:
    now, (one, other) = logs(2)
    asked(one)
    jobs.take(one, "a", "one", LEASE_MS)
    jobs.cancel(other, "a")
    now.seconds += LEASE_MS
    assert jobs.take(other, "a", "other", LEASE_MS) is None
    ended = job_of(other.refresh(), "a")
    assert ended is not None and ended.state is JobState.CANCELLED


def test_jobs_of_a_kind_run_one_after_the_other_and_others_beside_them() -> None:
    now, (one,) = logs(1)
    for job_id, kind in (("a", "settle"), ("b", "settle"), ("c", "compact")):
        asked(one, job_id, kind)
        now.seconds += 1
    assert [job.id for job in due_jobs(one.refresh(), one.now_ms())] == ["a", "c"]
    mine = jobs.take(one, "a", "one", LEASE_MS)
    assert mine is not None and jobs.take(one, "b", "one", LEASE_MS) is None
    assert jobs.take(one, "c", "one", LEASE_MS) is not None
    jobs.end(one, mine, JobState.SUCCEEDED)
    assert [job.id for job in due_jobs(one.refresh(), one.now_ms())] == ["b"]


def test_a_job_is_not_taken_before_its_time() -> None:
    now, (one,) = logs(1)
    jobs.ask(one, Job(id="a", kind="drop", not_before_ms=one.now_ms() + 1000))
    assert jobs.take(one, "a", "one", LEASE_MS) is None
    now.seconds += 1
    assert jobs.take(one, "a", "one", LEASE_MS) is not None


def test_a_job_that_is_given_back_is_taken_at_once_by_another() -> None:
    _, (one, other) = logs(2)
    asked(one)
    mine = jobs.take(one, "a", "one", LEASE_MS)
    assert mine is not None and jobs.give_back(one, mine) is not None
    theirs = jobs.take(other, "a", "other", LEASE_MS)
    assert theirs is not None and theirs.attempts == 1 and jobs.give_back(one, mine) is None


def test_the_newest_jobs_that_have_ended_are_kept() -> None:
    now, (one,) = logs(1)
    asked(one, "open")
    for number in range(jobs.ENDED_MAX + 5):
        asked(one, f"j{number}")
        jobs.cancel(one, f"j{number}")
        now.seconds += 1
    kept = [job.id for job in jobs_of(one.refresh())]
    assert len(kept) == jobs.ENDED_MAX + 1 and "open" in kept and "j4" not in kept and "j5" in kept


def test_so_many_jobs_wait_at_most_and_an_id_is_a_word() -> None:
    _, (one,) = logs(1)
    for number in range(jobs.OPEN_MAX):
        asked(one, f"j{number}")
    with pytest.raises(InvalidInput, match="have not ended yet"):
        asked(one, "one-more")
    for wrong in ("", "a/b", "a b", "ä", "x" * 65, "lakebed.claim.x"):
        with pytest.raises(InvalidInput, match="the id of a job"):
            asked(one, wrong)


def test_jobs_stand_in_nobody_s_way() -> None:
    """Commits that bring and replace parts, planned before a job's commit, land after it without a conflict; and the reverse."""
    log = new_log()
    read = log.refresh()
    asked(log)
    committed(log.commit(read, [change_part("a")], INFO, BLIND))
    read = log.refresh()
    mine = jobs.take(log, "a", "one", LEASE_MS)
    assert mine is not None
    committed(log.commit(read, [change_part("b")], INFO, BLIND))
    stale = TableLog(log.store, log.clock)
    stale.refresh()
    committed(log.commit(log.refresh(), [change_part("c")], INFO, BLIND))
    assert jobs.end(stale, mine, JobState.SUCCEEDED) is not None
