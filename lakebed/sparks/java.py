"""Java for a pipeline: started quickly, reached by PySpark, and ended.

Its Spark plans small batches of ranges, and runs no query of a user. So:

1. Only the first compiler, and the serial collector: such a driver never runs long enough in one place for the others to pay.
2. Classes come from an archive instead of hundreds of jars.
3. Java is started directly, without ``SPARK_HOME``. With it, Spark's Python processes would take PySpark from a zip file that
   holds no compiled modules, so each of them would compile it again.

Nothing here may keep Java from starting. An option of the user's leaves ours out; and if Java does not start this way, Spark's
own scripts start it (``driver``).
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lakebed.storage.local_folders import base_folder

# -- An archive of the classes that Java loads when it starts --------------------------------------------------------------
#
# 1. Where there is none yet, Java lists the classes that it loads.
# 2. When the run has committed a batch, a process of the lowest priority makes the archive from this list. It ends with the run.
# 3. The archive is written beside its place and then renamed: nobody reads half of one, and of several processes the last one
#    wins.
#
# The name of the file stands for the Java, its options and the jars, so after an upgrade another one is made. Java itself goes
# without an archive that does not fit. Where the cache folder can't be written, nothing is made.


_ARCHIVES_MAX = 2
MAKE_AFTER_SECONDS = 20.0
"""The first batches have the processor for themselves."""
_LEFT_BEHIND_SECONDS = 86_400.0


@dataclass(slots=True)
class ClassArchive:
    """The archive of one kind of start. ``classes``: the list that Java writes, if there is no archive yet."""

    file: Path
    classes: Path | None
    _over: threading.Event = field(default_factory=threading.Event)
    _making: threading.Thread | None = None

    @property
    def option(self) -> str:
        """The option of Java that reads the archive, or has the classes listed."""
        if self.classes is None:
            return f"-XX:SharedArchiveFile={self.file}"
        return f"-XX:DumpLoadedClassList={self.classes}"

    def make(self, java: Sequence[str], class_path: str) -> None:
        """Make the archive in the background, if there is none, with this command and these options of Java."""
        if self.classes is not None and self._making is None:
            self._making = threading.Thread(
                target=self._make, args=(java, class_path), name="lakebed-class-archive", daemon=True
            )
            self._making.start()

    def discard(self) -> None:
        """Remove the archive: Java did not start with it."""
        with suppress(OSError):
            self.file.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """End the process that makes the archive, and remove the list."""
        self._over.set()
        if self._making is not None:
            self._making.join()
        if self.classes is not None:
            with suppress(OSError):
                self.classes.unlink(missing_ok=True)

    def _make(self, java: Sequence[str], class_path: str) -> None:
        assert self.classes is not None
        if self._over.wait(MAKE_AFTER_SECONDS):
            return
        with suppress(OSError), tempfile.TemporaryDirectory(dir=self.file.parent, suffix=".part") as folder:
            listed, made = Path(folder, "classes"), Path(folder, "archive")
            listed.write_bytes(
                self.classes.read_bytes().rpartition(b"\n")[0] + b"\n"
            )  # Java still writes its last line
            options = [
                "-Xshare:dump",
                f"-XX:SharedClassListFile={listed}",
                f"-XX:SharedArchiveFile={made}",
                "-Xlog:disable",
            ]
            process = subprocess.Popen(
                ["nice", "-n", "19", *java, *options, "-cp", class_path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            while process.poll() is None:
                if self._over.wait(0.2):
                    process.kill()
            if process.wait() == 0 and made.stat().st_size:
                os.replace(made, self.file)
        with suppress(OSError):
            _tidy(self.file.parent)


def class_archive(identity: Sequence[object]) -> ClassArchive | None:
    """The archive of the starts that have this identity; None if there is none and none can be written."""
    name = hashlib.blake2b(repr(identity).encode(), digest_size=12).hexdigest()
    folder = base_folder() / "java"
    file = folder / f"{name}.jsa"
    try:
        if file.exists():
            return ClassArchive(file, None)
        folder.mkdir(parents=True, exist_ok=True)
        handle, classes = tempfile.mkstemp(dir=folder, suffix=".classes")
        os.close(handle)
    except OSError:
        return None
    return ClassArchive(file, Path(classes))


def _tidy(folder: Path) -> None:
    """Keep the newest archives, and remove lists that a process left behind when it was killed."""
    for file in sorted(folder.glob("*.jsa"), key=lambda file: file.stat().st_mtime)[:-_ARCHIVES_MAX]:
        file.unlink()
    for file in folder.glob("*.classes"):
        if time.time() - file.stat().st_mtime > _LEFT_BEHIND_SECONDS:
            file.unlink()


# -- Start Java for a pipeline quickly -------------------------------------------------------------------------------------


_COMPILER = "-XX:TieredStopAtLevel=1"
_COLLECTOR = "-XX:+UseSerialGC"
_HEAP = "-Xms64m -XX:MinHeapFreeRatio=10 -XX:MaxHeapFreeRatio=30"
ENVIRONMENT = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
"""The variables in which a user gives Java options."""
_CONF = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")
_LOOK_SECONDS = 0.02
_STOP_SECONDS = 10.0


class JavaEnded(Exception):
    """Java did not start, or ended before it was ready."""


@dataclass(frozen=True, slots=True)
class Java:
    """A JVM that waits for PySpark: where it listens, the secret that it wants to hear, and its class path, if it is known."""

    process: subprocess.Popen[bytes]
    port: int
    secret: str = field(repr=False)
    class_path: str


@dataclass(frozen=True, slots=True)
class QuickStart:
    """How Java starts: the folder of Spark's jars, options, and the archive of classes, if the cache folder can be used."""

    jars: Path
    options: tuple[str, ...]
    archive: ClassArchive | None

    def launch(self, conf: Mapping[str, str], log: Path, given_up: Callable[[], bool] = lambda: False) -> Java:
        """Start Java with these settings of Spark, its output into a file. Raises JavaEnded, also if it is given up."""
        environment = self._environment()
        command = self._command(conf, environment)
        return started(command, environment, log, given_up, class_path=command[command.index("-cp") + 1])

    def keep_classes(self, java: Java) -> None:
        """Java has done the work of a pipeline: make an archive of its classes, if there is none."""
        if self.archive is not None:
            self.archive.make([java_path(), *self.options], java.class_path)

    def _environment(self) -> dict[str, str]:
        environment = {name: text for name, text in os.environ.items() if name != "SPARK_HOME"}
        archive = ["-Xshare:auto", "-Xlog:disable", self.archive.option] if self.archive is not None else []
        ours = " ".join([*self.options, *archive])
        environment["SPARK_SUBMIT_OPTS"] = f"{ours} {environment.get('SPARK_SUBMIT_OPTS', '')}"
        # Spark would start a Python process that looks for installed data sources. It does not if it finds no Python for it.
        environment |= {"PYSPARK_DRIVER_PYTHON": "/nowhere/python", "SPARK_CONNECT_MODE": "0", "PYTHONHASHSEED": "0"}
        for name, text in (("MALLOC_ARENA_MAX", "2"), ("OPENBLAS_NUM_THREADS", "1")):
            environment.setdefault(name, text)
        return environment

    def _command(self, conf: Mapping[str, str], environment: dict[str, str]) -> list[str]:
        """The command by which Spark's scripts would start Java; Spark's launcher says it."""
        launcher = next(self.jars.glob("spark-launcher_*.jar"), None)
        if launcher is None:
            raise JavaEnded
        scala = launcher.name.split("_")[1].split("-")[0]
        settings = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
        done = subprocess.run(
            [
                java_path(),
                _COMPILER,
                _COLLECTOR,
                "-cp",
                str(launcher),
                "org.apache.spark.launcher.Main",
                "org.apache.spark.deploy.SparkSubmit",
                *settings,
                "pyspark-shell",
            ],
            env=environment | {"SPARK_HOME": str(self.jars.parent), "SPARK_SCALA_VERSION": scala},
            capture_output=True,
            check=False,
        )
        # What it prints is an empty line, then words that each end with a null byte.
        words = [word.decode() for word in done.stdout.partition(b"\n")[2].split(b"\0")[:-1]]
        if done.returncode or "-cp" not in words:
            raise JavaEnded
        return words


