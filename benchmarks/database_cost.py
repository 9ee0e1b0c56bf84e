"""What a database costs: 1, 10, 100 and 500 tables in one pipeline, with the same events a second in all, and idle.

    python -m benchmarks.database_cost [--tables 1 10 100 500] [--rate 2000] [--quiet-share 0.2] [--warm-up 30] [--seconds 60]
                                       [--idle 30]

1. For each number of tables: a broker with a topic for each, the tables, and ``lakebed run`` on a pipeline file with
   ``database`` and nothing else set. A producer sends ``rate`` Debezium events a second. A fifth of the tables is hot; the others
   are quiet, and share ``quiet-share`` of the events (0.8: all tables get the same).
2. After ``warm-up`` seconds, CPU is counted for ``seconds``. Then the producer ends; when all is settled, CPU is counted for
   ``idle`` seconds more.
3. Each event carries the time at which it was produced. Its age when it is committed, and when any Delta reader sees it, comes
   from the tables' logs (``benchmarks.freshness``).

CPU is user and system time of the pipeline's processes, from /proc; broker and producer are not among them. Cores are CPU seconds
a second, which hold on a busy machine too, though hyperthreads make a CPU second worth less there; freshness does not. Requests
are what a bucket would be asked: of the log, and the files written. Reads of parts are not counted.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

import lakebed
from benchmarks.freshness import ages
from benchmarks.kafka import SCHEMA, event
from benchmarks.running_cost import counted
from benchmarks.steady import family, private_mb, resident_mb
from benchmarks.workload import table
from lakebed.cli import main as lakebed_command
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.storage.counters import RequestCounter
from tests.infra.kafka import KafkaServer

KEYS = 200_000
HOT = 5
"""One table of so many is hot."""
ARCHIVE_SECONDS_MAX = 600.0
BEGIN_SECONDS_MAX = 240.0
SETTLED_SECONDS = 15.0
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
    requests: float
    idle_requests: float
    fresh: dict[str, np.ndarray] = field(default_factory=dict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, nargs="+", default=[1, 10, 100, 500])
    parser.add_argument("--rate", type=int, default=2000, help="events a second, of all tables together")
    parser.add_argument(
        "--quiet-share", type=float, default=0.2, help="of the events: those of four fifths of the tables"
    )
    parser.add_argument("--warm-up", type=float, default=30.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--idle", type=float, default=30.0)
    parser.add_argument("--kinds", action="store_true", help="print also which processes and threads used the CPU")
    parser.add_argument("--run", nargs=2, metavar=("PIPELINE", "REQUESTS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        run_counting(*args.run)
        return
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
        cores = one.loaded.total() / args.seconds
        rows.append(
            [
                one.tables,
                cores,
                cores * args.seconds / max(found[0].loaded.total(), 1e-9),
                one.idle.total() / args.idle,
                one.memory_mb,
                one.private_mb,
                one.commits * 60 / args.seconds,
                one.requests * 60 / args.seconds,
                one.idle_requests * 60 / args.idle,
                *waited,
            ]
        )
    table(
        f"A database at {args.rate:,} events/s in all, {args.quiet_share:.0%} of them of quiet tables, {args.warm_up:.0f} s warm;"
        f" load {os.getloadavg()[0]:.1f}",
        [
            "tables", "cores", "x the first", "cores idle", "MB of all processes", "MB private", "commits a minute",
            "requests a minute", "idle", "committed p50 s", "p99 s", "any Delta reader p50 s", "p99 s",
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
        context = multiprocessing.get_context("spawn")
        given = kafka.bootstrap, topics, args.rate, args.quiet_share
        producer = context.Process(target=produce, args=given, daemon=True)
        producer.start()
        requests = Path(folder, "requests")
        with open(f"{folder}/out", "w") as out:
            command = [sys.executable, "-m", "benchmarks.database_cost", "--run", str(pipeline), str(requests)]
            run = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            await_commits(paths, run, Path(folder, "out"))
            await_archive(cache, run)
            time.sleep(args.warm_up)
            since, asked = time.time(), requests_in(requests)
            loaded = counted(run.pid, args.seconds)
            until, asked = time.time(), requests_in(requests) - asked
            resident, private = (sum(map(of, family(run.pid))) for of in (resident_mb, private_mb))
            producer.terminate()
            await_rest(paths, run)
            commits, fresh = commits_between(paths, since, until), freshness(paths, since, until)
            asked_idle = requests_in(requests)
            idle = counted(run.pid, args.idle)
            asked_idle = requests_in(requests) - asked_idle
        finally:
            producer.terminate()
            run.send_signal(signal.SIGTERM)
            run.wait(120)
    return Figures(count, loaded, idle, resident, private, commits, asked, asked_idle, fresh)


def run_counting(pipeline: str, requests: str) -> None:
    """What ``lakebed run`` does, in a process that writes into a file how many requests it has made, once a second."""
    made = Counter[str]()
    plain = RequestCounter.count

    def count(self: RequestCounter, operation: str, *rest: Any, **named: Any) -> None:
        made[operation] += 1
        plain(self, operation, *rest, **named)

    RequestCounter.count = count  # type: ignore[method-assign]

    def write() -> None:
        while True:
            Path(requests + ".new").write_text(str(made.total()))
            os.replace(requests + ".new", requests)
            time.sleep(1.0)

    threading.Thread(target=write, daemon=True).start()
    sys.exit(lakebed_command(["run", pipeline]))


def requests_in(file: Path) -> int:
    return int(file.read_text())


def produce(bootstrap: str, topics: Sequence[str], rate: int, quiet_share: float) -> None:
    """Events at a steady rate, in slices of 10 ms, each with the time of its slice; each table gets its share, evenly in time."""
    made = [event(number, max(1, KEYS // len(topics))) for number in range(20_000)]
    split = []
    for number, (key, value) in enumerate(made):
        head, rest = value.split(b'"updated_at":%d' % (1_790_000_000_000_000 + number), 1)
        middle, tail = rest.split(b'"ts_ms":%d,"snapshot"' % (1_790_000_000_000 + number), 1)
        split.append((key, head + b'"updated_at":', middle + b'"ts_ms":', b',"snapshot"' + tail))
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "compression.type": "lz4"})
    events_of = shares(len(topics), quiet_share) * rate
    sent = np.zeros(len(topics), dtype=np.int64)
    started = time.time()
    first = np.random.default_rng(1).random(len(topics))  # they do not begin together
    while True:
        now = time.time()
        due = ((now - started) * events_of + first).astype(np.int64)
        row_time, source_time = b"%d" % int(now * 1e6), b"%d" % int(now * 1e3)
        for at in np.flatnonzero(due > sent).tolist():
            for number in range(sent[at], due[at]):
                key, head, middle, tail = split[number % len(split)]
                producer.produce(topics[at], head + row_time + middle + source_time + tail, key)
        sent = due
        producer.poll(0)
        time.sleep(0.01)


def shares(tables: int, quiet_share: float) -> npt.NDArray[np.float64]:
    """Each table's share of the events; they add up to 1."""
    hot = -(-tables // HOT)
    quiet = tables - hot
    if not quiet:
        return np.full(tables, 1 / tables)
    return np.array([(1 - quiet_share) / hot] * hot + [quiet_share / quiet] * quiet)


def await_commits(paths: Sequence[str], run: subprocess.Popen[bytes], out: Path) -> None:
    """Wait for the first commit of rows of each table that gets some in time."""
    waiting, deadline = list(paths), time.monotonic() + BEGIN_SECONDS_MAX
    while waiting and time.monotonic() < deadline:
        if run.poll() is not None:
            sys.exit(f"the pipeline ended with exit code {run.returncode}:\n{out.read_text()[-2000:]}")
        waiting = [path for path in waiting if TableLog(open_store(path)).refresh().version < 1]
        time.sleep(0.5)


def await_archive(cache: Path, run: subprocess.Popen[bytes]) -> None:
    """Wait for the archive of classes, which only the first run of all makes (``pipeline.java``)."""
    until = time.monotonic() + ARCHIVE_SECONDS_MAX
    while run.poll() is None and time.monotonic() < until:
        if list(cache.glob("java/*.jsa")) and not any(map(is_archiving, family(run.pid))):
            return
        time.sleep(1)


def is_archiving(pid: int) -> bool:
    try:
        return b"-Xshare:dump" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def await_rest(paths: Sequence[str], run: subprocess.Popen[bytes]) -> None:
    """Wait until no log has become longer for a while."""
    before = -1
    while run.poll() is None:
        now = sum(len(os.listdir(f"{path}/_delta_log")) for path in paths)
        if now == before:
            return
        before = now
        time.sleep(SETTLED_SECONDS)


def commits_between(paths: Sequence[str], since: float, until: float) -> int:
    count = 0
    for path in paths:
        log = TableLog(open_store(path))
        newest = log.refresh().version
        count += sum(since <= commit.timestamp_ms / 1e3 < until for commit in log.commits(1, newest))
    return count


def freshness(paths: Sequence[str], since: float, until: float) -> dict[str, np.ndarray]:
    found: dict[str, list[np.ndarray]] = {"committed": [], "any Delta reader": []}
    for path in paths:
        for name, each in ages(path, since, until).items():
            found[name].append(each)
    return {name: np.concatenate(each or [np.array([np.nan])]) for name, each in found.items()}


if __name__ == "__main__":
    main()
