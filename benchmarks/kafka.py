"""Kafka to a committed table: lakebed against Spark's own Kafka source with from_json and a Delta append, same topic.

    python -m benchmarks.kafka [--events 1000000] [--runs 3]

Both start with a warm session and read the whole topic with the trigger ``availableNow``; the broker runs beside them.
The append does less than lakebed: it keeps every event and applies none.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from typing import Any

import orjson
import pyarrow as pa
from confluent_kafka import Producer

import lakebed
from benchmarks.workload import median, table
from lakebed.ingest.batch_writer import WriteTask
from lakebed.ingest.debezium import DebeziumJson
from lakebed.ingest.kafka_cluster import KafkaCluster
from lakebed.ingest.kafka_settings import KafkaSettings
from lakebed.ingest.kafka_source import KafkaReader, KafkaSource
from lakebed.ingest.shape import ChangeShape
from lakebed.ingest.source import Range, RangeChanges
from lakebed.parts.changes import TableShape
from tests.infra.downloads import spark_kafka_jars
from tests.infra.kafka import KafkaServer

SCHEMA = pa.schema(
    [
        ("id", pa.int64()), ("customer", pa.int64()), ("region", pa.string()), ("status", pa.string()),
        ("amount", pa.float64()), ("note", pa.string()), ("updated_at", pa.timestamp("us", "UTC")),
    ]
)  # fmt: skip
EVENT_DDL = (
    "before struct<id bigint>, after struct<id bigint, customer bigint, region string, status string, amount double, "
    "note string, updated_at bigint>, op string, ts_ms bigint"
)


def event(number: int, keys: int) -> tuple[bytes, bytes]:
    """A Debezium event of about 580 bytes."""
    key = number * 7919 % keys
    row = {
        "id": key, "customer": key % 5000, "region": f"region-{key % 20:02d}", "status": ("new", "paid", "sent")[number % 3],
        "amount": number % 10_000 / 100, "note": f"order {number:012d} " + "x" * 72, "updated_at": 1_790_000_000_000_000 + number,
    }  # fmt: skip
    source = {
        "version": "3.7.0.Final", "connector": "postgresql", "name": "shop", "ts_ms": 1_790_000_000_000 + number,
        "snapshot": "false", "db": "shop", "sequence": f'["{number}","{number}"]', "schema": "public", "table": "orders",
        "txId": number, "lsn": number, "xmin": None, "ts_us": 1_790_000_000_000_000 + number * 1000,
        "ts_ns": 1_790_000_000_000_000_000 + number * 1_000_000,
    }  # fmt: skip
    value = {
        "before": None,
        "after": row,
        "source": source,
        "transaction": None,
        "op": "u",
        "ts_ms": 1_790_000_000_100 + number,
    }
    return orjson.dumps({"id": key}), orjson.dumps(value)


def fill(bootstrap: str, topic: str, events: int, keys: int) -> float:
    """Produce the events; returns the mean size of a value."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 20, "batch.size": 1 << 20, "compression.type": "lz4"}
    )
    size = 0
    for number in range(events):
        key, value = event(number, keys)
        size += len(value)
        while True:
            try:
                producer.produce(topic, value, key)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush(60)
    return size / events


def run_lakebed(spark: Any, bootstrap: str, topic: str, folder: str) -> float:
    orders = lakebed.create(f"{folder}/lakebed", SCHEMA, keys=["id"])
    source = KafkaSource(KafkaSettings({"bootstrap.servers": bootstrap}, (topic,)))
    changes = RangeChanges(source.reader, DebeziumJson(ChangeShape(SCHEMA, ("id",))), with_order=True)
    started = time.perf_counter()
    query = orders.ingest_with(changes, source.stream(spark), trigger={"availableNow": True})
    query.awaitTermination()
    return time.perf_counter() - started


def run_append(spark: Any, bootstrap: str, topic: str, folder: str) -> float:
    from pyspark.sql import functions as F

    started = time.perf_counter()
    records = (
        spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
        .option("startingOffsets", "earliest").load()
    )  # fmt: skip
    parsed = records.select(F.from_json(F.col("value").cast("string"), EVENT_DDL).alias("e")).select(
        "e.after.*", "e.op"
    )
    query = (
        parsed.writeStream.format("delta").option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True).start(f"{folder}/delta")
    )  # fmt: skip
    query.awaitTermination()
    return time.perf_counter() - started


def steps(bootstrap: str, topic: str, folder: str) -> list[list[Any]]:
    """What a task does, in this process: microseconds of CPU time an event, the Kafka client's threads included."""
    settings = KafkaSettings({"bootstrap.servers": bootstrap}, (topic,))
    end = KafkaCluster(settings).latest([(topic, 0)])[topic, 0]
    decoder = DebeziumJson(ChangeShape(SCHEMA, ("id",)))
    spent = {"consume": 0.0, "decode": 0.0}
    decoded = []
    mark = time.process_time()
    for records in KafkaReader(settings).read(Range(topic, 0, 0, end)):
        spent["consume"] += time.process_time() - mark
        mark = time.process_time()
        decoded.append(decoder.decode(records, True))
        spent["decode"] += time.process_time() - mark
        mark = time.process_time()
    list(WriteTask(TableShape(SCHEMA, ("id",)), folder, lambda _: iter(decoded)).run(iter([])))
    spent["newest a key, sort, write"] = time.process_time() - mark
    return [[name, seconds / end * 1e6, seconds / sum(spent.values())] for name, seconds in spent.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=200_000)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    jars = ",".join(str(jar) for jar in sorted(spark_kafka_jars().glob("*.jar")))
    spark = lakebed.spark("benchmark", "local[2]", conf={"spark.jars": jars, "spark.driver.memory": "2g"})
    spark.sparkContext.setLogLevel("ERROR")
    with KafkaServer() as kafka:
        kafka.create_topic("warm", 2)
        kafka.create_topic("orders", 2)
        fill(kafka.bootstrap, "warm", 20_000, 1000)
        size = fill(kafka.bootstrap, "orders", args.events, args.keys)
        times: dict[str, list[float]] = {"lakebed": [], "append": []}
        for run in range(args.runs + 1):
            topic = "warm" if run == 0 else "orders"
            for name, side in (("lakebed", run_lakebed), ("append", run_append)):
                with tempfile.TemporaryDirectory() as folder:
                    seconds = side(spark, kafka.bootstrap, topic, folder)
                if run:
                    times[name].append(seconds)
        with tempfile.TemporaryDirectory() as folder:
            spent = steps(kafka.bootstrap, "orders", folder)
    spark.stop()
    table("CPU time of a task, without Spark and the broker", ["step", "µs an event", "share"], spent)
    ours, theirs = median(times["lakebed"]), median(times["append"])
    table(
        f"{args.events:,} Debezium events of {size:.0f} bytes, Kafka to committed",
        ["what", "median s", "events/s", "x the append's rate"],
        [
            ["Spark's Kafka source, from_json, Delta append", theirs, int(args.events / theirs), 1.0],
            ["lakebed", ours, int(args.events / ours), theirs / ours],
        ],
    )


if __name__ == "__main__":
    main()
