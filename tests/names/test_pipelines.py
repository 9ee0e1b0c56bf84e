"""Spark's declarative pipelines, whose catalog is one of lakebed's: streaming tables, materialized views, AUTO CDC.

The pipeline runs by `spark-pipelines` on a server that Python starts, as docs/guides/bi-and-connect.md has it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from subprocess import STDOUT

import pyarrow as pa
import pytest

import lakebed
from lakebed.sparks.versions import spark_version
from tests.guides.follow import LAKEBED
from tests.infra.server import HOST
from tests.infra.spark_cluster import spark_home
from tests.infra.spark_servers import PythonServer
from tests.infra.spark_start import spark_environment
from tests.waiting import ran

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(spark_version() < "4.1", reason="Spark 4.0 has no pipelines"),
]
SPEC = """name: shop
catalog: lake
database: {schema}
storage: file://{folder}/storage
libraries:
  - glob:
      include: transformations/**
"""
TABLES = """from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql.functions import sum

spark = SparkSession.active()


@dp.table
def arrived():
    return spark.readStream.schema("id bigint, region string, n bigint").json("{folder}/arriving")


@dp.materialized_view
def totals():
    return spark.read.table("arrived").groupBy("region").agg(sum("n").alias("n"))
"""
CDC = """

dp.create_streaming_table("copy")
dp.create_auto_cdc_flow(target="copy", source="arrived", keys=["id"], sequence_by="n")
"""


class Pipeline:
    """A pipeline in a folder, and the Connect server that runs it."""

    def __init__(self, folder: Path, port: int, schema: Path) -> None:
        self.folder, self.schema, self._port = folder, schema, port
        (folder / "transformations").mkdir(parents=True)
        (folder / "arriving").mkdir()
        (folder / "spark-pipeline.yml").write_text(SPEC.format(folder=folder, schema=schema.name))

    def arrive(self, *rows: tuple[int, str, int]) -> None:
        at = len([*(self.folder / "arriving").iterdir()])
        lines = [json.dumps(dict(zip(("id", "region", "n"), row, strict=True))) for row in rows]
        (self.folder / "arriving" / f"{at}.json").write_text("\n".join(lines))

    def run(self, text: str, *options: str) -> str:
        """What a run prints; it ends with the reason if it fails."""
        (self.folder / "transformations" / "tables.py").write_text(text.format(folder=self.folder))
        command = [str(spark_home() / "bin/spark-pipelines"), "--remote", f"sc://{HOST}:{self._port}", "run", *options]
        environment = {**os.environ, "SPARK_HOME": str(spark_home()), **spark_environment()}
        return ran(command, cwd=self.folder, env=environment, stderr=STDOUT).stdout


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the catalog. Each test has a schema of its own."""
    folder = tmp_path_factory.mktemp("warehouse")
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, warehouse: Path) -> Iterator[PythonServer]:
    jars = tmp_path_factory.mktemp("jars")
    done = ran([*LAKEBED, "export", "spark-jar", f"{jars}/"])
    assert done.returncode == 0, done.stderr[-2000:]
    with PythonServer(warehouse, jars) as running:
        yield running


@pytest.fixture
def pipeline(tmp_path: Path, server: PythonServer, warehouse: Path) -> Pipeline:
    schema = warehouse / f"shop{len([*warehouse.iterdir()])}"
    lakebed.create(schema / "first", pa.schema([("id", pa.int64())]))  # a schema is there if it has a table
    return Pipeline(tmp_path / "pipeline", server.ports[1], schema)


def rows(pipeline: Pipeline, name: str) -> list[tuple[object, ...]]:
    return sorted(tuple(row.values()) for row in lakebed.open(pipeline.schema / name).to_arrow().to_pylist())


def test_a_streaming_table_takes_what_arrives_and_a_view_is_made_again(pipeline: Pipeline) -> None:
    pipeline.arrive((1, "a", 1), (2, "b", 2))
    said = pipeline.run(TABLES)
    assert "Run is COMPLETED" in said, said
    pipeline.arrive((3, "b", 3))
    said = pipeline.run(TABLES)
    assert "Run is COMPLETED" in said, said
    assert rows(pipeline, "arrived") == [(1, "a", 1), (2, "b", 2), (3, "b", 3)]
    assert rows(pipeline, "totals") == [("a", 1), ("b", 5)]
    said = pipeline.run(TABLES, "--full-refresh-all")
    assert "Run is COMPLETED" in said, said
    assert rows(pipeline, "arrived") == [(1, "a", 1), (2, "b", 2), (3, "b", 3)]


@pytest.mark.skipif(spark_version() < "4.2", reason="Spark 4.1 has no AUTO CDC")
def test_auto_cdc_is_refused_by_spark(pipeline: Pipeline) -> None:
    pipeline.arrive((1, "a", 1))
    said = pipeline.run(TABLES + CDC)
    assert "AUTOCDC_TARGET_DOES_NOT_SUPPORT_MERGE" in said, said[-4000:]


def test_a_view_with_keys_is_refused(pipeline: Pipeline) -> None:
    schema = pa.schema([("region", pa.string()), ("n", pa.int64())])
    lakebed.create(pipeline.schema / "totals", schema, keys=["region"])
    pipeline.arrive((1, "a", 1))
    said = pipeline.run(TABLES)
    assert "'region' is a key of the table, and a key has a value in every row" in said, said[-4000:]
