"""DuckDB's extensions for Delta and Iceberg as foreign readers: other DuckDBs than lakebed's own, in processes of their own.

An extension comes from the Python registry for one exact version of DuckDB, which is not the one lakebed computes
with, and two versions can't live in one process. So each is installed with its DuckDB into a folder of their own under
``.build/``, and a small program that sees that folder first runs the queries and answers in Arrow.

    with ForeignDuckDB() as duckdb:
        rows = duckdb.read("/lake/orders")                       # the newest version
        rows = duckdb.query("select count(*) from delta_scan('/lake/orders')")
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Self, cast

import pyarrow as pa

from tests.infra.downloads import _run, fetch_once

DELTA = ("duckdb==1.4.4", "duckdb-ext==0.1.2", "duckdb-ext-delta==1.4.4.20260205")
ICEBERG = (
    "duckdb==1.5.5", "duckdb-extensions==1.5.5", "duckdb-extension-avro==1.5.5", "duckdb-extension-iceberg==1.5.5",
)  # fmt: skip
ICEBERG_REST = (*ICEBERG, "duckdb-extension-httpfs==1.5.5")

_PROGRAM = """
import json, pathlib, sys
import duckdb, pyarrow as pa
connection = duckdb.connect(config={"autoinstall_known_extensions": False, "threads": 1})
for extension in sorted(pathlib.Path(sys.argv[1]).rglob("*.duckdb_extension")):  # Avro's before Iceberg's
    connection.execute(f"load '{extension}'")
connection.execute("set TimeZone = 'UTC'")
for line in sys.stdin:
    try:
        rows = connection.execute(json.loads(line)).fetch_arrow_table()
    except Exception as error:
        rows = pa.table({"lakebed_error": [f"{type(error).__name__}: {error}"]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as out:
        out.write_table(rows)
    answer = sink.getvalue().to_pybytes()
    sys.stdout.buffer.write(len(answer).to_bytes(8, "big") + answer)
    sys.stdout.buffer.flush()
"""


class ForeignError(RuntimeError):
    """What the foreign DuckDB said when it refused a query."""


def foreign_packages(packages: Sequence[str] = DELTA) -> Path:
    """The folder with a foreign DuckDB and its extension."""

    def install(staging: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        _run([*pip, "--target", str(staging), *packages], {})

    return fetch_once("foreign-duckdb", f"{packages} {sys.version_info[:2]}".encode(), install)


class ForeignDuckDB:
    """The process; queries are answered one after the other."""

    def __init__(self, packages: Sequence[str] = DELTA) -> None:
        self._packages = tuple(packages)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        folder = foreign_packages(self._packages)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(folder)],
            env={**os.environ, "PYTHONPATH": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        return self

    def __exit__(self, *raised: object) -> None:
        process, self._process = self._process, None
        if process is not None:
            cast("BinaryIO", process.stdin).close()
            process.wait(30)

    def query(self, sql: str) -> pa.Table:
        """The rows of one query. Raises ForeignError."""
        assert self._process is not None, "use it in a with statement"
        into, out = cast("BinaryIO", self._process.stdin), cast("BinaryIO", self._process.stdout)
        into.write(json.dumps(sql).encode() + b"\n")
        into.flush()
        size = int.from_bytes(out.read(8), "big")
        if not size:
            raise ForeignError(f"the foreign DuckDB ended with code {self._process.wait()}")
        rows = pa.ipc.open_stream(out.read(size)).read_all()
        if rows.column_names == ["lakebed_error"]:
            raise ForeignError(rows["lakebed_error"][0].as_py())
        return rows

    def read(self, table: str | os.PathLike[str], version: int | None = None, columns: str = "*") -> pa.Table:
        """A Delta table at one version (default: the newest)."""
        path = str(table).replace("'", "''")
        if version is None:
            return self.query(f"select {columns} from delta_scan('{path}')")
        self.query(f"attach '{path}' as at_version (type delta, version {int(version)})")
        try:
            return self.query(f"select {columns} from at_version")
        finally:
            self.query("detach at_version")
