"""Overwrites of DataFrames of Spark: tasks write and compare, and what fails or runs twice leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.functions import expr

import lakebed
from lakebed.errors import InvalidChanges, InvalidInput, StoreUnavailable
from lakebed.ingest import sorted_rows
from lakebed.ingest.batch_writer import Written, in_tasks
from lakebed.table.internals import keys_in_both
from tests.compaction.test_disk_trouble import disk_full_after
from tests.infra.spark_start import spark_environment
from tests.internals import log_of, storage_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_cache")]

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("day", pa.int32()), ("value", pa.string())])


@pytest.fixture
def table(tmp_path: Path) -> lakebed.Table:
    """A thousand rows on each of three days; day 0 has the keys below 1000, and so on."""
    table = lakebed.create(tmp_path / "table", SCHEMA, keys=["id"], partition_by=["day"])
    rows = [{"id": id, "day": id // 1000, "value": "old"} for id in range(3000)]
    table.apply(rows)
    return table


def new(spark: SparkSession, first: int, last: int, day: str = "id div 1000") -> DataFrame:
    return spark.range(first, last).selectExpr("id", f"cast({day} as int) as day", "'new' as value")


def counts(table: lakebed.Table) -> dict[tuple[int, str], int]:
    found = table.query("select day, value, count(*) as n from t group by all", "t").to_pylist()
    return {(one["day"], one["value"]): one["n"] for one in found}


def files_left(table: lakebed.Table) -> set[str]:
    """Parts on disk that no commit mentions."""
    log = "".join(commit.read_text() for commit in Path(table.path, "_delta_log").glob("*.json"))
    return {path for path, *_ in storage_of(table).list("_lakebed/") if path.endswith(".parquet") and path not in log}


def test_tasks_write_what_replaces_days_or_the_whole_table(table: lakebed.Table, spark: SparkSession) -> None:
    assert table.replace_partition({"day": 1}, new(spark, 1000, 1500)) == table.version
    assert counts(table) == {(0, "old"): 1000, (1, "new"): 500, (2, "old"): 1000}
    table.overwrite(new(spark, 0, 800).unionByName(new(spark, 2000, 2100)), "day in (0, 2, 7)")
    assert counts(table) == {(0, "new"): 800, (1, "new"): 500, (2, "new"): 100}
    assert table.read(spark).count() == 1400
    parts = [part for part in log_of(table).refresh().parts.values()]
    assert all(part.sort_key_version == 1 and part.stats and part.checksum is not None for part in parts)
    assert table.lookup([700])["value"].to_pylist() == ["new"]
    table.apply([{"id": 700, "day": 0, "value": "newer"}])
    table.settle()
    assert table.lookup([700])["value"].to_pylist() == ["newer"]
    table.overwrite(new(spark, 5000, 5010))
    assert counts(table) == {(5, "new"): 10}
    table.overwrite(new(spark, 0, 0))
    assert counts(table) == {} and not files_left(table)
    assert table.doctor(deep=True).findings == ()


def test_tasks_write_and_check_what_replaces_rows(table: lakebed.Table, spark: SparkSession) -> None:
    table.overwrite(new(spark, 2500, 2600), "id >= 2500")
    expected = {(0, "old"): 1000, (1, "old"): 1000, (2, "old"): 500, (2, "new"): 100}
    assert counts(table) == expected
    for rows, where, message in (
        (new(spark, 2499, 2501), "id >= 2500", "hold one with {'id': 2499}, for which that is not true"),
        (new(spark, 100, 101), "value = 'new'", "have the key {'id': 100}, which is live in the table"),
    ):
        with pytest.raises(InvalidInput, match=message):
            table.overwrite(rows, where)
    assert counts(table) == expected and not files_left(table)
    assert table.doctor(deep=True).findings == ()


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        (lambda spark: new(spark, 1000, 1001).union(new(spark, 1000, 1001)), InvalidInput, r"hold the key {'id': 1000} twice"),
        (lambda spark: new(spark, 2999, 3000, "1"), InvalidInput, r"have the key {'id': 2999}, which is live in the table"),
        (lambda spark: new(spark, 1000, 1001, "4"), InvalidInput, "hold rows of day=4"),
        (lambda spark: new(spark, 1, 2).selectExpr("nullif(id, 1) as id", "1 as day", "value"), InvalidChanges, "'id' is null"),
        (lambda spark: new(spark, 1, 2).drop("value"), InvalidChanges, "lack the column 'value'"),
    ],
)  # fmt: skip
def test_rows_that_do_not_fit_are_refused_and_leave_no_file(
    rows: Any, error: type[Exception], message: str, table: lakebed.Table, spark: SparkSession
) -> None:
    table.settle()
    with pytest.raises(error, match=message):
        table.replace_partition({"day": 1}, rows(spark))
    assert counts(table) == {(day, "old"): 1000 for day in range(3)} and not files_left(table)


def test_files_that_no_task_returned_are_deleted(
    table: lakebed.Table, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a task that ran twice, and of a job that failed."""
    lost = list[str]()

    def twice(frame: DataFrame, task: Any) -> Written:
        lost.extend(part.path for part in in_tasks(frame, task).parts)
        return in_tasks(frame, task)

    monkeypatch.setattr(sorted_rows, "in_tasks", twice)
    table.replace_partition({"day": 1}, new(spark, 1000, 1500))
    assert lost and not files_left(table) and counts(table)[1, "new"] == 500

    def failing(frame: DataFrame, task: Any) -> Written:
        in_tasks(frame, task)
        raise RuntimeError("the job failed")

    monkeypatch.setattr(sorted_rows, "in_tasks", failing)
    with pytest.raises(RuntimeError, match="the job failed"):
        table.overwrite(new(spark, 1000, 1500))
    assert not files_left(table) and counts(table)[1, "new"] == 500


