"""What a table says of itself, as Arrow tables: its figures, its parts, its timeline. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from lakebed.manifest.actions import Commit
from lakebed.manifest.snapshot import Snapshot

PARTS_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("state", pa.string()),
        ("level", pa.int32()),
        ("rows", pa.int64()),
        ("dead_rows", pa.int64()),
        ("bytes", pa.int64()),
        ("min_block", pa.int64()),
        ("max_block", pa.int64()),
        ("partition", pa.map_(pa.string(), pa.string())),
        ("stats", pa.string()),
    ]
)
TIMELINE_SCHEMA = pa.schema(
    [
        ("version", pa.int64()),
        ("timestamp", pa.timestamp("ms", "UTC")),
        ("operation", pa.string()),
        ("metrics", pa.map_(pa.string(), pa.float64())),
        ("engine", pa.string()),
    ]
)
DETAIL_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("id", pa.string()),
        ("version", pa.int64()),
        ("keys", pa.list_(pa.string())),
        ("sort_key", pa.list_(pa.string())),
        ("sequence_by", pa.string()),
        ("partition_by", pa.list_(pa.string())),
        ("parts", pa.int64()),
        ("tail_parts", pa.int64()),
        ("tail_rows", pa.int64()),
        ("rows", pa.int64()),
        ("dead_rows", pa.int64()),
        ("bytes", pa.int64()),
    ]
)


def detail(path: str, snapshot: Snapshot) -> pa.Table:
    """One row (DETAIL_SCHEMA). ``rows`` are live rows of the base; ``bytes`` are those of all parts, dead rows included."""
    settings = snapshot.settings
    base, tail = snapshot.parts.values(), snapshot.tail.values()
    row = {
        "path": path,
        "id": snapshot.metadata.id,
        "version": snapshot.version,
        "keys": list(settings.keys),
        "sort_key": list(settings.sort_key),
        "sequence_by": settings.sequence_by,
        "partition_by": list(snapshot.metadata.partition_columns),
        "parts": len(base),
        "tail_parts": len(tail),
        "tail_rows": sum(part.rows for part in tail),
        "rows": sum(part.live_rows for part in base),
        "dead_rows": sum(part.dead_rows for part in base),
        "bytes": sum(part.bytes for part in base) + sum(part.bytes for part in tail),
    }
    return pa.Table.from_pylist([row], DETAIL_SCHEMA)


def parts(snapshot: Snapshot) -> pa.Table:
    """A row a part (PARTS_SCHEMA): the base by level and age, then the tail in its order."""
    rows = [
        {
            "path": part.path,
            "state": "base",
            "level": part.level,
            "rows": part.rows,
            "dead_rows": part.dead_rows,
            "bytes": part.bytes,
            "min_block": part.min_block,
            "max_block": part.max_block,
            "partition": list(part.partition_values.items()),
            "stats": part.stats,
        }
        for part in sorted(snapshot.parts.values(), key=lambda part: (part.level, part.max_block, part.path))
    ]
    rows += [
        {
            "path": part.path,
            "state": "tail",
            "level": 0,
            "rows": part.rows,
            "dead_rows": 0,
            "bytes": part.bytes,
            "min_block": part.version,
            "max_block": part.version,
            "partition": list(part.partition_values.items()),
            "stats": part.stats,
        }
        for part in snapshot.tail_in_order()
    ]
    return pa.Table.from_pylist(rows, PARTS_SCHEMA)


def timeline(commits: Sequence[Commit]) -> pa.Table:
    """A row a commit (TIMELINE_SCHEMA), newest first."""
    rows = []
    for commit in sorted(commits, key=lambda commit: -commit.version):
        info = commit.info
        rows.append(
            {
                "version": commit.version,
                "timestamp": commit.timestamp_ms,
                "operation": info.operation if info else None,
                "metrics": [(name, float(value)) for name, value in info.metrics.items()] if info else [],
                "engine": info.engine if info else None,
            }
        )
    return pa.Table.from_pylist(rows, TIMELINE_SCHEMA)
