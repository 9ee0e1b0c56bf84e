"""Spark for a run of its own: the JVM apart from the terminal, its words in a file.

The JVM and its Python workers get a session of their own, so that Ctrl-C reaches this process alone, which then stops
them in order; and all they print goes to a log file, so that the display stays readable. If this process dies, the pipe
to the JVM breaks, and the JVM ends itself.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakebed import session as sessions
from lakebed.errors import MissingPrerequisite
from lakebed.pipeline.settings import SparkSection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STOP_SECONDS = 10.0
_STREAMING = {
    "spark.sql.streaming.stopTimeout": "20s",
    "spark.log.level": "WARN",
}
_UNRESOLVED = "unresolved dependency"


@dataclass(frozen=True, slots=True)
class Driver:
    """A running Spark and the file it logs to."""

    spark: SparkSession
    log: Path


@contextmanager
def spark_driver(section: SparkSection, s3: bool) -> Iterator[Driver]:
    """Start Spark, and stop it at the end. The log is removed if all went well. Raises MissingPrerequisite."""
    sessions.require_java()
    handle, name = tempfile.mkstemp(prefix="lakebed-spark-", suffix=".log")
    log = Path(name)
    # What Python's half of Spark says about a query that ends is said by us.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger("pyspark").setLevel(logging.CRITICAL)
    try:
        gateway = _launch(section, s3, handle, log)
    finally:
        os.close(handle)
    spark = None
    try:
        spark = sessions.spark("lakebed", section.master, s3=s3, conf=_STREAMING | dict(section.conf))
        yield Driver(spark, log)
    finally:
        if spark is not None:
            with suppress(Exception):  # the JVM may be gone already, which is what is wanted
                spark.stop()
        _end(gateway)
    log.unlink(missing_ok=True)


def _launch(section: SparkSection, s3: bool, handle: int, log: Path) -> Any:
    from pyspark import SparkConf, SparkContext, java_gateway
    from pyspark.errors import PySparkException

    master = section.master or os.environ.get("LAKEBED_SPARK_MASTER") or "local[*]"
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    conf = SparkConf(loadDefaults=False)
    for name, value in (sessions.settings(s3) | {"spark.master": master} | _STREAMING | dict(section.conf)).items():
        conf.set(name, value)
    try:
        launch: Any = java_gateway.launch_gateway
        gateway = launch(conf, {"stdout": handle, "stderr": subprocess.STDOUT, "start_new_session": True})
    except PySparkException:
        raise MissingPrerequisite(_why_not(log)) from None
    SparkContext._ensure_initialized(gateway=gateway)
    return gateway


def _why_not(log: Path) -> str:
    """One line on why the JVM did not come up, out of its log."""
    text = log.read_text(errors="replace")
    if _UNRESOLVED in text:
        missing = sorted(
            {line.split(_UNRESOLVED + ":")[1].strip() for line in text.splitlines() if _UNRESOLVED + ":" in line}
        )
        what = ", ".join(missing[:3]) or "some"
        return (
            f"Spark's jars can't be fetched ({what}): allow access to a Maven repository once, or name a mirror by "
            f"spark.conf: {{spark.jars.repositories: https://…}} in the pipeline file; Spark's log is {log}"
        )
    said = next(
        (line.strip() for line in text.splitlines() if "rror" in line or "xception" in line), "it ended at once"
    )
    return f"Spark did not start: {said}; Spark's log is {log}"


def _end(gateway: Any) -> None:
    with suppress(Exception):
        gateway.shutdown()
    process: subprocess.Popen[bytes] = gateway.proc
    with suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
