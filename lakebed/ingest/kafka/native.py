"""Read the records of a range by native code, as long as nothing but records comes.

    1.  The range ends with a record at or beyond its end, or with the end of the partition there.
    2.  Anything else hands the rest of the range over to ``kafka.range``: an error, an end of the partition too early, no
        progress for a while. So what such things mean is decided there alone.

A process keeps its clients between ranges (``kept_clients``).
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence

import pyarrow as pa

from lakebed.ingest.decoder import RECORD_SCHEMA
from lakebed.ingest.headers import READ, with_few_headers
from lakebed.ingest.kafka.kept_clients import KeptClients
from lakebed.ingest.kafka.settings import KafkaSettings
from lakebed.ingest.native.kafka_client import FULL, GOES_ON, KafkaClient, RangeReader, Refused
from lakebed.ingest.native.library import library

TABLE_RECORDS_MAX = 16_384
TABLE_BYTES_MAX = 32 * 1024 * 1024
PATIENCE_SECONDS = 5.0
_kept: KeptClients[KafkaClient] = KeptClients(KafkaClient.close)


def read_natively(
    settings: KafkaSettings, topic: str, partition: int, start: int, end: int, headers: Sequence[str] = READ
) -> Generator[pa.Table, None, int]:
    """Yields tables of ``RECORD_SCHEMA``, with headers where records have some.

    ``headers``: the names of those that are read. Returns the offset from which the rest must be read in another way, or ``end``.
    """
    if library() is None:
        return start
    config = settings.consumer_config()
    key = repr(sorted(config.items()))
    reader, is_healthy = None, False
    try:
        client = _kept.take(key) or KafkaClient(config)
    except Refused:
        return start
    try:
        client.assign(topic, partition, start)
        reader = RangeReader(
            client, topic, partition, start, end, rows_max=TABLE_RECORDS_MAX, bytes_max=TABLE_BYTES_MAX, headers=headers
        )
        position = yield from _tables(reader, settings, topic, partition, pa.array(headers, pa.string()))
        is_healthy = position >= end
        return position
    except Refused:
        return start
    finally:
        if reader is not None:
            reader.close()
        _give_back(key, client, is_healthy)


def _give_back(key: str, client: KafkaClient, is_healthy: bool) -> None:
    if not is_healthy:
        client.close()
        return
    client.unassign()
    _kept.give_back(key, client)


def _tables(
    reader: RangeReader, settings: KafkaSettings, topic: str, partition: int, names: pa.StringArray
) -> Generator[pa.Table, None, int]:
    progress = time.monotonic()
    while True:
        before = reader.position
        state = reader.read()
        if reader.position > before:
            progress = time.monotonic()
        is_stalled = time.monotonic() - progress > min(PATIENCE_SECONDS, settings.timeout_seconds)
        goes_on = state in (FULL, GOES_ON) and not is_stalled
        if reader.rows and (state == FULL or not goes_on):
            headers = reader.take_headers()
            yield _table(reader.take(), headers, names, topic, partition)
            progress = time.monotonic()  # the caller's time is not the brokers'
        if not goes_on:
            return reader.position


def _table(
    rows: pa.RecordBatch, headers: pa.RecordBatch | None, names: pa.StringArray, topic: str, partition: int
) -> pa.Table:
    columns = [
        rows.column("key"),
        rows.column("value"),
        pa.repeat(pa.scalar(topic, pa.string()), len(rows)),
        pa.repeat(pa.scalar(partition, pa.int32()), len(rows)),
        rows.column("offset"),
        rows.column("timestamp"),
    ]
    table = pa.Table.from_arrays(columns, schema=RECORD_SCHEMA)
    if headers is None:
        return table
    of_rows = headers.column("row").to_numpy()
    return with_few_headers(table, of_rows, names.take(headers.column("name")), headers.column("value"))
