"""Writes a signal to the topic that a connector reads, and follows the topic into which it writes notifications."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from lakebed.decode.metadata import VALUE_SCHEMA
from lakebed.errors import InvalidInput, Retry
from lakebed.sources.kafka.cluster import KafkaCluster, Partitions
from lakebed.sources.kafka.settings import GONE, REFUSED, KafkaSettings, kafka_error_of, without_secrets

_POLL_SECONDS = 0.5
_NOT_GIVEN = "kafka does not give the connector's notifications"
V = TypeVar("V")


def partitions_of(settings: KafkaSettings, topic: str) -> list[tuple[str, int]]:
    """The partitions of a topic. Raises InvalidInput if it is not there, Retry."""
    partitions, _ = _cluster(settings, topic).look()
    return partitions


def ends_of(settings: KafkaSettings, topic: str) -> Partitions:
    """The next offset of each partition of a topic. Raises InvalidInput if it is not there, Retry."""
    cluster = _cluster(settings, topic)
    partitions, _ = cluster.look()
    return cluster.latest(partitions)


def send(settings: KafkaSettings, topic: str, key: str, value: bytes) -> None:
    """Write one record to partition 0, once; returns when the brokers have it. Raises InvalidInput, Retry."""
    delivered: list[KafkaError | None] = []
    config = {**settings.admin_config(), "enable.idempotence": True, "log_level": 0}
    config["message.timeout.ms"] = int(settings.timeout_seconds * 1000)
    try:
        producer = Producer(config)
        producer.produce(topic, value, key.encode(), 0, on_delivery=lambda error, _: delivered.append(error))
        producer.flush(settings.timeout_seconds + 1)
    except (KafkaException, ValueError, TypeError) as error:
        text = without_secrets(str(error), settings.config)
        raise InvalidInput(f"kafka: the client refuses its settings: {text}") from None
    if not delivered:
        raise Retry(f"kafka did not say in time whether it has the record for {topic!r}; it may have")
    if delivered[0] is not None:
        raise _error(delivered[0], settings, f"kafka did not take the record for {topic!r}")


def messages_from(settings: KafkaSettings, begin: Partitions, until: float) -> Generator[Message | None, None, None]:
    """The records from these offsets on, as they come; None about twice a second while there are none.

    Ends when the caller stops asking. ``until``: monotonic seconds up to which brokers may fail.
    Raises InvalidInput, Retry.
    """
    consumer = Consumer({**settings.consumer_config(), "enable.partition.eof": False, "log_level": 0})
    try:
        consumer.assign([TopicPartition(topic, number, offset) for (topic, number), offset in begin.items()])
        while True:
            message = consumer.poll(_POLL_SECONDS)
            if message is not None and (error := message.error()) is not None:
                if error.code() in (*GONE, *REFUSED) or time.monotonic() >= until:
                    raise _error(error, settings, _NOT_GIVEN)
                message = None
            yield message
    except KafkaException as error:
        raise _error(kafka_error_of(error), settings, _NOT_GIVEN) from None
    finally:
        with suppress(RuntimeError):
            consumer.close()


def reading(typed: Callable[..., V] | None, message: Message) -> Callable[[bytes], V] | None:
    """What reads the value of a message by its schema, which a header may say; None if ``typed`` is."""
    return None if typed is None else partial(typed, header=dict(message.headers() or ()).get(VALUE_SCHEMA))


def _cluster(settings: KafkaSettings, topic: str) -> KafkaCluster:
    return KafkaCluster(replace(settings, topics=(topic,), topic_pattern=None, starting_offsets="earliest"))


def _error(error: KafkaError, settings: KafkaSettings, what: str) -> InvalidInput | Retry:
    text = f"{what}: {without_secrets(error.str(), settings.config)}"
    return (
        InvalidInput(f"{text}; check the credentials and the ACLs")
        if error.code() in (*REFUSED, *GONE)
        else Retry(text)
    )
