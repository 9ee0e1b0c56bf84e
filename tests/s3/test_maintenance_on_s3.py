"""A streaming query that maintains a table on S3 goes on with its checkpoint there, after a stop and after a kill."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import lakebed
from tests.infra.s3 import S3Server
from tests.s3.maintenance_on_s3 import ROWS
from tests.waiting import ran

pytestmark = [pytest.mark.slow, pytest.mark.long]
REPOSITORY = Path(__file__).parents[2]


def test_it_goes_on_with_its_checkpoint_and_counts_each_commit_once(s3: S3Server, tmp_path: Path) -> None:
    bucket = s3.create_bucket()
    path, checkpoint = f"s3://{bucket}/table", f"s3://{bucket}/checkpoint"

    def run(value: int, end: str) -> Any:
        # A driver of its own: the endpoint is fixed when Spark starts.
        command = [sys.executable, "-m", "tests.s3.maintenance_on_s3", path, checkpoint, str(value), end]
        done = ran(command, env={**os.environ, "LAKEBED_CACHE_DIR": str(tmp_path / "cache")}, cwd=REPOSITORY)
        assert done.returncode == (0 if end == "stops" else -signal.SIGKILL), "\n".join(done.stderr.splitlines()[-40:])
        return json.loads(done.stdout.splitlines()[-1])

    first, killed, last = run(0, "stops"), run(5, "killed"), run(10, "stops")
    assert first["query"] == killed["query"] == last["query"], "it is one query of one checkpoint"
    assert all(one["started"] == [one["query"]] for one in (first, killed, last))
    assert (first["ended"], killed["ended"], last["ended"]) == ([None], [], [None])
    numbers = [sorted(map(int, one["batches"])) for one in (first, killed, last)]
    assert numbers[0][0] == 0 and numbers[0][-1] < numbers[1][-1] < numbers[2][-1]
    assert numbers[1][0] >= numbers[0][-1] and numbers[2][0] >= numbers[1][-1], "only the newest batch may come again"
    batches = first["batches"] | killed["batches"] | last["batches"]
    assert sum(one["settled_rows"] for one in batches.values()) == 3 * ROWS
    table = lakebed.open(path)
    assert dict(zip(*table.to_arrow().sort_by("id").to_pydict().values(), strict=True)) == {
        row: min(row // 5 * 5, 10) for row in range(10 + ROWS)
    }
    assert table.doctor(deep=True).findings == ()
    names = {name["Key"] for name in s3.client().list_objects_v2(Bucket=bucket, Prefix="checkpoint/")["Contents"]}
    assert {"checkpoint/metadata", "checkpoint/commits/0"} <= names