def started(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    given_up: Callable[[], bool],
    *,
    class_path: str = "",
) -> Java:
    """Run a command that starts Java for PySpark, and wait until it listens. Raises JavaEnded, also if it is given up."""
    with tempfile.TemporaryDirectory(prefix="lakebed-java-") as folder, log.open("ab") as out:
        port_file = Path(folder, "port")
        if given_up():
            raise JavaEnded
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**environment, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(port_file)},
        )
        while not port_file.exists():  # Java renames it to there
            if process.poll() is not None or given_up():
                process.kill()
                process.wait()
                raise JavaEnded
            time.sleep(_LOOK_SECONDS)
        text = port_file.read_bytes()
    port, length = struct.unpack("!ii", text[:8])
    return Java(process, port, text[8 : 8 + length].decode(), class_path)


def quick_start(conf: Mapping[str, str]) -> QuickStart | None:
    """How to start Java with a user's settings of Spark; None if Spark is not the one that PySpark brings along."""
    spec = importlib.util.find_spec("pyspark")
    other_python = os.environ.get("PYSPARK_PYTHON", sys.executable) != sys.executable
    if spec is None or spec.origin is None or "SPARK_HOME" in os.environ or other_python or os.name != "posix":
        return None
    jars = Path(spec.origin).parent / "jars"
    own = " ".join([*(os.environ.get(name, "") for name in ENVIRONMENT), *(conf.get(name, "") for name in _CONF)])
    options: list[str] = []
    if "Tiered" not in own:
        options.append(_COMPILER)
    if "GC" not in own:
        options.append(_COLLECTOR)
    if "-Xms" not in own and "HeapSize" not in own:
        options += _HEAP.split()
    archive = None
    if not any(word in own for word in ("SharedArchiveFile", "ArchiveClassesAtExit", "ClassList", "-Xshare")):
        archive = class_archive((*_identity(Path(java_path())), version("pyspark"), *_identity(jars), *options))
    return QuickStart(jars, tuple(options), archive)


