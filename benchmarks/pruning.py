"""What selective reads touch: bytes, row groups and time, beside the same rows as plain sorted Parquet read by DuckDB.

    python -m benchmarks.pruning [--rows 1000000] [--runs 9]

1. Orders with scattered keys, sorted by (region, ts), are merged into one table; the plain file is DuckDB's COPY of the same
   rows in the same order.
2. Each query is run in turn by both. Bytes are those that the process read while it ran (Linux), with DuckDB's cache of file
   contents off, so they do not depend on the runs before; row groups are what DuckDB says that it scanned.
3. The same parts are written again with and without Bloom filters: processor time and bytes.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import lakebed
from benchmarks.workload import KEYS, SCHEMA, SORT_KEY, Workload, median, table
from lakebed.parts.write import ROW_GROUP_ROWS
from lakebed.parts.write_arrow import write_tables
from lakebed.storage.data_files import open_part_storage
from lakebed.storage.engine import connect

BATCHES = 4
KEYS_SOUGHT = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=9)
    args = parser.parse_args()
    connect().execute("set global enable_external_file_cache = false")
    with tempfile.TemporaryDirectory() as folder:
        orders, keys = fill(f"{folder}/orders", args.rows)
        plain = f"{folder}/plain.parquet"
        rows = orders.to_arrow()
        with connect() as connection:
            connection.register("rows", rows)
            by = ", ".join(SORT_KEY)
            connection.execute(f"copy (from rows order by {by}) to '{plain}' (format parquet, compression zstd)")
        reads(orders, plain, keys, args.runs)
        writes(orders, folder, args.runs)


def fill(root: str, rows: int) -> tuple[lakebed.Table, list[int]]:
    """The merged table, and some of its keys."""
    keys = np.random.default_rng(3).permutation(10 * rows)[:rows]
    work = Workload(rows)
    orders = lakebed.create(root, SCHEMA, KEYS, SORT_KEY, properties={"lakebed.read_budget": "1"})
    for start in range(0, rows, rows // BATCHES):
        stop = min(rows, start + rows // BATCHES)
        orders.apply(work.base(start, stop).set_column(0, "pk", pa.array(keys[start:stop])))
        orders.settle()
    orders.maintenance.compact()
    return orders, [int(key) for key in keys[:: rows // KEYS_SOUGHT][:KEYS_SOUGHT]]


def reads(orders: lakebed.Table, plain: str, keys: list[int], runs: int) -> None:
    listed = ", ".join(map(str, keys))
    few = ", ".join(map(str, keys[:3]))
    start = orders.query("select quantile_disc(ts, 0.5) from orders")[0][0].as_py()
    seconds = orders.to_arrow([]).num_rows // 100  # ten orders a second
    queries = {
        "a key": f"select * from {{}} where pk = {keys[0]}",
        "3 keys, IN": f"select * from {{}} where pk in ({few})",
        f"{KEYS_SOUGHT} keys, IN": f"select * from {{}} where pk in ({listed})",
        "3 keys, semi-join": f"select * from {{}} where pk in (select unnest([{few}]))",
        f"{KEYS_SOUGHT} keys, semi-join": f"select * from {{}} where pk in (select unnest([{listed}]))",
        "a region": "select * from {} where region = 'region-07'",
        "a region and a tenth of the time": f"select * from {{}} where region = 'region-07' and ts >= '{start}' "
        f"and ts < '{start}'::timestamptz + interval {seconds} seconds",
        "2 regions, semi-join": "select * from {} where region in (select unnest(['region-07', 'region-11']))",
    }
    lines: list[list[object]] = []
    for name, query in queries.items():
        ours, theirs = query.format("orders"), query.format(f"read_parquet('{plain}')")
        lines.append([name, "lakebed", *measured(partial(orders.query, ours), runs)])
        lines[-1].append(row_groups(orders.query("explain analyze " + ours)))
        lines.append([name, "plain", *measured(partial(arrow, theirs), runs)])
        lines[-1].append(row_groups(arrow("explain analyze " + theirs)))
    for sought in (keys[:1], keys[:3], keys):
        lines.append([f"{len(sought)} keys, lookup", "lakebed", *measured(partial(orders.lookup, sought), runs), ""])
    parts = orders.inspect.parts()
    print(
        f"{parts.num_rows} parts, {sum(parts['bytes'].to_pylist()):,} bytes; plain {Path(plain).stat().st_size:,} bytes"
    )
    table("Selective reads", ["query", "of", "rows", "bytes read", "median ms", "row groups"], lines)


def arrow(sql: str) -> pa.Table:
    return connect().sql(sql).to_arrow_table()


def measured(read: Callable[[], pa.Table], runs: int) -> list[object]:
    """Rows, bytes read, median milliseconds."""
    rows = read().num_rows  # footers are read once and kept
    times = []
    before = bytes_read()
    for _ in range(runs):
        started = time.perf_counter()
        assert read().num_rows == rows
        times.append(time.perf_counter() - started)
    return [rows, (bytes_read() - before) // runs, 1000 * median(times)]


def bytes_read() -> int:
    return int(re.findall(r"rchar: (\d+)", Path("/proc/self/io").read_text())[0])


def row_groups(explained: pa.Table) -> str:
    found = re.findall(r"Row Groups Scanned: (\d+) / (\d+)", explained[1][0].as_py())
    return f"{sum(int(scanned) for scanned, _ in found)} of {sum(int(count) for _, count in found)}"


def writes(orders: lakebed.Table, folder: str, runs: int) -> None:
    rows = pq.read_table(Path(orders.path, orders.inspect.parts()["path"][0].as_py()), partitioning=None)
    storage = open_part_storage(f"{folder}/again")
    lines: list[list[object]] = []
    ways: dict[str, dict[str, int]] = {"without": {}, "with": dict.fromkeys(KEYS, ROW_GROUP_ROWS)}
    for name, bloom_filters in ways.items():
        times = []
        for _ in range(runs):
            started = time.process_time()
            groups = (rows.slice(at, ROW_GROUP_ROWS) for at in range(0, len(rows), ROW_GROUP_ROWS))
            *_, size, _ = write_tables(
                groups, rows.schema, ["region", "status"], ROW_GROUP_ROWS, storage, bloom_filters=bloom_filters
            )
            times.append(time.process_time() - started)
        lines.append([name, size, median(times)])
    table("Writing a part", ["Bloom filters", "bytes", "processor s"], lines)


if __name__ == "__main__":
    main()
