"""What a database costs: 1, 10, 100 and 500 tables in one pipeline, with the same events a second in all, and idle.

    python -m benchmarks.database_cost [--tables 1 10 100 500] [--rate 2000] [--warm-up 60] [--seconds 60] [--idle 30]

1. For each number of tables: a broker with a topic for each, the tables, and ``lakebed run`` on a pipeline file with
   ``database``, as a user starts it. A producer sends ``rate`` Debezium events a second, to one topic after the other.
2. After ``warm-up`` seconds, CPU is counted for ``seconds``. Then the producer ends; when all is settled, CPU is counted for
   ``idle`` seconds more.
3. Each event carries the time at which it was produced. Its age when it is committed, and when any Delta reader sees it, comes
   from the tables' logs (``benchmarks.freshness``).

CPU is user and system time of the pipeline's processes, from /proc; broker and producer are not among them. Cores are CPU seconds
a second, which hold on a busy machine too; freshness does not. A file that is written is a PUT in an object store.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

import lakebed
from benchmarks.freshness import ages
from benchmarks.kafka import SCHEMA, event
from benchmarks.running_cost import counted
from benchmarks.steady import family, private_mb, resident_mb
from benchmarks.workload import table
from lakebed.manifest.stores import open_store
from lakebed.manifest.table_log import TableLog
from tests.infra.kafka import KafkaServer

KEYS = 200_000
ARCHIVE_SECONDS_MAX = 180.0
PIPELINE = """
database: {{path: {path}}}
source:
  kind: kafka
  config: {{bootstrap.servers: '{bootstrap}'}}
  topic_pattern: 'shop\\.public\\..*'
