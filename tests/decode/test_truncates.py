"""A source that empties its table: what goes, what stays, and what is left out when it comes late or again."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.decode.debezium.events import DebeziumJson
from lakebed.decode.decoder import RECORD_SCHEMA, DecoderSchema
from lakebed.ingest.batch_writer import WriteTask, Written, commit_written
from lakebed.log.actions import Transaction
from lakebed.log.entries import SOURCE_TRUNCATES, Operation
from lakebed.parts.changes import write_spec_of
from lakebed.positions.truncates import Cutoff, Truncate, cutoff_of, position_of
from tests.decode.records import RecordChanges, as_bytes
from tests.decode.test_fast_equals_slow import assert_same, only_one_by_one
from tests.internals import log_of
from tests.worlds import seeds

COLUMNS = pa.schema([pa.field("id", pa.int64(), False), pa.field("value", pa.string())])
SECOND = 1000  # milliseconds


@dataclass(frozen=True)
class Event:
    """An event of a source, before Kafka has it."""

    op: str
    source: dict[str, Any]
    row: dict[str, Any] | None = None

    @property
    def value(self) -> bytes:
        after = None if self.op in "dt" else self.row
        before = self.row if self.op == "d" else None
        value = as_bytes({"op": self.op, "before": before, "after": after, "source": self.source, "ts_ms": 1})
        assert value is not None
        return value


def postgres(at: int, time_ms: int) -> dict[str, Any]:
    return {"connector": "postgresql", "ts_ms": time_ms, "lsn": at}


def mysql(at: int, time_ms: int, server: int = 1) -> dict[str, Any]:
    """Where ``at`` is beyond the length of a file, another file has begun."""
    place = {"server_id": server, "file": f"binlog.{999_999 + at // 10}", "pos": at % 10, "row": 0}
    return {"connector": "mysql", "ts_ms": time_ms // SECOND * SECOND, **place}


def oracle(at: int, time_ms: int) -> dict[str, Any]:
    """A source that tells its clock and nothing that compares."""
    return {"connector": "oracle", "ts_ms": time_ms, "scn": str(at)}


Places = Callable[[int, int], dict[str, Any]]


@dataclass
class Topic:
    """What Kafka holds: events by partition."""

    partitions: int = 1
    name: str = "shop.orders"
    events: dict[int, list[Event]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.events = {number: [] for number in range(self.partitions)}

    def send(self, event: Event, partition: int = 0) -> None:
        self.events[partition].append(event)

    def read(self, start: dict[int, int]) -> list[pa.Table]:
        """All records from the offsets on, a table a partition."""
        found = []
        for partition, events in self.events.items():
            rows = [
                {"value": event.value, "topic": self.name, "partition": partition, "offset": offset, "timestamp": None}
                for offset, event in enumerate(events)
                if offset >= start.get(partition, 0)
            ]
            if rows:
                found.append(pa.Table.from_pylist(rows, RECORD_SCHEMA))
        return found


class Reader:
    """A query that reads a topic into a table, from where it stands."""

    def __init__(self, table: lakebed.Table, name: str = "q") -> None:
        self.table = table
        self.positions: dict[int, int] = {}
        self.batches = 0
        self.name = name

    def read(self, topic: Topic) -> Written:
        """Everything that is there, as one batch."""
        tables = topic.read(self.positions)
        snapshot = log_of(self.table).refresh()
        spec = write_spec_of(snapshot)
        decoder = DebeziumJson(DecoderSchema(snapshot.schema, spec.keys, spec.sequence_by))
        batches = [table.combine_chunks().to_batches() for table in tables]  # of each task

        def write(cutoff: Cutoff) -> Written:
            tasks = [WriteTask(spec, self.table.path, RecordChanges(decoder, cutoff)) for _ in batches]
            return Written.of(task.write(task.stream(iter(some))) for task, some in zip(tasks, batches, strict=True))

        written = write(cutoff_of(snapshot))
        if written.truncates:
            written = write(replace(cutoff_of(snapshot), new=written.truncates))
        batch = Transaction(self.name, self.batches)
        commit_written(log_of(self.table), snapshot, written, batch, Operation.STREAMING_UPDATE)
        self.batches += 1
        self.positions = {partition: len(events) for partition, events in topic.events.items()}
        return written

    def ids(self) -> list[int]:
        return sorted(self.table.to_arrow()["id"].to_pylist())


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(lakebed.create(tmp_path / "t", COLUMNS, keys=["id"]))


def created(number: int, source: dict[str, Any]) -> Event:
    return Event("c", source, {"id": number, "value": f"{number}"})


def send_all(topic: Topic, places: Places, *what: int | str, first: int = 1, time_ms: int = 5 * SECOND) -> None:
    """Rows by their number, and ``t`` for a truncate, at places one after the other and at one time."""
    for at, one in enumerate(what, first):
        source = places(at, time_ms)
        topic.send(Event("t", source) if isinstance(one, str) else created(one, source))


@pytest.mark.parametrize("places", [postgres, mysql, oracle])
@pytest.mark.parametrize("keys", [["id"], []])
def test_in_one_partition_what_comes_after_a_truncate_at_the_same_time_stays(
    places: Places, keys: list[str], tmp_path: Path
) -> None:
    reader, topic = Reader(lakebed.create(tmp_path / "t", COLUMNS, keys=keys)), Topic()
    send_all(topic, places, 1, 2)
    reader.read(topic)
    send_all(topic, places, 3, "t", 4, "t", 5, first=3)
    written = reader.read(topic)
    assert reader.ids() == [5]
    assert written.truncated == 2
    send_all(topic, places, 6, 7, first=8)
    assert reader.read(topic).truncated == 0
    assert reader.ids() == [5, 6, 7]


def test_a_clock_that_goes_back_at_a_truncate_is_no_matter_in_one_partition(reader: Reader) -> None:
    topic = Topic()
    for at, (number, time_ms) in enumerate([(1, 9000), (2, 9000), (0, 5000), (3, 4000), (4, 5000)]):
        source = oracle(at, time_ms)
        topic.send(created(number, source) if number else Event("t", source))
    reader.read(topic)
    assert reader.ids() == [3, 4]
    topic.send(created(5, oracle(9, 1000)))
    reader.read(topic)
    assert reader.ids() == [3, 4, 5]


@pytest.mark.parametrize("places", [postgres, mysql])
def test_a_truncate_that_the_source_sends_again_takes_nothing_out(places: Places, reader: Reader) -> None:
    topic = Topic()
    send_all(topic, places, 1, "t", 2)
    reader.read(topic)
    send_all(topic, places, 3, first=4)
    reader.read(topic)
    remembered = log_of(reader.table).refresh().domains[SOURCE_TRUNCATES]
    send_all(topic, places, 1, "t")  # the connector stopped, and had noted no more
    written = reader.read(topic)
    assert reader.ids() == [2, 3]
    assert (written.truncated, written.ignored, written.truncates) == (1, 1, ())
    assert log_of(reader.table).refresh().domains[SOURCE_TRUNCATES] == remembered
    send_all(topic, places, 2, 3, 4, first=3)
    reader.read(topic)
    assert reader.ids() == [2, 3, 4]


@pytest.mark.parametrize("places", [postgres, mysql, oracle])
def test_who_reads_a_topic_anew_loses_nothing_in_between(places: Places, reader: Reader) -> None:
    topic = Topic()
    send_all(topic, places, 1, "t", 2, 3)
    reader.read(topic)
    again = Reader(reader.table, "again")
    part = Topic()
    part.events[0] = topic.events[0][:2]
    written = again.read(part)
    assert again.ids() == [2, 3]
    assert (written.truncated, written.ignored) == (1, 1)
    again.read(topic)
    assert again.ids() == [2, 3]


@pytest.mark.parametrize(
    ("before", "after"), [(postgres, postgres), (mysql, lambda at, time_ms: mysql(at, time_ms, server=2))]
)
def test_a_server_whose_places_begin_anew_loses_nothing(before: Places, after: Places, reader: Reader) -> None:
    topic = Topic(partitions=2)
    send_all(topic, before, 1, "t", 2, first=900)
    reader.read(topic)
    for number in range(10, 15):
        topic.send(created(number, after(number, 9 * SECOND)), number % 2)
    assert reader.read(topic).truncated == 0
    assert reader.ids() == [2, 10, 11, 12, 13, 14]
    topic.send(Event("t", after(20, 10 * SECOND)))
    reader.read(topic)
    assert reader.ids() == []


def test_a_topic_that_was_created_again_loses_nothing(reader: Reader) -> None:
    topic = Topic()
    send_all(topic, oracle, 1, 2, 3, "t")
    reader.read(topic)
    another = Topic()
    send_all(another, oracle, 7, time_ms=6 * SECOND)
    reader.positions = {}
    reader.read(another)
    assert reader.ids() == [7]


@pytest.mark.parametrize("places", [postgres, mysql])
def test_of_other_partitions_the_place_in_the_source_decides(places: Places, reader: Reader) -> None:
    topic = Topic(partitions=2)
    topic.send(created(1, places(8, 5 * SECOND)), 1)
    topic.send(Event("t", places(9, 5 * SECOND)), 0)
    topic.send(created(2, places(10, 5 * SECOND)), 1)
    reader.read(topic)
    assert reader.ids() == [2]
    topic.send(created(3, places(7, 5 * SECOND)), 1)  # late
    topic.send(created(4, places(11, 5 * SECOND)), 1)
    assert reader.read(topic).truncated == 1
    assert reader.ids() == [2, 4]


def test_of_other_partitions_of_a_source_without_places_its_clock_decides_and_the_same_time_stays(
    reader: Reader,
) -> None:
    topic = Topic(partitions=2)
    topic.send(Event("t", oracle(1, 5000)), 0)
    for number, time_ms in ((1, 4999), (2, 5000), (3, 5001)):
        topic.send(created(number, oracle(1, time_ms)), 1)
    assert reader.read(topic).truncated == 1
    assert reader.ids() == [2, 3]
    topic.send(Event("t", oracle(1, 4000)), 1)  # an earlier one, late
    reader.read(topic)
    assert reader.ids() == [2, 3]


def test_what_is_left_out_is_counted(reader: Reader) -> None:
    topic = Topic()
    send_all(topic, postgres, 1, 2, "t", 3)
    reader.read(topic)
    metrics = reader.table.inspect.timeline().to_pylist()[0]["metrics"]
    assert dict(metrics)["recordsTruncated"] == 2


def test_a_table_remembers_one_truncate_a_partition() -> None:
    old = [Truncate(topic="a", partition=number, offset=5, time_us=100) for number in range(2)]
    new = (
        Truncate(topic="a", partition=0, offset=9, time_us=50),
        Truncate(topic="a", partition=0, offset=7, time_us=200),
        Truncate(topic="b", partition=0, offset=1, time_us=10),
    )
    assert Cutoff(tuple(old), new).remembered() == (new[0], old[1], new[2])
    files = (
        Truncate(topic="one.json", partition=0, offset=None, time_us=10),
        Truncate(topic="two.json", partition=0, offset=None, time_us=20),
    )
    assert Cutoff((), files).remembered() == (files[1],)


def test_a_binlog_with_a_longer_number_is_the_later_one() -> None:
    truncate = Truncate(topic="t", partition=0, offset=5, time_us=10, server_id=1, file="binlog.999999", pos=4)
    others = [("binlog.999998", 9), ("binlog.999999", 3), ("binlog.999999", 4), ("binlog.1000000", 1)]
    records = position_of(
        [
            Truncate(topic="t", partition=1, offset=0, time_us=10, server_id=1, file=file, pos=pos)
            for file, pos in others
        ]
    )
    assert truncate.is_after(records).tolist() == [True, True, False, False]
    assert truncate.is_after(records, or_same=True).tolist() == [True, True, True, False]


@seeds(3)
def test_records_are_cut_the_same_by_columns_and_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    topic = Topic()
    for at in range(60):
        places = rng.choice([postgres, mysql, mysql, oracle])
        topic.send(created(at, places(rng.randrange(20), rng.randrange(20) * 500)))
    known, new = (
        tuple(
            Truncate(
                topic="shop.orders",
                partition=rng.randrange(2),
                offset=rng.randrange(60),
                time_us=rng.randrange(10**7),
                **rng.choice(
                    [
                        {"lsn": rng.randrange(20)},
                        {"server_id": 1, "file": "binlog.1000000", "pos": rng.randrange(10)},
                        {},
                    ]
                ),
            )
            for _ in range(rng.randrange(3))
        )
        for _ in range(2)
    )
    decoder = DebeziumJson(DecoderSchema(COLUMNS, ("id",)))
    records = topic.read({})[0]
    fast = decoder.decode(records, Cutoff(known, new))
    with only_one_by_one():
        slow = decoder.decode(records, Cutoff(known, new))
    assert_same(fast, slow)
    assert len(fast.changes) + fast.truncated == 60


@pytest.mark.few(2)
@seeds(4)
def test_a_table_equals_its_source_whatever_is_sent_again_or_read_anew(seed: int, tmp_path: Path) -> None:
    """All partitions are read as far as each other, so that a truncate meets nothing newer in the table."""
    rng = random.Random(seed)
    places = rng.choice([postgres, mysql, oracle])
    topic = Topic(partitions=1 if places is oracle else rng.choice([1, 3]))
    reader = Reader(lakebed.create(tmp_path / "t", COLUMNS, keys=["id"]))
    rows: dict[int, str] = {}
    sent: list[tuple[Event, int]] = []
    time_ms = 5 * SECOND
    for step in range(60):
        time_ms += rng.choice([0, 0, 0, 300, 2000])
        source = places(step, time_ms)
        number = rng.randrange(8)
        if rng.random() < 0.12:
            rows.clear()
            sent.append((Event("t", source), rng.randrange(topic.partitions)))
        elif number in rows and rng.random() < 0.3:
            sent.append((Event("d", source, {"id": number, "value": rows.pop(number)}), number % topic.partitions))
        else:
            op = "u" if number in rows else "c"
            rows[number] = f"{step}"
            sent.append((Event(op, source, {"id": number, "value": rows[number]}), number % topic.partitions))
        topic.send(*sent[-1])
        if rng.random() < 0.08:  # the connector begins again where it last noted that it was
            for event, partition in sent[rng.randrange(len(sent)) :]:
                topic.send(event, partition)
        if rng.random() < 0.15:
            reader.read(topic)
        if rng.random() < 0.04:
            reader = Reader(reader.table, f"anew-{step}")
        if rng.random() < 0.1:
            reader.table.settle()
    reader.read(topic)
    assert dict(zip(*reader.table.to_arrow().to_pydict().values(), strict=True)) == rows
