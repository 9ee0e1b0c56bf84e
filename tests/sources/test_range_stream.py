"""What Spark asks of any source: when a batch begins, what its tasks read, and when a bounded query ends."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from lakebed.errors import DataLoss
from lakebed.sources import range_stream
from lakebed.sources import source as sources
from lakebed.sources.range_stream import RangeStream
from lakebed.sources.source import Bounds, Place, Range, RangePlanner

Offset = dict[str, Any]


class Numbers(RangePlanner):
    """A source of numbered records: those below ``there``, ``most`` in a batch."""

    def __init__(self, there: int, most: int = 1000) -> None:
        self.there, self.most, self.asked, self.is_bounded = there, most, 0, False

    def next(self, start: Mapping[str, Any]) -> Offset:
        self.asked += 1
        end = min(self.there, start.get("next", 0) + self.most)
        self.left_some = end < self.there
        return {"next": end} if end > start.get("next", 0) else dict(start)

    def only_what_is_there_now(self) -> None:
        self.is_bounded = True


class Reader:
    """Reads nothing, but knows the ranges of a batch: parts of a hundred."""

    records_lost, skips_losses = 0, False

    def ranges(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Range]:
        first, last = start.get("next", 0), end["next"]
        return [Range("t", 0, at, min(at + 100, last)) for at in range(first, last, 100)] + [Range("u", 0, 5, 5)]

    def bounds(self, places: Sequence[Place]) -> dict[Place, Bounds]:
        raise NotImplementedError

    def impatient(self) -> Reader:
        return self

    def read(self, chosen: Range) -> Iterator[pa.Table]:
        raise NotImplementedError


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses so far, which pass at once."""
    pauses: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pauses.append)
    monkeypatch.setattr(range_stream, "time", clock)
    pace = lambda seconds: sources.Pace(seconds, clock.monotonic)  # noqa: E731
    monkeypatch.setattr(range_stream, "Pace", pace)
    return pauses


def latest(stream: RangeStream, start: Offset) -> Offset:
    return stream.latestOffset(start, stream.getDefaultReadLimit())


def test_nothing_new_gives_the_same_offset_after_a_short_wait(slept: list[float]) -> None:
    planner = Numbers(there=3)
    stream = RangeStream(planner, Reader())
    assert latest(stream, stream.initialOffset()) == {"next": 3} and sum(slept) == 0
    assert latest(stream, {"next": 3}) == {"next": 3}
    assert sum(slept) == pytest.approx(range_stream.IDLE_WAIT_SECONDS, abs=range_stream.IDLE_POLL_SECONDS)
    assert planner.asked > 3


def test_a_batch_waits_for_its_time_unless_the_last_one_left_some(slept: list[float]) -> None:
    planner = Numbers(there=5, most=3)
    stream = RangeStream(planner, Reader(), batch_seconds=10.0)
    first = latest(stream, {})
    assert latest(stream, first) == {"next": 5} and sum(slept) == 0, "some were left"
    planner.there = 6
    assert latest(stream, {"next": 5}) == {"next": 6} and sum(slept) == 10.0


def test_a_bounded_stream_waits_for_nothing(slept: list[float]) -> None:
    planner = Numbers(there=5, most=3)
    stream = RangeStream(planner, Reader(), batch_seconds=10.0)
    stream.prepareForTriggerAvailableNow()
    end: Offset = {}
    while (after := latest(stream, end)) != end:
        end = after
    assert planner.is_bounded and end == {"next": 5} and sum(slept) == 0


def test_tasks_share_small_ranges_and_take_no_planner_along() -> None:
    planner = Numbers(there=450)
    stream = RangeStream(planner, Reader())
    assert [len(each.value) for each in stream.partitions({}, {"next": 450})] == [1, 1, 1, 1, 1], "no empty one"
    planner.records_each = 250
    groups = stream.partitions({}, {"next": 450})
    assert [sum(one.size for one in each.value) for each in groups] == [200, 250]
    in_task = pickle.loads(pickle.dumps(stream))
    assert not isinstance(in_task, RangeStream)
    assert list(in_task.read(groups[1]))[-1] == ("t", 0, 400, 450, None)


def test_an_error_of_a_planner_can_cross_spark() -> None:
    class Lossy(Numbers):
        def next(self, start: Mapping[str, Any]) -> Offset:
            raise DataLoss("offset 7 is lost", topic="t")

    with pytest.raises(DataLoss) as failed:
        latest(RangeStream(Lossy(there=1), Reader()), {})
    assert failed.value.__notes__, "Spark passes the text on"
