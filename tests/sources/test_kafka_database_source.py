"""What the batches of a whole database read: many topics, each for a table of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.admin import NewPartitions

from lakebed.errors import Retry
from lakebed.positions.positions import Position
from lakebed.sources.kafka import database_source
from lakebed.sources.kafka.cluster import DatabaseCluster
from lakebed.sources.kafka.database_source import KafkaDatabasePlanner, KafkaDatabaseReader
from lakebed.sources.kafka.gathering import Control, PlannedBatch, write_control, write_positions
from lakebed.sources.kafka.lag import lag_by_topic, lag_in_all
from lakebed.sources.kafka.settings import KafkaSettings
from lakebed.sources.source import Range
from tests.infra.kafka import KafkaServer
from tests.sources.test_kafka_source import produce
from tests.waiting import wait_until

Document = dict[str, Any]
SOON = Control(default_max_age_seconds=1e-3)


@pytest.fixture(autouse=True)
def _nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every question goes to the brokers, as if much time had passed."""
    for pause in ("LOOK_SECONDS", "ID_SECONDS", "ENDS_SECONDS"):
        monkeypatch.setattr(database_source, pause, 0.0)
    monkeypatch.setattr(database_source, "ENDS_SHARE", 1e9)


class Planner:
    """The planning process of one run of a pipeline."""

    def __init__(self, kafka: KafkaServer, prefix: str, folder: Path, **more: Any) -> None:
        settings = KafkaSettings(config={"bootstrap.servers": kafka.bootstrap}, topic_pattern=prefix + ".*", **more)
        if not (folder / "control.json").exists():
            write_control(folder, SOON)
        self.planner, self.reader = KafkaDatabasePlanner(settings, folder), KafkaDatabaseReader(settings)

    def after(self, start: Document) -> Document:
        """The next offset document, as Spark gets it: through JSON."""
        document: Document = json.loads(json.dumps(self.planner.next(start)))
        return document

    def batch(self, start: Document) -> PlannedBatch:
        return PlannedBatch.of(self.after(start))


def plain(batch: PlannedBatch) -> list[tuple[str, int, int, int]]:
    return [(each.topic, each.partition, each.start, each.end) for each in batch.ranges]


def firsts(batch: PlannedBatch) -> set[str]:
    return {each.topic for each in batch.ranges if each.is_first}


@pytest.fixture
def prefix() -> str:
    return f"db{uuid4().hex[:8]}"


def positions(**offsets: int) -> Mapping[str, Position]:
    return {topic: Position(offsets={0: offset}) for topic, offset in offsets.items()}


def test_a_batch_reads_what_is_due_and_a_replay_reads_the_same(kafka: KafkaServer, prefix: str, tmp_path: Path) -> None:
    a, b = kafka.create_topic(f"{prefix}a"), kafka.create_topic(f"{prefix}b")
    produce(kafka, a, 3)
    write_control(tmp_path, Control(max_age_seconds={a: 1e-3}, default_max_age_seconds=1e6))
    planner = Planner(kafka, prefix, tmp_path)
    first = planner.after({})
    batch = PlannedBatch.of(first)
    assert (batch.number, plain(batch), firsts(batch)) == (1, [(a, 0, 0, 3)], {a})
    assert planner.after(first) == first
    produce(kafka, a, 1)
    produce(kafka, b, 2)
    second = planner.after(first)
    batch = PlannedBatch.of(second)
    assert (plain(batch), firsts(batch)) == ([(a, 0, 3, 4)], set()), "b waits for its age"
    assert batch.ranges[0].topic_id
    assert Planner(kafka, prefix, tmp_path).reader.ranges(first, second) == list(batch.ranges)
    progress = {"sources": [{"latestOffset": json.dumps(planner.planner.newest()), "endOffset": second}]}
    assert (lag_by_topic(progress), lag_in_all(progress)) == ({b: 2}, 2)


def test_a_run_begins_at_the_positions_of_the_tables_whatever_the_checkpoint_says(
    kafka: KafkaServer, prefix: str, tmp_path: Path
) -> None:
    a, b = kafka.create_topic(f"{prefix}a"), kafka.create_topic(f"{prefix}b")
    produce(kafka, a, 9)
    produce(kafka, b, 9)
    foreign = PlannedBatch(number=7, tick=30, ranges=(Range(a, 0, 8, 9), Range("gone", 0, 1, 2))).document()
    write_positions(tmp_path, positions(**{a: 4}))
    batch = Planner(kafka, prefix, tmp_path).batch(foreign)
    assert plain(batch) == [(a, 0, 4, 9), (b, 0, 0, 9)]
    assert (batch.number, firsts(batch)) == (8, {b})


