"""How fresh a table is under a steady stream: from an event in Kafka until every Delta reader, and the view, shows it.

    python -m benchmarks.freshness [--rate 20000] [--seconds 60]

Each event carries the time at which it was produced. Afterwards every row of every change part is compared with the time of
the commit that settled it (visible to any Delta reader) and with the time at which the view showed its version.
Producer, broker, ingest and maintenance share the machine. The first quarter of the run is left out as warm-up.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time

import numpy as np
from confluent_kafka import Producer

import lakebed
from benchmarks.kafka import SCHEMA, event
from benchmarks.workload import table
from lakebed import events
from lakebed.decode.debezium.events import DebeziumJson
from lakebed.decode.decoder import DecoderSchema
from lakebed.log.actions import AddChangePart, RemoveChangePart
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.sources.kafka.settings import KafkaSettings
from lakebed.sources.kafka.source import KafkaSource
from lakebed.sources.source import RangeChanges
from lakebed.sql import parquet
from lakebed.storage.data_files import open_part_storage
from lakebed.storage.engine import connect
from lakebed.table import internals_of
from tests.infra.kafka import KafkaServer


def produce(bootstrap: str, rate: int, seconds: float) -> None:
    """Events at a steady rate, in slices of 10 ms, each with the time of its slice."""
    made = [event(number, 200_000) for number in range(20_000)]
    split = []
    for number, (key, value) in enumerate(made):
        head, tail = value.split(str(1_790_000_000_000_000 + number).encode(), 1)
        split.append((key, head, tail))
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "compression.type": "lz4"})
    started, sent = time.time(), 0
    while (now := time.time()) < started + seconds:
        due = int((now - started) * rate)
        stamp = str(int(now * 1e6)).encode()
        for number in range(sent, due):
            key, head, tail = split[number % len(split)]
            producer.produce("orders", head + stamp + tail, key)
        sent = due
        producer.poll(0)
        time.sleep(0.01)
    producer.flush(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args()
    spark = lakebed.spark(
        "benchmark",
        "local[2]",
        conf={"spark.driver.memory": "2g"},
    )
    spark.sparkContext.setLogLevel("ERROR")
    shown: list[tuple[int, float]] = []
    events.listen(lambda e: shown.append((e.version, time.time())) if isinstance(e, events.ViewRefreshed) else None)
    with KafkaServer() as kafka, tempfile.TemporaryDirectory() as folder:
        kafka.create_topic("orders", 2)
        path = f"{folder}/orders"
        orders = lakebed.create(path, SCHEMA, keys=["id"])
        source = KafkaSource(KafkaSettings(config={"bootstrap.servers": kafka.bootstrap}, topics=("orders",)))
        changes = RangeChanges(source.reader, DebeziumJson(DecoderSchema(SCHEMA, ("id",))))
        orders.create_view(spark, "orders")
        ingest = internals_of(orders).start_ingest(changes, source.stream(spark))
        maintain = orders.maintain(spark)
        producer = multiprocessing.get_context("spawn").Process(
            target=produce, args=(kafka.bootstrap, args.rate, args.seconds)
        )
        producer.start()
        started = time.time()
        producer.join()
        time.sleep(4)
        for query in (ingest, maintain):
            assert query.exception() is None, query.exception()
            query.stop()
        report(path, started + args.seconds / 4, shown, args)
    spark.stop()


def report(path: str, since: float, shown: list[tuple[int, float]], args: argparse.Namespace) -> None:
    rows: list[list[object]] = []
    for name, waited in ages(path, since, float("inf"), shown).items():
        rows.append([name, len(waited), *(float(np.percentile(waited, q)) for q in (50, 99, 100))])
    table(
        f"Freshness at {args.rate:,} events/s for {args.seconds:.0f} s",
        ["event in Kafka until", "rows", "p50 s", "p99 s", "max s"],
        rows,
    )


def ages(path: str, since: float, until: float, shown: list[tuple[int, float]] | None = None) -> dict[str, np.ndarray]:
    """The age in seconds of each event produced in a time, when it was committed and when any Delta reader saw it.

    ``shown``: versions, and when the view showed them, for its ages.
    """
    log, storage, connection = TableLog(open_store(path)), open_part_storage(path), connect()
    joined: dict[str, tuple[str, int, int]] = {}
    settled: dict[str, int] = {}
    for commit in log.commits(0, log.refresh().version):
        for action in commit.actions:
            if isinstance(action, AddChangePart):
                joined[action.part.domain] = (action.part.path, commit.version, commit.timestamp_ms)
            elif isinstance(action, RemoveChangePart):
                settled[action.domain] = commit.timestamp_ms
    figures: dict[str, list[np.ndarray]] = {"committed": [], "any Delta reader": []}
    for domain, (file, version, committed_ms) in joined.items():
        if committed_ms / 1e3 < since:
            continue
        query = f"select epoch_us(updated_at) / 1e6 as t from {parquet(storage.duckdb_url(file))}"
        times = connection.execute(query).fetchnumpy()["t"]
        times = times[(times >= since) & (times < until)]
        if not len(times):
            continue
        figures["committed"].append(committed_ms / 1e3 - times)
        figures["any Delta reader"].append(settled.get(domain, float("nan")) / 1e3 - times)
        if shown is not None:
            view = min((at for seen, at in shown if seen >= version), default=float("nan"))
            figures.setdefault("in the view", []).append(view - times)
    return {name: np.concatenate(pieces) for name, pieces in figures.items() if pieces}


if __name__ == "__main__":
    main()
