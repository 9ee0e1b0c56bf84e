"""How the CPU time of Spark's aggregate over a fresh table is shared out to its tasks, by what opening a file counts as.

    python -m benchmarks.scan_tasks [--rows 1000000] [--batches 20] [--runs 15] [--open-kb 4096 1024 256 128 64]

The table is that of ``benchmarks.fresh_read``: a base, and batches that are settled and merged. The same rows are one sorted file
with row groups of 122,880 rows, as in ``benchmarks.peers``. The ways run in turn in one session. CPU time is what Spark's tasks
report, so it says the same on a busy machine. "longest" is the time of the busiest of two cores, if each takes the next longest
task when it is free: on a quiet machine the query waits for it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb

import lakebed
from benchmarks.fresh_read import AGGREGATE, SELECTIVE
from benchmarks.workload import DELETES, KEYS, SCHEMA, SORT_KEY, Workload, median, table
from lakebed.table import internals_of

CORES = 2
WARM_UP_ROUNDS = 6
PLAIN, LIVE, WITH_DEAD = "one sorted file", "lakebed", "the same parts, dead rows too (wrong)"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--open-kb", type=int, nargs="+", default=[4096, 1024, 256, 128, 64])
    args = parser.parse_args()
    spark = lakebed.spark("benchmark", f"local[{CORES}]", conf={"spark.driver.memory": "2g"})
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as folder:
        views = register(spark, Path(folder), args.rows, args.batches)
        first, last = spark.sql("select min(ts), max(ts) from live").first()
        low = first + (last - first) * 0.6
        window = {"low": str(low), "high": str(low + (last - first) * 0.1)}
        largest = max(args.open_kb)
        ways = [(PLAIN, largest), (WITH_DEAD, largest), *((LIVE, size) for size in args.open_kb)]
        for query, text in (("aggregate", AGGREGATE), ("selective", SELECTIVE)):
            times: dict[tuple[str, int], list[tuple[float, float]]] = {way: [] for way in ways}
            for round_number in range(WARM_UP_ROUNDS + args.runs):
                for way, open_kb in ways:
                    spark.conf.set("spark.sql.files.openCostInBytes", str(open_kb * 1024))
                    cpu = cpu_ms(spark, text.format(name=views[way], **window))
                    if round_number >= WARM_UP_ROUNDS:
                        times[way, open_kb].append((sum(cpu), longest(cpu)))
            report(query, times)
    spark.stop()


def register(spark: Any, folder: Path, rows: int, batches: int) -> dict[str, str]:
    """The views of the ways."""
    work = Workload(rows)
    orders = lakebed.create(folder / "orders", SCHEMA, keys=KEYS, sort_key=SORT_KEY)
    orders.apply(work.base())
    orders.settle()
    for _ in range(batches):
        orders.apply(work.batch(), apply_as_deletes=DELETES)
        orders.settle()
        orders.maintenance.compact()
    with duckdb.connect() as connection:
        connection.execute("set TimeZone = 'UTC'")
        connection.register("rows", orders.to_arrow())
        options = "(format parquet, compression zstd, row_group_size 122880)"
        connection.execute(f"copy (select * from rows order by region, ts, pk) to '{folder}/plain.parquet' {options}")
    internals = internals_of(orders)
    files = internals.view.pin(internals.log.refresh()).files
    stored, dead = sum(file.rows for file in files), sum(len(file.dead or ()) for file in files)
    print(f"{len(files)} parts, {stored:,} rows, {dead:,} of them dead")
    live = orders.read(spark)
    live.createOrReplaceTempView("live")
    spark.read.parquet(f"{folder}/plain.parquet").createOrReplaceTempView("plain")
    paths = [f"{folder}/orders/{file.path}" for file in files]
    spark.read.schema(live.schema).parquet(*paths).createOrReplaceTempView("with_dead")
    return {PLAIN: "plain", LIVE: "live", WITH_DEAD: "with_dead"}


def cpu_ms(spark: Any, sql: str) -> list[float]:
    """Runs a query; the CPU time of each task of the stage that took most."""
    context = spark._jsc.sc()
    group = f"{time.monotonic_ns()}"
    context.setJobGroup(group, group, False)
    spark.sql(sql).collect()
    context.listenerBus().waitUntilEmpty()
    stages = [sorted(tasks, reverse=True) for tasks in _stages(context, group)]
    return max(stages, key=sum)


def _stages(context: Any, group: str) -> Iterator[list[float]]:
    tracker, store = context.statusTracker(), context.statusStore()
    for job in tracker.getJobIdsForGroup(group):
        for stage in tracker.getJobInfo(job).get().stageIds():
            tasks = store.taskList(stage, 0, 1000)
            metrics = (tasks.apply(at).taskMetrics() for at in range(tasks.size()))
            yield [each.get().executorCpuTime() / 1e6 for each in metrics if each.isDefined()]


def longest(cpu: list[float]) -> float:
    """The load of the busiest core."""
    loads = [0.0] * CORES
    for task in cpu:
        loads[loads.index(min(loads))] += task
    return max(loads)


def report(query: str, times: dict[tuple[str, int], list[tuple[float, float]]]) -> None:
    medians = {way: tuple(median(list(each)) for each in zip(*found, strict=True)) for way, found in times.items()}
    total, busiest = next(found for (way, _), found in medians.items() if way == PLAIN)
    rows: list[list[object]] = [
        [way, open_kb, cpu, cpu / total, load, load / busiest] for (way, open_kb), (cpu, load) in medians.items()
    ]
    table(f"{query}: CPU ms of the scan's tasks", ["way", "open KB", "all", "× plain", "longest", "× plain"], rows)


if __name__ == "__main__":
    main()