def java_path() -> str:
    """The path of Java, or its name if it is not found."""
    home = os.environ.get("JAVA_HOME")
    return os.path.join(home, "bin", "java") if home else shutil.which("java") or "java"


def _identity(path: Path) -> tuple[str, str, int]:
    """A path, what it leads to, and when that was changed."""
    real = os.path.realpath(path)
    return str(path), real, os.stat(real).st_mtime_ns if os.path.exists(real) else 0


# -- Java and PySpark ------------------------------------------------------------------------------------------------------


def connected(java: Java) -> Any:
    """The gateway to a JVM that listens."""
    from pyspark import java_gateway

    address = {"PYSPARK_GATEWAY_PORT": str(java.port), "PYSPARK_GATEWAY_SECRET": java.secret}
    os.environ.update(address)  # where PySpark looks
    try:
        launch: Any = java_gateway.launch_gateway
        gateway = launch()
    finally:
        for name in address:
            del os.environ[name]
    gateway.proc = java.process
    return gateway


def command_of_scripts(conf: Mapping[str, str]) -> list[str]:
    """The command by which PySpark starts Java."""
    from pyspark.find_spark_home import _find_spark_home

    home: str = _find_spark_home()
    settings = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    more = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    return [os.path.join(home, "bin", "spark-submit"), *settings, *more]


def use(gateway: Any) -> None:
    """Let PySpark start its sessions in this JVM, and not complain when the JVM ends first."""
    from pyspark import SparkContext, accumulators

    for name in ("AccumulatorServer", "AccumulatorTCPServer", "AccumulatorUnixServer"):  # it depends on the version
        server: Any = getattr(accumulators, name, None)
        if server is not None:
            server.handle_error = lambda *_: None  # the original prints a traceback
    SparkContext._ensure_initialized(gateway=gateway)


def end(gateway: Any) -> None:
    """End a JVM that was started here."""
    with suppress(Exception):
        gateway.shutdown()
    process: subprocess.Popen[bytes] = gateway.proc
    with suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
