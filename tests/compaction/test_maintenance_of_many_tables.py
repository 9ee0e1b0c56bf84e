"""Maintenance of many tables by a few threads: each is settled and merged, and no table's trouble is another's."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import lakebed
from lakebed import events
from lakebed.compaction.maintenance import TableMaintainers
from lakebed.compaction.table_maintainer import Chore, TableDuties
from lakebed.errors import Cancelled, Corrupt, Retry, TableNotFound
from lakebed.events import QueryChanged
from lakebed.failures import Restarts
from lakebed.log import log_reader
from lakebed.log.claims import claims_of
from lakebed.parts.changes import write_spec_of
from lakebed.resolve.locate import ScanLocator
from lakebed.table import internals_of
from tests.foreign.readers import delta_rs, own
from tests.internals import log_of
from tests.threads import ThreadsSince
from tests.waiting import wait_until

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
SECONDS_MAX = 60.0


@pytest.fixture(autouse=True)
def quick_restarts(own_cache: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakebed.failures.PAUSE_SECONDS_MAX", 0.01)


def tables_in(folder: Path, count: int, **properties: str) -> list[lakebed.Table]:
    named = {f"lakebed.{name}": value for name, value in properties.items()}
    return [lakebed.create(folder / f"t{number}", SCHEMA, keys=["id"], properties=named) for number in range(count)]


def duties_of(table: lakebed.Table) -> TableDuties:
    return internals_of(table).duties()


@contextmanager
def maintained(all_duties: Sequence[TableDuties], threads: int = 4) -> Iterator[TableMaintainers]:
    maintenance = TableMaintainers(threads)
    try:
        for duties in all_duties:
            maintenance.add(duties)
        yield maintenance
    finally:
        maintenance.stop()


def changes(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "v": list(ids)}, SCHEMA)


def is_settled(table: lakebed.Table) -> bool:
    return not log_of(table).refresh().tail


class MaintainingThreads(ThreadsSince):
    """The threads of maintenance that began in a test."""

    def __len__(self) -> int:
        return len(self.named("lakebed-maintain", "lakebed-merge", "lakebed-chore", "lakebed-lease"))


@pytest.fixture
def threads() -> MaintainingThreads:
    return MaintainingThreads()


def test_two_hundred_tables_are_settled_by_four_threads(tmp_path: Path, threads: MaintainingThreads) -> None:
    tables = tables_in(tmp_path, 200)
    with maintained([duties_of(table) for table in tables]) as maintenance:
        for table in tables:
            table.apply(changes(1))
        wait_until(lambda: all(map(is_settled, tables)), moving=lambda: sum(map(is_settled, tables)))
        assert len(threads) <= 4 + 2 + 2 + 2 and not maintenance.troubles() and not maintenance.parked()
        assert set(maintenance.tables) == {table.path for table in tables}
        tables[7].apply(changes(2))
        wait_until(lambda: is_settled(tables[7]), "a batch of this process is heard at once")
    assert not threads
    assert [table.to_arrow().num_rows for table in (tables[0], tables[7])] == [1, 2]


def test_tables_are_merged_too_and_the_claims_are_gone_after_the_stop(tmp_path: Path) -> None:
    tables = tables_in(tmp_path, 5, read_budget="2")
    for table in tables:
        for batch in range(6):
            table.apply(changes(*range(batch, 1000, 100)))
            table.settle()
    with maintained([duties_of(table) for table in tables]):
        wait_until(lambda: all(internals_of(table).compaction.finish(0) for table in tables))
    for table in tables:
        assert len(log_of(table).refresh().parts) < 6 and not claims_of(log_of(table).refresh().domains)


def test_tables_without_a_store_that_answers_delay_no_other(tmp_path: Path) -> None:
    tables, may_end = tables_in(tmp_path, 12), threading.Event()
    silent, others = tables[:6], tables[6:]

    def unanswered() -> None:
        assert may_end.wait(SECONDS_MAX)
        raise Retry("the store does not answer")

    all_duties = [replace(duties_of(table), step=unanswered) for table in silent[:3]]
    with maintained([*all_duties, *map(duties_of, others)]):
        for round in range(3):
            for table in others:
                table.apply(changes(round))
            wait_until(lambda: all(map(is_settled, others)))
        may_end.set()


def test_a_table_that_fails_is_in_trouble_alone(tmp_path: Path) -> None:
    fine, sick, broken = tables_in(tmp_path, 3)
    errors = [Retry("no answer") for _ in range(3)]

    def fails_at_first() -> None:
        if errors:
            raise errors.pop()
        internals_of(sick).step()

    def fails() -> None:
        raise Corrupt("the file x is missing")

    all_duties = [
        duties_of(fine),
        replace(duties_of(sick), step=fails_at_first),
        replace(duties_of(broken), step=fails),
    ]
    with maintained(all_duties) as maintenance:
        for table in (fine, sick, broken):
            table.apply(changes(1))
        wait_until(lambda: is_settled(fine) and is_settled(sick) and maintenance.ended())
        wait_until(lambda: set(maintenance.troubles()) == {broken.path})
        assert isinstance(maintenance.troubles()[broken.path], Corrupt)
        assert maintenance.ended() == {broken.path}
        assert {finding.check for finding in broken.status().findings} == {"query"}
        maintenance.add(duties_of(broken))
        wait_until(lambda: is_settled(broken))
        assert not maintenance.troubles() and not maintenance.ended()
    assert not broken.status().findings


def test_a_table_whose_error_somebody_mended_is_maintained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakebed.compaction.maintenance.AGAIN_SECONDS", 0.05)
    [table], errors = tables_in(tmp_path, 1), [Corrupt("the file x is missing") for _ in range(2)]

    def renewed() -> TableDuties:
        return replace(duties_of(table), step=fails_twice, renewed=renewed)

    def fails_twice() -> None:
        if errors:
            raise errors.pop()
        internals_of(table).step()

    heard: list[QueryChanged] = []

    def hear(event: events.Event) -> None:
        if isinstance(event, QueryChanged) and event.table == table.path:
            heard.append(event)

    end = events.listen(hear)
    with maintained([renewed()]) as maintenance:
        table.apply(changes(1))
        wait_until(lambda: is_settled(table))
        wait_until(lambda: not maintenance.troubles())
    end()
    assert [event.state for event in heard if not event.routine] == ["failed", "failed"]
    assert [event.state for event in heard if event.routine][-2:] == ["running", "stopped"]


def test_a_table_that_fails_often_waits_between_its_tries_whatever_comes_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Restarts, "pause_seconds", lambda self, error, made_progress: 3600.0)
    [table], tries = tables_in(tmp_path, 1), list[int]()

    def fails() -> None:
        tries.append(1)
        table.apply(changes(-1))  # which is heard before the failure is known
        raise Retry("no answer")

    with maintained([replace(duties_of(table), step=fails)]) as maintenance:
        wait_until(lambda: maintenance.troubles())
        for number in range(20):
            table.apply(changes(number))
            time.sleep(0.005)
        assert len(tries) == 1, "the next try is in an hour"


def test_a_table_that_was_dropped_ends_alone_and_may_be_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, dropped = tables_in(tmp_path, 2)
    with maintained([duties_of(other), duties_of(dropped)]) as maintenance:
        wait_until(lambda: len(log_of(dropped).refresh().parts) == 0)
        shutil.rmtree(dropped.path)
        monkeypatch.setattr(log_reader, "_RELIST_SECONDS", -1.0)  # the log is listed at each look
        maintenance.hold_back(dropped.path, None)
        wait_until(lambda: maintenance.ended() == {dropped.path})
        assert isinstance(maintenance.troubles()[dropped.path], TableNotFound)
        made_anew = lakebed.create(dropped.path, SCHEMA, keys=["id"])
        maintenance.add(duties_of(made_anew))
        for table in (made_anew, other):
            table.apply(changes(1))
        wait_until(lambda: is_settled(made_anew) and is_settled(other))
        assert not maintenance.troubles()
        maintenance.remove(made_anew.path)
        assert maintenance.tables == (other.path,)


def test_a_table_made_anew_behind_the_back_of_its_maintenance_is_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [old] = tables_in(tmp_path, 1)
    old.apply(changes(1, 2, 3))
    with maintained([duties_of(old)]) as maintenance:
        wait_until(lambda: is_settled(old))
        shutil.rmtree(old.path)
        anew = lakebed.create(old.path, SCHEMA, keys=["id"])
        anew.apply(changes(7))
        monkeypatch.setattr(log_reader, "_RELIST_SECONDS", -1.0)
        maintenance.hold_back(old.path, None)
        wait_until(lambda: is_settled(anew), lambda: f"{maintenance.troubles()}")
        assert anew.to_arrow()["id"].to_pylist() == [7]


def test_leases_are_extended_while_all_other_threads_are_busy(tmp_path: Path, threads: MaintainingThreads) -> None:
    tables, may_end = tables_in(tmp_path, 8, read_budget="2"), threading.Event()
    extended = dict.fromkeys((table.path for table in tables), 0)

    def busy() -> None:
        assert may_end.wait(SECONDS_MAX)

    def duties(table: lakebed.Table) -> TableDuties:
        def extend() -> None:
            extended[table.path] += 1

        long, lease = Chore(run=busy, seconds=0.0), Chore(run=extend, seconds=0.01, extends_leases=True)
        made = duties_of(table)
        made.merge_runner.next_plan = lambda looks: busy()  # type: ignore[method-assign, func-returns-value, assignment]
        return replace(made, step=busy, chores=(long, lease))

    with maintained(list(map(duties, tables))):
        wait_until(lambda: len(threads) >= 4 + 1 + 2)
        wait_until(lambda: min(extended.values()) >= 5)
        may_end.set()


def test_no_thread_and_no_duckdb_database_belongs_to_an_idle_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: MaintainingThreads
) -> None:
    connect, opened, running = duckdb.connect, list[int](), set[str]()

    def counted(*given: Any, **named: Any) -> duckdb.DuckDBPyConnection:
        opened.extend([1] * threads.is_running_this())
        return connect(*given, **named)

    monkeypatch.setattr(duckdb, "connect", counted)
    end = events.listen(lambda event: running.add(event.table) if isinstance(event, QueryChanged) else None)
    tables = tables_in(tmp_path, 120)
    with maintained([duties_of(table) for table in tables]):
        wait_until(lambda: running.issuperset(table.path for table in tables))
        assert len(threads) <= 4 + 2 + 2 + 2 and len(opened) <= 1
    end()


def test_what_runs_ends_before_the_stop_returns(tmp_path: Path, threads: MaintainingThreads) -> None:
    tables, running = tables_in(tmp_path, 6), list[str]()

    def duties(table: lakebed.Table) -> TableDuties:
        def step() -> None:
            running.append(table.path)
            time.sleep(0.2)
            running.remove(table.path)
            table.apply(changes(len(running)))  # so that it runs again

        return replace(duties_of(table), step=step)

    maintenance = TableMaintainers()
    for table in tables:
        maintenance.add(duties(table))
    for table in tables[:2]:
        wait_until(lambda path=table.path: path in running)  # type: ignore[misc]
        maintenance.remove(table.path)
        assert table.path not in running, "what is removed has ended"
    wait_until(lambda: running)
    maintenance.stop()
    assert not running and not threads and not maintenance.tables
    for table in tables:
        table.apply(changes(1))  # nobody listens any more
    time.sleep(0.05)
    assert not running


# -- up to a version ----------------------------------------------------------------------------------------------------


def test_a_table_that_is_held_back_is_settled_to_the_versions_that_are_asked_for(tmp_path: Path) -> None:
    points, free = tables_in(tmp_path, 2, settle_after_age="0 seconds")
    maintenance = TableMaintainers()
    try:
        maintenance.add(duties_of(points), until_version=0)
        maintenance.add(duties_of(free))
        for number in range(1, 5):
            for table in (points, free):
                table.apply(changes(number))
        wait_until(lambda: is_settled(free))
        assert len(log_of(points).refresh().tail) == 4, "nothing is settled before it is asked for"
        asked = maintenance.settle_to(points.path, 2), maintenance.settle_to(points.path, 3)
        at = [future.result(SECONDS_MAX) for future in asked]
        assert [delta_rs(points, version) for version in at] == [own(points, version) for version in (2, 3)]
        points.apply(changes(5))
        assert not maintenance.drain(0.0) or len(log_of(points).refresh().tail) == 2
        maintenance.hold_back(points.path, None)
        wait_until(lambda: is_settled(points))
        with pytest.raises(Cancelled):
            maintenance.settle_to(str(tmp_path / "other"), 1).result(SECONDS_MAX)
    finally:
        maintenance.stop()


def test_what_is_left_is_settled_before_the_stop(tmp_path: Path) -> None:
    tables = tables_in(tmp_path, 6, settle_after_age="1 hour")
    with maintained([duties_of(table) for table in tables]) as maintenance:
        for table in tables:
            table.apply(changes(1))
        looks: list[int] = []
        assert maintenance.drain(SECONDS_MAX, lambda: looks.append(1))
        assert all(map(is_settled, tables)) and maintenance.drain(0.0)


def test_a_settle_that_fails_or_comes_too_late_says_so(tmp_path: Path) -> None:
    [table], may_end = tables_in(tmp_path, 1), threading.Event()

    def fails(version: int) -> int:
        assert may_end.wait(SECONDS_MAX)
        raise Retry("no answer")

    with maintained([replace(duties_of(table), settle_to=fails)]) as maintenance:
        first, second = maintenance.settle_to(table.path, 0), maintenance.settle_to(table.path, 0)
        wait_until(first.running)
        stopping = threading.Thread(target=maintenance.stop)
        stopping.start()
        wait_until(lambda: not maintenance.tables)
        may_end.set()
        assert isinstance(first.exception(SECONDS_MAX), Retry)
        assert isinstance(second.exception(SECONDS_MAX), Cancelled)
        stopping.join(SECONDS_MAX)


def test_a_table_into_which_nothing_comes_lets_go_of_its_key_index_and_takes_it_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakebed.compaction.table_maintainer.IDLE_SECONDS", 0.0)
    [table] = tables_in(tmp_path, 1)
    internals = internals_of(table)
    maintenance = TableMaintainers(look_seconds=(0.01, 0.02))
    try:
        maintenance.add(duties_of(table))
        for round in range(3):
            table.apply(changes(round, 100))
            wait_until(lambda: is_settled(table))
            wait_until(lambda: log_of(table).is_idle)
            wait_until(
                lambda: isinstance(internals.locators.for_reading(write_spec_of(internals.log.refresh())), ScanLocator)
            )
        assert table.lookup([100])["v"].to_pylist() == [100] and table.to_arrow().num_rows == 4
    finally:
        maintenance.stop()
    assert not log_of(table).is_idle


def test_a_table_that_is_removed_leaves_its_key_index_to_the_next_handle(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    [table] = tables_in(tmp_path, 1)
    with maintained([duties_of(table)]) as maintenance:
        table.apply(changes(1))
        wait_until(lambda: is_settled(table))
        maintenance.remove(table.path)
        other = lakebed.open(table.path)
        maintenance.add(duties_of(other))
        other.apply(changes(2))
        wait_until(lambda: is_settled(other))
    assert not [record for record in caplog.records if "another process uses the key index" in record.getMessage()]
