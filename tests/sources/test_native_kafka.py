"""Native consuming: from messages that are made up, and from librdkafka's broker for tests, which is in this process."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from lakebed.decode.decoder import RECORD_SCHEMA
from lakebed.decode.metadata import NEW_KEY, VALUE_SCHEMA, headers_of, mappings_of, values_of
from lakebed.errors import DataLoss, InvalidInput
from lakebed.parts.quarantine import HEADERS
from lakebed.sources.kafka import range as kafka_range
from lakebed.sources.kafka.clients import FINISHED, FULL, GOES_ON, TROUBLE, Client, KafkaClient, RangeReader
from lakebed.sources.kafka.range import consume_range
from lakebed.sources.kafka.settings import KafkaSettings

EOF, TRANSPORT = -191, -195


class Message(ctypes.Structure):
    """``rd_kafka_message_t``."""

    _fields_ = [
        ("err", ctypes.c_int), ("topic", ctypes.c_void_p), ("partition", ctypes.c_int32), ("payload", ctypes.c_void_p),
        ("length", ctypes.c_size_t), ("key", ctypes.c_void_p), ("key_length", ctypes.c_size_t),
        ("offset", ctypes.c_int64), ("private_data", ctypes.c_void_p),
    ]  # fmt: skip


@dataclass
class Brokers:
    """Hands out messages as librdkafka's functions do."""

    waiting: list[Message] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    given: int = 0
    destroyed: int = 0
    kept: list[Any] = field(default_factory=list)

    def send(
        self, offset: int, value: bytes | None = b"v", key: bytes | None = b"k", *, err: int = 0, partition: int = 3
    ) -> None:
        message = Message(err=err, topic=1, partition=partition, offset=offset)
        for name, content in (("payload", value), ("key", key)):
            if content is not None:
                buffer = ctypes.create_string_buffer(content, max(1, len(content)))
                self.kept.append(buffer)
                setattr(message, name, ctypes.addressof(buffer))
        message.length, message.key_length = len(value or b""), len(key or b"")
        self.waiting.append(message)

    def functions(self) -> Client:
        pointer = ctypes.c_void_p

        @ctypes.CFUNCTYPE(
            ctypes.c_int64, pointer, ctypes.c_int, ctypes.POINTER(ctypes.POINTER(Message)), ctypes.c_size_t
        )
        def consume(_queue: Any, _timeout: int, out: Any, count: int) -> int:
            self.asked.append(count)
            came, self.waiting = self.waiting[:count], self.waiting[count:]
            for number, message in enumerate(came):
                out[number] = ctypes.pointer(message)
            self.kept.append(came)
            self.given += len(came)
            return len(came)

        @ctypes.CFUNCTYPE(None, ctypes.POINTER(Message))
        def destroy(_message: Any) -> None:
            self.destroyed += 1

        @ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.POINTER(Message), ctypes.POINTER(ctypes.c_int))
        def timestamp(message: Any, _kind: Any) -> int:
            offset: int = message.contents.offset
            return -1 if offset % 10 == 9 else 1000 + offset

        topic = ctypes.create_string_buffer(b"orders")

        @ctypes.CFUNCTYPE(pointer, pointer)
        def topic_name(_topic: Any) -> int:
            return ctypes.addressof(topic)

        functions = (consume, destroy, timestamp, topic_name)
        self.kept += [topic, functions]
        return Client(*(ctypes.cast(function, pointer) for function in functions), None)


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    made = Brokers()
    yield made
    assert made.destroyed == made.given, "each message is given back once"


def reading(brokers: Brokers, start: int, end: int, *, rows_max: int = 16_384, bytes_max: int = 1 << 20) -> RangeReader:
    return RangeReader(brokers, "orders", 3, start, end, rows_max=rows_max, bytes_max=bytes_max)  # type: ignore[arg-type]


