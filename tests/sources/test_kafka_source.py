"""Which offsets the batches of a Kafka stream read."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import NewPartitions, TopicMetadata

import lakebed
from lakebed.errors import DataLoss, InvalidInput, Retry
from lakebed.log.commit_loop import Proposal, commit_loop
from lakebed.log.conflicts import ReadWriteSet
from lakebed.log.entries import Operation
from lakebed.positions.positions import Position, entry_of, position_entry
from lakebed.sources.kafka import source as kafka_source
from lakebed.sources.kafka.cluster import KafkaCluster, topics_there
from lakebed.sources.kafka.settings import KafkaSettings
from lakebed.sources.kafka.source import KafkaPlanner, KafkaReader, KafkaSource
from lakebed.sources.source import Bounds, Range
from tests.infra.kafka import KafkaServer
from tests.internals import log_of
from tests.waiting import Patience, ended, started, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Offset = dict[str, Any]


@pytest.fixture
def topic(kafka: KafkaServer) -> str:
    return kafka.create_topic(f"source-{uuid4().hex[:8]}", partitions=2)


def stream(kafka: KafkaServer, *topics: str, **more: Any) -> KafkaPlanner:
    return KafkaPlanner(KafkaSettings(config={"bootstrap.servers": kafka.bootstrap}, topics=topics, **more))


def produce(kafka: KafkaServer, topic: str, count: int, partition: int = 0, size: int = 10) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for _ in range(count):
        producer.produce(topic, "x" * size, partition=partition)
    producer.flush()


def ask(source: KafkaPlanner, start: Offset) -> Offset:
    """The next offset, as Spark gets it: through JSON."""
    source._looked_at = float("-inf")  # look for new partitions at every call
    decoded: Offset = json.loads(json.dumps(source.next(start)))
    return decoded


def planned(start: Offset, end: Offset) -> list[tuple[str, int, int, int]]:
    ranges = KafkaReader(KafkaSettings(config={"bootstrap.servers": "127.0.0.1:9"}, topics=("any",))).ranges(start, end)
    return [(chosen.topic, chosen.partition, chosen.start, chosen.end) for chosen in ranges if chosen.size]


def test_batches_follow_each_other_without_gap_or_overlap(kafka: KafkaServer, topic: str) -> None:
    produce(kafka, topic, 10, partition=0)
    produce(kafka, topic, 5, partition=1)
    source = stream(kafka, topic)
    first = ask(source, {})
    assert planned({}, first) == [(topic, 0, 0, 10), (topic, 1, 0, 5)]
    produce(kafka, topic, 1, partition=1)
    second = ask(source, first)
    assert planned(first, second) == [(topic, 1, 5, 6)]
    assert "begin" not in second


def test_a_replayed_batch_reads_the_same_even_if_the_start_was_latest(kafka: KafkaServer, topic: str) -> None:
    produce(kafka, topic, 7)
    source = stream(kafka, topic, starting_offsets="latest")
    first = ask(source, {})
    assert planned({}, first) == []
    produce(kafka, topic, 2)
    second = ask(source, first)
    assert planned({}, first) == []
    assert planned(first, second) == [(topic, 0, 7, 9)]


def test_a_stream_may_start_at_a_time_or_at_given_offsets(kafka: KafkaServer, topic: str) -> None:
    produce(kafka, topic, 3)
    time.sleep(0.05)
    now_ms = time.time_ns() // 1_000_000
    time.sleep(0.05)
    produce(kafka, topic, 2)
    source = stream(kafka, topic, starting_offsets={"timestamp": now_ms})
    assert planned({}, ask(source, {})) == [(topic, 0, 3, 5)]
    source = stream(kafka, topic, starting_offsets={topic: {"0": 4}})
    assert planned({}, ask(source, {})) == [(topic, 0, 4, 5)]
    with pytest.raises(InvalidInput, match="partition 9, which is not read"):
        ask(stream(kafka, topic, starting_offsets={topic: {"9": 4}}), {})


def test_a_source_says_what_it_has_of_partitions_now(kafka: KafkaServer, topic: str) -> None:
    produce(kafka, topic, 5)
    settings = KafkaSettings(
        config={"bootstrap.servers": kafka.bootstrap}, topics=(topic,), starting_offsets={topic: {"0": 2}}
    )
    found = KafkaSource(settings).reader.bounds([(topic, 0), (topic, 1), (topic, 7), ("gone", 0)])
    [topic_id] = {one.topic_id for one in found.values()}
    assert topic_id is not None
    assert found == {
        (topic, 0): Bounds(earliest=0, starting=2, end=5, topic_id=topic_id),
        (topic, 1): Bounds(earliest=0, starting=0, end=0, topic_id=topic_id),
    }


def test_a_stream_without_its_checkpoint_begins_where_the_table_is(
    kafka: KafkaServer, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(kafka, topic, 10)
    table = lakebed.create(tmp_path / "t", pa.schema([("id", pa.int64())]))
    monkeypatch.setattr(kafka_source, "METADATA_SECONDS", 0.0)
    settings = KafkaSettings(config={"bootstrap.servers": kafka.bootstrap}, topics=(topic,))

    def began(**position: Any) -> KafkaPlanner:
        entry = entry_of(topic, Position(**position))
        access = ReadWriteSet(domains=frozenset([position_entry(topic)]))
        proposal = Proposal(actions=[entry], access=access, result=lambda committed: committed.version)
        commit_loop(log_of(table), Operation.REWIND, lambda snapshot: proposal)
        return KafkaPlanner(settings, table.path)

    _, ids = KafkaCluster(settings).look()
    source = began(offsets={0: 7}, topic_id=ids[topic])
    first = ask(source, {})
    assert planned({}, first) == [(topic, 0, 7, 10)]
    again = ask(source, first)
    assert again["again"] == 1 and planned(first, again) == [], "the table is at 7, so it reads from there"
    began(offsets={0: 10}, topic_id=ids[topic])
    assert ask(source, again) == again
    for lost in ({"offsets": {0: 11}, "topic_id": ids[topic]}, {"offsets": {0: 7}, "topic_id": "another"}):
        source = began(**lost)
        assert planned({}, ask(source, {})) == [(topic, 0, 0, 10)], "the table says what is lost"


def test_partitions_and_topics_that_appear_start_at_earliest(kafka: KafkaServer, topic: str) -> None:
    config = {"bootstrap.servers": kafka.bootstrap}
    source = KafkaPlanner(KafkaSettings(config=config, topic_pattern=topic + ".*", starting_offsets="latest"))
    first = ask(source, {})
    admin = kafka.admin()
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result()
    other = kafka.create_topic(topic + "-other")
    produce(kafka, topic, 4, partition=2)
    produce(kafka, other, 3)
    end, ranges = first, []
    patience = Patience()
    while len(ranges) < 2 and not patience.is_over():
        after = ask(source, end)
        ranges += planned(end, after)
        end = after
    assert sorted(ranges) == [(topic, 2, 0, 4), (other, 0, 0, 3)]


def test_a_batch_takes_no_more_than_its_limit_of_records(kafka: KafkaServer, topic: str) -> None:
    produce(kafka, topic, 90, partition=0)
    produce(kafka, topic, 10, partition=1)
    source = stream(kafka, topic, max_records_per_batch=20)
    offset: Offset = {}
    read = {0: 0, 1: 0}
    for _ in range(5):
        after = ask(source, offset)
        ranges = planned(offset, after)
        assert sum(end - start for _, _, start, end in ranges) == 20
        for _, partition, start, end in ranges:
            assert start == read[partition]
            read[partition] = end
        offset = after
    assert read == {0: 90, 1: 10}


def test_a_batch_takes_about_its_limit_of_bytes(kafka: KafkaServer, topic: str) -> None:
    produce(kafka, topic, 500, size=1000)
    source = stream(kafka, topic, max_bytes_per_batch=100_000)
    ((_, _, start, end),) = planned({}, ask(source, {}))
    assert start == 0
    assert 80 <= end <= 110


def test_an_open_transaction_is_not_read_before_it_ends(kafka: KafkaServer, topic: str) -> None:
    produce(kafka, topic, 2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, "open", partition=0)
    producer.flush()
    produce(kafka, topic, 3)
    source = stream(kafka, topic)
    first = ask(source, {})
    assert planned({}, first) == [(topic, 0, 0, 2)]
    producer.commit_transaction()
    second = wait_until(lambda: (after := ask(source, first)) != first and after)
    assert planned(first, second)[0][:3] == (topic, 0, 2)


def test_available_now_stops_at_what_was_there(kafka: KafkaServer, topic: str) -> None:
    produce(kafka, topic, 10)
    source = stream(kafka, topic, max_records_per_batch=6)
    source.only_what_is_there_now()
    produce(kafka, topic, 10)
    first = ask(source, {})
    second = ask(source, first)
    assert planned({}, first) + planned(first, second) == [(topic, 0, 0, 6), (topic, 0, 6, 10)]
    assert ask(source, second) == second


def test_a_topic_created_again_is_a_loss_or_starts_over(kafka: KafkaServer, topic: str) -> None:
    produce(kafka, topic, 5)
    source = stream(kafka, topic)
    first = ask(source, {})
    admin = kafka.admin()
    admin.delete_topics([topic])[topic].result()
    wait_until(lambda: topic not in kafka.admin().list_topics(timeout=60).topics)
    with pytest.raises(DataLoss, match=f"topics {topic} are gone"):
        ask(source, first)
    kafka.create_topic(topic, partitions=2)
    produce(kafka, topic, 8)
    with pytest.raises(DataLoss, match="was deleted and created again"):
        ask(source, first)
    skipping = stream(kafka, topic, on_data_loss="skip")
    second = ask(skipping, first)
    assert planned(first, second) == [(topic, 0, 0, 8)]
    assert ask(skipping, second) == second


def test_a_topic_that_does_not_exist_is_named(kafka: KafkaServer) -> None:
    with pytest.raises(InvalidInput, match="there is no topic no-such-topic; create it, or fix its name"):
        ask(stream(kafka, "no-such-topic"), {})


def metadata(*errors: int | None) -> dict[str, TopicMetadata]:
    """Of topics t0, t1, …, each with the error that a broker answered for it."""
    found = {}
    for number, code in enumerate(errors):
        topic = found[f"t{number}"] = TopicMetadata()
        topic.error = None if code is None else KafkaError(code)
    return found


@pytest.mark.parametrize(
    "code", [KafkaError.LEADER_NOT_AVAILABLE, KafkaError.REQUEST_TIMED_OUT, KafkaError.BROKER_NOT_AVAILABLE]
)
def test_an_error_beside_a_topic_that_passes_is_worth_a_retry_and_no_loss(code: int) -> None:
    brokers = {"bootstrap.servers": "127.0.0.1:9"}
    for settings in (
        KafkaSettings(config=brokers, topics=("t0", "t1")),
        KafkaSettings(config=brokers, topic_pattern="t.*"),
    ):
        with pytest.raises(Retry, match="can't describe topic 't1' now"):
            topics_there(metadata(None, code), settings, seen={"t0", "t1"})
    assert topics_there(metadata(None, code), KafkaSettings(config=brokers, topics=("t0",)), seen={"t0"}) == ["t0"], (
        "another's topic"
    )


def test_a_topic_of_which_the_broker_says_that_there_is_none_is_not_there() -> None:
    settings = KafkaSettings(config={"bootstrap.servers": "127.0.0.1:9"}, topics=("t0", "t1"))
    assert topics_there(metadata(None, KafkaError.UNKNOWN_TOPIC_OR_PART), settings, seen={"t0", "t1"}) == ["t0"]
    assert topics_there(metadata(None), settings, seen={"t0", "t1"}) == ["t0"]


def test_a_topic_that_is_refused_is_not_gone() -> None:
    settings = KafkaSettings(config={"bootstrap.servers": "127.0.0.1:9"}, topics=("t0",))
    with pytest.raises(InvalidInput, match="refuses access to topic 't0'"):
        topics_there(metadata(KafkaError.TOPIC_AUTHORIZATION_FAILED), settings, seen={"t0"})


def test_a_broker_that_does_not_host_a_partition_says_nothing_of_a_loss(kafka: KafkaServer, topic: str) -> None:
    cluster = KafkaCluster(KafkaSettings(config={"bootstrap.servers": kafka.bootstrap}, topics=(topic,)))
    assert isinstance(cluster.error_of_unknown([(topic, 0), (topic, 1)]), Retry)
    told = cluster.error_of_unknown([(topic, 0), (topic, 7)])
    assert isinstance(told, DataLoss)
    assert f"topic '{topic}' partition 7" in str(told)


def test_an_id_that_the_broker_does_not_tell_once_is_not_forgotten(kafka: KafkaServer, topic: str) -> None:
    source = stream(kafka, topic)
    produce(kafka, topic, 1)
    first = ask(source, {})
    source._ids = {}
    source._looked_at = time.monotonic()
    produce(kafka, topic, 1)
    assert source.next(first)["ids"] == first["ids"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"topics": ()}, "set either 'topics' or 'topic_pattern'"),
        ({"starting_offsets": "newest"}, "starting_offsets is 'newest'; use earliest"),
        ({"max_records_per_batch": 0}, "max_records_per_batch is 0; it must be at least 1"),
        ({"on_data_loss": "ignore"}, "use 'fail' or 'skip'"),
        ({"config": {}}, "'bootstrap.servers' is missing"),
    ],
)
def test_wrong_settings_are_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        KafkaSettings(**{"config": {"bootstrap.servers": "127.0.0.1:9"}, "topics": ("orders",), **wrong})


def test_settings_survive_the_way_to_the_tasks() -> None:
    settings = KafkaSettings(
        config={"bootstrap.servers": "a:1", "sasl.password": "p"}, topics=("x",), max_bytes_per_batch=5
    )
    assert KafkaSettings.from_json(settings.to_json()) == settings


def test_a_query_reads_every_record_once_over_restarts(
    kafka: KafkaServer, topic: str, spark: SparkSession, tmp_path: Path
) -> None:
    source = KafkaSource(
        KafkaSettings(config={"bootstrap.servers": kafka.bootstrap}, topics=(topic,), max_records_per_batch=700)
    )
    seen: dict[int, set[int]] = {0: set(), 1: set()}

    def collect(batch: DataFrame, batch_id: int) -> None:
        for row in batch.collect():
            for table in source.reader.read(Range(**row.asDict())):
                offsets = set(table.column("offset").to_pylist())
                assert not offsets & seen[row["partition"]]
                seen[row["partition"]] |= offsets

    for turn in range(1, 3):
        produce(kafka, topic, 1000, partition=0)
        produce(kafka, topic, 500, partition=1)
        writer = (
            source.stream(spark)
            .writeStream.foreachBatch(collect)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )
        ended(started(writer.start))
        assert seen == {0: set(range(1000 * turn)), 1: set(range(500 * turn))}
