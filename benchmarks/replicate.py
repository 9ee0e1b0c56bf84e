"""When it pays that another host builds what a replica keeps on its disk (``lakebed.replicate_local``).

    python -m benchmarks.replicate [--rows 1000000] [--batches 60] [--delay 0]

One table in a real S3 server on loopback, and three processes, each with a cache folder of its own as on another host. After
each batch, A settles and merges whatever its planner finds. B builds what A keeps on its disk; C does not. Then B and C read the
newest version, one after the other and in turns: an aggregate over the whole table, and a query that selects by the sort key. So
each pair of figures is of the same version, minute and machine. ``--delay``: milliseconds that each request waits.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, fields
from multiprocessing.connection import Connection

import lakebed
from benchmarks.workload import DELETES, KEYS, SCHEMA, SORT_KEY, Workload, table
from lakebed.compaction.merge_runner import MergeRunner
from lakebed.compaction.merge_values import MergeOutcome
from lakebed.compaction.volatile import VolatileMerger
from lakebed.table import internals_of
from tests.infra.fault_proxy import FaultProxy
from tests.infra.s3 import S3Server, aws_environment

READS = {
    "aggregate": "select region, count(*) as n, sum(amount) as amount from orders group by region order by region",
    "selective": "select count(*) as n, sum(amount) as amount from orders where region = 'region-07' "
    "and ts between timestamptz '2025-06-15 18:00:00+00' and timestamptz '2025-06-15 19:00:00+00'",
}


@dataclass
class Cost:
    """Of one piece of work, or of ``count`` of them. ``parts``: opened by reads."""

    count: int = 0
    seconds: float = 0.0
    processor: float = 0.0
    requests: float = 0
    mb_read: float = 0.0
    parts: float = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    def each(self) -> list[object]:
        """The average."""
        values = (self.parts, self.seconds, self.processor, self.requests, self.mb_read)
        return [self.count, *(float(value) / max(1, self.count) for value in values)]


class Host:
    """A process with a cache folder of its own that has the table open."""

    def __init__(self, path: str, cache: str) -> None:
        self._ours, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(
            target=_serve, args=(theirs, path, cache), daemon=True
        )
        self._process.start()

    def ask(self, what: str) -> tuple[Cost, object]:
        """``replicate``, or the SQL of a read: its cost, and what came of it."""
        self._ours.send(what)
        return self._ours.recv()  # type: ignore[no-any-return]


def _serve(asked: Connection, path: str, cache: str) -> None:
    os.environ["LAKEBED_CACHE_DIR"] = cache
    orders = lakebed.open(path)
    inside = internals_of(orders)
    while True:
        try:
            what = asked.recv()
        except EOFError:
            return
        inside.log.refresh()
        before, started, processor = inside.storage.counters(), time.perf_counter(), time.process_time()
        built = rows = None
        if what == "replicate":
            built = inside.compaction.replication.look(inside.compaction.local_kernel())
        else:
            rows = orders.query(what, name="orders").to_pylist()
        seconds, processor = time.perf_counter() - started, time.process_time() - processor
        total = (inside.storage.counters() - before).total
        parts = 0 if what == "replicate" else len(inside.view.pin(inside.log.refresh()).files)
        asked.send((Cost(1, seconds, processor, total.requests, total.bytes_read / 1e6, parts), rows or built))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--delay", type=int, default=0, help="milliseconds that each request waits")
    args = parser.parse_args()
    with ExitStack() as stack:
        server = stack.enter_context(S3Server())
        proxy = stack.enter_context(FaultProxy(server.ports[0]))
        stack.enter_context(aws_environment(proxy.endpoint if args.delay else server.endpoint))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        compare(f"s3://{server.create_bucket()}/orders", folder, proxy, args)


def compare(path: str, folder: str, proxy: FaultProxy, args: argparse.Namespace) -> None:
    os.environ["LAKEBED_CACHE_DIR"] = f"{folder}/a"
    work, properties = Workload(args.rows), {"lakebed.volatile": "on", "lakebed.replicate_local": "on"}
    orders = lakebed.create(path, SCHEMA, KEYS, SORT_KEY, properties=properties)
    orders.apply(work.base())
    orders.settle()
    inside = internals_of(orders)
    merger = VolatileMerger(inside.log, inside.storage, inside.deletion_vectors, inside.compaction.volatile_base)
    merge_runner = MergeRunner(path, inside.log, merger, inside.compaction.local_kernel())
    hosts = {name: Host(path, f"{folder}/{name}") for name in "bc"}
    for host in hosts.values():
        host.ask(READS["selective"])  # opens the table
    proxy.delay_seconds = args.delay / 1000
    builds, local, uploaded = Cost(), 0, 0
    reads = {(read, name): Cost() for read in READS for name in hosts}
    for batch in range(args.batches):
        orders.apply(work.batch(), apply_as_deletes=DELETES)
        orders.settle()
        for result in merge_runner.run_until_idle():
            local += result.local
            uploaded += result.outcome is MergeOutcome.COMPLETED and not result.local
        while (asked := hosts["b"].ask("replicate"))[1] is not None:
            builds += asked[0]
        for read, sql in READS.items():
            found = {name: hosts[name].ask(sql) for name in ("bc" if batch % 2 else "cb")}
            assert [row["n"] for row in found["b"][1]] == [row["n"] for row in found["c"][1]]  # type: ignore[attr-defined]
            for name in hosts:
                reads[read, name] += found[name][0]
    report(args, builds, reads, local, uploaded)


def report(
    args: argparse.Namespace, builds: Cost, reads: dict[tuple[str, str], Cost], local: int, uploaded: int
) -> None:
    table(
        f"{args.batches} batches of 20,000 changes into {args.rows:,} rows, the store {args.delay} ms away: "
        f"{local} merges stayed on A's disk, {uploaded} were uploaded",
        ["what", "times", "parts", "seconds", "processor's s", "requests", "MB from the store"],
        [
            ["a build on B", *builds.each()],
            *([f"{read}, {'on' if name == 'b' else 'off'}", *cost.each()] for (read, name), cost in reads.items()),
        ],
    )

    def even(read: str, of: Callable[[Cost], float]) -> object:
        saved = (of(reads[read, "c"]) - of(reads[read, "b"])) / args.batches
        return of(builds) / max(1, builds.count) / saved if saved > 0 else "never"

    measures: list[Callable[[Cost], float]] = [
        lambda cost: cost.seconds,
        lambda cost: cost.processor,
        lambda cost: cost.requests,
        lambda cost: cost.mb_read,
    ]
    table(
        "It pays from so many reads on, for each part that B builds",
        ["read", "by seconds", "by processor's seconds", "by requests", "by MB from the store"],
        [[read, *(even(read, of) for of in measures)] for read in READS],
    )


if __name__ == "__main__":
    main()
