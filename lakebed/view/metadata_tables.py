"""Metadata of a table as Arrow tables: its figures, parts, partitions, timeline, claims, merges, schemas. Nothing is changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from lakebed.coordination.schema_history import past_changes
from lakebed.coordination.table_figures import figures_of
from lakebed.errors import InvalidInput
from lakebed.log.actions import ChangePart, Commit, Part, PartitionKey
from lakebed.log.claims import claims_of
from lakebed.log.commit_kind import CommitKind, kind_of
from lakebed.log.entries import Operation
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.parts.part_filter import parts_that_may_match
from lakebed.positions.positions import positions_of
from lakebed.schema.column_mapping import ColumnMapping
from lakebed.schema.metadata import Metadata
from lakebed.sortkey.statistics import parsed_stats
from lakebed.sql import check_columns_of, expression
from lakebed.storage.engine import connect

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
        ("sort_key_version", pa.int64()),
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
_POSITIONS_SCHEMA = pa.schema(
    [("topic", pa.string()), ("partition", pa.int32()), ("next_offset", pa.int64()), ("topic_id", pa.string())]
)
CLAIMS_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("replica", pa.string()),
        ("kind", pa.string()),
        ("state", pa.string()),
        ("since", pa.timestamp("ms", "UTC")),
        ("lease_until", pa.timestamp("ms", "UTC")),
        ("level", pa.int32()),
        ("parts", pa.int64()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("left", pa.int64()),
        ("sources", pa.list_(pa.string())),
    ]
)
COMPACTIONS_SCHEMA = pa.schema(
    [
        ("version", pa.int64()),
        ("timestamp", pa.timestamp("ms", "UTC")),
        ("operation", pa.string()),
        ("plan", pa.string()),
        ("level", pa.int32()),
        ("parts_in", pa.int64()),
        ("parts_out", pa.int64()),
        ("rows_in", pa.int64()),
        ("rows_out", pa.int64()),
        ("rows_predicted", pa.int64()),
        ("bytes_in", pa.int64()),
        ("bytes_out", pa.int64()),
        ("bytes_predicted", pa.int64()),
        ("carried_rows", pa.int64()),
        ("seconds", pa.float64()),
        ("replica", pa.string()),
        ("why", pa.string()),
    ]
)
_MERGES = (CommitKind.MERGE, CommitKind.UPLOAD)
_DETAIL_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("id", pa.string()),
        ("version", pa.int64()),
        ("keys", pa.list_(pa.string())),
        ("sort_key", pa.list_(pa.string())),
        ("sort_key_version", pa.int64()),
        ("sequence_by", pa.string()),
        ("partition_by", pa.list_(pa.string())),
        ("parts", pa.int64()),
        ("unsorted_parts", pa.int64()),
        ("tail_parts", pa.int64()),
        ("tail_rows", pa.int64()),
        ("rows", pa.int64()),
        ("dead_rows", pa.int64()),
        ("bytes", pa.int64()),
        ("volatile", pa.string()),
    ]
)


def detail(path: str, snapshot: Snapshot, volatile: str) -> pa.Table:
    """One row (DETAIL_SCHEMA). ``rows``: the live rows of the base; ``bytes``: the size of all parts, dead rows included.

    ``unsorted_parts``: parts of the base that are not known to be sorted by the table's sort key. ``volatile``: its last column.
    """
    settings = snapshot.logical_settings
    figures = figures_of(snapshot)
    row = {
        "path": path,
        "id": snapshot.metadata.id,
        "version": snapshot.version,
        "keys": list(settings.keys),
        "sort_key": list(settings.sort_key),
        "sort_key_version": settings.sort_key_version,
        "sequence_by": settings.sequence_by,
        "partition_by": list(snapshot.metadata.partition_columns),
        "parts": figures.parts,
        "unsorted_parts": figures.unsorted_parts,
        "tail_parts": figures.tail_parts,
        "tail_rows": figures.tail_rows,
        "rows": figures.rows,
        "dead_rows": figures.dead_rows,
        "bytes": figures.bytes,
        "volatile": volatile,
    }
    return pa.Table.from_pylist([row], _DETAIL_SCHEMA)


def parts(snapshot: Snapshot, page: slice = slice(None)) -> pa.Table:
    """One row per part (PARTS_SCHEMA): the base by level and age, then the tail in its order; columns by their users' names.

    ``page``: which of these rows.
    """
    base = sorted(snapshot.parts.values(), key=lambda part: (part.level, part.max_block, part.path))
    listed: list[Part | ChangePart] = [*base, *snapshot.tail_in_order()]
    return pa.Table.from_pylist([_part_row(part, snapshot.columns) for part in listed[page]], PARTS_SCHEMA)


def _part_row(part: Part | ChangePart, columns: ColumnMapping) -> dict[str, Any]:
    if isinstance(part, Part):
        place = ("base", part.level, part.dead_rows, part.min_block, part.max_block)
    else:
        place = ("tail", 0, 0, part.version, part.version)
    state, level, dead_rows, min_block, max_block = place
    return {
        "path": part.path,
        "state": state,
        "level": level,
        "rows": part.rows,
        "dead_rows": dead_rows,
        "bytes": part.bytes,
        "min_block": min_block,
        "max_block": max_block,
        "sort_key_version": part.sort_key_version,
        "partition": [(columns.logical_name(name), value) for name, value in part.partition_values.items()],
        "stats": stats_for_users(part.stats, columns),
    }


def stats_for_users(stats: str | None, columns: ColumnMapping) -> str | None:
    """Statistics by the users' names of columns; as the log has them if these are the same, or if they can't be read."""
    if stats is None or columns.is_identity:
        return stats
    names = dict(zip(columns.stored.names, columns.logical.names, strict=True))
    try:
        values = dict(parsed_stats(stats))
        for kind in ("minValues", "maxValues", "nullCount"):
            if kind in values:
                values[kind] = {names[name]: value for name, value in values[kind].items() if name in names}
    except (ValueError, AttributeError):
        return stats
    return orjson.dumps(values, default=lambda number: orjson.Fragment(str(number))).decode()  # decimals stay exact


def newest_commits(log: TableLog, last: int) -> list[Commit]:
    """The newest commits that the log still has, at most ``last``, oldest first.

    Raises InvalidInput if ``last`` is not above 0.
    """
    if last < 1:
        raise InvalidInput(f"last is {last}; it must be above 0")
    newest = log.refresh().version
    return list(log.commits(max(log.oldest_version(), newest - last + 1), newest))


def timeline(commits: Sequence[Commit]) -> pa.Table:
    """One row per commit (TIMELINE_SCHEMA), newest first."""
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


def positions(snapshot: Snapshot) -> pa.Table:
    """One row per partition that the table reads (POSITIONS_SCHEMA), sorted."""
    rows = [
        {"topic": topic, "partition": number, "next_offset": offset, "topic_id": position.topic_id}
        for topic, position in sorted(positions_of(snapshot).items())
        for number, offset in sorted(position.offsets.items())
    ]
    return pa.Table.from_pylist(rows, _POSITIONS_SCHEMA)


def claims(snapshot: Snapshot, now_ms: int) -> pa.Table:
    """One row per claim (CLAIMS_SCHEMA), oldest first.

    ``kind``: ``merge``; ``volatile`` for a claim whose output stays on its replica's disk for now; or the operation of a
    rewrite, which has no sources. ``state``: ``live``, or ``expired`` if the lease has ended. ``parts``, ``rows`` (live ones)
    and ``bytes``: of the sources that are still in the base. ``left``: the number of sources that are no longer there.
    """
    rows = []
    for claim in sorted(claims_of(snapshot.domains).values(), key=lambda claim: (claim.since_ms, claim.id)):
        covered = [snapshot.parts[path] for path in claim.sources if path in snapshot.parts]
        rows.append(
            {
                "id": claim.id,
                "replica": claim.replica,
                "kind": claim.shown_kind,
                "state": "live" if claim.is_live(now_ms) else "expired",
                "since": claim.since_ms,
                "lease_until": claim.lease_ms,
                "level": claim.level,
                "parts": len(covered),
                "rows": sum(part.live_rows for part in covered),
                "bytes": sum(part.bytes for part in covered),
                "left": len(claim.sources) - len(covered),
                "sources": list(claim.sources),
            }
        )
    return pa.Table.from_pylist(rows, CLAIMS_SCHEMA)


def compactions(commits: Sequence[Commit]) -> pa.Table:
    """One row per merge among the commits (COMPACTIONS_SCHEMA), newest first: its result and its plan's prediction.

    All rows counted are live rows; ``carried_rows`` died during the merge. ``seconds`` are from the claim to the commit; for
    an upload this is how long other readers waited. An upload has no prediction: it completes several plans.
    """
    rows = []
    for commit in sorted(commits, key=lambda commit: -commit.version):
        kind, info = kind_of(commit), commit.info
        if kind not in _MERGES:
            continue
        parameters = info.parameters if info else {}
        cost = info.metrics if info else {}
        rows.append(
            {
                "version": commit.version,
                "timestamp": commit.timestamp_ms,
                "operation": kind.value,
                "plan": parameters.get("plan"),
                "level": _whole(parameters.get("level")),
                "parts_in": _whole(cost.get("partsIn")),
                "parts_out": _whole(cost.get("partsOut")),
                "rows_in": _whole(cost.get("rowsIn")),
                "rows_out": _whole(cost.get("rowsOut")),
                "rows_predicted": _whole(parameters.get("rowsPredicted")),
                "bytes_in": _whole(cost.get("bytesIn")),
                "bytes_out": _whole(cost.get("bytesOut")),
                "bytes_predicted": _whole(parameters.get("bytesPredicted")),
                "carried_rows": _whole(cost.get("carriedRows")),
                "seconds": cost.get("seconds"),
                "replica": parameters.get("replica"),
                "why": parameters.get("why"),
            }
        )
    return pa.Table.from_pylist(rows, COMPACTIONS_SCHEMA)


def _whole(value: str | float | None) -> int | None:
    return None if value is None else int(value)


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
