"""What reads cost against what is written: the read budget varied, with maintenance running, volatile parts off and on.

    python -m benchmarks.frontier [--rows 1000000] [--batches 20] [--budgets 2 4 8 16] [--every 4]

For each setting: the batches go in one after the other while `table.maintain` settles and merges beside them. After every
fourth batch, once maintenance rests, both queries are run on the live table and on its rows as plain sorted Parquet, in turn;
and at the end once more, when everything has been merged into one run ("compact": bytes of that merge are not counted).
Bytes written are those of all files that came into the table's folder (parts, vectors, log), against the bytes of the
changes as Arrow. Materialized parts that are still on local disk at the end are uploaded, and counted in the last column.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import lakebed
from benchmarks.fresh_read import AGGREGATE, SELECTIVE
from benchmarks.workload import DELETES, KEYS, SCHEMA, SORT_KEY, Workload, median, p95, table
from lakebed.compaction.volatile import VolatileMerger
from lakebed.planning.settling import UploadRules
from lakebed.table import internals_of

REST_SECONDS_MAX = 30.0


class Written:
    """Bytes of files that came into a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[str, int] = {}

    def look(self) -> int:
        for path in self._folder.rglob("*"):
            if path.is_file() and "streams" not in path.parts and ".lakebed-tmp" not in path.name:
                self._seen.setdefault(str(path), path.stat().st_size)
        return sum(self._seen.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--budgets", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--every", type=int, default=4, help="batches from one comparison of reads to the next")
    parser.add_argument("--volatile", nargs="+", default=["off", "on"])
    args = parser.parse_args()
    spark = lakebed.spark("benchmark", "local[2]", conf={"spark.driver.memory": "2g"})
    spark.sparkContext.setLogLevel("ERROR")
    rows = [run(spark, args, 0, "off")]  # no maintenance: what a batch costs alone
    for volatile in args.volatile:
        rows += [run(spark, args, budget, volatile) for budget in args.budgets]
    table(
        f"{args.batches} batches of 20,000 changes into {args.rows:,} rows, maintenance running",
        [
            "read budget", "volatile", "batch median s", "batch p95 s", "aggregate x plain: median", "max",
            "selective: median", "max", "compact: aggregate", "selective", "runs read at the end", "write amplification",
            "with the last upload",
        ],
        rows,
    )  # fmt: skip
    spark.stop()


def run(spark: Any, args: argparse.Namespace, budget: int, volatile: str) -> list[object]:
    rows, batches = args.rows, args.batches
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LAKEBED_CACHE_DIR"] = f"{folder}/cache"
        work = Workload(rows)
        properties = {"lakebed.read_budget": str(budget or 8), "lakebed.volatile": volatile}
        orders = lakebed.create(f"{folder}/orders", SCHEMA, KEYS, SORT_KEY, properties=properties)
        for start in range(0, rows, 1_000_000):
            orders.apply(work.base(start, min(rows, start + 1_000_000)))
        orders.settle()
        written = Written(Path(folder, "orders"))
        before, changed = written.look(), 0
        query = orders.maintain(spark) if budget else None
        seconds, ratios = [], {"aggregate": [], "selective": []}  # type: ignore[var-annotated]
        for number in range(batches):
            batch = work.batch()
            changed += batch.nbytes
            started = time.perf_counter()
            orders.apply(batch, apply_as_deletes=DELETES)
            seconds.append(time.perf_counter() - started)
            if query is None:
                orders.settle()
                continue
            wait_for_rest(orders)
            if number % args.every == args.every - 1:
                for name, ratio in _ratios(spark, orders, folder).items():
                    ratios[name].append(ratio)
            written.look()
        if query is None:
            bytes_written = written.look() - before
            row = ["none", "off", median(seconds), p95(seconds), *["-"] * 6]
            return [*row, batches + 1, bytes_written / changed, "-"]
        runs = len(internals_of(orders).view.pin(internals_of(orders).log.refresh()).files)
        query.stop()
        internals_of(orders).compaction.close()
        amplification = (written.look() - before) / changed
        if volatile == "on":
            log, storage, deletion_vectors = (
                internals_of(orders).log,
                internals_of(orders).storage,
                internals_of(orders).deletion_vectors,
            )
            replica = VolatileMerger(log, storage, deletion_vectors, internals_of(orders).compaction.volatile_base)
            replica.upload_due(UploadRules(age_seconds=0, local_bytes_max=0))
            replica.close()
        last = (written.look() - before) / changed
        orders.set_properties(
            {"lakebed.read_budget": "1", "lakebed.volatile": "off", "lakebed.target_part_rows": str(10 * rows)}
        )
        orders.maintenance.compact()
        compacted = _ratios(spark, orders, folder)
        return [
            budget,
            volatile,
            median(seconds),
            p95(seconds),
            median(ratios["aggregate"]),
            max(ratios["aggregate"]),
            median(ratios["selective"]),
            max(ratios["selective"]),
            compacted["aggregate"],
            compacted["selective"],
            runs,
            amplification,
            last,
        ]


def wait_for_rest(orders: lakebed.Table) -> None:
    """Wait until maintenance has nothing to do."""
    deadline, still = time.monotonic() + REST_SECONDS_MAX, 0
    while time.monotonic() < deadline and still < 3:
        busy = bool(
            internals_of(orders).log.refresh().tail
            or internals_of(orders).compaction.running()
            or internals_of(orders).compaction.due()
        )
        still = 0 if busy else still + 1
        time.sleep(0.05)


def _ratios(spark: Any, orders: lakebed.Table, folder: str) -> dict[str, float]:
    live = orders.read(spark)
    live.createOrReplaceTempView("live")
    plain = f"{folder}/plain"
    live.repartition(1).sortWithinPartitions(*SORT_KEY).write.option("compression", "zstd").parquet(plain)
    spark.read.parquet(plain).createOrReplaceTempView("plain")
    low, high = spark.sql(
        "select min(ts) + (max(ts) - min(ts)) * 0.6, min(ts) + (max(ts) - min(ts)) * 0.7 from live"
    ).first()
    out = {}
    for query, text in (("aggregate", AGGREGATE), ("selective", SELECTIVE)):
        times: dict[str, list[float]] = {"plain": [], "live": []}
        for attempt in range(8):
            for name in times:
                started = time.perf_counter()
                spark.sql(text.format(name=name, low=low, high=high)).collect()
                if attempt >= 2:
                    times[name].append(time.perf_counter() - started)
        out[query] = median(times["live"]) / median(times["plain"])
    shutil.rmtree(plain)
    return out


if __name__ == "__main__":
    main()
