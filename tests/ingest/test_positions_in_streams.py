"""The checkpoint of a query may be repeated, old, lost or shared: each record, or file, is in the table once."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakebed
from lakebed.decode.debezium.events import DebeziumJson
from lakebed.decode.decoder import DecoderSchema
from lakebed.pipeline import sources
from lakebed.pipeline.settings import parse_pipeline
from lakebed.pipeline.target import open_or_create
from lakebed.sources.generator import COLUMNS, GeneratorSource, OrderStream
from lakebed.sources.source import RangeChanges
from lakebed.table import internals_of
from tests.waiting import ended, started

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.slow


def ingesting(spark: SparkSession, path: Path, events: int, checkpoint: str, batch: int = 400) -> StreamingQuery:
    """A query that reads all events up to this one into a table without keys, and ends."""
    table = lakebed.open(path) if path.exists() else lakebed.create(path, COLUMNS)
    source = GeneratorSource(OrderStream(events_max=events, inserts=1.0, deletes=0), max_records_per_batch=batch)
    changes = RangeChanges(source.reader, DebeziumJson(DecoderSchema(COLUMNS)))
    place = str(path.parent / checkpoint)
    return internals_of(table).start_ingest(
        changes, source.stream(spark), checkpoint=place, query_name=checkpoint, trigger={"availableNow": True}
    )


def ingest(spark: SparkSession, path: Path, events: int, checkpoint: str = "c", batch: int = 400) -> None:
    ended(started(partial(ingesting, spark, path, events, checkpoint, batch)))


def read_files(spark: SparkSession, path: Path, folder: Path, form: str, checkpoint: str) -> None:
    """Read the files of a folder that are there now, two a batch."""
    source = f"source: {{kind: files, folder: {folder}, files_per_batch_max: 2}}\n"
    text = f"table: {{path: {path}, schema: {{id: long}}}}\n{source}format: {form}\ncheckpoint: {path.parent / checkpoint}\n"
    pipeline = parse_pipeline(text, "p.yml", {})
    table = open_or_create(pipeline)
    with patch.object(sources, "trigger", lambda seconds: {"availableNow": True}):
        ended(started(partial(sources.start_ingest, pipeline, table, spark)))


def ids(path: Path) -> list[int]:
    return sorted(lakebed.open(path).to_arrow()["id"].to_pylist())


@pytest.mark.long
@pytest.mark.parametrize("form", ["csv", *(pytest.param(form, marks=pytest.mark.long) for form in ("json", "parquet"))])
def test_whatever_becomes_of_the_checkpoint_each_file_is_in_the_table_once(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    path, checkpoint, folder = tmp_path / "t", tmp_path / "c", tmp_path / "in"
    folder.mkdir()

    def add(number: int) -> None:
        name = folder / f"the file ü%20 {number}.{form}"
        if form == "parquet":
            pq.write_table(pa.table({"id": [number]}), name)
        else:
            name.write_text(f"id\n{number}\n" if form == "csv" else json.dumps({"id": number}))

    for number in range(3):
        add(number)
    read_files(spark, path, folder, form, "c")
    shutil.copytree(checkpoint, tmp_path / "old")
    add(3)
    read_files(spark, path, folder, form, "c")
    assert ids(path) == [0, 1, 2, 3]

    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "old", checkpoint)
    add(4)
    read_files(spark, path, folder, form, "c")  # its next batch has an id that the table has seen, and other files
    assert ids(path) == [0, 1, 2, 3, 4]

    add(5)
    read_files(spark, path, folder, form, "lost")
    assert ids(path) == [0, 1, 2, 3, 4, 5]


def orders(path: Path) -> list[int]:
    return sorted(lakebed.open(path).to_arrow()["order_id"].to_pylist())


def test_whatever_becomes_of_the_checkpoint_each_record_is_in_the_table_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, checkpoint = tmp_path / "t", tmp_path / "c"
    ingest(spark, path, 1000)
    assert orders(path) == list(range(1000))

    (checkpoint / "commits" / "2").unlink()  # as a process leaves it that was killed after the commit of the table
    ingest(spark, path, 1300)
    assert orders(path) == list(range(1300))

    newest = max(int(file.name) for file in (checkpoint / "offsets").iterdir() if file.name.isdigit())
    (checkpoint / "commits" / str(newest)).unlink()
    planned = checkpoint / "offsets" / str(newest)
    *head, offset = planned.read_text().splitlines()
    planned.write_text("\n".join([*head, json.dumps(json.loads(offset) | {"next": 1400})]))
    ingest(spark, path, 1500)  # the last batch was planned anew, with more in it
    assert orders(path) == list(range(1500))

    for number in range(2, newest + 2):
        for name in ("commits", "offsets"):
            Path(checkpoint, name, str(number)).unlink(missing_ok=True)
    ingest(spark, path, 1600, batch=500)  # the checkpoint is older than the table
    assert orders(path) == list(range(1600))

    shutil.rmtree(checkpoint)
    ingest(spark, path, 1700)
    assert orders(path) == list(range(1700))


def test_two_queries_on_one_table_share_the_records(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t"
    lakebed.create(path, COLUMNS)
    queries = [
        started(partial(ingesting, spark, path, 2000, checkpoint, batch))
        for checkpoint, batch in (("one", 300), ("other", 170))
    ]
    for query in queries:
        ended(query)
    assert orders(path) == list(range(2000))
