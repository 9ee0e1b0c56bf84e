"""A session of Spark: the settings that lakebed needs, and how it starts.

The jars come once through Spark's own dependency resolution and stay in its cache. Libraries that Spark has already are
left out, so that no class is there twice.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakebed.errors import MissingPrerequisite
from lakebed.sparks.jvm import has_class, jvm_of
from lakebed.sparks.names import EXTENSIONS, add_to, write_jar
from lakebed.sparks.versions import delta_package, release_of, require_supported, spark_version, why_no_delta

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_AWS_SDK = tuple(
    f"software.amazon.awssdk:{name}:2.35.4" for name in ("s3", "s3-transfer-manager", "sts", "apache-client")
)
_EXCLUDED = (
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.apache.hadoop:hadoop-common",
    "org.apache.parquet:*",
    "org.apache.logging.log4j:*",
    "org.slf4j:*",
    "com.fasterxml.jackson.core:*",
    "com.fasterxml.jackson.datatype:*",
    "io.unitycatalog:*",
    "org.xerial.snappy:*",
    "com.github.luben:*",
    "software.amazon.awssdk:bundle",
    "org.wildfly.openssl:wildfly-openssl",
    "io.netty:*",
)
_PATIENCE = ("SPARK_AUTH_SOCKET_TIMEOUT", "120")
"""An environment variable: the seconds that Spark's Python side waits for an answer of its Java side."""
# how long Spark's client of S3 waits for a byte; Hadoop makes it 15 s, whatever is set, until it is told to take less
S3A_SECONDS = 5
_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_SECRET = re.compile("secret|password|token|access[.]?key", re.IGNORECASE)  # spark.redaction.regex
_logger = logging.getLogger("lakebed.spark")
_EXTENSIONS = "spark.sql.extensions"
_LISTS = ("spark.jars.packages", "spark.jars.excludes", _EXTENSIONS)


def require_java() -> None:
    """Raises MissingPrerequisite unless a Java of at least 17 can be started."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    hint = "install Java 17 or newer (Debian: openjdk-17-jre-headless) or set JAVA_HOME"
    if not java or not os.path.exists(java):
        raise MissingPrerequisite(f"Spark needs Java, and there is none: {hint}")
    text = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    number = text.split('"')[1].split(".")[0] if '"' in text else ""
    if number.isdecimal() and int(number) < 17:
        raise MissingPrerequisite(f"Spark needs Java 17 or newer, {java} is Java {number}: {hint}")


def wants_s3(s3: bool | None) -> bool:
    """What the caller says, or whether the environment says where an object store is."""
    if s3 is not None:
        return s3
    return any(os.environ.get(name) for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ACCESS_KEY_ID"))


def settings(s3: bool, delta: bool = True) -> dict[str, str]:
    """The Spark settings that lakebed asks for. ``delta``: with Delta's jars, if there are any for this Spark."""
    version = spark_version()
    delta_jars = delta_package(version) if delta else None
    packages = [delta_jars] if delta_jars else []
    if s3:
        packages += [f"org.apache.hadoop:hadoop-aws:{release_of(version).hadoop}", *_AWS_SDK]
    out = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # A busy machine may take longer than 15 s to start a Python worker; that is no reason to end a stream.
        "spark.python.authenticate.socketTimeout": "120s",
    }
    if packages:
        out |= {"spark.jars.packages": ",".join(packages), "spark.jars.excludes": ",".join(_EXCLUDED)}
    if delta_jars:
        out |= {
            "spark.sql.extensions": _EXTENSION,
            "spark.sql.catalog.spark_catalog": _CATALOG,
            # Delta's own state is read for its schema only: two tasks are enough, not fifty.
            "spark.databricks.delta.snapshotPartitions": "2",
        }
    if s3:
        out |= _s3a()
    else:
        # Spark weighs opening a file as 4 MB of it, which is right for an object store. On a disk it is a millisecond. By
        # Spark's default the large part of a small table is one task, and one core reads it alone.
        out["spark.sql.files.openCostInBytes"] = str(128 * 1024)
    return out


