"""What is called overdue is what running maintenance would have deleted: never a file of a table that is maintained."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path

import pytest

import lakebed
from lakebed.health.file_checks import look_for_orphans
from lakebed.operations.cleanup import BackgroundCleanup, overdue
from lakebed.storage.data_files import LocalPartStorage
from tests.clock import Clock
from tests.internals import log_of, storage_of
from tests.operations.test_cleanup import DAY, NOW, SCHEMA, at, put, rows_of, written_now
from tests.worlds import seeds

HOUR = DAY // 24


@pytest.fixture(autouse=True)
def store_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk's clock is no earlier than the table's, which these tests set."""
    monkeypatch.setattr(LocalPartStorage, "now", lambda self: 2 * NOW)


@pytest.mark.few(1)
@seeds(1, quick=0)
def test_nothing_is_overdue_in_a_table_that_is_maintained(seed: int, tmp_path: Path) -> None:
    rng, clock = random.Random(seed), Clock(NOW)
    table = at(lakebed.create(tmp_path / "t", SCHEMA, keys=["id"]), clock)
    tidy = BackgroundCleanup(log_of(table), storage_of(table), clock)
    left: list[Path] = []
    pause = 0
    for hour in range(0, 45 * 24, 2):
        clock.now += 2 * HOUR
        if pause <= 0 and rng.random() < 0.2:
            table.apply(rows_of(hour))
            table.settle()
            written_now(table)
            pause = rng.choice([0, 0, 10, 24, 9 * 24])  # hours without a commit, sometimes longer than the retention
        pause -= 2
        if hour < 25 * 24 and rng.random() < 0.05:
            left.append(put(table, f"_lakebed/orphan-{hour}.parquet", age=timedelta(hours=rng.choice([0, 30]))))
        if hour % 6 == 0:
            assert overdue(log_of(table), storage_of(table)) == [], f"hour {hour}"
        tidy.run_once()
    assert left and not any(file.exists() for file in left), "there was something to delete"


def test_what_nobody_deletes_is_reported_later_than_maintenance_would_delete_it(tmp_path: Path) -> None:
    clock = Clock(NOW)
    table = at(lakebed.create(tmp_path / "t", SCHEMA, keys=["id"]), clock)
    file = put(table, "_lakebed/orphan.parquet", age=timedelta())
    told = []
    for day in range(1, 15):
        clock.now += DAY
        table.apply(rows_of(day))
        written_now(table)
        if list(look_for_orphans(log_of(table), storage_of(table), table.path)):
            told.append(day)
    assert told == [13, 14], (
        "after retention of 7 days, 3 for writing, and one from a listing to the next, each rounded up"
    )
    [finding] = look_for_orphans(log_of(table), storage_of(table), table.path)
    assert finding.where == "_lakebed/orphan.parquet"
    assert "maintenance would have deleted it by now: 1 bytes" in finding.what
    table.maintenance.remove_orphan_files(dry_run=False)
    assert not file.exists()
    assert list(look_for_orphans(log_of(table), storage_of(table), table.path)) == []


def test_an_orphan_of_a_quiet_table_is_reported_too(tmp_path: Path) -> None:
    clock = Clock(NOW)
    table = at(lakebed.create(tmp_path / "t", SCHEMA, keys=["id"]), clock)
    table.apply(rows_of(1))
    put(table, "_lakebed/orphan.parquet", age=timedelta())
    clock.now += 30 * DAY
    assert [file.path for file in overdue(log_of(table), storage_of(table))] == ["_lakebed/orphan.parquet"]