class OnAFullDisk(sorted_rows.SortedWriteTask):
    """A task where no file may become as large as a day's."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with disk_full_after(2_000):
            yield from super().__call__(batches)


def test_tasks_on_a_full_disk_say_so_and_leave_the_table_as_it_was(
    table: lakebed.Table, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.settle()
    rows = new(spark, 0, 3000).withColumn("value", expr("uuid()"))
    with monkeypatch.context() as patched, pytest.raises(StoreUnavailable, match=r"_lakebed/.* check the disk"):
        patched.setattr(sorted_rows, "SortedWriteTask", OnAFullDisk)
        table.overwrite(rows)
    assert counts(table) == {(day, "old"): 1000 for day in range(3)} and not files_left(table)
    table.overwrite(new(spark, 0, 3000))
    assert counts(table) == {(day, "new"): 1000 for day in range(3)} and not files_left(table)


def test_keys_are_compared_without_bringing_them_to_the_driver(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    keys_in_both(spark.range(3).toDF("k0"), spark.range(3).toDF("k0")).explain()
    plan = capsys.readouterr().out
    assert "SortMergeJoin" in plan and "Broadcast" not in plan


KILLED = """
import os, signal, sys
import lakebed
from lakebed.table import internals_of

spark = lakebed.spark("killed", "local[1]", s3=False)
table = lakebed.open(sys.argv[1])
log = internals_of(table).log
log.commit = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
table.overwrite(spark.range(5).selectExpr("id", "1 as day", "'new' as value"))
"""


@pytest.mark.long
def test_a_driver_that_is_killed_before_it_commits_leaves_the_table_as_it_was(table: lakebed.Table) -> None:
    table.settle()
    version = table.version
    environment = {**os.environ, **spark_environment()}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, table.path], env=environment, capture_output=True, timeout=300
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()[-2000:]
    assert table.version == version and counts(table) == {(day, "old"): 1000 for day in range(3)}
    left = files_left(table)
    assert left, "it had written its rows"
    found = table.maintenance.remove_orphan_files("0 seconds", dry_run=False, allow_short_retention=True)
    assert left <= set(found["path"].to_pylist()) and not files_left(table)
    assert table.doctor(deep=True).findings == ()
