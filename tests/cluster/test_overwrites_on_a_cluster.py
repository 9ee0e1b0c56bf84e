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
    for kind in ("fails", "hangs", "waits", "joins"):
        (gate / kind).mkdir(parents=True)
    # Spark runs a task a second time on another host only.
    with SparkCluster(hosts=("127.0.0.1", "127.0.0.2")) as cluster:
        driver = cluster.submit(
            DRIVER, str(table.path), str(gate), environment={"LAKEBED_CACHE_DIR": str(tmp_path / "cache")}
        )

        def wait_for_notes(kind: str, count: int) -> None:
            notes, work = gate / kind, work_of(driver.pid)
            wait_until(lambda: len(list(notes.glob("*.note"))) >= count or driver.poll() is not None, moving=work)
            assert driver.poll() is None, cluster.errors()

        try:
            wait_for_notes("waits", 2)
            assert files_left(table), "both workers have written"
            table.apply([{"id": 1, "day": 1, "value": "later"}])
            cluster.workers[0].kill()
            (gate / "waits" / "go").touch()
            wait_for_notes("joins", 1)
            cluster.workers[0].start()
            wait_for_notes("joins", 2)
            cluster.workers[1].kill()
            (gate / "joins" / "go").touch()
            printed, _ = outcome(driver)
            assert driver.returncode == 0, cluster.errors()
        finally:
            driver.kill()
            driver.wait()
    found = {
        "fails": {"fails": ROWS}, "hangs": {"hangs": ROWS}, "waits": {"waits": ROWS - 1, "later": 1},
        "joins": {"joins": ROWS // 2, "waits": ROWS // 2 - 1, "later": 1},
    }  # fmt: skip
    assert [json.loads(line) for line in printed.splitlines()] == [
        one for kind, rows in found.items() for one in ({"begins": kind}, {"rows": rows})
    ]
    noted = {path for note in gate.rglob("*.note") for path in json.loads(note.read_text())}
    left = files_left(table)
    assert len(noted) > 8 and not noted & left, "what was there when a job ended"
    # An attempt that Spark ends, because another one was faster, may write a file after that.
    deleted = table.maintenance.remove_orphan_files("0 seconds", dry_run=False, allow_short_retention=True)
    assert set(deleted["path"].to_pylist()) == left
    operations = table.inspect.timeline()["operation"].to_pylist()
    assert operations.count("OVERWRITE") == 4
    assert table.doctor(deep=True).findings == ()
