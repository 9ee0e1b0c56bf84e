"""The Spark cluster of a worker: how its session begins.

Spark's own settings (``SPARK_CONF_DIR``, ``spark-defaults.conf``) apply, so that what a cluster needs
beside its address has one place. lakebed must be installed on the machines of the cluster, or be given to them
(``spark.submit.pyFiles``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakebed import session as sessions
from lakebed.compaction.cluster import Cluster, require_master

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def cluster_at(master: str, merges_max: int) -> Cluster:
    """The cluster at Spark's address of it, such as ``spark://host:7077`` or ``yarn``. Nothing is started until it is needed.

    Raises MissingPrerequisite if there is no Java that it can be reached with.
    """
    sessions.require_java()
    conf = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",  # what becomes of merges is in lakebed's own log
        **sessions.executor_environment(),
    }

    def begin() -> SparkSession:
        require_master(master)
        sessions.prepare_environment(master)
        return sessions.start_session("lakebed fleet run", master, conf)

    return Cluster(begin, name=master, merges_max=merges_max)
