"""How a commit ends: it succeeded, another one conflicts with it, or the store did not answer.

A commit that replaces parts read a snapshot. The commits between that snapshot and the newest are checked one by one:

1. A batch of the same application that is as new as ours: ours was committed already (or overtaken).
2. A change of metadata or protocol: what we wrote may not fit any more. A compatible change of the schema (``evolve``) passes,
   unless ours changes metadata too: what we wrote is as good as any older part.
3. For a commit that looked keys up: parts with new rows joined the base, so a key may live where we did not look. For one
   that read the changes: change parts joined the tail, or rows left the table otherwise than by a settle.
4. For one that is about certain keys (``joining``: those that it brings into the base, those that a mutation changes): changes
   that may be about one of them, no others, and rows with one of them that came into the base in another way than by a settle,
   which only brings what was in the tail.
5. A restore of an earlier version: whatever read or replaces rows is worked out again.
6. What both changed, by the table's scope: the same part, the same partition, or anything in the table. With the scope ``table``
   two rewrites by users are never made of one version: the second ends (``commit_loop``). One that inserts what it did not find,
   or replaces the rows of a condition (``inserts_missing``), is worked out again after any rewrite. An append reads nothing, so
   it counts as the later one of the two.
7. Claims: another claim on the same parts, or a commit that ended or took over the claim that ours rests on.
8. Positions: a writer that read the same topic into the table.
9. A purge (``removals``): whatever was planned before it is planned again.

A blind append reads nothing, so only 1, 2, 8 and 9 can stop it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol as Interface
from typing import TypeAlias

from lakebed.log.actions import (
    AddChangePart,
    AddPart,
    ChangePart,
    Commit,
    Domain,
    Part,
    PartitionKey,
    RemoveChangePart,
    RemovePart,
    Transaction,
    partition_key,
)
from lakebed.log.claims import claim_of
from lakebed.log.commit_kind import (
    REWRITES,
    CommitKind,
    expires_rows,
    is_append,
    kind_of,
    replaces_rows,
    restores,
    settles,
)
from lakebed.log.entries import FENCE, FILES, POSITION, PURGE, PURGED
from lakebed.log.snapshot import Snapshot
from lakebed.schema.evolve import is_compatible, only_adds_features
from lakebed.schema.metadata import Metadata, Protocol


class ConflictKind(Enum):
    """What in the other commit conflicts with ours."""

    BATCH = "batch"
    METADATA = "metadata"
    NEW_ROWS = "new rows"
    PARTS = "parts"
    TABLE = "table"
    CLAIM = "claim"
    POSITION = "position"


@dataclass(frozen=True, slots=True)
class Conflict:
    """The commit that came first, and what in it conflicts."""

    version: int
    kind: ConflictKind
    detail: str


class Keys(Interface):
    """Keys of some rows."""

    def may_meet(self, part: Part | ChangePart, /) -> bool:
        """Whether the part may have a row of one of them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadWriteSet:
    """What a commit read or replaces."""

    # paths of base parts that it replaces, with the partition of each
    parts: Mapping[str, PartitionKey] = field(default_factory=dict)
    # domains of change parts that leave the tail, or that nobody else may take out of it
    change_parts: frozenset[str] = frozenset()
    looked_up_keys: bool = False  # whether it relies on having seen every row of the base
    read_changes: bool = False  # whether it relies on having seen every change
    joining: Keys | None = None  # keys that it brings or changes: changes of others do not matter to it
    whole_table: bool = False  # whether it relies on the table being exactly as read (truncate)
    # whether it brings rows because it found no others, in a table without keys, or for those of a condition, or changes again
    inserts_missing: bool = False
    # paths of parts that it claims: they must stay in the base, and have no other claim
    claimed: frozenset[str] = frozenset()
    domains: frozenset[str] = frozenset()  # entries that it replaces or depends on

    @property
    def is_blind(self) -> bool:
        """Whether it neither reads nor replaces rows."""
        return replace(self, domains=frozenset()) == BLIND


BLIND = ReadWriteSet()


