"""The generator as a stream of Spark, decoded in the tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from lakebed.decode.debezium.events import DebeziumJson
from lakebed.decode.decoder import DecoderSchema
from lakebed.sources.generator import COLUMNS, KEYS, GeneratorSource, OrderStream
from lakebed.sources.source import RangeChanges
from tests.waiting import ended, started

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow


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


@pytest.mark.long
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
