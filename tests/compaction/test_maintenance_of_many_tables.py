"""Maintenance of many tables by a few threads: each is settled and merged, and no table's trouble is another's."""

from __future__ import annotations

import shutil
import threading
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
from lakebed.compaction.maintenance import AGAIN_SECONDS, LOOK_SECONDS, TableMaintainers
from lakebed.compaction.table_maintainer import IDLE_SECONDS, Chore, TableDuties
from lakebed.errors import Cancelled, Corrupt, Retry, TableNotFound
from lakebed.events import QueryChanged
from lakebed.failures import Restarts
from lakebed.log import log_reader
from lakebed.log.claims import claims_of
from lakebed.parts.changes import write_spec_of
from lakebed.resolve.locate import ScanLocator
from lakebed.table import internals_of
from tests.foreign.readers import delta_rs, own
from tests.heard import Heard
from tests.internals import log_of
from tests.stepping import Steps
from tests.threads import ThreadsSince

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
SECONDS_MAX = 60.0


pytestmark = pytest.mark.usefixtures("own_cache")


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


@pytest.mark.slow
def test_two_hundred_tables_are_settled_by_four_threads(tmp_path: Path, threads: MaintainingThreads) -> None:
    tables, heard = tables_in(tmp_path, 200), Heard(events.Settled)
    with maintained([duties_of(table) for table in tables]) as maintenance:
        for table in tables:
            table.apply(changes(1))
        heard.of_each({table.path for table in tables})
        assert all(map(is_settled, tables))
        assert len(threads) <= 4 + 2 + 2 + 2 and not maintenance.troubles() and not maintenance.parked()
        assert set(maintenance.tables) == {table.path for table in tables}
        tables[7].apply(changes(2))
        heard.of_each({tables[7].path})
        assert is_settled(tables[7]), "a batch of this process is heard at once"
    assert not threads
    assert [table.to_arrow().num_rows for table in (tables[0], tables[7])] == [1, 2]


def test_tables_are_merged_too_and_the_claims_are_gone_after_the_stop(tmp_path: Path, steps: Steps) -> None:
    tables = tables_in(tmp_path, 5, read_budget="2")
    for table in tables:
        for batch in range(6):
            table.apply(changes(*range(batch, 1000, 100)))
            table.settle()
    with maintained([duties_of(table) for table in tables]):
        steps.run_until(lambda: all(internals_of(table).compaction.finish(0) for table in tables))
    for table in tables:
        assert len(log_of(table).refresh().parts) < 6 and not claims_of(log_of(table).refresh().domains)


def test_tables_without_a_store_that_answers_delay_no_other(tmp_path: Path) -> None:
    tables, may_end = tables_in(tmp_path, 12), threading.Event()
    silent, others, heard = tables[:6], tables[6:], Heard(events.Settled)

    def unanswered() -> None:
        assert may_end.wait(SECONDS_MAX)
        raise Retry("the store does not answer")

    all_duties = [replace(duties_of(table), step=unanswered) for table in silent[:3]]
    with maintained([*all_duties, *map(duties_of, others)]):
        for round in range(3):
            for table in others:
                table.apply(changes(round))
            heard.of_each({table.path for table in others})
        may_end.set()


def test_a_table_that_fails_is_in_trouble_alone(tmp_path: Path, steps: Steps) -> None:
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
        steps.run_until(lambda: is_settled(fine) and is_settled(sick) and maintenance.ended())
        assert set(maintenance.troubles()) == {broken.path}
        assert isinstance(maintenance.troubles()[broken.path], Corrupt)
        assert maintenance.ended() == {broken.path}
        assert {finding.check for finding in broken.status().findings} == {"query"}
        maintenance.add(duties_of(broken))
        steps.run()
        assert is_settled(broken)
        assert not maintenance.troubles() and not maintenance.ended()
    assert not broken.status().findings


def test_a_table_whose_error_somebody_mended_is_maintained_again(tmp_path: Path, steps: Steps) -> None:
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
        steps.run_for(2 * AGAIN_SECONDS - 1)
        assert not is_settled(table) and set(maintenance.troubles()) == {table.path}
        steps.run_for(1)
        assert is_settled(table) and not maintenance.troubles()
    end()
    assert [event.state for event in heard if not event.routine] == ["failed", "failed"]
    assert [event.state for event in heard if event.routine][-2:] == ["running", "stopped"]


