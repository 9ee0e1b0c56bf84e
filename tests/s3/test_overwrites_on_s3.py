"""A store that fails in the middle of an overwrite: it is done once or not at all, and what it left behind is found."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.infra.s3 import S3Server
from tests.s3.overwrites_on_s3 import DAYS, ROWS
from tests.waiting import ran

pytestmark = [pytest.mark.slow, pytest.mark.long]
DRIVER = "tests.s3.overwrites_on_s3"  # of its own: the endpoint is fixed when Spark starts
REPOSITORY = Path(__file__).parents[2]
DAY = ROWS // DAYS
REFUSED = {
    "parts are refused": "put of .*/_lakebed/.* failed 8 times.*SlowDown",
    "parts can't be compared": "a job of Spark failed: the object store did not answer: .*/_lakebed/.*",
    "changes can't be written again": "put of .*/_lakebed/.* failed 8 times.*SlowDown",
    "commits are refused": "whether version .* was written is unknown.*look in the timeline whether version .* is this OVERWRITE",
    "nothing is answered": "put of .*/_lakebed/.* failed 8 times",
}


def test_an_overwrite_is_done_once_or_not_at_all_though_its_store_fails(s3_server: S3Server, tmp_path: Path) -> None:
    done = ran(
        [sys.executable, "-m", DRIVER, str(s3_server.ports[0]), s3_server.create_bucket()],
        env={**os.environ, "LAKEBED_CACHE_DIR": str(tmp_path / "cache")},
        cwd=REPOSITORY,
    )
    assert done.returncode == 0, "\n".join(done.stderr.splitlines()[-40:])
    *overwrites, cleaned = map(json.loads, done.stdout.splitlines())
    left = 0
    for one in overwrites:
        what, changes = one["what"], int("changes" in one["what"])
        assert one["rows"] == ROWS, what
        assert one["broken"] or what in ("changes come", "all is well"), "no request failed"
        if what in REFUSED:
            assert one["ended"] == "StoreUnavailable", one
            assert one["text"].startswith(("put", "a job", "OVERWRITE")) and "\n" not in one["text"], one
            assert (one["new"], one["later"], one["commits"]) == (0, 1, 2 * changes), f"{what}: nothing was committed"
        else:
            assert (one["ended"], one["text"]) == ("done", "")
            assert (one["new"], one["later"]) == (DAY - changes, changes), "and a change counts after it"
            assert one["left"] == left, "every file is in the log"
        # The task that still ran when the job failed may write its file later. Of a store that answers, others are deleted.
        is_deleted = what in ("parts are refused", "parts can't be compared")
        assert left <= one["left"] <= left + (1 if is_deleted else 5), one
        left = one["left"]
    assert {one["what"] for one in overwrites} > REFUSED.keys()
    assert cleaned == {"left": left, "deleted": left, "still": 0, "findings": []}
