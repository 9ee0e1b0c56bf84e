"""A small batch is written by the driver, exactly as tasks would write it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import pyarrow as pa
import pytest

import lakebed
from lakebed.decode.debezium import events as debezium_events
from lakebed.decode.debezium.events import DebeziumJson
from lakebed.decode.decoder import DecoderSchema
from lakebed.errors import Retry
from lakebed.ingest.batch_writer import WriteTask, in_this_process
from lakebed.parts.changes import write_spec_of
from lakebed.sources.generator import COLUMNS, KEYS, GeneratorReader, GeneratorSource, OrderStream
from lakebed.sources.source import Range, RangeChanges
from lakebed.table import internals_of
from tests.internals import log_of
from tests.waiting import started

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHAPE = DecoderSchema(COLUMNS, KEYS, "kafka.offset")
ORDERS = OrderStream(events_max=1000, inserts=0.5, deletes=0.1)


@dataclass(slots=True)
class Hesitant(GeneratorReader):
    """Gives up when it may not wait."""

    gives_up: bool = False

    def impatient(self) -> Hesitant:
        return Hesitant(self.orders, self.tasks, gives_up=True)

    def read(self, chosen: Range) -> Iterator[pa.Table]:
        if self.gives_up:
            raise Retry("the source sends nothing")
        yield from GeneratorReader.read(self, chosen)


def table_at(path: Path) -> lakebed.Table:
    return lakebed.create(path, COLUMNS, keys=KEYS, sequence_by="kafka.offset")


def test_each_batch_is_counted_by_itself(tmp_path: Path) -> None:
    table = table_at(tmp_path / "t")
    changes = RangeChanges(GeneratorReader(ORDERS, tasks=2), DebeziumJson(SHAPE))
    task = WriteTask(write_spec_of(log_of(table).refresh()), table.path, changes)
    for first in (0, 100):
        ranges = [Range("orders", 0, first, first + 50, 0), Range("orders", 0, first + 50, first + 100, 0)]
        written = in_this_process(task, ranges)
        assert written.read == tuple(ranges) and 0 < written.rows <= 100
    assert changes.ranges_read == []


def test_what_is_planned_from_the_first_records_serves_later_batches(tmp_path: Path) -> None:
    table = table_at(tmp_path / "t")
    decoder, planned = DebeziumJson(SHAPE), debezium_events.ObjectParser
    task = WriteTask(
        write_spec_of(log_of(table).refresh()), table.path, RangeChanges(GeneratorReader(ORDERS, tasks=1), decoder)
    )
    with patch.object(debezium_events, "ObjectParser", side_effect=planned) as planning:
        written = [in_this_process(task, [Range("orders", 0, at, at + 50, 0)]) for at in (0, 50, 100)]
    assert planning.call_count == 1
    anew = WriteTask(task.spec, table.path, RangeChanges(GeneratorReader(ORDERS, tasks=1), DebeziumJson(SHAPE)))
    again = [in_this_process(anew, [Range("orders", 0, at, at + 50, 0)]) for at in (100, 0, 50)]
    assert sorted(part.stats for each in written for part in each.parts) == sorted(
        part.stats for each in again for part in each.parts
    )


@pytest.mark.long
@pytest.mark.slow
def test_driver_and_tasks_write_the_same_and_only_tasks_are_jobs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rows, jobs = {}, {}
    for place in ("driver", "tasks", "gave up"):
        table = table_at(tmp_path / place)
        if place == "tasks":
            monkeypatch.setattr("lakebed.ingest.stream.RECORDS_HERE_MAX", 0)
        elif place == "gave up":
            monkeypatch.undo()
        reader = Hesitant(ORDERS, tasks=2) if place == "gave up" else GeneratorReader(ORDERS, tasks=2)
        frame = GeneratorSource(ORDERS, max_records_per_batch=500).stream(spark)
        changes = RangeChanges(reader, DebeziumJson(SHAPE))
        with caplog.at_level(logging.INFO, "lakebed.ingest"):
            start = partial(internals_of(table).start_ingest, changes, frame, trigger={"availableNow": True})
            query = started(start)
            query.awaitTermination()
        assert query.exception() is None
        jobs[place] = len(spark.sparkContext.statusTracker().getJobIdsForGroup(str(query.runId)))
        table.settle()
        rows[place] = sorted(table.to_arrow().to_pylist(), key=lambda row: str(row["order_id"]))
        assert table.inspect.timeline()["operation"].to_pylist().count("STREAMING UPDATE") == 2
    keys = {place: [row["order_id"] for row in found] for place, found in rows.items()}
    assert keys["driver"] == keys["tasks"] == keys["gave up"] and len(keys["driver"]) > 400
    assert (jobs["driver"], jobs["tasks"], jobs["gave up"]) == (0, 2, 2)
    assert "is written by tasks, since it failed here: the source sends nothing" in caplog.text
