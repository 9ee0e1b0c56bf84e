"""From Kafka to a table, lakebed beside its peers: events a second, and how fresh the table is at fixed rates.

    make bench-kafka ARGS="--events 1000000 --rates 2000 10000 --seconds 60 --systems append lakebed merge"

All get the same Debezium events, one system after the other, each in a process of its own with two cores and the same memory,
beside the broker and the producer. What a system leaves must be what the topic comes to, by count and hash; else it has no
figures, and the exit code is 1. The first time each peer gets a virtual environment below ``.build/peers`` and its jars.

``--results`` names the folder for results.json.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.kafka_peers import report
from benchmarks.kafka_peers.measured import Run, Scale, run_system
from benchmarks.kafka_peers.systems import SYSTEMS
from benchmarks.peers.environments import FOLDER, REPOSITORY, python_of
from benchmarks.peers.report import header
from tests.infra.downloads import spark_kafka_jars
from tests.infra.kafka import KafkaServer


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kafka_peers", description="from Kafka to a table, lakebed beside its peers"
    )
    parser.add_argument("--events", type=int, default=1_000_000, help="of the backlog")
    parser.add_argument("--snapshot", type=int, default=200_000, help="how many of them are the rows that were there")
    parser.add_argument("--rates", type=int, nargs="*", default=[2_000, 10_000], help="events a second")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each rate")
    parser.add_argument(
        "--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS), metavar="SYSTEM", help=", ".join(SYSTEMS)
    )
    parser.add_argument("--batch-records", type=int, default=500_000, help="events that a batch takes at most")
    parser.add_argument("--patience", type=float, default=180.0, help="seconds until a system must have the backlog")
    parser.add_argument("--memory", default="4g", help="of Spark's process, which is driver and executor")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where tables are while they are measured")
    parser.add_argument("--results", type=Path, default=FOLDER / "results-kafka")
    args = parser.parse_args(arguments)
    scale = Scale(
        args.events,
        min(args.snapshot, args.events),
        tuple(args.rates),
        args.seconds,
        args.batch_records,
        args.patience,
        args.memory,
    )
    pythons = {name: python_of(SYSTEMS[name].environment) for name in args.systems}
    spark_kafka_jars()
    now = datetime.now(UTC)
    head = header(
        shlex.join(["python", "-m", "benchmarks.kafka_peers", *(sys.argv[1:] if arguments is None else arguments)]),
        f"{now:%Y-%m-%d %H:%M} UTC",
    )
    print("\n".join(head), flush=True)
    folder = args.folder.resolve() / f"run-{now:%Y%m%d-%H%M%S}"
    args.results.mkdir(parents=True, exist_ok=True)
    runs: list[Run] = []
    for name in args.systems:
        started = time.perf_counter()
        with KafkaServer() as kafka:
            runs.append(run_system(name, SYSTEMS[name], pythons[name], scale, kafka, folder / name))
        verdict = runs[-1].error or "rows equal the oracle's"
        print(f"bench-kafka: {name}: {time.perf_counter() - started:.0f} s; {verdict}", flush=True)
        report.save(args.results / "results.json", head, runs, scale)
    report.show(runs, scale)
    shown = args.results.resolve()
    print(f"\nResults: {shown.relative_to(REPOSITORY) if shown.is_relative_to(REPOSITORY) else shown}/results.json")
    return 1 if any(run.error for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
