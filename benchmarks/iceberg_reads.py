"""How many bytes readers of Iceberg read for a query of few rows, beside lakebed: of the same files.

    python -m benchmarks.iceberg_reads [--rows 2000000]

A table of orders, sorted by region and time, with deletion vectors, on the local disk. Each reader is a process of its own, which
has read the table before; the bytes are those that the process has read (``rchar`` in /proc), metadata and footers among them.
lakebed does not verify what it reads here, as on S3.

Beside them is a table with the same rows that Spark with Iceberg has written by itself: the same base file by file, the same
changes by ``MERGE``, with vectors, in the same order, in the row groups that it makes (one a file here). A second table says how
many files and row groups may have rows of a query, by their footers, and how large these are: a reader that does not look at the
indexes of pages reads that much, whoever wrote them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

import lakebed
from benchmarks.workload import DELETES, KEYS, SCHEMA, SORT_KEY, Workload, table
from tests.infra.downloads import pyspark, spark_iceberg_jars
from tests.infra.foreign_duckdb import ICEBERG, foreign_packages
from tests.infra.spark_start import spark_environment

_BEGIN = """
import json, sys
root, iceberg, metadata, asked, jar = sys.argv[1:]
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
_SESSION = """
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[2]").config("spark.jars", jar).config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.shuffle.partitions", "1")
    .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
    .config("spark.sql.catalog.own", "org.apache.iceberg.spark.SparkCatalog").config("spark.sql.catalog.own.type", "hadoop")
    .config("spark.sql.catalog.own.warehouse", root).getOrCreate()
)
"""
_SPARK = f"""{_SESSION}
pid = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
orders = spark.read.format("iceberg").load(iceberg)
def rows(where):
    return len(orders.where(where).collect())
"""
_OWN = "Spark 4.1.4, Iceberg 1.12: a table of its own"
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
    return len(connection.execute(f"from iceberg_scan('{iceberg}') where {where}").fetch_arrow_table())
""",
    "Spark 4.1.4, Iceberg 1.12": _SPARK,
    _OWN: _SPARK,
}
_WRITE = f"""
import sys
root, base, changes, jar = sys.argv[1:]
{_SESSION}
bases, batches = base.split(","), changes.split(",")
columns = spark.read.parquet(bases[0]).schema.toDDL()
spark.sql(
    f"create table own.db.orders ({{columns}}) using iceberg tblproperties ('format-version' = '3', "
    "'write.distribution-mode' = 'none', 'write.merge.mode' = 'merge-on-read', 'write.merge.distribution-mode' = 'none')"
)
for path in bases:
    spark.read.parquet(path).coalesce(1).writeTo("own.db.orders").append()
spark.sql("alter table own.db.orders write locally ordered by region, ts")
for path in batches:
    spark.read.parquet(path).createOrReplaceTempView("changes")
    names = spark.table("own.db.orders").columns
    new = ", ".join(f"c.{{name}}" for name in names)
    same = ", ".join(f"t.{{name}} = c.{{name}}" for name in names)
    spark.sql(
        "merge into own.db.orders t using changes c on t.pk = c.pk when matched and c.op = 'd' then delete "
        f"when matched then update set {{same}} when not matched and c.op <> 'd' "
        f"then insert ({{', '.join(names)}}) values ({{new}})"
    )