def find_conflict(
    access: ReadWriteSet, batch: Transaction | None, scope: str, winner: Commit, before: Snapshot | None = None
) -> Conflict | None:
    """What in a commit that came first conflicts with ours, None if nothing does. Pure.

    ``before``: the version that the other commit followed; None if every change of metadata is a conflict.
    """
    replaces = bool(access.parts or access.change_parts or access.whole_table)
    partitions = set(access.parts.values())
    gone = _removed_for_good(winner) if access.claimed else frozenset()
    is_settle = settles(winner)
    if restores(winner) and not access.is_blind:
        return Conflict(winner.version, ConflictKind.TABLE, kind_of(winner).value)
    if (access.read_changes or access.inserts_missing) and takes_rows_away(winner):
        return Conflict(winner.version, ConflictKind.PARTS, "rows that were read left the table")
    for action in winner.actions:
        match action:
            case Transaction(app_id, version, _) if batch and app_id == batch.app_id and version >= batch.version:
                return Conflict(winner.version, ConflictKind.BATCH, f"batch {version} of {app_id}")
            case Metadata() if not (before and is_compatible(before.metadata, action)):
                return Conflict(winner.version, ConflictKind.METADATA, "schema, keys or properties")
            case Protocol() if not (before and only_adds_features(before.protocol, action)):
                return Conflict(winner.version, ConflictKind.METADATA, "protocol")
            case RemovePart(path=path):
                if path in access.parts or (path in gone and path in access.claimed):
                    return Conflict(winner.version, ConflictKind.PARTS, path)
                partition = partition_key(action.partition_values or {})
                if scope == "partition" and access.parts and partition and partition in partitions:
                    return Conflict(winner.version, ConflictKind.PARTS, f"partition {dict(partition)}")
            case RemoveChangePart(domain):
                if domain in access.change_parts:
                    return Conflict(winner.version, ConflictKind.PARTS, domain)
            case AddChangePart(change_part):
                if access.read_changes if access.joining is None else access.joining.may_meet(change_part):
                    return Conflict(winner.version, ConflictKind.NEW_ROWS, change_part.path)
            case AddPart(part, True):
                meets = access.joining is not None and not is_settle and access.joining.may_meet(part)
                if access.looked_up_keys or meets:
                    return Conflict(winner.version, ConflictKind.NEW_ROWS, part.path)
            case Domain(domain, _, False) if domain in (FENCE, PURGED) or domain.startswith(PURGE):
                return Conflict(winner.version, ConflictKind.METADATA, "a purge")
            case Domain(domain, _, _) if domain in access.domains:
                kind = ConflictKind.POSITION if domain.startswith((POSITION, FILES)) else ConflictKind.CLAIM
                return Conflict(winner.version, kind, domain)
            case Domain(domain, configuration, False) if access.claimed:
                claim = claim_of(domain, configuration)
                if claim and not access.claimed.isdisjoint(claim.sources):
                    return Conflict(winner.version, ConflictKind.CLAIM, f"{domain} of {claim.replica}")
            case _:
                pass
    spares_parts = is_append(winner.actions) or kind_of(winner) is CommitKind.ALTER
    if (access.inserts_missing or scope == "table") and not access.is_blind and kind_of(winner) in REWRITES:
        return Conflict(winner.version, ConflictKind.TABLE, kind_of(winner).value)
    if replaces and (access.whole_table or (scope == "table" and not spares_parts)):
        return Conflict(winner.version, ConflictKind.TABLE, kind_of(winner).value)
    return None


def takes_rows_away(winner: Commit) -> bool:
    """Whether live rows may have left the table other than by a change: by truncate, detach, a replaced partition, a restore, or
    because their time to live has ended.

    A settle takes parts away too, when changes have replaced their last rows.
    """
    if settles(winner):
        return False
    if restores(winner) or expires_rows(winner) or replaces_rows(winner):
        return True
    stays = {action.part.path for action in winner.actions if isinstance(action, AddPart)}
    return any(
        isinstance(action, RemoveChangePart)
        or (isinstance(action, RemovePart) and action.data_change and action.path not in stays)
        for action in winner.actions
    )


def _removed_for_good(winner: Commit) -> frozenset[str]:
    """Parts that the commit removes from the base for good; a part whose dead rows it marks stays."""
    added = {action.part.path for action in winner.actions if isinstance(action, AddPart)}
    return frozenset(action.path for action in winner.actions if isinstance(action, RemovePart)) - added


@dataclass(frozen=True, slots=True)
class Committed:
    """The commit is this version."""

    version: int
    snapshot: Snapshot  # the table at this version
    attempts: int = 1  # how many versions were tried


@dataclass(frozen=True, slots=True)
class Conflicted:
    """Another commit came first and conflicts with ours; nothing of ours was committed. ``snapshot`` is at that commit."""

    conflict: Conflict
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Unknown:
    """The store did not answer: the commit may or may not be this version."""

    version: int
    commit_id: str
    cause: str


Outcome: TypeAlias = Committed | Conflicted | Unknown
