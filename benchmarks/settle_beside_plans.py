"""What settling takes while merges are planned: rounds of maintenance of a table of many parts, alone and beside a merge_runner.

    python -m benchmarks.settle_beside_plans [--parts 100000] [--rounds 40]

A round is what maintenance does after a commit: settle what came, then tell the merge_runner, which plans again. The files of the
parts are not there: keys are looked up in none of them, and no plan is run. No checkpoint is written. Rounds go on until a few
plans have been made.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Collection, Mapping
from pathlib import Path

import pyarrow as pa

import lakebed
from benchmarks.scrape import one
from benchmarks.workload import median, p95, table
from lakebed.compaction.merge_runner import MergeRunner
from lakebed.compaction.scheduler import ScheduledJob, Scheduler
from lakebed.compaction.settle import settle
from lakebed.log.actions import AddPart, CommitInfo, Part
from lakebed.log.conflicts import BLIND
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import Committed
from lakebed.parts.changes import WriteSpec
from lakebed.planning.plan import Planning
from lakebed.planning.planner import plan
from lakebed.resolve.locate import ScanLocator, lookup_schema
from lakebed.table import internals_of

PLANS_MIN = 3
SCHEMA = pa.schema([("key", pa.int64())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args()
    rows: list[list[object]] = []
    with tempfile.TemporaryDirectory() as folder:
        lake = filled(Path(folder, "orders"), args.parts)
        for workers in (0, 1):
            settles, plans = measured(lake, workers, args.rounds)
            what = "beside plans" if workers else "alone"
            plan_ms = f"{median(plans):,.0f}" if plans else ""
            rows.append([what, median(settles), p95(settles), max(settles), len(plans), plan_ms])
    title = f"A round of settling, {args.parts:,} parts, milliseconds"
    table(title, ["", "median", "p95", "longest", "plans", "a plan, median"], rows)


def filled(folder: Path, parts: int) -> lakebed.Table:
    lake = lakebed.create(folder, SCHEMA, keys=["key"], properties={"lakebed.checkpoint_interval": "10000"})
    rng, log = random.Random(1), internals_of(lake).log
    added = [AddPart(one(rng, number)) for number in range(parts)]
    assert isinstance(log.commit(log.refresh(), added, CommitInfo(operation="WRITE", commit_id=""), BLIND), Committed)
    return lake


def measured(lake: lakebed.Table, workers: int, rounds: int) -> tuple[list[float], list[float]]:
    """Milliseconds of rounds and of plans."""
    plans: list[float] = []
    inside = internals_of(lake)

    def planned(
        snapshot: Snapshot, taken: Collection[str], now_ms: int, in_flight_bytes: int, reads: Mapping[str, int]
    ) -> Planning:
        started = time.perf_counter()
        plan(snapshot, taken, now_ms, in_flight_bytes, reads, inside.log.statistics)
        plans.append((time.perf_counter() - started) * 1000)
        return Planning()

    merging = inside.compaction
    merge_runner = MergeRunner(lake.path, inside.log, merging.merger(), merging.local_kernel(), planner=planned)
    scheduler = Scheduler("merge", max(1, workers))
    jobs = [ScheduledJob(lambda: merge_runner.next_plan() and None) for _ in range(workers)]
    plan(inside.log.refresh(), (), 0, statistics=inside.log.statistics)
    settles: list[float] = []
    while len(settles) < rounds or len(plans) < PLANS_MIN * workers:
        lake.apply(pa.table({"key": [10**9 + len(settles)]}))
        started = time.perf_counter()
        _settle(lake)
        for job in jobs:
            scheduler.wake(job)
        settles.append((time.perf_counter() - started) * 1000)
        time.sleep(0.05)
    scheduler.close(60)
    return settles, plans


def _settle(lake: lakebed.Table) -> None:
    inside = internals_of(lake)
    done = settle(inside.log, inside.storage, inside.deletion_vectors, Nowhere, lambda part, records: None)
    assert done.commits == 1


class Nowhere(ScanLocator):
    """Knows no key."""

    def __init__(self, spec: WriteSpec) -> None:
        self.spec = spec

    def lookup(self, base: Mapping[str, Part], keys: pa.Table) -> pa.Table:
        return lookup_schema(self.spec).empty_table()


if __name__ == "__main__":
    main()
