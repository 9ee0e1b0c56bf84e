"""Merges that keep failing are parked in the table's log: every process leaves them alone until it is time, or until resumed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.compaction.compactor import FAILURES_MAX, Compactor
from lakebed.compaction.kernels import LocalKernel
from lakebed.compaction.merge import Merger
from lakebed.errors import Corrupt, StoreUnavailable
from lakebed.manifest.failing import PARKED_MS, PARKED_MS_MAX, failing_of, has_gone, park_merge, resume_merges
from lakebed.manifest.stores import open_store
from lakebed.manifest.table_log import TableLog
from tests.internals import deletion_vectors_of, log_of, storage_of

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


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


class Fails(LocalKernel):
    """A disk without room."""

    def merge(self, *given: object, **named: object) -> list:  # type: ignore[type-arg, override]
        raise StoreUnavailable("no space left on device")


class Process:
    """One process that maintains the table, with a clock that the test moves."""

    def __init__(self, table: lakebed.Table, clock: Clock, fails: bool = False) -> None:
        self.clock = clock
        self.log = TableLog(open_store(table.path), clock)
        clock.now = clock.now or self.log.refresh().timestamp_ms / 1000 + 1
        storage = storage_of(table)
        merger = Merger(self.log, storage, deletion_vectors_of(table), "r", clock)
        kernel = (Fails if fails else LocalKernel)(storage, self.log.refresh)
        self.compactor = Compactor(table.path, self.log, merger, kernel, clock=clock)

    def fail_until_parked(self, seconds: int = 600) -> int:
        attempts, ends = 0, self.clock.now + seconds
        while self.clock.now < ends:
            if job := self.compactor.next_plan():
                with pytest.raises(StoreUnavailable):
                    self.compactor.run(*job)
                attempts += 1
            self.clock.now += 1
        return attempts


def test_a_merge_that_failed_here_is_left_alone_by_another_process_and_by_one_that_starts_anew(
    table: lakebed.Table,
) -> None:
    clock = Clock()
    first = Process(table, clock, fails=True)
    assert first.fail_until_parked() == FAILURES_MAX
    [failing] = failing_of(first.log.refresh()).values()
    assert set(failing.sources) == first.compactor.parked() and "no space left" in failing.error
    other = Process(table, clock)
    assert other.compactor.next_plan() is None and other.compactor.parked() == set(failing.sources)


def test_while_the_disk_is_full_new_parts_are_no_reason_to_try_at_once(table: lakebed.Table) -> None:
    process, tries = Process(table, Clock(), fails=True), 0
    for batch in range(30):
        table.apply(pa.table({"id": list(range(batch, 100, 3)), "v": [batch] * len(range(batch, 100, 3))}, SCHEMA))
        table.settle()
        tries += process.fail_until_parked(4)
    assert tries <= 6, "2, 4, 8, 16, 32 and 60 s lie between them"


def test_after_the_time_it_is_tried_once_and_parked_for_twice_as_long(table: lakebed.Table) -> None:
    clock = Clock()
    Process(table, clock, fails=True).fail_until_parked()
    pauses = []
    for _ in range(7):
        [failing] = failing_of(Process(table, clock).log.refresh()).values()
        pauses.append(failing.not_before_ms - failing.since_ms)
        clock.now = failing.not_before_ms / 1000 + 1
        assert Process(table, clock, fails=True).fail_until_parked(60) == 1
    assert pauses == [min(PARKED_MS * 2**round, PARKED_MS_MAX) for round in range(7)]


def test_resumed_it_is_merged_at_once_also_by_the_process_in_which_it_failed(table: lakebed.Table) -> None:
    clock = Clock()
    process = Process(table, clock, fails=True)
    process.fail_until_parked()
    assert table.maintenance.resume() and not table.maintenance.resume()
    assert process.compactor.next_plan() is not None
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
    park_merge(a, sources, StoreUnavailable("x"), 4)
    version = a.refresh().version
    park_merge(b, sources, StoreUnavailable("y"), 4)
    assert b.refresh().version == version and len(failing_of(b.refresh())) == 1


def test_an_entry_whose_parts_are_gone_means_nothing_and_is_removed(table: lakebed.Table) -> None:
    log = log_of(table)
    sources = list(log.refresh().parts)
    park_merge(log, sources, StoreUnavailable("x"), 4)
    table.truncate()
    assert not failing_of(log.refresh()) and has_gone(log.refresh()) and resume_merges(log) == 0
    from lakebed.manifest.failing import forget_gone

    assert forget_gone(log) == 1 and not has_gone(log.refresh())


def test_a_time_that_a_wrong_clock_wrote_parks_nothing(table: lakebed.Table) -> None:
    log = log_of(table)
    failing = park_merge(log, list(log.refresh().parts)[:1], StoreUnavailable("x"), 4)
    assert failing is not None and failing.is_parked(log.now_ms())
    ahead = replace(failing, not_before_ms=log.now_ms() + 30 * 86_400_000)
    assert not ahead.is_parked(log.now_ms())


def test_parts_that_are_gone_are_not_parked(table: lakebed.Table) -> None:
    version = log_of(table).refresh().version
    assert park_merge(log_of(table), ["gone.parquet"], StoreUnavailable("x"), 4) is None
    assert log_of(table).refresh().version == version
