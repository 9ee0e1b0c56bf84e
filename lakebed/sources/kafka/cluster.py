"""Ask a Kafka cluster which partitions it has, and where they begin and end.

Where many topics are read, each for a table of its own (``DatabaseCluster``), trouble with one is no trouble of the others. A
topic that is not there (yet, or any more), that refuses access, or a partition that has no leader just now, is left out of what
this returns. Everything else is as for one table: no answer from the brokers is Retry, a refused login InvalidInput.

Signals are written to the topic that a connector reads, and the topic into which it writes notifications is followed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ClusterMetadata, ConfigResource, TopicDescription, TopicMetadata

from lakebed.decode.metadata import VALUE_SCHEMA
from lakebed.errors import DataLoss, InvalidInput, Retry
from lakebed.settings import suggest
from lakebed.sources.kafka.settings import GONE, REFUSED, KafkaSettings, kafka_error_of, without_secrets

Partitions = dict[tuple[str, int], int]
"""(topic, partition) to an offset."""
LOOK_SECONDS = 5.0
_TRY_AGAIN_SECONDS = 0.2
GIVE_UP_SECONDS = 3600.0
"""The longest that librdkafka takes."""
LOST_SECONDS = 3.0
REPLACED_MAX = 8
T = TypeVar("T")


class KafkaCluster:
    def __init__(self, settings: KafkaSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._seen: set[str] = set()
        # Errors that the client met in the background; the error of a call says only that it got no answer.
        self._troubles: list[KafkaError] = []
        self._asked: dict[str, Future[TopicDescription]] = {}
        self._asked_at = 0.0
        self._replaced: list[tuple[AdminClient, dict[str, Future[TopicDescription]]]] = []

    @cached_property
    def _admin(self) -> AdminClient:
        return self._client(AdminClient, self._settings.admin_config())

    @cached_property
    def _consumer(self) -> Consumer:
        """Asks for metadata and offsets: one request to each broker, for a third of the CPU time that the admin client takes.

        It looks up offsets of those partitions alone that its own newest metadata have.
        """
        return self._client(Consumer, self._settings.consumer_config())

    def _client(self, kind: type[T], config: Mapping[str, Any]) -> T:
        try:
            return kind({**config, "error_cb": self._troubles.append, "log_level": 0})  # type: ignore[call-arg]
        except (KafkaException, ValueError, TypeError) as error:
            text = without_secrets(str(error), self._settings.config)
            raise InvalidInput(f"kafka: the client refuses its settings: {text}") from None

    def answers(self) -> None:
        """Raises Retry if no broker answers in time, InvalidInput if it refuses this client."""
        self._patiently(self._metadata)

    def heartbeat_ends(self, prefix: str) -> dict[str, int]:
        """The ends of the topics of this prefix whose rest begins the names of topics that are read. Raises Retry."""
        topics = self._metadata().topics
        read = self._settings.chosen(set(topics))
        found = [
            topic
            for topic in topics
            if topic.startswith(prefix) and any(one.startswith(f"{topic.removeprefix(prefix)}.") for one in read)
        ]
        try:
            return {topic: self._end_of(topic) for topic in found}
        except KafkaException as error:
            raise self._unreachable(error) from None

    def _end_of(self, topic: str) -> int:
        place = TopicPartition(topic, 0)
        return int(self._consumer.get_watermark_offsets(place, timeout=self._settings.timeout_seconds)[1])

    def look(self) -> tuple[list[tuple[str, int]], dict[str, str]]:
        """The partitions that the settings select, and the ids of their topics where the brokers return them."""

        def selected() -> tuple[dict[str, TopicMetadata], list[str]]:
            metadata = self._metadata().topics
            return metadata, topics_there(metadata, self._settings, self._seen)

        metadata, topics = self._patiently(selected)
        self._seen.update(topics)
        partitions = [(topic, number) for topic in topics for number in sorted(metadata[topic].partitions)]
        return partitions, self.ids(topics)

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Repeats the question until there is an answer, since leaders move and a new topic reaches the brokers one by one.

        Raises Retry after ``timeout_seconds``.
        """
        until = time.monotonic() + self._settings.timeout_seconds
        while True:
            try:
                return ask()
            except Retry:
                if time.monotonic() >= until:
                    raise
                time.sleep(_TRY_AGAIN_SECONDS)

    def _metadata(self) -> ClusterMetadata:
        """The metadata of all topics: a request for a topic by its name may create it."""
        try:
            return self._consumer.list_topics(timeout=min(LOOK_SECONDS, self._settings.timeout_seconds))
        except KafkaException as error:
            raise self._unreachable(error) from None

    def ids(self, topics: Sequence[str]) -> dict[str, str]:
        """The ids of topics; of those alone of which the brokers say it within ``timeout_seconds``.

        Only the admin client knows ids. Questions that it gave up, and that brokers answered later, have ended a process: an
        assertion of librdkafka 2.16. So it gives up none before the connection does; only this function waits no longer.

        1.  While a question has no answer, no other is asked.
        2.  But the network may have lost its connection, which nobody notices for an hour. So if there is no answer for
            ``LOST_SECONDS``, and the brokers answer the consumer, another client asks, over connections of its own.
        """
        if not topics:
            return {}
        until = self._clock() + self._settings.timeout_seconds
        if not self._is_answered(until) and not self._replace_admin():
            return {}
        self._ask(topics)
        if not self._is_answered(until) and self._replace_admin():
            self._ask(topics)
            wait(self._asked.values(), max(0.0, until - self._clock()))
        ids = {}
        for topic, answer in self._asked.items():
            with suppress(KafkaException):  # without the id, only offsets can show that the topic was replaced
                if answer.done():
                    ids[topic] = str(answer.result().topic_id)
        return ids

    def _ask(self, topics: Sequence[str]) -> None:
        self._asked = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=GIVE_UP_SECONDS)
        self._asked_at = self._clock()

    def _is_answered(self, until: float) -> bool:
        """Whether the newest question has its answers by then, or before its connection counts as lost."""
        wait(self._asked.values(), max(0.0, min(until, self._asked_at + LOST_SECONDS) - self._clock()))
        return not _pending(self._asked)

    def _replace_admin(self) -> bool:
        """Whether another client can ask now, since the connection counts as lost. Clients stay until they have their answers."""
        if self._clock() < self._asked_at + LOST_SECONDS:
            return False
        self._replaced = [one for one in self._replaced if _pending(one[1])]
        with suppress(Retry):
            self._metadata()
            if len(self._replaced) < REPLACED_MAX:
                self._replaced.append((vars(self).pop("_admin"), self._asked))
                self._asked = {}
                return True
        return False

    def earliest(self, partitions: list[tuple[str, int]]) -> Partitions:
        return self._offsets(dict.fromkeys(partitions, OFFSET_BEGINNING))

    def latest(self, partitions: list[tuple[str, int]]) -> Partitions:
        """The end offsets; with ``read_committed`` the last stable offsets."""
        return self._offsets(dict.fromkeys(partitions, OFFSET_END))

    def starting(self, partitions: list[tuple[str, int]]) -> Partitions:
        """Where the settings say to begin."""
        starting = self._settings.starting_offsets
        if starting == "latest":
            return self.latest(partitions)
        if isinstance(starting, str):
            return self.earliest(partitions)
        if set(starting) == {"timestamp"}:
            found = self._offsets(dict.fromkeys(partitions, int(starting["timestamp"])))
            later = [partition for partition, offset in found.items() if offset < 0]
            return {**found, **(self.latest(later) if later else {})}
        return {**self.earliest(partitions), **self._listed(starting, partitions)}

    def _listed(self, starting: Mapping[str, Any], partitions: list[tuple[str, int]]) -> Partitions:
        listed = {(topic, int(number)): offset for topic, of in starting.items() for number, offset in of.items()}
        if unknown := sorted(listed.keys() - set(partitions)):
            topic, partition = unknown[0]
            raise InvalidInput(f"kafka: starting_offsets has topic {topic!r} partition {partition}, which is not read")
        return listed

    def _offsets(self, wanted: Mapping[tuple[str, int], int]) -> Partitions:
        return self._patiently(lambda: self._offsets_now(wanted)) if wanted else {}

    def _offsets_now(self, wanted: Mapping[tuple[str, int], int]) -> Partitions:
        """``wanted``: by partition a time in milliseconds, or one of librdkafka's marks for the beginning and the end."""
        try:
            answers = self._answers(wanted)
            for answer in answers:
                if answer.error is not None:
                    raise KafkaException(answer.error)
        except KafkaException as error:
            if kafka_error_of(error).code() in GONE:
                raise self.error_of_unknown(wanted) from None
            raise self._unreachable(error) from None
        return {(answer.topic, answer.partition): answer.offset for answer in answers}

    def _answers(self, wanted: Mapping[tuple[str, int], int]) -> list[TopicPartition]:
        asked = [TopicPartition(topic, partition, at) for (topic, partition), at in wanted.items()]
        found: list[TopicPartition] = self._consumer.offsets_for_times(asked, timeout=self._settings.timeout_seconds)
        return found

    def error_of_unknown(self, wanted: Iterable[tuple[str, int]]) -> Exception:
        """The error for a partition that a broker does not host. The metadata show whether it is gone."""
        metadata = self._metadata().topics
        present = set(topics_there(metadata, self._settings, self._seen))
        lost = sorted((t, number) for t, number in wanted if t not in present or number not in metadata[t].partitions)
        if not lost or self._settings.on_data_loss == "skip":
            return Retry("kafka: a broker was asked for a partition that it does not host (any more)")
        topic, partition = lost[0]
        return DataLoss(
            f"kafka: topic {topic!r} partition {partition}, which is being read, is gone; was it deleted?",
            topic=topic,
            partition=partition,
        )

    def _unreachable(self, error: KafkaException) -> Exception:
        """The error for a failed call. The client's background errors are collected first: a refused login is one of them."""
        cause = kafka_error_of(error)
        self._troubles.clear()
        self._consumer.poll(0)
        for trouble in self._troubles:
            if trouble.code() in (*REFUSED, KafkaError._SSL, KafkaError._RESOLVE):
                cause = trouble
        text = without_secrets(cause.str(), self._settings.config)
        if cause.code() in REFUSED:
            return InvalidInput(f"kafka refuses access: {text}; check the credentials and the ACLs")
        return Retry(f"kafka at {self._settings.config['bootstrap.servers']} did not answer: {text}")