def test_a_table_that_fails_often_waits_between_its_tries_whatever_comes_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: Steps
) -> None:
    monkeypatch.setattr(Restarts, "pause_seconds", lambda self, error, made_progress: 3600.0)
    [table], tries = tables_in(tmp_path, 1), list[int]()

    def fails() -> None:
        tries.append(1)
        table.apply(changes(-1))  # which is heard before the failure is known
        raise Retry("no answer")

    with maintained([replace(duties_of(table), step=fails)]) as maintenance:
        steps.run()
        assert maintenance.troubles()
        for number in range(20):
            table.apply(changes(number))
            steps.run_for(1)
        assert len(tries) == 1, "the next try is in an hour"
        steps.run_for(3600)
        assert len(tries) == 2


def test_a_table_that_was_dropped_ends_alone_and_may_be_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: Steps
) -> None:
    other, dropped = tables_in(tmp_path, 2)
    with maintained([duties_of(other), duties_of(dropped)]) as maintenance:
        steps.run()
        shutil.rmtree(dropped.path)
        monkeypatch.setattr(log_reader, "_RELIST_SECONDS", -1.0)  # the log is listed at each look
        maintenance.hold_back(dropped.path, None)
        steps.run_until(maintenance.ended)
        assert maintenance.ended() == {dropped.path}
        assert isinstance(maintenance.troubles()[dropped.path], TableNotFound)
        made_anew = lakebed.create(dropped.path, SCHEMA, keys=["id"])
        maintenance.add(duties_of(made_anew))
        for table in (made_anew, other):
            table.apply(changes(1))
        steps.run()
        assert is_settled(made_anew) and is_settled(other)
        assert not maintenance.troubles()
        maintenance.remove(made_anew.path)
        assert maintenance.tables == (other.path,)


def test_a_table_made_anew_behind_the_back_of_its_maintenance_is_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: Steps
) -> None:
    [old] = tables_in(tmp_path, 1)
    old.apply(changes(1, 2, 3))
    with maintained([duties_of(old)]) as maintenance:
        steps.run_until(lambda: is_settled(old))
        shutil.rmtree(old.path)
        anew = lakebed.create(old.path, SCHEMA, keys=["id"])
        anew.apply(changes(7))
        monkeypatch.setattr(log_reader, "_RELIST_SECONDS", -1.0)
        maintenance.hold_back(old.path, None)
        steps.run_until(lambda: is_settled(anew))
        assert anew.to_arrow()["id"].to_pylist() == [7]


def test_leases_are_extended_while_all_other_threads_are_busy(tmp_path: Path) -> None:
    tables, may_end = tables_in(tmp_path, 8, read_budget="2"), threading.Event()
    extended = {table.path: threading.Semaphore(0) for table in tables}
    are_busy = threading.Semaphore(0)

    def busy() -> None:
        are_busy.release()
        assert may_end.wait(SECONDS_MAX)

    def duties(table: lakebed.Table) -> TableDuties:
        def extend() -> None:
            extended[table.path].release()

        long, lease = Chore(run=busy, seconds=0.0), Chore(run=extend, seconds=0.01, extends_leases=True)
        made = duties_of(table)
        made.merge_runner.next_plan = lambda looks: busy()  # type: ignore[method-assign, func-returns-value, assignment]
        return replace(made, step=busy, chores=(long, lease))

    with maintained(list(map(duties, tables))):
        assert all(are_busy.acquire(timeout=SECONDS_MAX) for _ in range(4 + 2)), "the threads of cycles and of chores"
        for each in extended.values():
            assert all(each.acquire(timeout=SECONDS_MAX) for _ in range(5))
        may_end.set()


def test_no_thread_and_no_duckdb_database_belongs_to_an_idle_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: MaintainingThreads
) -> None:
    connect, opened, running = duckdb.connect, list[int](), Heard(QueryChanged)

    def counted(*given: Any, **named: Any) -> duckdb.DuckDBPyConnection:
        opened.extend([1] * threads.is_running_this())
        return connect(*given, **named)

    monkeypatch.setattr(duckdb, "connect", counted)
    tables = tables_in(tmp_path, 120)
    with maintained([duties_of(table) for table in tables]):
        running.of_each({table.path for table in tables})
        assert len(threads) <= 4 + 2 + 2 + 2 and len(opened) <= 1


