"""Metadata of an event by name, which ``sequence_by`` may refer to in place of a column of the table."""

from __future__ import annotations

import pyarrow as pa

from lakebed.errors import InvalidSchema

ENVELOPE = ("ts_ms", "ts_us", "ts_ns")
PARENTS = ("source", "transaction", "kafka")
KAFKA = ("offset", "timestamp", "partition")


def metadata_path(name: str | None) -> tuple[str, str] | None:
    """``source.lsn`` as (source, lsn), ``ts_ms`` as ("", ts_ms). Raises ``InvalidSchema`` for any other name."""
    if name is None:
        return None
    if name in ENVELOPE:
        return "", name
    parent, _, member = name.partition(".")
    if parent not in PARENTS or not member or (parent == "kafka" and member not in KAFKA):
        raise InvalidSchema(
            f"sequence_by {name!r} is neither a column of the table nor metadata of an event: use a column, "
            f"{', '.join(ENVELOPE)}, source.<field>, transaction.<field> or kafka.<{'|'.join(KAFKA)}>"
        )
    return parent, member


def kafka_metadata(records: pa.RecordBatch, name: str) -> pa.Array:
    """A record's own offset, timestamp (milliseconds) or partition."""
    values = records.column(name)
    return values.view(pa.int64()) if name == "timestamp" else values.cast(pa.int64())
