"""What a read costs of columns that were renamed or widened after their parts were written (docs/adr/0018).

    python -m benchmarks.altered_reads [--rows 1000000] [--runs 5] [--spark]

One table is altered step by step, without a row written in between. Each version is read with the schema that it had, all
versions in turn within a round, so noise falls on all alike. Printed is the median of the CPU seconds of this process and,
with ``--spark``, of Spark's.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

import lakebed
from lakebed.log.snapshot import Snapshot
from lakebed.table import Table, internals_of

PARTS = 4
STEPS = {
    "columns renamed": {
        "rename": {"qty": "amount", "day": "ordered", "note": "remark", "place": "shipping", "lines": "items"}
    },
    "and fields within them": {"rename": {"shipping.zip": "code", "items.element.sku": "article"}},
    "and widened": {
        "widen": {
            "amount": "long",
            "price": "decimal(20,4)",
            "share": "double",
            "ordered": "timestamp_ntz",
            "shipping.floor": "long",
        }
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--spark", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        orders = lakebed.create(f"{folder}/orders", rows_of(0, 1).schema, keys=["id"])
        for part in range(PARTS):
            orders.apply(rows_of(part * args.rows // PARTS, args.rows // PARTS))
        orders.settle()
        versions = {"as written": orders.version}
        for step, change in STEPS.items():
            versions[step] = orders.alter(**change).version
        reads = reads_of_spark(orders) if args.spark else reads_of_duckdb(orders, args.rows)
        clock = clock_of_spark if args.spark else time.process_time
        for name, read in reads.items():
            taken: dict[str, list[float]] = {step: [] for step in versions}
            for number in range(args.runs + 2):
                for step, version in versions.items():
                    snapshot = internals_of(orders).log.at_version(version)
                    started = clock()
                    read(snapshot)
                    if number > 1:
                        taken[step].append(clock() - started)
            print(f"{name}: " + ", ".join(f"{step} {statistics.median(one):.3f}" for step, one in taken.items()))


def rows_of(first: int, count: int) -> pa.Table:
    rng = np.random.default_rng(first)
    ids = pa.array(np.arange(first, first + count))
    texts = pa.array([f"{number:05}" for number in range(1000)]).take(pa.array(rng.integers(0, 1000, count)))
    whole = pa.array(rng.integers(0, 10_000, count).astype(np.int32))
    price = pa.array(rng.integers(0, 10_000, count)).cast(pa.decimal128(21, 2)).cast(pa.decimal128(10, 2))
    offsets = pa.array(np.arange(count + 1).astype(np.int32))
    return pa.table(
        {
            "id": ids,
            "qty": whole,
            "price": price,
            "share": pa.array(rng.random(count).astype(np.float32)),
            "day": pa.array(rng.integers(19_000, 20_000, count).astype(np.int32)).cast(pa.date32()),
            "note": texts,
            "place": pa.StructArray.from_arrays([texts, whole], ["zip", "floor"]),
            "lines": pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays([texts, whole], ["sku", "n"])),
        }
    )


def names_in(snapshot: Snapshot, text: str) -> str:
    """The text with the version's own names in place of ``{0}`` (a whole number), ``{1}`` (a day) and ``{2}`` (a nested text)."""
    place = snapshot.logical_schema.field(6)
    return text.format(
        snapshot.logical_schema.names[1], snapshot.logical_schema.names[4], f"{quoted(place.name)}.{place.type[0].name}"
    )


def quoted(name: str) -> str:
    return f'"{name}"' if name == "to" else name


AGGREGATE = "select sum({0}), max({1}) from t"
NESTED = "select count(*) from t where {2} = '00007'"


def reads_of_duckdb(orders: Table, rows: int) -> dict[str, Callable[[Snapshot], object]]:
    view = internals_of(orders).view
    keys = np.random.default_rng(1).integers(0, rows, 20).tolist()
    return {
        "to_arrow": lambda snapshot: view.arrow(snapshot, None, None),
        "to_arrow, 1 row in 10 of a condition": lambda snapshot: view.arrow(
            snapshot, None, names_in(snapshot, "{0} < 1000")
        ),
        "query, two columns": lambda snapshot: view.query(snapshot, names_in(snapshot, AGGREGATE), "t", False),
        "query, a nested field": lambda snapshot: view.query(snapshot, names_in(snapshot, NESTED), "t", False),
        "lookup of 20 keys": lambda snapshot: view.lookup(snapshot, keys, None),
    }


def reads_of_spark(orders: Table) -> dict[str, Callable[[Snapshot], object]]:
    spark = lakebed.spark("benchmark", "local[2]", conf={"spark.driver.memory": "2g"})
    spark.sparkContext.setLogLevel("ERROR")
    view = internals_of(orders).view

    def run(snapshot: Snapshot, text: str) -> object:
        view.dataframe(spark, snapshot).createOrReplaceTempView("t")
        return spark.sql(names_in(snapshot, text)).collect()

    every = "select sum(hash(*)) from t"
    return {
        "Spark, all columns": lambda snapshot: run(snapshot, every),
        "Spark, two columns": lambda snapshot: run(snapshot, AGGREGATE),
        "Spark, a nested field": lambda snapshot: run(snapshot, NESTED),
    }


def clock_of_spark() -> float:
    """The CPU seconds of the JVM that this process started."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    ticks = 0
    for child in children:
        found = Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(found[11]) + int(found[12])
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
