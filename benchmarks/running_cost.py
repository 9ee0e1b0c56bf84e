"""What a running pipeline costs: CPU by kind of process and thread, under a steady load from Kafka and idle, and freshness.

    python -m benchmarks.running_cost [--rate 2000] [--warm-up 300] [--seconds 60] [--idle 30] [--trigger-seconds 0] [--as-query]

1. ``lakebed run`` ingests from two partitions, as a user starts it. A producer sends ``rate`` Debezium events a second.
2. After ``warm-up`` seconds, CPU is counted for ``seconds``. Then the producer ends, and it is counted for ``idle`` seconds more.
3. Each event carries the time at which it was produced. Its age when any Delta reader sees it comes from the log
   (``benchmarks.freshness``).

CPU is user and system time of the pipeline's processes, from /proc; broker and producer are not among them. Cores are CPU seconds
a second, which hold on a busy machine too; freshness does not.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from benchmarks.freshness import ages, produce
from benchmarks.steady import family, resident_mb
from benchmarks.workload import table
from lakebed.errors import LakebedError
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from tests.infra.kafka import KafkaServer

_TICKS = os.sysconf("SC_CLK_TCK")
_SETTLED_SECONDS = 5.0
PIPELINE = """
table:
  path: {path}
  keys: [id]
  schema: {{id: long, customer: long, region: string, status: string, amount: double, note: string, updated_at: timestamp}}
source:
  kind: kafka
  config: {{bootstrap.servers: '{bootstrap}'}}
  topics: [orders]
format: debezium-json
trigger_seconds: {trigger}
maintenance: {{as_query: {as_query}}}
metrics: {{port: null}}
"""
THREADS = {
    "C1 Comp": "JIT", "C2 Comp": "JIT", "GC ": "garbage collection", "G1 ": "garbage collection",
    "stream exec": "stream threads", "Executor task": "task threads", "Thread-": "calls of Python", "VM ": "VM",
}  # fmt: skip
"""How the name of a thread of the JVM begins, and what the thread does; the rest are Spark's own threads."""
MODULES = {"python_streaming_source_runner": "planner of offsets", "pyspark.daemon": "of tasks", "pyspark": "of Spark"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=2000)
    parser.add_argument("--warm-up", type=float, default=300.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--idle", type=float, default=30.0)
    parser.add_argument("--trigger-seconds", type=float, default=0.0, help="of the pipeline; 0: its own pace")
    parser.add_argument("--as-query", action="store_true", help="maintain by a streaming query in place of a thread")
    args = parser.parse_args()
    with KafkaServer() as kafka, tempfile.TemporaryDirectory() as folder:
        kafka.create_topic("orders", 2)
        os.environ["LAKEBED_CACHE_DIR"] = f"{folder}/cache"
        path, pipeline = f"{folder}/orders", Path(folder, "orders.yml")
        settings = {"trigger": args.trigger_seconds, "as_query": str(args.as_query).lower()}
        pipeline.write_text(PIPELINE.format(path=path, bootstrap=kafka.bootstrap, **settings))
        producer = multiprocessing.get_context("spawn").Process(
            target=produce, args=(kafka.bootstrap, args.rate, 24 * 3600)
        )
        producer.start()
        with open(f"{folder}/out", "w") as out:
            command = [str(Path(sys.executable).with_name("lakebed")), "run", str(pipeline)]
            run = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            await_commits(path, run)
            time.sleep(args.warm_up)
            since = time.time()
            loaded, commits = counted(run.pid, args.seconds), len(commits_since(path, since))
            until = time.time()
            memory = sum(resident_mb(pid) for pid in family(run.pid))
            producer.terminate()
            time.sleep(_SETTLED_SECONDS)
            fresh = ages(path, since, until)
            idle = counted(run.pid, args.idle)
        finally:
            producer.terminate()
            run.terminate()
            run.wait(60)
    report(args, loaded, idle, commits / args.seconds, memory)
    rows: list[list[object]] = [
        [name, len(each), *(float(np.percentile(each, q)) for q in (50, 99, 100))] for name, each in fresh.items()
    ]
    table("Freshness under load", ["event in Kafka until", "rows", "p50 s", "p99 s", "max s"], rows)


def report(args: argparse.Namespace, loaded: Counter[str], idle: Counter[str], commits: float, memory: float) -> None:
    rows: list[list[object]] = [
        [kind, loaded[kind] / args.seconds, idle[kind] / args.idle] for kind, _ in (loaded + idle).most_common()
    ]
    rows.append(["all", loaded.total() / args.seconds, idle.total() / args.idle])
    table(
        f"Cores at {args.rate:,} events/s after {args.warm_up:.0f} s, and idle; {commits:.1f} commits/s, {memory:,.0f} MB",
        ["kind", "cores", "cores idle"],
        rows,
    )


def await_commits(path: str, run: subprocess.Popen[bytes]) -> None:
    """Wait for the first commit of rows."""
    while run.poll() is None:
        try:
            if TableLog(open_store(path)).refresh().version > 0:
                return
        except LakebedError:
            pass  # not created yet
        time.sleep(0.5)
    sys.exit(f"the pipeline ended with exit code {run.returncode}")


def commits_since(path: str, since: float) -> list[int]:
    log = TableLog(open_store(path))
    newest = log.refresh().version
    return [each.version for each in log.commits(1, newest) if each.timestamp_ms / 1e3 >= since]


def counted(pid: int, seconds: float) -> Counter[str]:
    """CPU seconds of a process and all below it within some seconds, by kind."""
    before = cpu_by_thread(pid)
    time.sleep(seconds)
    kinds: Counter[str] = Counter()
    for (_, _, kind), used in (cpu_by_thread(pid) - before).items():
        kinds[kind] += used
    return kinds


def cpu_by_thread(root: int) -> Counter[tuple[int, int, str]]:
    """CPU seconds so far by process, thread and kind; thread -1 holds the children of a process that have ended."""
    used: Counter[tuple[int, int, str]] = Counter()
    for pid in family(root):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            java = command[0].endswith("java")
            role = "driver" if pid == root else kind_of_process(command)
            used[pid, -1, f"{'JVM' if java else role}: ended children"] += _seconds(Path(f"/proc/{pid}/stat"), 13)
            for thread in Path(f"/proc/{pid}/task").iterdir():
                kind = kind_of_thread((thread / "comm").read_text()) if java else role
                used[pid, int(thread.name), kind] += _seconds(thread / "stat", 11)
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended meanwhile
    return used


def kind_of_process(command: list[str]) -> str:
    words = " ".join(command)
    return "Python worker " + next((kind for module, kind in MODULES.items() if module in words), "else")


def kind_of_thread(name: str) -> str:
    return "JVM: " + next((kind for start, kind in THREADS.items() if name.startswith(start)), "other threads")


def _seconds(stat: Path, first: int) -> float:
    """User and system time, which are two fields of a ``stat``; the first two fields of it are left out of the count."""
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[first]) + int(fields[first + 1])) / _TICKS


if __name__ == "__main__":
    main()
