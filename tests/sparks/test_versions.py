"""What belongs to a version of Spark, and sessions in which lakebed can't work: one sentence says so, and what works instead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import InvalidInput, MissingPrerequisite
from lakebed.ingest import stream
from lakebed.sparks import session as sessions
from lakebed.sparks import streams, versions
from lakebed.sparks.versions import delta_package, release_of, why_no_delta

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


@pytest.fixture
def delta_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions.importlib.metadata, "version", lambda _: "4.4.0")


@pytest.mark.parametrize(
    ("version", "delta", "hadoop"),
    [
        ("4.0.0", "io.delta:delta-spark_4.0_2.13:4.4.0", "3.4.1"),
        ("4.0.2-amzn-0", "io.delta:delta-spark_4.0_2.13:4.4.0", "3.4.1"),
        ("4.1.4", "io.delta:delta-spark_4.1_2.13:4.4.0", "3.4.2"),
        ("4.2.0", "io.delta:delta-spark_4.2_2.13:4.4.0", "3.5.0"),
        ("4.3.0", None, "3.5.0"),
        ("4.9.0.dev1", None, "3.5.0"),
    ],
)
def test_jars_are_those_of_the_version_of_spark(
    delta_spark: None, version: str, delta: str | None, hadoop: str
) -> None:
    assert delta_package(version) == delta and release_of(version).hadoop == hadoop


def test_without_delta_spark_no_jar_of_delta_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "delta-spark":
            raise versions.importlib.metadata.PackageNotFoundError(name)
        return "4.2.0"

    monkeypatch.setattr(versions.importlib.metadata, "version", version)
    assert "spark.jars.packages" not in sessions.settings(s3=False) and "delta" not in str(sessions.settings(s3=True))
    assert "lakebed[delta]" in why_no_delta("4.2.0") and "no release for Spark 4.3.0" in why_no_delta("4.3.0")


def test_what_does_not_work_without_delta_s_jars_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sessions, "has_class", lambda *_: False)
    sessions.say_once.cache_clear()
    for _ in range(2):
        sessions.require_usable(SimpleNamespace(version="4.3.0"))  # type: ignore[arg-type]
    [said] = caplog.messages
    assert said.startswith('format("delta") does not work in this session, and all of lakebed does')


class Session:
    """A session of this version, which has no JVM to be asked."""

    version = "3.5.9"


Connect = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session", "version": "4.0.0"})


def test_a_spark_that_is_too_old_is_refused_with_what_works_instead() -> None:
    with pytest.raises(MissingPrerequisite, match=r"Spark 3.5.9 is too old.* 4.0 or newer.*table.query\(\)"):
        lakebed.spark(session=Session())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "use",
    [
        lambda table, session: lakebed.spark(session=session),
        lambda table, session: table.read(session),
        lambda table, session: table.create_view(session, "t"),
        lambda table, session: table.maintain(session),
        lambda table, session: table.maintenance.recluster(spark=session),
    ],
    ids=["session", "read", "create_view", "maintain", "recluster"],
)
def test_a_session_of_spark_connect_is_refused_with_what_works_instead(
    tmp_path: Path, use: Callable[[lakebed.Table, Any], object]
) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])
    with pytest.raises(MissingPrerequisite, match=r"Spark Connect.*serverless.*table.query\(\)"):
        use(table, Connect())


def test_a_stream_that_can_t_be_told_its_end_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "TELLS_THE_START", False)
    with pytest.raises(InvalidInput, match=r"availableNow needs Spark 4.2, this is 4.1.4.*processAllAvailable"):
        stream.require_an_end("4.1.4")