def test_what_runs_ends_before_the_stop_returns(tmp_path: Path, threads: MaintainingThreads) -> None:
    tables, running = tables_in(tmp_path, 6), list[str]()
    begun = {table.path: threading.Semaphore(0) for table in tables}

    def duties(table: lakebed.Table) -> TableDuties:
        made, is_stopping = duties_of(table), threading.Event()
        cancel = made.merge_runner.cancel

        def stopping() -> None:
            cancel()
            is_stopping.set()

        def step() -> None:
            running.append(table.path)
            begun[table.path].release()
            assert is_stopping.wait(SECONDS_MAX)
            table.apply(changes(1))  # so that it would run again
            running.remove(table.path)

        made.merge_runner.cancel = stopping  # type: ignore[method-assign]
        return replace(made, step=step)

    maintenance = TableMaintainers()
    for table in tables:
        maintenance.add(duties(table))
    for table in tables[:2]:
        assert begun[table.path].acquire(timeout=SECONDS_MAX)
        maintenance.remove(table.path)
        assert table.path not in running, "what is removed has ended"
    assert begun[tables[2].path].acquire(timeout=SECONDS_MAX)
    maintenance.stop()
    assert not running and not threads and not maintenance.tables
    for table in tables:
        table.apply(changes(1))
    assert not threads, "nobody listens any more"


# -- up to a version ----------------------------------------------------------------------------------------------------


def test_a_table_that_is_held_back_is_settled_to_the_versions_that_are_asked_for(tmp_path: Path, steps: Steps) -> None:
    points, free = tables_in(tmp_path, 2, settle_after_age="0 seconds")
    maintenance = TableMaintainers()
    try:
        maintenance.add(duties_of(points), until_version=0)
        maintenance.add(duties_of(free))
        for number in range(1, 5):
            for table in (points, free):
                table.apply(changes(number))
        steps.run()
        assert is_settled(free)
        assert len(log_of(points).refresh().tail) == 4, "nothing is settled before it is asked for"
        asked = maintenance.settle_to(points.path, 2), maintenance.settle_to(points.path, 3)
        steps.run()
        at = [future.result(0) for future in asked]
        assert [delta_rs(points, version) for version in at] == [own(points, version) for version in (2, 3)]
        points.apply(changes(5))
        steps.run()
        assert maintenance.drain(0.0) and len(log_of(points).refresh().tail) == 2
        maintenance.hold_back(points.path, None)
        steps.run_until(lambda: is_settled(points))
        with pytest.raises(Cancelled):
            maintenance.settle_to(str(tmp_path / "other"), 1).result(0)
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


def test_a_settle_that_fails_or_comes_too_late_says_so(
    tmp_path: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    [table] = tables_in(tmp_path, 1)

    def fails(version: int) -> int:
        maintenance.stop()
        raise Retry("no answer")

    monkeypatch.setattr(internals_of(table).settler, "settle_to", fails)
    with maintained([duties_of(table)]) as maintenance:
        first, second = maintenance.settle_to(table.path, 0), maintenance.settle_to(table.path, 0)
        steps.run()
        assert isinstance(first.exception(0), Retry)
        assert isinstance(second.exception(0), Cancelled)


def test_a_table_into_which_nothing_comes_lets_go_of_its_key_index_and_takes_it_up_again(
    tmp_path: Path, steps: Steps
) -> None:
    [table] = tables_in(tmp_path, 1)
    internals = internals_of(table)
    with maintained([duties_of(table)]):
        for round in range(3):
            table.apply(changes(round, 100))
            steps.run()
            assert is_settled(table) and not log_of(table).is_idle
            steps.run_for(IDLE_SECONDS + LOOK_SECONDS[1])
            assert log_of(table).is_idle
            assert isinstance(internals.locators.for_reading(write_spec_of(internals.log.refresh())), ScanLocator)
        assert table.lookup([100])["v"].to_pylist() == [100] and table.to_arrow().num_rows == 4
    assert not log_of(table).is_idle


def test_a_table_that_is_removed_leaves_its_key_index_to_the_next_handle(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, steps: Steps
) -> None:
    [table] = tables_in(tmp_path, 1)
    with maintained([duties_of(table)]) as maintenance:
        table.apply(changes(1))
        steps.run_until(lambda: is_settled(table))
        maintenance.remove(table.path)
        other = lakebed.open(table.path)
        maintenance.add(duties_of(other))
        other.apply(changes(2))
        steps.run_until(lambda: is_settled(other))
    assert not [record for record in caplog.records if "another process uses the key index" in record.getMessage()]