def _pending(asked: Mapping[str, Future[TopicDescription]]) -> bool:
    return not all(answer.done() for answer in asked.values())


def topics_there(metadata: Mapping[str, TopicMetadata], settings: KafkaSettings, seen: AbstractSet[str]) -> list[str]:
    """The topics that the settings select and the cluster has. ``seen`` are those that it had before.

    Only an error in ``GONE`` says that a topic does not exist. With any other error the topic may exist: then this raises
    Retry. Raises InvalidInput for a topic to which access is refused or that never existed.
    """
    present = []
    for topic in settings.chosen(set(metadata)):
        error = metadata[topic].error
        if error is None:
            present.append(topic)
        elif error.code() in REFUSED:
            if topic in seen or topic in settings.topics:
                raise InvalidInput(
                    f"kafka refuses access to topic {topic!r}: {error.str()}; check the credentials and the ACLs"
                )
        elif error.code() not in GONE:
            raise Retry(f"kafka can't describe topic {topic!r} now: {error.str()}")
    missing = sorted(set(settings.topics) - set(present) - seen)
    if missing:
        near = suggest(missing[0], [topic for topic in metadata if not topic.startswith("__")])
        raise InvalidInput(f"kafka: there is no topic {', '.join(missing)}; create it, or fix its name{near}")
    return present


