"""Hints from a topic of Kafka, such as that to which an S3 server publishes its events.

Each worker reads all partitions, from their ends on, and in no group: so the owner of a table is among those that get its hint,
and nothing is left at the brokers when a worker is gone. What was published while nobody read is lost, as hints may be.
"""

from __future__ import annotations

import time
from contextlib import closing

from lakebed.errors import MissingPrerequisite, Retry
from lakebed.fleet.hint_reader import Messages
from lakebed.listeners.listener import KafkaTopic

PARTITIONS_SECONDS = 600.0
"""How often to ask whether there are more partitions."""
_ANSWER_SECONDS_MAX = 10.0
_BYTES_MAX = "4096"


def kafka_messages(topic: KafkaTopic) -> Messages:
    """The messages of a topic from now on. Raises InvalidInput, MissingPrerequisite, Retry."""
    try:
        from confluent_kafka import KafkaError

        from lakebed.sources.kafka.settings import KafkaSettings
        from lakebed.sources.kafka.signal_topic import ends_of, messages_from
    except ModuleNotFoundError as error:
        raise MissingPrerequisite(f"hints from Kafka need {error.name}: pip install 'lakebed[kafka]'") from None
    troubles: list[
        KafkaError
    ] = []  # that the client meets in the background; it goes on by itself, and says nothing else
    config = {**topic.resolved(), "bootstrap.servers": topic.servers, "error_cb": troubles.append}
    config["queued.max.messages.kbytes"] = _BYTES_MAX
    settings = KafkaSettings(config=config, topics=(topic.topic,), timeout_seconds=_ANSWER_SECONDS_MAX)
    read: dict[tuple[str, int], int] = {}
    while True:
        begin = {**ends_of(settings, topic.topic), **read}
        until = time.monotonic() + PARTITIONS_SECONDS
        with closing(messages_from(settings, begin, 0.0, f"hints of the topic {topic.topic!r}")) as messages:
            for message in messages:
                if message is None:
                    yield None
                else:
                    read[topic.topic, message.partition() or 0] = (message.offset() or 0) + 1
                    yield message.value()
                if any(trouble.code() == KafkaError._ALL_BROKERS_DOWN for trouble in troubles):
                    raise Retry(f"no broker of {topic.servers} can be reached")
                troubles.clear()
                if time.monotonic() >= until:
                    break
