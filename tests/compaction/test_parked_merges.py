"""Merges that keep failing are parked in the table's log: every process leaves them alone until it is time, or until resumed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed import events
from lakebed.compaction.compaction import LocalKernel
from lakebed.compaction.merge import Merger
from lakebed.compaction.merge_runner import BACKOFF_SECONDS_MAX, FAILURES_MAX, MergeRunner
from lakebed.coordination.failing import PARKED_MS, PARKED_MS_MAX, failing_of, has_gone, park_merge, resume_merges
from lakebed.errors import Contention, Corrupt, LakebedError, StoreUnavailable, Unexpected
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.merge.kernel import MergedPart, MergeSource
from lakebed.monitoring.event_log import level_of
from tests.clock import Clock
from tests.internals import deletion_vectors_of, log_of, storage_of

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> lakebed.Table:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    return five_parts(tmp_path / "t")


def five_parts(folder: Path) -> lakebed.Table:
    """A table with parts over the same keys, so that a merge is planned."""
    made = lakebed.create(folder, SCHEMA, keys=["id"], properties={"lakebed.read_budget": "2"})
    for batch in range(5):
        made.apply(pa.table({"id": list(range(batch, 100, 7)), "v": [batch] * len(range(batch, 100, 7))}, SCHEMA))
        made.settle()
    return made


UNMERGEABLE = Unexpected("a value can't be sorted")
FULL = StoreUnavailable("no space left on device")


@dataclass
class Fails:
    """Merges fail: all, or those of one part. ``error``: None if none fails."""

    kernel: LocalKernel
    error: LakebedError | None
    only: str | None = None

    def merge(self, sources: Sequence[MergeSource], *given: Any) -> list[MergedPart]:
        if self.error is not None and (self.only is None or self.only in [source.part.path for source in sources]):
            raise self.error
        return self.kernel.merge(sources, *given)


class Process:
    """One process that maintains the table, with a clock that the test moves."""

    def __init__(
        self, table: lakebed.Table, clock: Clock, fails: bool = False, error: LakebedError = UNMERGEABLE
    ) -> None:
        self.clock = clock
        self.log = TableLog(open_store(table.path), clock)
        clock.now = clock.now or self.log.refresh().timestamp_ms / 1000 + 1
        storage = storage_of(table)
        merger = Merger(self.log, storage, deletion_vectors_of(table), "r", clock)
        self.kernel = Fails(LocalKernel(storage, self.log.refresh), error if fails else None)
        self.merge_runner = MergeRunner(table.path, self.log, merger, self.kernel, clock=clock)

    def try_for(self, seconds: int = 600) -> int:
        """How often merges fail within so many seconds."""
        attempts, ends = 0, self.clock.now + seconds
        while self.clock.now < ends:
            if job := self.merge_runner.next_plan():
                with suppress(LakebedError):
                    self.merge_runner.run(*job)
                    attempts -= 1
                attempts += 1
            self.clock.now += 1
        return attempts


def test_a_merge_that_failed_here_is_left_alone_by_another_process_and_by_one_that_starts_anew(
    table: lakebed.Table,
) -> None:
    clock = Clock(0.0)
    first = Process(table, clock, fails=True)
    assert first.try_for() == FAILURES_MAX
    [failing] = failing_of(first.log.refresh()).values()
    assert set(failing.sources) == first.merge_runner.parked() and UNMERGEABLE.args[0] in failing.error
    other = Process(table, clock)
    assert other.merge_runner.next_plan() is None and other.merge_runner.parked() == set(failing.sources)


@pytest.mark.parametrize(
    "error", [FULL, StoreUnavailable("the store did not answer"), Contention("others were faster")]
)
def test_what_no_part_has_caused_parks_nothing_however_long_it_lasts(
    table: lakebed.Table, error: LakebedError, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[events.Event] = []
    process = Process(table, Clock(0.0), fails=True, error=error)
    end = events.listen(told.append)
    tries = process.try_for(7200)
    end()
    assert 120 <= tries <= 130, "once a minute"
    assert not failing_of(process.log.refresh()) and not process.merge_runner.parked()
    assert process.merge_runner.trouble is error
    assert [line.levelname for line in caplog.records if str(error) in line.getMessage()].count("WARNING") == 1
    assert {level_of(each) for each in told if isinstance(each, events.MergeFailed)} == {logging.DEBUG}

    process.kernel.error = None
    process.clock.now += BACKOFF_SECONDS_MAX
    assert process.merge_runner.run_until_idle(), "the store is back"
    assert process.merge_runner.trouble is None


@pytest.mark.slow
def test_a_merge_too_large_for_the_disk_lets_others_go_first_and_waits_longer_but_is_not_parked(
    table: lakebed.Table, caplog: pytest.LogCaptureFixture
) -> None:
    process = Process(table, Clock(0.0), fails=True, error=FULL)
    large = process.kernel.only = next(iter(process.log.refresh().parts))
    tries = []
    for minute in range(12):
        numbers = [1000 * (1 + minute) + each for each in range(1000)]
        for ids in (numbers[::2], numbers[1::2], numbers[::3]):
            table.apply(pa.table({"id": ids, "v": [minute] * len(ids)}, SCHEMA))
            table.settle()
        tries.append(process.try_for(60))
    assert large in process.log.refresh().parts and not failing_of(process.log.refresh())
    assert tries[0] > 1 and sum(tries[-4:]) <= 1, "in the end once in ten minutes"
    assert process.merge_runner.trouble is FULL and len(caplog.records) == 1


def test_what_waited_for_a_disk_and_was_merged_elsewhere_waits_no_more(table: lakebed.Table) -> None:
    process = Process(table, Clock(0.0), fails=True, error=FULL)
    assert process.try_for(60) and process.merge_runner.trouble is FULL
    table.maintenance.compact()
    process.try_for(60)
    assert process.merge_runner.trouble is None


def test_while_the_disk_is_full_new_parts_are_no_reason_to_try_at_once(table: lakebed.Table) -> None:
    process, tries = Process(table, Clock(0.0), fails=True, error=FULL), 0
    for batch in range(30):
        table.apply(pa.table({"id": list(range(batch, 100, 3)), "v": [batch] * len(range(batch, 100, 3))}, SCHEMA))
        table.settle()
        tries += process.try_for(4)
    assert tries <= 6, "2, 4, 8, 16, 32 and 60 s lie between them"


def test_after_the_time_it_is_tried_once_and_parked_for_twice_as_long(table: lakebed.Table) -> None:
    clock = Clock(0.0)
    Process(table, clock, fails=True).try_for()
    pauses = []
    for _ in range(7):
        [failing] = failing_of(Process(table, clock).log.refresh()).values()
        pauses.append(failing.not_before_ms - failing.since_ms)
        clock.now = failing.not_before_ms / 1000 + 1
        assert Process(table, clock, fails=True).try_for(60) == 1
    assert pauses == [min(PARKED_MS * 2**round, PARKED_MS_MAX) for round in range(7)]


def test_resumed_it_is_merged_at_once_also_by_the_process_in_which_it_failed(table: lakebed.Table) -> None:
    clock = Clock(0.0)
    process = Process(table, clock, fails=True)
    process.try_for()
    assert table.maintenance.resume() and not table.maintenance.resume()
    assert process.merge_runner.next_plan() is not None
    assert table.maintenance.compact().merges == 1


def test_status_shows_a_parked_merge_and_the_command_resumes_it(
    table: lakebed.Table, capsys: pytest.CaptureFixture[str]
) -> None:
    from lakebed.cli.command_line import execute

    [first, *_] = log_of(table).refresh().parts
    park_merge(log_of(table), [first], Corrupt("the file is damaged", path=first), 1)
    [finding] = [each for each in table.status().findings if each.check == "failing"]
    assert first in finding.what and "the file is damaged" in finding.what and "lakebed resume" in finding.remedy
    assert execute(["resume", table.path]) == 0
    assert "1 parked merge is planned again" in capsys.readouterr().out
    assert not [each for each in table.status().findings if each.check == "failing"]


def test_two_processes_that_park_the_same_merge_write_one_entry(table: lakebed.Table) -> None:
    sources = list(log_of(table).refresh().parts)[:2]
    a, b = (TableLog(open_store(table.path)) for _ in range(2))
    a.refresh(), b.refresh()
    park_merge(a, sources, UNMERGEABLE, 4)
    version = a.refresh().version
    park_merge(b, sources, UNMERGEABLE, 4)
    assert b.refresh().version == version and len(failing_of(b.refresh())) == 1


def test_an_entry_whose_parts_are_gone_means_nothing_and_is_removed(table: lakebed.Table) -> None:
    log = log_of(table)
    sources = list(log.refresh().parts)
    park_merge(log, sources, UNMERGEABLE, 4)
    table.truncate()
    assert not failing_of(log.refresh()) and has_gone(log.refresh()) and resume_merges(log) == 0
    from lakebed.coordination.failing import forget_gone

    assert forget_gone(log) == 1 and not has_gone(log.refresh())


def test_a_time_that_a_wrong_clock_wrote_parks_nothing(table: lakebed.Table) -> None:
    log = log_of(table)
    failing = park_merge(log, list(log.refresh().parts)[:1], UNMERGEABLE, 4)
    assert failing is not None and failing.is_parked(log.now_ms())
    ahead = replace(failing, not_before_ms=log.now_ms() + 30 * 86_400_000)
    assert not ahead.is_parked(log.now_ms())


def test_parts_that_are_gone_are_not_parked(table: lakebed.Table) -> None:
    version = log_of(table).refresh().version
    assert park_merge(log_of(table), ["gone.parquet"], UNMERGEABLE, 4) is None
    assert log_of(table).refresh().version == version
