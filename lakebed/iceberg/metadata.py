"""The file ``v<number>.metadata.json``: what the table is, and which of its versions are snapshots of Iceberg. Pure.

1. The id of a snapshot and its sequence number are the version + 1: Iceberg counts from 1.
2. Metadata follows metadata, by number. The next one has the snapshots of the one before, as long as their versions are kept, and
   of these the newest ``_SNAPSHOTS_NEWEST`` and the last one of each of the newest ``HOURS`` hours: its size is bounded.
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
from lakebed.log.stores import LogStore

Json = dict[str, Any]
_SNAPSHOTS_NEWEST = 8
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
    stay |= {each["snapshot-id"] for each in snapshots[-_SNAPSHOTS_NEWEST:]}
    return [each for each in snapshots if each["snapshot-id"] in stay]


def _one_of_each(values: Sequence[Json], key: str, used: set[int] | None = None) -> list[Json]:
    found = {each[key]: each for each in values}
    return [each for number, each in found.items() if used is None or number in used]


def _uuid(text: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError:  # another writer's id
        return str(uuid.uuid5(uuid.NAMESPACE_OID, text))


# -- The newest metadata of a table, for who writes the next one and for who serves it. No log is read ---------------------
#
# 1. Metadata has numbers, and a hint names one. The hint may lag; where it is missing or wrong, the names are listed.
# 2. From there on the numbers that follow are read until one is not there.
# 3. What can't be read is passed over. The newest metadata that can is the *head*; the next one gets the number after all of
#    them.
# 4. Who knows a head reads it again, and parses it only if it is another text: a table that was made anew at the same place has
#    the same numbers.


FOLDER = "_lakebed/iceberg"
METADATA_FOLDER = f"{FOLDER}/metadata"
HINT = f"{METADATA_FOLDER}/version-hint.text"
_PASSED_OVER_MAX = 32
"""So many damaged files are read to find one that is not. Older metadata would soon be deleted anyway."""


def metadata_name(number: int) -> str:
    """The name of metadata, relative to the table's root."""
    return f"{METADATA_FOLDER}/v{number}.metadata.json"


@dataclass(frozen=True, slots=True)
class Newest:
    """What there is of metadata."""

    head: Head | None = None  # the newest that can be read
    last: int = 0  # the highest number that is taken, 0 if none is

    @property
    def damaged(self) -> tuple[str, ...]:
        """The names of those after the head, which can't be read."""
        return tuple(map(metadata_name, range((self.head.number if self.head else 0) + 1, self.last + 1)))


class Heads:
    """The newest metadata of one table, as far as it was read. Safe to use from several threads."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._known = Newest()
        self._text: tuple[Head, bytes] | None = None  # of the head, as it was read

    def newest(self) -> Newest:
        """What there is now. If there is nothing new that takes two requests. Raises StoreUnavailable."""
        known = self._known
        if known.head is None or not self._is_there(known.head):
            known = self._first()  # it was deleted since, and so may be the numbers that follow it
        head, last = known.head, known.last
        while (text := self._read(metadata_name(last + 1))) is not None:
            last += 1
            head = _head_of(last, text) or head
        if (head, last) != (known.head, known.last):
            known = Newest(head, last)
        self._known = known
        return known

    def know(self, head: Head) -> Newest:
        """Take over metadata that was just written."""
        self._known = Newest(head, head.number)
        return self._known

    def hinted(self) -> int | None:
        """The number that the hint names; None if there is no hint. Raises StoreUnavailable."""
        text = self._read(HINT)
        if text is None:
            return None
        return int(text) if text.isascii() and text.strip().isdigit() and len(text) < 20 else 0

    def _is_there(self, head: Head) -> bool:
        """Whether a head that is known is still the metadata of its number."""
        text, known = self._read(metadata_name(head.number)), self._text
        if text is None:
            return False
        if known is not None and known == (head, text):
            return True
        found = _head_of(head.number, text)
        if found != head:
            return False
        self._text = head, text
        return True

    def _first(self) -> Newest:
        number = self.hinted()
        if number and (text := self._read(metadata_name(number))) is not None and (head := _head_of(number, text)):
            return Newest(head, number)
        names = self._store.list_from(METADATA_FOLDER, "v")
        texts = [name.removesuffix(".metadata.json")[1:] for name in names if name.endswith(".metadata.json")]
        numbers = sorted((int(each) for each in texts if each.isascii() and each.isdigit()), reverse=True)
        for number in numbers[:_PASSED_OVER_MAX]:
            if (text := self._read(metadata_name(number))) is not None and (head := _head_of(number, text)):
                return Newest(head, numbers[0])
        return Newest(None, numbers[0] if numbers else 0)

    def _read(self, name: str) -> bytes | None:
        try:
            return self._store.read(name)
        except FileNotFoundError:
            return None


def withdraw(store: LogStore) -> None:
    """Let nobody find the metadata, which may name files that will be deleted. Raises StoreUnavailable."""
    store.delete(HINT)


def _head_of(number: int, text: bytes) -> Head | None:
    """The metadata in a file; None if it is not what lakebed writes."""
    try:
        head = Head(number=number, document=orjson.loads(text))
        head.check()
    except (orjson.JSONDecodeError, LookupError, TypeError, ValueError):
        return None
    return head
