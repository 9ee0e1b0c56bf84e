"""The classes of a session are those of the lakebed that runs in it; else it says what to do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from lakebed.errors import MissingPrerequisite
from lakebed.names.answers import Answers
from lakebed.sparks import names
from lakebed.sparks.names import answer_with, stamp_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OTHER = "lakebed-spark.jar of this session is of another lakebed, or for another Spark than .*lakebed export spark-jar"


def test_releases_of_one_minor_version_have_the_same_classes() -> None:
    assert stamp_of("4.1.4") == stamp_of("4.1.0") != stamp_of("4.2.0")


@pytest.mark.slow
def test_a_jar_of_another_lakebed_is_an_error(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(spark, Answers())
    with monkeypatch.context() as another:
        another.setattr(names, "stamp_of", lambda version: "that of newer classes")
        with pytest.raises(MissingPrerequisite, match=OTHER):
            answer_with(spark, Answers())


@pytest.mark.slow
def test_a_jar_of_before_jars_said_what_they_are_is_an_error(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    jvm = names.jvm_of(spark)
    older = SimpleNamespace(lakebed=SimpleNamespace(Python=jvm.java.lang.System))  # has no method stamp
    monkeypatch.setattr(names, "jvm_of", lambda session: older)
    with pytest.raises(MissingPrerequisite, match=OTHER):
        answer_with(spark, Answers())


@pytest.mark.slow
def test_a_session_without_the_jar_is_an_error(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "has_class", lambda session, name: False)
    with pytest.raises(MissingPrerequisite, match=r"spark.sql.extensions=lakebed.Extensions, but not the jar"):
        answer_with(spark, Answers())
