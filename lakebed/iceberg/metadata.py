"""The file ``v<number>.metadata.json``: what the table is, and which of its versions are snapshots of Iceberg. Pure.

1. The id of a snapshot and its sequence number are the version + 1: Iceberg counts from 1.
2. Metadata follows metadata, by number. The next one has the snapshots of the one before, as long as their versions are kept, and
   of these the newest ``SNAPSHOTS_NEWEST`` and the last one of each of the newest ``HOURS`` hours: its size is bounded.
3. All times are those of commits.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from lakebed.iceberg.columns import PARTITION_IDS, UNSORTED, IcebergColumns
from lakebed.log.snapshot import Snapshot

Json = dict[str, Any]
SNAPSHOTS_NEWEST = 8
HOURS = 24
_BASE = "lakebed.base"
_HOUR_MS = 3_600_000
_ROW_IDS_BEHIND = 1 << 62
"""Above all numbers of rows: no file has any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The newest metadata of a table."""

    number: int
    document: Json

    @property
    def version(self) -> int:
        """The version that it is of."""
        return int(self.document["current-snapshot-id"]) - 1

    @property
    def snapshots(self) -> Sequence[Json]:
        found: Sequence[Json] = self.document["snapshots"]
        return found

    @property
    def base(self) -> str:
        """The digest of what it says of its version."""
        return str(self.document["properties"].get(_BASE, ""))

    def versions(self) -> dict[int, str]:
        """The versions that are snapshots, with their lists of manifests."""
        return {int(each["snapshot-id"]) - 1: str(each["manifest-list"]) for each in self.snapshots}

    def check(self) -> None:
        """Raises LookupError, TypeError, ValueError where a file is not what ``next_metadata`` makes."""
        if not self.snapshots or self.version != max(self.versions()):
            raise ValueError("its newest snapshot is not the current one")
        for each in [self.document["location"], self.document["schemas"], self.document["sort-orders"], self.base]:
            if not isinstance(each, str | list):
                raise TypeError(f"{each!r} is neither a text nor a list")


def next_metadata(
    snapshot: Snapshot,
    columns: IcebergColumns,
    *,
    location: str,
    manifest_list: str,
    base: str,
    before: Head | None,
    first_kept: int,
) -> Json:
    """The metadata of a version. ``first_kept``: versions before it are gone."""
    number = snapshot.version + 1
    then: Json = {} if before is None or before.document["location"] != location else before.document
    kept = [
        each
        for each in then.get("snapshots", ())
        if first_kept < int(each["snapshot-id"]) < number  # ids are versions + 1
    ]
    snapshots = _thinned(kept, snapshot.timestamp_ms)
    parent = snapshots[-1]["snapshot-id"] if snapshots else None
    snapshots.append(_snapshot_of(snapshot, columns, manifest_list, parent))
    used = {each["schema-id"] for each in snapshots}
    return {
        "format-version": 3,
        "table-uuid": _uuid(snapshot.metadata.id),
        "location": location,
        "last-sequence-number": number,
        "last-updated-ms": snapshot.timestamp_ms,
        "last-column-id": max(columns.last_column_id, int(then.get("last-column-id", 0))),
        "schemas": _one_of_each([*then.get("schemas", ()), columns.schema], "schema-id", used),
        "current-schema-id": columns.schema["schema-id"],
        "partition-specs": [columns.spec],
        "default-spec-id": 0,
        "last-partition-id": PARTITION_IDS - 1 + len(columns.partitions),
        "sort-orders": _one_of_each([UNSORTED, columns.sort_order], "order-id"),
        "default-sort-order-id": columns.sort_order["order-id"],
        "properties": {"schema.name-mapping.default": orjson.dumps(columns.name_mapping).decode(), _BASE: base},
        "current-snapshot-id": number,
        "refs": {"main": {"snapshot-id": number, "type": "branch"}},
        "snapshots": snapshots,
        "snapshot-log": [
            {"snapshot-id": each["snapshot-id"], "timestamp-ms": each["timestamp-ms"]} for each in snapshots
        ],
        "metadata-log": [],
        "next-row-id": _ROW_IDS_BEHIND,
    }


def _snapshot_of(snapshot: Snapshot, columns: IcebergColumns, manifest_list: str, parent: int | None) -> Json:
    found: Json = {"snapshot-id": snapshot.version + 1} | ({} if parent is None else {"parent-snapshot-id": parent})
    return found | {
        "sequence-number": snapshot.version + 1,
        "timestamp-ms": snapshot.timestamp_ms,
        "manifest-list": manifest_list,
        "summary": {"operation": "overwrite"},
        "schema-id": columns.schema["schema-id"],
        "first-row-id": 0,
        "added-rows": 0,
    }


def _thinned(snapshots: Sequence[Json], now_ms: int) -> list[Json]:
    """The snapshots that stay, oldest first."""
    last_of_hour = {each["timestamp-ms"] // _HOUR_MS: each["snapshot-id"] for each in snapshots}
    oldest = now_ms // _HOUR_MS - HOURS
    stay = {one for hour, one in last_of_hour.items() if hour >= oldest}
    stay |= {each["snapshot-id"] for each in snapshots[-SNAPSHOTS_NEWEST:]}
    return [each for each in snapshots if each["snapshot-id"] in stay]


def _one_of_each(values: Sequence[Json], key: str, used: set[int] | None = None) -> list[Json]:
    found = {each[key]: each for each in values}
    return [each for number, each in found.items() if used is None or number in used]


def _uuid(text: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError:  # another writer's id
        return str(uuid.uuid5(uuid.NAMESPACE_OID, text))
