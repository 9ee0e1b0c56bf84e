"""A process that ingests one topic into two tables, one with keys, which it maintains, and one without, until it is killed.

    python -m tests.end_to_end.ingest_process <bootstrap servers> <topic> <folder>
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import lakebed
from lakebed.ingest.formats import decoder
from lakebed.ingest.kafka_settings import KafkaSettings
from lakebed.ingest.kafka_source import KafkaSource
from lakebed.ingest.shape import ChangeShape
from lakebed.ingest.source import RangeChanges
from tests.end_to_end.progress import started
from tests.end_to_end.topic_of_changes import KEYED_SCHEMA, KEYLESS_SCHEMA


def main(bootstrap: str, topic: str, folder: Path) -> None:
    spark = lakebed.spark("ingest", "local[2]", s3=False)
    spark.sparkContext.setLogLevel("ERROR")
    for name, schema, keys in (("keyed", KEYED_SCHEMA, ["id"]), ("keyless", KEYLESS_SCHEMA, [])):
        try:
            table = lakebed.open(folder / name)
        except lakebed.errors.TableNotFound:
            table = lakebed.create(folder / name, schema, keys=keys)
        source = KafkaSource(KafkaSettings({"bootstrap.servers": bootstrap}, (topic,), max_records_per_batch=20_000))
        options = {"operation_field": "op"} if keys else {}
        changes = RangeChanges(source.reader, decoder("json", ChangeShape(schema, tuple(keys)), options), with_order=True)
        started(partial(table.ingest_with, changes, source.stream(spark)))
        if keys:
            started(partial(table.maintain, spark))
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
