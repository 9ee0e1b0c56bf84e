"""A table whose topic is gone says so in its log, until the topic is there again."""

from __future__ import annotations

from pathlib import Path

import pytest

import lakebed
from lakebed.errors import Retry
from lakebed.health.status import Observer
from lakebed.pipeline.database.work import VanishedTopics
from lakebed.positions.resnapshots import topic_gone_of
from tests.internals import log_of
from tests.sources.memory_source import COLUMNS


def test_a_topic_that_is_gone_is_found_in_the_status_of_its_table(tmp_path: Path) -> None:
    logs = {f"shop.public.{name}": log_of(lakebed.create(tmp_path / name, COLUMNS)) for name in ("kept", "dropped")}
    there = set(logs)
    watching = [VanishedTopics(lambda: there, lambda: logs) for _ in range(2)]

    def look() -> list[str]:
        for one in watching:
            one.look()
        return [topic for topic, log in logs.items() if topic_gone_of(log.refresh()) is not None]

    def found(name: str) -> list[str]:
        return [one.what for one in Observer(str(tmp_path / name)).look().findings if one.check == "topic"]

    assert look() == look() == []
    there.remove("shop.public.dropped")
    assert look() == [], "brokers that have just started do not know all of their topics"
    version = logs["shop.public.dropped"].refresh().version
    assert look() == look() == ["shop.public.dropped"]
    assert logs["shop.public.dropped"].refresh().version == version + 1, "it is said once"
    assert "the topic shop.public.dropped is gone" in found("dropped")[0] and not found("kept")
    there.add("shop.public.dropped")
    assert look() == [] and not found("dropped")


def test_brokers_that_do_not_answer_say_nothing_about_topics(tmp_path: Path) -> None:
    log = log_of(lakebed.create(tmp_path / "t", COLUMNS))

    def silent() -> set[str]:
        raise Retry("no answer")

    one = VanishedTopics(silent, lambda: {"t": log})
    for _ in range(3):
        with pytest.raises(Retry):
            one.look()
    assert log.refresh().version == 0
