"""The whole way on S3: a stream ingested with its checkpoint over s3a, maintained, read by Spark over s3a."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from lakebed.sparks.session import S3A_SECONDS
from tests.infra.fault_proxy import FaultProxy, FaultRates
from tests.infra.s3 import S3Server
from tests.waiting import ran

pytestmark = pytest.mark.slow

# A driver of its own: the endpoint is fixed when Spark starts.
PIPELINE = Path(__file__).with_name("pipeline_on_s3.py")
REPOSITORY = Path(__file__).parents[2]


@pytest.mark.long
def test_a_stream_on_s3_arrives_once_though_requests_fail_and_goes_on_after_a_restart(
    flaky_s3: FaultProxy, s3_server: S3Server, tmp_path: Path
) -> None:
    bucket = s3_server.create_bucket()
    flaky_s3.set_rates(FaultRates(before=0.004, reset=0.003, after=0.003), seed=11)
    first = run_driver(PIPELINE, f"s3://{bucket}/orders", str(tmp_path), "0", "3")
    assert sum(flaky_s3.traffic().faults.values()) > 0
    assert first["rows"] == first["read_over_s3a"] == first["expected"]
    assert first["batches"] == 3
    assert first["s3a_seconds_min"] == S3A_SECONDS, "Hadoop would wait longer, whatever is set"
    flaky_s3.set_rates(FaultRates())
    second = run_driver(PIPELINE, f"s3://{bucket}/orders", str(tmp_path), "3", "5")
    assert second["rows"] == second["read_over_s3a"] == second["read_by_delta_spark"] == second["expected"]
    assert second["batches"] == 5


def run_driver(script: Path, *arguments: str) -> Any:
    """What the driver printed, as JSON; raises AssertionError with its errors."""
    done = ran(
        [sys.executable, str(script), *arguments],
        env={**os.environ, "LAKEBED_CACHE_DIR": arguments[1] + "/cache", "PYTHONPATH": str(REPOSITORY)},
        cwd=REPOSITORY,
    )
    assert done.returncode == 0, "\n".join(done.stderr.splitlines()[-40:])
    return json.loads(done.stdout.splitlines()[-1])
