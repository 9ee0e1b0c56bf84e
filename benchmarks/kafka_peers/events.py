"""The events: an orders table as Debezium tells it, first a snapshot, then of ten changes seven updates, two inserts, one delete.

Event ``number`` is a pure function, so every system gets the same stream, and so do its partitions, which Kafka chooses by the
key. Updates hit any live row alike; the oldest row is the one that is deleted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import orjson
from confluent_kafka import Producer

from benchmarks.kafka import SCHEMA, envelope, row

INSERTS, DELETES, CHANGES = 2, 1, 10
_SLICE_SECONDS = 0.01
_NOTHING: dict[str, object] = dict.fromkeys(SCHEMA.names)
_MIX = 2_654_435_761  # Knuth's multiplicative hash


def event(number: int, snapshot: int) -> tuple[bytes, bytes]:
    """Key and value of an event; the first ``snapshot`` of them are the rows that were there."""
    if number < snapshot:
        return _key(number), envelope("r", None, row(number, number), number)
    block, slot = divmod(number - snapshot, CHANGES)
    if slot < INSERTS:
        key = snapshot + block * INSERTS + slot
        return _key(key), envelope("c", None, row(key, number), number)
    if slot < INSERTS + DELETES:
        return _key(block), envelope("d", _NOTHING | {"id": block}, None, number)
    oldest, next_key = block + 1, snapshot + (block + 1) * INSERTS
    key = oldest + (number * _MIX >> 12) % (next_key - oldest)
    return _key(key), envelope("u", None, row(key, number), number)


def events(start: int, stop: int, snapshot: int) -> Iterator[tuple[bytes, bytes]]:
    return (event(number, snapshot) for number in range(start, stop))


def produce_steadily(bootstrap: str, topic: str, start: int, snapshot: int, rate: int, seconds: float) -> None:
    """Events from ``start`` on at a steady rate, in slices of 10 ms. Runs in a process of its own."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 5,
            "compression.type": "lz4",
            "enable.idempotence": True,
            "log_level": 3,
        }
    )
    total, sent, began = int(rate * seconds), 0, time.monotonic()
    while sent < total:
        due = min(total, int((time.monotonic() - began) * rate))
        for key, value in events(start + sent, start + due, snapshot):
            producer.produce(topic, value, key)
        sent = due
        producer.poll(0)
        time.sleep(_SLICE_SECONDS)
    if left := producer.flush(60):
        raise RuntimeError(f"the broker did not take {left} of the events of {topic}")


def _key(key: int) -> bytes:
    return orjson.dumps({"id": key})
