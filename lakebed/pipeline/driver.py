"""Start Spark for one pipeline: its JVM is detached from the terminal, and its output goes to a file.

The JVM and its Python workers get a process session of their own. So Ctrl-C reaches only this process, which then stops
them in order. Their output goes to a log file, so that the display stays readable. If this process dies, the pipe to the
JVM breaks, and the JVM exits.

Spark only plans and runs the batches of a pipeline here: it reads no Delta table and runs no query of a user. So it starts
without Delta's jars and extensions, and Java starts as suits small work (``java``).
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from lakebed.errors import MissingPrerequisite
from lakebed.pipeline.sections import LakebedSection
from lakebed.pipeline.settings import AnyPipeline, Pipeline
from lakebed.sparks import session as sessions
from lakebed.sparks.java import (
    Java,
    JavaEnded,
    QuickStart,
    command_of_scripts,
    connected,
    end,
    quick_start,
    started,
    use,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_UNRESOLVED_JAR = re.compile(r"unresolved dependency:\s*(.*)")
_DOWNLOAD_FAILED = re.compile(r"\[download failed: (.*?)\]")
_JAR = re.compile(r"([^\s,#]+)#([^\s,;]+);([^\s,!]+)!\S+?\.jar")
_IVY_CACHE = re.compile(r"Ivy Default Cache set to: (.*)")
_TRIED_JAR = re.compile(r"^\s*file:(/\S.*\.jar)\s*$", re.MULTILINE)
_JARS_MAX = 3

StartPhase = Literal["starting Java", "fetching jars", "starting Spark"]

_GIVE_UP_SECONDS = 10.0
LOOK_SECONDS = 0.1
_LOCAL_MASTER = "local[*,4]"  # like a cluster, Spark tries a task four times if it fails or its worker dies
SETTINGS = {
    "spark.sql.streaming.stopTimeout": "20s",
    "spark.log.level": "WARN",
    # Else Spark fills texts of MariaDB's char, enum and set, which bootstrap reads, with spaces.
    "spark.sql.readSideCharPadding": "false",
}
_LOCAL = {
    # On a cluster lakebed may reach the workers only after their daemon has started.
    "spark.python.daemon.module": "lakebed.pipeline.worker_daemon",
}
_RANGES = {
    # A batch is a few rows of offsets: to compile its plan takes longer than to run it.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
_RESOLVING, _RESOLVED = ":: resolving dependencies", ":: retrieving"


@dataclass(frozen=True, slots=True)
class Driver:
    """A running Spark session and the file it logs to. Call ``proven`` when a batch has been committed."""

    spark: SparkSession
    log: Path
    proven: Callable[[], None]


class Abandoned(Exception):
    """The caller no longer wants Spark, which was still starting."""


@dataclass(frozen=True, slots=True)
class _SparkSettings:
    """The settings of a pipeline's Spark. ``own``: those that the user chose; they are in ``conf`` too.

    ``small``: no rows go through the JVM, which runs on this machine: it is started for small work.
    """

    master: str
    conf: Mapping[str, str]
    own: Mapping[str, str]
    small: bool

    @property
    def conf_of_java(self) -> Mapping[str, str]:
        return {**sessions.settings_of_java(self.conf), "spark.master": self.master}


def spark_settings(pipeline: AnyPipeline, maintains: bool = False) -> _SparkSettings:
    """``maintains``: the pipeline only maintains, and reads no source."""
    section = pipeline.spark
    master = section.master or os.environ.get("LAKEBED_SPARK_MASTER") or _LOCAL_MASTER
    is_local = master == "local" or master.startswith("local[")
    # Batches are ranges that Python reads, and no rows go through the JVM, unless Spark itself has a part in it.
    ranges = maintains or not _has_rows(pipeline)
    conf = sessions.settings(_wants_s3(pipeline), delta=False) | sessions.local_settings(master) | SETTINGS
    conf |= (_LOCAL if is_local else {}) | (_RANGES if ranges else {})
    return _SparkSettings(master, sessions.with_own(conf, section.conf), dict(section.conf), is_local and ranges)


class SparkStart:
    """Spark for a pipeline, as it starts in the background. ``maintains``: the pipeline only maintains.

    1. ``begin`` starts Java. 2. ``wait`` starts Spark in it. 3. The end of ``with`` stops Spark, or gives up what still starts.
    One ``with`` may be inside another: the first that ends does that.
    """

    def __init__(self, pipeline: AnyPipeline, *, maintains: bool = False) -> None:
        self._settings = spark_settings(pipeline, maintains)
        self.log = Path(tempfile.gettempdir(), f"lakebed-spark-{uuid.uuid4().hex[:12]}.log")
        self._quick: QuickStart | None = None
        self._java: Java | None = None
        self._connection: Any = None
        self._spark: SparkSession | None = None
        self._error: BaseException | None = None
        self._wanted, self._given_up = threading.Event(), threading.Event()
        self._has_ended = False
        # When a query ends, lakebed reports the error itself; PySpark's own messages would repeat it.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        logging.getLogger("pyspark").setLevel(logging.CRITICAL)
        logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
        # Start in another thread: in the main thread Spark would handle SIGINT itself, and progress could not be shown.
        self._thread = threading.Thread(target=self._start, name="lakebed-spark", daemon=True)

    @property
    def phase(self) -> StartPhase:
        """How far the start is."""
        if self._connection is not None:
            return "starting Spark"
        return phase_of_java(self.log.read_text(errors="replace") if self.log.exists() else "")

    def begin(self) -> None:
        """Start Java. Nothing of the pipeline is used yet but its settings of Spark."""
        os.close(os.open(self.log, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        self._thread.start()

    def __enter__(self) -> SparkStart:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        self._given_up.set()
        self._wanted.set()
        if self._thread.ident is not None:
            self._thread.join(_GIVE_UP_SECONDS)
        self._close_archive()
        if self._thread.is_alive():  # Spark is being started in Java, and can't be interrupted
            if self._java is not None:
                self._java.process.kill()
                self._java.process.wait()
            self.log.unlink(missing_ok=True)
            return
        if self._spark is not None:
            with suppress(Exception):  # the JVM may have exited already, which is fine
                self._spark.stop()
        if self._connection is not None:
            end(self._connection)
        if kind is None or (self._spark is None and self._error is None):  # else it may hold the cause
            self.log.unlink(missing_ok=True)

    def wait(self, abandoned: Callable[[], bool]) -> Driver:
        """The driver, once Spark runs. ``abandoned`` is called repeatedly until then: if it returns True, this raises
        Abandoned. Raises MissingPrerequisite if Spark does not start."""
        self._wanted.set()
        while self._thread.is_alive():
            if abandoned():
                raise Abandoned
            self._thread.join(LOOK_SECONDS)
        if self._error is not None:
            raise self._error
        assert self._spark is not None
        return Driver(self._spark, self.log, self._proven)

    def _proven(self) -> None:
        """Java has done the work of a pipeline: what it learned is worth keeping."""
        if self._quick is not None and self._java is not None:
            self._quick.keep_classes(self._java)

    def _start(self) -> None:
        try:
            sessions.prepare_environment(self._settings.master)
            self._java = self.quick_java()
            self._wanted.wait()  # meanwhile the main thread imports PySpark: two threads at once would trip over each other
            if self._given_up.is_set():
                return
            if self._java is None:
                self._java = self.java_by_scripts()
            self._connection = gateway = connected(self._java)
            self._spark = self._session(gateway)
        except BaseException as error:
            if not self._given_up.is_set():
                self._error = error
        finally:
            if self._connection is None:
                if self._java is not None:
                    self._java.process.kill()
                    self._java.process.wait()
                self._close_archive()

    def _close_archive(self) -> None:
        if self._quick is not None and self._quick.archive is not None:
            self._quick.archive.close()

    def _session(self, gateway: Any) -> SparkSession:
        use(gateway)
        return sessions.start_session("lakebed", self._settings.master, self._settings.conf)

    def quick_java(self) -> Java | None:
        """Java for small work; None if it is not the pipeline's, or does not start."""
        self._quick = quick_start(self._settings.own) if self._settings.small else None
        if self._quick is None:
            return None
        try:
            return self._quick.launch(self._settings.conf_of_java, self.log, self._given_up.is_set)
        except (JavaEnded, OSError):
            if self._quick.archive is not None and not self._given_up.is_set() and not self._lacks_jars():
                self._quick.archive.discard()
            return None

    def java_by_scripts(self) -> Java:
        """Java as Spark's own scripts start it. Raises MissingPrerequisite."""
        sessions.require_java()
        if not self._lacks_jars():
            with suppress(JavaEnded):
                command = command_of_scripts(self._settings.conf_of_java)
                environment = {**os.environ, "SPARK_CONNECT_MODE": "0"}
                return started(command, environment, self.log, self._given_up.is_set)
        raise MissingPrerequisite(_why_not(self.log))

    def _lacks_jars(self) -> bool:
        return why_no_jars(self.log.read_text(errors="replace")) is not None


