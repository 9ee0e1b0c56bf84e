"""What a fresh read costs: the live table against the same rows as plain sorted Parquet, in turn in one session.

    python -m benchmarks.fresh_read [--rows 1000000] [--batches 20] [--runs 15]

Each batch is settled, and parts are merged when the planner says so, as maintenance does. Then
the table is read as it is, and once more with 10,000 unsettled changes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable

from pyspark.sql import DataFrame

import lakebed
from benchmarks.workload import DELETES, KEYS, SCHEMA, SORT_KEY, Workload, median, table

AGGREGATE = "select region, status, count(*), sum(amount), max(ts) from {name} group by region, status"
SELECTIVE = (
    "select count(*), sum(amount), max(note) from {name} where region = 'region-07' "
    "and ts between timestamp '{low}' and timestamp '{high}'"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--runs", type=int, default=15)
    args = parser.parse_args()
    spark = lakebed.spark("benchmark", "local[2]", conf={"spark.driver.memory": "2g"})
    spark.sparkContext.setLogLevel("ERROR")
    work = Workload(args.rows)
    results: list[list[object]] = []
    with tempfile.TemporaryDirectory() as folder:
        orders = lakebed.create(f"{folder}/orders", SCHEMA, keys=KEYS, sort_key=SORT_KEY)
        orders.apply(work.base())
        orders.settle()
        for _ in range(args.batches):
            orders.apply(work.batch(), apply_as_deletes=DELETES)
            orders.settle()
            orders.maintenance.compact()
        orders.read(spark).createOrReplaceTempView("settled")
        low, high = _tenth(spark)
        results += _compare(
            spark,
            folder,
            "settled",
            low,
            high,
            runs=args.runs,
            title=f"settled, {orders.inspect.parts().num_rows} parts",
        )
        results += _delta(spark, f"{folder}/orders", low, high, args.runs)
        work.changes = 10_000
        orders.apply(work.batch(), apply_as_deletes=DELETES)
        opened = lakebed.open(f"{folder}/orders")
        started = time.perf_counter()
        opened.read(spark).createOrReplaceTempView("tail")
        planned = time.perf_counter() - started
        results += _compare(spark, folder, "tail", low, high, runs=args.runs, title="10,000 changes unsettled")
    spark.stop()
    table(
        f"Reads of {args.rows:,} rows after {args.batches} batches of 20,000 changes",
        ["table", "query", "plain sorted Parquet s", "lakebed s", "ratio"],
        results,
    )
    print(f"\nResolving 10,000 unsettled changes once for the view, without a key index: {planned:.3f} s")


def _tenth(spark: object) -> tuple[str, str]:
    row = spark.sql("select min(ts), max(ts) from settled").first()  # type: ignore[attr-defined]
    first, last = row[0], row[1]
    start = first + (last - first) * 0.6
    return str(start), str(start + (last - first) * 0.1)


def _compare(
    spark: object, folder: str, name: str, low: str, high: str, *, runs: int, title: str
) -> list[list[object]]:
    live: DataFrame = spark.table(name)  # type: ignore[attr-defined]
    plain = f"{folder}/plain-{name}"
    live.repartition(1).sortWithinPartitions(*SORT_KEY).write.option("compression", "zstd").parquet(plain)
    spark.read.parquet(plain).createOrReplaceTempView(f"plain_{name}")  # type: ignore[attr-defined]
    out: list[list[object]] = []
    for query, text in (("aggregate", AGGREGATE), ("selective", SELECTIVE)):
        sides: list[Callable[[], object]] = []
        for view in (f"plain_{name}", name):
            sql = text.format(name=view, low=low, high=high)
            sides.append(lambda sql=sql: spark.sql(sql).collect())  # type: ignore[attr-defined, misc]
        times: list[list[float]] = [[], []]
        for run in range(runs + 3):
            for side in (0, 1):
                started = time.perf_counter()
                sides[side]()
                if run >= 3:
                    times[side].append(time.perf_counter() - started)
        out.append([title, query, median(times[0]), median(times[1]), median(times[1]) / median(times[0])])
    return out


def _delta(spark: object, path: str, low: str, high: str, runs: int) -> list[list[object]]:
    """The same settled table through Delta's own reader."""
    spark.read.format("delta").load(path).createOrReplaceTempView("delta_reader")  # type: ignore[attr-defined]
    out: list[list[object]] = []
    for query, text in (("aggregate", AGGREGATE), ("selective", SELECTIVE)):
        times: list[list[float]] = [[], []]
        for run in range(runs + 3):
            for side, view in enumerate(("plain_settled", "delta_reader")):
                started = time.perf_counter()
                spark.sql(text.format(name=view, low=low, high=high)).collect()  # type: ignore[attr-defined]
                if run >= 3:
                    times[side].append(time.perf_counter() - started)
        out.append(
            [
                "same, read by delta-spark",
                query,
                median(times[0]),
                median(times[1]),
                median(times[1]) / median(times[0]),
            ]
        )
    return out


if __name__ == "__main__":
    main()
