"""How much faster two replicas merge than one: processes that share a table's plans through claims in its log.

    python -m benchmarks.replicas [--rows 6000000] [--rounds 3]

A table of 16 partitions, sorted by time, with ten runs in each, so that there is a plan for each partition. For each round the
table is copied and compacted by one process, then again by two that begin together; each merges on one thread until the
planner finds nothing that is not claimed. Seconds are those from the beginning until the last process has ended. On a machine
that does other work, compare the processors' seconds: if they are the same in sum, replicas cost each other nothing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

import lakebed
from benchmarks.workload import SCHEMA, Workload, median, table

PARTITIONS, RUNS = 16, 10
_REPLICA = """
import sys
import time
import pyarrow as pa
import lakebed
pa.set_cpu_count(1)
orders = lakebed.open(sys.argv[1])
orders.maintenance.plan()
print("ready", flush=True)
sys.stdin.readline()
started = time.process_time()
print(orders.maintenance.compact().merges, time.process_time() - started)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=6_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    seconds: dict[int, list[float]] = {1: [], 2: []}
    processor: dict[int, list[float]] = {1: [], 2: []}
    merges: dict[int, list[int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LAKEBED_CACHE_DIR"] = f"{folder}/cache"
        make(f"{folder}/orders", args.rows)
        for _ in range(args.rounds):
            for replicas, times in seconds.items():
                shutil.copytree(f"{folder}/orders", f"{folder}/copy")
                took, done = compact(f"{folder}/copy", replicas)
                times.append(took)
                merges[replicas] = [int(count) for count, _ in done]
                processor[replicas].append(sum(cpu for _, cpu in done))
                shutil.rmtree(f"{folder}/copy")
    one = median(seconds[1])
    table(
        f"{args.rows:,} rows in {PARTITIONS} partitions, {RUNS} runs each, {os.cpu_count()} cores",
        ["replicas", "median s", "x as fast as one", "processors' s, sum", "merges of each, last round"],
        [
            [count, median(times), one / median(times), median(processor[count]), merges[count]]
            for count, times in seconds.items()
        ],
    )


def make(path: str, rows: int) -> None:
    schema = SCHEMA.append(pa.field("shard", pa.int32()))
    orders = lakebed.create(path, schema, sort_key=["ts"], partition_by=["shard"])
    work = Workload(rows)
    for run in range(RUNS):
        keys = work.base(run * rows // RUNS, (run + 1) * rows // RUNS)
        shards = pa.array([at % PARTITIONS for at in range(len(keys))], pa.int32())
        times = work.base(0, len(keys))["ts"]  # the same for each run, so that runs overlap
        orders.apply(keys.set_column(1, "ts", times).append_column("shard", shards))


def compact(path: str, replicas: int) -> tuple[float, list[tuple[float, float]]]:
    """Seconds that so many processes take together; the merges and processor's seconds of each."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _REPLICA, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
        )
        for _ in range(replicas)
    ]
    for process in processes:
        assert process.stdout and process.stdout.readline() == "ready\n"
    started = time.perf_counter()
    for process in processes:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
    printed = [process.communicate()[0].split() for process in processes]
    took = time.perf_counter() - started
    return took, [(float(merges), float(cpu)) for merges, cpu in printed]


if __name__ == "__main__":
    main()
