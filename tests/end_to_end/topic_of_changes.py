"""A Kafka topic that a producer keeps writing to, and what a table of it must hold in the end.

Every record is one JSON object with a number of its own, the change of one key: keys repeat, some changes are deletes,
and now and then a record is no JSON at all. A key always goes to one partition. What the tables must hold is not what
the producer meant to write but what the topic holds: it is read back, partition by partition in offset order.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Self

from confluent_kafka import Producer

from tests.infra.kafka import KafkaServer, end_offsets, messages_before

PARTITIONS = 3
KEYS = 800
DELETES, POISONED = 0.15, 0.002
PAUSE_SECONDS = 0.02


class Producing:
    """A thread that writes about ``records_per_second`` changes until it is stopped."""

    def __init__(self, kafka: KafkaServer, topic: str, seed: int, records_per_second: int) -> None:
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 5, "enable.idempotence": True})
        self._topic = topic
        self._random = random.Random(seed)
        self._burst = max(1, int(records_per_second * PAUSE_SECONDS))
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"producer of {topic}")
        self.records = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stopped.set()
        self._thread.join()
        assert self._producer.flush(30) == 0, "the broker did not take all records"

    def _run(self) -> None:
        while not self._stopped.wait(PAUSE_SECONDS):
            for _ in range(self._burst):
                self._produce()
            self._producer.poll(0)

    def _produce(self) -> None:
        # Most changes hit few keys, so that a batch holds a key more than once.
        key = int(KEYS * self._random.random() ** 3)
        op = "d" if self._random.random() < DELETES else "u"
        value = json.dumps({"number": self.records, "id": key, "op": op, "note": f"note {self.records} of {key}"})
        if self._random.random() < POISONED:
            value = f'{{"number": {self.records}, "id": '
        self._producer.produce(self._topic, value.encode(), str(key).encode(), partition=key % PARTITIONS)
        self.records += 1


@dataclass
class Expected:
    """What the topic says: the live row of every key, the number of every record, the place of every bad record."""

    live: dict[int, dict[str, Any]] = field(default_factory=dict)
    numbers: list[int] = field(default_factory=list)
    unreadable: list[tuple[int, int]] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)


def expected_of(kafka: KafkaServer, topic: str) -> Expected:
    """Reads the topic to its end."""
    expected = Expected(ends=end_offsets(kafka.bootstrap, topic, PARTITIONS))
    offsets: Counter[int] = Counter()
    for message in messages_before(kafka.bootstrap, topic, expected.ends):
        place = (message.partition(), message.offset())
        assert place[1] == offsets[place[0]], f"{topic} lost records before offset {place[1]} of partition {place[0]}"
        offsets[place[0]] += 1
        try:
            change = json.loads(message.value())
        except ValueError:
            expected.unreadable.append(place)
            continue
        expected.numbers.append(change["number"])
        if change["op"] == "d":
            expected.live.pop(change["id"], None)
        else:
            expected.live[change["id"]] = {name: change[name] for name in ("id", "number", "note")}
    return expected
