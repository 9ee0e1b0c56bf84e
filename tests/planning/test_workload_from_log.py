"""A table's own log as a workload of the simulator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.cli import main
from lakebed.errors import InvalidInput
from lakebed.parts.changes import OP_COLUMN
from lakebed.planning.simulator import simulate
from lakebed.planning.workload import Arrival
from lakebed.planning.workload_from_log import recorded_workload
from tests.clock import Clock
from tests.internals import log_of

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string())])
HOUR, DAY = 3600, 86_400
MIDNIGHT = 4_000_060_800.0


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def clock() -> Clock:
    return Clock(MIDNIGHT)


def make(folder: Path, clock: Clock, **options: Any) -> lakebed.Table:
    table = lakebed.create(folder / "t", SCHEMA, **options)
    log_of(table).clock = clock
    return table


def rows(ids: range, deleted: int = 0, keyed: bool = True) -> pa.Table:
    """Changes, the first so many of them deletes."""
    table = pa.table({"id": ids, "region": ["eu", "us"] * (len(ids) // 2)}, SCHEMA)
    if not keyed:
        return table
    return table.append_column(OP_COLUMN, pa.array(["d"] * deleted + ["u"] * (len(ids) - deleted)))


def test_arrivals_tell_when_how_much_and_how_much_of_it_was_there(tmp_path: Path, clock: Clock) -> None:
    table = make(tmp_path, clock, keys=["id"])
    table.apply(rows(range(100)))
    table.settle()
    clock.now += 30 * HOUR
    table.apply(rows(range(80, 120), deleted=10))
    table.settle()
    clock.now += HOUR
    table.apply(rows(range(100, 150)))
    parts = log_of(table).refresh().parts.values()
    [first, second] = sorted(parts, key=lambda part: part.min_block)
    [tail] = log_of(table).refresh().tail.values()

    workload = recorded_workload(log_of(table), 1.0, "random")
    assert workload.arrivals == [
        Arrival(at_ms=6 * HOUR * 1000, rows=40, bytes=second.bytes, deletes=10, replaces=20),
        Arrival(at_ms=7 * HOUR * 1000, rows=50, bytes=tail.bytes, deletes=0, replaces=None),
    ]
    assert workload.base == Arrival(at_ms=0, rows=100, bytes=first.bytes), (
        "what was there a day before the newest commit"
    )
    assert workload.update_share == pytest.approx(20 / 40), "for what is not settled yet"
    assert (workload.order, workload.partitions) == ("random", 1)
    simulation = simulate(workload, log_of(table).refresh().settings)
    assert simulation.flushes == 2 and simulation.samples[-1].ingested_bytes == second.bytes + tail.bytes


def test_without_keys_rows_come_to_stay_until_a_mutation(tmp_path: Path, clock: Clock) -> None:
    table = make(tmp_path, clock, partition_by=["region"])
    table.apply(rows(range(10), keyed=False))
    clock.now += HOUR
    table.delete("id < 3")
    table.update({"id": "id + 100"}, "id = 5")
    arrivals = recorded_workload(log_of(table), 2.0, "ascending")
    assert [(each.rows, each.deletes, each.replaces) for each in arrivals.arrivals] == [
        (10, 0, 0),
        (0, 0, 3),
        (1, 0, 1),
    ]
    assert simulate(arrivals, log_of(table).refresh().settings).samples[-1].live_bytes == pytest.approx(
        sum(each.bytes for each in arrivals.arrivals) * 7 / 11, rel=0.2
    )
    assert arrivals.order == "none"
    assert arrivals.partitions == 2


def test_what_compaction_did_is_no_arrival(tmp_path: Path, clock: Clock) -> None:
    table = make(tmp_path, clock, keys=["id"], properties={"lakebed.read_budget": "1"})
    for _ in range(4):
        clock.now += HOUR
        table.apply(rows(range(100)))
        table.settle()
    table.maintenance.compact()
    table.truncate()
    workload = recorded_workload(log_of(table), 1.0, "random")
    assert [each.rows for each in workload.arrivals] == [100] * 4
    assert [each.replaces for each in workload.arrivals] == [0, 100, 100, 100]


def test_a_log_without_arrivals_is_refused(tmp_path: Path, clock: Clock) -> None:
    table = make(tmp_path, clock, keys=["id"])
    with pytest.raises(InvalidInput, match="no rows that came in its last 1 days"):
        recorded_workload(log_of(table), 1.0, "random")


def test_the_command_runs_a_table_s_own_day_under_other_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"], properties={"lakebed.read_budget": "3"})
    for start in range(12):
        table.apply(rows(range(start, start + 100)))
    figures = []
    for more in ([], ["--read-budget", "6"]):
        assert main(["simulate", "--from", table.path, "--format", "json", *more]) == 0
        figures.append(json.loads(capsys.readouterr().out))
    assert [each["flushes"] for each in figures] == [12, 12]
    assert figures[0]["depth_max"] <= 3 < figures[1]["depth_max"] <= 6
    assert figures[0]["merged_bytes"] > figures[1]["merged_bytes"]
    assert main(["simulate", "--from", table.path, "--rate", "5"]) == 2
    assert "--rate can't be given with --from, which takes it from the table" in capsys.readouterr().err
    assert main(["simulate", "--from", str(tmp_path / "nothing")]) != 0