files = spark.table("own.db.orders.data_files").collect()
print("files " + ",".join(row.file_path.removeprefix("file:") for row in files))
"""
_QUERIES: dict[str, dict[str, tuple[Any, Any]]] = {
    "a region": {"region": ("region-07", "region-07")},
    "100 keys": {"pk": (0, 99)},
    "100 keys of a region": {"region": ("region-07", "region-07"), "pk": (0, 1999)},
}
"""Columns with the first and the last of the values that count; those of keys are from the middle on."""


def made(folder: Path, rows: int) -> tuple[lakebed.Table, list[str], list[str]]:
    """The table: a base in several sorted parts, and batches of changes that are settled. And files of both, for others."""
    work = Workload(rows)
    properties = {"lakebed.iceberg": "on", "lakebed.verify_reads": "off", "lakebed.target_part_rows": str(rows // 20)}
    orders = lakebed.create(folder / "orders", SCHEMA, KEYS, SORT_KEY, sequence_by="seq", properties=properties)
    for start in range(0, rows, rows // 4):
        orders.apply(work.base(start, start + rows // 4))
        orders.settle()
    orders.maintenance.recluster(final=True)
    bases, changes = [], []
    for path in orders.inspect.parts()["path"].to_pylist():
        bases.append(str(folder / f"base-{len(bases):03}.parquet"))
        pq.write_table(pq.read_table(f"{orders.path}/{path}", columns=SCHEMA.names), bases[-1])
    for _ in range(5):
        batch = work.batch()
        orders.apply(batch, DELETES, ["op"])
        orders.settle()
        newest = batch.group_by("pk").aggregate([("seq", "max")])["seq_max"]
        changes.append(str(folder / f"changes-{len(changes)}.parquet"))
        pq.write_table(batch.filter(pc.is_in(batch["seq"], newest)), changes[-1])
    return orders, bases, changes


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    options = parser.parse_args()
    middle = options.rows // 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        orders, bases, changes = made(folder, options.rows)
        metadata = orders.maintenance.publish_iceberg().metadata
        given = [str(folder / "own"), ",".join(bases), ",".join(changes)]
        files = {
            "lakebed": [f"{orders.path}/{path}" for path in orders.inspect.parts()["path"].to_pylist()],
            "its own": _run(_OWN, _WRITE, given, "files ").split(","),
        }
        asked = json.dumps(
            [
                {"warm": _where(values, 100, "region-03"), "where": _where(values, middle)}
                for values in _QUERIES.values()
            ]
        )
        read = {}
        for reader, program in _READERS.items():
            iceberg = folder / "own/db/orders" if reader == _OWN else folder / "orders/_lakebed/iceberg"
            given = [str(folder / ("own" if reader == _OWN else "orders")), str(iceberg), metadata, asked]
            read[reader] = json.loads(_run(reader, _BEGIN + program + _END, given, "found "))
        own = read["lakebed"]
        printed = [
            [reader, query, rows, size / 1e6, size / own[at][1]]
            for reader, found in read.items()
            for at, (query, (rows, size)) in enumerate(zip(_QUERIES, found, strict=True))
        ]
        table("Bytes that a query reads", ["reader", "query", "rows", "MB", "ratio"], printed)
        printed = [
            [whose, query, *_may_have(paths, _ranges(values, middle))]
            for whose, paths in files.items()
            for query, values in ({"all": {}} | _QUERIES).items()
        ]
        table(
            "What may have its rows",
            ["files of", "query", "files", "row groups", "rows a group", "MB of groups"],
            printed,
        )


def _ranges(values: Mapping[str, tuple[Any, Any]], first_key: int) -> dict[str, tuple[Any, Any]]:
    return {
        name: (low + first_key, high + first_key) if name == "pk" else (low, high)
        for name, (low, high) in values.items()
    }


def _where(values: Mapping[str, tuple[Any, Any]], first_key: int, region: str | None = None) -> str:
    """The condition in SQL."""
    said = []
    for name, (low, high) in _ranges(values, first_key).items():
        said.append(f"pk >= {low} and pk <= {high}" if name == "pk" else f"{name} = '{region or low}'")
    return " and ".join(said)


def _may_have(paths: Iterable[str], ranges: Mapping[str, tuple[Any, Any]]) -> list[object]:
    """How many files and row groups may have rows with values in these ranges, by their footers; rows a group, MB of them."""
    hit, groups, rows, size = set[str](), 0, 0, 0
    for path in paths:
        about = pq.read_metadata(path)
        for number in range(about.num_row_groups):
            group = about.row_group(number)
            chunks = {chunk.path_in_schema: chunk for chunk in map(group.column, range(group.num_columns))}
            ends = {name: chunks[name].statistics for name in ranges}
            if all(ends[name].min <= high and ends[name].max >= low for name, (low, high) in ranges.items()):
                hit.add(path)
                groups, rows = groups + 1, rows + group.num_rows
                size += sum(chunks[name].total_compressed_size for name in SCHEMA.names)
    return [len(hit), groups, rows // max(groups, 1), size / 1e6]


def _run(name: str, program: str, arguments: list[str], beginning: str) -> str:
    """What a program prints after the beginning of a line."""
    beside, environment = "", {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    if name.startswith("Spark"):
        [jar] = spark_iceberg_jars().glob("*.jar")
        beside = str(jar)
        environment |= {**spark_environment(), "PYTHONPATH": str(pyspark("4.1.4"))}
        environment.pop("SPARK_HOME", None)
    elif name.startswith("DuckDB"):
        beside = str(foreign_packages(ICEBERG))
        environment["PYTHONPATH"] = beside
    command = [sys.executable, "-c", program, *arguments, beside]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    [line] = [line for line in done.stdout.splitlines() if line.startswith(beginning)]
    return line.removeprefix(beginning)


if __name__ == "__main__":
    main()
