"""TPC-H by name: the 22 queries on lakebed's tables, settled and while changes come in, beside plain Parquet.

    python -m benchmarks.tpch [--scale 1] [--rounds 2] [--changes 5000]

1. `tpchgen-cli` writes the data as Parquet, and DuckDB's extension has the text of the queries; both come from PyPI, into an
   environment of their own. TPC-H belongs to the Transaction Processing Performance Council; these are no official results.
2. Each file becomes a table with its primary key, is settled and made compact.
3. Each query runs on views of the files, then by name. All answers must be equal, or the benchmark fails.
4. Then a thread brings changes of `orders` and `lineitem`, as many a second as said, and maintenance settles and merges beside
   the queries. A change is a row as it was, so the answers stay what they were; what lakebed does is the same.

A figure is the best of the rounds, in seconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

import lakebed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGES = ("tpchgen-cli==4.0.0", "duckdb==1.5.5", "duckdb-extension-tpch==1.5.5")
KEYS = {
    "region": ["r_regionkey"],
    "nation": ["n_nationkey"],
    "supplier": ["s_suppkey"],
    "customer": ["c_custkey"],
    "part": ["p_partkey"],
    "partsupp": ["ps_partkey", "ps_suppkey"],
    "orders": ["o_orderkey"],
    "lineitem": ["l_orderkey", "l_linenumber"],
}
CHANGING = ("orders", "lineitem")
QUERIES = """
import json, pathlib, duckdb, duckdb_extension_tpch
[extension] = pathlib.Path(duckdb_extension_tpch.__file__).parent.rglob("tpch.duckdb_extension*")
print(json.dumps(duckdb.connect(config={"allow_unsigned_extensions": "true"}).execute(f"load '{extension}'").execute(
    "select query from tpch_queries() order by query_nr").fetchall()))
"""
Answers = dict[int, list[tuple[Any, ...]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", default="1", help="1: six million rows of lineitem, 1 GB as text")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--changes", type=int, default=5_000, help="a second")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        queries = made(Path(folder), args.scale)
        spark = lakebed.spark(catalogs={"lake": f"{folder}/lake"}, conf={"spark.driver.memory": "8g"})
        begun = time.perf_counter()
        tables = {name: loaded(spark, Path(folder), name) for name in KEYS}
        print(f"the tables were filled and made compact in {time.perf_counter() - begun:.0f} s\n")
        run(spark, queries, tables, args.rounds, args.changes)


def made(folder: Path, scale: str) -> list[str]:
    """Write the data into ``folder``; returns the queries."""
    venv.create(folder / "environment", with_pip=True)
    here = folder / "environment/bin"
    subprocess.run(
        [here / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES], check=True
    )
    (folder / "parquet").mkdir()
    generate = [here / "tpchgen-cli", "parquet", "-s", scale, f"--output-dir={folder}/parquet"]
    subprocess.run(generate, check=True, stdout=subprocess.DEVNULL)
    answer = subprocess.run([here / "python", "-c", QUERIES], check=True, capture_output=True, text=True)
    return [query.rstrip().rstrip(";") for (query,) in json.loads(answer.stdout)]


def loaded(spark: SparkSession, folder: Path, name: str) -> lakebed.Table:
    """A table with the rows of a file, of which there is a view too."""
    frame = spark.read.parquet(f"{folder}/parquet/{name}.parquet")
    frame.createOrReplaceTempView(f"parquet_{name}")
    table = lakebed.create(folder / "lake" / "tpch" / name, frame.schema, keys=KEYS[name])
    table.apply(frame)
    table.settle()
    table.maintenance.compact()
    return table


def run(spark: SparkSession, queries: list[str], tables: dict[str, lakebed.Table], rounds: int, changes: int) -> None:
    for name in KEYS:
        spark.sql(f"create or replace temporary view {name} as select * from parquet_{name}")
    answers: Answers = {}
    plain = [best(spark, number, query, rounds, answers) for number, query in enumerate(queries, 1)]
    for name in KEYS:
        spark.catalog.dropTempView(name)
    spark.sql("use lake.tpch")
    settled = [best(spark, number, query, rounds, answers) for number, query in enumerate(queries, 1)]
    ends, brought = threading.Event(), [0]
    maintained = [tables[name].maintain(spark) for name in CHANGING]
    writer = threading.Thread(target=bring, args=(tables, changes, ends, brought), daemon=True)
    writer.start()
    fresh = [best(spark, number, query, rounds, answers) for number, query in enumerate(queries, 1)]
    ends.set()
    writer.join()
    for one in maintained:
        one.stop()
    print("| query | Parquet | by name, settled | while changes come | |\n| --- | --- | --- | --- | --- |")
    for number, seconds in enumerate(zip(plain, settled, fresh, strict=True), 1):
        print(f"| {number} | {' | '.join(f'{one:.2f}' for one in seconds)} | {ratios(*seconds)} |")
    total = [sum(all) for all in (plain, settled, fresh)]
    print(f"| all | {' | '.join(f'{one:.1f}' for one in total)} | {ratios(*total)} |")
    print(f"\nall answers are equal; {brought[0]:,} changes came meanwhile")


def ratios(plain: float, settled: float, fresh: float) -> str:
    return f"{settled / plain:.2f} x, {fresh / plain:.2f} x"


def best(spark: SparkSession, number: int, query: str, rounds: int, answers: Answers) -> float:
    """The seconds of a query; its answer must be the one that it had before."""
    seconds = []
    for _ in range(rounds):
        begun = time.perf_counter()
        rows = [tuple(row) for row in spark.sql(query).collect()]
        seconds.append(time.perf_counter() - begun)
        if answers.setdefault(number, rows) != rows:
            sys.exit(f"query {number} has another answer: {rows[:3]}, not {answers[number][:3]}")
    return min(seconds)


def bring(tables: dict[str, lakebed.Table], changes: int, ends: threading.Event, brought: list[int]) -> None:
    """Apply rows as they are, again and again, a batch a second for each table."""
    rows = {}
    for name in CHANGING:
        files = pq.ParquetFile(Path(tables[name].path).parents[1].parent / "parquet" / f"{name}.parquet")
        rows[name] = next(files.iter_batches(batch_size=changes * 50))
    at = 0
    while not ends.wait(1.0):
        for name in CHANGING:
            batch = rows[name].slice(at % len(rows[name]), changes // len(CHANGING))
            tables[name].apply(batch)
            brought[0] += len(batch)
        at += changes


if __name__ == "__main__":
    main()
