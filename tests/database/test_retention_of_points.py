"""A cleanup of a table leaves what the kept points of its database need, however short its own retention is."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

import lakebed
from lakebed.errors import VersionNotFound
from lakebed.log.holds import trim_log_before
from lakebed.positions.point_log import PointLog, Settled
from lakebed.table import internals_of
from tests.database.bank import TOTAL, Bank, Copy
from tests.database.test_bank import seen_in


def taken(copy: Copy, count: int) -> list[tuple[int, int]]:
    """So many points, each with the transfers that it must have; tables are settled and merged between them."""
    points = []
    for number in range(count):
        copy.bank.transfer()
        point = copy.batch()
        assert point is not None
        points.append((point.number, copy.bank.transfers))
        if number % 3 == 2:
            for table in copy.tables.values():
                table.settle()
                table.maintenance.compact()
    return points


def cleaned(copy: Copy) -> int:
    """Delete all that the tables need not keep for themselves, as if no version was young; returns how many files went."""
    deleted = 0
    for table in copy.tables.values():
        table.set_properties({"lakebed.log_retention": "0 seconds"})
        now = {"older_than": "0 seconds", "dry_run": False, "allow_short_retention": True}
        deleted += len(table.maintenance.expire_snapshots(**now)) + table.maintenance.clean_log()
        internals = internals_of(table)
        deleted += internals.tidy_up.run_once()
    return deleted


def readable(copy: Copy, points: list[tuple[int, int]]) -> list[bool]:
    """Of each point, whether it can be read; if so, it must have all money and transfers."""
    warehouse, found = lakebed.warehouse(copy.path), []
    for number, transfers in points:
        try:
            found.append(seen_in(warehouse.at(number)) == (TOTAL, transfers))
            assert found[-1], number
        except VersionNotFound:
            found.append(False)
    return found


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path / "bank", Bank(random.Random(1)))


@pytest.mark.slow
def test_every_kept_point_can_be_read_after_each_cleanup(copy: Copy) -> None:
    points = taken(copy, 7)
    for _ in range(2):
        cleaned(copy)
        assert all(readable(copy, points))
        points += taken(copy, 2)
    log = PointLog.of(copy.path).log
    log.write_checkpoint(log.at_version(6))
    assert trim_log_before(log, 6)
    kept = [point for point in points if point[0] >= PointLog(log).at(points[5][0]).number]
    assert cleaned(copy) > 0, "what no kept point needs goes"
    assert all(readable(copy, kept)) and len(kept) == len(points) - 5
    with pytest.raises(VersionNotFound):
        lakebed.warehouse(copy.path).at(points[0][0])


def test_without_it_points_can_not_be_read(copy: Copy) -> None:
    points = taken(copy, 7)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("lakebed.operations.cleanup.oldest_for_points", lambda log, newest, version: version)
        cleaned(copy)
    assert readable(copy, points) == [False] * 6 + [True]


def test_a_table_that_has_read_nothing_for_long_keeps_one_of_its_versions_alone(copy: Copy) -> None:
    points = taken(copy, 3)
    log = PointLog.of(copy.path)
    newest = log.at()
    for number in range(1, 5):  # transactions that changed none of these tables
        points.append((log.take(replace(newest, number=newest.number + number)).number, copy.bank.transfers))
    for table in copy.tables.values():
        for budget in "34343434":
            table.set_properties({"lakebed.read_budget": budget})
    log.log.write_checkpoint(log.log.at_version(5))
    assert trim_log_before(log.log, 5)
    cleaned(copy)
    for name, at in log.at(points[4][0]).tables.items():
        assert internals_of(copy.tables[f"bank.{name}"]).log.oldest_version() > at.version
    assert readable(copy, points[4:]) == [True] * 3


def test_versions_of_settled_points_stay_for_other_readers(copy: Copy) -> None:
    [(number, _)] = taken(copy, 1)
    versions = {}
    for topic, table in copy.tables.items():
        table.settle()
        versions[topic.removeprefix("bank.")] = internals_of(table).log.refresh().version
    PointLog.of(copy.path).settle(Settled(number=number, versions=versions))
    log = PointLog.of(copy.path).log
    log.write_checkpoint(log.refresh())
    taken(copy, 6)
    trim_log_before(log, 2)
    assert log.oldest_version() == 2
    cleaned(copy)
    for topic, table in copy.tables.items():
        found = DeltaTable(table.path, version=versions[topic.removeprefix("bank.")])
        rows = QueryBuilder().register("t", found).execute("select * from t").read_all()
        assert len(pa.table(rows)) > 0
