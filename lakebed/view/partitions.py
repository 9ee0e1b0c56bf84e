"""The partitions of a table as an Arrow table: values, rows, bytes, and when each was written to last. From the log alone."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from lakebed.errors import InvalidInput
from lakebed.log.actions import ChangePart, Part, PartitionKey
from lakebed.log.snapshot import Snapshot
from lakebed.parts.part_filter import parts_that_may_match
from lakebed.sql.expression import check_columns_of, expression
from lakebed.storage.engine import connect

PARTITIONS_SCHEMA = pa.schema(
    [
        ("partition", pa.map_(pa.string(), pa.string())),
        ("rows", pa.int64()),
        ("tail_rows", pa.int64()),
        ("bytes", pa.int64()),
        ("parts", pa.int64()),
        ("changed", pa.timestamp("ms", "UTC")),
    ]
)


@dataclass(slots=True)
class _Partition:
    """Sums of a partition. ``path``, ``partition_values`` and ``stats``: as if it were a file, to be left out as one."""

    partition_values: dict[str, str | None]
    path: str = "_lakebed/partition"
    stats: str | None = None
    rows: int = 0
    tail_rows: int = 0
    bytes: int = 0
    parts: int = 0
    changed_ms: int = 0


def partitions(snapshot: Snapshot, where: str | None = None) -> pa.Table:
    """One row per partition (PARTITIONS_SCHEMA), by their values; columns by their users' names.

    ``rows``: live rows of the base; ``tail_rows``: changes that are not settled. ``where``: of its conditions that AND joins,
    those that compare a partition column with a constant leave partitions out; others leave out none. Raises InvalidInput.
    """
    if not snapshot.partition_columns:
        raise InvalidInput("the table has no partitions")
    found: dict[PartitionKey, _Partition] = {}
    parts: list[Part | ChangePart] = [*snapshot.parts.values(), *snapshot.tail.values()]
    for part in parts:
        key = part.partition_key
        one = found.get(key)
        if one is None:
            one = found[key] = _Partition(dict(part.partition_values))
        one.bytes += part.bytes
        one.parts += 1
        one.changed_ms = max(one.changed_ms, part.modified_ms)
    for base in snapshot.parts.values():
        found[base.partition_key].rows += base.live_rows
    for change in snapshot.tail.values():
        found[change.partition_key].tail_rows += change.rows
    kept = _kept(snapshot, [found[key] for key in sorted(found, key=_order)], where)
    columns = snapshot.columns
    rows = [
        {
            "partition": [(columns.logical_name(name), value) for name, value in one.partition_values.items()],
            "rows": one.rows,
            "tail_rows": one.tail_rows,
            "bytes": one.bytes,
            "parts": one.parts,
            "changed": one.changed_ms,
        }
        for one in kept
    ]
    return pa.Table.from_pylist(rows, PARTITIONS_SCHEMA)


def _kept(snapshot: Snapshot, found: list[_Partition], where: str | None) -> list[_Partition]:
    if where is None:
        return found
    condition = expression(where, "where")
    check_columns_of(condition, snapshot.logical_schema.names)
    mapping = snapshot.columns
    none_matches = _Partition({})  # one file alone is never left out
    with connect() as connection:
        kept = parts_that_may_match(connection, [*found, none_matches], mapping.stored, condition, None, mapping)
    return [one for one in kept if one is not none_matches]


def _order(key: PartitionKey) -> list[tuple[str, bool, str]]:
    return [(name, value is not None, value or "") for name, value in key]
