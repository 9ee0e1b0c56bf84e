"""What planning the batches of a database costs: one broker, many topics, of which some have new records or none.

    python -m benchmarks.planning [--topics 500] [--batches 100]

The planner that a pipeline runs is asked for one batch after the other, in this process. Before each batch a few records are sent
to some of the topics. CPU is user and system time: of this process, and of the broker.

``looks``: everything is asked for at each batch: the partitions, their ends, and the ids of the topics that are due. A pipeline
does so every few seconds; in between it asks for the ends alone.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from benchmarks.workload import table
from lakebed.sources.kafka.database_source import KafkaDatabasePlanner
from lakebed.sources.kafka.gathering import Control, PlannedBatch, write_control
from lakebed.sources.kafka.settings import KafkaSettings
from tests.infra.kafka import KafkaServer

_TICKS = os.sysconf("SC_CLK_TCK")
_NEVER = float("-inf")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=500)
    parser.add_argument("--batches", type=int, default=100)
    args = parser.parse_args()
    rows: list[list[object]] = []
    with KafkaServer() as kafka, tempfile.TemporaryDirectory() as folder:
        names = [f"shop.public.table_{number:04}" for number in range(args.topics)]
        admin = kafka.admin()
        for made in admin.create_topics([NewTopic(name, 1, 1) for name in names], request_timeout=120).values():
            made.result()
        write_control(Path(folder), Control(default_max_age_seconds=1e-3))
        settings = KafkaSettings(config={"bootstrap.servers": kafka.bootstrap}, topic_pattern=r"shop\..*")
        planner = KafkaDatabasePlanner(settings, Path(folder))
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})
        send(producer, names)
        start = planner.next({})
        for due in sorted({0, min(20, args.topics), args.topics}):
            for looks in (False, True):
                found, start = measured(planner, kafka, producer, names[:due], start, batches=args.batches, looks=looks)
                rows.append([f"{due} of {args.topics}", "yes" if looks else "no", *found])
    table(
        "Planning a batch, milliseconds",
        ["topics with records", "looks", "median", "longest", "CPU", "CPU of the broker", "bytes of the document"],
        rows,
    )


def measured(
    planner: KafkaDatabasePlanner,
    kafka: KafkaServer,
    producer: Producer,
    names: list[str],
    start: dict[str, object],
    *,
    batches: int,
    looks: bool,
) -> tuple[list[float], dict[str, object]]:
    took, cpu, broker, end = [], 0.0, 0.0, start
    for _ in range(batches):
        send(producer, names)
        planner._ends_at = _NEVER
        if looks:
            planner._look_at = _NEVER
            planner._identified.clear()
        before = time.perf_counter(), time.process_time(), broker_seconds(kafka)
        document = planner.next(start)
        took.append(time.perf_counter() - before[0])
        cpu += time.process_time() - before[1]
        broker += broker_seconds(kafka) - before[2]
        if document != start:
            assert len(PlannedBatch.of(document).ranges) == len(names)
            end = start = document
    took.sort()
    millis = [took[len(took) // 2], took[-1], cpu / batches, broker / batches]
    return [*(1e3 * each for each in millis), len(json.dumps(end)) if names else 0], start


def send(producer: Producer, names: list[str]) -> None:
    for name in names:
        producer.produce(name, b"x" * 100)
    producer.flush(60)


def broker_seconds(kafka: KafkaServer) -> float:
    fields = Path(f"/proc/{kafka.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


if __name__ == "__main__":
    main()
