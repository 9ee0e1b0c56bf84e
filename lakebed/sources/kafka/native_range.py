"""Read the records of a range by native code, as long as nothing but records comes.

    1.  The range ends with a record at or beyond its end, or with the end of the partition there.
    2.  Anything else hands the rest of the range over to ``kafka.range``: an error, an end of the partition too early, no
        progress for a while. So what such things mean is decided there alone.

A range that is assigned together with others is read from its queue there first (``kafka.assignment``). A process keeps its
clients between ranges (``clients``).
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence

import pyarrow as pa

from lakebed.decode.decoder import RECORD_SCHEMA
from lakebed.decode.metadata import READ, with_few_headers
from lakebed.decode.native.library import library
from lakebed.sources.kafka.assignment import queue_of
from lakebed.sources.kafka.clients import FULL, GOES_ON, KafkaClient, KeptClients, PartitionQueue, RangeReader, Refused
from lakebed.sources.kafka.settings import KafkaSettings
from lakebed.sources.source import Place

TABLE_RECORDS_MAX = 16_384
TABLE_BYTES_MAX = 32 * 1024 * 1024
_PATIENCE_SECONDS = 5.0
ASSIGNED_PATIENCE_SECONDS = 2.0
_kept: KeptClients[KafkaClient] = KeptClients(KafkaClient.close)


def read_natively(
    settings: KafkaSettings, topic: str, partition: int, start: int, end: int, headers: Sequence[str] = READ
) -> Generator[pa.Table, None, int]:
    """Yields tables of ``RECORD_SCHEMA``, with headers where records have some.

    ``headers``: the names of those that are read. Returns the offset from which the rest must be read in another way, or ``end``.
    """
    if library() is None:
        return start
    place, names = (topic, partition), pa.array(headers, pa.string())
    if (queue := queue_of(settings, place, start)) is not None:
        is_stalled = False
        try:
            start, is_stalled = yield from _read(queue.queue, place, start, end, names, ASSIGNED_PATIENCE_SECONDS)
        finally:
            queue.close(is_stalled=is_stalled)
        if start >= end:
            return start
    config = settings.range_config()
    key = repr(sorted(config.items()))
    is_healthy = False
    try:
        client = _kept.take(key) or KafkaClient(config)
    except Refused:
        return start
    try:
        client.assign({place: start})
        patience = min(_PATIENCE_SECONDS, settings.timeout_seconds)
        start, _ = yield from _read(client, place, start, end, names, patience)
        is_healthy = start >= end
    except GeneratorExit:
        is_healthy = True  # the caller wants no more of a range that went well
        raise
    except Refused:
        pass
    finally:
        _give_back(key, client, is_healthy)
    return start


def _give_back(key: str, client: KafkaClient, is_healthy: bool) -> None:
    if not is_healthy:
        client.close()
        return
    client.unassign()
    _kept.give_back(key, client)


def _read(
    records: KafkaClient | PartitionQueue, place: Place, start: int, end: int, names: pa.StringArray, patience: float
) -> Generator[pa.Table, None, tuple[int, bool]]:
    """Returns up to where the range was read, and whether nothing came for so many seconds."""
    reader = RangeReader(
        records, *place, start, end, rows_max=TABLE_RECORDS_MAX, bytes_max=TABLE_BYTES_MAX, headers=names.to_pylist()
    )
    try:
        progress = time.monotonic()
        while True:
            before = reader.position
            state = reader.read()
            if reader.position > before:
                progress = time.monotonic()
            is_stalled = time.monotonic() - progress > patience
            goes_on = state in (FULL, GOES_ON) and not is_stalled
            if reader.rows and (state == FULL or not goes_on):
                found = reader.take_headers()
                yield _table(reader.take(), found, names, *place)
                progress = time.monotonic()  # the caller's time is not the brokers'
            if not goes_on:
                return reader.position, is_stalled
    finally:
        reader.close()


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