def phase_of_java(log: str) -> StartPhase:
    """What Java does before Spark starts, by what it has logged."""
    return "fetching jars" if _RESOLVING in log and _RESOLVED not in log else "starting Java"


def _why_not(log: Path) -> str:
    """One line on why the JVM did not start, from its log."""
    text = log.read_text(errors="replace")
    if (why := why_no_jars(text)) is not None:
        return f"{why}; Spark's log is {log}"
    reason = next(
        (line.strip() for line in text.splitlines() if "rror" in line or "xception" in line), "it ended at once"
    )
    return f"Spark did not start: {reason}; Spark's log is {log}"


def _has_rows(pipeline: AnyPipeline) -> bool:
    """Whether Spark itself computes rows, or reads them."""
    return isinstance(pipeline, Pipeline) and (pipeline.computes_in_spark or pipeline.bootstrap is not None)


def _wants_s3(pipeline: AnyPipeline) -> bool:
    places = [pipeline.path, pipeline.checkpoint or ""]
    if isinstance(pipeline.source, LakebedSection):
        places.append(pipeline.source.path)
    if isinstance(pipeline, Pipeline) and pipeline.bootstrap is not None:
        places.append(pipeline.bootstrap.path or "")
    return any(place.startswith(("s3:", "s3a:")) for place in places)


