"""What to read from Kafka, and how clients are configured. No text that this module makes contains a secret."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from confluent_kafka import Consumer, KafkaError, KafkaException

from lakebed.errors import InvalidInput

_StartingOffsets = str | Mapping[str, Any]
_OnDataLoss = Literal["fail", "skip"]

_SENSITIVE = re.compile(r"password|secret|jaas|\.pem$|token|credential|sasl\.oauthbearer\.config", re.IGNORECASE)
_CONSUMER_ONLY = re.compile(
    r"^(group\.|isolation\.|fetch\.|queued\.|enable\.auto|enable\.partition|auto\.|check\.crcs|max\.poll|session\."
    r"|max\.partition)"
)

_CONSUMER_DEFAULTS: dict[str, Any] = {
    "group.id": "lakebed",  # the client needs one, but no offset is ever committed to it
    "isolation.level": "read_committed",
    "allow.auto.create.topics": False,
    "fetch.queue.backoff.ms": 20,  # the default of a second would halve the throughput when the queue fills up
    "queued.max.messages.kbytes": 65_536,
}
_CLIENT_DEFAULTS: dict[str, Any] = {
    # By librdkafka's defaults a client waits for ten seconds or more before it connects again, however soon the broker is back;
    # for half a minute for a connection; and for a minute for an answer that a network has lost.
    "reconnect.backoff.max.ms": 2_000,
    "socket.connection.setup.timeout.ms": 5_000,
    "api.version.request.timeout.ms": 5_000,
    "socket.timeout.ms": 10_000,
}
_GIVEN_WITH = {"reconnect.backoff.max.ms": "reconnect.backoff.ms", "socket.timeout.ms": "fetch.wait.max.ms"}
"""The client refuses the one if the other is larger, so who sets the other gets the client's own default of the one."""
_RANGE_DEFAULTS: dict[str, Any] = {
    "fetch.wait.max.ms": 10,  # records of a range are there already, and who waits for others keeps it from being asked for
}
_CONSUMER_FIXED: dict[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
}


