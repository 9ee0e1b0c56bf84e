"""How long planning a table of many parts takes, on one core, once the parts' statistics have been parsed.

python -m benchmarks.planner [--parts 10000]
"""

from __future__ import annotations

import argparse
import random
import time

from benchmarks.workload import table
from lakebed.log.actions import Part
from lakebed.planning.planner import plan
from lakebed.sortkey.statistics_cache import StatisticsCache
from tests.planning import tables

MB = 1 << 20
NOW_MS = 1_900_000_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", type=int, default=10_000)
    args = parser.parse_args()
    rows: list[list[object]] = []
    for shape in ("ten runs", "by time", "random"):
        snapshot = tables.table(parts(shape, args.parts))
        statistics = StatisticsCache()
        started = time.process_time()
        plan(snapshot, (), NOW_MS, statistics=statistics)
        cold = time.process_time() - started
        warm = []
        for _ in range(5):
            started = time.process_time()
            planning = plan(snapshot, (), NOW_MS, statistics=statistics)
            warm.append(time.process_time() - started)
        rows.append([shape, cold * 1000, min(warm) * 1000, len(planning.plans)])
    table(f"Planning {args.parts:,} parts, CPU milliseconds", ["parts", "first time", "then", "plans"], rows)


def parts(shape: str, count: int) -> list[Part]:
    rng, out = random.Random(1), []
    for number in range(count):
        if shape == "random":
            low = rng.randrange(10**6)
            out.append(tables.part(f"p-{number}", low, low + rng.randrange(2000), 20 * MB))
        elif shape == "by time":
            out.append(tables.part(f"p-{number}", number * 10, number * 10 + rng.randrange(40), 100 * MB))
        else:
            at, run = number % (count // 10) * 10, number * 10 // count
            out.append(tables.part(f"p-{number}", at, at + 9, 100 * MB, min_block=run, max_block=run))
    return out


if __name__ == "__main__":
    main()
