"""What metrics cost: the same ingest, settles and merges with metrics on and off, in turn.

    python -m benchmarks.overhead [--rounds 10] [--batches 40] [--changes 20000]

A round ingests ``batches`` batches into a new table, settles each, then merges until nothing is left, in this process. With
metrics on, a listener counts every event, a thread takes the table's figures as ``lakebed run`` does, and another scrapes them
every second. Which comes first changes with every round. CPU time is of the whole process, metrics' threads included.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import lakebed
from benchmarks.workload import DELETES, KEYS, SCHEMA, SORT_KEY, Workload, median, table
from lakebed import events
from lakebed.monitoring.metrics import Metrics
from lakebed.pipeline.watches import SAMPLE_SECONDS, SAMPLE_SHARE
from lakebed.table import internals_of

SCRAPE_SECONDS = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--changes", type=int, default=20_000)
    args = parser.parse_args()
    for on in (False, True):
        one(on, 5, args.changes)  # warms up
    wall: dict[bool, list[float]] = {True: [], False: []}
    cpu: dict[bool, list[float]] = {True: [], False: []}
    for number in range(args.rounds):
        for on in (number % 2 == 0, number % 2 == 1):
            seconds, used = one(on, args.batches, args.changes)
            wall[on].append(seconds)
            cpu[on].append(used)
    rows: list[list[object]] = []
    for name, taken in (("wall", wall), ("CPU", cpu)):
        pairs = [with_it / without for with_it, without in zip(taken[True], taken[False], strict=True)]
        rows.append(
            [name, median(taken[False]), median(taken[True]), median(pairs), min(taken[True]) / min(taken[False])]
        )
    title = f"{args.rounds} rounds of {args.batches} batches of {args.changes:,} changes, settled and merged; seconds"
    table(title, ["time", "off", "on", "on ÷ off, median of pairs", "on ÷ off, least of each"], rows)


def one(on: bool, batches: int, changes: int) -> tuple[float, float]:
    """A round: its seconds, and CPU seconds."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LAKEBED_CACHE_DIR"] = f"{folder}/cache"
        orders = lakebed.create(f"{folder}/orders", SCHEMA, keys=KEYS, sort_key=SORT_KEY)
        work = Workload(0, changes)
        work._next_key = changes
        with watched(orders) if on else nullcontext():
            return worked(orders, work, batches)


def worked(orders: lakebed.Table, work: Workload, batches: int) -> tuple[float, float]:
    started, used = time.perf_counter(), time.process_time()
    for _ in range(batches):
        orders.apply(work.batch(), apply_as_deletes=DELETES)
        orders.settle()
    orders.maintenance.compact()
    return time.perf_counter() - started, time.process_time() - used


@contextmanager
def watched(orders: lakebed.Table) -> Iterator[None]:
    metrics, done = Metrics(), threading.Event()
    end = events.listen(metrics)
    sampler = internals_of(orders).sampler()
    server = metrics.serve("127.0.0.1", 0)

    def sample() -> None:
        while not done.is_set():
            started = time.monotonic()
            metrics.observe(orders.path, sampler.sample())
            done.wait(max(SAMPLE_SECONDS, (time.monotonic() - started) / SAMPLE_SHARE))

    def scrape() -> None:
        while not done.wait(SCRAPE_SECONDS):
            urllib.request.urlopen(server.url).read()

    threads = [threading.Thread(target=sample), threading.Thread(target=scrape)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()
        server.close()
        end()


if __name__ == "__main__":
    main()
