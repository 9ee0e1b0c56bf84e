"""What a scrape costs, and what taking the figures of a table costs, by the number of its parts.

    python -m benchmarks.scrape [--parts 100 10000] [--scrapes 50]

The table is a log of 100 commits with parts of four levels whose ranges overlap, some with dead rows; the files of its
parts are not there. A scrape is one over HTTP, as Prometheus does it. A look is one of the background thread: ``first``
parses all statistics, ``dear`` asks the planner and works out the clustering anew, ``cheap`` is all others.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

import lakebed
from benchmarks.workload import median, p95, table
from lakebed.health.sampler import Sampler
from lakebed.log.actions import AddPart, CommitInfo, Part
from lakebed.log.conflicts import BLIND
from lakebed.log.table_log import Committed, TableLog
from lakebed.monitoring.metrics import Metrics
from lakebed.table import internals_of
from tests.planning.tables import part

SCHEMA = pa.schema([pa.field("key", pa.int64(), nullable=False), ("region", pa.string())])
COMMITS = 100
LOOKS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", type=int, nargs="+", default=[100, 10_000])
    parser.add_argument("--scrapes", type=int, default=50)
    args = parser.parse_args()
    scrapes: list[list[object]] = []
    looks: list[list[object]] = []
    for count in args.parts:
        with tempfile.TemporaryDirectory() as folder:
            log = filled(folder, count)
            metrics = Metrics()
            taken = {"first": look(metrics, log, folder)}
            taken["dear"] = median([look(metrics, log, folder) for _ in range(LOOKS)])
            sampler = Sampler(folder, log, Path(folder, "none"))
            sampler.sample()
            taken["cheap"] = median([look(metrics, log, folder, sampler) for _ in range(LOOKS)])
            looks.append([f"{count:,}", *(seconds * 1000 for seconds in taken.values())])
            scrapes.append([f"{count:,}", *scraped(metrics, args.scrapes)])
    table("A scrape, milliseconds", ["parts", "median", "p95", "bytes"], scrapes)
    table("A look at the table, CPU milliseconds", ["parts", "first", "dear", "cheap"], looks)


def filled(folder: str, count: int) -> TableLog:
    """A log of so many parts, added by ``COMMITS`` commits."""
    lakebed.create(folder, SCHEMA, keys=["key"])
    log = internals_of(lakebed.open(folder)).log
    rng = random.Random(1)
    parts = [one(rng, number) for number in range(count)]
    snapshot = log.refresh()
    for start in range(COMMITS):
        added = [AddPart(each) for each in parts[start::COMMITS]]
        outcome = log.commit(snapshot, added, CommitInfo(operation="WRITE", commit_id=""), BLIND)
        assert isinstance(outcome, Committed)
        snapshot = outcome.snapshot
    log.write_checkpoint(snapshot)
    return log


def one(rng: random.Random, number: int) -> Part:
    low = rng.randrange(10**6)
    placed = {"level": rng.randrange(4), "min_block": -1, "max_block": -1}
    made = part(f"p-{number}", low, low + rng.randrange(2000), dead=rng.choice([0, 0, 0, 100]), **placed)
    return replace(made, sort_key_version=1, modified_ms=int(time.time() * 1000))


def look(metrics: Metrics, log: TableLog, folder: str, sampler: Sampler | None = None) -> float:
    """CPU seconds of a look; without a sampler by a new one, whose first look is a dear one."""
    sampler = sampler or Sampler(folder, log, Path(folder, "none"))
    started = time.thread_time()
    metrics.observe(folder, sampler.sample())
    return time.thread_time() - started


def scraped(metrics: Metrics, scrapes: int) -> list[object]:
    server = metrics.serve("127.0.0.1", 0)
    times, size = [], 0
    for _ in range(scrapes):
        started = time.perf_counter()
        size = len(urllib.request.urlopen(server.url).read())
        times.append((time.perf_counter() - started) * 1000)
    server.close()
    return [median(times), p95(times), size]


if __name__ == "__main__":
    main()
