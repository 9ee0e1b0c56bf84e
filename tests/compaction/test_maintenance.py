"""Maintenance of one table: it follows the log, and starts again when it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.compaction.maintenance import ONE_TABLE_LOOK_SECONDS, Maintenance
from lakebed.errors import Corrupt, Retry, Unexpected
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


@contextmanager
def maintained(
    table: lakebed.Table,
    step: Callable[[], None] | None = None,
    spark_runs: Callable[[], bool] = lambda: True,
    look_seconds: tuple[float, float] = ONE_TABLE_LOOK_SECONDS,
) -> Iterator[Maintenance]:
    duties = internals_of(table).duties()
    maintenance = Maintenance(replace(duties, step=step or duties.step, spark_runs=spark_runs), look_seconds)
    try:
        yield maintenance
    finally:
        maintenance.stop()


def changes(number: int) -> pa.Table:
    return pa.table({"id": [number], "v": [number]}, SCHEMA)


def is_settled(table: lakebed.Table) -> bool:
    return not log_of(table).refresh().tail


def test_it_settles_what_this_process_and_others_commit_and_stops_in_order(table: lakebed.Table, steps: Steps) -> None:
    with maintained(table) as maintenance:
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


def test_an_error_that_may_pass_is_seen_and_outlived(table: lakebed.Table, steps: Steps) -> None:
    errors = [Retry("no answer"), Unexpected("a job failed"), RuntimeError("Python worker failed to connect back")]
    seen: list[str] = []

    def step() -> None:
        seen.extend(finding.what for finding in table.status().findings)
        if errors:
            raise errors.pop()
        internals_of(table).step()

    with maintained(table, step) as maintenance:
        table.apply(changes(1))
        steps.run_until(lambda: is_settled(table))
        assert maintenance.isActive and maintenance.trouble is None
    for text in ("no answer", "a job failed", "did not start in time"):
        assert any(text in what for what in seen), text


def test_an_error_that_never_passes_ends_it_with_its_merges(table: lakebed.Table) -> None:
    def step() -> None:
        raise Corrupt("the file x is missing")

    threads = ThreadsSince()
    with maintained(table, step) as maintenance:
        with pytest.raises(Corrupt):
            maintenance.awaitTermination()
        assert not maintenance.isActive and isinstance(maintenance.exception(), Corrupt)
        assert {finding.check for finding in table.status().findings} == {"query"}
        assert not threads.named("lakebed-merge")


def test_a_log_that_can_not_be_read_ends_it(table: lakebed.Table, steps: Steps) -> None:
    with maintained(table) as maintenance:
        table.apply(changes(1))
        steps.run_until(lambda: is_settled(table))
        newest = Path(table.path, "_delta_log", f"{table.version + 1:020d}.json")
        newest.write_bytes(b"{}\n{")
        steps.run_until(lambda: not maintenance.isActive)
        with pytest.raises(Corrupt):
            maintenance.awaitTermination()
        assert not maintenance.isActive and "query" in {finding.check for finding in table.status().findings}


def test_an_error_that_nobody_knows_ends_it_after_some_tries(table: lakebed.Table) -> None:
    tries: list[int] = []

    def step() -> None:
        tries.append(1)
        raise ZeroDivisionError("of a user's function")

    with maintained(table, step) as maintenance, pytest.raises(Unexpected, match="of a user's function"):
        maintenance.awaitTermination()
    assert len(tries) == UNKNOWN_FAILURES_MAX + 1


def test_it_ends_with_the_spark_session(table: lakebed.Table) -> None:
    runs = [True]
    with maintained(table, spark_runs=lambda: runs[0]) as maintenance:
        runs[0] = False
        assert maintenance.awaitTermination() is None and maintenance.exception() is None
