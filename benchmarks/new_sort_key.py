"""The sort key of a large table is changed under load: reads stay right throughout, and get faster.

    python -m benchmarks.new_sort_key [--rows 5000000] [--changes 5000] [--plan-mb 32] [--png new_sort_key.png]
    python -m benchmarks.new_sort_key --hot region-13 [--rows 5000000] [--plan-mb 32]

1. A table of orders, sorted by (region, ts), in parts of a quarter of a plan; with plans of the default size it would all be
   one plan. A query for some customers, whom the sort key does not name, reads
   all of its parts.
2. Maintenance runs, in a thread of its own; a batch of changes is applied every second. ``set_sort_key(["customer"])``.
3. After every batch the query is run on the live table, five times; the fastest counts, since merges take the processors now
   and then. Its rows, and the sums over the whole table, must be those of a DuckDB table that got the same changes.
4. It ends when all parts are sorted by the new key and nothing is left to merge.

Printed: about a dozen of the steps.

With ``--hot``, what it is worth to sort first what is read most: a table partitioned by region, in copies of the same files, is
sorted anew in one thread while a query for some customers of one region is run again and again; once in the order that reads
make, once with reads not counted. Printed: when the query reads no part of the old order any more, its time before the change and
from then on (medians, the latter while the rest is sorted), and what was rewritten by then.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import threading
import time
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa

import lakebed
from benchmarks.workload import DELETES, KEYS, SCHEMA, SORT_KEY, Workload, median, table
from lakebed.log.snapshot import parts_to_resort
from lakebed.sortkey.statistics import parsed_stats
from lakebed.table import internals_of

CUSTOMERS = 50_000
BATCH_SECONDS = 1.0
STEPS_MAX = 600
QUERY = "select pk, customer, status, amount from {name} where customer between 20000 and 20100 order by pk"
SUMS = "select count(*), sum(pk), sum(seq), sum(customer) from {name}"


@dataclass(frozen=True)
class Step:
    seconds: float
    parts: int
    sorted: int
    read: int
    query_seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--changes", type=int, default=5_000)
    parser.add_argument("--plan-mb", type=int, default=32, help="lakebed.plan_bytes_max")
    parser.add_argument("--png")
    parser.add_argument(
        "--hot", metavar="REGION", help="sort what is read first beside oldest first: queries read this region"
    )
    args = parser.parse_args()
    if args.hot:
        compare_orders(args.rows, args.plan_mb << 20, args.hot)
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LAKEBED_CACHE_DIR"] = f"{folder}/cache"
        steps = run(folder, args.rows, args.changes, args.plan_mb << 20)
    every = max(1, len(steps) // 12)
    shown = [step for number, step in enumerate(steps) if number % every == 0 or step is steps[-1]]
    table(
        f"{args.rows:,} rows, {args.changes:,} changes a second, the sort key changed to (customer)",
        ["after s", "parts", "sorted by the new key", "parts that the query reads", "query s", "x before"],
        [
            [
                step.seconds,
                step.parts,
                step.sorted,
                step.read,
                step.query_seconds,
                step.query_seconds / steps[0].query_seconds,
            ]
            for step in shown
        ],
    )
    if args.png:
        plot(steps, args.png)


def run(folder: str, rows: int, changes: int, plan_bytes: int) -> list[Step]:
    work = Workload(rows, changes)
    schema = SCHEMA.append(pa.field("customer", pa.int64()))
    properties = {"lakebed.plan_bytes_max": str(plan_bytes), "lakebed.target_part_bytes": str(plan_bytes // 4)}
    orders = lakebed.create(f"{folder}/orders", schema, KEYS, SORT_KEY, properties=properties)
    oracle = duckdb.connect(config={"threads": 2})
    for start in range(0, rows, 1_000_000):
        piece = _with_customer(work.base(start, min(rows, start + 1_000_000)))
        orders.apply(piece)
        oracle.execute(f"{'insert into live' if start else 'create table live as'} from piece")
    orders.settle()
    orders.maintenance.compact()
    stop = threading.Event()
    maintaining = threading.Thread(target=internals_of(orders).follow, args=(stop,), name="maintenance")
    began = time.monotonic()
    steps = [_step(orders, oracle, 0.0)]
    orders.set_sort_key(["customer"])
    maintaining.start()
    try:
        while len(steps) < STEPS_MAX:
            due = time.monotonic() + BATCH_SECONDS
            batch = _with_customer(work.batch())
            orders.apply(batch, apply_as_deletes=DELETES)
            _apply(oracle, batch)
            steps.append(_step(orders, oracle, time.monotonic() - began))
            if steps[-1].sorted == steps[-1].parts and not internals_of(orders).compaction.due():
                return steps
            time.sleep(max(0.0, due - time.monotonic()))
        sys.exit(f"after {STEPS_MAX} batches {steps[-1].sorted} of {steps[-1].parts} parts were sorted by the new key")
    finally:
        stop.set()
        maintaining.join()


@dataclass(frozen=True)
class Race:
    """``hot_seconds``: until the query read no part of the old order; ``hot_bytes``: rewritten by then; ``after_seconds``: of the
    query from then on."""

    before_seconds: float
    hot_seconds: float
    hot_bytes: int
    after_seconds: float
    all_seconds: float
    all_bytes: int


def compare_orders(rows: int, plan_bytes: int, region: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LAKEBED_CACHE_DIR"] = f"{folder}/cache"
        properties = {"lakebed.plan_bytes_max": str(plan_bytes), "lakebed.target_part_bytes": str(plan_bytes // 4)}
        schema = SCHEMA.append(pa.field("customer", pa.int64()))
        made = lakebed.create(f"{folder}/made", schema, KEYS, SORT_KEY, partition_by=["region"], properties=properties)
        for start in range(0, rows, 1_000_000):
            made.apply(_with_customer(Workload(rows).base(start, min(rows, start + 1_000_000))))
        made.settle()
        made.maintenance.compact()
        races = {}
        for order in ("what is read first", "oldest first"):
            shutil.copytree(f"{folder}/made", f"{folder}/{order}")
            races[order] = race(lakebed.open(f"{folder}/{order}"), region, counts_reads=order == "what is read first")
    table(
        f"{rows:,} rows in 20 partitions, the sort key changed to (customer), a query for customers of {region}",
        [
            "order",
            "query s before",
            "sorted for it after s",
            "MB rewritten by then",
            "query s from then on",
            "all sorted after s",
            "MB rewritten",
        ],
        [
            [
                order,
                one.before_seconds,
                one.hot_seconds,
                one.hot_bytes / 2**20,
                one.after_seconds,
                one.all_seconds,
                one.all_bytes / 2**20,
            ]
            for order, one in races.items()
        ],
    )


def race(orders: lakebed.Table, region: str, counts_reads: bool) -> Race:
    where = f"region = '{region}' and customer between 20000 and 20100"
    orders.set_sort_key(["customer"])
    orders.set_properties({"lakebed.count_reads": "on" if counts_reads else "off"})
    right, before = _timed(orders, where)
    compacting = threading.Thread(target=orders.maintenance.compact, name="compaction")
    began = time.monotonic()
    compacting.start()
    hot_seconds, after = 0.0, []
    while compacting.is_alive():
        snapshot = internals_of(orders).log.refresh()
        is_hot_done = all(part.partition_values["region"] != region for part in parts_to_resort(snapshot))
        if is_hot_done and not after:
            hot_seconds, hot_version = time.monotonic() - began, snapshot.version
        found, seconds = _timed(orders, where)
        if found != right:
            sys.exit(f"the table is wrong: {where}")
        after += [seconds] if is_hot_done else []
        time.sleep(0.05)
    all_seconds = time.monotonic() - began
    merges = orders.inspect.compactions().to_pylist()
    hot_bytes = sum(merge["bytes_out"] for merge in merges if merge["version"] <= hot_version)
    return Race(before, hot_seconds, hot_bytes, median(after), all_seconds, sum(merge["bytes_out"] for merge in merges))


def _timed(orders: lakebed.Table, where: str) -> tuple[list[int], float]:
    """The rows of a query, and the median of three runs."""
    times = []
    for _ in range(3):
        started = time.perf_counter()
        found = orders.to_arrow(["pk"], where)
        times.append(time.perf_counter() - started)
    return sorted(found["pk"].to_pylist()), median(times)


def _with_customer(rows: pa.Table) -> pa.Table:
    mixed = rows["pk"].to_numpy().astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(20)
    return rows.append_column("customer", pa.array((mixed % np.uint64(CUSTOMERS)).astype(np.int64)))


def _apply(oracle: duckdb.DuckDBPyConnection, batch: pa.Table) -> None:
    oracle.execute("delete from live where pk in (select pk from batch)")
    newest = "select * from batch qualify row_number() over (partition by pk order by seq desc) = 1"
    oracle.execute(f"insert into live by name select * exclude (op) from ({newest}) where op <> 'd'")


def _step(orders: lakebed.Table, oracle: duckdb.DuckDBPyConnection, seconds: float) -> Step:
    for query in (QUERY, SUMS):
        found = orders.query(query.format(name="orders"), "orders").to_pylist()
        if found != oracle.sql(query.format(name="live")).to_arrow_table().to_pylist():
            sys.exit(f"after {seconds:.0f} s the table is wrong: {query}")
    times = []
    for _ in range(5):
        started = time.perf_counter()
        orders.query(QUERY.format(name="orders"), "orders")
        times.append(time.perf_counter() - started)
    snapshot = internals_of(orders).log.refresh()
    newest = snapshot.settings.sort_key_version
    parts = list(snapshot.parts.values())
    bounds = [parsed_stats(part.stats or "{}") for part in parts]
    read = sum(stats["minValues"]["customer"] <= 20100 and stats["maxValues"]["customer"] >= 20000 for stats in bounds)
    return Step(seconds, len(parts), sum(part.sort_key_version == newest for part in parts), read, min(times))


def plot(steps: list[Step], path: str) -> None:
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, 1, sharex=True, figsize=(8, 5))
    seconds = [step.seconds for step in steps]
    above.plot(seconds, [step.query_seconds for step in steps])
    above.set_ylabel("query, seconds")
    above.set_ylim(bottom=0)
    below.plot(seconds, [step.parts for step in steps], label="parts")
    below.plot(seconds, [step.sorted for step in steps], label="sorted by the new key")
    below.plot(seconds, [step.read for step in steps], label="read by the query")
    below.set_ylim(bottom=0)
    below.set_xlabel("seconds since the change")
    below.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    main()
