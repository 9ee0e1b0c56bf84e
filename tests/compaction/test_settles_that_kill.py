"""A settle that kills its process is not tried without end: the tail waits, and everything else goes on (ADR 44)."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.compaction import settle
from lakebed.coordination.failing import (
    ATTEMPTS_MAX,
    PARKED_MS,
    PARKED_MS_MAX,
    attempts_of,
    begin_settle,
    end_attempt,
    parked_settle,
    resume_settle,
)
from lakebed.errors import Corrupt, Retry
from lakebed.fleet.watched import standby_due_ms, work_of
from lakebed.health.finding import Severity
from lakebed.health.sampler import Glance
from lakebed.log.entries import SETTLING
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.service.survey import Member, TableState, state_of, surveyed
from lakebed.service.survey_routes import tasks_of
from lakebed.sortkey.statistics_cache import StatisticsCache
from lakebed.table import internals_of
from tests.clock import Clock
from tests.internals import log_of
from tests.waiting import ran

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
DAY_MS = 86_400_000


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> lakebed.Table:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    return with_tail(tmp_path / "tables" / "t")


def with_tail(path: Path) -> lakebed.Table:
    """A table with a settled batch, and one in the tail, which is due."""
    made = lakebed.create(path, SCHEMA, keys=["id"], properties={"lakebed.settle_after_changes": "1"})
    apply(made, 1)
    made.settle()
    apply(made, 2)
    return made


def apply(table: lakebed.Table, value: int) -> None:
    table.apply(pa.table({"id": list(range(20)), "v": [value] * 20}, SCHEMA))


def tail_of(table: lakebed.Table) -> list[str]:
    return [part.path for part in log_of(table).refresh().tail_in_order()]


def worker(table: lakebed.Table, deadly: str) -> subprocess.CompletedProcess[str]:
    return ran([sys.executable, "-m", "tests.compaction.settle_until_killed", table.path, deadly])


def log_at(table: lakebed.Table, clock: Clock) -> TableLog:
    """The log as a process sees it whose clock the test moves; it begins a second after the newest commit."""
    clock.now = log_of(table).refresh().timestamp_ms / 1000 + 1
    return TableLog(open_store(table.path), clock)


def try_to_settle(log: TableLog, *processes: str) -> bool:
    """Processes begin to settle, one after the other, and are killed; returns whether the last one was let."""
    return [begin_settle(log, process)[1] for process in processes][-1] is None


@pytest.mark.long
def test_a_settle_that_kills_three_processes_is_left_alone_by_the_fourth(table: lakebed.Table) -> None:
    other = with_tail(Path(table.path).parent / "other")
    [deadly] = tail_of(table)
    before = table.to_arrow().sort_by("id")
    ends = [worker(table, deadly) for _ in range(ATTEMPTS_MAX + 1)]
    assert [end.returncode for end in ends] == [-signal.SIGKILL] * ATTEMPTS_MAX + [0], [end.stderr for end in ends]
    assert "idle" in ends[-1].stdout and deadly not in ends[-1].stdout
    assert not tail_of(other), "the other tables are settled"
    [finding] = [each for each in table.status().findings if each.check == "settle"]
    assert finding.severity is Severity.CRITICAL and "3 processes began to settle" in finding.what
    assert [each.check for each in table.doctor().findings if each.check == "settle"] == ["settle"]
    assert internals_of(table).sampler().sample().is_settle_parked
    apply(table, 3)  # ingest goes on, and so do reads
    assert table.to_arrow().column("v").to_pylist() == [3] * 20 and before.column("v").to_pylist() == [2] * 20
    assert table.maintenance.resume() and not table.maintenance.resume()
    end = worker(table, "none")
    assert end.returncode == 0 and deadly in end.stdout, end.stderr
    domains = log_of(table).refresh().domains
    assert not tail_of(table) and SETTLING not in domains
    assert table.to_arrow().column("v").to_pylist() == [3] * 20
    assert not [each for each in table.status().findings if each.check == "settle"]


def test_a_tail_that_comes_while_a_process_maintains_the_table_costs_no_commit_more(table: lakebed.Table) -> None:
    table.settle()
    duties, log = internals_of(table).duties(), log_of(table)
    for value in range(3):
        apply(table, value)
        version = log.refresh().version
        duties.step()
        assert log.refresh().version == version + 1 and not tail_of(table)


def test_a_tail_that_is_found_costs_one_commit_more_and_only_once(table: lakebed.Table) -> None:
    log = log_of(table)
    version = log.refresh().version
    duties = internals_of(table).duties()
    duties.step()
    assert log.refresh().version == version + 2 and SETTLING not in log.refresh().domains
    apply(table, 3)
    duties.step()
    assert log.refresh().version == version + 4


def test_a_process_that_saw_the_change_come_leaves_it_alone_once_three_others_were_killed(table: lakebed.Table) -> None:
    table.settle()
    duties = internals_of(table).duties()
    apply(table, 3)
    try_to_settle(log_of(table), "a", "b", "c")  # they stood by for it
    version = log_of(table).refresh().version
    duties.step()
    assert tail_of(table) and log_of(table).refresh().version == version
    resume_settle(log_of(table))
    duties.step()
    assert not tail_of(table)


def test_what_is_parked_is_shown_in_the_queue_and_is_no_work_of_a_fleet(table: lakebed.Table) -> None:
    clock = Clock(1_900_000_000.0)
    log = log_at(table, clock)
    assert try_to_settle(log, "a", "b", "c")
    assert not try_to_settle(log, "d"), "three were enough"
    assert [each.process for each in attempts_of(log.refresh()).attempts] == ["a", "b", "c"]
    snapshot, now_ms = log.refresh(), log.now_ms()
    parked = parked_settle(snapshot, now_ms)
    assert parked is not None and parked.not_before_ms == now_ms + PARKED_MS
    assert parked_settle(snapshot, now_ms, "a") is None, "it lives, and only two others were killed"
    work = work_of(snapshot, now_ms, StatisticsCache())
    assert not work.why and work.due_ms == parked.not_before_ms
    seen = surveyed(snapshot, now_ms, StatisticsCache())
    [task] = tasks_of([(Member("t", table.path, Glance(table.path)), seen)], {}, now_ms)
    assert (task.state, task.what, task.until_ms) == ("parked", "settle", parked.not_before_ms)
    assert "c: they were killed" in task.why and state_of(seen, now_ms) is TableState.FAILING
    assert state_of(seen, parked.not_before_ms) is not TableState.FAILING
    assert work_of(snapshot, parked.not_before_ms, StatisticsCache()).why


def test_no_process_stands_by_for_a_settle_that_kills(table: lakebed.Table) -> None:
    table.set_properties({"lakebed.freshness": "60 seconds"})
    clock = Clock(1_900_000_000.0)
    log = log_at(table, clock)
    due_ms = standby_due_ms(log.refresh(), 1, log.now_ms())
    assert due_ms is not None and due_ms < log.now_ms() + 60_000
    try_to_settle(log, "a", "b", "c")
    assert standby_due_ms(log.refresh(), 1, log.now_ms()) == log.now_ms() + PARKED_MS


def test_after_the_time_one_more_try_parks_for_twice_as_long_and_a_day_at_most(table: lakebed.Table) -> None:
    clock = Clock(1_900_000_000.0)
    log = log_at(table, clock)
    try_to_settle(log, "a", "b", "c")
    pauses = []
    for number in range(8):
        parked = parked_settle(log.refresh(), log.now_ms())
        assert parked is not None
        pauses.append(parked.not_before_ms - parked.since_ms)
        clock.now = parked.not_before_ms / 1000
        assert try_to_settle(log, str(number))
    assert pauses[:5] == [PARKED_MS << n for n in range(5)] and set(pauses[5:]) == {PARKED_MS_MAX}
    assert len(attempts_of(log.refresh()).attempts) <= 9, "the entry is bounded"


def test_processes_that_are_killed_once_a_day_park_nothing(table: lakebed.Table) -> None:
    clock = Clock(1_900_000_000.0)
    log = log_at(table, clock)
    for day in "abcd":
        assert try_to_settle(log, day)
        clock.now += DAY_MS / 1000
    assert parked_settle(log.refresh(), log.now_ms()) is None and len(attempts_of(log.refresh()).attempts) == 1


def test_a_process_that_fails_and_tries_again_counts_once_and_an_orderly_end_not_at_all(table: lakebed.Table) -> None:
    clock = Clock(1_900_000_000.0)
    log = log_at(table, clock)
    assert try_to_settle(log, "a", "a", "a", "a", "b")
    assert [each.process for each in attempts_of(log.refresh()).attempts] == ["a", "b"]
    end_attempt(log, "a")
    assert [each.process for each in attempts_of(log.refresh()).attempts] == ["b"]
    end_attempt(log, "b")
    assert SETTLING not in log.refresh().domains


def test_the_maintenance_that_ends_takes_back_what_it_tried(
    table: lakebed.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise Corrupt("a part can't be read")

    monkeypatch.setattr("lakebed.compaction.settle.resolve", broken)
    duties, log = internals_of(table).duties(), log_of(table)
    for _ in range(ATTEMPTS_MAX + 1):
        with pytest.raises(Corrupt):
            duties.step()
    assert len(attempts_of(log.refresh()).attempts) == 1, "it lives"
    duties.release(None)
    assert SETTLING not in log.refresh().domains


def test_a_process_that_was_only_slow_settles_and_ends_what_is_parked(table: lakebed.Table) -> None:
    log = log_of(table)
    try_to_settle(log, "a", "b", "c")
    assert parked_settle(log.refresh(), log.now_ms()) is not None
    table.settle()  # of a process that began before, or of a person who tries it
    assert SETTLING not in log.refresh().domains
    apply(table, 3)
    assert parked_settle(log.refresh(), log.now_ms()) is None


def test_attempts_do_not_count_for_changes_that_came_after_what_they_began_with(table: lakebed.Table) -> None:
    log = log_of(table)
    try_to_settle(log, "a", "b", "c")
    table.truncate()
    apply(table, 3)
    assert tail_of(table) and parked_settle(log.refresh(), log.now_ms()) is None


def test_the_settle_of_a_point_is_parked_too(table: lakebed.Table) -> None:
    log = log_of(table)
    try_to_settle(log, "a", "b", "c")
    duties = internals_of(table).duties()
    with pytest.raises(Retry, match="not settled now"):
        duties.settler.settle_to(log.refresh().version)
    duties.step()
    assert tail_of(table)
    resume_settle(log)
    assert duties.settler.settle_to(log.refresh().version) is not None and not tail_of(table)


def test_a_time_far_ahead_counts_as_over(table: lakebed.Table) -> None:
    clock = Clock(1_900_000_000.0)
    log = log_at(table, clock)
    try_to_settle(log, "a", "b", "c")
    now_ms = log.now_ms() - 2 * DAY_MS
    assert parked_settle(log.refresh(), now_ms) is None


def test_an_entry_that_cannot_be_read_parks_nothing(table: lakebed.Table) -> None:
    snapshot = log_of(table).refresh()
    broken = replace(snapshot, domains={**snapshot.domains, SETTLING: '{"attempts": 3}'})
    assert parked_settle(broken, 0) is None and not attempts_of(broken).attempts


def test_of_tables_that_others_tried_a_process_settles_one_at_a_time(
    table: lakebed.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, real = with_tail(tmp_path / "tables" / "other"), settle.resolve
    entered: list[bool] = []
    seen: list[list[str]] = []
    for each in (table, other):
        try_to_settle(log_of(each), "a")
    of_other = internals_of(other).duties()

    def resolve(*given: Any, **more: Any) -> Any:
        if not entered:
            entered.append(True)
            of_other.step()
            seen.append([each.process for each in attempts_of(log_of(other).refresh()).attempts])
        return real(*given, **more)

    monkeypatch.setattr(settle, "resolve", resolve)
    internals_of(table).duties().step()
    assert seen == [["a"]] and not tail_of(table) and tail_of(other)
    monkeypatch.setattr(settle, "resolve", real)
    of_other.step()
    assert not tail_of(other)