def test_a_range_is_read_and_no_more_is_asked_for_than_is_left_of_it(brokers: Brokers) -> None:
    for offset in range(5, 1000):
        brokers.send(offset, b"value %d" % offset, None if offset % 2 else b"")
    reader = reading(brokers, 5, 900)
    assert reader.read() == FINISHED
    rows = reader.take()
    reader.close()
    rows.validate(full=True)
    assert rows.column("offset").to_pylist() == list(range(5, 900))
    assert rows.column("value").to_pylist() == [b"value %d" % offset for offset in range(5, 900)]
    assert rows.column("key").to_pylist() == [None if offset % 2 else b"" for offset in range(5, 900)]
    times = rows.column("timestamp").cast("int64").to_pylist()
    assert times == [None if offset % 10 == 9 else 1000 + offset for offset in range(5, 900)]
    assert sum(brokers.asked) == 895
    assert (brokers.asked[0], max(brokers.asked)) == (32, 500)


def test_gaps_and_late_records_are_passed_over(brokers: Brokers) -> None:
    for offset in (7, 3, 12, 30):
        brokers.send(offset)
    reader = reading(brokers, 5, 20)
    assert reader.read() == FINISHED
    assert (reader.take().column("offset").to_pylist(), reader.position) == ([7, 12], 20)
    reader.close()


def test_the_end_of_the_partition_finishes_a_range_that_ends_before_it(brokers: Brokers) -> None:
    brokers.send(5)
    brokers.send(20, None, None, err=EOF)
    reader = reading(brokers, 5, 20)
    assert (reader.read(), reader.rows, reader.position) == (FINISHED, 1, 20)
    reader.close()


@pytest.mark.parametrize(("err", "offset"), [(EOF, 19), (TRANSPORT, 0), (TRANSPORT, 25)])
def test_everything_else_is_left_to_others_from_the_position_on(brokers: Brokers, err: int, offset: int) -> None:
    brokers.send(5)
    brokers.send(offset, None, None, err=err)
    brokers.send(6)
    reader = reading(brokers, 5, 20)
    assert (reader.read(), reader.rows, reader.position) == (TROUBLE, 1, 6)
    reader.close()


def test_a_record_of_another_partition_is_left_to_others(brokers: Brokers) -> None:
    brokers.send(5, partition=4)
    reader = reading(brokers, 5, 20)
    assert (reader.read(), reader.rows, reader.position) == (TROUBLE, 0, 5)
    reader.close()


def test_tables_are_bounded_in_rows_and_bytes(brokers: Brokers) -> None:
    for offset in range(100):
        brokers.send(offset, b"x" * 100, None)
    reader = reading(brokers, 0, 100, rows_max=30, bytes_max=2_000)
    sizes = []
    while (state := reader.read()) == FULL:
        sizes.append(len(reader.take()))
    assert (state, sizes, len(reader.take())) == (FINISHED, [20, 20, 20, 20], 20)
    reader.close()
    reader = reading(brokers, 100, 200, rows_max=30)
    for offset in range(100, 200):
        brokers.send(offset)
    assert (reader.read(), len(reader.take())) == (FULL, 30)
    reader.close()


def test_what_came_stays_until_it_is_taken(brokers: Brokers) -> None:
    brokers.send(0)
    reader = reading(brokers, 0, 10)
    assert (reader.read(), reader.rows) == (GOES_ON, 1)
    assert (reader.read(), reader.rows) == (GOES_ON, 1)
    brokers.send(9)
    assert reader.read() == FINISHED
    assert reader.take().column("offset").to_pylist() == [0, 9]
    assert len(reader.take()) == 0
    reader.close()


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """The address of a broker of librdkafka's, which needs no server. It has no transactions and compacts nothing."""
    host = KafkaClient({"group.id": "host"})
    librdkafka = host.api
    librdkafka.rd_kafka_mock_cluster_new.restype = ctypes.c_void_p
    librdkafka.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    cluster = ctypes.c_void_p(librdkafka.rd_kafka_mock_cluster_new(host.handle, 1))
    yield librdkafka.rd_kafka_mock_cluster_bootstraps(cluster).decode()
    librdkafka.rd_kafka_mock_cluster_destroy(cluster)
    host.close()


