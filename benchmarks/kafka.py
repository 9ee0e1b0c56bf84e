"""What a task that ingests from Kafka spends its time on, in one process without Spark; and the events of the Kafka benchmarks.

    python -m benchmarks.kafka [--events 1000000] [--headers 4]

How lakebed compares with other systems from Kafka to a table: ``python -m benchmarks.kafka_peers``.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterable
from typing import Any

import orjson
import pyarrow as pa
from confluent_kafka import Producer

from benchmarks.workload import table
from lakebed.decode.debezium.events import DebeziumJson
from lakebed.decode.decoder import DecoderSchema
from lakebed.ingest.batch_writer import WriteTask
from lakebed.parts.changes import WriteSpec
from lakebed.sources.kafka.cluster import KafkaCluster
from lakebed.sources.kafka.settings import KafkaSettings
from lakebed.sources.kafka.source import KafkaReader
from lakebed.sources.source import Range
from tests.infra.kafka import KafkaServer

SCHEMA = pa.schema(
    [
        ("id", pa.int64()), ("customer", pa.int64()), ("region", pa.string()), ("status", pa.string()),
        ("amount", pa.float64()), ("note", pa.string()), ("updated_at", pa.timestamp("us", "UTC")),
    ]
)  # fmt: skip


def row(key: int, number: int) -> dict[str, object]:
    """The row of a key as the event of a number leaves it."""
    return {
        "id": key, "customer": key % 5000, "region": f"region-{key % 20:02d}", "status": ("new", "paid", "sent")[number % 3],
        "amount": number % 10_000 / 100, "note": f"order {number:012d} " + "x" * 72, "updated_at": 1_790_000_000_000_000 + number,
    }  # fmt: skip


def envelope(op: str, before: dict[str, object] | None, after: dict[str, object] | None, number: int) -> bytes:
    """A Debezium event, of about 580 bytes if it has a row; its ``source.lsn`` is the number."""
    source = {
        "version": "3.7.0.Final", "connector": "postgresql", "name": "shop", "ts_ms": 1_790_000_000_000 + number,
        "snapshot": "false", "db": "shop", "sequence": f'["{number}","{number}"]', "schema": "public", "table": "orders",
        "txId": number, "lsn": number, "xmin": None, "ts_us": 1_790_000_000_000_000 + number * 1000,
        "ts_ns": 1_790_000_000_000_000_000 + number * 1_000_000,
    }  # fmt: skip
    return orjson.dumps(
        {
            "before": before,
            "after": after,
            "source": source,
            "transaction": None,
            "op": op,
            "ts_ms": 1_790_000_000_100 + number,
        }
    )


def event(number: int, keys: int) -> tuple[bytes, bytes]:
    """The key and the value of an update."""
    key = number * 7919 % keys
    return orjson.dumps({"id": key}), envelope("u", None, row(key, number), number)


CONTEXT = [
    ("__debezium.context.connectorLogicalName", "shop"),
    ("__debezium.context.taskId", "0"),
    ("__debezium.context.connectorName", "postgresql"),
    ("__debezium.context.runId", "01a1fd84-6147-7e8c-9389-d6810a13c2c4"),
]
"""The headers that Debezium 3.7 gives every record."""


def produce(bootstrap: str, topic: str, events: Iterable[tuple[bytes, bytes]], headers: int = 0) -> int:
    """Produce events as fast as the broker takes them, in order, each with so many headers; returns the bytes of their values."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 20,
            "batch.size": 1 << 20,
            "compression.type": "lz4",
            "enable.idempotence": True,
            "log_level": 3,  # that the broker is not ready for it yet is no news
        }
    )
    size = 0
    for key, value in events:
        size += len(value)
        while True:
            try:
                producer.produce(topic, value, key, headers=CONTEXT[:headers])
                break
            except BufferError:
                producer.poll(0.1)
    if left := producer.flush(60):
        raise RuntimeError(f"the broker did not take {left} of the events of {topic}")
    return size


def steps(bootstrap: str, topic: str, folder: str) -> list[list[Any]]:
    """What a task does, in this process: microseconds of CPU time an event, the Kafka client's threads included."""
    settings = KafkaSettings(config={"bootstrap.servers": bootstrap}, topics=(topic,))
    end = KafkaCluster(settings).latest([(topic, 0)])[topic, 0]
    decoder = DebeziumJson(DecoderSchema(SCHEMA, ("id",)))
    spent = {"consume": 0.0, "decode": 0.0}
    decoded = []
    mark = time.process_time()
    for records in KafkaReader(settings).read(Range(topic, 0, 0, end)):
        spent["consume"] += time.process_time() - mark
        mark = time.process_time()
        decoded.append(decoder.decode(records))
        spent["decode"] += time.process_time() - mark
        mark = time.process_time()
    WriteTask(WriteSpec(schema=SCHEMA, keys=("id",)), folder, lambda _: iter([])).write(iter(decoded))
    spent["newest a key, sort, write"] = time.process_time() - mark
    return [[name, seconds / end * 1e6, seconds / sum(spent.values())] for name, seconds in spent.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=200_000)
    parser.add_argument(
        "--headers", type=int, default=0, help="how many of Debezium's headers each record has, up to 4"
    )
    args = parser.parse_args()
    with KafkaServer() as kafka, tempfile.TemporaryDirectory() as folder:
        kafka.create_topic("orders", 2)
        events = (event(number, args.keys) for number in range(args.events))
        size = produce(kafka.bootstrap, "orders", events, args.headers)
        spent = steps(kafka.bootstrap, "orders", folder)
    table(
        f"CPU time of a task, without Spark and the broker; {args.events:,} Debezium events of {size / args.events:.0f} bytes",
        ["step", "µs an event", "share"],
        spent,
    )


if __name__ == "__main__":
    main()
