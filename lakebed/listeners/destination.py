"""Where events are delivered to, as the loop of a delivery sees it: a function of this process, or a topic of Kafka."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from lakebed.errors import InvalidInput, MissingPrerequisite
from lakebed.listeners.event_types import CONTENT_TYPE, TableEvent, encoded
from lakebed.listeners.listener import KafkaTopic

Groups: TypeAlias = Mapping[str, Sequence[TableEvent]]
"""Events by table, in order."""
Callback: TypeAlias = Callable[[TableEvent], object]
_logger = logging.getLogger("lakebed.listeners")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an event was not acknowledged. ``is_of_all``: other tables' events would fare the same; ``pause_seconds``: how long the
    receiver asks to be left alone."""

    reason: str
    is_of_all: bool = False
    pause_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Sent:
    """How many of a table's events were acknowledged, the first ones; and why not all, if so."""

    acknowledged: int
    failure: Failure | None = None


class Destination(Protocol):
    """A place that acknowledges events. Only one thread uses it."""

    def send(self, groups: Groups) -> Mapping[str, Sent]:
        """Send events: of each table in order, and none after one that was not acknowledged. Takes bounded time.

        Raises LakebedError if nothing can be sent, for example without a secret.
        """
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


class CallbackDestination:
    """Calls a function with each event; one that raises has not acknowledged it."""

    def __init__(self, callback: Callback, is_stopped: Callable[[], bool]) -> None:
        self._callback = callback
        self._is_stopped = is_stopped

    def send(self, groups: Groups) -> Mapping[str, Sent]:
        """Call the function, table by table, until the listening stops."""
        return {table: self._called(events) for table, events in groups.items()}

    def close(self) -> None:
        """Nothing is held."""

    def _called(self, events: Sequence[TableEvent]) -> Sent:
        for number, event in enumerate(events):
            if self._is_stopped():
                return Sent(number, Failure(reason="it is stopped", is_of_all=True))
            try:
                self._callback(event)
            except Exception as error:
                _logger.exception("a listener failed on %s of %s", event.kind, event.table)
                return Sent(number, Failure(reason=f"{type(error).__name__}: {error}"))
        return Sent(len(events))


# -- Delivers events to a topic of Kafka: the key is the table's name, the value is the CloudEvent in JSON -----------------
#
# 1. All events of a table have one key, so they are in one partition, in order. The producer is idempotent: it keeps the order
#    when it sends again, and writes nothing twice by itself.
# 2. No record has a time limit of its own: else one could fail while later ones of its table go on. The whole round has one. When
#    it is over, the producer is given up with all that it still has, and the next round begins with a new one.
# 3. What was acknowledged counts up to the first record that was not.


_SEND_SECONDS_MAX = 30.0
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
        producer.flush(_SEND_SECONDS_MAX)
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
                reason = answer or f"no broker acknowledged it within {_SEND_SECONDS_MAX:.0f} s"
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
