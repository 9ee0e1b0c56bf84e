"""How many bytes readers of Iceberg read for a query of few rows, beside lakebed: of the same files.

    python -m benchmarks.iceberg_reads [--rows 2000000]

A table of orders, sorted by region and time, with deletion vectors, on the local disk. Each reader is a process of its own, which
has read the table before; the bytes are those that the process has read (``rchar`` in /proc), metadata and footers among them.
lakebed does not verify what it reads here, as on S3.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile

import lakebed
from benchmarks.workload import DELETES, KEYS, SCHEMA, SORT_KEY, Workload, table
from tests.infra.downloads import pyspark, spark_iceberg_jars
from tests.infra.foreign_duckdb import ICEBERG, foreign_packages
from tests.infra.spark_start import spark_environment

_BEGIN = """
import json, sys
root, metadata, asked, jar = sys.argv[1:]
pid = "self"
def read():
    return int(open(f"/proc/{pid}/io").readline().split()[1])
"""
_END = """
out = []
for query in json.loads(asked):
    rows(query["warm"])
    before = read()
    found = rows(query["where"])
    out.append([found, read() - before])
print("found " + json.dumps(out))
"""
_READERS = {
    "lakebed": """
import lakebed
orders = lakebed.open(root)
def rows(where):
    return len(orders.to_arrow(where=where))
""",
    "PyIceberg 0.12": """
from pyiceberg.table import StaticTable
orders = StaticTable.from_metadata(metadata)
def rows(where):
    return len(orders.scan(row_filter=where).to_arrow())
""",
    "DuckDB 1.5.5": """
import duckdb, pathlib
connection = duckdb.connect(config={"autoinstall_known_extensions": False})
for extension in sorted(pathlib.Path(jar).rglob("*.duckdb_extension")):
    connection.execute(f"load '{extension}'")
def rows(where):
    return len(connection.execute(f"from iceberg_scan('{root}/_lakebed/iceberg') where {where}").fetch_arrow_table())
""",
    "Spark 4.1.4, Iceberg 1.12": """
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[2]").config("spark.jars", jar).config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").getOrCreate()
)
pid = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
orders = spark.read.format("iceberg").load(f"{root}/_lakebed/iceberg")
def rows(where):
    return len(orders.where(where).collect())
""",
}
_QUERIES = {
    "a region": ("region = 'region-03'", "region = 'region-07'"),
    "100 keys": ("pk >= 100 and pk < 200", "pk >= {middle} and pk < {middle} + 100"),
    "100 keys of a region": (
        "region = 'region-03' and pk >= 100 and pk < 2100",
        "region = 'region-07' and pk >= {middle} and pk < {middle} + 2000",
    ),
}


def made(root: str, rows: int) -> lakebed.Table:
    """The table: a base in several sorted parts, and batches of changes that are settled."""
    work = Workload(rows)
    properties = {"lakebed.iceberg": "on", "lakebed.verify_reads": "off", "lakebed.target_part_rows": str(rows // 20)}
    orders = lakebed.create(root, SCHEMA, KEYS, SORT_KEY, sequence_by="seq", properties=properties)
    for start in range(0, rows, rows // 4):
        orders.apply(work.base(start, start + rows // 4))
        orders.settle()
    orders.maintenance.recluster(final=True)
    for _ in range(5):
        orders.apply(work.batch(), DELETES, ["op"])
        orders.settle()
    return orders


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        orders = made(f"{folder}/orders", options.rows)
        metadata = orders.maintenance.publish_iceberg().metadata
        print(
            f"{orders.inspect.parts().num_rows} parts, {sum(orders.inspect.parts()['bytes'].to_pylist()) / 1e6:.1f} MB"
        )
        asked = json.dumps(
            [
                {"warm": warm, "where": where.replace("{middle} + 100", str(options.rows // 2 + 100))
                 .replace("{middle} + 2000", str(options.rows // 2 + 2000)).replace("{middle}", str(options.rows // 2))}
                for warm, where in _QUERIES.values()
            ]
        )  # fmt: skip
        read = {name: _read(name, [f"{folder}/orders", metadata, asked]) for name in _READERS}
    own = read["lakebed"]
    printed = [
        [name, query, rows, size / 1e6, size / own[at][1]]
        for name, found in read.items()
        for at, (query, (rows, size)) in enumerate(zip(_QUERIES, found, strict=True))
    ]
    table("Bytes that a query reads", ["reader", "query", "rows", "MB", "ratio"], printed)


def _read(name: str, arguments: list[str]) -> list[tuple[int, int]]:
    """The rows and the bytes of each query."""
    beside, environment = "", {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    if name.startswith("Spark"):
        [jar] = spark_iceberg_jars().glob("*.jar")
        beside = str(jar)
        environment |= {**spark_environment(), "PYTHONPATH": str(pyspark("4.1.4"))}
        environment.pop("SPARK_HOME", None)
    elif name.startswith("DuckDB"):
        beside = str(foreign_packages(ICEBERG))
        environment["PYTHONPATH"] = beside
    program = _BEGIN + _READERS[name] + _END
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments, beside], env=environment, check=True, capture_output=True, text=True
    )
    [line] = [line for line in done.stdout.splitlines() if line.startswith("found ")]
    return [(rows, size) for rows, size in json.loads(line.removeprefix("found "))]


if __name__ == "__main__":
    main()
