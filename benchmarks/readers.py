"""Which other programs read a lakebed table: each is installed for the purpose, and what it reads is compared with the rows.

    python -m benchmarks.readers [--only NAME ...] [--into FOLDER]

1. Five tables are made, of a few rows each and settled: without any dead row, with deletion vectors, with a partition, with a
   column that was renamed, and with all of that. Each is a table of Delta's and one of Iceberg's (``lakebed.iceberg``).
2. Each reader gets a virtual environment with the versions of ``READERS``, and reads the tables in one process of its own.
3. A cell of the printed table is ``reads``, ``wrong`` with what is wrong, or ``refuses``. What a reader says when it first
   refuses is printed below.

Delta for Spark runs in the environment of lakebed, which has its jars. docs/readers.md has the output; a test compares the rows
of the readers that the tests have anyway.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import lakebed
from benchmarks.workload import table as print_table

TABLES = ("plain", "deletion vectors", "partition", "renamed column", "all of these")
SECONDS_MAX = 600
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Program:
    """A program that reads tables, and how it is told to."""

    name: str
    packages: tuple[str, ...]
    """What is installed; the first one is named in the table. Nothing: it runs in the environment of lakebed."""
    setup: str
    """Python, run once; ``paths`` are all tables."""
    read: str
    """Python: an expression for the rows of the table at ``path``, as dicts; ``metadata`` is its newest one of Iceberg's."""
    format: str = "Delta"


@dataclass(frozen=True, slots=True)
class Found:
    """What a reader made of a table."""

    cell: str
    """``reads``, ``wrong: …`` or ``refuses``."""
    said: str = ""
    """The error of a reader that refuses."""


def _iceberg_for_spark(version: str, runtime: str) -> Program:
    """``runtime``: of which Spark and Scala Iceberg's jar is."""
    return Program(
        f"Iceberg 1.12 for Spark {runtime[:3]}",
        (f"pyspark=={version}",),
        "import os\nfrom pyspark.sql import SparkSession\nos.environ.pop('SPARK_HOME', None)\n"
        "os.environ['SPARK_LOCAL_IP'] = '127.0.0.1'\n"
        "spark = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false')"
        f".config('spark.jars.packages', 'org.apache.iceberg:iceberg-spark-runtime-{runtime}:1.12.0').getOrCreate()",
        "[row.asDict() for row in spark.read.format('iceberg').load(f'{path}/_lakebed/iceberg').collect()]",
        "Iceberg",
    )


