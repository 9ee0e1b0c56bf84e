"""Where the time of each hot path goes: CPU time by function, under Python's profiler, on one table.

    python -m benchmarks.hot_paths [--rows 1000000] [--batches 25] [--top 8]

A table of orders; batches of 20,000 changes are applied and settled; then merged; read whole; looked up by key; planned; and
Debezium events are decoded. Own time: without what is called from there: a line of pyarrow, DuckDB or numpy is the time in that
library. All threads of the process count, and the profiler itself: compare shares.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import lakebed
from benchmarks.workload import DELETES, KEYS, SCHEMA, SORT_KEY, Workload, table
from lakebed.decode.debezium.events import DebeziumJson
from lakebed.decode.decoder import DecoderSchema
from lakebed.planning.planner import plan
from lakebed.sources.generator import COLUMNS, OrderStream
from lakebed.sources.generator import KEYS as ORDER_KEYS
from lakebed.table import internals_of

EVENTS = 50_000
CLOCK_MICROS = 1_700_000_000_000_000


class HotPath:
    """One hot path: profiled each time it is gone."""

    def __init__(self, name: str) -> None:
        self.name, self.times, self.seconds = name, 0, 0.0
        self.profile = cProfile.Profile(time.process_time)

    def go(self, work: Callable[[], object]) -> None:
        started = time.process_time()
        self.profile.runcall(work)
        self.seconds += time.process_time() - started
        self.times += 1

    def print(self, top: int) -> None:
        own = sorted(
            ((own, calls, where) for where, (_, calls, own, _, _) in pstats.Stats(self.profile).stats.items()),
            reverse=True,
        )
        rows: list[list[object]] = [
            [label(where), calls / self.times, seconds / self.times * 1000, seconds / self.seconds]
            for seconds, calls, where in own[:top]
        ]
        title = f"{self.name}: {self.seconds / self.times * 1000:.1f} ms of CPU time"
        table(title, ["own time of", "calls", "ms", "share"], rows)


def label(where: tuple[str, int, str]) -> str:
    file, _, function = where
    if file == "~":
        return function.strip("<>")
    path = Path(file)
    parts = path.with_suffix("").parts
    start = next(
        (at for at, part in enumerate(parts) if part in ("lakebed", "pyarrow", "duckdb", "numpy")), len(parts) - 1
    )
    return ".".join((*parts[start:], function))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=25)
    parser.add_argument("--top", type=int, default=8)
    args = parser.parse_args()
    names = ("apply", "settle", "merge", "read", "look up 20 keys", "plan", f"decode {EVENTS:,} events")
    apply, settle, merge, read, lookup, planned, decode = paths = [HotPath(name) for name in names]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LAKEBED_CACHE_DIR"] = f"{folder}/cache"
        work = Workload(args.rows)
        lake = lakebed.create(f"{folder}/orders", SCHEMA, keys=KEYS, sort_key=SORT_KEY)
        lake.apply(work.base())
        lake.settle()
        for number in range(args.batches):
            batch = work.batch()
            if number < 3:  # warms up
                lake.apply(batch, apply_as_deletes=DELETES)
                lake.settle()
                continue
            apply.go(lambda batch=batch: lake.apply(batch, apply_as_deletes=DELETES))  # type: ignore[misc]
            settle.go(lake.settle)
            planned.go(
                lambda: plan(internals_of(lake).log.refresh(), (), 0, statistics=internals_of(lake).log.statistics)
            )
            read.go(lake.to_arrow)
            keys = [int(key) for key in np.random.default_rng(number).integers(0, args.rows, 20)]
            lookup.go(lambda keys=keys: lake.lookup(keys))  # type: ignore[misc]
            if number % 10 == 9:
                merge.go(lake.maintenance.compact)
        records = OrderStream().events(0, EVENTS, CLOCK_MICROS)
        decoder = DebeziumJson(DecoderSchema(COLUMNS, ORDER_KEYS))
        decoder.decode(records)
        for _ in range(3):
            decode.go(lambda: decoder.decode(records))
    for path in paths:
        path.print(args.top)


if __name__ == "__main__":
    main()