def test_what_is_latest_is_looked_up_once(kafka: KafkaServer, prefix: str, tmp_path: Path) -> None:
    a, b = kafka.create_topic(f"{prefix}a"), kafka.create_topic(f"{prefix}b")
    produce(kafka, a, 5)
    produce(kafka, b, 5)
    first = Planner(kafka, prefix, tmp_path, starting_offsets="latest").after({})
    assert PlannedBatch.of(first).ranges == ()
    produce(kafka, a, 1)
    produce(kafka, b, 1)
    later = kafka.create_topic(f"{prefix}later")
    produce(kafka, later, 1)
    write_positions(tmp_path, positions(**{a: 5}))
    restarted = Planner(kafka, prefix, tmp_path, starting_offsets="latest").batch(first)
    assert plain(restarted) == [(a, 0, 5, 6), (b, 0, 5, 6), (later, 0, 0, 1)]


def test_topics_and_partitions_come_and_go_without_an_error(kafka: KafkaServer, prefix: str, tmp_path: Path) -> None:
    a, gone = kafka.create_topic(f"{prefix}a"), kafka.create_topic(f"{prefix}gone")
    produce(kafka, gone, 3)
    planner = Planner(kafka, prefix, tmp_path)
    end = planner.after({})
    admin = kafka.admin()
    admin.create_partitions([NewPartitions(a, 2)])[a].result()
    admin.delete_topics([gone])[gone].result()
    produce(kafka, a, 1, partition=1)
    new = kafka.create_topic(f"{prefix}new")
    produce(kafka, new, 1)
    seen: set[tuple[str, int, int, int]] = set()

    def read_on() -> bool:
        nonlocal end
        end = planner.after(end)
        seen.update(plain(PlannedBatch.of(end)))
        return len(seen) >= 2

    assert wait_until(read_on)
    assert {(a, 1, 0, 1), (new, 0, 0, 1)} <= seen


def test_a_topic_that_vanishes_between_two_looks_delays_nobody(kafka: KafkaServer, prefix: str) -> None:
    a, gone = kafka.create_topic(f"{prefix}a"), kafka.create_topic(f"{prefix}gone")
    config = {"bootstrap.servers": kafka.bootstrap}
    cluster, known = DatabaseCluster(KafkaSettings(config=config, topics=(a, gone))), [(a, 0), (gone, 0)]
    assert cluster.latest(known) == {(a, 0): 0, (gone, 0): 0}
    admin = kafka.admin()
    admin.delete_topics([gone])[gone].result()
    assert wait_until(lambda: cluster.latest(known) == {(a, 0): 0})


def test_a_topic_made_anew_begins_again_with_its_new_id(kafka: KafkaServer, prefix: str, tmp_path: Path) -> None:
    a = kafka.create_topic(f"{prefix}a")
    produce(kafka, a, 5)
    planner = Planner(kafka, prefix, tmp_path)
    first = planner.after({})
    admin = kafka.admin()
    admin.delete_topics([a])[a].result()
    wait_until(lambda: a not in kafka.admin().list_topics(timeout=60).topics)
    kafka.create_topic(a)
    produce(kafka, a, 8)
    second = wait_until(lambda: (found := planner.batch(first)).number == 2 and found)
    assert (plain(second), firsts(second)) == ([(a, 0, 0, 8)], {a})
    assert second.ranges[0].topic_id != PlannedBatch.of(first).ranges[0].topic_id


def test_a_position_beyond_the_end_begins_again(kafka: KafkaServer, prefix: str, tmp_path: Path) -> None:
    a, b = kafka.create_topic(f"{prefix}a"), kafka.create_topic(f"{prefix}b")
    produce(kafka, a, 2)
    produce(kafka, b, 2)
    write_positions(tmp_path, positions(**{a: 900, b: 1}))
    batch = Planner(kafka, prefix, tmp_path).batch({})
    assert (plain(batch), firsts(batch)) == ([(a, 0, 0, 2), (b, 0, 1, 2)], {a})


def test_the_driver_can_ask_for_a_batch_of_nothing_once(kafka: KafkaServer, prefix: str, tmp_path: Path) -> None:
    kafka.create_topic(f"{prefix}a")
    planner = Planner(kafka, prefix, tmp_path)
    assert planner.after({}) == {}
    write_control(tmp_path, Control(tick=3))
    first = planner.after({})
    assert first == {"batch": 1, "tick": 3, "topics": {}}
    assert planner.after(first) == first
    assert planner.reader.ranges({}, first) == []


