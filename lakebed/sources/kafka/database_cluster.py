"""A cluster of which many topics are read, each for a table of its own: trouble with one topic is no trouble of the others.

A topic that is not there (yet, or any more), that refuses access, or a partition that has no leader just now, is left out of what
this returns. Everything else is as for one table: no answer from the brokers is Retry, a refused login InvalidInput.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from confluent_kafka import KafkaException

from lakebed.errors import Retry
from lakebed.sources.kafka.cluster import KafkaCluster, Partitions
from lakebed.sources.kafka.settings import GONE, KafkaSettings, kafka_error_of

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
