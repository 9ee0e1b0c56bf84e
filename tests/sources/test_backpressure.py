"""Ingest slows down, gradually, when maintenance can't keep up, and never fails for that."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.compaction.merge import Merger
from lakebed.compaction.merge_values import MergeResult
from lakebed.planning import settling
from lakebed.planning.settling import DELAY_SECONDS_MAX, Pressure, pressure
from lakebed.sources.source import BatchLimit
from tests.internals import deletion_vectors_of, log_of, storage_of

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def table(tmp_path: Path) -> lakebed.Table:
    return lakebed.create(tmp_path / "table", SCHEMA, keys=["id"], properties={"lakebed.read_budget": "1"})


def add(table: lakebed.Table, batches: int) -> None:
    for _ in range(batches):
        table.apply(pa.table({"id": [table.version]}, SCHEMA))


def test_a_table_within_its_bounds_presses_nobody(table: lakebed.Table) -> None:
    add(table, 3)
    found = pressure(log_of(table).refresh())
    assert found == Pressure() and found.delay_seconds(60) == 0 and found.limit(1000) == 1000


def test_a_long_tail_slows_ingest_the_more_the_longer_it_is(
    table: lakebed.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "TAIL_PARTS_MAX", 4)
    add(table, 6)
    found = pressure(log_of(table).refresh())
    assert (found.reason, found.factor) == ("tail_parts", 1.5)
    assert found.delay_seconds(2.0) == 1.0 and found.limit(900) == 600
    add(table, 6)
    assert pressure(log_of(table).refresh()).factor == 3.0
    assert pressure(log_of(table).refresh()).delay_seconds(1e9) == DELAY_SECONDS_MAX
    table.settle()
    assert pressure(log_of(table).refresh()) == Pressure()


def test_too_many_small_parts_slow_ingest_until_they_are_merged(
    table: lakebed.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "SMALL_PARTS_PER_BUDGET", 5)
    for _ in range(10):
        add(table, 1)
        table.settle()
    assert pressure(log_of(table).refresh()) == Pressure(2.0, "level_0_parts")
    table.maintenance.compact()
    assert pressure(log_of(table).refresh()) == Pressure()


def test_small_parts_that_a_replica_works_on_slow_nobody(table: lakebed.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "SMALL_PARTS_PER_BUDGET", 5)
    for _ in range(10):
        add(table, 1)
        table.settle()
    merger = Merger(log_of(table), storage_of(table), deletion_vectors_of(table), "a replica")
    claimed = merger.claim(sorted(log_of(table).refresh().parts)[:6], level=1, volatile=True)
    assert not isinstance(claimed, MergeResult)
    assert pressure(log_of(table).refresh()) == Pressure(), "they stay in the log until their merge is uploaded"


def test_batches_become_smaller_than_they_were_without_pressure(
    table: lakebed.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "TAIL_PARTS_MAX", 4)
    limit = BatchLimit(table.path)
    assert limit.limit(1000) == 1000
    add(table, 8)
    assert limit.limit(5000) == 500 and limit.limit(300) == 300
    table.settle()
    assert limit.limit(5000) == 5000


def test_without_a_table_nothing_is_limited(tmp_path: Path) -> None:
    assert BatchLimit(None).limit(10**9) == 10**9
    assert BatchLimit(str(tmp_path / "not there yet")).limit(10**9) == 10**9
