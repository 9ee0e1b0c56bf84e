"""What a batch and its settle ask of an object store: requests and bytes, against a real S3 server on loopback.

    python -m benchmarks.s3_settle [--rows 1000000] [--batches 5] [--changes 20000]

The first settle on a machine builds the key index (it reads the base's key columns, once); those after it read what
their batch needs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from dataclasses import dataclass

import lakebed
from benchmarks.workload import DELETES, KEYS, SCHEMA, SORT_KEY, Workload, table
from lakebed.storage.counters import OperationCount, StoreCounters
from lakebed.table import internals_of
from tests.infra.s3 import S3Server, aws_environment

PART_ROWS = 250_000


@dataclass(frozen=True, slots=True)
class Cost:
    """One step: its time, and what it asked of the store for data and for the log."""

    seconds: float
    data: StoreCounters
    log: StoreCounters

    @property
    def total(self) -> OperationCount:
        return self.data.total + self.log.total


class Meter:
    """Takes the difference of a table's counters around a step."""

    def __init__(self, of: lakebed.Table) -> None:
        self._table = of

    def _now(self) -> tuple[float, StoreCounters, StoreCounters]:
        log: StoreCounters = internals_of(self._table).log.store.counters()  # type: ignore[attr-defined]
        return time.perf_counter(), internals_of(self._table).storage.counters(), log

    def __enter__(self) -> Meter:
        self._before = self._now()
        return self

    def __exit__(self, *raised: object) -> None:
        seconds, data, log = self._now()
        before = self._before
        self.cost = Cost(seconds - before[0], data - before[1], log - before[2])


def fill(path: str, work: Workload, cache: str, part_rows: int = PART_ROWS) -> None:
    """Create the table and its base in parts of some size, in a process of its own: this one's memory stays cold."""
    child = multiprocessing.get_context("spawn").Process(target=_fill, args=(path, work, cache, part_rows))
    child.start()
    child.join()
    if child.exitcode:
        raise RuntimeError(f"filling {path} ended with code {child.exitcode}")


def _fill(path: str, work: Workload, cache: str, part_rows: int) -> None:
    os.environ["LAKEBED_CACHE_DIR"] = cache
    orders = lakebed.create(path, SCHEMA, keys=KEYS, sort_key=SORT_KEY)
    for start in range(0, work.rows, part_rows):
        orders.apply(work.base(start, min(work.rows, start + part_rows)))
    orders.settle()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--changes", type=int, default=20_000)
    args = parser.parse_args()
    work = Workload(args.rows, args.changes)
    rows: list[list[object]] = []

    def note(step: str, cost: Cost) -> None:
        total = cost.total
        kinds = ", ".join(
            f"{name} {count.requests}" for name, count in sorted((cost.data + cost.log).operations.items())
        )
        rows.append([step, cost.seconds, total.requests, total.bytes_read / 1e6, total.bytes_written / 1e6, kinds])

    with S3Server() as server, tempfile.TemporaryDirectory() as cache, aws_environment(server.endpoint):
        os.environ["LAKEBED_CACHE_DIR"] = cache
        path = f"s3://{server.create_bucket()}/orders"
        fill(path, work, f"{cache}/other")
        orders = lakebed.open(path)
        base_bytes = sum(orders.inspect.parts()["bytes"].to_pylist())
        for number in range(args.batches + 1):
            label = "first" if number == 0 else f"{number + 1}th"
            with Meter(orders) as meter:
                orders.apply(work.batch(), apply_as_deletes=DELETES)
            note(f"{label} apply", meter.cost)
            with Meter(orders) as meter:
                orders.settle()
            note(f"{label} settle", meter.cost)
    table(
        f"{args.changes:,} changes into {args.rows:,} rows ({base_bytes / 1e6:.1f} MB of base) on S3",
        ["step", "s", "requests", "MB read", "MB written", "requests by kind"],
        rows,
    )


if __name__ == "__main__":
    main()
