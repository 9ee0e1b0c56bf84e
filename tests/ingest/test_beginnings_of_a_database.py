"""A pipeline that begins at the newest offsets, and whose tables fail before they have read anything: nothing is left out."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from lakebed.positions.positions import Position
from lakebed.sources.kafka import database_source
from lakebed.sources.kafka.database_source import KafkaDatabasePlanner
from lakebed.sources.kafka.gathering import Control, PlannedBatch, write_control, write_positions
from lakebed.sources.kafka.settings import KafkaSettings
from lakebed.sources.source import Range
from tests.ingest.database.databases import database, filled, more

LATEST = KafkaSettings(config={"bootstrap.servers": "127.0.0.1:9"}, topic_pattern=".*", starting_offsets="latest")
Places = Iterable[tuple[str, int]]


class Brokers:
    """Stands in for the brokers: topics with one partition, which have so many records."""

    def __init__(self, **ends: int) -> None:
        self.ends = ends
        self.made = dict.fromkeys(ends, "1")

    def partitions(self) -> list[tuple[str, int]]:
        return [(topic, 0) for topic in sorted(self.ends)]

    def earliest(self, places: Places) -> dict[tuple[str, int], int]:
        return dict.fromkeys(places, 0)

    def latest(self, places: Places) -> dict[tuple[str, int], int]:
        return {place: self.ends[place[0]] for place in places}

    starting = latest

    def ids(self, topics: Iterable[str]) -> dict[str, str]:
        return {topic: self.made[topic] for topic in topics}


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    brokers = Brokers(a=5)
    for pause in ("LOOK_SECONDS", "ID_SECONDS", "ENDS_SECONDS"):
        monkeypatch.setattr(database_source, pause, 0.0)
    monkeypatch.setattr(database_source, "ENDS_SHARE", 1e9)
    monkeypatch.setattr(database_source, "DatabaseCluster", lambda settings: brokers)
    return brokers


def after(planner: KafkaDatabasePlanner, start: dict[str, Any]) -> PlannedBatch:
    return PlannedBatch.of(json.loads(json.dumps(planner.next(start))))


def begun(folder: Path, **positions: int) -> KafkaDatabasePlanner:
    """The planner of a process."""
    write_control(folder, Control(default_max_age_seconds=1e-6))
    write_positions(folder, {topic: Position(offsets={0: offset}) for topic, offset in positions.items()})
    return KafkaDatabasePlanner(LATEST, folder)


def test_a_batch_that_comes_again_begins_where_its_partitions_began(brokers: Brokers, tmp_path: Path) -> None:
    planner = begun(tmp_path)
    first = after(planner, {})
    assert (first.ranges, first.begin) == ((), {("a", 0): 5})
    brokers.ends |= {"a": 7, "b": 3}  # a topic that comes later is read from its first record
    brokers.made["b"] = "1"
    second = after(planner, first.document())
    brokers.ends |= {"a": 8, "b": 4}
    third = after(planner, second.document())
    assert [(one.topic, one.start, one.end) for one in third.ranges] == [("a", 7, 8), ("b", 3, 4)]
    again = third.with_beginnings({})
    assert [(one.topic, one.start, one.end, one.is_first) for one in again.ranges] == [
        ("a", 5, 8, True),
        ("b", 0, 4, True),
    ]
    has_read = {"a": Position(offsets={0: 7})}
    assert [(one.start, one.end) for one in third.with_beginnings(has_read).ranges] == [(7, 8), (0, 4)]


def test_a_topic_that_was_made_anew_begins_at_its_first_record(brokers: Brokers, tmp_path: Path) -> None:
    planner = begun(tmp_path)
    first = after(planner, {})
    brokers.ends["a"] = 9
    second = after(planner, first.document())
    brokers.made["a"], brokers.ends["a"] = "2", 10
    assert after(planner, second.document()) == second  # that is noticed first
    third = after(planner, second.document())
    assert [(one.start, one.end) for one in third.ranges] == [(0, 10)]
    brokers.ends["a"] = 12
    restarted = after(begun(tmp_path), third.document())
    assert [(one.start, one.end) for one in restarted.ranges] == [(0, 12)]


def test_a_table_whose_first_batches_fail_before_a_restart_has_all_records_since_the_beginning(tmp_path: Path) -> None:
    source = filled("a")
    source.starting = "latest"
    more(source, "a", 5)
    last = PlannedBatch(number=3, ranges=(Range("a", 0, 7, 8),), begin={("a", 0): 5})
    with database(tmp_path, source) as one:
        one.ingest.batch(last.with_beginnings({}))
        assert (one.rows("a"), one.position("a")) == ([5, 6, 7], {0: 8})