def why_no_jars(log: str) -> str | None:
    """Why Spark did not get its jars, from what Ivy wrote into the log, and what to do; None if the jars are not what is wrong.

    Where nothing was found in any repository, Ivy says ``unresolved dependency``. It says ``download failed`` where a local
    repository has a jar's description without the jar, because an earlier download was cut off there. Ivy then asks no other
    repository, and its cache remembers that, so both folders must go.
    """
    if failed := _DOWNLOAD_FAILED.search(log):
        jars = _JAR.findall(failed[1])
        what = ", ".join(":".join(jar) for jar in jars[:_JARS_MAX]) or failed[1]
        if folders := _half_filled(log, jars):
            return (
                f"the local repository of jars is half-filled: it has the description of {what} and not the jar. "
                f"Delete {' and '.join(folders)}, and start again"
            )
        return f"Spark's jars can't be downloaded ({what}): the repository broke off; start again"
    if missing := sorted({each.strip() for each in _UNRESOLVED_JAR.findall(log)}):
        return (
            f"Spark's jars can't be downloaded ({', '.join(missing[:_JARS_MAX])}): allow access to a Maven "
            "repository once, or set a mirror with spark.conf: {spark.jars.repositories: https://…} in the pipeline file"
        )
    return None


def _half_filled(log: str, jars: list[tuple[str, str, str]]) -> list[str]:
    """The folders of local repositories that have a part of these jars, and then what Ivy's cache remembers of them."""
    tried = [Path(path).parent for path in _TRIED_JAR.findall(log)]
    found = [folder for folder in dict.fromkeys(tried) if folder.is_dir() and not list(folder.glob("*.jar"))]
    if not found:
        return []
    if cache := _IVY_CACHE.search(log):
        found += [Path(cache[1].strip(), group, name) for group, name, _ in jars]
    return [str(folder) for folder in found if folder.is_dir()]