log = logging.getLogger(__name__)


class DatabaseCluster(KafkaCluster):
    def __init__(self, settings: KafkaSettings) -> None:
        super().__init__(settings)
        self._warned: set[str] = set()

    def partitions(self) -> list[tuple[str, int]]:
        """The partitions that the settings select and that can be read now."""
        return self._patiently(self._partitions_now)

    def _partitions_now(self) -> list[tuple[str, int]]:
        metadata = self._metadata().topics
        found = []
        for topic in self._settings.chosen(set(metadata)):
            error = metadata[topic].error
            if error is None:
                partitions = metadata[topic].partitions
                found += [(topic, number) for number in sorted(partitions) if partitions[number].leader >= 0]
                self._warned.discard(topic)
            elif topic not in self._warned and error.code() not in GONE:
                self._warned.add(topic)
                log.warning("kafka: topic %r is left out until it can be read: %s", topic, error.str())
        return found

    def counts(self, topics: Collection[str]) -> dict[str, int]:
        """How many partitions topics have, those without a leader too. Topics that are not there or not selected are left out."""
        found = self._patiently(self._metadata).topics
        chosen = set(self._settings.chosen(set(topics).intersection(found)))
        errors = {topic: found[topic].error for topic in chosen}
        return {
            topic: len(found[topic].partitions)
            for topic, error in errors.items()
            if error is None or error.code() not in GONE
        }

    def _listed(self, starting: Mapping[str, Any], partitions: list[tuple[str, int]]) -> Partitions:
        listed = {(topic, int(number)): offset for topic, of in starting.items() for number, offset in of.items()}
        return {partition: listed[partition] for partition in partitions if partition in listed}

    def _offsets_now(self, wanted: Mapping[tuple[str, int], int]) -> Partitions:
        """The offsets of the partitions that have an answer. If one is gone, the whole question fails; then the rest is asked."""
        while wanted:
            try:
                answers = self._answers(wanted)
            except KafkaException as error:
                if kafka_error_of(error).code() not in GONE:
                    raise self._unreachable(error) from None
                there = set(self._partitions_now())
                left = {partition: at for partition, at in wanted.items() if partition in there}
                if len(left) == len(wanted):
                    raise Retry("kafka: a broker was asked for a partition that it does not host (any more)") from None
                wanted = left
            else:
                return {(answer.topic, answer.partition): answer.offset for answer in answers if answer.error is None}
        return {}


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


def cleanup_policy_of(settings: KafkaSettings, topic: str) -> str:
    """What the brokers do with old records of a topic: ``delete``, ``compact`` or both. Raises InvalidInput, Retry."""
    try:
        admin = AdminClient({**settings.admin_config(), "log_level": 0})
        [asked] = admin.describe_configs(
            [ConfigResource(ConfigResource.Type.TOPIC, topic)], request_timeout=settings.timeout_seconds
        ).values()
        found = asked.result(settings.timeout_seconds + 1)
    except KafkaException as error:
        raise _error(kafka_error_of(error), settings, f"kafka does not tell the settings of {topic!r}") from None
    except TimeoutError:
        raise Retry(f"kafka does not tell the settings of {topic!r} in time") from None
    return str(found["cleanup.policy"].value)


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
