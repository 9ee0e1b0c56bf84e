"""On a standalone cluster an overwrite is written by tasks on both workers; what fails, runs twice or is lost leaves nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from tests.cluster.overwrite_on_cluster import ROWS
from tests.cluster.test_merges_of_a_fleet import files_left
from tests.infra.spark_cluster import SparkCluster
from tests.waiting import outcome, wait_until, work_of

pytestmark = [pytest.mark.slow, pytest.mark.long]
DRIVER = Path(__file__).with_name("overwrite_on_cluster.py")
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("day", pa.int32()), ("value", pa.string())])


def test_attempts_that_fail_hang_or_are_lost_leave_nothing(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "table", SCHEMA, keys=["id"], partition_by=["day"])
    table.apply([{"id": id, "day": 0, "value": "old"} for id in range(10)])
    gate = tmp_path / "gate"
    gate.mkdir()
    # Spark runs a task a second time on another host only.
    with SparkCluster(hosts=("127.0.0.1", "127.0.0.2")) as cluster:
        driver = cluster.submit(
            DRIVER, str(table.path), str(gate), environment={"LAKEBED_CACHE_DIR": str(tmp_path / "cache")}
        )
        try:
            wait_until(
                lambda: len(list(gate.glob("*.written"))) >= 2 or driver.poll() is not None, moving=work_of(driver.pid)
            )
            assert driver.poll() is None, cluster.errors()
            assert files_left(table), "both workers have written"
            cluster.workers[0].kill()
            (gate / "go").touch()
            printed, _ = outcome(driver)
            assert driver.returncode == 0, cluster.errors()
        finally:
            driver.kill()
            driver.wait()
    assert [json.loads(line) for line in printed.splitlines()] == [
        one for kind in ("fails", "hangs", "waits") for one in ({"begins": kind}, {"rows": {kind: ROWS}})
    ]
    assert not files_left(table)
    operations = table.inspect.timeline()["operation"].to_pylist()
    assert operations.count("OVERWRITE") == 3
    assert table.doctor(deep=True).findings == ()
