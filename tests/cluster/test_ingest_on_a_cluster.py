"""On a standalone cluster tasks run on both workers, with lakebed from its wheel; a killed worker costs a retry."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakebed
from tests.infra.spark_cluster import SparkCluster
from tests.oracle import Oracle, Row
from tests.waiting import outcome, wait_until, work_of

pytestmark = pytest.mark.slow

DRIVER = Path(__file__).with_name("ingest_on_cluster.py")
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("worker", pa.string()), ("module", pa.string())])
FILES, ROWS = 12, 50


def changes(number: int) -> list[Row]:
    """Files overlap, so that their order counts, but the two files of one batch have no key in common."""
    first = (number % 2) * 1000 + (number // 2) * ROWS // 2
    return [{"id": first + row, "v": number, "op": "d" if row % 7 == 3 else "u"} for row in range(ROWS)]


def test_a_stream_runs_on_both_workers_and_survives_one(tmp_path: Path) -> None:
    arriving, path = tmp_path / "arriving", tmp_path / "table"
    arriving.mkdir()
    oracle = Oracle(("id",), ("id", "v"))
    for number in range(FILES):
        file = arriving / f"{number:05d}.parquet"
        pq.write_table(pa.Table.from_pylist(changes(number)), file)
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))  # the source takes older files first
        oracle.apply(changes(number))
    table = lakebed.create(path, SCHEMA, keys=["id"])
    with SparkCluster() as cluster:
        driver = cluster.submit(
            DRIVER, str(path), str(arriving), environment={"LAKEBED_CACHE_DIR": str(tmp_path / "cache")}
        )
        try:
            wait_until(lambda: batches(table) >= 3 or driver.poll() is not None, moving=work_of(driver.pid))
            assert driver.poll() is None, "it ended before a worker could be killed\n" + cluster.errors()
            seen = table.to_arrow()
            workers = {Path(folder).parents[1].name for folder in seen["worker"].to_pylist()}
            assert workers == {"spark-worker-0", "spark-worker-1"}
            assert all(".zip" in module for module in seen["module"].to_pylist())
            cluster.workers[0].kill()
            printed, _ = outcome(driver)
            assert driver.returncode == 0, cluster.errors()
        finally:
            driver.kill()
            driver.wait()
    rows = table.to_arrow(["id", "v"]).to_pylist()
    assert sorted(rows, key=lambda row: row["id"]) == sorted(oracle.rows(), key=lambda row: row["id"])
    seen_there = json.loads(printed.splitlines()[-1])
    assert seen_there["rows_on_the_cluster"] == len(rows)
    assert seen_there["commits_seen_by_maintenance"], "by a job of the streaming query that maintains the table"
    assert batches(table) == FILES // 2, "every batch once"


def batches(table: lakebed.Table) -> int:
    operations = table.inspect.timeline()["operation"].to_pylist()
    return operations.count("STREAMING UPDATE")
