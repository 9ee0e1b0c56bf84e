"""What a batch costs: a plain Spark append of it, lakebed's commit, and commit and settle together, in turn in one session.

python -m benchmarks.batches [--rows 1000000] [--batches 20] [--changes 20000]
"""

from __future__ import annotations

import argparse
import tempfile
import time

import pyarrow.parquet as pq

import lakebed
from benchmarks.workload import DELETES, KEYS, SCHEMA, SORT_KEY, Workload, median, p95, table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--changes", type=int, default=20_000)
    args = parser.parse_args()
    spark = lakebed.spark("benchmark", "local[2]", conf={"spark.driver.memory": "2g"})
    spark.sparkContext.setLogLevel("ERROR")
    work = Workload(args.rows, args.changes)
    with tempfile.TemporaryDirectory() as folder:
        orders = lakebed.create(f"{folder}/orders", SCHEMA, keys=KEYS, sort_key=SORT_KEY)
        for start in range(0, args.rows, 1_000_000):
            orders.apply(work.base(start, min(args.rows, start + 1_000_000)))
        orders.settle()
        plain, commit, settle, whole = [], [], [], []
        for number in range(args.warmup + args.batches):
            changes = work.batch()
            source = f"{folder}/batch-{number}.parquet"
            pq.write_table(changes, source)
            frame = spark.read.parquet(source)
            started = time.perf_counter()
            frame.write.mode("append").parquet(f"{folder}/plain")
            appended = time.perf_counter()
            orders.apply(frame, apply_as_deletes=DELETES)
            committed = time.perf_counter()
            orders.settle()
            settled = time.perf_counter()
            if number >= args.warmup:
                plain.append(appended - started)
                commit.append(committed - appended)
                settle.append(settled - committed)
                whole.append(settled - appended)
        base = median(plain)
        rows: list[list[object]] = []
        for name, times in (
            ("plain Spark append", plain),
            ("commit", commit),
            ("settle", settle),
            ("commit and settle", whole),
        ):
            rows.append([name, median(times), p95(times), median(times) / base, p95(times) / median(times)])
        table(
            f"{args.batches} batches of {args.changes:,} changes into {args.rows:,} rows",
            ["what", "median s", "p95 s", "x plain append", "p95 / median"],
            rows,
        )
    spark.stop()


if __name__ == "__main__":
    main()
