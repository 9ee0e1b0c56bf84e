"""A Kafka broker: KRaft, one node, one process, plaintext on loopback."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.infra.downloads import kafka_jars
from tests.infra.jvm import java_command, properties_text
from tests.infra.server import HOST, Server, ServerFailed, can_connect

HEAP_MB_MAX = 512
CLUSTER_ID = "bGFrZWJlZC10ZXN0cy0wMQ"  # any 16 bytes in base64 that do not begin with a dash
REQUEST_SECONDS_MAX = 30
SILENCE_SECONDS_MAX = 60
MESSAGES_MAX = 10_000


class KafkaServer(Server):
    """One broker that is its own controller; ``bootstrap`` is what clients are given."""

    name = "kafka"
    ports_needed = 2

    def __init__(self, run_folder: Path | None = None, settings: Mapping[str, object] | None = None) -> None:
        super().__init__(run_folder)
        self._settings = dict(settings or {})

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.ports[0]}"

    def admin(self) -> AdminClient:
        """A client for topics, offsets and configuration."""
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def create_topic(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Creates a topic and returns its name when the broker knows it."""
        new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
        admin = self.admin()  # held until the answer is here: the client gives up its requests when it goes
        admin.create_topics([new])[topic].result(REQUEST_SECONDS_MAX)
        return topic

    def prepare(self) -> None:
        data = self.run_folder / "data"
        configuration = self.run_folder / "server.properties"
        configuration.write_text(properties_text(self._configuration(data)))
        if (data / "meta.properties").exists():
            return
        arguments = ("format", "-t", CLUSTER_ID, "-c", str(configuration))
        done = subprocess.run(
            java_command(kafka_jars(), self.run_folder, 128, "kafka.tools.StorageTool", *arguments),
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise ServerFailed(f"kafka could not format {data}:\n{done.stdout}{done.stderr}")

    def command(self) -> list[str]:
        configuration = str(self.run_folder / "server.properties")
        return java_command(kafka_jars(), self.run_folder, HEAP_MB_MAX, "kafka.Kafka", configuration)

    def is_ready(self) -> bool:
        if not can_connect(self.ports[0]):
            return False
        try:
            return bool(self.admin().list_topics(timeout=2).brokers)
        except KafkaException:
            return False

    def _configuration(self, data: Path) -> dict[str, object]:
        broker, controller = self.ports[:2]
        single_node: dict[str, object] = {
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 2,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 2,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
        }
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{HOST}:{broker},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{broker}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": data,
            "num.partitions": 2,
            "num.network.threads": 2,
            "num.io.threads": 2,
            # A broker that was killed may come back only when its old session is over; the default is nine seconds.
            "broker.session.timeout.ms": 3000,
            "broker.heartbeat.interval.ms": 500,
            # Consumers of a test are alone in their group: waiting for others to join only costs time.
            "group.initial.rebalance.delay.ms": 0,
            # So that tests of retention and compaction see their effect within a second.
            "log.retention.check.interval.ms": 500,
            "log.cleaner.backoff.ms": 500,
            "log.segment.delete.delay.ms": 500,
            **single_node,
            **self._settings,
        }


def end_offsets(bootstrap: str, topic: str, partitions: int) -> dict[int, int]:
    """The next offset of every partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends"})
    try:
        places = [TopicPartition(topic, number) for number in range(partitions)]
        return {each.partition: consumer.get_watermark_offsets(each, REQUEST_SECONDS_MAX)[1] for each in places}
    finally:
        consumer.close()


def messages_before(bootstrap: str, topic: str, ends: Mapping[int, int]) -> Iterator[Message]:
    """All messages before these offsets, partition by partition, in order. Raises RuntimeError if some do not come."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False}
    consumer = Consumer({**settings, "auto.offset.reset": "error"})
    try:
        for partition, end in ends.items():
            consumer.assign([TopicPartition(topic, partition, 0)])
            position = 0
            while position < end:
                # It waits until it has as many as it was asked for, so it must not be asked for more than there are.
                messages = consumer.consume(min(MESSAGES_MAX, end - position), SILENCE_SECONDS_MAX)
                if not messages:
                    raise RuntimeError(f"{topic}: partition {partition} gave nothing at offset {position} of {end}")
                for message in messages:
                    if message.error() is not None:
                        raise RuntimeError(f"{topic}: {message.error()}")
                    position = message.offset() + 1
                    yield message
    finally:
        consumer.close()
