"""Metadata of an event by name, which ``sequence_by`` may refer to in place of a column of the table."""

from __future__ import annotations

import pyarrow as pa

from lakebed.errors import InvalidSchema

ENVELOPE = ("ts_ms", "ts_us", "ts_ns")
PARENTS = ("source", "transaction", "kafka")
KAFKA = ("offset", "timestamp", "partition")

KNOWN_MEMBERS = {
    "source": (
        # of all connectors
        "version", "connector", "name", "ts_ms", "ts_us", "ts_ns", "snapshot", "sequence", "db", "schema", "table",
        "txId", "lsn", "xmin",  # PostgreSQL
        "server_id", "gtid", "file", "pos", "row", "thread", "query",  # MySQL, MariaDB
        "commit_lsn", "change_lsn", "begin_lsn", "event_serial_no",  # SQL Server, Db2, Informix
        "scn", "commit_scn", "start_scn", "start_ts_ms", "commit_ts_ms", "lcr_position", "rs_id", "ssn", "redo_thread",  # Oracle
        "user_name", "redo_sql", "row_id",
        "collection", "ord", "lsid", "txnNumber", "wallTime",  # MongoDB
        "vgtid", "keyspace", "shard",  # Vitess
        "commitTs", "clusterId",  # TiDB
    ),
    "transaction": ("id", "total_order", "data_collection_order"),
}  # fmt: skip
"""What Debezium's connectors are known to write. Others may write more."""


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