@pytest.fixture
def ranges(bootstrap: str) -> KafkaSettings:
    """A topic with 3,000 records."""
    topic = f"ranges-{uuid4().hex[:8]}"
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "lz4", "log_level": 0})
    for number in range(3_000):
        value = None if number % 7 == 0 else b"v" * (number % 50)
        producer.produce(topic, value, b"" if number % 5 else None, partition=0)
    producer.flush()
    return KafkaSettings(config={"bootstrap.servers": bootstrap, "log_level": 0}, topics=(topic,), timeout_seconds=20)


def read(settings: KafkaSettings, start: int, end: int) -> pa.Table:
    tables = list(consume_range(settings, settings.topics[0], 0, start, end))
    assert all(table.schema == RECORD_SCHEMA for table in tables)
    return pa.concat_tables(tables)


def test_native_code_alone_reads_what_the_reading_in_python_does(
    ranges: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(kafka_range, "Consumer", None)
        patched.setattr(kafka_range, "TABLE_RECORDS_MAX", 700)
        natively = [read(ranges, start, end) for start, end in ((0, 3_000), (1, 2), (10, 2_999), (2_999, 3_000))]
    monkeypatch.setattr(kafka_range, "library", lambda: None)
    assert [table.num_rows for table in natively] == [3_000, 1, 2_989, 1]
    for table in natively:
        first = table.column("offset")[0].as_py()
        assert table.equals(read(ranges, first, first + table.num_rows))


def test_headers_that_say_something_come_with_their_records(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = f"headers-{uuid4().hex[:8]}"
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    context = [("__debezium.context.taskId", b"0"), ("größe", "größe")]
    given = [
        None,
        context,
        [*context, (NEW_KEY, b'{"id":2}')],
        [(NEW_KEY, b"old"), *context, (NEW_KEY, None), (VALUE_SCHEMA, b"")],
        [],
    ]
    for number in range(50):
        producer.produce(topic, b"v", b"k", partition=0, headers=given[number % 5])
    producer.flush()
    config = {"bootstrap.servers": bootstrap, "log_level": 0}
    settings = KafkaSettings(config=config, topics=(topic,), timeout_seconds=20)

    def tables(end: int, **more: Any) -> list[pa.Table]:
        return list(consume_range(settings, topic, 0, 0, end, **more))

    with monkeypatch.context() as patched:
        patched.setattr(kafka_range, "Consumer", None)
        patched.setattr(kafka_range, "TABLE_RECORDS_MAX", 20)
        natively = [tables(50), tables(2), tables(1), tables(50, headers=())]
    monkeypatch.setattr(kafka_range, "library", lambda: None)
    kept = [{}, {}, {NEW_KEY: b'{"id":2}'}, {NEW_KEY: None, VALUE_SCHEMA: b""}, {}]
    for whole in (pa.concat_tables(natively[0]), pa.concat_tables(tables(50))):
        assert mappings_of(whole) == kept * 10
        assert values_of(headers_of(whole), NEW_KEY).to_pylist() == [None, None, b'{"id":2}', None, None] * 10
    for others in (natively[1], tables(2)):
        assert [table.column(HEADERS).null_count for table in others] == [2], "they have headers, but none that is read"
    for without in (*natively[2:], tables(1), tables(50, headers=())):
        assert all(table.schema == RECORD_SCHEMA for table in without), "no column for headers that nobody reads"


def test_what_is_lost_is_shown_by_the_reading_in_python(ranges: KafkaSettings) -> None:
    with pytest.raises(DataLoss, match=r"offsets 3000 to 3009 are lost: the partition ends at offset 3000 now"):
        read(ranges, 2_000, 3_010)


def test_a_setting_that_the_client_refuses_is_named(ranges: KafkaSettings) -> None:
    refused = KafkaSettings(config={**ranges.config, "no.such.setting": 1}, topics=ranges.topics)
    with pytest.raises(InvalidInput, match=r"no\.such\.setting"):
        read(refused, 0, 1)
