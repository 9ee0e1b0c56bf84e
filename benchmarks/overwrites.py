"""Overwrites whose rows Spark's tasks write: rows a second, and the memory of the driver, which must not grow with the rows.

    python -m benchmarks.overwrites [--rows 2000000 20000000] [--cores 2]

For each number of rows, in a process of its own:

1. A table with keys and ten days as partitions gets a million rows of another day, which stay.
2. The ten days are overwritten with as many rows, spread over the days, in no order.
3. One of these days is replaced, so that the keys of the others are compared with its rows.
4. Half of all rows are replaced, by a condition on a column that the table is neither sorted nor partitioned by.

Meanwhile another process applies a hundred changes of random rows each second, and settles them.

It prints how long each took, its parts, the batches that were committed meanwhile, and the most memory that the driver's Python
and its Java ever had. The rows are made by tasks, so what is measured includes making them, twice: Spark samples them before it
sorts.
"""

from __future__ import annotations

import argparse
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

import lakebed

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event

    from pyspark.sql import DataFrame

DAYS = 10
STAYING = 1_000_000
CHANGES = 100
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("day", pa.int32()),
        pa.field("customer", pa.int64()),
        pa.field("amount", pa.float64()),
        pa.field("note", pa.string()),
    ]
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[2_000_000, 20_000_000])
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.once:
        overwrite(args.rows[0], args.cores)
        return
    print("rows        what                  seconds      rows/s  parts  MB/part  batches  Python MB  Java MB")
    for rows in args.rows:
        command = [sys.executable, "-m", "benchmarks.overwrites", "--once", "--rows", str(rows)]
        subprocess.run([*command, "--cores", str(args.cores)], check=True)


def overwrite(rows: int, cores: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        spark = lakebed.spark("overwrites", f"local[{cores}]", s3=False, conf={"spark.driver.memory": "1g"})
        spark.sparkContext.setLogLevel("ERROR")
        table = lakebed.create(f"{folder}/table", SCHEMA, keys=["id"], partition_by=["day"])

        def some(first: int, last: int, day: str) -> DataFrame:
            scattered = "id * 7919 % 1000003"
            return spark.range(first, last).selectExpr(
                "id",
                f"cast({day} as int) as day",
                f"{scattered} as customer",
                f"{scattered} * 0.25D as amount",
                f"concat('note ', {scattered}) as note",
            )

        table.overwrite(some(0, STAYING, "0"), "day = 0")
        all_days = some(STAYING, STAYING + rows, f"1 + id % {DAYS}")
        others = multiprocessing.get_context("spawn")
        ended = others.Event()
        ingest = others.Process(target=apply_changes, args=(table.path, STAYING + rows, ended))
        ingest.start()
        report("ten days", rows, table, lambda: table.overwrite(all_days, f"day between 1 and {DAYS}"))
        one_day = some(STAYING, STAYING + rows, f"1 + id % {DAYS}").where("day = 3")
        report("one of them", rows // DAYS, table, lambda: table.replace_partition({"day": 3}, one_day))
        half = all_days.where("customer < 500000")
        count = half.count()
        report("half, anywhere", count, table, lambda: table.overwrite(half, "customer < 500000 and day > 0"))
        ended.set()
        ingest.join()
        assert table.read(spark).count() == STAYING + rows
        assert table.query("select count(*) as n from t where amount < 0", "t")["n"][0].as_py() > 0
        spark.stop()


def apply_changes(path: str, rows: int, ended: Event) -> None:
    """Change the amounts of rows, and settle."""
    table, random = lakebed.open(path), np.random.default_rng(1)
    while not ended.wait(1.0):
        ids = np.unique(random.integers(0, rows, CHANGES))
        customers = ids * 7919 % 1_000_003
        days = np.where(ids < STAYING, 0, 1 + ids % DAYS)
        notes = [f"changed {id}" for id in ids]
        columns = dict(zip(SCHEMA.names, (ids, days, customers, -1.0 * ids, notes), strict=True))
        table.apply(pa.table(columns).cast(SCHEMA))
        table.settle()


def report(what: str, rows: int, table: lakebed.Table, run: Callable[[], object]) -> None:
    before, version = set(table.inspect.parts()["path"].to_pylist()), table.version
    started = time.perf_counter()
    run()
    seconds = time.perf_counter() - started
    batches = table.inspect.timeline(table.version - version)["operation"].to_pylist().count("APPLY")
    parts = [
        part for part in table.inspect.parts().to_pylist() if part["path"] not in before and part["rows"] > CHANGES
    ]
    size = sum(part["bytes"] for part in parts) / len(parts) / 2**20
    python, java = most_memory("self"), max(map(most_memory, processes("java")), default=0)
    written = f"{len(parts):6} {size:8.1f} {batches:8}"
    print(f"{rows:<11,} {what:<20} {seconds:8.1f} {rows / seconds:11,.0f} {written} {python:10} {java:8}", flush=True)


def most_memory(process: str) -> int:
    """The most memory that a process ever had, in MB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("VmHWM"))


def processes(name: str) -> list[str]:
    """The processes below this one that run a program of this name."""
    children = [child for each in Path("/proc/self/task").glob("*/children") for child in each.read_text().split()]
    return [child for child in children if Path(f"/proc/{child}/comm").read_text().strip() == name]


if __name__ == "__main__":
    main()
