"""Comparisons that go on: when which table is next, where a comparison that was stopped goes on, and what is kept of each."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pyarrow as pa
import pytest

import lakebed
from lakebed.cli import main
from lakebed.discovery import tables_below
from lakebed.errors import StoreUnavailable
from lakebed.log.holds import held_versions, holds_of
from lakebed.log.table_log import TableLog
from lakebed.pipeline.database_section import Hours, hours_of
from lakebed.pipeline.settings import DatabasePipeline, load
from lakebed.positions.verified import Verified, comparison_of, note_verified, verified_of, verifying_of
from lakebed.verify import continuous, databases
from lakebed.verify.continuous import Continuous, Results, Schedule
from lakebed.verify.databases import Databases
from lakebed.verify.proof import DAYS_MAX, SAVE_SECONDS, Found, GoingOn, Proof
from lakebed.verify.report import Repaired, TableReport
from lakebed.verify.source import Pace
from tests.clock import Clock
from tests.internals import log_of
from tests.verify.memory import MemoryLake, MemorySource, World, shape

pytestmark = pytest.mark.usefixtures("own_cache")
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
FAST = Pace(float("inf"))
SHOP = "the database of a shop"


@pytest.fixture
def table(tmp_path: Path) -> lakebed.Table:
    return lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])


def world_of(keys: int) -> World:
    world = World(random.Random(1))
    for key in range(keys):
        world.write(key, f"value {key}")
    return world


class Cut(Exception):
    """The process that compares is stopped."""


def stopped_after(world: World, going_on: GoingOn, clock: Clock, tables: int) -> None:
    """A comparison that is stopped after some groups of buckets; each takes a minute."""
    taken = []

    def take(after: tuple[str, ...], found: Found) -> None:
        clock.now += SAVE_SECONDS
        going_on.take(after, found)
        taken.append(after)
        if len(taken) == tables:
            raise Cut

    proof = Proof(
        shape(), MemorySource(world), MemoryLake(world), FAST, bucket_rows=5, group_buckets=2, checkpoint=take
    )
    with pytest.raises(Cut):
        proof.run()


def test_a_comparison_that_was_stopped_goes_on_after_the_last_key_that_it_wrote_down(table: lakebed.Table) -> None:
    world, clock, log = world_of(100), Clock(), log_of(table)
    going_on = GoingOn(log, shape(), SHOP, clock=clock)
    assert going_on.begin(log.refresh()) == (None, None)
    stopped_after(world, going_on, clock, 3)
    after, found = GoingOn(log, shape(), SHOP, clock=clock).begin(log.refresh())
    assert after == ("29",) and found is not None and (found.rows.rows, found.buckets) == (30, 6)
    source = MemorySource(world)
    found = Proof(shape(), source, MemoryLake(world), FAST, bucket_rows=5, group_buckets=2).run(after, found)
    whole = Proof(shape(), MemorySource(world), MemoryLake(world), FAST, bucket_rows=5, group_buckets=2).run()
    assert (found.rows, found.buckets, found.differing) == (whole.rows, whole.buckets, {})


def test_a_comparison_begins_again_if_what_is_compared_has_changed_or_it_stopped_long_ago(
    table: lakebed.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, clock, log = world_of(100), Clock(), log_of(table)
    going_on = GoingOn(log, shape(), SHOP, clock=clock)
    going_on.begin(log.refresh())
    stopped_after(world, going_on, clock, 2)
    snapshot = log.refresh()
    assert GoingOn(log, shape(ordered=False), SHOP, clock=clock).begin(snapshot) == (None, None)
    assert GoingOn(log, shape(), "another shop", clock=clock).begin(snapshot) == (None, None)
    assert GoingOn(log, shape(), SHOP, is_on=False, clock=clock).begin(snapshot) == (None, None)
    assert GoingOn(log, shape(), SHOP, clock=clock).begin(snapshot)[0] == ("19",)
    later_ms = log.now_ms() + (DAYS_MAX + 1) * 86_400_000
    monkeypatch.setattr(TableLog, "now_ms", lambda log: later_ms)
    assert GoingOn(log, shape(), SHOP, clock=clock).begin(snapshot) == (None, None)


def test_a_comparison_begins_again_after_a_restore(table: lakebed.Table) -> None:
    world, clock, log = world_of(40), Clock(), log_of(table)
    table.apply([{"id": 1, "v": "a"}])
    before = table.version
    table.apply([{"id": 1, "v": "b"}])
    going_on = GoingOn(log, shape(), SHOP, clock=clock)
    going_on.begin(log.refresh())
    stopped_after(world, going_on, clock, 2)
    table.restore(before)
    assert GoingOn(log, shape(), SHOP, clock=clock).begin(log.refresh()) == (None, None)


def test_nothing_is_written_down_once_a_row_differs(table: lakebed.Table) -> None:
    world, log = world_of(40), log_of(table)
    world.faults = {3: lambda found: []}
    told: list[tuple[str, ...]] = []
    Proof(
        shape(), MemorySource(world), MemoryLake(world), FAST,
        bucket_rows=5, group_buckets=2, checkpoint=lambda after, found: told.append(after),
    ).run()  # fmt: skip
    assert told == [] and verifying_of(log.refresh()) is None


def test_what_a_comparison_has_shown_is_in_the_log_and_ends_what_was_under_way(table: lakebed.Table) -> None:
    world, clock, log = world_of(40), Clock(), log_of(table)
    going_on = GoingOn(log, shape(), SHOP, clock=clock)
    going_on.begin(log.refresh())
    stopped_after(world, going_on, clock, 2)
    assert verifying_of(log.refresh()) is not None
    now_ms = log.now_ms()
    shown = Verified(time_ms=now_ms - 7_200_000, outcome="differs", position="0/17", version=3, rows=40, differing=2)
    note_verified(log, shown)
    snapshot = log.refresh()
    assert (verified_of(snapshot), verifying_of(snapshot)) == (shown, None)
    assert comparison_of(snapshot, now_ms) == "2 keys differ from the source at 0/17, 2 hours ago"
    assert table.status().verified.startswith("2 keys differ from the source at 0/17")
    [finding] = [one for one in table.doctor().findings if one.check == "verify"]
    assert finding.severity.value == "critical"
    note_verified(log, Verified(time_ms=now_ms, outcome="equal", position="0/18", version=4, rows=40))
    assert table.doctor().findings == ()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("22:00-06:00", Hours(1320, 360)),
        ("1:30 - 2:00", Hours(90, 120)),
        ("22-6", None),
        ("22:00-24:00", None),
        ("22:00", None),
        ("06:00-06:00", None),
        ("", None),
    ],
)
def test_hours_are_two_times_of_day(text: str, found: Hours | None) -> None:
    assert hours_of(text) == found


@pytest.mark.parametrize(
    ("text", "at", "seconds"),
    [
        ("22:00-06:00", "21:59:59", 1),
        ("22:00-06:00", "22:00:00", 0),
        ("22:00-06:00", "03:00:00", 0),
        ("22:00-06:00", "06:00:00", 16 * 3600),
        ("01:00-02:00", "02:00:00", 23 * 3600),
        ("01:00-02:00", "01:59:59", 0),
        ("01:00-02:00", "00:59:30", 30),
    ],
)
def test_the_database_is_read_within_its_hours_only(text: str, at: str, seconds: float) -> None:
    hours = hours_of(text)
    assert hours is not None
    assert hours.seconds_until(datetime.fromisoformat(f"2026-01-01T{at}").replace(tzinfo=UTC)) == seconds


def test_the_pace_waits_until_it_may_read() -> None:
    slept: list[float] = []
    closed = [120.0, 30.0, 0.0]
    Pace(float("inf"), sleep=slept.append, closed_seconds=lambda: closed.pop(0)).took(5)
    assert slept == [120.0, 30.0]


def test_the_table_that_was_compared_longest_ago_is_next() -> None:
    schedule = Schedule(every_ms=100)
    assert schedule.next({}) is None
    assert schedule.next({"a": 50, "b": None, "c": 10}) == ("b", 0)
    schedule.tried["b"] = 130
    assert schedule.next({"a": 50, "b": None, "c": 10}) == ("c", 110)
    assert schedule.next({"a": 50, "b": None, "c": 120}) == ("b", 130)


def test_each_result_is_a_row_of_a_table_beside_the_tables_of_the_database(tmp_path: Path) -> None:
    results = Results(str(tmp_path / "shop"))
    report = TableReport(table="public.orders", outcome="repaired", version=7, rows=5, differences=2, time_ms=1_000)
    report = replace(report, repaired=Repaired(sent_again=1, removed=1))
    results.add("public.orders", 1_000, TableReport(table="public.orders", outcome="equal", version=6, time_ms=500))
    Results(str(tmp_path / "shop")).add("public.orders", 1_000, report)
    results.add("public.lines", 2_000, None, "the connector is behind")
    table = lakebed.open(tmp_path / "shop/_lakebed/verify")
    rows = sorted(table.to_arrow().to_pylist(), key=lambda row: (row["time"], row["outcome"]))
    assert [(row["table"], row["outcome"], row["removed"], row["error"]) for row in rows] == [
        ("public.orders", "equal", 0, None),
        ("public.orders", "repaired", 1, None),
        ("public.lines", "failed", None, "the connector is behind"),
    ]
    assert tables_below(str(tmp_path / "shop")) == {}


@pytest.fixture
def shop(tmp_path: Path) -> DatabasePipeline:
    file = tmp_path / "shop.yml"
    file.write_text(
        f"database: {{path: {tmp_path / 'lake'}, verify: {{url: 'postgresql://localhost/x'}}}}\n"
        "source: {kind: kafka, topic_pattern: 'shop\\..*', config: {bootstrap.servers: 'localhost:1'}}\n"
        "format: debezium-json\n"
    )
    lakebed.create(tmp_path / "lake/public/orders", SCHEMA, keys=["id"])
    found = load(str(file))
    assert isinstance(found, DatabasePipeline)
    return found


class Equal:
    """Finds each table equal, in a store that takes no writes: nothing of it is in the table's log."""

    def __init__(self, *given: object, **named: object) -> None:
        pass

    def verify(self, name: str, root: str) -> TableReport:
        return TableReport(table=name, outcome="equal", version=1)

    def close(self) -> None:
        pass