def with_own(needed: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Settings with a user's own, which win. In lists, such as that of packages, both are."""
    joined = {name: f"{needed[name]},{own[name]}" for name in _LISTS if needed.get(name) and own.get(name)}
    return {**needed, **own, **joined}


def local_settings(master: str) -> dict[str, str]:
    """What is set besides if Spark runs on this machine alone."""
    if not master.startswith("local"):
        return {}
    return {"spark.driver.host": "127.0.0.1", "spark.sql.shuffle.partitions": str(os.cpu_count() or 2)}


def prepare_environment(master: str) -> None:
    """Set the environment variables that Spark's processes need, unless they are set."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault(*_PATIENCE)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _s3a() -> dict[str, str]:
    # Without these a stream's checkpoint waits for minutes for an answer that a network has lost, and for half a minute between
    # two tries when the store is back. A stream that fails is started again anyway.
    out = {
        "spark.hadoop.fs.s3a.connection.establish.timeout": f"{S3A_SECONDS}s",
        "spark.hadoop.fs.s3a.connection.timeout": f"{S3A_SECONDS}s",
        "spark.hadoop.fs.s3a.connection.request.timeout": f"{3 * S3A_SECONDS}s",
        # What an outage may have cost is not used again.
        "spark.hadoop.fs.s3a.connection.idle.time": f"{S3A_SECONDS}s",
        "spark.hadoop.fs.s3a.attempts.maximum": "2",
        "spark.hadoop.fs.s3a.retry.limit": "3",
        # Each pause is twice as long as the one before, and there would be twenty of them while a store is busy (503).
        "spark.hadoop.fs.s3a.retry.throttle.limit": "3",
    }
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        out |= {
            "spark.hadoop.fs.s3a.endpoint": endpoint,
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.connection.ssl.enabled": str(endpoint.startswith("https")).lower(),
        }
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region:
        out["spark.hadoop.fs.s3a.endpoint.region"] = region
    return out | executor_environment()


def executor_environment() -> dict[str, str]:
    """What this process knows of an object store, as settings that make it known to the tasks on other machines."""
    names = (
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "AWS_REGION",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
    )
    return {f"spark.executorEnv.{name}": os.environ[name] for name in names if os.environ.get(name)}


def settings_of_java(conf: Mapping[str, str]) -> dict[str, str]:
    """The settings that Java is started with. It gets secrets later: each user of the machine can read its command line."""
    return {name: value for name, value in conf.items() if not _SECRET.search(name)}


def build(app_name: str, master: str | None, s3: bool, conf: Mapping[str, str]) -> SparkSession:
    """A new session for queries and ingest of a user's program. Raises MissingPrerequisite."""
    require_java()
    given = _submitted()
    master = master or given.pop("spark.master", None) or os.environ.get("LAKEBED_SPARK_MASTER") or "local[*]"
    prepare_environment(master)
    wanted = with_own(settings(s3) | local_settings(master), {**given, **conf})
    return start_session(app_name, master, wanted, names=True)


def _submitted() -> dict[str, str]:
    """The settings of a program that ``spark-submit`` started: its Java runs already, and has them."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    given = dict(SparkConf().getAll())
    given.pop("spark.app.name", None)
    return given


def start_session(app_name: str, master: str, conf: Mapping[str, str], names: bool = False) -> SparkSession:
    """A session with these settings and no others. ``names``: and with what gives tables names in SQL, if its Java takes that.

    Raises MissingPrerequisite if Spark does not start.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException, PySparkRuntimeError
    from pyspark.sql import SparkSession as Session

    builder = Session.builder.appName(app_name).master(master)
    for name, value in conf.items():
        builder = builder.config(name, value)
    shown = {"spark.master": master, "spark.app.name": app_name, **settings_of_java(conf)}
    try:
        SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(list(shown.items())))
        if names and add_to(SparkContext._jvm, spark_version()):
            builder = builder.config(_EXTENSIONS, ",".join(filter(None, (EXTENSIONS, conf.get(_EXTENSIONS)))))
        session = builder.getOrCreate()
        _be_impatient_with_s3(session)
        return session
    except (PySparkRuntimeError, PySparkException) as error:
        raise MissingPrerequisite(
            f"Spark did not start: {str(error).splitlines()[0]} (if its jars could not be fetched, allow access to a Maven "
            f"repository once, or set spark.jars.repositories; wanted: {conf.get('spark.jars.packages', 'none')})"
        ) from error


def write_jars(folder: Path) -> tuple[str, str]:
    """Write all jars that the installed Spark needs to find tables by name and to read them where no lakebed runs.

    Returns the version of Spark, and why Delta's jars are not among them; empty if they are. Raises MissingPrerequisite.
    """
    from pyspark import SparkContext

    folder.mkdir(parents=True, exist_ok=True)
    version = write_jar(folder / "lakebed-spark.jar")
    delta = delta_package(version)
    if delta is None:
        has_delta = release_of(version).has_delta
        return version, "install lakebed[delta]" if has_delta else f"Delta has no release for Spark {version} yet"
    jvm: Any = SparkContext._jvm
    try:
        found = jvm.org.apache.spark.util.DependencyUtils.resolveMavenDependencies(
            True, ",".join(_EXCLUDED), delta, None, None, jvm.scala.Option.empty()
        )
    except Exception as error:  # Py4J's, whose text begins with what Java says
        reason = str(error).strip().splitlines()[-1]
        raise MissingPrerequisite(
            f"Delta's jars could not be fetched ({reason}): allow access to a Maven repository once"
        ) from error
    for at in range(found.size()):
        shutil.copy(found.apply(at).removeprefix("file:"), folder)
    return version, ""


def _be_impatient_with_s3(session: SparkSession) -> None:
    """Let Hadoop take ``S3A_SECONDS`` at their word."""
    name = "org.apache.hadoop.fs.s3a.impl.AWSClientConfig"
    if has_class(session, name):  # else the session is without S3
        jvm = jvm_of(session)
        jvm.org.apache.hadoop.fs.s3a.impl.AWSClientConfig.setMinimumOperationDuration(
            jvm.java.time.Duration.ofSeconds(S3A_SECONDS)
        )


def require_usable(session: SparkSession) -> None:
    """Raises MissingPrerequisite unless lakebed can work in the session; what does not work in it is logged once."""
    require_supported(session.version)
    if not has_class(session, _EXTENSION):
        say_once(why_no_delta(session.version))


@cache
def say_once(text: str) -> None:
    """Log a warning, if this process has not done so."""
    _logger.warning("%s", text)
