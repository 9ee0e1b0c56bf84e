"""Spark with Iceberg's runtime reads what lakebed reads, at every published version. It is not the Spark of other tests.

With ``ICEBERG_SPARK=3.5`` in the environment it is Spark 3.5, which lakebed itself does not run with.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from lakebed.errors import InvalidSchema
from lakebed.operations.purge import files as purge_files
from tests.foreign.readers import comparable
from tests.iceberg.readers import opened
from tests.iceberg.test_readers_read_every_settled_version import also
from tests.infra.downloads import pyspark, spark_iceberg_jars
from tests.infra.spark_start import spark_environment
from tests.table.test_schemas_that_move import make_world, step
from tests.worlds import worlds

_PROGRAM = """
import json, sys
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
jar, asked, out = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]").config("spark.jars", jar).config("spark.ui.enabled", "false")
    .config("spark.sql.session.timeZone", "UTC").config("spark.driver.host", "127.0.0.1").getOrCreate()
)
for number, (path, snapshot) in enumerate(json.loads(asked)):
    found = spark.read.format("iceberg").option("versionAsOf", snapshot).load(path)
    if hasattr(found, "toArrow"):
        rows = found.toArrow()
    else:  # Spark 3.5
        rows = pa.Table.from_batches(getattr(found, "_collect_as_arrow")(), to_arrow_schema(found.schema))
    with pa.OSFile(f"{out}/{number}.arrow", "wb") as file, pa.ipc.new_stream(file, rows.schema) as stream:
        stream.write_table(rows)
"""

SPARKS = {"4.1": ("4.1.4", "4.1_2.13"), "3.5": ("3.5.9", "3.5_2.12")}
"""PySpark, and what Iceberg calls its Spark and Scala."""


def read_by_spark(asked: list[tuple[str, int]], folder: Path) -> list[pa.Table]:
    """The rows of snapshots of tables."""
    version, runtime = SPARKS[os.environ.get("ICEBERG_SPARK", "4.1")]
    [jar] = spark_iceberg_jars(runtime).glob("*.jar")
    environment = {
        **os.environ,
        **spark_environment(),
        "PYTHONPATH": str(pyspark(version)),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    environment.pop("SPARK_HOME", None)
    command = [sys.executable, "-c", _PROGRAM, str(jar), json.dumps(asked), str(folder)]
    subprocess.run(command, env=environment, check=True)
    return [pa.ipc.open_stream(pa.OSFile(f"{folder}/{at}.arrow", "rb")).read_all() for at in range(len(asked))]


@pytest.mark.long
@pytest.mark.worlds
def test_rows_of_random_histories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(purge_files, "FOLLOW_SECONDS", 0.0)
    asked: list[tuple[str, int]] = []
    expected: list[pa.Table] = []
    for seed in worlds(8):
        folder = tmp_path / str(seed)
        folder.mkdir()
        world = make_world(seed, folder)
        try:
            world.table.set_properties({"lakebed.iceberg": "on"})
        except InvalidSchema:
            continue
        for _ in range(10):
            step(world)
            if world.rng.random() < 0.2:
                also(world)
            if world.rng.random() < 0.3:
                world.table.settle()
                world.table.maintenance.publish_iceberg()
        world.table.settle()
        world.table.maintenance.publish_iceberg()
        for snapshot in opened(world.table).metadata.snapshots:
            rows = world.table.to_arrow(version=snapshot.snapshot_id - 1)
            asked.append((f"{world.table.path}/_lakebed/iceberg", snapshot.snapshot_id))
            expected.append(rows)
    assert len(asked) > 8
    for (path, snapshot_id), found, rows in zip(asked, read_by_spark(asked, tmp_path), expected, strict=True):
        same = comparable(found, rows.schema) == comparable(rows, rows.schema)
        assert same, f"{path} at {snapshot_id}: {found.to_pylist()[:5]} instead of {rows.to_pylist()[:5]}"
