"""Python workers of Spark that start too slowly end a query, and nothing else.

``LAKEBED_SLOW_WORKERS=1`` has workers start really slowly, which takes ten seconds more.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import Retry
from tests.internals import log_of
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
SECONDS_OF_SPARK = 10  # it waits so long for the process of a source, and no setting changes that
HANG_UP = (
    "import os, socket; socket.create_connection(('127.0.0.1', int(os.environ['PYTHON_WORKER_FACTORY_PORT']))).close()"
)
SLOW = f"sleep {SECONDS_OF_SPARK + 5}" if os.environ.get("LAKEBED_SLOW_WORKERS") else f'{sys.executable} -c "{HANG_UP}"'
WORKER = f"""#!/bin/sh
case "$*" in
*python_streaming_source_runner*) if [ -e FLAG ]; then exec {SLOW}; fi ;;
esac
exec {sys.executable} "$@"
"""


@pytest.mark.slow
def test_maintenance_goes_on_when_workers_start_in_time_again(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    flag, python = tmp_path / "busy", tmp_path / "python"
    python.write_text(WORKER.replace("FLAG", str(flag)))
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])
    flag.touch()
    maintenance = table.maintain(spark)
    try:
        wait_until(lambda: maintenance.trouble is not None)
        assert isinstance(maintenance.trouble, Retry) and "did not start in time" in str(maintenance.trouble)
        assert maintenance.isActive and maintenance.exception() is None
        assert [finding.check for finding in lakebed.open(table.path).status().findings] == ["query"]
        flag.unlink()
        wait_until(lambda: maintenance.trouble is None)
        table.apply(pa.table({"id": [1], "v": [1]}, SCHEMA))
        wait_until(lambda: not log_of(table).refresh().tail)
        assert maintenance.awaitTermination(0.1) is False
    finally:
        maintenance.stop()
    assert not maintenance.isActive and maintenance.exception() is None and maintenance.awaitTermination() is None
    assert not table.status().findings


@pytest.mark.slow
def test_maintenance_ends_with_an_error_that_never_passes_and_says_so(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])
    maintenance = table.maintain(spark)
    try:
        table.apply(pa.table({"id": [1], "v": [1]}, SCHEMA))
        wait_until(lambda: not log_of(table).refresh().tail)
        (newest,) = Path(table.path, "_delta_log").glob(f"{table.version:020d}.json")
        newest.with_name(f"{table.version + 1:020d}.json").write_bytes(b"{}\n{")
        with pytest.raises(lakebed.errors.Corrupt):
            wait_until(lambda: maintenance.awaitTermination(1.0))
        assert not maintenance.isActive and maintenance.status["isTriggerActive"] is False
        assert "query" in {finding.check for finding in table.status().findings}
    finally:
        maintenance.stop()