def test_available_now_reads_what_was_there_and_ends(kafka: KafkaServer, prefix: str, tmp_path: Path) -> None:
    a, b = kafka.create_topic(f"{prefix}a"), kafka.create_topic(f"{prefix}b")
    produce(kafka, a, 5)
    produce(kafka, b, 1)
    planner = Planner(kafka, prefix, tmp_path, max_records_per_batch=4)
    planner.planner.only_what_is_there_now()
    produce(kafka, a, 5)
    end, read = {}, []
    while (after := planner.after(end)) != end:
        read += PlannedBatch.of(after).ranges
        end = after
    assert sum(each.end - each.start for each in read) == 6
    assert {(each.topic, each.end) for each in read} >= {(a, 5), (b, 1)}


def test_the_limit_is_of_all_topics_together(kafka: KafkaServer, prefix: str, tmp_path: Path) -> None:
    for number in range(3):
        produce(kafka, kafka.create_topic(f"{prefix}t{number}"), 10)
    planner = Planner(kafka, prefix, tmp_path, max_records_per_batch=12)
    sizes, end = [], {}
    for _ in range(3):
        end = planner.after(end)
        sizes.append(sum(each.end - each.start for each in PlannedBatch.of(end).ranges))
    assert sizes == [12, 12, 6]


def test_a_batch_takes_about_its_limit_of_bytes(kafka: KafkaServer, prefix: str, tmp_path: Path) -> None:
    produce(kafka, kafka.create_topic(f"{prefix}a"), 500, size=1000)
    produce(kafka, kafka.create_topic(f"{prefix}b"), 2, size=1000)
    batch = Planner(kafka, prefix, tmp_path, max_bytes_per_batch=100_000).batch({})
    assert 80 <= sum(one.size for one in batch.ranges) <= 110


@pytest.mark.long
@pytest.mark.slow
def test_planning_goes_on_when_the_broker_was_away(tmp_path: Path) -> None:
    with KafkaServer() as own:
        produce(own, own.create_topic("away"), 2)
        planner = Planner(own, "away", tmp_path)
        first = planner.after({})
        own.kill()
        own.start()
        produce(own, "away", 1)
        second = wait_until(lambda: (found := planner.batch(first)).number == 2 and found)
        assert plain(second) == [("away", 0, 2, 3)]


def test_a_document_says_all_that_a_batch_is() -> None:
    batch = PlannedBatch(
        number=3, tick=2, begin={("c", 0): 7}, ranges=(
            Range("a", 0, 1, 5, topic_id="x"), Range("a", 10, 0, 2, topic_id="x", is_first=True), Range("b", 1, 3, 4)
        ),
    )  # fmt: skip
    assert PlannedBatch.of(json.loads(json.dumps(batch.document()))) == batch
    assert PlannedBatch.of({}) == PlannedBatch()


def test_a_table_is_told_the_bounds_of_those_partitions_that_are_there(kafka: KafkaServer, prefix: str) -> None:
    a = kafka.create_topic(f"{prefix}a")
    produce(kafka, a, 3)
    settings = KafkaSettings(config={"bootstrap.servers": kafka.bootstrap}, topic_pattern=f"{prefix}.*")
    found = KafkaDatabaseReader(settings).bounds([(a, 0), (a, 9), (f"{prefix}gone", 0)])
    assert found.keys() == {(a, 0)}
    bounds = found[a, 0]
    assert (bounds.earliest, bounds.starting, bounds.end) == (0, 0, 3)
    assert bounds.topic_id


def test_how_many_partitions_a_topic_has_is_said_of_those_that_are_there_and_are_selected(
    kafka: KafkaServer, prefix: str
) -> None:
    one, other = kafka.create_topic(f"{prefix}a", 3), kafka.create_topic(f"x{prefix}")
    settings = KafkaSettings(config={"bootstrap.servers": kafka.bootstrap}, topic_pattern=prefix + ".*")
    reader = KafkaDatabaseReader(settings).impatient()
    assert reader.partitions([one, other, f"{prefix}gone"]) == {one: 3}
    gone = KafkaDatabaseReader(
        KafkaSettings(config={"bootstrap.servers": "127.0.0.1:1"}, topics=(one,), timeout_seconds=0.5)
    )
    with pytest.raises(Retry):
        gone.partitions([one])
