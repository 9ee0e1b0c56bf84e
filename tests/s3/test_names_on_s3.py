"""Names in Spark SQL of tables on S3."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.infra.s3 import S3Server
from tests.s3.test_streams_over_s3a import run_driver

pytestmark = pytest.mark.slow


@pytest.mark.long
def test_tables_in_a_bucket_have_names(s3: S3Server, tmp_path: Path) -> None:
    found = run_driver(Path(__file__).with_name("names_on_s3.py"), f"s3://{s3.create_bucket()}/lake", str(tmp_path))
    settled = found.pop("settled")
    assert found == {
        "tables": [["orders"], ["regions"]],
        "rows": [[1, "a", 10], [2, "b", 21], [4, "d", 40]],
        "at a version": [[0]],
        "joined": [[1], [2]],
        "parts": [["base"], ["tail"]],
    }
    assert settled == {
        "tables": [["orders"], ["regions"]],
        "rows": [[1, "a", 10], [2, "b", 20], [3, "c", 30]],
        "at a version": [[0]],
    }
