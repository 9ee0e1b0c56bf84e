"""A real session of Spark Connect: what needs a JVM says so at once, in one sentence, and what does not works.

    python -m tests.sparks.test_spark_connect FOLDER

does so. It takes a process of its own, because Spark has only one kind of session in each.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.sparks.jvm import CONNECT
from tests.infra.spark_start import spark_environment
from tests.waiting import ran

pytestmark = [pytest.mark.slow, pytest.mark.long]
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
REPOSITORY = Path(__file__).parents[2]
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.ui.enabled": "false",
}


def test_what_needs_a_jvm_is_refused_at_once_and_the_rest_works(tmp_path: Path) -> None:
    # Spark's own tests say so too: the server takes a free port.
    environment = {**os.environ, **spark_environment(), "SPARK_TESTING": "1"}
    done = ran(
        [sys.executable, "-m", "tests.sparks.test_spark_connect", str(tmp_path)], cwd=REPOSITORY, env=environment
    )
    assert done.returncode == 0, done.stderr[-4000:]
    said = dict(map(json.loads, done.stdout.splitlines()))
    assert said.pop("version").startswith(os.environ.get("EXPECTED_SPARK", "4."))
    assert said.pop("kind") == "pyspark.sql.connect.session"
    assert said.pop("apply") == 2 and said.pop("changes") == {"1": "first", "0": "second", "2": "second"}
    assert said.pop("refused before anything was done") is True
    assert len(said) == 10 and set(said.values()) == {f"MissingPrerequisite: {CONNECT}"}


def main(folder: str) -> None:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote("local[2]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    table = lakebed.create(f"{folder}/t", SCHEMA, keys=["id"])
    table.apply([{"id": 1, "v": "first"}])
    frame = spark.range(0, 3, 2).selectExpr("id", "'second' as v")
    stream = spark.readStream.format("rate").load().selectExpr("value as id", "'x' as v")

    def tell(what: str, answer: object) -> None:
        print(json.dumps([what, answer]), flush=True)

    tell("version", spark.version)
    tell("kind", type(spark).__module__)
    uses: dict[str, Callable[[], object]] = {
        "spark": lambda: lakebed.spark(),
        "spark of a session": lambda: lakebed.spark(session=spark),
        "read": lambda: table.read(spark),
        "create_view": lambda: table.create_view(spark, "t"),
        "maintain": lambda: table.maintain(spark),
        "maintain as a query": lambda: table.maintain(spark, as_query=True),
        "recluster": lambda: table.maintenance.recluster(spark=spark),
        "ingest": lambda: table.ingest(stream),
        "overwrite": lambda: table.overwrite(frame),
        "replace_partition": lambda: table.replace_partition({}, frame),
    }
    for what, use in uses.items():
        try:
            tell(what, str(use()))
        except Exception as error:
            tell(what, f"{type(error).__name__}: {error}")
    tell("refused before anything was done", table.version == 1)
    tell("apply", table.apply(frame))
    tell("changes", {row["id"]: row["v"] for row in table.changes(0, spark=spark).collect()})
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
