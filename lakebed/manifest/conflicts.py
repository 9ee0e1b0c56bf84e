"""Whether a commit that somebody else made first stands in the way of ours.

A commit that replaces parts read a snapshot. The commits between that snapshot and the newest are checked one by one:

1. A batch of the same application that is as new as ours: ours was committed already (or overtaken).
2. A change of metadata or protocol: what we wrote may not fit any more.
3. For a commit that looked keys up: parts with new rows joined the base, so a key may live where we did not look.
4. What both touched, by the table's scope: the same part, the same partition, or anything in the table.

A blind append reads nothing, so only 1 and 2 can stop it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from lakebed.manifest.actions import AddPart, Commit, Metadata, Protocol, RemoveChangePart, RemovePart, Transaction

PartitionKey: TypeAlias = tuple[tuple[str, str | None], ...]


class ConflictKind(Enum):
    """What of the other commit stands in the way."""

    BATCH = "batch"
    METADATA = "metadata"
    NEW_ROWS = "new rows"
    PARTS = "parts"
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class Conflict:
    """The commit that came first, and what of it conflicts."""

    version: int
    kind: ConflictKind
    detail: str


@dataclass(frozen=True, slots=True)
class Touch:
    """What a commit read or replaces.

    ``parts``: paths of base parts replaced, with the partition of each; ``change_parts``: domains of change parts that
    leave the tail; ``looked_up_keys``: whether it relies on having seen every row of the base; ``whole_table``: whether
    it relies on the table being exactly as read (truncate).
    """

    parts: Mapping[str, PartitionKey] = field(default_factory=dict)
    change_parts: frozenset[str] = frozenset()
    looked_up_keys: bool = False
    whole_table: bool = False


BLIND = Touch()


def find_conflict(touch: Touch, batch: Transaction | None, scope: str, winner: Commit) -> Conflict | None:
    """What of a commit that came first conflicts with ours, None if nothing does. Pure."""
    replaces = bool(touch.parts or touch.change_parts or touch.whole_table)
    partitions = set(touch.parts.values())
    for action in winner.actions:
        match action:
            case Transaction(app_id, version, _) if batch and app_id == batch.app_id and version >= batch.version:
                return Conflict(winner.version, ConflictKind.BATCH, f"batch {version} of {app_id}")
            case Metadata():
                return Conflict(winner.version, ConflictKind.METADATA, "schema, keys or properties")
            case Protocol():
                return Conflict(winner.version, ConflictKind.METADATA, "protocol")
            case RemovePart(path):
                if path in touch.parts:
                    return Conflict(winner.version, ConflictKind.PARTS, path)
                partition = tuple(sorted((action.partition_values or {}).items()))
                if scope == "partition" and touch.parts and partition and partition in partitions:
                    return Conflict(winner.version, ConflictKind.PARTS, f"partition {dict(partition)}")
            case RemoveChangePart(domain):
                if domain in touch.change_parts:
                    return Conflict(winner.version, ConflictKind.PARTS, domain)
            case AddPart(part, data_change):
                if touch.looked_up_keys and data_change:
                    return Conflict(winner.version, ConflictKind.NEW_ROWS, part.path)
            case _:
                pass
    info = winner.info
    if replaces and (touch.whole_table or (scope == "table" and not (info and info.blind_append))):
        return Conflict(winner.version, ConflictKind.TABLE, info.operation if info else "a commit")
    return None
