"""Snapshots for the planner: parts on a line of whole numbers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from lakebed.log.actions import ChangePart, Part
from lakebed.log.deletion_vector import DeletionVector
from lakebed.log.snapshot import Snapshot
from lakebed.schema.conversion import schema_to_json
from lakebed.schema.metadata import Metadata, Protocol
from lakebed.settings import TableSettings
from lakebed.sortkey.ranges import Range, Ranked

MB = 2**20
SCHEMA = pa.schema([pa.field("key", pa.int64(), nullable=False), ("region", pa.string())])
ORDERED = TableSettings(keys=("key",))
UNORDERED = TableSettings()


def stats(rows: int, low: int | None, high: int | None) -> str:
    bounds = {} if low is None else {"minValues": {"key": low}, "maxValues": {"key": high}}
    return json.dumps({"numRecords": rows, **bounds, "nullCount": {"key": 0}})


def part(
    path: str, low: int | None, high: int | None, size: int = MB, rows: int = 1000, dead: int = 0, **fields: Any
) -> Part:
    """A level-0 part of the keys ``low`` to ``high``; its block is the number in its path, if there is one."""
    block = int("".join(filter(str.isdigit, path)) or 0)
    vector = DeletionVector(storage="u", path_or_inline=path, offset=0, bytes=40, dead_rows=dead) if dead else None
    fields = {"min_block": block, "max_block": block, "deletion_vector": vector} | fields
    return Part(path=path, rows=rows, bytes=size, stats=stats(rows, low, high), **fields)


def change_part(path: str, low: int, high: int, size: int = MB, rows: int = 1000, modified_ms: int = 0) -> ChangePart:
    return ChangePart(
        path=path, version=1, ordinal=0, rows=rows, bytes=size, stats=stats(rows, low, high), modified_ms=modified_ms
    )


def table(
    parts: Iterable[Part],
    settings: TableSettings = ORDERED,
    tail: Iterable[ChangePart] = (),
    partition_by: tuple[str, ...] = (),
    properties: Mapping[str, str] | None = None,
) -> Snapshot:
    """A plan reads at most 500 MB, unless the settings or properties say otherwise."""
    configuration = {"lakebed.plan_bytes_max": str(500 * MB)} | settings.to_properties() | dict(properties or {})
    metadata = Metadata(
        id="test", schema_string=schema_to_json(SCHEMA), partition_columns=partition_by, configuration=configuration
    )
    return Snapshot(
        version=9,
        timestamp_ms=0,
        protocol=Protocol(3, 7),
        metadata=metadata,
        parts={item.path: item for item in parts},
        tail={item.domain: item for item in tail},
    )


def measure_of(snapshot: Snapshot) -> tuple[int, int, int, int, int]:
    """What every merge lowers, as the docstring of ``lakebed.planning.admission`` has it."""
    settings = snapshot.settings
    version = settings.sort_key_version if settings.sort_key or settings.keys else None
    parts = list(snapshot.parts.values())
    full = [item for item in parts if item.rows > 0]
    return (
        sum(item.rows <= 0 for item in parts),
        sum(item.rows for item in full),
        sum(item.rows for item in full if item.sort_key_version != version),
        -sum(item.rows * (item.max_block - item.min_block) for item in full),
        -sum(item.rows * item.passes for item in full),
    )


def ranked(ranges: Sequence[Range]) -> Ranked:
    """The ranges with the ranks of their ends, from 0 without a gap."""
    ends = sorted({item.lower for item in ranges} | {item.upper for item in ranges})
    rank = {end: place for place, end in enumerate(ends)}
    lower = np.array([rank[item.lower] for item in ranges], dtype=np.int64)
    return Ranked(ranges, lower, np.array([rank[item.upper] for item in ranges], dtype=np.int64))
