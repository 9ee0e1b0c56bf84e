"""Start Spark for one pipeline: its JVM is detached from the terminal, and its output goes to a file.

The JVM and its Python workers get a process session of their own. So Ctrl-C reaches only this process, which then stops
them in order. Their output goes to a log file, so that the display stays readable. If this process dies, the pipe to the
JVM breaks, and the JVM exits.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakebed import session as sessions
from lakebed.errors import MissingPrerequisite
from lakebed.pipeline.jars import why_no_jars
from lakebed.pipeline.settings import SparkSection

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STOP_SECONDS = 10.0
LOOK_SECONDS = 0.25
LOCAL_MASTER = "local[*,4]"  # like a cluster, Spark tries a task four times if it fails or its worker dies
_STREAMING = {
    "spark.sql.streaming.stopTimeout": "20s",
    "spark.log.level": "WARN",
}


@dataclass(frozen=True, slots=True)
class Driver:
    """A running Spark session and the file it logs to."""

    spark: SparkSession
    log: Path


class Abandoned(Exception):
    """The caller no longer wants Spark, which was still starting."""


@contextmanager
def spark_driver(section: SparkSection, s3: bool, abandoned: Callable[[], bool]) -> Iterator[Driver]:
    """Start Spark, and stop it at the end. The log is removed unless there was an error.

    ``abandoned`` is called repeatedly while Spark starts; if it returns True, this raises Abandoned. Raises
    MissingPrerequisite if Spark does not start.
    """
    sessions.require_java()
    section = replace(section, master=section.master or os.environ.get("LAKEBED_SPARK_MASTER") or LOCAL_MASTER)
    handle, name = tempfile.mkstemp(prefix="lakebed-spark-", suffix=".log")
    log = Path(name)
    # When a query ends, lakebed reports the error itself; PySpark's own messages would repeat it.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger("pyspark").setLevel(logging.CRITICAL)
    start = _Start(section, s3, handle, log)
    # Start in another thread: in the main thread Spark would handle SIGINT itself, and progress could not be shown.
    thread = threading.Thread(target=start, name="lakebed-spark", daemon=True)
    thread.start()
    while thread.is_alive():
        if abandoned():
            log.unlink(missing_ok=True)
            raise Abandoned
        thread.join(LOOK_SECONDS)
    try:
        if start.error is not None:
            raise start.error
        assert start.spark is not None
        yield Driver(start.spark, log)
    finally:
        if start.spark is not None:
            with suppress(Exception):  # the JVM may have exited already, which is fine
                start.spark.stop()
        if start.gateway is not None:
            _end(start.gateway)
    log.unlink(missing_ok=True)


class _Start:
    """Starts the JVM, then the session in it, and keeps the results, or the error, in its fields."""

    def __init__(self, section: SparkSection, s3: bool, handle: int, log: Path) -> None:
        self._section = section
        self._s3 = s3
        self._handle = handle
        self._log = log
        self.gateway: Any = None
        self.spark: SparkSession | None = None
        self.error: BaseException | None = None

    def __call__(self) -> None:
        try:
            self.gateway = _launch(self._section, self._s3, self._handle, self._log)
            conf = _STREAMING | dict(self._section.conf)
            self.spark = sessions.spark("lakebed", self._section.master, s3=self._s3, conf=conf)
        except BaseException as error:
            self.error = error
        finally:
            os.close(self._handle)


def _launch(section: SparkSection, s3: bool, handle: int, log: Path) -> Any:
    from pyspark import SparkConf, SparkContext, accumulators, java_gateway
    from pyspark.errors import PySparkException

    servers: Any = (accumulators.AccumulatorTCPServer, accumulators.AccumulatorUnixServer)
    for server in servers:
        server.handle_error = lambda *_: None  # the original prints a traceback when the JVM ends first
    master = section.master or LOCAL_MASTER
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault(*sessions.PATIENCE)
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
    """One line on why the JVM did not start, from its log."""
    text = log.read_text(errors="replace")
    if (why := why_no_jars(text)) is not None:
        return f"{why}; Spark's log is {log}"
    reason = next(
        (line.strip() for line in text.splitlines() if "rror" in line or "xception" in line), "it ended at once"
    )
    return f"Spark did not start: {reason}; Spark's log is {log}"


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
