"""Every path of a pipeline file may be spelled ``s3://``, also those that Spark reads and writes by itself."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from lakebed.manifest.stores.s3_client import s3_client
from lakebed.pipeline.checkpoint import SOURCE_FILE, take_checkpoint
from lakebed.pipeline.settings import parse_pipeline
from lakebed.pipeline.sources import start_ingest
from lakebed.pipeline.target import open_or_create
from tests.infra.s3 import ACCESS_KEY, SECRET_KEY, S3Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE = """
table: {path: 's3://BUCKET/t', keys: [id], schema: {id: long not null}}
source: {kind: files, folder: 's3://BUCKET/inbox'}
format: json
checkpoint: s3://BUCKET/read-so-far
"""


@pytest.mark.slow
def test_a_folder_and_a_checkpoint_may_be_in_s3(s3: S3Server, spark: SparkSession) -> None:
    bucket = s3.create_bucket()
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()  # a session that runs already knows nothing of the variables
    for name, value in (("endpoint", s3.endpoint), ("path.style.access", "true"), ("connection.ssl.enabled", "false")):
        hadoop.set(f"fs.s3a.{name}", value)
    hadoop.set("fs.s3a.endpoint.region", "us-east-1")
    hadoop.set("fs.s3a.access.key", ACCESS_KEY)
    hadoop.set("fs.s3a.secret.key", SECRET_KEY)
    s3_client().put_object(Bucket=bucket, Key="inbox/one.jsonl", Body=b'{"id": 7}\n')
    pipeline = parse_pipeline(FILE.replace("BUCKET", bucket), "p.yml", {})
    table = open_or_create(pipeline)
    assert pipeline.checkpoint
    take_checkpoint(pipeline, pipeline.checkpoint)
    query = start_ingest(pipeline, table, spark)
    try:
        deadline = time.monotonic() + 60
        while table.version == 0 and query.isActive and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        query.stop()
    assert query.exception() is None
    assert table.to_arrow()["id"].to_pylist() == [7]
    names = [item["Key"] for item in s3_client().list_objects_v2(Bucket=bucket, Prefix="read-so-far/")["Contents"]]
    assert {f"read-so-far/{SOURCE_FILE}", "read-so-far/offsets/0"} <= set(names)
