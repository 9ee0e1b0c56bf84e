"""What deletion vectors cost as a table grows: uniform updates for an hour of model time, with real settles, merges and purges.

    python -m benchmarks.deletion_vectors [--rows 1000000 10000000 100000000] [--minutes 60] [--rate 2000] [--every 2]
        [--settle due each] [--purge 0.3]

1. A table of so many rows in parts of a million, without overlap, is sorted by its key. A row takes some 18 bytes on disk.
2. Every few seconds of model time a batch arrives. Each change updates any row, so every settle marks rows all over the table.
3. ``--settle due`` asks the planner whether to settle, as maintenance does, with the age that the tail has in model time;
   ``each`` settles every batch. Then merges and purges that are due are run. The model's clock stands still meanwhile.

Each size is measured in a process of its own. "MB a settle" is what a settle writes: vectors in files, and the log's entry,
which holds short vectors and an action for each part that is marked. Shares are relative to the bytes of the changes as they
arrived. The age of a change is how old it is in model time when every Delta reader sees it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa

import lakebed
from benchmarks.workload import table
from lakebed.planning.settling import reason_to_settle
from lakebed.table import internals_of

SCHEMA = pa.schema([("pk", pa.int64()), ("amount", pa.float64()), ("note", pa.int64())])
PART_ROWS = 1_000_000
MB = 1 << 20


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    rows: int
    minutes: float
    rate: int
    every: float
    settle: str
    purge: float


@dataclass
class Hour:
    """What was written, in bytes, and the ages of changes in seconds of model time when they were settled."""

    changes: int = 0
    vectors: list[int] = field(default_factory=list)
    log: list[int] = field(default_factory=list)
    marked: list[int] = field(default_factory=list)
    merged: int = 0
    ages: list[float] = field(default_factory=list)
    dead_rows: int = 0
    parts: int = 0

    def row(self) -> list[object]:
        settles = len(self.vectors)
        tenth = max(1, settles // 10)
        written = [vectors + log for vectors, log in zip(self.vectors, self.log, strict=True)]
        total = self.changes + sum(written) + self.merged
        return [
            settles,
            float(np.mean(self.marked)),
            float(np.mean(written[:tenth])) / MB,
            float(np.mean(written[-tenth:])) / MB,
            sum(self.vectors) / self.changes,
            sum(self.log) / self.changes,
            self.merged / self.changes,
            100 * sum(written) / total,
            float(np.median(self.ages)),
            float(np.max(self.ages)),
            self.dead_rows,
            self.parts,
        ]


HEADER = [
    "rows", "settle", "purge", "settles", "parts marked", "MB a settle, first tenth", "last tenth", "vectors ÷ changes",
    "log ÷ changes", "merges ÷ changes", "settles' share of all bytes %", "age s, median", "max", "dead rows at the end",
    "parts at the end",
]  # fmt: skip


def rows_of(keys: np.typing.NDArray[np.int64], rng: np.random.Generator) -> pa.Table:
    amounts = np.round(rng.gamma(2.0, 40.0, len(keys)), 2)
    return pa.table({"pk": keys, "amount": amounts, "note": rng.integers(0, 2**40, len(keys))}, SCHEMA)


def an_hour(case: Case, folder: Path) -> Hour:
    rng = np.random.default_rng(3)
    properties = {"lakebed.purge_dead_ratio": str(case.purge)}
    lake = lakebed.create(folder / "t", SCHEMA, keys=["pk"], properties=properties)
    for start in range(0, case.rows, PART_ROWS):
        lake.apply(rows_of(np.arange(start, min(case.rows, start + PART_ROWS)), rng))
    lake.settle()
    log, hour = internals_of(lake).log, Hour()
    arrived: dict[int, float] = {}  # by version of the tail
    for at in range(round(case.minutes * 60 / case.every)):
        now = at * case.every
        keys = np.unique(rng.integers(0, case.rows, round(case.rate * case.every)))
        version = lake.apply(rows_of(keys, rng))
        arrived[version] = now
        snapshot = log.refresh()
        tail = snapshot.tail_in_order()
        hour.changes += sum(part.bytes for part in tail if part.version == version)
        modified_ms = min(part.modified_ms for part in tail)
        age_ms = round(1000 * (now - min(arrived.values())))
        if case.settle == "each" or reason_to_settle(snapshot, modified_ms + age_ms, log.statistics):
            settled = lake.settle()
            hour.vectors.append(settled.bytes_written)
            hour.log.append((folder / "t" / "_delta_log" / f"{settled.version:020}.json").stat().st_size)
            hour.marked.append(settled.base_parts_marked)
            hour.ages += [now - each_arrived for each_arrived in arrived.values()]
            arrived.clear()
            hour.merged += lake.maintenance.compact().bytes_out
    parts = log.refresh().parts.values()
    hour.dead_rows, hour.parts = sum(part.dead_rows for part in parts), len(parts)
    return hour


def in_a_process(case: Case, folder: str) -> Hour:
    os.environ["LAKEBED_CACHE_DIR"] = str(Path(folder, "cache"))
    return an_hour(case, Path(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000, 100_000_000])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=int, default=2000, help="changes a second")
    parser.add_argument("--every", type=float, default=2, help="seconds between batches")
    parser.add_argument("--settle", nargs="+", choices=("due", "each"), default=["each", "due"])
    parser.add_argument("--purge", type=float, nargs="+", default=[0.3], help="values of lakebed.purge_dead_ratio")
    args = parser.parse_args()
    found: list[list[object]] = []
    for rows, settle, purge in product(args.rows, args.settle, args.purge):
        case = Case(rows, args.minutes, args.rate, args.every, settle, purge)
        with tempfile.TemporaryDirectory() as folder, multiprocessing.get_context("spawn").Pool(1) as pool:
            found.append([f"{rows:,}", settle, purge, *pool.apply(in_a_process, (case, folder)).row()])
        print(*zip(HEADER, found[-1], strict=True), file=sys.stderr, flush=True)
    table(
        f"{args.minutes:g} minutes of {args.rate:,} uniform updates a second, a batch every {args.every:g} s",
        HEADER,
        found,
    )


if __name__ == "__main__":
    main()
