"""Which merges go to a cluster, how many at a time, and what becomes of them if it fails, on a stand-in for Spark.

``tests/cluster/test_merges_of_a_fleet.py`` has the same on a real one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed import events
from lakebed.compaction.compaction import SparkKernel
from lakebed.compaction.maintenance import TableMaintainers
from lakebed.compaction.merge_runner import MergeRunner, OnCluster
from lakebed.compaction.merge_values import no_progress
from lakebed.coordination.failing import failing_of
from lakebed.errors import Cancelled, ClusterUnavailable, Corrupt
from lakebed.log.actions import Domain
from lakebed.log.claims import claims_of
from lakebed.log.entries import CLAIM
from lakebed.sparks import cluster as clusters
from lakebed.sparks.cluster import Cluster, require_master
from lakebed.table import internals_of
from tests.internals import compaction_of, log_of, storage_of
from tests.waiting import wait_until

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("day", pa.string()), ("v", pa.string())])


@dataclass
class Work:
    """A data set of one item; the task runs in the thread that collects."""

    session: Session
    items: Any

    def mapPartitions(self, task: Callable[[Iterator[Any]], Iterator[Any]]) -> Work:
        return Work(self.session, lambda: task(iter(self.items)))

    def collect(self) -> list[Any]:
        found = list(self.items())
        self.session.at_work(1)
        try:
            self.session.during(found)
        finally:
            self.session.at_work(-1)
        return found


@dataclass
class Session:
    """A session, its context and its Java in one. ``during``: what happens between a task's end and its job's."""

    during: Callable[[list[Any]], object] = lambda found: None
    cores: int = 2
    executors: int = 2
    has_stopped: bool = False
    running: int = 0
    most: int = 0
    cancelled: set[str] = field(default_factory=set)
    tags: threading.local = field(default_factory=threading.local)
    lock: Any = field(default_factory=threading.Lock)
    master: str = "spark://stand-in:7077"

    @property
    def sparkContext(self) -> Session:
        return self

    _jsc = sparkContext

    def sc(self) -> Session:
        return self

    def isStopped(self) -> bool:
        return self.has_stopped

    def isLocal(self) -> bool:
        return False

    def getExecutorMemoryStatus(self) -> Session:
        return self

    def size(self) -> int:
        return self.executors + 1

    @property
    def defaultParallelism(self) -> int:
        return self.cores

    def addJobTag(self, tag: str) -> None:
        self.tags.tag = tag

    def removeJobTag(self, tag: str) -> None:
        assert self.tags.tag == tag
        self.tags.tag = None

    def setInterruptOnCancel(self, does: bool) -> None:
        assert does

    def cancelJobsWithTag(self, tag: str) -> None:
        self.cancelled.add(tag)

    def parallelize(self, items: Iterable[Any], slices: int) -> Work:
        return Work(self, list(items))

    def at_work(self, change: int) -> None:
        with self.lock:
            self.running += change
            self.most = max(self.most, self.running)

    def wait_for_cancel(self, found: list[Any]) -> None:
        tag = self.tags.tag
        wait_until(lambda: tag in self.cancelled)
        raise RuntimeError("Job was cancelled")


@pytest.fixture(autouse=True)
def quick(own_cache: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "_LOOK_SECONDS", 0.02)


def cluster_of(session: Session, **settings: Any) -> Cluster:
    return Cluster(lambda: session, is_ours=False, **settings)  # type: ignore[arg-type, return-value]


def deep(path: Path, days: int = 1, rows: int = 3) -> lakebed.Table:
    """A table with a merge due in each partition."""
    table = lakebed.create(
        path,
        SCHEMA,
        keys=["id", "day"],
        partition_by=["day"],
        properties={"lakebed.read_budget": "2", "lakebed.recluster_depth": "1"},
    )
    for batch in range(4):
        each = [(row * 4 + batch, str(day), "v" * 100) for day in range(days) for row in range(rows)]
        table.apply(pa.table(dict(zip(SCHEMA.names, map(list, zip(*each, strict=True)), strict=True)), SCHEMA))
        table.settle()
    return table


def merge_runner(table: lakebed.Table, cluster: Cluster) -> MergeRunner:
    inside = compaction_of(table)
    kernel = SparkKernel(cluster, table.path, log_of(table).refresh)
    return MergeRunner(
        table.path, log_of(table), inside.merger(), inside.local_kernel(), on_cluster=OnCluster(cluster, kernel)
    )


def engines(table: lakebed.Table) -> list[str]:
    log = log_of(table)
    found = [log.read_commit(version) for version in range(1, log.refresh().version + 1)]
    return [
        str(each.info.parameters["engine"]) for each in found if each and each.info and "engine" in each.info.parameters
    ]


def claims_at_once(table: lakebed.Table) -> int:
    """How many claims were in the log at a time, at most."""
    log, held, most = log_of(table), set[str](), 0
    for version in range(1, log.refresh().version + 1):
        commit = log.read_commit(version)
        assert commit is not None
        for entry in commit.actions:
            if isinstance(entry, Domain) and entry.domain.startswith(CLAIM):
                (held.discard if entry.removed else held.add)(entry.domain)
        most = max(most, len(held))
    return most


def test_what_is_large_goes_to_the_cluster_and_what_is_small_does_not(tmp_path: Path) -> None:
    session, table = Session(), deep(tmp_path / "t")
    bytes_in = sum(part.bytes for part in log_of(table).refresh().parts.values())
    merge_runner(table, cluster_of(session, bytes_min=bytes_in + 1)).run_until_idle()
    assert engines(table) == ["process"] and session.most == 0
    large = deep(tmp_path / "large")
    merge_runner(large, cluster_of(session, bytes_min=bytes_in)).run_until_idle()
    assert engines(large) == ["spark"] and session.most == 1


def test_no_session_begins_as_long_as_nothing_is_large(tmp_path: Path) -> None:
    def begin() -> Any:
        raise AssertionError("nobody needs it")

    table = deep(tmp_path / "t")
    merge_runner(table, Cluster(begin)).run_until_idle()
    assert engines(table) == ["process"]


@pytest.mark.parametrize(("cores", "merges_max"), [(2, 16), (3, 16), (8, 2)])
def test_as_many_merges_are_side_by_side_as_there_are_cores_or_as_memory_allows(
    tmp_path: Path, cores: int, merges_max: int
) -> None:
    most = min(cores, merges_max)
    together = threading.Barrier(most)
    session, table = Session(lambda found: together.wait(60), cores), deep(tmp_path / "t", days=2 * most)
    merge_runner(table, cluster_of(session, bytes_min=0, merges_max=merges_max)).run_until_idle()
    assert engines(table) == ["spark"] * 2 * most and session.most == most == claims_at_once(table)


def test_groups_of_a_recluster_are_merged_side_by_side_and_rounds_one_after_another(tmp_path: Path) -> None:
    together = threading.Barrier(2)
    session, table = Session(lambda found: together.wait(60)), deep(tmp_path / "t", days=4)
    reports = []
    compaction_of(table).cluster = cluster_of(session, bytes_min=0)
    result = table.maintenance.recluster(final=True, on_progress=reports.append)
    assert (result.plans, result.rounds, session.most) == (4, 1, 2) and claims_at_once(table) == 2
    assert reports[-1].rows == result.rows == 48 and [each.rows for each in reports] == sorted(
        each.rows for each in reports
    )


def test_a_job_that_is_stopped_cancels_its_tasks_and_leaves_no_claim(tmp_path: Path) -> None:
    session, table = Session(), deep(tmp_path / "t", days=2)
    session.during = session.wait_for_cancel
    compaction_of(table).cluster = cluster_of(session, bytes_min=0)
    files = set(storage_of(table).list("_lakebed/"))
    result = table.maintenance.recluster(stop=lambda: session.most == 2)
    assert not result.finished and result.gave_way == 2 and len(session.cancelled) == 2
    assert not claims_of(log_of(table).refresh().domains) and set(storage_of(table).list("_lakebed/")) == files


def test_a_merge_that_fails_cancels_those_beside_it(tmp_path: Path) -> None:
    session, table = Session(), deep(tmp_path / "t", days=2)
    second = threading.Event()

    def fail_beside(found: list[Any]) -> None:
        if not second.is_set():
            second.set()
            session.wait_for_cancel(found)
        raise Corrupt("this part is damaged")

    session.during = fail_beside
    with pytest.raises(Corrupt, match="damaged"):
        merge_runner(table, cluster_of(session, bytes_min=0)).run_until_idle()
    assert len(session.cancelled) == 1 and not claims_of(log_of(table).refresh().domains)


def test_a_cluster_that_fails_is_no_failure_of_the_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "AWAY_SECONDS", (0.0, 0.0))
    table, tries = deep(tmp_path / "t"), 0
    failed: list[events.MergeFailed] = []

    def begin() -> Any:
        nonlocal tries
        tries += 1
        if tries == 8:  # by then a merge would be parked
            monkeypatch.setattr(clusters, "AWAY_SECONDS", (300.0, 300.0))
        raise ConnectionError("nobody there")

    events.listen(lambda event: failed.append(event) if isinstance(event, events.MergeFailed) else None)
    merge_runner(table, Cluster(begin, name="spark://gone:7077", bytes_min=0)).run_until_idle()
    assert tries == 8 == len(failed) and not any(each.parked for each in failed)
    assert (
        failed[0].error == "the cluster spark://gone:7077 can't be used: nobody there" and failed[0].engine == "spark"
    )
    assert engines(table) == ["process"] and not failing_of(log_of(table).refresh())


def test_a_session_that_ended_is_begun_again_after_a_while_and_merges_stay_in_the_process_until_then(
    tmp_path: Path,
) -> None:
    first, second, now = Session(), Session(), [0.0]

    def end(found: list[Any]) -> None:
        first.has_stopped = True
        raise RuntimeError("SparkContext was shut down")

    first.during = end
    sessions = iter((first, second))
    begin: Any = lambda: next(sessions)  # noqa: E731
    cluster = Cluster(begin, bytes_min=0, is_ours=False, clock=lambda: now[0])
    one, two = deep(tmp_path / "one"), deep(tmp_path / "two")
    merge_runner(one, cluster).run_until_idle()
    assert engines(one) == ["process"] and not cluster.takes(1 << 40)
    now[0] = clusters.AWAY_SECONDS[0]
    merge_runner(two, cluster).run_until_idle()
    assert engines(two) == ["spark"] and second.most == 1


def test_a_cluster_without_executors_is_away_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "NO_EXECUTOR_SECONDS", 0.2)
    session, table = Session(executors=0), deep(tmp_path / "t")
    session.during = session.wait_for_cancel
    merge_runner(table, cluster_of(session, bytes_min=0)).run_until_idle()
    assert engines(table) == ["process"] and session.most == 1


def test_maintenance_goes_on_with_small_merges_while_large_ones_wait_for_spark(tmp_path: Path) -> None:
    go = threading.Event()
    session = Session(lambda found: go.wait(60))
    large, small = deep(tmp_path / "large", rows=2000), deep(tmp_path / "small")
    maintenance = TableMaintainers(threads=1, merges=1)
    cluster = cluster_of(session, bytes_min=1 + sum(part.bytes for part in log_of(small).refresh().parts.values()))
    try:
        maintenance.add(internals_of(large).duties(cluster=cluster))
        wait_until(lambda: session.most == 1)
        maintenance.add(internals_of(small).duties(cluster=cluster))
        wait_until(lambda: engines(small) == ["process"], "the one thread that merges is free")
        assert not maintenance.is_at_rest(large.path)
        go.set()
        wait_until(lambda: engines(large) == ["spark"])
    finally:
        go.set()
        maintenance.stop()


def test_maintenance_that_stops_cancels_its_tasks(tmp_path: Path) -> None:
    session, table = Session(), deep(tmp_path / "t", days=2)
    session.during = session.wait_for_cancel
    maintenance = TableMaintainers()
    maintenance.add(internals_of(table).duties(cluster=cluster_of(session, bytes_min=0)))
    wait_until(lambda: session.most == 2)
    maintenance.stop()
    assert len(session.cancelled) == 2 and engines(table) == []
    wait_until(lambda: not claims_of(log_of(table).refresh().domains))


def test_a_merge_that_waits_for_a_core_can_be_cancelled(tmp_path: Path) -> None:
    def cancel(rows: int) -> None:
        raise Cancelled("stop")

    cluster = cluster_of(Session(cores=1))
    with cluster.slot(no_progress), pytest.raises(Cancelled), cluster.slot(cancel):
        pass


def test_a_closed_cluster_takes_nothing() -> None:
    cluster = cluster_of(Session(), bytes_min=0)
    cluster.close()
    assert not cluster.takes(1)
    with pytest.raises(ClusterUnavailable, match="not used any more"):
        cluster.session()


@pytest.mark.parametrize(
    "master", ["spark://127.0.0.1:1", "spark://127.0.0.1:1,127.0.0.1:2", "spark://127.0.0.1", "spark://"]
)
def test_a_master_that_does_not_answer_is_named(master: str) -> None:
    with pytest.raises(ClusterUnavailable, match=f"no Spark master answers at {master}: "):
        require_master(master)


def test_masters_of_other_kinds_are_left_to_spark() -> None:
    require_master("yarn")
    require_master("k8s://https://nowhere:443")
