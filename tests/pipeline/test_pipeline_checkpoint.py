"""A checkpoint records how far one source was read: no other pipeline may continue from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakebed.errors import InvalidInput
from lakebed.pipeline.places import SOURCE_FILE, take_checkpoint
from lakebed.pipeline.settings import parse_pipeline

FILES = "{kind: files, folder: %s}"
KAFKA = "{kind: kafka, %s, config: {bootstrap.servers: %s}}"


def take(place: Path, source: str) -> None:
    text = f"table: {{path: lake/t}}\nsource: {source}\nformat: debezium-json\n"
    take_checkpoint(parse_pipeline(text, "second.yml", {}), str(place))


def read_a_batch(place: Path) -> None:
    (place / "offsets").mkdir(exist_ok=True)
    (place / "offsets/0").write_text("v1\n")


def kafka(topics: str, brokers: str = "a:9092") -> str:
    return KAFKA % (topics, brokers)


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (FILES % "./inbox", FILES % "./other", "how far the folder ./inbox was read, but this file reads the folder ./other"),
        (FILES % "./inbox", kafka("topics: [a]"), "this file reads Kafka's a"),
        ("{kind: generator}", FILES % "./inbox", "how far the source generator was read"),
        (kafka("topics: [a, b]"), kafka("topics: [c]"), "Kafka's a, b was read"),
        (kafka("topics: [a, b]"), kafka("topic_pattern: c.*"), "Kafka's topics that match c.*"),
    ],
)  # fmt: skip
def test_another_pipeline_is_refused_and_shown_the_setting(tmp_path: Path, first: str, second: str, said: str) -> None:
    take(tmp_path, first)
    read_a_batch(tmp_path)
    with pytest.raises(InvalidInput) as raised:
        take(tmp_path, second)
    assert said in str(raised.value)
    assert "second.yml" in str(raised.value)
    assert "'checkpoint'" in str(raised.value)
    take(tmp_path, first)
    take(tmp_path / "own", second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (FILES % "./inbox", FILES % Path("inbox").absolute()),
        (kafka("topics: [a]"), kafka("topics: [a, b]")),
        (kafka("topics: [a, b]"), kafka("topics: [b]", "elsewhere:9092")),
        (kafka("topics: [orders]"), kafka("topic_pattern: ord.*")),
        (kafka("topic_pattern: ord.*"), kafka("topic_pattern: o.*")),
        ("{kind: generator}", "{kind: generator, events_per_second: 5}"),
    ],
)
def test_the_same_pipeline_goes_on_also_with_other_settings(tmp_path: Path, first: str, second: str) -> None:
    take(tmp_path, first)
    read_a_batch(tmp_path)
    take(tmp_path, second)


def test_topics_may_be_replaced_bit_by_bit(tmp_path: Path) -> None:
    for topics in ("[a]", "[a, b]", "[b]", "[b, c]", "[c]"):
        take(tmp_path, kafka(f"topics: {topics}"))
        read_a_batch(tmp_path)


def test_a_wrong_folder_is_corrected_while_nothing_was_read(tmp_path: Path) -> None:
    take(tmp_path, FILES % "./inbxo")
    take(tmp_path, FILES % "./inbox")
    read_a_batch(tmp_path)
    with pytest.raises(InvalidInput):
        take(tmp_path, FILES % "./inbxo")


def test_a_checkpoint_of_an_earlier_version_is_taken_as_it_is(tmp_path: Path) -> None:
    read_a_batch(tmp_path)
    take(tmp_path, FILES % "./inbox")
    assert (tmp_path / SOURCE_FILE).exists()


def test_a_checkpoint_that_only_spark_can_reach_is_left_alone() -> None:
    text = "table: {path: lake/t}\nsource: {kind: generator}\n"
    take_checkpoint(parse_pipeline(text, "p.yml", {}), "hdfs://namenode/checkpoint")