format: debezium-json
metrics: {{port: null}}
"""


@dataclass(slots=True)
class Figures:
    tables: int
    loaded: Counter[str]
    idle: Counter[str]
    memory_mb: float
    private_mb: float
    commits: int
    files: int
    fresh: dict[str, np.ndarray] = field(default_factory=dict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, nargs="+", default=[1, 10, 100, 500])
    parser.add_argument("--rate", type=int, default=2000, help="events a second, of all tables together")
    parser.add_argument("--warm-up", type=float, default=60.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--idle", type=float, default=30.0)
    parser.add_argument("--kinds", action="store_true", help="print also which processes and threads used the CPU")
    args = parser.parse_args()
    found: list[Figures] = []
    with tempfile.TemporaryDirectory() as cache:
        os.environ["LAKEBED_CACHE_DIR"] = cache
        for count in args.tables:
            found.append(measure(count, args, Path(cache)))
            report(found, args)


def report(found: Sequence[Figures], args: argparse.Namespace) -> None:
    rows: list[list[object]] = []
    for one in found:
        waited = [float(np.percentile(one.fresh[name], q)) for name in one.fresh for q in (50, 99)]
        rows.append(
            [
                one.tables, one.loaded.total() / args.seconds, one.idle.total() / args.idle, one.memory_mb, one.private_mb,
                one.commits * 60 / args.seconds, one.files * 60 / args.seconds, *waited,
            ]
        )  # fmt: skip
    table(
        f"A database at {args.rate:,} events/s in all, after {args.warm_up:.0f} s",
        [
            "tables", "cores", "cores idle", "MB of all processes", "MB private", "commits a minute", "files written a minute",
            "committed p50 s", "p99 s", "any Delta reader p50 s", "p99 s",
        ],
        rows,
    )  # fmt: skip
    if args.kinds:
        kinds = sum((one.loaded + one.idle for one in found), Counter[str]()).most_common()
        table(
            "Cores by kind",
            ["kind", *(f"{one.tables}" for one in found), *(f"{one.tables} idle" for one in found)],
            [
                [
                    kind,
                    *(one.loaded[kind] / args.seconds for one in found),
                    *(one.idle[kind] / args.idle for one in found),
                ]
                for kind, _ in kinds
            ],
        )
    sys.stdout.flush()


def measure(count: int, args: argparse.Namespace, cache: Path) -> Figures:
    topics = [f"shop.public.table_{number:04}" for number in range(count)]
    with KafkaServer() as kafka, tempfile.TemporaryDirectory() as folder:
        admin = kafka.admin()
        made = admin.create_topics([NewTopic(topic, 1, 1) for topic in topics], request_timeout=120)
        for each in made.values():
            each.result()
        base, pipeline = f"{folder}/shop", Path(folder, "shop.yml")
        paths = [f"{base}/public/{topic.rsplit('.', 1)[1]}" for topic in topics]
        for path in paths:
            lakebed.create(path, SCHEMA, keys=["id"])
        pipeline.write_text(PIPELINE.format(path=base, bootstrap=kafka.bootstrap))
        producer = multiprocessing.get_context("spawn").Process(
            target=produce, args=(kafka.bootstrap, topics, args.rate), daemon=True
        )
        producer.start()
        with open(f"{folder}/out", "w") as out:
            command = [str(Path(sys.executable).with_name("lakebed")), "run", str(pipeline)]
            run = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            await_commits(paths, run, Path(folder, "out"))
            await_archive(cache, run)
            time.sleep(args.warm_up)
            since = time.time()
            loaded = counted(run.pid, args.seconds)
            until = time.time()
            resident, private = (sum(map(of, family(run.pid))) for of in (resident_mb, private_mb))
            producer.terminate()
            await_rest(paths, run)
            commits, files = commits_between(paths, since, until), files_between(base, since, until)
            fresh = freshness(paths, since, until)
            idle = counted(run.pid, args.idle)
        finally:
            producer.terminate()
            run.send_signal(signal.SIGTERM)
            run.wait(120)
    return Figures(count, loaded, idle, resident, private, commits, files, fresh)


def produce(bootstrap: str, topics: Sequence[str], rate: int) -> None:
    """Events at a steady rate, in slices of 10 ms, each with the time of its slice; one topic after the other."""
    made = [event(number, max(1, KEYS // len(topics))) for number in range(20_000)]
    split = []
    for number, (key, value) in enumerate(made):
        head, rest = value.split(b'"updated_at":%d' % (1_790_000_000_000_000 + number), 1)
        middle, tail = rest.split(b'"ts_ms":%d,"snapshot"' % (1_790_000_000_000 + number), 1)
        split.append((key, head + b'"updated_at":', middle + b'"ts_ms":', b',"snapshot"' + tail))
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "compression.type": "lz4"})
    started, sent = time.time(), 0
    while True:
        now = time.time()
        due = int((now - started) * rate)
        row_time, source_time = b"%d" % int(now * 1e6), b"%d" % int(now * 1e3)
        for number in range(sent, due):
            key, head, middle, tail = split[number // len(topics) % len(split)]
            producer.produce(topics[number % len(topics)], head + row_time + middle + source_time + tail, key)
        sent = due
        producer.poll(0)
        time.sleep(0.01)


def await_commits(paths: Sequence[str], run: subprocess.Popen[bytes], out: Path) -> None:
    """Wait for the first commit of rows of each table."""
    waiting = list(paths)
    while waiting:
        if run.poll() is not None:
            sys.exit(f"the pipeline ended with exit code {run.returncode}:\n{out.read_text()[-2000:]}")
        waiting = [path for path in waiting if TableLog(open_store(path)).refresh().version < 1]
        time.sleep(0.5)


def await_archive(cache: Path, run: subprocess.Popen[bytes]) -> None:
    """Wait for the archive of classes, which only the first run of all makes (``pipeline.class_archive``)."""
    until = time.monotonic() + ARCHIVE_SECONDS_MAX
    while not list(cache.glob("java/*.jsa")) and run.poll() is None and time.monotonic() < until:
        time.sleep(1)


def await_rest(paths: Sequence[str], run: subprocess.Popen[bytes]) -> None:
    """Wait until no log has become longer for a while."""
    before: list[int] = []
    while run.poll() is None:
        now = [len(os.listdir(f"{path}/_delta_log")) for path in paths]
        if now == before:
            return
        before = now
        time.sleep(15)


def commits_between(paths: Sequence[str], since: float, until: float) -> int:
    count = 0
    for path in paths:
        log = TableLog(open_store(path))
        newest = log.refresh().version
        count += sum(since <= commit.timestamp_ms / 1e3 < until for commit in log.commits(1, newest))
    return count


def files_between(base: str, since: float, until: float) -> int:
    return sum(
        since <= os.stat(Path(folder, name)).st_mtime < until for folder, _, names in os.walk(base) for name in names
    )


def freshness(paths: Sequence[str], since: float, until: float) -> dict[str, np.ndarray]:
    found: dict[str, list[np.ndarray]] = {"committed": [], "any Delta reader": []}
    for path in paths:
        for name, each in ages(path, since, until).items():
            found[name].append(each)
    return {name: np.concatenate(each or [np.array([np.nan])]) for name, each in found.items()}


if __name__ == "__main__":
    main()
