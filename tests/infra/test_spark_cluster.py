"""Jobs run on all workers of the cluster, with lakebed shipped to them, also after a worker was lost; one that fails says why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.infra.processes import descendants, is_alive
from tests.infra.server import ServerFailed
from tests.infra.spark_cluster import SparkCluster

pytestmark = pytest.mark.slow

WHERE_TASKS_RUN = """
import json, os, sys
from pyspark.sql import SparkSession

session = (
    SparkSession.builder.master(os.environ["SPARK_MASTER"])
    .config("spark.submit.pyFiles", os.environ["SPARK_PY_FILES"])
    .config("spark.driver.host", "127.0.0.1").config("spark.ui.enabled", "false")
    .config("spark.executor.memory", "512m")
    .config("spark.executor.extraJavaOptions", os.environ["SPARK_EXECUTOR_OPTIONS"])
    .config("spark.cores.max", sys.argv[1])
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

print(json.dumps(session.sparkContext.parallelize(range(1000), 4).mapPartitions(where).collect()))
session.stop()
"""


def test_jobs_run_on_all_workers_that_are_left_with_lakebed_from_its_wheel() -> None:
    with SparkCluster() as cluster:
        with pytest.raises(ServerFailed, match="out of luck"):
            cluster.run("raise SystemExit('out of luck')")
        assert workers_used(cluster, cores=2) == {"spark-worker-0", "spark-worker-1"}
        cluster.workers[0].kill()
        assert workers_used(cluster, cores=1) == {"spark-worker-1"}
        cluster.workers[0].start()
        assert len(cluster.master.live_worker_ports()) == 2
        pids = [server.pid for server in (cluster.master, *cluster.workers) if server.pid is not None]
        family = [*pids, *(below for pid in pids for below in descendants(pid))]
    assert [pid for pid in family if is_alive(pid)] == []
    assert not cluster.run_folder.exists()


def workers_used(cluster: SparkCluster, cores: int) -> set[str]:
    """Runs the job, checks its result, and names the workers that its tasks ran on."""
    results = json.loads(cluster.run(WHERE_TASKS_RUN, str(cores)))
    assert sum(total for _, _, total in results) == sum(range(1000))
    assert all(".zip" in module_file for _, module_file, _ in results)
    return {Path(executor_folder).parents[1].name for executor_folder, _, _ in results}
