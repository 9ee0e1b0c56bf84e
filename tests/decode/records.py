"""Builds records as a source would give them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from lakebed.decode.decoder import RECORD_SCHEMA, Decoded, Decoder
from lakebed.decode.metadata import HEADERS_FIELD
from lakebed.parts.quarantine import HEADERS_TYPE
from lakebed.positions.truncates import NO_CUTOFF, Cutoff
from lakebed.remarks import Counts
from lakebed.sources.source import RangeChanges

Value = bytes | str | dict[str, Any] | None


def as_bytes(value: Value) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def records(values: Sequence[Value], keys: Sequence[Value] | None = None, topic: str = "shop.orders") -> pa.Table:
    """One record a value, at offsets 0, 1, ... of partition 3, a second apart."""
    count = len(values)
    return pa.table(
        [
            pa.array([as_bytes(key) for key in keys or [None] * count], pa.binary()),
            pa.array([as_bytes(value) for value in values], pa.binary()),
            pa.array([topic] * count, pa.string()),
            pa.array([3] * count, pa.int32()),
            pa.array(range(count), pa.int64()),
            pa.array(range(0, 1000 * count, 1000), pa.int64()).cast(pa.timestamp("ms", "UTC")),
        ],
        schema=RECORD_SCHEMA,
    )


def with_headers(records: pa.Table, headers: Sequence[Mapping[str, bytes | None]]) -> pa.Table:
    """The records, each with its headers, as a source gives them."""
    listed = [[{"key": name, "value": value} for name, value in one.items()] for one in headers]
    return records.append_column("headers", pa.array(listed, HEADERS_TYPE))


def event(
    op: str, after: dict[str, Any] | None = None, before: dict[str, Any] | None = None, lsn: int = 1
) -> dict[str, Any]:
    """A change event as Debezium's PostgreSQL connector writes it, without its schema."""
    return {
        "before": before,
        "after": after,
        "source": {"connector": "postgresql", "ts_ms": 1_700_000_000_000 + lsn, "lsn": lsn, "table": "orders"},
        "transaction": None,
        "op": op,
        "ts_ms": 1_700_000_000_500 + lsn,
    }


def in_log(change: dict[str, Any], sequence: Any) -> dict[str, Any]:
    """The event with ``source.sequence``, where the connector says how far commits were: ``["39419360","39419152"]``."""
    return {**change, "source": {**change["source"], "sequence": sequence}}


def with_schema(change: dict[str, Any], fields: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The event inside the envelope that a JSON converter with schemas writes."""
    row = {"type": "struct", "fields": list(fields), "optional": True}
    schema = {
        "type": "struct",
        "fields": [{**row, "field": "before"}, {**row, "field": "after"}, {"type": "string", "field": "op"}],
        "name": "shop.orders.Envelope",
    }
    return {"schema": schema, "payload": change}


class RecordChanges(RangeChanges):
    """Decodes records that a task gets as they are, without a source to read them from."""

    def __init__(self, decoder: Decoder, cutoff: Cutoff = NO_CUTOFF, **others: Any) -> None:
        super().__init__(**{"source": None, **others, "decoder": decoder, "cutoff": cutoff})

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Decoded]:
        for batch in batches:
            records = pa.Table.from_batches([batch])
            has_headers = len(records.schema) > len(RECORD_SCHEMA)
            schema = RECORD_SCHEMA.append(HEADERS_FIELD) if has_headers else RECORD_SCHEMA
            yield self.decoder.decode(records.cast(schema), self.cutoff)

    def records_lost(self) -> int:
        return 0

    def remarks(self) -> Counts:
        return {}
