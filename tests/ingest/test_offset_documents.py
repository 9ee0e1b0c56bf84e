"""The ranges of a batch are read from the checkpoint, and only where its form is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lakebed.errors import Unexpected
from lakebed.ingest.stream import OffsetDocuments
from lakebed.sources.generator import GeneratorReader, OrderStream
from lakebed.sources.kafka.settings import KafkaSettings
from lakebed.sources.kafka.source import KafkaReader
from lakebed.sources.source import Range, batch_of, ranges_of
from lakebed.sparks.compiled import is_local_where

READER = KafkaReader(KafkaSettings(config={"bootstrap.servers": "nowhere"}, topics=("t",)))


def write(checkpoint: Path, batch: int, *sources: Any, version: str = "v1") -> None:
    folder = checkpoint / "offsets"
    folder.mkdir(exist_ok=True)
    (folder / str(batch)).write_text("\n".join([version, "{}", *map(json.dumps, sources)]))


def documents(checkpoint: Path) -> OffsetDocuments:
    return OffsetDocuments(str(checkpoint), lambda name: Path(checkpoint, name).read_text())


def test_a_batch_reads_from_the_document_before_to_its_own(tmp_path: Path) -> None:
    write(tmp_path, 0, {"topics": {"t": {"0": 5, "1": 7}}, "begin": {"t": {"0": 2, "1": 7}}, "ids": {"t": "x"}})
    write(tmp_path, 1, {"topics": {"t": {"0": 9, "1": 7}}})
    assert READER.ranges(*documents(tmp_path).of_batch(0)) == [
        Range("t", 0, 2, 5, topic_id="x", is_first=True),
        Range("t", 1, 7, 7, topic_id="x", is_first=True),
    ]
    assert READER.ranges(*documents(tmp_path).of_batch(1)) == [Range("t", 0, 5, 9), Range("t", 1, 7, 7)]


def test_a_partition_that_appears_later_is_first_where_it_begins(tmp_path: Path) -> None:
    write(tmp_path, 0, {"topics": {"t": {"0": 5}}, "begin": {"t": {"0": 0}}})
    write(tmp_path, 1, {"topics": {"t": {"0": 5, "1": 3}}, "begin": {"t": {"1": 0}}})
    found = READER.ranges(*documents(tmp_path).of_batch(1))
    assert found == [Range("t", 0, 5, 5), Range("t", 1, 0, 3, is_first=True)]


def test_events_of_the_generator_are_cut_as_in_its_stream(tmp_path: Path) -> None:
    write(tmp_path, 0, {"next": 10, "clock": 3})
    reader = GeneratorReader(OrderStream(), tasks=2)
    assert reader.ranges(*documents(tmp_path).of_batch(0)) == [
        Range("orders", 0, 0, 5, 3, is_first=True),
        Range("orders", 0, 5, 10, 3),
    ]


def test_what_spark_does_not_write_so_is_refused(tmp_path: Path) -> None:
    planned = documents(tmp_path)
    with pytest.raises(Unexpected, match=r"no plan that can be read in offsets/0: .*No such file"):
        planned.of_batch(0)
    write(tmp_path, 1, {"topics": {}})
    with pytest.raises(Unexpected, match="offsets/0"):
        planned.of_batch(1)
    write(tmp_path, 0, {"topics": {}}, version="v2")
    with pytest.raises(Unexpected, match="it is of version v2, with 1 sources"):
        planned.of_batch(0)
    write(tmp_path, 0, {"topics": {}}, {"topics": {}})
    with pytest.raises(Unexpected, match="with 2 sources"):
        planned.of_batch(0)
    (tmp_path / "offsets" / "0").write_text('v1\n{}\n{"topics')
    with pytest.raises(Unexpected, match="Set 'checkpoint' to a new folder"):
        planned.of_batch(0)


@pytest.mark.parametrize("ranges", [[], [Range("t", 0, 2, 5), Range("ü", 1, 0, 2**40, 7, "id", True)]])
def test_a_task_gets_the_ranges_as_they_are(ranges: list[Range]) -> None:
    assert ranges_of(batch_of(ranges)) == ranges


@pytest.mark.parametrize(
    ("checkpoint", "default", "local"),
    [
        ("file:///c", "hdfs://host", True),
        ("/c", "file:///", True),
        ("c/d:e", "file:///", True),
        ("/c", "hdfs://host", False),
        ("s3a://bucket/c", "file:///", False),
    ],
)
def test_a_checkpoint_is_local_only_where_spark_says_so(checkpoint: str, default: str, local: bool) -> None:
    assert is_local_where(default, checkpoint) is local
