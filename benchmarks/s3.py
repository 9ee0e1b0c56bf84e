"""What an object store that is far away does to batches, and what its requests cost: a real S3 server behind a delay.

    python -m benchmarks.s3 [--rows 1000000] [--batches 20] [--delays 0 20 50 100]

The server runs on loopback; each request waits ``delay`` milliseconds before it is passed on. ``commits/s`` are commits of an
empty batch one after the other; apply and settle are of 20,000 changes, medians, with nothing beside them. Then the same
batches once more with maintenance running, volatile parts off and on: the batch's median, and all requests of the process until
maintenance rests, per million changes, at the list prices of Amazon S3 Standard in us-east-1.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import Counter
from typing import Any

import lakebed
from benchmarks.frontier import wait_for_rest
from benchmarks.workload import DELETES, KEYS, SCHEMA, SORT_KEY, Workload, median, p95, table
from lakebed import events
from lakebed.log.actions import CommitInfo, Transaction
from lakebed.log.conflicts import BLIND
from lakebed.log.table_log import Committed
from lakebed.monitoring.metrics import REQUEST_DOLLARS
from lakebed.table import internals_of
from tests.infra.fault_proxy import FaultProxy
from tests.infra.s3 import S3Server, aws_environment

COMMITS = 30
WARM_UP = 3
_KINDS = {REQUEST_DOLLARS["put"]: "put", REQUEST_DOLLARS["head"]: "get", 0.0: "free"}


class Requests:
    """Requests of this process, by operation, while it listens."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def __call__(self, event: object) -> None:
        if isinstance(event, events.StoreRequested):
            self.counts[event.operation] += event.requests

    def kinds(self) -> Counter[str]:
        """As they are billed."""
        kinds: Counter[str] = Counter()
        for operation, count in self.counts.items():
            listing = operation.startswith("list")
            kinds["list" if listing else _KINDS[REQUEST_DOLLARS.get(operation, 0.0)]] += count
        return kinds

    def dollars(self) -> float:
        return sum(REQUEST_DOLLARS.get(operation, 0.0) * count for operation, count in self.counts.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--delays", type=int, nargs="+", default=[0, 20, 50, 100], help="milliseconds")
    args = parser.parse_args()
    alone: list[list[object]] = []
    maintained: list[list[object]] = []
    with S3Server() as server, FaultProxy(server.ports[0]) as proxy, aws_environment(proxy.endpoint):
        spark = lakebed.spark("benchmark", "local[2]", conf={"spark.driver.memory": "2g"})
        spark.sparkContext.setLogLevel("ERROR")
        for delay in args.delays:
            bucket = server.create_bucket()
            alone.append([delay, *by_itself(f"s3://{bucket}/alone", proxy, delay, args)])
            for volatile in ("off", "on"):
                path = f"s3://{bucket}/volatile-{volatile}"
                maintained.append([delay, volatile, *with_maintenance(spark, path, volatile, proxy, delay, args)])
        spark.stop()
    table(
        f"A store some milliseconds away: batches of 20,000 changes into {args.rows:,} rows",
        ["delay ms", "commits/s", "apply median s", "p95 s", "settle median s", "p95 s"],
        alone,
    )
    table(
        "The same with maintenance running; requests and their price per million changes",
        [
            "delay ms",
            "volatile",
            "apply median s",
            "p95 s",
            "writes",
            "reads",
            "lists",
            "deletes (free)",
            "dollars",
            "MB sent / MB of changes",
        ],
        maintained,
    )


def filled(path: str, rows: int, volatile: str = "off") -> tuple[lakebed.Table, Workload]:
    work = Workload(rows)
    lake = lakebed.create(path, SCHEMA, KEYS, SORT_KEY, properties={"lakebed.volatile": volatile})
    for start in range(0, rows, 250_000):
        lake.apply(work.base(start, min(rows, start + 250_000)))
    lake.settle()
    return lake, work


def by_itself(path: str, proxy: FaultProxy, delay: int, args: argparse.Namespace) -> list[object]:
    with tempfile.TemporaryDirectory() as cache:
        os.environ["LAKEBED_CACHE_DIR"] = cache
        lake, work = filled(path, args.rows)
        proxy.delay_seconds = delay / 1000
        snapshot = internals_of(lake).log.refresh()
        started = time.perf_counter()
        for number in range(COMMITS):
            outcome = internals_of(lake).log.commit(
                snapshot, [Transaction("benchmark", number)], CommitInfo(operation="WRITE", commit_id=""), BLIND
            )
            assert isinstance(outcome, Committed)
            snapshot = outcome.snapshot
        per_second = COMMITS / (time.perf_counter() - started)
        applies, settles = [], []
        for _ in range(WARM_UP + args.batches):
            batch = work.batch()
            started = time.perf_counter()
            lake.apply(batch, apply_as_deletes=DELETES)
            applied = time.perf_counter()
            lake.settle()
            applies.append(applied - started)
            settles.append(time.perf_counter() - applied)
        proxy.delay_seconds = 0.0
    applies, settles = applies[WARM_UP:], settles[WARM_UP:]
    return [per_second, median(applies), p95(applies), median(settles), p95(settles)]


def with_maintenance(
    spark: Any, path: str, volatile: str, proxy: FaultProxy, delay: int, args: argparse.Namespace
) -> list[object]:
    with tempfile.TemporaryDirectory() as cache:
        os.environ["LAKEBED_CACHE_DIR"] = cache
        lake, work = filled(path, args.rows, volatile)
        proxy.delay_seconds = delay / 1000
        query = lake.maintain(spark)
        requests = Requests()
        proxy.traffic(reset=True)
        applies, changes, size = [], 0, 0
        stop_listening = events.listen(requests)
        for _ in range(args.batches):
            batch = work.batch()
            changes += len(batch)
            size += batch.nbytes
            started = time.perf_counter()
            lake.apply(batch, apply_as_deletes=DELETES)
            applies.append(time.perf_counter() - started)
            wait_for_rest(lake)
        stop_listening()
        sent = sum(proxy.traffic().bytes_sent.values())
        query.stop()
        internals_of(lake).compaction.close()
        proxy.delay_seconds = 0.0
    kinds = requests.kinds()
    per_million = 1_000_000 / changes
    counted = [kinds[kind] * per_million for kind in ("put", "get", "list", "free")]
    return [median(applies), p95(applies), *counted, requests.dollars() * per_million, sent / size]


if __name__ == "__main__":
    main()
