"""Every path of a pipeline file may be spelled ``s3://``, also those that Spark reads and writes by itself."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import lakebed
from lakebed.pipeline.places import SOURCE_FILE
from lakebed.storage.s3_client import s3_client
from tests.infra.s3 import S3Server
from tests.waiting import ran

FILE = """
table: {path: 's3://BUCKET/t', keys: [id], schema: {id: long not null}}
source: {kind: files, folder: 's3://BUCKET/inbox'}
format: json
checkpoint: s3://BUCKET/read-so-far
metrics: {port: null}
spark: {master: 'local[2]'}
"""
LAKEBED = (sys.executable, "-c", "import sys; from lakebed.cli import main; sys.exit(main())")


@pytest.mark.slow
def test_a_folder_and_a_checkpoint_may_be_in_s3(s3: S3Server, tmp_path: Path) -> None:
    bucket = s3.create_bucket()
    s3_client().put_object(Bucket=bucket, Key="inbox/one.jsonl", Body=b'{"id": 7}\n')
    (tmp_path / "p.yml").write_text(FILE.replace("BUCKET", bucket))
    environment = {**os.environ, "LAKEBED_CACHE_DIR": str(tmp_path / "cache")}
    command = [*LAKEBED, "run", "p.yml", "--duration", "1"]
    done = ran(command, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert lakebed.open(f"s3://{bucket}/t").to_arrow()["id"].to_pylist() == [7]
    listed = s3_client().list_objects_v2(Bucket=bucket, Prefix="read-so-far/")
    names = {item["Key"] for item in listed["Contents"]}
    assert {f"read-so-far/{SOURCE_FILE}", "read-so-far/offsets/0"} <= names
