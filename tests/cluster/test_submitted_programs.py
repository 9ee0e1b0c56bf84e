"""Programs that ``spark-submit`` starts on a standalone cluster, whose workers are machines without any of the driver's files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import lakebed
from lakebed.sparks.session import settings
from tests.cluster.submitted import ROWS
from tests.infra.machines import Machines
from tests.infra.packed import packed_environment
from tests.infra.s3 import S3Server, aws_environment
from tests.infra.spark_cluster import SparkCluster, spark_home
from tests.infra.spark_start import spark_environment, spark_options

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).with_name("submitted.py")


def submit(
    *arguments: str, environment: Mapping[str, str], conf: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    options = [option for name, value in conf.items() for option in ("--conf", f"{name}={value}")]
    return subprocess.run(
        [str(spark_home() / "bin" / "spark-submit"), *options, *arguments],
        env={**os.environ, **spark_environment(), **environment},
        capture_output=True,
        text=True,
        timeout=900,
    )


@pytest.mark.long
def test_a_submitted_program_has_the_master_and_the_settings_that_it_was_given(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import lakebed\n"
        "spark = lakebed.spark(s3=False, conf={'spark.sql.ansi.enabled': 'false'})\n"
        "names = ('shuffle.partitions', 'ansi.enabled', 'session.timeZone')\n"
        "print(spark.sparkContext.master, *(spark.conf.get('spark.sql.' + name) for name in names))\n"
    )
    conf = settings(s3=False) | {"spark.sql.shuffle.partitions": "7", "spark.sql.ansi.enabled": "true"}
    environment = {"PYSPARK_PYTHON": sys.executable}
    done = submit("--master", "local[1,3]", str(program), environment=environment, conf=conf)
    assert done.returncode == 0, done.stderr[-5000:]
    # spark-submit prints what the program says on standard error, such as warnings, on standard output too.
    assert done.stdout.splitlines()[-1].split() == ["local[1,3]", "7", "false", "UTC"]


@pytest.mark.long
@pytest.mark.skipif(not Machines.can_be_made(), reason="only root can make machines")
def test_a_program_runs_on_machines_that_have_neither_its_files_nor_its_python(tmp_path: Path) -> None:
    with (
        Machines(2) as machines,
        S3Server(address=machines.here) as s3,
        aws_environment(s3.endpoint),
        SparkCluster(others=machines) as cluster,
    ):
        path = f"s3://{s3.create_bucket()}/table"
        archive = packed_environment(tmp_path)
        python = "./environment/bin/python3"
        conf = {
            **settings(s3=True),
            "spark.driver.host": machines.here,
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": spark_options(),
            "spark.executorEnv.LD_LIBRARY_PATH": "./environment/lib",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.sql.shuffle.partitions": "4",
        }
        options = ["--master", cluster.url, "--deploy-mode", "client", "--archives", f"{archive}#environment"]
        environment = {
            "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_LOCAL_IP": machines.here,
            "LAKEBED_CACHE_DIR": str(tmp_path / "cache"),
        }  # fmt: skip
        done = submit(*options, str(PROGRAM), path, environment=environment, conf=conf)
        assert done.returncode == 0, done.stderr[-5000:] + cluster.workers[0].log_tail()
        said = json.loads(done.stdout.splitlines()[-1])
        assert said["rows"] == {"applied": ROWS // 2, "replaced": ROWS // 2}
        assert len({task["folder"] for task in said["tasks"]}) == 2, "both machines worked"
        for task in said["tasks"]:
            assert task["user"] == "nobody" and not task["driver_files"]
            assert task["python"].startswith(task["folder"]) and task["lakebed"].startswith(task["folder"])
        table = lakebed.open(path)
        assert table.doctor(deep=True).findings == ()
        operations = table.inspect.timeline()["operation"].to_pylist()
        assert "MERGE" in operations and "REPLACE PARTITION" in operations


@pytest.mark.long
def test_spark_runs_no_python_program_inside_a_standalone_cluster() -> None:
    """``--deploy-mode cluster`` is for Java there: guides/clusters.md says what to do instead."""
    done = submit(
        "--master", "spark://127.0.0.1:1", "--deploy-mode", "cluster", str(PROGRAM), "table", environment={}, conf={}
    )
    assert done.returncode != 0
    assert (
        "Cluster deploy mode is currently not supported for python applications on standalone clusters" in done.stderr
    )
