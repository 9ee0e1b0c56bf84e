"""The merge as a Spark task, on a stand-in for Spark that sends the task as Spark does: pickled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

import lakebed
from lakebed.compaction.compaction import SparkKernel
from lakebed.compaction.merge_values import MergeOutcome, no_progress
from lakebed.errors import Cancelled
from lakebed.sparks.cluster import Cluster
from tests.internals import compaction_of, log_of

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


@dataclass
class StandIn:
    """A session, its context and a data set in one; it can't be pickled, as a session can't."""

    items: list[Any] = field(default_factory=list)
    jobs: int = 0

    master: str = "spark://nowhere:7077"
    defaultParallelism: int = 2

    @property
    def sparkContext(self) -> StandIn:
        return self

    @property
    def _jsc(self) -> StandIn:
        return self

    def sc(self) -> StandIn:
        return self

    def isStopped(self) -> bool:
        return False

    def isLocal(self) -> bool:
        return True

    def addJobTag(self, tag: str) -> None:
        self.tag = tag

    def removeJobTag(self, tag: str) -> None:
        assert tag == self.tag

    def setInterruptOnCancel(self, does: bool) -> None:
        assert does

    def parallelize(self, items: Iterable[Any], slices: int) -> StandIn:
        self.items, self.jobs = list(items), self.jobs + 1
        return self

    def mapPartitions(self, work: Callable[[Iterator[Any]], Iterator[Any]]) -> StandIn:
        self.items = list(cloudpickle.loads(cloudpickle.dumps(work))(iter(self.items)))
        return self

    def collect(self) -> list[Any]:
        return self.items

    def __reduce__(self) -> Any:
        raise TypeError("a session stays where it is")


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> lakebed.Table:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    table = lakebed.create(tmp_path / "table", SCHEMA, keys=["id"])
    for number in range(3):
        table.apply(pa.table({"id": [number, number + 10], "v": ["a", "b"]}))
        table.settle()
    return table


def merge(table: lakebed.Table, spark: StandIn, progress: Callable[[int], None] = no_progress) -> MergeOutcome:
    kernel = SparkKernel(Cluster.of(spark), table.path, log_of(table).refresh)  # type: ignore[arg-type]
    parts = sorted(log_of(table).refresh().parts)
    return compaction_of(table).merger().run(parts, 1, kernel, progress=progress).outcome


def test_a_task_merges_the_parts_and_the_rows_stay(table: lakebed.Table) -> None:
    spark = StandIn()
    assert merge(table, spark) is MergeOutcome.COMPLETED and spark.jobs == 1
    assert len(log_of(table).refresh().parts) == 1
    assert sorted(table.to_arrow()["id"].to_pylist()) == [0, 1, 2, 10, 11, 12]


def test_a_merge_that_is_cancelled_before_it_begins_starts_no_job(table: lakebed.Table) -> None:
    def cancel(rows: int) -> None:
        raise Cancelled("stop")

    spark = StandIn()
    with pytest.raises(Cancelled):
        merge(table, spark, cancel)
    assert spark.jobs == 0 and len(log_of(table).refresh().parts) == 3