class Waits(threading.Event):
    """Is set as soon as it is waited for the third time."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.waits += 1
        if self.waits == 3:
            self.set()
        return self.is_set()


def test_a_table_whose_log_takes_no_results_waits_for_its_turn_like_all_others(
    shop: DatabasePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(continuous, "Databases", Equal)
    stop = Waits()
    found = []
    for report in Continuous(shop, stop).reports():
        found.append(report.table)
        if len(found) == 3:
            stop.set()
    assert found == ["public.orders"]


def test_a_table_that_another_process_has_compared_meanwhile_is_left_to_it(
    shop: DatabasePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    lakebed.create(Path(shop.path, "public/lines"), SCHEMA, keys=["id"])
    other = log_of(lakebed.open(Path(shop.path, "public/orders")))

    class Meanwhile(Equal):
        def verify(self, name: str, root: str) -> TableReport:
            shown = Verified(time_ms=other.now_ms(), outcome="equal", position="0/17", version=0, rows=0)
            note_verified(other, shown)
            return super().verify(name, root)

    monkeypatch.setattr(continuous, "Databases", Meanwhile)
    assert [report.table for report in Continuous(shop, Waits()).reports()] == ["public.lines"]


def test_versions_that_are_compared_at_one_position_are_held_until_the_end(
    shop: DatabasePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_of(lakebed.open(Path(shop.path, "public/orders")))
    monkeypatch.setattr(Databases, "_of_postgres", lambda self: (mock.Mock(), mock.Mock()))
    monkeypatch.setattr(databases, "topic_of", lambda snapshot: "shop.public.orders")
    monkeypatch.setattr(Databases, "_reaching", lambda *_: SimpleNamespace(reach=lambda position: log.refresh()))
    with closing(Databases(shop)) as found:
        found.freeze({"public.orders": log.root})
        assert held_versions(log.refresh().domains, log.now_ms()) == {0}
    assert not holds_of(log.refresh().domains)


def test_a_store_that_does_not_answer_once_ends_nothing(
    shop: DatabasePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(continuous, "Databases", Equal)
    failed: list[str] = []
    again = Continuous(shop, Waits(), failed=lambda name, error: failed.append(str(error)))
    answers = iter([StoreUnavailable("the store does not answer")])

    def tables(path: str) -> dict[str, str]:
        for error in answers:
            raise error
        return tables_below(path)

    monkeypatch.setattr(continuous, "tables_below", tables)
    assert [report.table for report in again.reports()] == ["public.orders"]
    assert failed == ["the store does not answer"]


def test_results_begin_anew_when_their_table_was_removed(tmp_path: Path) -> None:
    results = Results(str(tmp_path / "shop"))
    report = TableReport(table="public.orders", outcome="equal", version=6)
    results.add("public.orders", 1_000, report)
    shutil.rmtree(results.path)
    results.add("public.orders", 2_000, report)
    results.add("public.orders", 3_000, report)
    assert lakebed.open(results.path).to_arrow().num_rows == 1  # one is lost


@pytest.mark.parametrize("option", ["--snapshot", "--repair"])
def test_a_terminated_process_lets_go_of_the_versions_that_it_holds(
    shop: DatabasePipeline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, option: str
) -> None:
    let_go = []

    def verified(*given: object, **named: object) -> Iterator[TableReport]:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            yield TableReport(table="public.orders", outcome="equal")
        finally:
            let_go.append(True)

    monkeypatch.setattr(databases, "verified", verified)
    signal.signal(signal.SIGTERM, lambda *_: None)  # so that it does not end the tests
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(tmp_path / "shop.yml"), option])
    assert (ended.value.code, let_go) == (143, [True])
