"""What a batch costs: a plain Spark append of it, lakebed's commit, commit and settle together, and Delta's MERGE, in turn.

    python -m benchmarks.batches [--rows 1000000] [--batches 20] [--changes 20000] [--merges 5]

All in one session. The MERGE goes into a Delta table of its own, with deletion vectors, for the first few batches only.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from typing import Any

import pyarrow.parquet as pq

import lakebed
from benchmarks.workload import DELETES, KEYS, SCHEMA, SORT_KEY, Workload, median, p95, table

_MERGE = """
merge into delta.`{folder}/merged` t
using (select * from (select *, row_number() over (partition by pk order by seq desc) newest from changes) where newest = 1) s
on t.pk = s.pk
when matched and s.op = 'd' then delete
when matched then update set ts = s.ts, region = s.region, status = s.status, amount = s.amount, note = s.note, seq = s.seq
when not matched and s.op <> 'd' then insert (pk, ts, region, status, amount, note, seq)
  values (s.pk, s.ts, s.region, s.status, s.amount, s.note, s.seq)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--changes", type=int, default=20_000)
    parser.add_argument("--merges", type=int, default=5)
    args = parser.parse_args()
    spark = lakebed.spark("benchmark", "local[2]", conf={"spark.driver.memory": "2g"})
    spark.sparkContext.setLogLevel("ERROR")
    work = Workload(args.rows, args.changes)
    times: dict[str, list[float]] = {
        "plain Spark append": [],
        "commit": [],
        "settle": [],
        "commit and settle": [],
        "Delta MERGE": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        orders = lakebed.create(f"{folder}/orders", SCHEMA, keys=KEYS, sort_key=SORT_KEY)
        for start in range(0, args.rows, 1_000_000):
            orders.apply(work.base(start, min(args.rows, start + 1_000_000)))
        orders.settle()
        if args.merges:
            writer = orders.read(spark).write.format("delta").option("delta.enableDeletionVectors", "true")
            writer.save(f"{folder}/merged")
        for number in range(args.warmup + args.batches):
            source = f"{folder}/batch-{number}.parquet"
            pq.write_table(work.batch(), source)
            frame = spark.read.parquet(source)
            started = time.perf_counter()
            frame.write.mode("append").parquet(f"{folder}/plain")
            appended = time.perf_counter()
            orders.apply(frame, apply_as_deletes=DELETES)
            committed = time.perf_counter()
            orders.settle()
            settled = time.perf_counter()
            if number < args.merges:
                _merge(spark, frame, folder)
                times["Delta MERGE"].append(time.perf_counter() - settled)
            if number >= args.warmup:
                times["plain Spark append"].append(appended - started)
                times["commit"].append(committed - appended)
                times["settle"].append(settled - committed)
                times["commit and settle"].append(settled - appended)
    spark.stop()
    times["Delta MERGE"] = times["Delta MERGE"][1:]  # the first one warms up
    base = median(times["plain Spark append"])
    rows: list[list[object]] = [
        [name, median(values), p95(values), median(values) / base, p95(values) / median(values)]
        for name, values in times.items()
        if values
    ]
    table(
        f"{args.batches} batches of {args.changes:,} changes into {args.rows:,} rows",
        ["what", "median s", "p95 s", "x plain append", "p95 / median"],
        rows,
    )


def _merge(spark: Any, frame: Any, folder: str) -> None:
    frame.createOrReplaceTempView("changes")
    spark.sql(_MERGE.format(folder=folder)).collect()


if __name__ == "__main__":
    main()
