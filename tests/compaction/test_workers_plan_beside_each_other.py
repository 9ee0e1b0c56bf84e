"""Planning holds nobody up: neither who settles meanwhile, nor other workers, and no two of these take the same part."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.compaction.compaction import LocalKernel
from lakebed.compaction.merge import Merger
from lakebed.compaction.merge_runner import MergeRunner
from lakebed.compaction.merge_values import PlanningView
from lakebed.log.claims import claimed_paths
from lakebed.log.snapshot import Snapshot
from lakebed.planning.plan import Goal, Planning
from lakebed.planning.planner import plan
from lakebed.sortkey.statistics_cache import StatisticsCache
from tests.internals import deletion_vectors_of, log_of, storage_of
from tests.planning.tables import MB, ORDERED, part, table

SECONDS_MAX = 60.0


@dataclass
class HeldPlanner:
    """Plans, and does not return until it may."""

    begun: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    may_end: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    calls: int = 0

    def __call__(
        self,
        snapshot: Snapshot,
        taken: Collection[str],
        now_ms: int,
        in_flight_bytes: int,
        reads: Mapping[str, int],
        goal: Goal,
    ) -> Planning:
        self.calls += 1
        planning = plan(snapshot, taken, now_ms, in_flight_bytes, reads, goal)
        self.begun.release()
        assert self.may_end.acquire(timeout=SECONDS_MAX)
        return planning


@dataclass
class StillLog:
    """A log with one version."""

    snapshot: Snapshot
    statistics: StatisticsCache = field(default_factory=StatisticsCache)

    def refresh(self) -> Snapshot:
        return self.snapshot

    @property
    def newest(self) -> Snapshot:
        return self.snapshot


class NoMerger:
    replica = "test"

    def views(self, snapshot: Snapshot, now_ms: int) -> list[PlanningView]:
        return [PlanningView(snapshot=snapshot, claimed=claimed_paths(snapshot, now_ms))]


def compactor_of(counts: Mapping[str, int], planner: HeldPlanner | None = None, **settings: str) -> MergeRunner:
    """Of a table with so many parts in each partition; nine lie deeper than its read budget."""
    parts = [
        part(f"{region}-{number}", 0, 100, 28 * MB, partition_values={"region": region})
        for region, count in counts.items()
        for number in range(count)
    ]
    snapshot = table(parts, ORDERED, partition_by=("region",), properties=settings)
    nothing: Any = None
    return MergeRunner("test", StillLog(snapshot), NoMerger(), nothing, planner=planner)  # type: ignore[arg-type]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def test_settling_and_looking_go_on_while_a_plan_is_made(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    orders = lakebed.create(tmp_path / "orders", pa.schema([("id", pa.int64())]), keys=["id"])
    orders.apply(pa.table({"id": [1]}))
    planner = HeldPlanner()
    merger = Merger(log_of(orders), storage_of(orders), deletion_vectors_of(orders), "test")
    kernel = LocalKernel(storage_of(orders), log_of(orders).refresh)
    merge_runner = MergeRunner(orders.path, log_of(orders), merger, kernel, planner=planner)
    planned = pool.submit(merge_runner.next_plan)
    try:
        assert planner.begun.acquire(timeout=SECONDS_MAX)
        assert pool.submit(orders.settle).result(SECONDS_MAX).commits == 1
        pool.submit(merge_runner.wake).result(SECONDS_MAX)
        assert pool.submit(merge_runner.running).result(SECONDS_MAX) == []
        assert pool.submit(merge_runner.parked).result(SECONDS_MAX) == frozenset()
        assert planner.calls == 1, "the plan is being made still"
        planner.may_end.release()
        assert planned.result(SECONDS_MAX) is None
    finally:
        planner.may_end.release(1000)
        merge_runner.close()


def test_two_workers_that_plan_at_once_take_different_parts(pool: ThreadPoolExecutor) -> None:
    planner = HeldPlanner()
    merge_runner = compactor_of({"a": 9, "b": 9}, planner)
    found = [pool.submit(merge_runner.next_plan) for _ in range(2)]
    for _ in found:
        assert planner.begun.acquire(timeout=SECONDS_MAX)
    planner.may_end.release(2)
    jobs = [each.result(SECONDS_MAX) for each in found]
    taken = [path for job in jobs if job is not None for path in job[1].inputs]
    assert len(taken) == len(set(taken)) and {path[0] for path in taken} == {"a", "b"}
    assert planner.calls == 2, "what the second planned was still good"


def test_a_worker_that_others_left_nothing_of_its_plans_plans_again(pool: ThreadPoolExecutor) -> None:
    planner = HeldPlanner()
    merge_runner = compactor_of({"a": 9}, planner)
    found = [pool.submit(merge_runner.next_plan) for _ in range(2)]
    for _ in found:
        assert planner.begun.acquire(timeout=SECONDS_MAX)
    planner.may_end.release(3)
    jobs = [each.result(SECONDS_MAX) for each in found]
    assert jobs.count(None) == 1 and len(merge_runner.running()) == 1
    assert planner.calls == 3


def test_a_plan_of_parts_that_were_merged_while_it_was_made_is_not_run(pool: ThreadPoolExecutor) -> None:
    planner = HeldPlanner()
    merge_runner = compactor_of({"a": 9}, planner)
    slow = pool.submit(merge_runner.next_plan)
    assert planner.begun.acquire(timeout=SECONDS_MAX)
    planner_of_slow, merge_runner._planner = planner, plan
    job = merge_runner.next_plan()
    assert job is not None
    merge_runner.release(job[0])
    merge_runner._log.snapshot = table([part("a-10", 0, 100)])  # type: ignore[attr-defined]
    planner_of_slow.may_end.release()
    assert slow.result(SECONDS_MAX) is None


def test_what_others_have_in_flight_counts_for_a_plan_that_was_made_before(pool: ThreadPoolExecutor) -> None:
    planner = HeldPlanner()
    merge_runner = compactor_of({"a": 9, "b": 9, "c": 9}, planner, **{"lakebed.plan_bytes_max": str(256 * MB)})
    slow = pool.submit(merge_runner.next_plan)
    assert planner.begun.acquire(timeout=SECONDS_MAX)
    merge_runner._planner, held = plan, planner
    jobs = [merge_runner.next_plan(), merge_runner.next_plan()]
    assert None not in jobs, "twice lakebed.plan_bytes_max may be in flight"
    planned = held.calls
    planner.may_end.release()
    assert slow.result(SECONDS_MAX) is None and planned == 1
    assert len(merge_runner.running()) == 2
