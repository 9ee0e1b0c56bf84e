"""A merge that kills its process, as one does for which memory is too small, is not tried without end."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import lakebed
from lakebed.compaction.compaction import LocalKernel
from lakebed.compaction.merge import LEASE_SECONDS, Merger
from lakebed.compaction.merge_runner import MergeRunner
from lakebed.compaction.merge_values import MergeOutcome, MergeResult
from lakebed.coordination.failing import (
    LOST_MAX,
    PARKED_MS,
    WORKER_LOST,
    Failing,
    failing_of,
    forget_gone,
    has_gone,
    lost_of,
)
from lakebed.errors import StoreUnavailable
from lakebed.log.claims import Claim, claims_of
from lakebed.log.entries import LOST
from lakebed.log.stores import LocalLogStore
from tests.clock import Clock
from tests.compaction.test_merge import kernel, merger, paths, volatile
from tests.compaction.test_parked_merges import five_parts
from tests.internals import deletion_vectors_of, log_of, storage_of
from tests.waiting import ran


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> lakebed.Table:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    return five_parts(tmp_path / "t")


def claimed(merger: Merger, sources: list[str]) -> Claim:
    found = merger.claim(sources, 1)
    assert not isinstance(found, MergeResult), found
    return found[0]


def lose(table: lakebed.Table, clock: Clock, sources: list[str], name: str) -> Claim:
    """A process claims the parts and is killed; another one notices that two leases later."""
    claim = claimed(merger(table, name, clock), sources)
    clock.now += 2 * LEASE_SECONDS + 1
    merger(table, "tidy", clock).tidy()
    assert not claims_of(log_of(table).refresh().domains)
    return claim


def parked(table: lakebed.Table, clock: Clock) -> dict[tuple[str, ...], Failing]:
    now_ms = int(clock.now * 1000)
    return {each.sources: each for each in failing_of(log_of(table).refresh()).values() if each.is_parked(now_ms)}


def worker(table: lakebed.Table, part: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.compaction.merge_until_killed", table.path, part, "0.5"]
    return ran(command)


@pytest.mark.long
@pytest.mark.slow
def test_a_part_whose_merge_kills_the_process_is_parked_after_three_and_the_rest_is_merged(
    table: lakebed.Table,
) -> None:
    parts = sorted(log_of(table).refresh().parts.values(), key=lambda part: part.min_block)
    deadly = parts[2].path  # whichever four of the five are planned, it is one of them
    before = table.to_arrow().sort_by("id")
    ends = [worker(table, deadly) for _ in range(LOST_MAX + 1)]
    assert [end.returncode for end in ends] == [-signal.SIGKILL] * LOST_MAX + [0], [end.stderr for end in ends]
    assert "idle" in ends[-1].stdout and deadly not in ends[-1].stdout
    snapshot = log_of(table).refresh()
    [failing] = failing_of(snapshot).values()
    assert deadly in failing.sources and failing.kind == WORKER_LOST and failing.failures == LOST_MAX
    assert failing.not_before_ms - failing.since_ms == PARKED_MS and not claims_of(snapshot.domains)
    [finding] = [each for each in table.status().findings if each.check == "failing"]
    assert f"failed {LOST_MAX} times" in finding.what and "they were killed" in finding.what
    assert table.maintenance.resume() and not [
        name for name in log_of(table).refresh().domains if name.startswith(LOST)
    ]
    assert worker(table, "none").returncode == 0
    snapshot = log_of(table).refresh()
    assert not failing_of(snapshot) and table.to_arrow().sort_by("id") == before


def test_whoever_takes_over_for_the_third_time_parks_the_part_and_merges_the_others(table: lakebed.Table) -> None:
    clock, (a, b, c, d, *_) = Clock(1_900_000_000.0), paths(table)
    lose(table, clock, [a, b], "first")
    claimed(merger(table, "second", clock), [b, c])
    clock.now += LEASE_SECONDS + 1
    third = claimed(merger(table, "third", clock), [b, d])
    assert [each.replica for each in lost_of(log_of(table).refresh(), int(clock.now * 1000)).values()] == [
        "first",
        "second",
    ]
    clock.now += LEASE_SECONDS + 1
    fourth = merger(table, "fourth", clock)
    found = fourth.claim([b, c, d], 1)
    assert isinstance(found, MergeResult) and found.outcome is MergeOutcome.PARKED
    assert list(parked(table, clock)) == [(b,)] and third.domain not in log_of(table).refresh().domains
    found = fourth.claim([b, c], 1)
    assert isinstance(found, MergeResult) and found.outcome is MergeOutcome.PARKED, "a plan from before it was parked"
    assert fourth.run([a, c, d], 1, kernel()).outcome is MergeOutcome.COMPLETED


def test_after_the_time_one_more_loss_parks_for_twice_as_long(table: lakebed.Table) -> None:
    clock, (a, b, c, *_) = Clock(1_900_000_000.0), paths(table)
    for name in ("1", "2", "3"):
        lose(table, clock, [a], name)
    clock.now += PARKED_MS / 1000
    assert not parked(table, clock)
    lose(table, clock, [a, b, c], "4")
    [(sources, failing)] = parked(table, clock).items()
    assert sources == (a,) and failing.not_before_ms - failing.since_ms == 2 * PARKED_MS
    assert failing.failures == LOST_MAX + 1


def test_losses_of_different_parts_and_of_other_days_park_nothing(table: lakebed.Table) -> None:
    clock, (a, b, c, d, *_) = Clock(1_900_000_000.0), paths(table)
    for name, sources in (("1", [a, b]), ("2", [c, d]), ("3", [a, c]), ("4", [b, d])):
        lose(table, clock, sources, name)
    assert not parked(table, clock)
    clock.now += 86_400
    lose(table, clock, [a], "5")
    assert not parked(table, clock)
    assert len([name for name in log_of(table).refresh().domains if name.startswith(LOST)]) == 1, "older ones are gone"


def test_a_completed_merge_ends_the_count(table: lakebed.Table) -> None:
    clock, (a, b, *_) = Clock(1_900_000_000.0), paths(table)
    for name in ("1", "2"):
        lose(table, clock, [a, b], name)
    assert merger(table, "whole", clock).run([a, b], 1, kernel()).outcome is MergeOutcome.COMPLETED
    log = log_of(table)
    assert not lost_of(log.refresh(), int(clock.now * 1000)) and has_gone(log.refresh())
    forget_gone(log)
    assert not has_gone(log.refresh()) and not [name for name in log.refresh().domains if name.startswith(LOST)]


@pytest.mark.parametrize("how", ["extends", "commits", "fails"])
def test_a_process_that_was_only_asleep_takes_its_loss_back_and_what_was_parked_for_it(
    table: lakebed.Table, how: str
) -> None:
    clock, (a, b, *_) = Clock(1_900_000_000.0), paths(table)
    for name in ("1", "2"):
        lose(table, clock, [a], name)
    asleep = merger(table, "asleep", clock)

    def sleep() -> None:
        [claim] = claims_of(log_of(table).refresh().domains).values()
        clock.now += 2 * LEASE_SECONDS + 1
        merger(table, "tidy", clock).tidy()
        assert list(parked(table, clock)) == [(a,)]
        if how == "extends":
            assert asleep.extend([claim]) == []
            assert not parked(table, clock)
        if how == "fails":
            raise ValueError("no memory")

    try:
        assert asleep.run([a, b], 1, kernel(after=sleep)).outcome is MergeOutcome.OVERTAKEN
    except ValueError:
        assert how == "fails"
    assert not parked(table, clock)
    assert len(lost_of(log_of(table).refresh(), int(clock.now * 1000))) == 2, "the others were killed"


@pytest.mark.parametrize("at", ["the merge", "the commit"])
def test_a_process_whose_store_does_not_answer_for_longer_than_its_lease_is_not_taken_for_killed(
    table: lakebed.Table, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, (a, b, *_) = Clock(1_900_000_000.0), paths(table)
    worker = merger(table, "worker", clock)
    monkeypatch.setattr(log_of(table), "sleep", lambda seconds: None)  # between its attempts
    for _ in range(2 * LOST_MAX):
        with monkeypatch.context() as outage:

            def silent(*_: object) -> bool:
                raise StoreUnavailable("the store did not answer")

            def begins() -> None:
                outage.setattr(LocalLogStore, "put_if_absent", silent)
                if at == "the merge":
                    silent()

            with pytest.raises(StoreUnavailable):
                worker.run([a, b], 1, kernel(after=begins))
        clock.now += 2 * LEASE_SECONDS + 1
        merger(table, "other", clock).tidy()
        assert worker.holds_unreleased()
        worker.tidy()
        assert not worker.holds_unreleased()
    snapshot = log_of(table).refresh()
    assert not parked(table, clock) and not lost_of(snapshot, int(clock.now * 1000)) and not claims_of(snapshot.domains)


def test_a_process_that_stops_on_purpose_loses_nothing(table: lakebed.Table) -> None:
    clock = Clock(1_900_000_000.0)
    stopping = merger(table, "stops", clock)
    result = stopping.run(paths(table)[:2], 1, kernel(after=stopping.close))
    assert result.outcome is MergeOutcome.OVERTAKEN
    assert not [name for name in log_of(table).refresh().domains if name.startswith((LOST, "lakebed.claim."))]


def test_a_replica_whose_merges_had_ended_loses_none_of_them(table: lakebed.Table) -> None:
    replica = volatile(table)
    a, b, *_ = paths(table)
    replica.run([a, b], 1, kernel())
    replica.extend()
    [claim] = claims_of(log_of(table).refresh().domains).values()
    assert claim.is_made
    replica.close()
    clock = Clock(1_900_000_000.0)
    clock.now = claim.lease_ms / 1000 + 3 * LEASE_SECONDS
    merger(table, "tidy", clock).tidy()
    domains = log_of(table).refresh().domains
    assert not claims_of(domains) and not [name for name in domains if name.startswith(LOST)]


def test_a_fleet_that_is_killed_twice_goes_on(table: lakebed.Table) -> None:
    clock = Clock(1_900_000_000.0)
    for name in ("monday", "tuesday"):
        lose(table, clock, paths(table), name)
    log, storage = log_of(table), storage_of(table)
    one = Merger(log, storage, deletion_vectors_of(table), "r", clock)
    results = MergeRunner(table.path, log, one, LocalKernel(storage, log.refresh), clock=clock).run_until_idle()
    assert [each for each in results if each.outcome is MergeOutcome.COMPLETED] and not parked(table, clock)
