"""Fixtures for real servers, a Spark session, and the marker that keeps slow tests out of the fast subset.

A server that can't be started is a failure, never a skip: a test that did not run proves nothing.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

# So that `tests.infra` is found whatever way pytest was started.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lakebed import events
from lakebed.decode.native.build import NotBuilt
from lakebed.decode.native.build import build_if_needed as build_native_code
from tests.infra.debezium import DebeziumServer
from tests.infra.debezium_mariadb import DistributedMariaDb
from tests.infra.fault_proxy import FaultProxy
from tests.infra.kafka import KafkaServer
from tests.infra.mariadb import MariaDbServer
from tests.infra.metastore import MetastoreServer
from tests.infra.postgres import PostgresServer
from tests.infra.registry import RegistryServer
from tests.infra.rest_catalog import RestCatalogServer
from tests.infra.s3 import S3Server, aws_environment
from tests.infra.spark_start import spark_environment
from tests.scheduling import NearItsServers
from tests.stepping import Steps
from tests.waiting import wait_until
from tests.worlds import TIMES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

settings.register_profile(
    "lakebed",
    deadline=None,  # no test needs a quick machine
    max_examples=15 * TIMES,
    derandomize=TIMES == 1,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("lakebed")

SLOW_FIXTURES = frozenset(
    {"spark", "kafka", "postgres", "debezium", "registry", "mariadb", "debezium_mariadb", "s3", "flaky_s3"}
)

MEMORY = Path("/dev/shm")
MEMORY_BYTES_FREE_MIN = 8 << 30

WORKING = tuple(f"lakebed-{what}" for what in ("maintain", "merge", "chore", "lease", "look", "job", "listen"))


def pytest_configure(config: pytest.Config) -> None:
    # A shell has what it starts in the background ignore it, and so would all processes of the tests.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()  # until all tests are there: a quarter of the time goes into looking at what all stays
    _keep_files_in_memory(config)
    # Spark's workers must be the Python that runs the tests, and nothing may listen beyond loopback.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ |= spark_environment()
    with suppress(NotBuilt):  # tests/decode/test_native_json.py fails without it, and says why
        build_native_code()


def _keep_files_in_memory(config: pytest.Config) -> None:
    """Tests wait for disks a quarter of their time otherwise: each commit is flushed. ``TMPDIR`` says another folder."""
    if "TMPDIR" in os.environ or not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < MEMORY_BYTES_FREE_MIN:
        return
    folder = tempfile.mkdtemp(prefix="lakebed-tests-", dir=MEMORY)
    os.chmod(folder, 0o1777)  # like /tmp: PostgreSQL runs as another user
    os.environ["TMPDIR"] = tempfile.tempdir = folder  # processes of the tests have it too, and so do pytest's
    os.environ.setdefault(
        "LAKEBED_CACHE_DIR", f"{folder}/cache"
    )  # nor are indexes of tables left for whoever runs tests
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _leave_few_cases(items)
    for item in items:
        if item.get_closest_marker("long") or SLOW_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.worlds)
    # Long files first, or one of several processes would work alone at the end.
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def _leave_few_cases(items: list[pytest.Item]) -> None:
    """Of a test with the mark ``few`` so many cases stay, the same each time, and the others are ``long``."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("few") and not item.get_closest_marker("long"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, of_one in cases.items():
        mark = of_one[0].get_closest_marker("few")
        assert mark is not None
        stay = random.Random(name).sample(
            of_one, min(mark.args[0], len(of_one))
        )  # by chance, or one argument might be the same in all
        for item in of_one:
            if item not in stay:
                item.add_marker(pytest.mark.long)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> NearItsServers | None:
    return NearItsServers(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(autouse=True)
def nothing_of_a_test_goes_on_listening() -> Iterator[None]:
    """Whoever listens to events, logging or SIGTERM for a test does so no longer than the test."""
    root, terminated = logging.getLogger(), signal.getsignal(signal.SIGTERM)
    listeners, level, handlers = events.listeners(), root.level, list(root.handlers)
    yield
    for listener in set(events.listeners()).difference(listeners):
        events.listen(listener)()  # what ends it
    signal.signal(signal.SIGTERM, terminated)
    root.setLevel(level)
    for handler in set(root.handlers).difference(handlers):
        root.removeHandler(handler)


@pytest.fixture(autouse=True)
def nothing_of_a_test_goes_on_working() -> Iterator[None]:
    """Maintenance that nobody stopped would work beside all later tests of the process, and be counted by some of them."""
    before = set(threading.enumerate())
    yield
    began = [thread for thread in threading.enumerate() if thread.name.startswith(WORKING) and thread not in before]

    def working() -> list[str]:
        return [thread.name for thread in began if thread.is_alive()]

    wait_until(
        lambda: not working(), lambda: f"threads that the test began still work: {working()}", still_seconds_max=5
    )


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process keeps on disk beside tables, such as key indexes, is in a folder of the test."""
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Maintenance and workers of fleets have no threads in this test: it runs their jobs, by its own clock."""
    return Steps(monkeypatch)


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaServer]:
    """A Kafka broker; topics are the tests' own, so give them names of their own."""
    with KafkaServer() as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server with logical decoding; make a database of your own in it."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def debezium(kafka: KafkaServer, postgres: PostgresServer) -> Iterator[DebeziumServer]:
    """Debezium between ``postgres`` and ``kafka``: call ``capture``."""
    with DebeziumServer(kafka, postgres) as server:
        yield server


@pytest.fixture(scope="session")
def registry() -> Iterator[RegistryServer]:
    """A schema registry; give your subjects names of your own."""
    with RegistryServer() as server:
        yield server


@pytest.fixture(scope="session")
def metastore() -> Iterator[MetastoreServer]:
    """A metastore of Hive; make a database of your own in it."""
    with MetastoreServer() as server:
        yield server


@pytest.fixture(scope="session")
def rest_catalog() -> Iterator[RestCatalogServer]:
    """A REST catalog of Iceberg; make a namespace of your own in it."""
    with RestCatalogServer() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDbServer]:
    """A MariaDB server with a binary log of rows; make a database of your own in it."""
    with MariaDbServer() as server:
        yield server


@pytest.fixture(scope="session")
def debezium_mariadb(kafka: KafkaServer, mariadb: MariaDbServer) -> Iterator[DistributedMariaDb]:
    """Debezium between ``mariadb`` and ``kafka``: call ``capture``."""
    with DistributedMariaDb(kafka, mariadb) as server:
        yield server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """The S3 server without the environment that points at it."""
    with S3Server() as server:
        yield server


@pytest.fixture
def s3(s3_server: S3Server) -> Iterator[S3Server]:
    """The S3 server, with the AWS variables set for the length of the test; call ``create_bucket``."""
    with aws_environment(s3_server.endpoint):
        yield s3_server


@pytest.fixture
def flaky_s3(s3_server: S3Server) -> Iterator[FaultProxy]:
    """A proxy to the S3 server, with the AWS variables pointing at it; no faults until the test asks for them."""
    with FaultProxy(s3_server.ports[0]) as proxy, aws_environment(proxy.endpoint):
        yield proxy


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local Spark session with Delta and lakebed, shared by all tests."""
    import lakebed

    # With S3's jars always, so that what a session can do does not depend on which test came first.
    session = lakebed.spark(app_name="tests", master="local[2]", s3=True)
    yield session
    session.stop()