DELTA_RS = "deltalake==1.6.6"
PYICEBERG = ("pyiceberg==0.12.0", "pyarrow==26.0.1")
READERS = (
    Program(
        "delta-rs by SQL",
        (DELTA_RS, "pyarrow==26.0.1"),
        "import pyarrow as pa; from deltalake import DeltaTable, QueryBuilder",
        "pa.table(QueryBuilder().register('t', DeltaTable(path)).execute('select * from t')).to_pylist()",
    ),
    Program(
        "delta-rs, `to_pyarrow_table`",
        (DELTA_RS, "pyarrow==26.0.1"),
        "from deltalake import DeltaTable",
        "DeltaTable(path).to_pyarrow_table().to_pylist()",
    ),
    Program(
        "pandas, by delta-rs' `to_pandas`",
        ("pandas==3.1.1", DELTA_RS, "pyarrow==26.0.1"),
        "from deltalake import DeltaTable",
        "DeltaTable(path).to_pandas().to_dict('records')",
    ),
    Program(
        "Polars, `scan_delta`",
        ("polars==2.1.0", DELTA_RS),
        "import polars",
        "polars.scan_delta(path).collect().to_dicts()",
    ),
    Program(
        "DuckDB with its Delta extension",
        ("duckdb==1.5.5", "duckdb-extension-delta==1.5.5", "pyarrow==26.0.1"),
        "import duckdb, pathlib, site\n"
        "[extension] = [one for folder in site.getsitepackages() "
        "for one in pathlib.Path(folder).rglob('delta.duckdb_extension')]\n"
        "connection = duckdb.connect(); connection.execute(f\"load '{extension}'\")",
        "connection.execute(f\"select * from delta_scan('{path}')\").to_arrow_table().to_pylist()",
    ),
    Program(
        "Daft, `read_deltalake`",
        ("daft==0.7.26", DELTA_RS, "pyarrow==25.0.1"),
        "import daft",
        "daft.read_deltalake(path).to_pylist()",
    ),
    Program(
        "chDB (ClickHouse), `deltaLakeLocal`",
        ("chdb==4.4.0",),
        "import chdb, json, os\nos.chdir(os.path.commonpath(paths))",  # it reads files below the current folder only
        "[json.loads(line) for line in str(chdb.query("
        "f\"select * from deltaLakeLocal('{path}')\", 'JSONEachRow')).splitlines() if line]",
    ),
    Program(
        "Delta for Spark",
        (),
        "from lakebed.session import spark as session\nspark = session()",
        "[row.asDict() for row in spark.read.format('delta').load(path).collect()]",
    ),
    Program(
        "pyarrow, the Parquet files as a dataset",
        ("pyarrow==26.0.1",),
        "import pyarrow.dataset as ds",
        "ds.dataset(f'{path}/_lakebed', format='parquet', exclude_invalid_files=True).to_table().to_pylist()",
    ),
    Program(
        "PyIceberg, `StaticTable`",
        PYICEBERG,
        "from pyiceberg.table import StaticTable",
        "StaticTable.from_metadata(metadata).scan().to_arrow().to_pylist()",
        "Iceberg",
    ),
    Program(
        "pandas, by PyIceberg's `to_pandas`",
        ("pandas==3.1.1", *PYICEBERG),
        "from pyiceberg.table import StaticTable",
        "StaticTable.from_metadata(metadata).scan().to_pandas().to_dict('records')",
        "Iceberg",
    ),
    Program(
        "Polars, `scan_iceberg`",
        ("polars==2.1.0", *PYICEBERG),
        "import polars",
        "polars.scan_iceberg(metadata).collect().to_dicts()",
        "Iceberg",
    ),
    Program(
        "DuckDB with its Iceberg extension",
        ("duckdb==1.5.5", "duckdb-extension-avro==1.5.5", "duckdb-extension-iceberg==1.5.5", "pyarrow==26.0.1"),
        "import duckdb, pathlib, site\n"
        "connection = duckdb.connect(config={'autoinstall_known_extensions': False})\n"
        "for extension in sorted(one for folder in site.getsitepackages() "
        "for one in pathlib.Path(folder).rglob('*.duckdb_extension')):\n"  # Avro's before Iceberg's
        "    connection.execute(f\"load '{extension}'\")",
        "connection.execute(f\"select * from iceberg_scan('{path}/_lakebed/iceberg')\").to_arrow_table().to_pylist()",
        "Iceberg",
    ),
    Program(
        "Daft, `read_iceberg`",
        ("daft==0.7.26", "pyiceberg==0.12.0", "pyarrow==25.0.1"),
        "import daft\nfrom pyiceberg.table import StaticTable",
        "daft.read_iceberg(StaticTable.from_metadata(metadata)).to_pylist()",
        "Iceberg",
    ),
    Program(
        "chDB (ClickHouse), `icebergLocal`",
        ("chdb==4.4.0",),
        "import chdb, json, os\nos.chdir(os.path.commonpath(paths))",
        "[json.loads(line) for line in str(chdb.query("
        "f\"select * from icebergLocal('{path}/_lakebed/iceberg')\", 'JSONEachRow')).splitlines() if line]",
        "Iceberg",
    ),
    _iceberg_for_spark("4.1.4", "4.1_2.13"),
    _iceberg_for_spark("3.5.9", "3.5_2.12"),
)
NAMES = {"Delta for Spark": "delta-spark"}
_PROGRAM = """
import importlib.metadata, json, sys
name, setup, read, *paths = json.loads(sys.argv[1])
out = {"version": importlib.metadata.version(name)}
exec(setup)
for path in paths:
    try:
        folder = f"{path}/_lakebed/iceberg/metadata"
        metadata = f"{folder}/v{open(f'{folder}/version-hint.text').read()}.metadata.json"
        out[path] = {"rows": list(eval(read))}
    except BaseException as error:
        out[path] = {"error": f"{type(error).__name__}: {error}"}
print("\\n" + json.dumps(out, default=str))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="readers whose name has one of these words")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="where to keep the environments (default: nowhere)")
    args = parser.parse_args()
    chosen = [one for one in READERS if not args.only or any(word.lower() in one.name.lower() for word in args.only)]
    with tempfile.TemporaryDirectory() as scratch:
        made = tables_in(Path(scratch) / "tables")
        for name in ("Delta", "Iceberg"):
            rows, sayings = [], []
            for reader in (one for one in chosen if one.format == name):
                python = python_with(reader.packages, args.into or Path(scratch))
                version, found = try_reader(reader, python, made)
                rows.append(row_of(reader, version, found))
                sayings += [f"- {reader.name}: `{one.said}`" for one in found.values() if one.said][:1]
            if rows:
                print_table(f"A lakebed table as one of {name}'s", ["reader", "version", *TABLES], rows)
                print("\n" + "\n".join(sayings))


def tables_in(folder: Path) -> dict[str, lakebed.Table]:
    """The tables to be read, by their kind, each settled."""
    return {
        kind: _made(
            folder / str(number), dead="vectors" in kind, partition="partition" in kind, renamed="renamed" in kind
        )
        for number, kind in enumerate(TABLES[:-1])
    } | {TABLES[-1]: _made(folder / "all", dead=True, partition=True, renamed=True)}


def _made(path: Path, *, dead: bool, partition: bool, renamed: bool) -> lakebed.Table:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("amount", pa.float64()), ("region", pa.string())])
    partition_by, properties = ["region"] if partition else (), {"lakebed.iceberg": "on"}
    table = lakebed.create(path, schema, keys=["id"], partition_by=partition_by, properties=properties)
    regions = ["north", "south"]
    table.apply([{"id": n, "name": f"n{n}", "amount": n / 2, "region": regions[n % 2]} for n in range(8)])
    table.settle()
    if renamed:
        table.alter(rename={"name": "customer"})
        table.apply([{"id": 8, "customer": "n8", "amount": 4.0, "region": "north"}])
        table.settle()
    if dead:
        name = "customer" if renamed else "name"
        table.apply([{"id": 1, name: "new", "amount": 9.0, "region": "south"}])
        table.settle()
        table.delete("id = 2")
        table.settle()
    table.maintenance.publish_iceberg()
    return table


def python_with(packages: tuple[str, ...], folder: Path) -> str:
    """The Python of an environment that has these packages; without any, the one that runs this."""
    if not packages:
        return sys.executable
    home = folder / "-".join(packages).replace("=", "")
    python = home / "bin" / "python"
    if not (home / ".whole").exists():
        venv.create(home, with_pip=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
        subprocess.run(pip, check=True)
        (home / ".whole").touch()
    return str(python)


def try_reader(reader: Program, python: str, tables: dict[str, lakebed.Table]) -> tuple[str, dict[str, Found]]:
    """The version of a reader, and what it makes of each table."""
    package = NAMES[reader.name] if not reader.packages else reader.packages[0].partition("==")[0]
    given = json.dumps([package, reader.setup, reader.read, *(table.path for table in tables.values())])
    ended = subprocess.run(
        [python, "-c", _PROGRAM, given], stdout=subprocess.PIPE, text=True, timeout=SECONDS_MAX, check=True
    )
    answer = json.loads(ended.stdout.splitlines()[-1])
    return answer["version"], {kind: _judged(answer[table.path], table) for kind, table in tables.items()}


def _judged(answer: dict[str, Any], table: lakebed.Table) -> Found:
    if "error" in answer:
        return Found("refuses", " ".join(answer["error"].split()).partition("! ")[0].partition(" This error")[0])
    wanted, rows = _in_order(table.to_arrow().to_pylist()), _in_order(answer["rows"])
    if rows == wanted:
        return Found("reads")
    if len(rows) != len(wanted):
        return Found(f"wrong: {len(rows)} rows, not {len(wanted)}")
    pairs = list(zip(rows, wanted, strict=True))
    differ = sorted(
        {name for row, want in pairs for name in row.keys() | want.keys() if row.get(name, ...) != want.get(name, ...)}
    )
    return Found(f"wrong: {', '.join(f'`{name}`' for name in differ)}")


def _in_order(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: int(row["id"]))


def row_of(reader: Program, version: str, found: dict[str, Found]) -> list[object]:
    return [reader.name, version, *(found[kind].cell for kind in TABLES)]


if __name__ == "__main__":
    main()
