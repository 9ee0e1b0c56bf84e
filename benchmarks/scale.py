"""How cost grows: with the rows of a table, its parts, the changes of a batch, the tables of a process, the commits kept.

    python -m benchmarks.scale [rows parts changes tables commits] [--quick] [--largest 10000000] [--png docs/images/scale.png]

Each point is measured in a process of its own, without Spark. A row ends with the exponent e of cost ~ size^e that fits the
points best (least squares over the logarithms; 0: does not grow, 1: in proportion), by the largest three points.

    rows     a base of so many rows in runs of a million; then batches of 20,000 changes, each settled
    parts    a log of so many parts (the files are not there), from a checkpoint; commits of one part more
    changes  batches of so many changes into 5,000,000 rows
    tables   so many tables open in one process; a round applies 2,000 changes to each and settles it
    commits  so many commits whose log files are kept, with a checkpoint every hundred
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import lakebed
from benchmarks.scrape import filled, one
from benchmarks.workload import DELETES, KEYS, SCHEMA, SORT_KEY, Workload, median, table
from lakebed.log.actions import AddPart, CommitInfo, Transaction
from lakebed.log.conflicts import BLIND
from lakebed.log.stores import open_store
from lakebed.log.table_log import Committed, TableLog
from lakebed.parts.part_filter import parts_that_may_match
from lakebed.planning.planner import plan
from lakebed.sql import expression
from lakebed.storage.engine import connect
from lakebed.table import internals_of

Costs = dict[str, float]
RUN_ROWS = 1_000_000
BATCHES = 9


@dataclass
class Stopwatch:
    """Milliseconds of steps, by name; ``cpu``: also of CPU time, of all threads."""

    costs: Costs = field(default_factory=dict)

    def time(self, name: str, work: Callable[[], Any], times: int = 1, *, cpu: bool = False) -> Any:
        taken, used = [], []
        for _ in range(times):
            started, began = time.perf_counter(), time.process_time()
            result = work()
            taken.append(time.perf_counter() - started)
            used.append(time.process_time() - began)
        self.costs[name] = median(taken) * 1000
        if cpu:
            self.costs[f"{name}: CPU"] = median(used) * 1000
        return result


def by_rows(rows: int, folder: Path) -> Costs:
    work, watch = Workload(rows), Stopwatch()
    lake = lakebed.create(folder / "orders", SCHEMA, keys=KEYS, sort_key=SORT_KEY)
    for start in range(0, rows, RUN_ROWS):
        lake.apply(work.base(start, min(rows, start + RUN_ROWS)))
    watch.time("key index built", lake.settle)
    watch.costs |= batches(lake, work)
    keys = [int(key) for key in np.random.default_rng(5).integers(0, rows, 20)]
    watch.time("look up 20 keys", lambda: lake.lookup(keys), 5, cpu=True)
    watch.time("look up one key", lambda: lake.lookup(keys[:1]), 5, cpu=True)
    reader = lakebed.open(folder / "orders")
    watch.time("look up 20 keys, no key index", lambda: reader.lookup(keys), 5, cpu=True)
    watch.time("look up one key, no key index", lambda: reader.lookup(keys[:1]), 5, cpu=True)
    first = 1_750_000_000 + rows // 20  # the base has ten rows a second: its middle
    where = f"region = 'region-03' and ts between {moment(first)} and {moment(first + 600)}"
    assert watch.time("read ten minutes of a region", lambda: lake.to_arrow(where=where), 5).num_rows
    watch.time(
        "plan", lambda: plan(internals_of(lake).log.refresh(), (), 0, statistics=internals_of(lake).log.statistics), 3
    )
    watch.time("open", lambda: lakebed.open(folder / "orders").inspect.parts(), 3)
    stored = sum(file.stat().st_size for file in Path(folder, "cache").rglob("*") if file.is_file())
    return watch.costs | {
        "key index on disk, MB": stored / 2**20,
        "highest MB": highest_mb(),
        "private MB": private_mb(),
    }


def moment(seconds: int) -> str:
    return f"timestamptz '{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S+00}'"


def by_parts(parts: int, folder: Path) -> Costs:
    filled(str(folder), parts)
    watch, rng = Stopwatch(), random.Random(2)
    log = TableLog(open_store(str(folder)))
    snapshot = watch.time("open", log.refresh)
    reader = TableLog(open_store(str(folder)))
    reader.refresh()
    commits, refreshes = [], []
    for number in range(100):
        started = time.perf_counter()
        outcome = log.commit(
            snapshot, [AddPart(one(rng, parts + number))], CommitInfo(operation="WRITE", commit_id=""), BLIND
        )
        committed = time.perf_counter()
        assert isinstance(outcome, Committed)
        snapshot = outcome.snapshot
        reader.refresh()
        commits.append(committed - started)
        refreshes.append(time.perf_counter() - committed)
    watch.costs |= {"commit": median(commits) * 1000, "refresh by a commit": median(refreshes) * 1000}
    watch.time("plan, first", lambda: plan(snapshot, (), 0, statistics=log.statistics))
    watch.time("plan", lambda: plan(snapshot, (), 0, statistics=log.statistics), 3)
    taken = []
    for number in range(5):
        added = [AddPart(one(rng, parts + 100 + number))]
        outcome = log.commit(snapshot, added, CommitInfo(operation="WRITE", commit_id=""), BLIND)
        assert isinstance(outcome, Committed)
        snapshot = outcome.snapshot
        started = time.perf_counter()
        plan(snapshot, (), 0, statistics=log.statistics)
        taken.append(time.perf_counter() - started)
    watch.costs["plan after a commit"] = median(taken) * 1000
    listed, connection = list(snapshot.parts.values()), connect()
    where = expression("key = 500000", "where")
    found = lambda: parts_that_may_match(connection, listed, snapshot.schema, where, log.statistics)  # noqa: E731
    watch.time("parts for a key, first", found)
    watch.time("parts for a key", found, 5)
    watch.time("checkpoint", lambda: log.write_checkpoint(snapshot))
    return watch.costs | {"private MB": private_mb()}


def by_changes(changes: int, folder: Path) -> Costs:
    rows = 5_000_000
    work = Workload(rows, changes)
    lake = lakebed.create(folder / "orders", SCHEMA, keys=KEYS, sort_key=SORT_KEY)
    for start in range(0, rows, RUN_ROWS):
        lake.apply(work.base(start, start + RUN_ROWS))
    lake.settle()
    return batches(lake, work) | {"private MB": private_mb()}


def batches(lake: lakebed.Table, work: Workload) -> Costs:
    """Medians of applying and settling a batch, after three that warm up."""
    taken: list[tuple[float, float]] = []
    for _ in range(3 + BATCHES):
        changes = work.batch()
        started = time.perf_counter()
        lake.apply(changes, apply_as_deletes=DELETES)
        applied = time.perf_counter()
        lake.settle()
        taken.append((applied - started, time.perf_counter() - applied))
    applies, settles = zip(*taken[3:], strict=True)
    return {"apply": median(list(applies)) * 1000, "settle": median(list(settles)) * 1000}


def by_tables(count: int, folder: Path) -> Costs:
    lakes = [lakebed.create(folder / f"t{at}", SCHEMA, keys=KEYS, sort_key=SORT_KEY) for at in range(count)]
    works = [Workload(100_000, 2000, seed=at) for at in range(count)]
    for lake, work in zip(lakes, works, strict=True):
        lake.apply(work.base())
        lake.settle()
    prepared = [[work.batch() for work in works] for _ in range(5)]

    def rounds() -> Iterator[float]:
        for changes in prepared:
            started = time.perf_counter()
            for lake, one_batch in zip(lakes, changes, strict=True):
                lake.apply(one_batch, apply_as_deletes=DELETES)
                lake.settle()
            yield time.perf_counter() - started

    seconds = median(list(rounds()))
    watch = Stopwatch({"a round": seconds * 1000, "a round, per table": seconds * 1000 / count})
    watch.time("plan all", lambda: [lake.maintenance.plan() for lake in lakes], 3)
    open_files = len(os.listdir("/proc/self/fd"))
    return watch.costs | {"open files": open_files, "private MB": private_mb()}


def by_commits(commits: int, folder: Path) -> Costs:
    schema = pa.schema([pa.field("key", pa.int64(), nullable=False), ("region", pa.string())])
    properties = {"lakebed.log_retention": "365 days"}
    lake, rng = lakebed.create(folder / "t", schema, keys=["key"], properties=properties), random.Random(1)
    snapshot = internals_of(lake).log.refresh()
    for number in range(commits):
        action = (
            AddPart(replace(one(rng, number), deletion_vector=None))
            if number < 50
            else Transaction("benchmark", number)
        )
        outcome = internals_of(lake).log.commit(snapshot, [action], CommitInfo(operation="WRITE", commit_id=""), BLIND)
        assert isinstance(outcome, Committed)
        snapshot = outcome.snapshot
        if number % 100 == 99:
            internals_of(lake).log.write_checkpoint(snapshot)
    watch = Stopwatch()
    opened = watch.time("open", lambda: lakebed.open(folder / "t"))
    finish = CommitInfo(operation="WRITE", commit_id="")
    watch.time("a commit", lambda: internals_of(lake).log.commit(snapshot, [], finish, BLIND))
    watch.time("timeline of 20", lambda: opened.inspect.timeline(20), 3)
    watch.time("an old version", lambda: opened.inspect.parts(commits // 2), 3)
    watch.time("status", opened.status)
    watch.time("doctor", opened.doctor)
    watch.time("clean the log", opened.maintenance.clean_log)
    return watch.costs | {"private MB": private_mb()}


def private_mb() -> float:
    text = Path("/proc/self/status").read_text()
    return int(text.split("RssAnon:")[1].split()[0]) / 1024


def highest_mb() -> float:
    """The most memory that the process has had, mapped files included."""
    text = Path("/proc/self/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) / 1024


AXES: dict[str, tuple[Callable[[int, Path], Costs], list[int], list[int]]] = {
    "rows": (by_rows, [1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000], [100_000, 300_000, 1_000_000]),
    "parts": (by_parts, [100, 1000, 10_000, 100_000], [100, 300, 1000]),
    "changes": (by_changes, [100, 1000, 10_000, 100_000, 1_000_000], [100, 1000, 10_000]),
    "tables": (by_tables, [1, 5, 20, 50], [1, 2, 4]),
    "commits": (by_commits, [100, 1000, 10_000], [100, 200, 400]),
}


def in_a_process(axis: str, size: int, folder: str) -> Costs:
    os.environ["LAKEBED_CACHE_DIR"] = str(Path(folder, "cache"))
    return AXES[axis][0](size, Path(folder))


def exponent(sizes: list[int], costs: list[float]) -> float:
    logs = np.log(np.maximum(np.array(costs[-3:]), 1e-9))
    return float(np.polyfit(np.log(np.array(sizes[-3:], float)), logs, 1)[0])


def draw(found: dict[str, tuple[list[int], dict[str, list[float]]]], file: str) -> None:
    from lakebed.notebook import new_figure

    figure = new_figure(4.2 * len(found), 6)
    for at, (axis, (sizes, costs)) in enumerate(found.items()):
        panel = figure.add_subplot(1, len(found), at + 1)
        for number, (name, values) in enumerate(costs.items()):
            panel.plot(sizes, values, "-" if number < 10 else "--", marker="o", markersize=3, label=name)
        panel.set(xscale="log", yscale="log", xlabel=axis, ylabel="milliseconds, or as named" if at == 0 else None)
        panel.legend(fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.15), frameon=False)
    figure.savefig(file, dpi=80)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("axes", nargs="*", choices=[*AXES, []], default=[])
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--largest", type=int, default=10**9, help="leave out sizes above this")
    parser.add_argument("--png", help="a picture of all curves")
    args = parser.parse_args()
    found: dict[str, tuple[list[int], dict[str, list[float]]]] = {}
    for axis in args.axes or list(AXES):
        _, sizes, quick = AXES[axis]
        sizes = [size for size in (quick if args.quick else sizes) if size <= args.largest]
        points: list[Costs] = []
        for size in sizes:
            with tempfile.TemporaryDirectory() as folder, multiprocessing.get_context("spawn").Pool(1) as pool:
                points.append(pool.apply(in_a_process, (axis, size, folder)))
        costs = {name: [point[name] for point in points] for name in points[0]}
        found[axis] = sizes, costs
        rows: list[list[object]] = [[name, *values, exponent(sizes, values)] for name, values in costs.items()]
        table(f"By {axis}", ["milliseconds", *(f"{size:,}" for size in sizes), "exponent"], rows)
    if args.png:
        draw(found, args.png)


if __name__ == "__main__":
    main()
