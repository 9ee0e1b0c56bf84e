"""Maintenance writes checkpoints beside settling: one of many parts takes seconds, and no change waits for it to be seen."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import checkpoint_name
from lakebed.table import internals, internals_of
from tests.internals import log_of


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> lakebed.Table:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    return lakebed.create(
        tmp_path / "t", pa.schema([("id", pa.int64())]), keys=["id"], properties={"lakebed.checkpoint_interval": "4"}
    )


def maintained(table: lakebed.Table, number: int) -> None:
    """A change, and the cycle of maintenance that settles it: two versions."""
    table.apply(pa.table({"id": [number]}))
    internals_of(table).step()
    assert not log_of(table).refresh().tail


def checkpoints(table: lakebed.Table) -> list[int]:
    return log_of(table).versions()[1]


def test_settling_goes_on_while_a_checkpoint_is_written(table: lakebed.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2):
        maintained(table, number)
    assert log_of(table).refresh().version == 4 and checkpoints(table) == [], "it is due, and settling left it"
    log, reached, may_go_on = log_of(table), threading.Event(), threading.Event()
    write = log.write_checkpoint

    def held(snapshot: Snapshot) -> None:
        reached.set()
        assert may_go_on.wait(60)
        write(snapshot)

    monkeypatch.setattr(log, "write_checkpoint", held)
    with ThreadPoolExecutor(2) as pool:
        beside = pool.submit(internals_of(table).checkpoint)
        assert reached.wait(60)
        pool.submit(maintained, table, 2).result(60)
        assert log.refresh().version == 6 and not beside.done()
        may_go_on.set()
        beside.result(60)
    assert checkpoints(table) == [4]
    assert log.store.read(checkpoint_name(4))


def test_settling_writes_the_checkpoint_if_nobody_did_for_twice_the_interval(table: lakebed.Table) -> None:
    for number in range(4):
        maintained(table, number)
    assert log_of(table).refresh().version == 8 and checkpoints(table) == [8]


def test_a_settle_by_call_writes_the_checkpoint_that_is_due(table: lakebed.Table) -> None:
    for number in range(2):
        table.apply(pa.table({"id": [number]}))
        table.settle()
    assert log_of(table).refresh().version == 4 and checkpoints(table) == [4]


def test_running_maintenance_looks_for_checkpoints_that_are_due(
    table: lakebed.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        maintained(table, number)
    monkeypatch.setattr(internals, "_CHECKPOINT_LOOK_SECONDS", 0.01)
    log, written = log_of(table), threading.Event()
    monkeypatch.setattr(log, "write_checkpoint", lambda snapshot: written.set())
    maintenance = internals_of(table).maintain()
    try:
        assert written.wait(60)
    finally:
        maintenance.stop()
