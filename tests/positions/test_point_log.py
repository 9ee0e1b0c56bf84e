"""The log of points: only later points are taken, each is found again, and old ones go."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice

import pytest

from lakebed.errors import Corrupt, VersionNotFound
from lakebed.log.stores import MemoryLogStore, commit_name
from lakebed.log.table_log import TableLog
from lakebed.positions.point_log import Point, PointLog, Settled, TableAt


@pytest.fixture
def clock() -> list[float]:
    return [1_000_000.0]


@pytest.fixture
def points(clock: list[float]) -> PointLog:
    log = PointLog(TableLog(MemoryLogStore("lake/_lakebed/database"), clock=lambda: clock[0], sleep=lambda _: None))
    log.create()
    log.create()  # it is there
    return log


def again(points: PointLog) -> PointLog:
    """The same log as another process sees it."""
    return PointLog(TableLog(points.log.store, clock=points.log.clock, sleep=lambda _: None))


@contextmanager
def requests(points: PointLog, most: int) -> Iterator[None]:
    """The block sends so many requests to the store at most."""
    before = points.log.store.counters()  # type: ignore[attr-defined]
    yield
    assert (points.log.store.counters() - before).total.requests <= most  # type: ignore[attr-defined]


def point(number: int, **versions: int) -> Point:
    tables = {f"public.{name}": TableAt(version=version, table_id=name) for name, version in versions.items()}
    return Point(number=number, time_ms=10 * number, transaction=f"{number}:1", tables=tables, taken_ms=10 * number)


def test_a_snapshot_has_the_whole_map_and_a_commit_only_what_changed(points: PointLog) -> None:
    points.take(point(5, a=1, b=1))
    taken = points.take(point(7, a=2, b=1))
    assert {name: at.version for name, at in taken.tables.items()} == {"public.a": 2, "public.b": 1}
    commit = points.log.read_commit(taken.version)
    assert commit is not None
    assert sorted(action.domain for action in commit.actions if hasattr(action, "domain")) == [
        "lakebed.point",
        "lakebed.point_table.public.a",
    ]


def test_a_point_that_is_not_later_is_not_taken(points: PointLog) -> None:
    newest = points.take(point(7, a=2))
    for number in (5, 7):
        assert points.take(point(number, a=9)) == newest
    assert points.newest() == newest


def test_the_same_point_is_taken_again_with_a_table_that_was_left_out(points: PointLog) -> None:
    points.take(replace(point(7, a=2), left_out={"public.b": "it is parked", "public.c": "it is parked"}))
    assert points.take(replace(point(7, a=2), left_out={"public.b": "it lags"})).left_out == {"public.b": "it lags"}
    again = points.take(point(7, a=2, b=3))
    assert again.left_out == {}
    assert again.tables["public.b"].version == 3
    assert points.at(number=7) == again
    assert [one.number for one in points.all()] == [7]


def test_of_two_processes_that_take_points_at_once_the_later_point_stays(points: PointLog) -> None:
    other = again(points)
    threads = [
        threading.Thread(target=lambda log=log, first=first: [log.take(point(n, a=n)) for n in range(first, 60, 2)])
        for log, first in ((points, 0), (other, 1))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    numbers = [one.number for one in points.all()]
    assert numbers == sorted(set(numbers), reverse=True)
    assert numbers[0] == 59
    assert all(at.version == one.number for one in points.all() for at in one.tables.values())


def test_every_point_is_found_by_number_and_time_whatever_lies_between(points: PointLog, clock: list[float]) -> None:
    numbers = [3, 4, 9, 20, 21, 40]
    for number in numbers:
        clock[0] += 1
        points.take(point(number, a=number))
        points.settle(Settled(number=number, versions={"public.a": number + 1}))
    for number in numbers:
        assert points.at(number=number).number == number
        assert points.settled(number).versions == {"public.a": number + 1}
    for time_ms in range(30, 420):
        assert points.at(time_ms=time_ms).number == max(n for n in numbers if 10 * n <= time_ms)
    for number in (0, 5, 39, 41):
        with pytest.raises(VersionNotFound):
            points.at(number=number)
        with pytest.raises(VersionNotFound):
            points.settled(number)
    with pytest.raises(VersionNotFound):
        points.at(time_ms=29)


def test_all_points_are_read_with_each_commit_once_and_the_newest_with_few(points: PointLog) -> None:
    for number in range(350):
        points.take(point(number, a=number, b=number // 3))
        points.log.checkpoint_if_due(points.log.refresh())
    reader = again(points)
    reader.log.refresh()
    with requests(points, most=385):
        found = list(reader.all())
    assert [one.number for one in found] == list(range(349, -1, -1))
    assert all(points.at(number=one.number) == one for one in found[::30])
    with requests(points, most=70):
        assert [one.number for one in islice(reader.all(), 3)] == [349, 348, 347]


def test_a_cleanup_beside_the_reading_of_all_points_ends_it(points: PointLog, clock: list[float]) -> None:
    for number in range(60):
        clock[0] += 86_400 / 2
        points.take(point(number, a=number))
        if number % 10 == 5:
            points.log.write_checkpoint(points.log.refresh())
    reader = again(points)
    reading = reader.all()
    read = [next(reading).number]
    assert points.tidy() > 0
    read += [one.number for one in reading]
    assert read == list(range(59, read[-1] - 1, -1))
    assert read[-1] <= [one.number for one in points.all()][-1]


def test_a_commit_that_is_missing_between_points_is_an_error_not_an_end(points: PointLog) -> None:
    for number in range(120):
        points.take(point(number, a=number))
        points.log.checkpoint_if_due(points.log.refresh())
    points.log.store.delete(commit_name(110))
    with pytest.raises(Corrupt, match=r"gap: .*110\.json is missing"):
        list(points.all())


def test_points_older_than_the_retention_go_and_the_others_stay(points: PointLog, clock: list[float]) -> None:
    for number in range(40):
        clock[0] += 86_400 / 2
        points.take(point(number, a=number))
        if number % 10 == 5:
            points.log.write_checkpoint(points.log.refresh())
    before = len(list(points.all()))
    assert points.tidy() > 0
    left = [one.number for one in points.all()]
    assert 14 <= len(left) < before
    assert points.at(number=left[-1]).tables["public.a"].version == left[-1]
    with pytest.raises(VersionNotFound, match="never taken, or has expired"):
        points.at(number=0)
