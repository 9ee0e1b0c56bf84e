"""Avro from Kafka to a table beside JSON, on the same rows; and what a change of the schema costs a batch.

    python -m benchmarks.formats_from_kafka [--events 300000] [--rounds 3]

A real broker and a real registry. Each way is what a task does: read a topic, decode Debezium's events (``source.lsn`` orders
them), keep the newest of each key, sort, write parts; in one process, without Spark. The figure is CPU time with all threads, the
Kafka client's among them; the best of a few rounds, all ways in turn within a round. Then batches of Avro in which the schema
gets a column more, somewhere: beside CPU time they give the share by which the batch costs more than one without a change.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import orjson
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

import lakebed
from benchmarks.kafka import SCHEMA, event, produce
from benchmarks.workload import table
from lakebed.decode.decoder import Decoder, DecoderSchema
from lakebed.decode.formats import decoder
from lakebed.decode.typed.registry import RegistrySettings
from lakebed.ingest.batch_writer import WriteTask, in_this_process
from lakebed.ingest.evolving import Evolution
from lakebed.operations.alter import alter
from lakebed.parts.changes import write_spec_of
from lakebed.schema.change import SchemaChange
from lakebed.schema.fitting import EvolvePolicy
from lakebed.sources.kafka.settings import KafkaSettings
from lakebed.sources.kafka.source import KafkaReader
from lakebed.sources.source import Range, RangeChanges
from lakebed.table import internals_of
from tests.infra.kafka import KafkaServer
from tests.infra.registry import RegistryServer

KEYS = 100_000
SEQUENCE = "source.lsn"
CHANGES_AT = (0.0, 0.5, 0.999)
CONNECT_TYPES = {"long": "int64", "double": "double", "string": "string"}
ROW = {
    "id": "long", "customer": "long", "region": "string", "status": "string", "amount": "double", "note": "string",
    "updated_at": "long",
}  # fmt: skip
SOURCE = {
    "version": "string", "connector": "string", "name": "string", "ts_ms": "long", "snapshot": "string", "db": "string",
    "sequence": "string", "schema": "string", "table": "string", "txId": "long", "lsn": "long", "xmin": "long",
    "ts_us": "long", "ts_ns": "long",
}  # fmt: skip
Event = tuple[bytes, bytes]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--events", type=int, default=300_000)
    arguments.add_argument("--rounds", type=int, default=3)
    given = arguments.parse_args()
    with KafkaServer() as kafka, RegistryServer() as registry, tempfile.TemporaryDirectory() as folder:
        client = SchemaRegistryClient({"url": registry.url})
        evolving = _Feed(kafka, registry, Path(folder))
        feeds: dict[str, tuple[str, Iterator[Event]]] = {
            "JSON": ("debezium-json", _json(given.events, inline=False)),
            "JSON with its schema in each record": ("debezium-json", _json(given.events, inline=True)),
            "Avro": ("debezium-avro", _avro(client, "avro", given.events, given.events)),
        }
        ways: dict[str, Callable[[], object]] = {}
        sizes = {}
        for number, (name, (kind, events)) in enumerate(feeds.items()):
            topic = kafka.create_topic(f"feed{number}")
            sizes[name] = produce(kafka.bootstrap, topic, events) / given.events
            ways[name] = partial(evolving.batch, kind, topic, given.events)
        for share in CHANGES_AT:
            topic = kafka.create_topic(f"changing{share}")
            changes = _avro(client, f"changing{share}", given.events, int(given.events * share))
            sizes[_changed(share)] = produce(kafka.bootstrap, topic, changes) / given.events
            ways[_changed(share)] = partial(evolving.batch, "debezium-avro", topic, given.events)
        best = dict.fromkeys(ways, float("inf"))
        for _ in range(given.rounds):
            for name, way in ways.items():
                started = time.process_time()
                way()
                best[name] = min(best[name], time.process_time() - started)
    rows: list[list[Any]] = [
        [
            name,
            sizes[name],
            f"{given.events / best[name]:,.0f}",
            best[name] / given.events * 1e6,
            best["JSON"] / best[name],
            best[name] / best["Avro"] - 1,
        ]
        for name in ways
    ]
    columns = ["events", "bytes", "events/s a core", "µs an event", "x JSON", "batches more than Avro's"]
    table(f"{given.events:,} updates of {KEYS:,} keys, from Kafka to parts", columns, rows)


def _changed(share: float) -> str:
    return f"Avro, a column more after {share:.1%} of the batch"


class _Feed:
    """Runs a batch of a topic into a new table."""

    def __init__(self, kafka: KafkaServer, registry: RegistryServer, folder: Path) -> None:
        self._kafka, self._registry, self._folder = kafka, registry, folder
        self._number = 0

    def batch(self, kind: str, topic: str, events: int) -> None:
        self._number += 1
        orders = lakebed.create(self._folder / f"orders{self._number}", SCHEMA, keys=["id"], sequence_by=SEQUENCE)
        log = internals_of(orders).log
        snapshot = log.refresh()
        evolution = Evolution(log, lambda change, reason: _alter(log, change, reason), "benchmark")
        settings = KafkaSettings(config={"bootstrap.servers": self._kafka.bootstrap}, topics=(topic,))
        reading = self._decoder(kind)
        while True:
            reading = evolution.bound(reading, snapshot)
            task = WriteTask(write_spec_of(snapshot), orders.path, RangeChanges(KafkaReader(settings), reading))
            written = in_this_process(task, [Range(topic, 0, 0, events)])
            if written.schema_needed is None:
                break
            snapshot = evolution.evolve(snapshot, written.schema_needed)
        assert written.rows == min(events, KEYS) and not written.quarantined, written

    def _decoder(self, kind: str) -> Decoder:
        policy = EvolvePolicy(allowed=frozenset({"add", "relax"}), by_schema=kind != "debezium-json")
        options = {"registry": RegistrySettings(url=self._registry.url)} if kind == "debezium-avro" else {}
        return decoder(kind, DecoderSchema.of_table(SCHEMA, ("id",), SEQUENCE, policy), options)


def _alter(log: Any, change: SchemaChange, reason: str) -> None:
    alter(log, change, reason=reason)


def _json(count: int, *, inline: bool) -> Iterator[Event]:
    """Inline: as Connect's JSON converter writes it with ``schemas.enable``."""
    schema = orjson.dumps(_connect_schema())
    for number in range(count):
        key, value = event(number, KEYS)
        yield key, b'{"schema":%b,"payload":%b}' % (schema, value) if inline else value


