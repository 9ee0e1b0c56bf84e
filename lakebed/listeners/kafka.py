"""Delivers events to a topic of Kafka: the key is the table's name, the value is the CloudEvent in JSON.

1. All events of a table have one key, so they are in one partition, in order. The producer is idempotent: it keeps the order
   when it sends again, and writes nothing twice by itself.
2. No record has a time limit of its own: else one could fail while later ones of its table go on. The whole round has one. When
   it is over, the producer is given up with all that it still has, and the next round begins with a new one.
3. What was acknowledged counts up to the first record that was not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakebed.errors import InvalidInput, MissingPrerequisite
from lakebed.listeners.cloud_events import CONTENT_TYPE, encoded
from lakebed.listeners.destination import Failure, Groups, Sent
from lakebed.listeners.listener import KafkaTopic

SEND_SECONDS_MAX = 30.0
_FIXED: dict[str, Any] = {
    "enable.idempotence": True,
    "enable.gapless.guarantee": True,  # after a record that failed for good, none is written
    "message.timeout.ms": 0,
    "partitioner": "murmur2_random",  # as Java's clients choose partitions
    "message.max.bytes": 8_000_000,
    "linger.ms": 5,
    "log_level": 0,
}


class KafkaDestination:
    """A topic. ``source``: the root that the tables are below."""

    def __init__(self, target: KafkaTopic, source: str) -> None:
        self._target = target
        self._source = source
        self._producer: Any = None

    def send(self, groups: Groups) -> Mapping[str, Sent]:
        """Send the events of each table. Raises MissingPrerequisite, InvalidInput for settings that the client refuses."""
        producer = self._producer = self._producer or _producer(self._target)
        answers: dict[tuple[str, int], str] = {}  # "" for a record that was written
        count = 0
        for table, events in groups.items():
            for number, event in enumerate(events):

                def answered(error: Any, _: Any, place: tuple[str, int] = (table, number)) -> None:
                    answers[place] = str(error.str()) if error is not None else ""

                count += 1
                refused = self._produce(table, encoded(event, self._source), answered)
                if refused:
                    answers[table, number] = refused
                    break
        producer.flush(SEND_SECONDS_MAX)
        if len(answers) < count or any(answers.values()):
            self.close()
        return {
            table: self._sent([answers.get((table, number)) for number in range(len(events))])
            for table, events in groups.items()
        }

    def close(self) -> None:
        """Give up the producer, and what it has not sent."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge(in_queue=True, in_flight=True, blocking=True)
            producer.flush(1.0)

    def _produce(self, table: str, value: bytes, answered: Any) -> str:
        """Hand a record to the client; why it takes none, "" if it does."""
        from confluent_kafka import KafkaException

        headers = {"content-type": CONTENT_TYPE}
        while True:
            try:
                self._producer.produce(self._target.topic, value, table.encode(), headers=headers, on_delivery=answered)
                self._producer.poll(0)
                return ""
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:
                return str(error)

    def _sent(self, answers: list[str | None]) -> Sent:
        for number, answer in enumerate(answers):
            if answer != "":
                reason = answer or f"no broker acknowledged it within {SEND_SECONDS_MAX:.0f} s"
                where = f"{self._target.servers}, topic {self._target.topic}"
                return Sent(number, Failure(reason=f"{where}: {reason}", is_of_all=True))
        return Sent(len(answers))


def _producer(target: KafkaTopic) -> Any:
    try:
        from confluent_kafka import KafkaException, Producer  # only those who use Kafka need its client
    except ModuleNotFoundError as error:
        raise MissingPrerequisite("a listener of Kafka needs confluent-kafka: pip install 'lakebed[kafka]'") from error
    config = {**target.resolved(), **_FIXED, "bootstrap.servers": target.servers}
    try:
        return Producer(config)
    except (KafkaException, ValueError, TypeError) as error:
        text = str(error)
        for value in target.resolved().values():
            text = text.replace(value, "…") if len(value) > 3 else text
        raise InvalidInput(f"kafka: the client refuses the settings of the listener: {text}") from None
