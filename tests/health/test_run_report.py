"""What a run says of itself beside its database, and what ``lakebed status`` of another process makes of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest

import lakebed
from lakebed.cli import main
from lakebed.errors import StoreUnavailable
from lakebed.health import run_report
from lakebed.health.run_report import Reporter, RunReport, Waiting, reports_of, run_findings, waiting_of
from lakebed.manifest.stores import MemoryLogStore, open_store
from lakebed.parts.quarantine import QUARANTINE_SUFFIX

KAFKA = "kafka at broker:9092 did not answer: timed out"
SICK = Waiting(name="shop.public.sick", state="new", error="no column can be made of it")


class Clock:
    """A clock that a test sets."""

    seconds = 1_000_000.0

    def __call__(self) -> float:
        return self.seconds


class CountingStore(MemoryLogStore):
    """A store that counts what is put, or has no room for it."""

    puts = 0
    is_full = False

    def put(self, name: str, data: bytes) -> None:
        if self.is_full:
            raise StoreUnavailable("no space left on device")
        self.puts += 1
        super().put(name, data)


class World(NamedTuple):
    """A store, and the time there."""

    store: CountingStore
    clock: Clock

    def reporter(self, host: str, *roles: str) -> Reporter:
        return Reporter(self.store, RunReport(host=host, pid=1, roles=roles or ("ingest", "maintain")), self.clock)

    def told(self) -> list[str]:
        reports, now_ms = reports_of(self.store), int(self.clock() * 1000)
        return [finding.what for finding in run_findings(reports, "lake", now_ms)]


@pytest.fixture
def world() -> World:
    return World(CountingStore(), Clock())


def test_a_state_is_written_when_it_changes_and_else_once_a_minute(world: World) -> None:
    run = world.reporter("a")
    for _ in range(130):
        run.say("running", [])
        world.clock.seconds += 1
    assert world.store.puts == 3
    run.say("trying again", [KAFKA])
    assert world.store.puts == 4
    [told] = world.told()
    assert KAFKA in told and "the pipeline on a (process 1) can't go on since 1970-01-12" in told
    world.clock.seconds += 2
    run.say("running", [], [SICK])
    assert world.told() == [] and waiting_of(reports_of(world.store), int(world.clock() * 1000)) == {SICK.name: SICK}
    run.remove()
    assert reports_of(world.store) == []


def test_a_run_that_was_killed_or_has_no_room_is_silent_until_another_does_its_work(world: World) -> None:
    world.reporter("a").say("running", [], [SICK])
    world.store.is_full = True
    world.clock.seconds += run_report.SILENT_SECONDS + 1
    world.reporter("b").say("running", [])
    [told] = world.told()
    assert "the pipeline on a (process 1) has said nothing since" in told
    assert waiting_of(reports_of(world.store), int(world.clock() * 1000)) == {}, "nobody knows that now"
    world.store.is_full = False
    world.reporter("c", "maintain").say("running", [])
    assert len(world.told()) == 1, "it does not ingest"
    world.reporter("d").say("running", [])
    assert world.told() == [] and {one.host for one in reports_of(world.store)} == {"c", "d"}


def test_a_run_that_failed_says_why_until_the_next_one(world: World) -> None:
    run = world.reporter("a")
    run.say("running", [])
    run.say("failed", ["records are lost"])
    [told] = world.told()
    assert "failed at" in told and "records are lost" in told
    world.reporter("a").say("running", [])
    assert world.told() == []


def test_what_is_no_report_is_left_alone(world: World) -> None:
    for name, data in (("x.json", b"{"), ("y.json", b"[]"), ("z.json", b'{"tables": [], "later": 1}')):
        world.store.put(f"{run_report.RUNS_FOLDER}/{name}", data)
    assert reports_of(world.store) == []


# -- lakebed status ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Path]:
    """A database with two tables."""
    for name in ("orders", "items"):
        lakebed.create(tmp_path / "public" / name, pa.schema([("id", pa.int64())]))
    yield tmp_path


def status(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[dict[str, object]], str]:
    """The exit code, the lines for programs, and the text for people."""
    code = main(["status", str(path), "--format", "json"])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert main(["status", str(path)]) == code
    return code, found, capsys.readouterr().out


def test_status_of_a_database_shows_what_its_pipeline_waits_for(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(shop, capsys)[0] == 0
    run = Reporter(open_store(shop), RunReport(host="a", pid=1, roles=("ingest",)))
    late = Waiting(name="public.items", state="waiting", error="a bad table")
    run.say("trying again", [KAFKA], [SICK, late])
    code, found, text = status(shop, capsys)
    assert code == 1 and KAFKA in text and SICK.error in text
    assert [(one["table"], one["state"], one["error"]) for one in found if "table" in one] == [
        ("public.items", "waiting", "a bad table"),
        (SICK.name, "new", SICK.error),
        ("public.orders", "live", None),
    ]
    assert KAFKA in str(found[-1]["what"]) and found[-1]["severity"] == "critical"
    run.remove()
    assert status(shop, capsys)[0] == 0


def test_status_of_a_database_shows_quarantines_and_its_exit_code_says_so(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    beside = lakebed.create(f"{shop}/public/orders{QUARANTINE_SUFFIX}", pa.schema([("reason", pa.string())]))
    beside.apply([{"reason": "no JSON"}] * 18)
    code, [worst, other], text = status(shop, capsys)
    assert (code, worst["table"], worst["state"], worst["quarantined"]) == (1, "public.orders", "warning", 18)
    assert other["quarantined"] == 0 and "18 records are in the quarantine" in text


@pytest.mark.parametrize("place", [".", "public/orders"])
def test_status_shows_a_full_disk(
    shop: Path, place: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(shop)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert main(["status", str(shop / place)]) == 1
    assert "is full: 0 MB are free" in capsys.readouterr().out


def test_status_of_a_table_shows_what_its_pipeline_waits_for(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = shop / "public/orders"
    Reporter(open_store(table), RunReport(host="a", pid=1, roles=("ingest",))).say("trying again", [KAFKA])
    assert main(["status", str(table)]) == 1
    assert KAFKA in capsys.readouterr().out
