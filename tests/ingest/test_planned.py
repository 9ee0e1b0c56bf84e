"""The ranges of a batch are read from the checkpoint, and only where its form is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lakebed.ingest.checkpoint_files import is_local_where
from lakebed.ingest.generator import OrderStream
from lakebed.ingest.generator_source import GeneratorReader
from lakebed.ingest.kafka.settings import KafkaSettings
from lakebed.ingest.kafka.source import KafkaReader
from lakebed.ingest.planned import PlannedBatches
from lakebed.ingest.source import Range, batch_of, ranges_of

READER = KafkaReader(KafkaSettings(config={"bootstrap.servers": "nowhere"}, topics=("t",)))


def write(checkpoint: Path, batch: int, *sources: Any, version: str = "v1") -> None:
    folder = checkpoint / "offsets"
    folder.mkdir(exist_ok=True)
    (folder / str(batch)).write_text("\n".join([version, "{}", *map(json.dumps, sources)]))


def test_a_batch_reads_from_the_document_before_to_its_own(tmp_path: Path) -> None:
    write(tmp_path, 0, {"topics": {"t": {"0": 5, "1": 7}}, "begin": {"t": {"0": 2, "1": 7}}})
    write(tmp_path, 1, {"topics": {"t": {"0": 9, "1": 8}}})
    for spelled in (str(tmp_path), f"file://{tmp_path}"):
        planned = PlannedBatches(spelled)
        assert planned.ranges(0, READER) == [Range("t", 0, 2, 5)]
        assert planned.ranges(1, READER) == [Range("t", 0, 5, 9), Range("t", 1, 7, 8)]


def test_events_of_the_generator_are_cut_as_in_its_stream(tmp_path: Path) -> None:
    write(tmp_path, 0, {"next": 10, "clock": 3})
    reader = GeneratorReader(OrderStream(), tasks=2)
    assert PlannedBatches(str(tmp_path)).ranges(0, reader) == [
        Range("orders", 0, 0, 5, 3),
        Range("orders", 1, 5, 10, 3),
    ]


def test_what_is_not_known_here_is_left_to_the_stream(tmp_path: Path) -> None:
    planned = PlannedBatches(str(tmp_path))
    assert planned.ranges(0, READER) is None, "there is no such batch"
    write(tmp_path, 1, {"topics": {}})
    assert planned.ranges(1, READER) is None, "the document before it is gone"
    write(tmp_path, 0, {"topics": {}}, version="v2")
    assert planned.ranges(0, READER) is None
    write(tmp_path, 0, {"topics": {}}, {"topics": {}})
    assert planned.ranges(0, READER) is None, "a query with two sources"
    (tmp_path / "offsets" / "0").write_text('v1\n{}\n{"topics')
    assert planned.ranges(0, READER) is None
    for elsewhere in ("s3a://bucket/checkpoint", "hdfs://host/checkpoint"):
        assert PlannedBatches(elsewhere).ranges(0, READER) is None


@pytest.mark.parametrize("ranges", [[], [Range("t", 0, 2, 5), Range("ü", 1, 0, 2**40, 7)]])
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
