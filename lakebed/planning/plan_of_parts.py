"""A plan for given parts of one partition: what it reads, and what it is predicted to write and to save. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from lakebed.manifest.actions import Part, PartitionKey
from lakebed.planning.plan import PART_READ_BYTES, Plan, PlanKind


def plan_of(kind: PlanKind, partition: PartitionKey, parts: Sequence[Part], before: int, after: int, why: str) -> Plan:
    """``before``, ``after``: the depth where they lie deepest."""
    bytes_in = sum(part.bytes for part in parts)
    bytes_out = round(sum(part.live_bytes for part in parts))
    return Plan(
        kind=kind,
        partition=partition,
        inputs=tuple(part.path for part in sorted(parts, key=lambda part: (part.min_block, part.max_block, part.path))),
        level=1 + max(part.level for part in parts),
        rows_in=sum(max(0, part.rows) for part in parts),
        bytes_in=bytes_in,
        bytes_out=bytes_out,
        dead_rows=sum(part.dead_rows for part in parts),
        depth_before=before,
        depth_after=after,
        gain=bytes_in - bytes_out + (before - after) * PART_READ_BYTES,
        why=why,
    )


def partition_order(partition: PartitionKey) -> list[tuple[str, bool, str]]:
    """What partitions are ordered by: null before any value."""
    return [(name, value is not None, value or "") for name, value in partition]
