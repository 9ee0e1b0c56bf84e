"""The generator and folders of files as streams of Spark, decoded in the tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakebed.errors import InvalidInput
from lakebed.ingest.debezium.events import DebeziumJson
from lakebed.ingest.decoder import DecoderSchema
from lakebed.ingest.file_source import FileSource
from lakebed.ingest.formats import decoder
from lakebed.ingest.generator import COLUMNS, KEYS, OrderStream
from lakebed.ingest.generator_source import GeneratorSource
from lakebed.ingest.source import RangeChanges, RecordChanges
from tests.ingest.records import event
from tests.waiting import ended, started

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow
ROWS = pa.schema([pa.field("id", pa.int64(), False), pa.field("name", pa.string())])


def run(stream: DataFrame, checkpoint: Path, task: Any, columns: str) -> list[tuple[int, dict[str, Any]]]:
    """(batch, changed row) of everything that is there now; ``columns`` are the rows' as DDL."""
    collected: list[tuple[int, dict[str, Any]]] = []

    def decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for decoded in task(batches):
            assert decoded.quarantined.num_rows == 0, decoded.quarantined.to_pylist()
            yield from decoded.changes.to_batches()

    def collect(batch: DataFrame, number: int) -> None:
        collected.extend((number, row.asDict()) for row in batch.mapInArrow(decode, columns).collect())

    query = stream.writeStream.foreachBatch(collect).option("checkpointLocation", str(checkpoint))
    ended(started(query.trigger(availableNow=True).start))
    return collected


def test_generated_events_go_on_where_the_stream_stopped(spark: SparkSession, tmp_path: Path) -> None:
    columns = "order_id long, customer_id long, region string, status string, amount decimal(12,2), note string, "
    columns += "created_at timestamp, updated_at timestamp, _lakebed_op string, _lakebed_seq long"
    decoder_schema = DecoderSchema(COLUMNS, KEYS, "kafka.offset")
    numbers: list[int] = []
    for events in (1000, 2500):
        source = GeneratorSource(OrderStream(events_max=events), max_records_per_batch=400)
        task = RangeChanges(source.reader, DebeziumJson(decoder_schema))
        rows = run(source.stream(spark), tmp_path / "checkpoint", task, columns)
        numbers += [row["_lakebed_seq"] for _, row in rows]
    assert numbers == list(range(2500))


def test_lines_of_files_are_decoded_like_records(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "lines"
    folder.mkdir()
    lines = [event("c", {"id": 1, "name": "é"}), event("d", None, {"id": 1})]
    (folder / "1.jsonl").write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    source = FileSource(folder=str(folder), format="debezium-json")
    task = RecordChanges(decoder("debezium-json", DecoderSchema(ROWS, ("id",))))
    columns = "id long, name string, _lakebed_op string"
    rows = run(source.stream(spark), tmp_path / "checkpoint", task, columns)
    assert [tuple(row.values()) for _, row in rows] == [(1, "é", "u"), (1, None, "d")]
    (folder / "2.jsonl").write_text(json.dumps(event("c", {"id": 2, "name": None})))
    rows = run(source.stream(spark), tmp_path / "checkpoint", task, columns)
    assert [tuple(row.values()) for _, row in rows] == [(2, None, "u")]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_files_of_rows_are_read_with_the_given_schema(spark: SparkSession, tmp_path: Path, form: Any) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    if form == "csv":
        (folder / "a.csv").write_text("id,name\n1,ä\n2,\n")
    else:
        pq.write_table(pa.table({"id": [1, 2], "name": ["ä", None]}, schema=ROWS), folder / "a.parquet")
    source = FileSource(folder=str(folder), format=form, schema=ROWS)
    assert source.carries == "rows"
    collected: list[tuple[Any, ...]] = []
    query = source.stream(spark).writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = query.foreachBatch(lambda batch, number: collected.extend(tuple(row) for row in batch.collect()))
    ended(started(query.trigger(availableNow=True).start))
    assert [row[:2] for row in collected] == [(1, "ä"), (2, None)]
    assert {Path(row[2]).name for row in collected} == {f"a.{form}"}


def test_rows_need_a_schema_and_formats_are_known() -> None:
    with pytest.raises(InvalidInput, match="format 'csv' needs the schema"):
        FileSource(folder="/nowhere", format="csv")
    with pytest.raises(InvalidInput, match="format is 'orc'; use one of json, debezium-json, csv, parquet"):
        FileSource(folder="/nowhere", format="orc")  # type: ignore[arg-type]


def test_a_csv_file_with_columns_in_another_order_is_an_error_and_not_read_by_place(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    (folder / "a.csv").write_text("name,id\n1,2\n")
    stream = FileSource(folder=str(folder), format="csv", schema=ROWS).stream(spark)
    query = (
        stream.writeStream.format("memory").queryName("csv").option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    with pytest.raises(Exception, match=r"FAILED_READ_FILE.*a\.csv"):
        ended(started(query.trigger(availableNow=True).start))
