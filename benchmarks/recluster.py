"""What reclustering costs and gains: parts that came in random order, in the order of time, or are sorted by another sort key.

    python -m benchmarks.recluster [--rows 10000000] [--parts 500] [--plan-mb 500] [--part-mb 128] [--queries 100]

A table of orders without keys, sorted by (region, ts), as that many level-0 parts; "by time": by ts; "new sort key": by ts until
``set_sort_key``. ``depth`` is the average over parts,
``parts read`` those that statistics admit for a query of a region and a thousandth of its time, on average. ``written`` is the
bytes of all merges over those of the parts that came. ``recluster --final`` runs in this process, its kernel on one thread in
512 MB; DuckDB sorts the same files as a whole to Parquet files of the same compression and row groups, with the same
limits. The second figure of DuckDB is with two threads.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import duckdb
import numpy as np

import lakebed
from benchmarks.workload import SCHEMA, SORT_KEY, Workload, table
from lakebed.compaction.compaction import MEMORY_BYTES_MAX
from lakebed.parts.part_filter import parts_that_may_match
from lakebed.parts.write import ROW_GROUP_ROWS
from lakebed.planning.plan import MergeKind
from lakebed.planning.planner import plan
from lakebed.sql import expression
from lakebed.storage.engine import connect
from lakebed.table import internals_of

_START_US, _STEP_US = 1_750_000_000_000_000, 100_000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--parts", type=int, default=500)
    parser.add_argument("--plan-mb", type=int, default=500, help="lakebed.plan_bytes_max")
    parser.add_argument("--part-mb", type=int, default=128, help="lakebed.target_part_bytes")
    parser.add_argument("--queries", type=int, default=100)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LAKEBED_CACHE_DIR"] = str(Path(folder, "cache"))
        rows = [run(Path(folder, order), order, args) for order in ("random", "by time", "new sort key")]
    header = [
        "arrival",
        "MB",
        "depth",
        "then",
        "max",
        "parts read",
        "then",
        "written",
        "final s",
        "DuckDB s",
        "2 threads s",
    ]
    title = f"{args.rows:,} rows in {args.parts} parts, plans of {args.plan_mb} MB, parts of {args.part_mb} MB"
    table(title, header, rows)


def run(path: Path, order: str, args: argparse.Namespace) -> list[object]:
    properties = {
        "lakebed.plan_bytes_max": str(args.plan_mb << 20),
        "lakebed.target_part_bytes": str(args.part_mb << 20),
        "lakebed.merge": "recluster",
    }
    lake = lakebed.create(path, SCHEMA, sort_key=SORT_KEY if order == "random" else ["ts"], properties=properties)
    everything = Workload(args.rows).base()
    places = np.random.default_rng(1).permutation(args.rows) if order == "random" else np.arange(args.rows)
    for piece in np.array_split(places, args.parts):
        lake.apply(everything.take(piece))
    del everything
    if order == "new sort key":
        lake.set_sort_key(SORT_KEY)
    came = lake.inspect.parts()
    size = sum(came["bytes"].to_pylist())
    depth_before, _ = depth_of(lake)
    read_before = parts_read(lake, args)
    duckdb_seconds = [
        whole_sort(lake, came["path"].to_pylist(), path.parent / f"sorted-{order}", threads) for threads in (1, 2)
    ]
    started = time.perf_counter()
    result = lake.maintenance.recluster(final=True)
    seconds = time.perf_counter() - started
    depth_after, deepest = depth_of(lake)
    assert len(lake.to_arrow(columns=["pk"])) == args.rows
    planning = plan(internals_of(lake).log.refresh(), (), 0, statistics=internals_of(lake).log.statistics)
    assert not [found for found in planning.merges if found.kind is MergeKind.RECLUSTER]
    return [
        order,
        size / 1e6,
        depth_before,
        depth_after,
        deepest,
        read_before,
        parts_read(lake, args),
        result.bytes_out / size,
        seconds,
        *duckdb_seconds,
    ]


def depth_of(lake: lakebed.Table) -> tuple[float, int]:
    """Average and maximum over all parts."""
    row = lake.inspect.clustering().to_pylist()[0]
    return row["average_depth"], row["max_depth"]


def parts_read(lake: lakebed.Table, args: argparse.Namespace) -> float:
    """Parts that may hold rows of a query, on average."""
    rng, snapshot, connection = np.random.default_rng(2), internals_of(lake).log.refresh(), connect()
    parts, span, counts = list(snapshot.parts.values()), args.rows * _STEP_US, []
    for _ in range(args.queries):
        at = _START_US + int(rng.integers(span))
        low, high = (str(np.datetime64(us, "us")) for us in (at, at + span // 1000))
        where = (
            f"region = 'region-{rng.integers(20):02d}' and ts between timestamptz '{low}Z' and timestamptz '{high}Z'"
        )
        counts.append(len(parts_that_may_match(connection, parts, snapshot.schema, expression(where, "where"))))
    return float(np.mean(counts))


def whole_sort(lake: lakebed.Table, paths: list[str], out: Path, threads: int) -> float:
    """Seconds that DuckDB takes to sort all files at once."""
    files = ", ".join(f"'{lake.path}/{path}'" for path in paths)
    order = ", ".join(lake.inspect.detail().to_pylist()[0]["sort_key"])
    limits: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{MEMORY_BYTES_MAX}B",
        "threads": threads,
        "temp_directory": str(out) + ".tmp",
    }
    started = time.perf_counter()
    with duckdb.connect(config=limits) as connection:
        connection.execute(
            f"copy (select * from read_parquet([{files}]) order by {order}) to '{out}-{threads}' "
            f"(format parquet, compression zstd, row_group_size {ROW_GROUP_ROWS}, file_size_bytes '128MB')"
        )
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
