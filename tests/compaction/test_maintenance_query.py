"""Maintenance as a streaming query of a real Spark: it is seen, counts, fails, stops and goes on as a query does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.listener import (
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

import lakebed
from lakebed.compaction.maintenance import Maintenance
from lakebed.compaction.maintenance_query import OBSERVATION
from lakebed.errors import Corrupt
from lakebed.failures import failure_of
from lakebed.table import internals_of
from tests.internals import log_of
from tests.oracle import Oracle, in_order
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
ROWS = 20


@pytest.fixture
def table(tmp_path: Path) -> lakebed.Table:
    properties = {"lakebed.settle_after_changes": "1", "lakebed.read_budget": "1"}
    return lakebed.create(tmp_path / "t", SCHEMA, keys=["id"], properties=properties)


@contextmanager
def maintained(table: lakebed.Table, spark: SparkSession, tmp_path: Path) -> Iterator[Maintenance]:
    place = str(tmp_path / "checkpoint")
    maintenance = table.maintain(spark, as_query=True, trigger_seconds=0.05, checkpoint=place)
    try:
        yield maintenance
    finally:
        maintenance.stop()


def apply(table: lakebed.Table, oracle: Oracle, value: int) -> None:
    rows = [{"id": value + row, "v": value, "op": "u"} for row in range(ROWS)]
    table.apply(rows, apply_as_deletes="op = 'd'")
    oracle.apply(rows)


def is_settled(table: lakebed.Table) -> bool:
    return not log_of(table).refresh().tail


def query_of(maintenance: Maintenance) -> Any:
    assert maintenance.query is not None
    return maintenance.query


def metrics(maintenance: Maintenance, into: dict[int, Any]) -> Callable[[], dict[int, Any]]:
    """What the batches of the query counted, by their numbers."""

    def look() -> dict[int, Any]:
        into.update({one.batchId: one.observedMetrics[OBSERVATION] for one in query_of(maintenance).recentProgress})
        return into

    return look


def test_it_is_a_query_with_progress_a_checkpoint_and_an_end_and_a_replayed_batch_does_no_harm(
    table: lakebed.Table, spark: SparkSession, tmp_path: Path
) -> None:
    oracle = Oracle(("id",), tuple(SCHEMA.names))
    seen: dict[int, Any] = {}
    with maintained(table, spark, tmp_path) as maintenance:
        query, look = query_of(maintenance), metrics(maintenance, seen)
        assert query.id in {one.id for one in spark.streams.active} and query.name == f"maintain {table.path}"
        for value in range(3):
            apply(table, oracle, value)
            wait_until(partial(is_settled, table), lambda: str(query.exception()))
        wait_until(lambda: sum(each.settled_rows for each in look().values()) >= 3 * ROWS)
        wait_until(lambda: sum(each.merged_bytes for each in look().values()) > 0)
    assert not query.isActive and not maintenance.isActive and query.exception() is None
    assert sum(each.settled_rows for each in seen.values()) == 3 * ROWS, "each commit counts once"
    newest, before = max(seen), table.version
    for name in (f"{newest}", f".{newest}.crc"):  # as if the process was killed in this batch
        (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    apply(table, oracle, 9)
    with maintained(table, spark, tmp_path) as again:
        wait_until(partial(is_settled, table), lambda: str(query_of(again).exception()))
        replayed: dict[int, Any] = {}
        wait_until(lambda: newest in metrics(again, replayed)())
        assert query_of(again).id == query.id and replayed[newest] == seen[newest]
        wait_until(lambda: sum(each.settled_rows for each in metrics(again, replayed)().values()) >= ROWS)
    assert in_order(table.to_arrow().to_pylist()) == in_order(oracle.rows())
    assert "settle" in log_kinds(table, before)


def test_an_error_fails_the_query_and_ends_the_maintenance_and_so_does_a_stop_from_outside(
    table: lakebed.Table, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with maintained(table, spark, tmp_path) as stopped:
        query_of(stopped).stop()
        assert stopped.awaitTermination() is None and stopped.exception() is None

    def step() -> None:
        raise Corrupt("the file x is missing")

    monkeypatch.setattr(internals_of(table), "step", step)
    with maintained(table, spark, tmp_path) as maintenance:
        with pytest.raises(Corrupt, match="the file x is missing"):
            maintenance.awaitTermination()
        query = query_of(maintenance)
        wait_until(lambda: not query.isActive)
        assert isinstance(failure_of(query, "maintain"), Corrupt) and "the file x is missing" in str(query.exception())
        assert {finding.check for finding in table.status().findings} == {"query"}


class Listener(StreamingQueryListener):
    """What a user's listener hears, in order: of all queries of the session."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def onQueryStarted(self, event: Any) -> None:
        self.heard.append(event)

    def onQueryProgress(self, event: Any) -> None:
        self.heard.append(event.progress)

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        self.heard.append(event)

    def of(self, query: Any) -> list[Any]:
        return [one for one in self.heard if str(one.id) == query.id]

    def counted(self, query: Any) -> list[Any]:
        return [one.observedMetrics[OBSERVATION] for one in self.of(query) if hasattr(one, "observedMetrics")]


@pytest.mark.long
def test_a_listener_hears_that_it_starts_what_it_counts_and_how_it_ends(
    table: lakebed.Table, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    oracle, listener = Oracle(("id",), tuple(SCHEMA.names)), Listener()
    spark.streams.addListener(listener)
    try:
        with maintained(table, spark, tmp_path) as maintenance:
            query = query_of(maintenance)
            for value in range(3):
                apply(table, oracle, value)
                wait_until(partial(is_settled, table), lambda: str(query.exception()))
            wait_until(lambda: sum(each.settled_rows for each in listener.counted(query)) >= 3 * ROWS)
            wait_until(lambda: sum(each.merged_bytes for each in listener.counted(query)) > 0)
            wait_until(
                lambda: max(each.version for each in listener.counted(query)) >= 6
            )  # three changes, three settles
        wait_until(lambda: isinstance(listener.of(query)[-1], QueryTerminatedEvent))
        started, *_, ended = heard = listener.of(query)
        assert isinstance(started, QueryStartedEvent) and started.name == f"maintain {table.path}"
        assert ended.exception is None
        assert [type(one) for one in heard[1:-1]] == [StreamingQueryProgress] * (len(heard) - 2)
        assert sum(each.settled_rows for each in listener.counted(query)) == 3 * ROWS, "each commit counts once"

        def step() -> None:
            raise Corrupt("the file x is missing")

        monkeypatch.setattr(internals_of(table), "step", step)
        with maintained(table, spark, tmp_path) as failing:
            again = query_of(failing)
            wait_until(lambda: len([one for one in listener.of(again) if isinstance(one, QueryTerminatedEvent)]) == 2)
        assert again.id == query.id and "the file x is missing" in listener.of(again)[-1].exception
    finally:
        spark.streams.removeListener(listener)


def test_on_a_local_master_a_thread_is_the_default(table: lakebed.Table, spark: SparkSession) -> None:
    maintenance = table.maintain(spark)
    assert maintenance.query is None and maintenance.isActive
    maintenance.stop()


def log_kinds(table: lakebed.Table, after: int) -> set[str]:
    operations = table.inspect.timeline(1_000).to_pylist()
    return {str(one["operation"]).lower() for one in operations if one["version"] > after}
