"""What names in Spark SQL cost: SELECT by name beside ``Table.read``, planning, and MERGE INTO beside Delta's own.

    python -m benchmarks.names [--rows 1000000 10000000] [--changes 20000] [--rounds 3] [--parts 10000]

1. ``select``: the same queries on ``lake.shop.orders`` and on ``table.read(spark)``, by turns; with a tail of 20,000 changes.
2. ``plan``: EXPLAIN of a selective query on a table of many parts, by name and by ``Table.read``.
3. ``merge``: MERGE INTO with UPDATE SET * and INSERT * (a tenth of the rows is new) from a source of changed rows, whose keys are
   neighbours or spread over the table, into a table by lakebed and into a Delta table with the same rows, by turns.

4. ``floor``: what Spark alone takes for what a MERGE asks of it, two queries whose results come to Python as Arrow: the keys of
   the source, and a join of the source with the rows that have them, both in the driver's memory.

Each figure is the median of the rounds, in seconds. Both sides of a round run in turn, each first in every second one; each round
goes on where the last one ended. CPU is that of Python and the JVM.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

import lakebed
from benchmarks.verify import cpu_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
MERGE = "merge into {} t using changes s on t.id = s.id when matched then update set * when not matched then insert *"
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


class Clock:
    """Times work in seconds, and in seconds of CPU of this process and its JVM."""

    def __init__(self, spark: SparkSession) -> None:
        assert spark._jvm is not None
        self._jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())

    def __call__(self, work: Callable[[], object]) -> tuple[float, float]:
        start, cpu = time.perf_counter(), self._cpu()
        work()
        return time.perf_counter() - start, self._cpu() - cpu

    def _cpu(self) -> float:
        return time.process_time() + cpu_of(self._jvm)


def interval(ratios: list[float]) -> str:
    """Between what the median of such ratios is, at 95 %."""
    ratios = sorted(ratios)
    out = max(0, int((len(ratios) - 1.96 * len(ratios) ** 0.5) / 2))
    return f"{ratios[out]:.2f} to {ratios[-1 - out]:.2f}"


def select(spark: SparkSession, folder: Path, rows: int, rounds: int) -> None:
    table, clock = lakebed.open(folder / "shop" / "orders"), Clock(spark)
    table.apply(made(np.random.default_rng(1).choice(rows, 20_000, replace=False), 1))
    print(f"\n### SELECT on {rows:,} rows and a tail of 20,000 changes, seconds\n")
    print(
        "| query | Table.read | by name | ratio | interval of 95 % | ratio of CPU |\n| --- | --- | --- | --- | --- | --- |"
    )
    for name, query in QUERIES.items():

        def by_read(query: str = query) -> object:
            table.read(spark).createOrReplaceTempView("orders_read")
            return spark.sql(query.format("orders_read")).collect()

        def by_name(query: str = query) -> object:
            return spark.sql(query.format("lake.shop.orders")).collect()

        pairs = in_turn(clock, by_read, by_name, 5 * rounds)
        read, named = (statistics.median(seconds for seconds, _ in side) for side in pairs)
        ratios = [its[0] / its_read[0] for its_read, its in zip(*pairs, strict=True)]
        cpu = sum(each for _, each in pairs[1]) / sum(each for _, each in pairs[0])
        print(
            f"| {name} | {read:.3f} | {named:.3f} | {statistics.median(ratios):.2f} | {interval(ratios)} | {cpu:.2f} |"
        )
    table.settle()


def in_turn(
    clock: Clock, one: Callable[[], object], other: Callable[[], object], rounds: int
) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Both are timed in each round, after one that warms up."""
    found: dict[Callable[[], object], list[tuple[float, float]]] = {one: [], other: []}
    for number in range(rounds + 1):
        for work in (one, other) if number % 2 else (other, one):
            found[work].append(clock(work))
    return found[one][1:], found[other][1:]


def merge(spark: SparkSession, folder: Path, rows: int, changes: int, rounds: int) -> None:
    clock, generator, statement = Clock(spark), np.random.default_rng(7), MERGE
    print(f"\n### MERGE INTO {rows:,} rows of {changes:,} rows, seconds\n")
    print(
        "| keys | lakebed | rows read | Delta | ratio | ratio of CPU | floor |\n| --- | --- | --- | --- | --- | --- | --- |"
    )
    old, new = changes - changes // 10, changes // 10
    for spread in ("neighbours", "random"):
        ours, theirs, floors, read = list[tuple[float, float]](), list[tuple[float, float]](), list[float](), 0
        for number in range(rounds + 1):  # the first one warms up
            start = int(generator.integers(0, rows - old))
            near = spread == "neighbours"
            ids = np.arange(start, start + old) if near else generator.choice(rows, old, replace=False)
            fresh = 10 * rows + number * changes + np.arange(new) + (0 if near else changes * 1000)
            source = spark.createDataFrame(made(np.concatenate([ids, fresh]), number))
            source.createOrReplaceTempView("changes")

            def by_lakebed() -> None:
                nonlocal read
                read = spark.sql(statement.format("lake.shop.orders")).collect()[0]["num_rows_read"]

            def by_delta() -> None:
                spark.sql(statement.format(f"delta.`{folder}/delta`")).collect()

            for work, found in ((by_lakebed, ours), (by_delta, theirs))[:: 1 if number % 2 else -1]:
                found.append(clock(work))
            floors.append(clock(partial(floor, source, pa.table({"key": ids})))[0])
        seconds, cpu = ([statistics.median(one[of] for one in side[1:]) for side in (ours, theirs)] for of in (0, 1))
        print(
            f"| {spread} | {seconds[0]:.2f} | {read:,} | {seconds[1]:.2f} | {seconds[1] / seconds[0]:.1f} | "
            f"{cpu[1] / cpu[0]:.1f} | {statistics.median(floors[1:]):.2f} |"
        )


def floor(source: DataFrame, there: pa.Table) -> None:
    """What Spark has to do in any case for a MERGE that it computes of these rows."""
    from pyspark.sql.functions import expr

    source.select("id").toArrow()
    source.join(source.sparkSession.createDataFrame(there), expr("id = key"), "left").toArrow()


def plan(spark: SparkSession, folder: Path, parts: int, rounds: int) -> None:
    clock = Clock(spark)
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
                taken.append(clock(one)[0])
        figures = " | ".join(f"{statistics.median(taken[1:]):.3f}" for taken in seconds.values())
        print(f"| {'after a commit' if commits else 'the version known'} | {figures} |")


if __name__ == "__main__":
    main()
