"""Ranges that one client fetches at once: the same records as by a client for each, and trouble stays with its range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition

from lakebed.errors import DataLoss, LakebedError
from lakebed.sources.kafka import assignment
from lakebed.sources.kafka import range as native
from lakebed.sources.kafka.assignment import assigned
from lakebed.sources.kafka.clients import KafkaClient, KeptClients
from lakebed.sources.kafka.range import consume_range
from lakebed.sources.kafka.settings import KafkaSettings
from lakebed.sources.source import Range
from tests.infra.kafka import KafkaServer

RECORDS = 40


class Clients:
    """Makes clients, and remembers which were closed."""

    def __init__(self) -> None:
        self.made: list[KafkaClient] = []
        self.closed: list[KafkaClient] = []
        self.kept: KeptClients[KafkaClient] = KeptClients(self.close)

    def __call__(self, config: dict[str, Any]) -> KafkaClient:
        self.made.append(KafkaClient(config))
        return self.made[-1]

    def close(self, client: KafkaClient) -> None:
        self.closed.append(client)
        client.close()


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> Clients:
    """The clients that are assigned to several ranges."""
    return watched(monkeypatch, assignment)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Clients:
    """The clients that read one range at a time."""
    return watched(monkeypatch, native)


def watched(monkeypatch: pytest.MonkeyPatch, module: Any) -> Clients:
    clients = Clients()
    monkeypatch.setattr(module, "KafkaClient", clients)
    monkeypatch.setattr(module, "_kept_clients", clients.kept)
    return clients


@pytest.fixture(scope="module")
def topics(kafka: KafkaServer) -> list[str]:
    """Three topics with 40 records each."""
    found = [kafka.create_topic(f"together-{uuid4().hex[:8]}") for _ in range(3)]
    for topic in found:
        produce(kafka, topic)
    return found


def produce(kafka: KafkaServer, topic: str, **more: Any) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(RECORDS):
        producer.produce(topic, f"{topic} {number}", b"k", partition=0, **more)
    producer.flush()


def settings(kafka: KafkaServer) -> KafkaSettings:
    return KafkaSettings(
        config={"bootstrap.servers": kafka.bootstrap, "log_level": 0}, topic_pattern=".*", timeout_seconds=20
    )


def read(kafka: KafkaServer, one: Range) -> pa.Table:
    return pa.concat_tables(consume_range(settings(kafka), one.topic, one.partition, one.start, one.end))


def ranges_of(topics: list[str]) -> list[Range]:
    return [Range(topic, 0, 5, 30 + number) for number, topic in enumerate(topics)]


def test_one_client_gives_the_same_records_as_a_client_for_each(
    kafka: KafkaServer, topics: list[str], together: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(kafka, topics[0], headers=[("__debezium.newkey", b"{}")])
    chosen = [Range(topics[0], 0, 30, 70), *ranges_of(topics)[1:]]
    separately = [read(kafka, one) for one in chosen]
    monkeypatch.setattr(native, "KafkaClient", None)
    monkeypatch.setattr(native, "_kept_clients", KeptClients(KafkaClient.close))
    for _ in range(2):
        with assigned(settings(kafka), chosen):
            assert [read(kafka, one) for one in reversed(chosen)] == separately[::-1]
    assert [table.num_rows for table in separately] == [40, 26, 27]
    assert (len(together.made), together.closed) == (1, [])


def deleted(kafka: KafkaServer, topic: str) -> None:
    admin = kafka.admin()
    admin.delete_records([TopicPartition(topic, 0, 20)])[TopicPartition(topic, 0)].result()


def gone(kafka: KafkaServer, topic: str) -> None:
    admin = kafka.admin()
    admin.delete_topics([topic])[topic].result()


def shorter(kafka: KafkaServer, topic: str) -> None:
    gone(kafka, topic)
    kafka.create_topic(topic)


@pytest.mark.few(1)
@pytest.mark.parametrize(("happens", "own"), [(deleted, 1), (gone, 2), (shorter, 1)])
def test_what_is_lost_of_one_range_fails_that_range_alone(
    kafka: KafkaServer,
    topics: list[str],
    together: Clients,
    alone: Clients,
    happens: Callable[[KafkaServer, str], None],
    own: int,
) -> None:
    """Brokers say nothing of a topic that is gone. So it looks as if nothing came, and the others are read alone, too."""
    lost = kafka.create_topic(f"lost-{uuid4().hex[:8]}")
    produce(kafka, lost)
    happens(kafka, lost)
    chosen = [Range(lost, 0, 5, 30), *ranges_of(topics)]
    found: list[int | type[LakebedError]] = []
    with assigned(settings(kafka), chosen):
        for one in chosen:
            try:
                found.append(read(kafka, one).num_rows)
            except LakebedError as error:
                found.append(type(error))
    assert found == [DataLoss, 25, 26, 27]
    assert (len(together.made), len(alone.made)) == (1, own)


def test_a_range_that_ends_with_an_aborted_transaction_is_read_to_its_end(
    kafka: KafkaServer, topics: list[str], together: Clients, alone: Clients
) -> None:
    topic = kafka.create_topic(f"aborted-{uuid4().hex[:8]}")
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic})
    producer.init_transactions()
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce(topic, b"v")
        producer.flush()
        end()
    chosen = [Range(topic, 0, 0, 4), *ranges_of(topics)]  # a record, a marker, an aborted record, a marker
    with assigned(settings(kafka), chosen):
        assert [read(kafka, one).num_rows for one in chosen] == [1, 25, 26, 27]
    assert not alone.made


def test_what_can_not_be_read_together_is_read_alone(
    kafka: KafkaServer, topics: list[str], together: Clients, alone: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignment, "RANGES_MAX", 2)
    chosen = ranges_of(topics)
    with assigned(settings(kafka), chosen):
        assert [read(kafka, one).num_rows for one in chosen[:2]] == [25, 26]
        assert not alone.made
        assert read(kafka, chosen[2]).num_rows == 27, "more than fit"
        assert read(kafka, chosen[0]).num_rows == 25, "a range that was read before"
        assert read(kafka, Range(topics[1], 0, 6, 20)).num_rows == 14, "a range that begins elsewhere"
    assert (len(together.made), len(alone.made)) == (1, 1)
    with assigned(settings(kafka), chosen[:1]):
        assert read(kafka, chosen[0]).num_rows == 25
    assert len(together.made) == 1, "nobody else shares it"


def test_where_nothing_comes_for_a_while_all_are_read_alone(
    kafka: KafkaServer, topics: list[str], together: Clients, alone: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "ASSIGNED_PATIENCE_SECONDS", -1.0)
    chosen = [Range(one.topic, 0, 0, RECORDS) for one in ranges_of(topics)]
    begun = []
    monkeypatch.setattr(native, "queue_of", lambda *of: begun.append(assignment.queue_of(*of)) or begun[-1])
    with assigned(settings(kafka), chosen):
        assert [read(kafka, one).column("offset").to_pylist() for one in chosen] == [list(range(RECORDS))] * 3
    assert [one is not None for one in begun] == [True, False, False]
    assert len(alone.made) == 1
    assert together.made[0].handle.value is None, "it is closed"


def test_who_still_reads_when_the_block_ends_reads_to_the_end(
    kafka: KafkaServer, topics: list[str], together: Clients, alone: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "TABLE_RECORDS_MAX", 10)
    chosen = ranges_of(topics)
    with assigned(settings(kafka), chosen):
        late = consume_range(settings(kafka), topics[0], 0, 5, 30)
        left = consume_range(settings(kafka), topics[1], 0, 5, 30)
        rows = [next(late).num_rows, next(left).num_rows]
    with assigned(settings(kafka), chosen[1:]):
        assert len(together.made) == 2, "the first client is in use"
    left.close()
    assert rows + [table.num_rows for table in late] == [10, 10, 10, 5]
    assert not alone.made
    with assigned(settings(kafka), chosen), assigned(settings(kafka), chosen[:2]):
        assert (len(together.made), together.closed) == (2, []), "both serve again, also one whose range was left early"


def test_a_topic_is_asked_for_when_it_is_assigned_first(kafka: KafkaServer, topics: list[str]) -> None:
    """The client alone looks at new topics once a second."""
    client = KafkaClient(settings(kafka).range_config())
    asked: list[str] = []
    calls = client.api

    class Watched:
        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            return getattr(calls, name)

    client.api = Watched()  # type: ignore[assignment]
    counts = []
    for chosen in (topics[:2], topics[:1], topics[1:], topics):
        client.assign({(topic, 0): 0 for topic in chosen})
        counts.append(asked.count("rd_kafka_metadata"))
    client.close()
    assert counts == [1, 1, 2, 2]
