"""What a table needs now, and when it may need something without another commit."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

import lakebed
from lakebed.fleet.watched import clean_pause_seconds, work_of
from lakebed.log.claims import Claim
from lakebed.log.snapshot import Snapshot
from lakebed.sortkey.statistics_cache import StatisticsCache
from tests.fleet.test_worker import changes, tables_in
from tests.internals import log_of

DAY_SECONDS = 86_400.0


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> lakebed.Table:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    return tables_in(tmp_path, 1)[0]


def snapshot_of(table: lakebed.Table) -> Snapshot:
    return log_of(table).refresh()


def test_a_table_without_a_tail_and_without_plans_needs_nothing(table: lakebed.Table) -> None:
    found = work_of(snapshot_of(table), snapshot_of(table).timestamp_ms, StatisticsCache())
    assert not found.why and found.due_ms is None


@pytest.mark.parametrize(
    ("properties", "seconds"),
    [
        ({}, 120),
        ({"lakebed.freshness": "60 seconds"}, 30),
        ({"lakebed.settle_after_age": "90 seconds"}, 90),
        ({"lakebed.settle_after_age": "90 seconds", "lakebed.freshness": "10 seconds"}, 5),
    ],
)
def test_a_tail_that_waits_is_due_when_it_is_old_enough(
    table: lakebed.Table, properties: dict[str, str], seconds: int
) -> None:
    table.apply(changes(*range(5000)))
    table.settle()
    table.set_properties(properties)
    table.apply(changes(1, 4999))
    snapshot = snapshot_of(table)
    [part] = snapshot.tail.values()
    early = work_of(snapshot, part.modified_ms, StatisticsCache())
    if not early.why:  # else it is cheap enough to settle at once
        assert early.due_ms == part.modified_ms + 1000 * seconds
    assert work_of(snapshot, part.modified_ms + 1000 * seconds, StatisticsCache()).why


def test_a_tail_that_only_more_changes_make_due_rests(table: lakebed.Table) -> None:
    table.set_properties({"lakebed.settle_after_changes": "1000"})
    table.apply(changes(1))
    found = work_of(snapshot_of(table), snapshot_of(table).timestamp_ms + 10**9, StatisticsCache())
    assert not found.why and found.due_ms is None


def test_a_claim_of_another_is_left_alone_until_its_lease_has_ended(table: lakebed.Table) -> None:
    snapshot = snapshot_of(table)
    now_ms = snapshot.timestamp_ms
    claim = Claim(id="c", replica="r", sources=("gone",), level=1, lease_ms=now_ms + 60_000).to_action()
    claimed = replace(snapshot, domains={**snapshot.domains, claim.domain: claim.configuration})
    rests = work_of(claimed, now_ms, StatisticsCache())
    assert not rests.why and rests.due_ms == now_ms + 60_000
    assert "lease has ended" in work_of(claimed, now_ms + 10 * 60_000, StatisticsCache()).why


def test_a_table_is_cleaned_hourly_while_it_changes_daily_later_and_never_when_all_is_clean(
    table: lakebed.Table,
) -> None:
    snapshot = snapshot_of(table)
    assert clean_pause_seconds(snapshot, 0.0) == 3600.0
    assert clean_pause_seconds(snapshot, DAY_SECONDS) == DAY_SECONDS
    assert clean_pause_seconds(snapshot, 30 * DAY_SECONDS) == math.inf
