"""A batch that comes again is skipped only if it is the one that the table has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pytest
from pyspark.errors import StreamingQueryException

import lakebed
from lakebed.errors import InvalidInput
from lakebed.failures import failure_in
from lakebed.ingest.debezium.events import DebeziumJson
from lakebed.ingest.decoder import DecoderSchema
from lakebed.ingest.generator import COLUMNS, KEYS, OrderStream
from lakebed.ingest.generator_source import GeneratorSource
from lakebed.ingest.source import RangeChanges
from lakebed.table import internals_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
SHAPE = DecoderSchema(COLUMNS, KEYS, "kafka.offset")


def ingest(spark: SparkSession, path: Path, events: int, *, batch: int = 400) -> None:
    """All events up to this one, in batches of 400 unless told otherwise."""
    table = (
        lakebed.open(path) if path.exists() else lakebed.create(path, COLUMNS, keys=KEYS, sequence_by="kafka.offset")
    )
    source = GeneratorSource(OrderStream(events_max=events, inserts=1.0, deletes=0), max_records_per_batch=batch)
    changes = RangeChanges(source.reader, DebeziumJson(SHAPE))
    query = internals_of(table).start_ingest(changes, source.stream(spark), trigger={"availableNow": True})
    assert query.awaitTermination(120)


def checkpoint_file(path: Path, name: str) -> Path:
    [found] = path.glob(f"**/streams/ingest/{name}")
    return found


def forget(path: Path, name: str) -> None:
    """Without the commit of its last batch a checkpoint is as a process leaves it that was killed after the table's commit."""
    file = checkpoint_file(path, name)
    file.unlink()


def orders(path: Path) -> set[int]:
    table = lakebed.open(path)
    table.settle()
    rows = table.to_arrow()
    assert pc.count_distinct(rows["order_id"]).as_py() == len(rows)
    return set(rows["order_id"].to_pylist())


def test_a_batch_that_comes_again_as_it_was_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    path, whole = tmp_path / "killed", tmp_path / "whole"
    ingest(spark, path, 1000)
    forget(path, "commits/2")
    ingest(spark, path, 1500)
    ingest(spark, whole, 1500)
    batches = lakebed.open(path).inspect.timeline()["operation"].to_pylist().count("STREAMING UPDATE")
    assert batches == 5  # up to 400, 800, 1,000; the last one again, skipped; 1,400, 1,500
    assert orders(path) == orders(whole)


def test_a_batch_that_another_process_planned_with_more_is_refused_instead_of_lost(
    spark: SparkSession, tmp_path: Path
) -> None:
    ingest(spark, tmp_path / "t", 1000)
    forget(tmp_path / "t", "commits/2")
    planned = checkpoint_file(tmp_path / "t", "offsets/2")
    *head, offset = planned.read_text().splitlines()
    planned.write_text("\n".join([*head, json.dumps(json.loads(offset) | {"next": 1200})]))
    before = lakebed.open(tmp_path / "t").version
    with pytest.raises(StreamingQueryException) as raised:
        ingest(spark, tmp_path / "t", 1500)
    error = failure_in(str(raised.value), "ingest")
    assert isinstance(error, InvalidInput)
    assert str(error).startswith("batch 2 of this pipeline is in the table, but with other input than it has now")
    assert lakebed.open(tmp_path / "t").version == before


def test_a_checkpoint_older_than_the_table_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    ingest(spark, tmp_path / "t", 1000)
    for name in ("commits/1", "commits/2", "offsets/1", "offsets/2"):
        forget(tmp_path / "t", name)
    with pytest.raises(StreamingQueryException, match="its checkpoint is older than the table"):
        ingest(spark, tmp_path / "t", 1500, batch=500)
