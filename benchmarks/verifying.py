"""What it costs to verify files before they are read (``lakebed.verify_reads``): the first read of a process, and later ones.

    python -m benchmarks.verifying --rows 1000000 --rounds 7

A table of orders on the local disk, its file read before, so that it is in memory. For each kind of read, processes that verify
and processes that don't take turns, each with a table of its own. Milliseconds of CPU: the least of the rounds, since other work
on the machine only adds to them. "later" is the median of nine reads after the first one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from statistics import median

import lakebed
from benchmarks.workload import KEYS, SCHEMA, SORT_KEY, Workload

READS: dict[str, Callable[[lakebed.Table], object]] = {
    "all rows and columns, to Arrow": lambda table: table.to_arrow(),
    "sum of one column, by SQL": lambda table: table.query("select sum(amount) from orders", "orders"),
    "one region and day, by SQL": lambda table: table.query(
        "select sum(amount) from orders where region = 'region-07' and ts between '2025-06-16' and '2025-06-17'",
        "orders",
    ),
    "one region and day, to Arrow": lambda table: table.to_arrow(
        where="region = 'region-07' and ts between '2025-06-16' and '2025-06-17'"
    ),
    "look-up of a key": lambda table: table.lookup([123_456]),
}
LATER = 9


def make(path: str, rows: int, verify: str) -> int:
    """A settled table of one part a million rows; returns its bytes."""
    workload = Workload(rows)
    orders = lakebed.create(
        path, SCHEMA, KEYS, SORT_KEY, sequence_by="seq", properties={"lakebed.verify_reads": verify}
    )
    for start in range(0, rows, 1_000_000):
        orders.apply(workload.base(start, min(rows, start + 1_000_000)))
        orders.settle()
    return sum(orders.inspect.parts()["bytes"].to_pylist())


def read(path: str, name: str) -> None:
    """Prints the CPU milliseconds of the first read and of a later one."""
    table, took = lakebed.open(path), []
    table.inspect.detail()
    for _ in range(1 + LATER):
        started = time.process_time()
        READS[name](table)
        took.append((time.process_time() - started) * 1000)
    print(took[0], median(took[1:]))


def best(rounds: Iterable[tuple[float, float]]) -> tuple[float, float]:
    first, later = zip(*rounds, strict=True)
    return min(first), min(later)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--read", nargs=2, metavar=("PATH", "NAME"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        read(*options.read)
        return
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "LAKEBED_CACHE_DIR": f"{folder}/cache"}
        paths = {verify: f"{folder}/{verify}" for verify in ("off", "local")}
        size = max(make(path, options.rows, verify) for verify, path in paths.items())
        time.sleep(3)  # files that changed within two seconds are verified again at each read
        print(f"{options.rows:,} rows, {size / 1e6:.1f} MB, ms of CPU: first / later")
        print("| read | not verified | verified |\n| --- | --- | --- |")
        for name in READS:
            took: dict[str, list[tuple[float, float]]] = {verify: [] for verify in paths}
            for _ in range(options.rounds):
                for verify, path in paths.items():
                    command = [sys.executable, "-m", "benchmarks.verifying", "--read", path, name]
                    out = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
                    first, later = map(float, out.split())
                    took[verify].append((first, later))
            cells = [f"{first:.1f} / {later:.1f}" for first, later in (best(took[verify]) for verify in paths)]
            print(f"| {name} | {cells[0]} | {cells[1]} |")


if __name__ == "__main__":
    main()
