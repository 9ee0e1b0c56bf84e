"""Workers of a fleet on real tables: what has work is maintained, what has none costs nothing, and who dies is replaced."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.compaction.maintenance import TableMaintainers
from lakebed.coordination.jobs import Job, JobState, ask, job_of, new_id
from lakebed.coordination.log_cache import LogCache
from lakebed.errors import StoreUnavailable
from lakebed.fleet import watched
from lakebed.fleet.membership import BEAT_SECONDS, Membership
from lakebed.fleet.worker import FleetWorker, Limits
from lakebed.log.claims import claims_of
from lakebed.positions.point_log import Point, PointLog, Settled, TableAt
from tests.internals import log_of
from tests.stepping import HOUR, Steps

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
LIMITS = Limits(cores=1, memory_bytes=1 << 30)


pytestmark = pytest.mark.usefixtures("own_cache")


def tables_in(folder: Path, count: int, **properties: str) -> list[lakebed.Table]:
    named = {f"lakebed.{name}": value for name, value in properties.items()}
    return [
        lakebed.create(folder / "public" / f"t{number}", SCHEMA, keys=["id"], properties=named)
        for number in range(count)
    ]


def changes(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "v": list(ids)}, SCHEMA)


def is_settled(table: lakebed.Table) -> bool:
    return not log_of(table).refresh().tail


@contextmanager
def working(root: Path, *names: str, limits: Limits = LIMITS) -> Iterator[list[FleetWorker]]:
    workers = [FleetWorker([str(root)], limits, name) for name in names]
    try:
        for worker in workers:
            worker.start()
        yield workers
    finally:
        for worker in workers:
            worker.close()


def test_a_worker_maintains_what_it_finds_and_lets_it_rest(tmp_path: Path, steps: Steps) -> None:
    lake = tmp_path / "lake"
    tables = tables_in(lake, 6, read_budget="2")
    for table in tables[:3]:
        for batch in range(5):
            table.apply(changes(*range(batch, 500, 50)))
            table.settle()
    tables[4].apply(changes(1))
    with working(lake, "one") as [worker]:
        steps.run_until(lambda: worker.state().owned == 6 and not worker.state().active and worker.state().looks > 12)
        assert all(map(is_settled, tables)) and not any(claims_of(log_of(each).refresh().domains) for each in tables)
        assert all(len(log_of(table).refresh().parts) <= 3 for table in tables[:3])
        late = lakebed.create(lake / "public" / "late", SCHEMA, keys=["id"])
        late.apply(changes(1, 2))
        steps.run_until(lambda: is_settled(late), "a table that appears later is found")
        tables[5].apply(changes(7))
        steps.run_until(lambda: is_settled(tables[5]), "a commit to a table that rests is found")
        assert not worker.state().troubles


def test_workers_share_the_tables_and_take_over_those_of_one_that_ends(tmp_path: Path, steps: Steps) -> None:
    lake = tmp_path / "lake"
    tables = tables_in(lake, 20)
    with working(lake, "a", "b") as [a, b]:
        steps.run_until(lambda: a.state().owned + b.state().owned == 20 and min(a.state().owned, b.state().owned) > 0)
        b.close()
        steps.run_until(lambda: a.state().owned == 20)
        for table in tables:
            table.apply(changes(1))
        steps.run_until(lambda: all(map(is_settled, tables)))


def test_a_job_that_somebody_asked_for_is_run_by_the_worker_that_owns_the_table(tmp_path: Path, steps: Steps) -> None:
    lake = tmp_path / "lake"
    [table] = tables_in(lake, 1)
    with working(lake, "one") as [worker]:
        steps.run_until(lambda: worker.state().looks > 0)
        job = ask(log_of(table), Job(id=new_id(), kind="compact", by="somebody"))
        steps.run_until(lambda: (found := job_of(log_of(table).refresh(), job.id)) is not None and found.has_ended)
    found = job_of(log_of(table).refresh(), job.id)
    assert found is not None and found.state is JobState.SUCCEEDED, found


def test_rows_whose_time_to_live_has_ended_leave_a_table_that_rests(tmp_path: Path, steps: Steps) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("at", pa.timestamp("us", "UTC"))])
    table = lakebed.create(
        tmp_path / "lake" / "public" / "t", schema, keys=["id"], properties={"lakebed.ttl": "at: 1 day"}
    )
    now = int(time.time() * 1_000_000)
    for id, at in ((1, now - 3 * 86_400_000_000), (2, now)):
        table.apply(pa.table({"id": [id], "at": [at]}, schema))
        table.settle()
    with working(tmp_path / "lake", "one"):
        steps.run_for(HOUR + 60)
        assert table.to_arrow()["id"].to_pylist() == [2]


def test_more_tables_with_work_than_there_is_room_for_wait_and_are_all_done(tmp_path: Path, steps: Steps) -> None:
    lake = tmp_path / "lake"
    tables = tables_in(lake, 12)
    for table in tables:
        table.apply(changes(1))
    limits = Limits(cores=1, memory_bytes=1)
    assert [limits.tables_max(tier) for tier in range(3)] == [4, 3, 2]
    most = 0
    with working(lake, "one", limits=limits) as [worker]:

        def all_settled() -> bool:
            nonlocal most
            most = max(most, worker.state().active)
            return all(map(is_settled, tables))

        steps.run_until(all_settled)
    assert most == 3


def test_a_dropped_table_is_forgotten_and_a_foreign_one_left_alone(tmp_path: Path, steps: Steps) -> None:
    lake = tmp_path / "lake"
    [table] = tables_in(lake, 1)
    foreign = lake / "public" / "foreign" / "_delta_log"
    foreign.mkdir(parents=True)
    (foreign / f"{0:020d}.json").write_text("this is no commit")
    with working(lake, "one") as [worker]:
        steps.run_until(lambda: worker.state().owned == 2 and list(worker.state().troubles) == [str(foreign.parent)])
        table.apply(changes(1))
        steps.run_until(lambda: is_settled(table))


def test_tables_that_their_pipeline_settles_up_to_points_are_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: Steps
) -> None:
    lake = tmp_path / "lake"
    copied, other = tables_in(lake, 1, source_topic="shop.t0")[0], lakebed.create(lake / "other", SCHEMA, keys=["id"])
    points = PointLog.of(str(lake))
    points.create()
    at = TableAt(version=0, table_id=log_of(copied).refresh().metadata.id, position="")
    points.take(
        Point(number=1, time_ms=1, transaction="1", tables={"public.t0": at}, left_out={}, resume={}, taken_ms=1)
    )
    points.settle(Settled(number=1, versions={"public.t0": 0}))
    for table in (copied, other):
        table.apply(changes(1))
    with working(lake, "one") as [worker]:
        steps.run_for(300)
        assert is_settled(other) and not is_settled(copied) and not worker.state().troubles
    monkeypatch.setattr(watched, "_BY_POINTS_SECONDS", 0.0)
    with working(lake, "one"):
        steps.run_until(lambda: is_settled(copied), "no point has come for long")


def test_who_stands_by_settles_the_table_of_a_killed_worker_before_anybody_knows_that_it_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: Steps
) -> None:
    lake = tmp_path / "lake"
    tables = tables_in(lake, 8, freshness="4 seconds")
    with working(lake, "a", "b") as [a, b]:
        steps.run_until(lambda: a.state().standing_by + b.state().standing_by == 8 == a.state().owned + b.state().owned)
        monkeypatch.setattr("lakebed.fleet.worker.BEAT_SECONDS", 1000.0)
        owned = b.state().owned
        assert 0 < owned < 8
        with (
            monkeypatch.context() as silent
        ):  # as a process that is killed: nothing of it runs any more, and it says nothing
            silent.setattr(Membership, "leave", lambda self: None)
            a.close()
        for table in tables:
            table.apply(changes(1))
        steps.run_until(lambda: all(map(is_settled, tables)))
        assert set(b.state().workers) == {"a", "b"} and b.state().owned == owned
        steps.run_until(lambda: not b.state().active, "who stands by lets go of the tables again")


def test_a_worker_says_that_it_lives_while_it_looks_at_all_its_tables_for_the_first_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: Steps
) -> None:
    lake = tmp_path / "lake"
    tables_in(lake, 40)
    done: list[str] = []
    beat, look = Membership.beat, watched.Watched.look

    def noted_beat(self: Membership, tables: Collection[str]) -> dict[str, float]:
        done.append("beat")
        return beat(self, tables)

    def slow_look(self: watched.Watched) -> float | None:
        steps.clock.sleep(BEAT_SECONDS / 4)
        done.append("look")
        look(self)
        return 1000.0

    monkeypatch.setattr(Membership, "beat", noted_beat)
    monkeypatch.setattr(watched.Watched, "look", slow_look)
    with working(lake, "one"):
        steps.run_until(lambda: done.count("look") >= 40)
    assert done[done.index("look") :].count("beat") >= 40 // 4 - 1


def test_after_an_outage_a_table_with_a_freshness_is_looked_at_as_soon_as_any_other_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [table] = tables_in(tmp_path / "lake", 1, freshness="60 seconds")
    found = watched.Watched(table.path, LogCache(1 << 20), TableMaintainers(), lambda tier: True)
    found.look()
    monkeypatch.setattr("lakebed.discovery.SECONDS_MAX", 300.0)

    def silent(*given: object) -> bool:
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(watched, "has_object", silent)
    pauses = [found.look() for _ in range(8)]
    assert pauses == [4.0, 8.0, *[15.0] * 6], "a quarter of the freshness at most"
