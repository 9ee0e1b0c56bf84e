"""Consuming exactly a range of offsets, whatever happened to the partition: by native code first, and without it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from lakebed.decode.decoder import RECORD_SCHEMA
from lakebed.errors import DataLoss, InvalidInput, Retry
from lakebed.sources.kafka import range as kafka_range
from lakebed.sources.kafka.clients import KeptClients
from lakebed.sources.kafka.range import consume_range
from lakebed.sources.kafka.settings import KafkaSettings, without_secrets
from tests.infra.kafka import KafkaServer
from tests.waiting import Patience


@pytest.fixture(autouse=True, params=["native", "python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "python":
        monkeypatch.setattr(kafka_range, "library", lambda: None)
    return str(request.param)


@pytest.fixture
def topic(kafka: KafkaServer) -> str:
    return kafka.create_topic(f"range-{uuid4().hex[:8]}")


def settings(kafka: KafkaServer, topic: str, **more: Any) -> KafkaSettings:
    config = {"bootstrap.servers": kafka.bootstrap, "topic.metadata.propagation.max.ms": 1000, "log_level": 0}
    return KafkaSettings(config=config, topics=(topic,), **{"timeout_seconds": 20, **more})


def produce(kafka: KafkaServer, topic: str, numbers: Iterator[int] | range, key: str = "{}") -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 5})
    for number in numbers:
        producer.produce(topic, str(number), key.format(number), partition=0)
        if number % 10_000 == 0:
            producer.flush()
    producer.flush()


def offsets(chosen: KafkaSettings, start: int, end: int, lost: list[int] | None = None) -> list[int]:
    on_loss = None if lost is None else lost.append
    tables = list(consume_range(chosen, chosen.topics[0], 0, start, end, on_loss))
    assert all(table.schema == RECORD_SCHEMA for table in tables)
    return [offset for table in tables for offset in table.column("offset").to_pylist()]


def test_a_range_gives_its_records_and_no_others(kafka: KafkaServer, topic: str) -> None:
    before_ms = time.time_ns() // 1_000_000
    produce(kafka, topic, range(1000))
    chosen = settings(kafka, topic)
    assert offsets(chosen, 10, 990) == list(range(10, 990))
    assert offsets(chosen, 0, 1) == [0]
    assert offsets(chosen, 999, 1000) == [999]
    assert offsets(chosen, 5, 5) == []
    (table,) = consume_range(chosen, topic, 0, 7, 8)
    assert table.select(["key", "value", "topic", "partition"]).to_pylist() == [
        {"key": b"7", "value": b"7", "topic": topic, "partition": 0}
    ]
    (millis,) = table.column("timestamp").cast(pa.int64()).to_pylist()
    assert before_ms <= millis <= time.time_ns() // 1_000_000


def test_no_more_is_asked_for_than_is_left_of_the_range(
    kafka: KafkaServer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_range, "library", lambda: None)
    asked: list[int] = []

    class Watched(Consumer):  # type: ignore[misc]
        def consume(self, num_messages: int, timeout: float) -> Any:
            asked.append(num_messages)
            return super().consume(num_messages, timeout)

    monkeypatch.setattr(kafka_range, "Consumer", Watched)
    monkeypatch.setattr(kafka_range, "_kept", KeptClients(Consumer.close))
    produce(kafka, topic, range(500))
    assert offsets(settings(kafka, topic), 90, 95) == list(range(90, 95))
    assert max(asked) == 5


def test_tables_are_bounded_in_records_and_in_bytes(
    kafka: KafkaServer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(400):
        producer.produce(topic, b"x" * (10 if number < 200 else 1000), None)
    producer.flush()
    chosen = settings(kafka, topic)
    monkeypatch.setattr(kafka_range, "CONSUME_RECORDS_MIN", 2)
    monkeypatch.setattr(kafka_range, "CONSUME_RECORDS_MAX", 30)
    monkeypatch.setattr(kafka_range, "TABLE_RECORDS_MAX", 100)
    monkeypatch.setattr(kafka_range, "TABLE_BYTES_MAX", 20_000)
    tables = list(consume_range(chosen, topic, 0, 0, 400))
    assert [offset for table in tables for offset in table.column("offset").to_pylist()] == list(range(400))
    assert max(table.num_rows for table in tables) == 100
    sizes = sorted(table.column("value").nbytes for table in tables)
    assert sizes[-2] < 22_000, "only the table in which records became larger may be above"


def test_native_code_reads_a_whole_range_alone(
    kafka: KafkaServer, topic: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(kafka, topic, range(1000))
    monkeypatch.setattr(kafka_range, "_kept", KeptClients(Consumer.close))
    monkeypatch.setattr(kafka_range, "Consumer", None if way == "native" else Consumer)
    for _ in range(2):
        assert offsets(settings(kafka, topic), 10, 1000) == list(range(10, 1000))


def test_null_keys_and_values_stay_null(kafka: KafkaServer, topic: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(topic, None, None)
    producer.produce(topic, b"", b"")
    producer.flush()
    (table,) = consume_range(settings(kafka, topic), topic, 0, 0, 2)
    assert table.column("key").to_pylist() == table.column("value").to_pylist() == [None, b""]


def test_aborted_transactions_and_markers_are_passed_over(kafka: KafkaServer, topic: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic})
    producer.init_transactions()
    for transaction in range(4):
        producer.begin_transaction()
        for number in range(3):
            producer.produce(topic, f"{transaction}.{number}")
        producer.flush()
        if transaction % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    # Offsets 0-2 committed, 3 marker, 4-6 aborted, 7 marker, 8-10 committed, 11 marker, 12-14 aborted, 15 marker.
    chosen = settings(kafka, topic)
    assert offsets(chosen, 0, 16) == [0, 1, 2, 8, 9, 10]
    assert offsets(chosen, 3, 8) == []
    assert offsets(chosen, 11, 16) == []
    assert offsets(chosen, 2, 9) == [2, 8]
    uncommitted = settings(kafka, topic)
    uncommitted = KafkaSettings(config={**uncommitted.config, "isolation.level": "read_uncommitted"}, topics=(topic,))
    assert offsets(uncommitted, 0, 16) == [0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14]


def test_gaps_that_compaction_left_are_passed_over(kafka: KafkaServer) -> None:
    config = {
        "cleanup.policy": "compact",
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "0",
    }
    topic = kafka.create_topic(f"compacted-{uuid4().hex[:8]}", config=config)
    chosen = settings(kafka, topic)
    produce(kafka, topic, range(300), key="same")
    time.sleep(0.3)
    produce(kafka, topic, range(2), key="roll-{}")
    patience = Patience()
    while len(left := offsets(chosen, 0, 302)) > 3:
        assert not patience.is_over(), "the broker did not compact"
        time.sleep(0.3)
        produce(kafka, topic, range(1), key="roll-0")  # a new record closes the segment, so that it can be cleaned
    assert set(left) <= {299, 300, 301}
    assert offsets(chosen, 0, 299) == []
    assert offsets(chosen, 100, 300) == [299]


def test_records_that_the_broker_deleted_are_a_loss(kafka: KafkaServer, topic: str) -> None:
    produce(kafka, topic, range(100))
    admin = kafka.admin()
    admin.delete_records([TopicPartition(topic, 0, 40)])[TopicPartition(topic, 0)].result()
    chosen = settings(kafka, topic)
    with pytest.raises(DataLoss, match=rf"topic '{topic}' partition 0: offsets 10 to 39 are lost: .* offset 40"):
        offsets(chosen, 10, 100)
    lost: list[int] = []
    assert offsets(chosen, 10, 100, lost) == list(range(40, 100))
    assert lost == [30]
    assert offsets(chosen, 10, 20, lost) == []
    assert lost == [30, 10]


def test_a_partition_shorter_than_the_range_is_a_loss(kafka: KafkaServer, topic: str) -> None:
    produce(kafka, topic, range(10))
    chosen = settings(kafka, topic)
    with pytest.raises(DataLoss, match="the partition ends at offset 10 now"):
        offsets(chosen, 5, 20)
    with pytest.raises(DataLoss, match="offsets 15 to 19 are lost"):
        offsets(chosen, 15, 20)
    lost: list[int] = []
    assert offsets(chosen, 5, 20, lost) == [5, 6, 7, 8, 9]
    assert lost == [10]


@pytest.mark.few(1)
def test_a_topic_that_is_gone_is_a_loss(kafka: KafkaServer, topic: str) -> None:
    missing = settings(kafka, "never-" + topic)
    with pytest.raises(DataLoss, match=f"topic 'never-{topic}' partition 0: .* gone; was it deleted"):
        offsets(missing, 0, 5)


def test_a_broker_that_does_not_host_a_partition_says_nothing_of_a_loss(kafka: KafkaServer, topic: str) -> None:
    produce(kafka, topic, range(3))
    consumer = Consumer(settings(kafka, topic).consumer_config())
    reading = kafka_range._Range(consumer, settings(kafka, topic), topic, 0, start=0, end=3, on_loss=None, headers=())
    reading._event(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), Message(topic=topic, partition=0))
    assert [offset for table in reading.tables() for offset in table.column("offset").to_pylist()] == [0, 1, 2]
    consumer.close()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("way", ["native"], indirect=True)  # which ends with the other way too
def test_a_broker_that_is_away_is_worth_a_retry_and_the_next_try_gives_the_same_records() -> None:
    with KafkaServer() as own:
        topic = own.create_topic("orders")
        produce(own, topic, range(200_000))
        chosen = settings(own, topic, timeout_seconds=10)
        tables = consume_range(chosen, topic, 0, 0, 200_001)  # one more than there is
        got = next(tables).num_rows
        own.kill()
        with pytest.raises(Retry, match=r"kafka sent nothing of topic 'orders' partition 0 .* for 10 s"):
            for table in tables:
                got += table.num_rows
        assert got <= 200_000
        own.start()
        produce(own, topic, range(1))
        assert offsets(settings(own, topic), 0, 200_001) == list(range(200_001))


def test_settings_pass_through_and_secrets_stay_out_of_errors(kafka: KafkaServer) -> None:
    config = {"bootstrap.servers": kafka.bootstrap, "sasl.password": "hunter2", "ssl.key.password": 5}
    chosen = KafkaSettings(config={**config, "no.such.setting": "hunter2"}, topics=("orders",))
    with pytest.raises(InvalidInput, match=r"no\.such\.setting") as caught:
        offsets(chosen, 0, 1)
    assert "hunter2" not in str(caught.value) + repr(chosen)
    assert without_secrets("password hunter2 refused", config) == "password *** refused"


def test_offsets_are_lakebeds_own() -> None:
    with pytest.raises(InvalidInput, match=r"enable\.auto\.commit can't be set"):
        KafkaSettings(config={"bootstrap.servers": "127.0.0.1:9", "enable.auto.commit": True}, topics=("orders",))


def test_no_offset_is_committed_to_the_group(kafka: KafkaServer, topic: str) -> None:
    produce(kafka, topic, range(10))
    offsets(settings(kafka, topic), 0, 10)
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "lakebed"})
    (committed,) = consumer.committed([TopicPartition(topic, 0)], timeout=60)
    consumer.close()
    assert committed.offset < 0
