"""What names in Spark SQL cost: SELECT by name beside ``Table.read``, planning, and MERGE INTO beside Delta's own.

    python -m benchmarks.names [--rows 1000000 10000000] [--changes 20000] [--rounds 3] [--parts 10000]

1. ``select``: the same queries on ``lake.shop.orders`` and on ``table.read(spark)``, by turns; with a tail of 20,000 changes.
2. ``plan``: EXPLAIN of a selective query on a table of many parts, by name and by ``Table.read``.
3. ``merge``: MERGE INTO with UPDATE SET * and INSERT * (a tenth of the rows is new) from a source of changed rows, whose keys are
   neighbours or spread over the table, into a table by lakebed and into a Delta table with the same rows, by turns.

Each figure is the median of the rounds, in seconds; each round goes on where the last one ended.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

import lakebed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("customer", pa.int64()),
        pa.field("amount", pa.float64()),
        pa.field("note", pa.string()),
    ]
)
QUERIES = {
    "aggregate": "select count(*), sum(amount) from {}",
    "group": "select customer % 100, max(amount) from {} group by 1",
    "selective": "select sum(amount) from {} where id between 1000 and 3000",
    "point": "select * from {} where id = 12345",
}
CHUNK = 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--changes", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parts", type=int, default=10_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        spark = lakebed.spark(catalogs={"lake": folder}, conf={"spark.driver.memory": "6g"})
        for rows in args.rows:
            fill(spark, Path(folder), rows)
            select(spark, Path(folder), rows, args.rounds)
            merge(spark, Path(folder), rows, args.changes, args.rounds)
            shutil.rmtree(Path(folder, "shop"))
        plan(spark, Path(folder), args.parts, args.rounds)


def fill(spark: SparkSession, folder: Path, rows: int) -> None:
    """The same rows in ``lake.shop.orders``, compact and settled, and in the Delta table ``delta``."""
    table = lakebed.create(folder / "shop" / "orders", SCHEMA, keys=["id"])
    for start in range(0, rows, CHUNK):
        table.apply(made(np.arange(start, min(start + CHUNK, rows)), 0))
    table.settle()
    table.maintenance.compact()
    shutil.rmtree(folder / "delta", ignore_errors=True)
    table.read(spark).write.format("delta").option("delta.enableDeletionVectors", "true").save(f"{folder}/delta")


def made(ids: np.ndarray, salt: int) -> pa.Table:
    """Rows with these keys."""
    generator = np.random.default_rng(salt + len(ids))
    columns = [ids, generator.integers(0, 50_000, len(ids)), generator.random(len(ids)) * 1000]
    notes = pa.array(np.char.add("note ", generator.integers(0, 10**6, len(ids)).astype("U7")))
    return pa.Table.from_arrays(
        [pa.array(columns[0]), pa.array(columns[1]), pa.array(columns[2]), notes], schema=SCHEMA
    )


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def select(spark: SparkSession, folder: Path, rows: int, rounds: int) -> None:
    table = lakebed.open(folder / "shop" / "orders")
    table.apply(made(np.random.default_rng(1).choice(rows, 20_000, replace=False), 1))
    print(f"\n### SELECT on {rows:,} rows and a tail of 20,000 changes, seconds\n")
    print("| query | Table.read | by name | ratio |\n| --- | --- | --- | --- |")
    for name, query in QUERIES.items():

        def by_read(query: str = query) -> object:
            table.read(spark).createOrReplaceTempView("orders_read")
            return spark.sql(query.format("orders_read")).collect()

        def by_name(query: str = query) -> object:
            return spark.sql(query.format("lake.shop.orders")).collect()

        by_read()
        by_name()
        pairs = [(timed(by_read), timed(by_name)) for _ in range(5 * rounds)]
        read, named = (statistics.median(side) for side in zip(*pairs, strict=True))
        print(f"| {name} | {read:.3f} | {named:.3f} | {named / read:.2f} |")
    table.settle()


def merge(spark: SparkSession, folder: Path, rows: int, changes: int, rounds: int) -> None:
    print(f"\n### MERGE INTO {rows:,} rows of {changes:,} rows, seconds\n")
    print("| keys | lakebed | rows read | Delta | ratio |\n| --- | --- | --- | --- | --- |")
    statement = (
        "merge into {} t using changes s on t.id = s.id when matched then update set * when not matched then insert *"
    )
    generator = np.random.default_rng(7)
    for spread in ("neighbours", "random"):
        seconds: dict[str, list[float]] = {"lake.shop.orders": [], f"delta.`{folder}/delta`": []}
        read = None
        for number in range(rounds + 1):  # the first one warms up
            old = changes - changes // 10
            start = int(generator.integers(0, rows - old))
            ids = (
                np.arange(start, start + old) if spread == "neighbours" else generator.choice(rows, old, replace=False)
            )
            new = (
                10 * rows + number * changes + np.arange(changes // 10) + (changes * 1000 if spread == "random" else 0)
            )
            spark.createDataFrame(made(np.concatenate([ids, new]), number)).createOrReplaceTempView("changes")
            for target, all in seconds.items():
                begun = time.perf_counter()
                (result,) = spark.sql(statement.format(target)).collect()
                if number:
                    all.append(time.perf_counter() - begun)
                if target.startswith("lake"):
                    read = result["num_rows_read"]
        ours, theirs = (statistics.median(all) for all in seconds.values())
        print(f"| {spread} | {ours:.2f} | {read:,} | {theirs:.2f} | {theirs / ours:.1f} |")


def plan(spark: SparkSession, folder: Path, parts: int, rounds: int) -> None:
    table = lakebed.create(folder / "shop" / "many", SCHEMA, keys=["id"])
    for start in range(parts):
        table.apply(made(np.arange(start * 10, start * 10 + 10), start))
    table.settle()
    print(f"\n### Planning on {len(table.inspect.parts()):,} parts, seconds\n")
    query = "select sum(amount) from {} where id between 1000 and 3000"

    def planned(name: str) -> object:
        return spark.sql(query.format(name))._jdf.queryExecution().executedPlan()

    def by_read() -> object:
        table.read(spark).createOrReplaceTempView("many_read")
        return planned("many_read")

    def by_name() -> object:
        return planned("lake.shop.many")

    print("| | Table.read | by name |\n| --- | --- | --- |")
    for commits in (False, True):
        seconds: dict[Callable[[], object], list[float]] = {by_read: [], by_name: []}
        for number in range(rounds * 3 + 1):
            for one, taken in seconds.items():
                if commits:
                    table.apply(made(np.arange(number, number + 10), number))
                taken.append(timed(one))
        figures = " | ".join(f"{statistics.median(taken[1:]):.3f}" for taken in seconds.values())
        print(f"| {'after a commit' if commits else 'the version known'} | {figures} |")


if __name__ == "__main__":
    main()
