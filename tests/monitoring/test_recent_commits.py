"""The last hour of a log, read a little at a time."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.health.sampler import reference_amplification
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.monitoring.table_state import WINDOW_SECONDS, RecentCommits, operation_label
from tests.internals import log_of

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


def with_batches(tmp_path: Path, batches: int) -> lakebed.Table:
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])
    for number in range(batches):
        table.apply(pa.table({"id": [number]}, SCHEMA))
    return table


def reader(table: lakebed.Table, seconds_from_now: float = 0) -> RecentCommits:
    return RecentCommits(TableLog(open_store(table.path)), lambda: time.time() + seconds_from_now)


def test_older_commits_are_read_little_by_little(tmp_path: Path) -> None:
    table = with_batches(tmp_path, 20)
    commits = reader(table)
    looks = [commits.read(20, 0.0)]
    assert (looks[0].ingested_rows, looks[0].seconds < 60) == (1, True), "the newest at once"
    while looks[-1].seconds < WINDOW_SECONDS:
        looks.append(commits.read(20, 0.0005))
        assert len(looks) < 500
    assert looks[-1].ingested_rows == 20
    assert looks[-1].commits == {"create_table": 1, "apply": 20}


def test_new_commits_are_read_at_once(tmp_path: Path) -> None:
    table = with_batches(tmp_path, 3)
    commits = reader(table)
    assert commits.read(3, 1.0).ingested_rows == 3
    table.apply(pa.table({"id": [7, 8]}, SCHEMA))
    table.settle()
    found = commits.read(5, 0.0)
    assert (found.ingested_rows, found.batches, found.commits["settle"]) == (5, 4, 1)


def test_what_is_over_an_hour_old_is_taken_off_again(tmp_path: Path) -> None:
    began = time.time()
    table = with_batches(tmp_path, 3)
    late = 0.0
    commits = RecentCommits(TableLog(open_store(table.path)), lambda: time.time() + late)
    came = commits.read(3, 1.0)
    assert came.ingested_at is not None and came.write_amplification == 1
    late = WINDOW_SECONDS + 60
    gone = commits.read(3, 1.0)
    assert (gone.ingested_rows, gone.ingested_bytes, gone.batches, gone.write_amplification) == (0, 0, 0, None)
    assert gone.ingested_at is not None
    assert began + 60 <= gone.ingested_at <= time.time() + 60, "an hour ago, seen from then"


def test_what_is_kept_does_not_grow_with_the_commits(tmp_path: Path) -> None:
    commits = reader(with_batches(tmp_path, 60))
    assert commits.read(60, 1.0).batches == 60
    assert len(commits._steps) <= 3, "they came within seconds"


def test_a_log_that_has_rested_for_long_is_known_at_once(tmp_path: Path) -> None:
    found = reader(with_batches(tmp_path, 3), seconds_from_now=2 * WINDOW_SECONDS).read(3, 1.0)
    assert found.seconds == WINDOW_SECONDS
    assert (found.ingested_rows, found.commits.get("apply", 0)) == (0, 0)


def test_commits_that_the_log_has_no_more_end_the_look_back(tmp_path: Path) -> None:
    table = with_batches(tmp_path, 6)
    for version in range(3):
        Path(table.path, "_delta_log", f"{version:020}.json").unlink()
    found = reader(table).read(6, 1.0)
    assert (found.seconds, found.ingested_rows) == (WINDOW_SECONDS, 4)


def test_operations_of_others_are_one_label() -> None:
    assert operation_label("STREAMING UPDATE") == "streaming_update"
    assert operation_label("something of yours") == operation_label("") == "other"


@pytest.mark.parametrize(
    ("batches", "held", "budget", "least"), [(1, 0, 8, 1.0), (4, 0, 1, 1 + 9 / 4), (10**9, 10**9, 8, None)]
)
def test_the_least_amplification_is_that_of_the_optimum(
    batches: int, held: int, budget: int, least: float | None
) -> None:
    found = reference_amplification(batches, held, budget)
    assert found == least if least else 1 < found < 20
    assert reference_amplification(50, 100, 8) > reference_amplification(50, 0, 8), "a larger table costs more"


@pytest.mark.parametrize("keys", [["id"], []])
def test_a_mutation_writes_and_brings_nothing_in(tmp_path: Path, keys: list[str]) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=keys)
    table.apply(pa.table({"id": range(5000)}, SCHEMA))
    came = log_of(table).refresh()
    parts = [*came.parts.values(), *came.tail.values()]
    result = table.delete("id % 3 = 0")
    found = reader(table).read(table.version, 1.0)
    assert (found.ingested_rows, found.batches) == (5000, 1)
    assert found.ingested_bytes == sum(part.bytes for part in parts)
    assert found.written_bytes["mutation"] == result.bytes_written > 0
