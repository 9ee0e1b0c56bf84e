"""The schemas that a table has had, as an Arrow table."""

from __future__ import annotations

import orjson
import pyarrow as pa

from lakebed.coordination.schema_history import past_changes
from lakebed.log.actions import Commit
from lakebed.log.entries import Operation
from lakebed.log.table_log import TableLog
from lakebed.schema.metadata import Metadata

SCHEMAS_SCHEMA = pa.schema(
    [
        ("version", pa.int64()),
        ("timestamp", pa.timestamp("ms", "UTC")),
        ("operation", pa.string()),
        ("reason", pa.string()),
        ("change", pa.string()),
        ("schema", pa.string()),
    ]
)


def schemas(log: TableLog) -> pa.Table:
    """One row a schema (SCHEMAS_SCHEMA), oldest first. A change whose entry can't be read is left out."""
    newest = log.refresh()
    changes = past_changes(newest.domains)
    oldest = log.oldest_version()
    rows = []
    if not changes or changes[0].version > oldest:
        first = log.at_version(oldest)
        info = commit.info if (commit := log.read_commit(oldest)) else None
        rows.append(
            {
                "version": oldest,
                "timestamp": first.timestamp_ms,
                "operation": info.operation if info else None,
                "schema": first.metadata.schema_string,
            }
        )
    for each in changes:
        commit = log.read_commit(each.version) if each.version >= oldest else None
        rows.append(
            {
                "version": each.version,
                "timestamp": each.timestamp_ms,
                "operation": str(Operation.ALTER),
                "reason": each.reason,
                "change": orjson.dumps(each.change).decode(),
                "schema": _schema_of(commit),
            }
        )
    return pa.Table.from_pylist(rows, SCHEMAS_SCHEMA)


def _schema_of(commit: Commit | None) -> str | None:
    found = [action.schema_string for action in commit.actions if isinstance(action, Metadata)] if commit else []
    return found[0] if found else None