GONE = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_ID,
)
REFUSED = (
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """The topics by name or by pattern, where to start, and how much a batch may read.

    ``config`` holds librdkafka's own settings (``bootstrap.servers``, ``security.protocol``, ``sasl.*``, ``ssl.*``).
    ``starting_offsets``: ``earliest``, ``latest``, ``{"timestamp": <epoch milliseconds>}`` or ``{topic: {partition:
    offset}}`` (partitions not listed start at earliest). It applies to the first batch only; afterwards the checkpoint
    decides, and partitions that appear later start at earliest.
    """

    config: Mapping[str, Any]
    topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    starting_offsets: _StartingOffsets = "earliest"
    max_records_per_batch: int | None = None
    max_bytes_per_batch: int | None = None
    on_data_loss: _OnDataLoss = "fail"
    timeout_seconds: float = 60.0

    def __post_init__(self) -> None:
        if not self.config.get("bootstrap.servers"):
            raise InvalidInput("kafka: 'bootstrap.servers' is missing; set it to host:port of a broker")
        if bool(self.topics) == (self.topic_pattern is not None):
            raise InvalidInput("kafka: set either 'topics' or 'topic_pattern'")
        if self.topic_pattern is not None:
            try:
                re.compile(self.topic_pattern)
            except re.error as error:
                what = f"kafka: topic_pattern {self.topic_pattern!r} is not a regular expression"
                raise InvalidInput(f"{what}: {error}") from error
        if taken := sorted(_CONSUMER_FIXED.keys() & self.config.keys()):
            raise InvalidInput(f"kafka: {', '.join(taken)} can't be set: lakebed keeps the offsets itself")
        for name in ("max_records_per_batch", "max_bytes_per_batch"):
            limit = getattr(self, name)
            if limit is not None and limit < 1:
                raise InvalidInput(f"kafka: {name} is {limit}; it must be at least 1")
        if self.on_data_loss not in ("fail", "skip"):
            raise InvalidInput(f"kafka: on_data_loss is {self.on_data_loss!r}; use 'fail' or 'skip'")
        _check_starting(self.starting_offsets)

    def __repr__(self) -> str:
        what = self.topic_pattern or ", ".join(self.topics)
        return f"KafkaSettings({what} at {self.config['bootstrap.servers']})"

    def chosen(self, topics: set[str]) -> list[str]:
        """Which of a cluster's topics the settings select."""
        if self.topic_pattern is None:
            return sorted(topics.intersection(self.topics))
        pattern = re.compile(self.topic_pattern)
        return sorted(topic for topic in topics if pattern.fullmatch(topic) and not topic.startswith("__"))

    def consumer_config(self) -> dict[str, Any]:
        return {**self._client_defaults(), **_CONSUMER_DEFAULTS, **self.config, **_CONSUMER_FIXED}

    def range_config(self) -> dict[str, Any]:
        """Of a consumer that reads ranges, whose records are there already."""
        return {**_RANGE_DEFAULTS, **self.consumer_config()}

    def admin_config(self) -> dict[str, Any]:
        return self._client_defaults() | {
            name: value for name, value in self.config.items() if not _CONSUMER_ONLY.match(name)
        }

    def _client_defaults(self) -> dict[str, Any]:
        return {name: value for name, value in _CLIENT_DEFAULTS.items() if _GIVEN_WITH.get(name) not in self.config}

    def to_json(self) -> str:
        return json.dumps(
            {
                "config": dict(self.config),
                "topics": list(self.topics),
                "topic_pattern": self.topic_pattern,
                "starting_offsets": self.starting_offsets,
                "max_records_per_batch": self.max_records_per_batch,
                "max_bytes_per_batch": self.max_bytes_per_batch,
                "on_data_loss": self.on_data_loss,
                "timeout_seconds": self.timeout_seconds,
            }
        )

    @staticmethod
    def from_json(text: str) -> KafkaSettings:
        values = json.loads(text)
        return KafkaSettings(**{**values, "topics": tuple(values["topics"])})


def _check_starting(starting: _StartingOffsets) -> None:
    if isinstance(starting, str):
        if starting not in ("earliest", "latest"):
            raise InvalidInput(
                f"kafka: starting_offsets is {starting!r}; use earliest, latest, {{timestamp: <epoch milliseconds>}} "
                "or {topic: {partition: offset}}"
            )
        return
    if set(starting) == {"timestamp"} and isinstance(starting["timestamp"], int):
        return
    for topic, offsets in starting.items():
        if not isinstance(offsets, Mapping) or not all(isinstance(offset, int) for offset in offsets.values()):
            raise InvalidInput(f"kafka: starting_offsets of topic {topic!r} must be {{partition: offset}}")


def refused_settings(settings: KafkaSettings) -> dict[str, str]:
    """The settings of ``config`` that the client refuses, each with the reason. No connection is made."""
    kept = {name: value for name, value in settings.consumer_config().items() if name != "bootstrap.servers"}
    refused: dict[str, str] = {}
    while True:
        try:
            Consumer({**kept, "log_level": 0}).close()
            return refused
        except (KafkaException, ValueError, TypeError) as error:
            text = kafka_error_of(error).str() if isinstance(error, KafkaException) else str(error)
            named = [name for name in settings.config if name in kept and f'"{name}"' in text.replace("'", '"')]
            named = named or [name for name in settings.config if name in kept and name in text]
            why = f"the client refuses it: {without_secrets(text, settings.config)}"
            if not named:
                return refused | {"": why}
            del kept[named[0]]
            refused[named[0]] = why


def kafka_error_of(error: KafkaException) -> KafkaError:
    """The KafkaError with the code of the failure, which confluent-kafka documents to be the exception's first argument."""
    found: KafkaError = error.args[0]
    return found


def without_secrets(text: str, config: Mapping[str, Any]) -> str:
    """A client's error text with the values of sensitive settings masked."""
    for name, value in config.items():
        if _SENSITIVE.search(name) and value:
            text = text.replace(str(value), "***")
    return text
