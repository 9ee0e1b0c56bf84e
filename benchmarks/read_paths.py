"""Ways to read a fresh version, side by side: what dead rows and many parts cost on each (docs/adr/0001).

    python -m benchmarks.read_paths [--rows 1000000] [--batches 20] [--runs 15] [--open-cost BYTES]

1. A table of the orders workload is filled and settled after each batch: one base part with dead rows in clusters, and
   a small level-0 part a batch, most of them with dead rows.
2. Every way to read it runs in turn within one round of one session, so noise falls on all alike. Rounds before the
   measured ones warm up. A way that must give the live rows is checked against the plain ones in every round.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import lakebed
from benchmarks.fresh_read import AGGREGATE, SELECTIVE
from benchmarks.workload import DELETES, KEYS, SCHEMA, SORT_KEY, Workload, median, table
from lakebed.storage.engine import connect
from lakebed.table import internals_of
from lakebed.view.arrow_scan import ScanFile, register_view
from lakebed.view.spark_scan import scan

WARM_UP_ROUNDS = 6
WRONG = "same parts, dead rows not left out (wrong)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--open-cost", help="spark.sql.files.openCostInBytes")
    args = parser.parse_args()
    spark = lakebed.spark("benchmark", "local[2]", conf={"spark.driver.memory": "2g"})
    spark.sparkContext.setLogLevel("ERROR")
    if args.open_cost:
        spark.conf.set("spark.sql.files.openCostInBytes", args.open_cost)
    with tempfile.TemporaryDirectory() as folder:
        root = f"{folder}/orders"
        orders = fill(root, args.rows, args.batches)
        snapshot = internals_of(orders).log.refresh()
        files = internals_of(orders).view.pin(snapshot).files
        dead = sum(len(file.dead or ()) for file in files)
        print(f"{len(files)} parts, {sum(file.rows for file in files):,} rows, {dead:,} of them dead")
        schema_json = snapshot.metadata.schema_string
        live = scan(spark, root, schema_json, partition_columns=[], table_id="plain", files=files)
        low, high = window(live)
        spark_ways = ways_of_spark(spark, root, schema_json, files, f"{folder}/plain")
        for query, text in (("aggregate", AGGREGATE), ("selective", SELECTIVE)):
            sql = text.format(name="orders_read", low=low, high=high)
            report(
                f"Spark, {query}",
                in_turn({name: on_spark(spark, way, sql) for name, way in spark_ways.items()}, args.runs),
            )
        duckdb_ways = ways_of_duckdb(root, files, f"{folder}/plain")
        for query, text in (("aggregate", AGGREGATE), ("selective", SELECTIVE)):
            ways = {name: way(text.format(name="orders_read", low=low, high=high)) for name, way in duckdb_ways.items()}
            report(f"DuckDB, {query}", in_turn(ways, args.runs))
    spark.stop()


def fill(root: str, rows: int, batches: int) -> lakebed.Table:
    work = Workload(rows)
    orders = lakebed.create(root, SCHEMA, keys=KEYS, sort_key=SORT_KEY)
    orders.apply(work.base())
    orders.settle()
    for _ in range(batches):
        orders.apply(work.batch(), apply_as_deletes=DELETES)
        orders.settle()
    return orders


def window(live: DataFrame) -> tuple[str, str]:
    """A tenth of the time span: with one region of twenty, 0.5 % of the rows."""
    first, last = live.selectExpr("min(ts)", "max(ts)").collect()[0]
    start = first + (last - first) * 0.6
    return str(start), str(start + (last - first) * 0.1)


def ways_of_spark(
    spark: SparkSession, root: str, schema_json: str, files: Sequence[ScanFile], plain: str
) -> dict[str, Callable[[], DataFrame]]:
    live = scan(spark, root, schema_json, partition_columns=[], table_id="plain", files=files)
    live.repartition(1).sortWithinPartitions(*SORT_KEY).write.option("compression", "zstd").parquet(plain)
    paths = [f"{root}/{file.path}" for file in files]

    def plain_parquet() -> DataFrame:
        return spark.read.schema(live.schema).parquet(plain)

    def same_parts() -> DataFrame:
        return spark.read.schema(live.schema).parquet(*paths)

    jvm: Any = spark._jvm
    delta = jvm.org.apache.spark.sql.delta
    log = delta.DeltaLog.forTable(spark._jsparkSession, root)
    adds = jvm.java.util.ArrayList()
    for file in files:
        adds.add(delta.actions.Action.fromJson(orjson.dumps({"add": add_action(file)}).decode()))
    parts = jvm.scala.jdk.javaapi.CollectionConverters.asScala(adds).toSeq()

    def delta_scan(use_row_index: str) -> Callable[[], DataFrame]:
        def frame() -> DataFrame:
            spark.conf.set("spark.databricks.delta.deletionVectors.useMetadataRowIndex", use_row_index)
            none = jvm.scala.Option.empty()
            return DataFrame(log.createDataFrame(log.unsafeVolatileSnapshot(), parts, False, none), spark)

        return frame

    return {
        "plain sorted Parquet": plain_parquet,
        WRONG: same_parts,
        "lakebed": lambda: scan(spark, root, schema_json, partition_columns=[], table_id="id", files=files),
        "Delta's scan of the same list": delta_scan("true"),
        "the same, useMetadataRowIndex=false": delta_scan("false"),
        "Delta's reader": lambda: spark.read.format("delta").load(root),
    }


def add_action(file: ScanFile) -> Mapping[str, Any]:
    stats = {"numRecords": file.rows, "tightBounds": False}
    add = {"path": file.path, "partitionValues": {}, "size": file.bytes, "modificationTime": 1, "dataChange": True}
    vector = {"deletionVector": file.deletion_vector.to_json()} if file.deletion_vector else {}
    return {**add, "stats": orjson.dumps(stats).decode(), **vector}


def on_spark(spark: SparkSession, way: Callable[[], DataFrame], sql: str) -> Callable[[], object]:
    def run() -> object:
        way().createOrReplaceTempView("orders_read")
        return checksum(spark.sql(sql).toArrow())

    return run


def ways_of_duckdb(
    root: str, files: Sequence[ScanFile], plain: str
) -> dict[str, Callable[[str], Callable[[], object]]]:
    class Local:
        def duckdb_url(self, path: str) -> str:
            return f"{root}/{path}"

    urls = [f"{root}/{file.path}" for file in files]
    rows = [(at, row) for at, file in enumerate(files) for row in file.dead or ()]
    gone = pa.table({"file": [at for at, _ in rows], "row": [row for _, row in rows]})
    plain_urls = [str(path) for path in Path(plain).glob("*.parquet")]

    def over(view: str) -> Callable[[str], Callable[[], object]]:
        def bind(sql: str) -> Callable[[], object]:
            connection = connect(threads=2)
            connection.register("gone_rows", gone)
            connection.execute("create temp table gone as select * from gone_rows")
            connection.execute(f"create temp view orders_read as {view}")
            return lambda: checksum(connection.sql(sql).to_arrow_table())

        return bind

    def ours(sql: str) -> Callable[[], object]:
        connection = connect(threads=2)

        def run() -> object:
            register_view(connection, "orders_read", Local(), files, SCHEMA)
            return checksum(connection.sql(sql).to_arrow_table())

        return run

    alive = "not exists (select 1 from gone d where d.file = f.file_index and d.row = f.file_row_number)"
    return {
        "plain sorted Parquet": over(f"select * from read_parquet({plain_urls})"),
        WRONG: over(f"select * from read_parquet({urls})"),
        "lakebed (bit strings, built each time)": ours,
        "anti join on file and row": over(f"select * from read_parquet({urls}) f where {alive}"),
    }


def checksum(rows: pa.Table) -> object:
    """The rows in any order, sums to the cent: parts are summed in another order by each way."""
    plain = [tuple(round(v, 2) if isinstance(v, float) else str(v) for v in row.values()) for row in rows.to_pylist()]
    return sorted(plain, key=repr)


def in_turn(ways: Mapping[str, Callable[[], object]], runs: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in ways}
    for round_number in range(WARM_UP_ROUNDS + runs):
        answers = {}
        for name, way in ways.items():
            started = time.perf_counter()
            answers[name] = way()
            if round_number >= WARM_UP_ROUNDS:
                times[name].append(time.perf_counter() - started)
        right = answers["plain sorted Parquet"]
        assert all(answer == right for name, answer in answers.items() if name != WRONG)
    return times


def report(title: str, times: Mapping[str, list[float]]) -> None:
    plain = times["plain sorted Parquet"]
    rows: list[list[object]] = [
        [name, 1000 * median(found), median(found) / median(plain), 1000 * min(found), min(found) / min(plain)]
        for name, found in times.items()
    ]
    table(title, ["way", "median ms", "× plain", "fastest ms", "× plain"], rows)


if __name__ == "__main__":
    main()
