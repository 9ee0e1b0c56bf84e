"""A job runs on all workers of the cluster, with lakebed shipped to them, also after a worker was lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.infra.server import descendants, is_alive
from tests.infra.spark_cluster import SparkCluster

pytestmark = pytest.mark.slow

WHERE_TASKS_RUN = """
import json, os, sys
from pyspark.sql import SparkSession

session = (
    SparkSession.builder.master(os.environ["SPARK_MASTER"])
    .config("spark.submit.pyFiles", os.environ["SPARK_PY_FILES"])
    .config("spark.driver.host", "127.0.0.1").config("spark.ui.enabled", "false")
    .config("spark.executor.memory", "512m").config("spark.cores.max", sys.argv[1])
    .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")  # no task before all those cores are there
    .config("spark.locality.wait", "0")
    .getOrCreate()
)

def where(numbers):
    import time
    import lakebed.errors
    total = sum(numbers)
    time.sleep(0.5)
    return [(os.getcwd(), lakebed.errors.__file__, total)]

print(json.dumps(session.sparkContext.parallelize(range(1000), 8).mapPartitions(where).collect()))
session.stop()
"""


def test_a_job_runs_on_both_workers_with_lakebed_from_its_wheel(spark_cluster: SparkCluster) -> None:
    results = json.loads(spark_cluster.run(WHERE_TASKS_RUN, "2"))
    assert sum(total for *_, total in results) == sum(range(1000))
    assert {Path(executor_folder).parents[1].name for executor_folder, _, _ in results} == {
        "spark-worker-0",
        "spark-worker-1",
    }
    assert all(".zip" in module_file for _, module_file, _ in results)


def test_a_cluster_goes_on_with_the_worker_that_is_left_and_leaves_nothing_behind() -> None:
    with SparkCluster() as cluster:
        cluster.workers[0].kill()
        results = json.loads(cluster.run(WHERE_TASKS_RUN, "1"))
        assert sum(total for *_, total in results) == sum(range(1000))
        cluster.workers[0].start()
        family = [
            pid
            for server in (cluster.master, *cluster.workers)
            if server.pid
            for pid in (server.pid, *descendants(server.pid))
        ]
        assert len(cluster.master.live_worker_ports()) == 2
    assert [pid for pid in family if is_alive(pid)] == []
    assert not cluster.run_folder.exists()
