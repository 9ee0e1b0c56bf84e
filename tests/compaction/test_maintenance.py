"""Maintenance of one table, by a thread or a query: it follows the log, and starts again when it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pytest

import lakebed
from lakebed.compaction import maintenance_query, table_maintainer
from lakebed.compaction.maintenance import ONE_TABLE_LOOK_SECONDS, Maintenance
from lakebed.compaction.maintenance_query import MaintenanceQuery
from lakebed.compaction.scheduler import ScheduledJob
from lakebed.errors import Corrupt, Retry, StoreUnavailable, Unexpected
from lakebed.failures import UNKNOWN_FAILURES_MAX
from lakebed.table import internals_of
from tests.internals import log_of
from tests.stepping import Steps
from tests.threads import ThreadsSince

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> lakebed.Table:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("lakebed.failures.PAUSE_SECONDS_MAX", 0.01)
    return lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])


class Query:
    """In place of a streaming query of Spark: a batch now and then, until one fails or it is stopped."""

    def __init__(self, each_batch: Callable[[Any, int], None]) -> None:
        self.isActive, self.fails_itself = True, ""
        self._each_batch, self._failure = each_batch, ""
        self._triggers = table_maintainer.Scheduler("query", 1)  # stepped, if the maintainer's are
        self._triggers.wake(ScheduledJob(self._trigger))

    def _trigger(self) -> float | None:
        try:
            if self.isActive and not self.fails_itself:
                self._each_batch(MagicMock(), 0)
                return 0.01
        except Exception as error:  # Spark shows it with its notes
            self._failure = "\n".join((str(error), *getattr(error, "__notes__", ())))
        self.isActive = False
        return None

    def exception(self) -> Exception | None:
        failure = self.fails_itself or self._failure
        return RuntimeError(failure) if failure else None

    def stop(self) -> None:
        self.isActive = False


@pytest.fixture(params=[True, False], ids=["query", "thread"])
def as_query(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(maintenance_query, "_LOOK_SECONDS", 0.01)
    return bool(request.param)


@contextmanager
def maintained(
    table: lakebed.Table,
    step: Callable[[], None] | None = None,
    spark_runs: Callable[[], bool] = lambda: True,
    look_seconds: tuple[float, float] = ONE_TABLE_LOOK_SECONDS,
    as_query: bool = False,
) -> Iterator[Maintenance]:
    duties = internals_of(table).duties()
    duties = replace(duties, step=step or duties.step, spark_runs=spark_runs)
    maintenance = MaintenanceQuery(duties, Query) if as_query else Maintenance(duties, look_seconds)  # type: ignore[arg-type]
    try:
        yield maintenance
    finally:
        maintenance.stop()


def changes(number: int) -> pa.Table:
    return pa.table({"id": [number], "v": [number]}, SCHEMA)


def is_settled(table: lakebed.Table) -> bool:
    return not log_of(table).refresh().tail


def test_it_settles_what_this_process_and_others_commit_and_stops_in_order(
    table: lakebed.Table, steps: Steps, as_query: bool
) -> None:
    with maintained(table, as_query=as_query) as maintenance:
        for writer in (table, lakebed.open(table.path)):
            writer.apply(changes(1))
            steps.run_until(lambda: is_settled(table))
        assert maintenance.isActive and maintenance.trouble is None
        assert maintenance.awaitTermination(0.01) is False
    assert not maintenance.isActive and maintenance.exception() is None and maintenance.awaitTermination() is None
    assert not table.status().findings


def test_a_batch_of_this_process_is_settled_without_a_look_at_the_log(table: lakebed.Table, steps: Steps) -> None:
    looks: list[int] = []

    def step() -> None:
        internals_of(table).step()
        looks.append(1)

    with maintained(table, step, look_seconds=(3600.0, 3600.0)):
        steps.run()
        assert len(looks) == 1
        table.apply(changes(1))
        steps.run()
        assert len(looks) > 1 and is_settled(table)


def test_an_error_that_may_pass_is_seen_and_outlived(table: lakebed.Table, steps: Steps, as_query: bool) -> None:
    errors = [Retry("no answer"), Unexpected("a job failed"), RuntimeError("Python worker failed to connect back")]
    seen: list[str] = []

    def step() -> None:
        seen.extend(finding.what for finding in table.status().findings)
        if errors:
            raise errors.pop()
        internals_of(table).step()

    with maintained(table, step, as_query=as_query) as maintenance:
        table.apply(changes(1))
        steps.run_until(lambda: is_settled(table))
        assert maintenance.isActive and maintenance.trouble is None
    for text in ("no answer", "a job failed", "did not start in time"):
        assert any(text in what for what in seen), text


def test_an_error_that_never_passes_ends_it_with_its_merges(table: lakebed.Table, as_query: bool) -> None:
    def step() -> None:
        raise Corrupt("the file x is missing")

    threads = ThreadsSince()
    with maintained(table, step, as_query=as_query) as maintenance:
        with pytest.raises(Corrupt):
            maintenance.awaitTermination()
        assert not maintenance.isActive and isinstance(maintenance.exception(), Corrupt)
        assert {finding.check for finding in table.status().findings} == {"query"}
        assert not threads.named("lakebed-merge")


def test_a_log_that_can_not_be_read_ends_it(table: lakebed.Table, steps: Steps, as_query: bool) -> None:
    with maintained(table, as_query=as_query) as maintenance:
        table.apply(changes(1))
        steps.run_until(lambda: is_settled(table))
        newest = Path(table.path, "_delta_log", f"{table.version + 1:020d}.json")
        newest.write_bytes(b"{}\n{")
        steps.run_until(lambda: not maintenance.isActive)
        with pytest.raises(Corrupt):
            maintenance.awaitTermination()
        assert not maintenance.isActive and "query" in {finding.check for finding in table.status().findings}
        assert maintenance.query is None or maintenance.query.exception() is not None, "the query failed too"


def test_an_error_that_nobody_knows_ends_it_after_some_tries(table: lakebed.Table, as_query: bool) -> None:
    tries: list[int] = []

    def step() -> None:
        tries.append(1)
        raise ZeroDivisionError("of a user's function")

    with (
        maintained(table, step, as_query=as_query) as maintenance,
        pytest.raises(Unexpected, match="of a user's function"),
    ):
        maintenance.awaitTermination()
    assert len(tries) == UNKNOWN_FAILURES_MAX + 1


def test_it_ends_with_the_spark_session(table: lakebed.Table, as_query: bool) -> None:
    runs = [True]
    with maintained(table, spark_runs=lambda: runs[0], as_query=as_query) as maintenance:
        runs[0] = False
        assert maintenance.awaitTermination() is None and maintenance.exception() is None


def test_a_query_that_spark_ends_starts_again_where_it_was_each_time(table: lakebed.Table, steps: Steps) -> None:
    with maintained(table, as_query=True) as maintenance:
        for number in range(2):
            query = maintenance.query
            assert isinstance(query, Query)
            query.fails_itself = "s3a://lake: Unable to execute HTTP request: no route to host"
            steps.run_until(lambda: maintenance.trouble is not None)
            assert isinstance(maintenance.trouble, StoreUnavailable) and maintenance.isActive
            table.apply(changes(number))
            steps.run_until(lambda: is_settled(table))
            assert maintenance.query is not query and maintenance.trouble is None


def test_a_query_that_is_stopped_from_outside_ends_the_maintenance_and_its_merges(
    table: lakebed.Table, steps: Steps
) -> None:
    with maintained(table, as_query=True) as maintenance:
        assert maintenance.query is not None
        maintenance.query.stop()
        steps.run_until(lambda: not maintenance.isActive)
        assert maintenance.exception() is None
        assert not table.status().findings


def test_a_cycle_that_a_stop_from_outside_cancels_is_no_failure(table: lakebed.Table, steps: Steps) -> None:
    def step() -> None:
        query.stop()
        raise StoreUnavailable("the job was cancelled")

    with maintained(table, step, as_query=True) as maintenance:
        query = maintenance.query
        assert isinstance(query, Query)
        steps.run_until(lambda: not query.isActive)
        assert query.exception() is None
        steps.run_until(lambda: not maintenance.isActive)
        assert maintenance.exception() is None


def test_a_query_that_can_not_start_is_an_error_at_once_unless_that_passes(table: lakebed.Table, steps: Steps) -> None:
    failures: list[Exception] = [Retry("no answer"), Corrupt("the checkpoint is damaged")]

    def start(each_batch: Callable[[Any, int], None]) -> Any:
        if failures:
            raise failures.pop()
        return Query(each_batch)

    with pytest.raises(Corrupt, match="checkpoint is damaged"):
        MaintenanceQuery(internals_of(table).duties(), start)
    maintenance = MaintenanceQuery(internals_of(table).duties(), start)
    assert maintenance.query is None and isinstance(maintenance.trouble, Retry)
    steps.run_until(lambda: maintenance.query is not None)
    maintenance.stop()