def _avro(client: SchemaRegistryClient, topic: str, count: int, change_at: int) -> Iterator[Event]:
    """In Confluent's wire format; from ``change_at`` on rows have a column more."""
    schemas = []
    for more in ({}, {"coupon": "string"}):
        text = json.dumps(_avro_schema({**ROW, **more}))
        number = client.register_schema(f"{topic}-value", Schema(text, "AVRO"))
        schemas.append((b"\0" + number.to_bytes(4, "big"), fastavro.parse_schema(json.loads(text))))
    key_text = json.dumps({"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]})
    key_number = client.register_schema(f"{topic}-key", Schema(key_text, "AVRO")).to_bytes(4, "big")
    key_schema = fastavro.parse_schema(json.loads(key_text))
    for number in range(count):
        key, value = (orjson.loads(text) for text in event(number, KEYS))
        prefix, schema = schemas[number >= change_at]
        if number >= change_at:
            value["after"]["coupon"] = f"coupon {number % 10}"
        yield b"\0" + key_number + _encoded(key_schema, key), prefix + _encoded(schema, value)


def _encoded(schema: Any, value: Any) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


def _avro_schema(row: dict[str, str]) -> dict[str, Any]:
    micros = {"type": "long", "connect.version": 1, "connect.name": "io.debezium.time.MicroTimestamp"}
    types: dict[str, Any] = {name: ["null", micros if name == "updated_at" else kind] for name, kind in row.items()}
    types["id"] = "long"
    value = {"type": "record", "name": "Value", "fields": [{"name": n, "type": t} for n, t in types.items()]}
    source = [{"name": name, "type": ["null", kind]} for name, kind in SOURCE.items()]
    fields = [
        {"name": "before", "type": ["null", value]},
        {"name": "after", "type": ["null", "Value"]},
        {"name": "source", "type": {"type": "record", "name": "Source", "fields": source}},
        {"name": "transaction", "type": ["null", "string"]},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"]},
    ]
    return {"type": "record", "name": "Envelope", "namespace": "shop.public.orders", "fields": fields}


def _connect_schema() -> dict[str, Any]:
    def struct(columns: dict[str, str], field: str, name: str) -> dict[str, Any]:
        fields = [{"type": CONNECT_TYPES[kind], "optional": one != "id", "field": one} for one, kind in columns.items()]
        for each in fields:
            if each["field"] == "updated_at":
                each |= {"name": "io.debezium.time.MicroTimestamp", "version": 1}
        return {"type": "struct", "fields": fields, "optional": True, "name": name, "field": field}

    row = "shop.public.orders.Value"
    fields = [
        struct(ROW, "before", row), struct(ROW, "after", row),
        struct(SOURCE, "source", "io.debezium.connector.postgresql.Source"),
        {"type": "string", "optional": True, "field": "transaction"}, {"type": "string", "optional": False, "field": "op"},
        {"type": "int64", "optional": True, "field": "ts_ms"},
    ]  # fmt: skip
    return {"type": "struct", "fields": fields, "optional": False, "name": "shop.public.orders.Envelope", "version": 2}


if __name__ == "__main__":
    main()
