"""The kind of a commit, which follows from its actions alone.

``commitInfo`` is for people: another tool may rewrite or drop it, and checkpoints do not keep it. So no decision
rests on its operation, its parameters or its metrics. Only its identity and time are used (see ``CommitInfo``).

Where the actions of two operations would be the same, an entry distinguishes them:

- A settle and a truncate both take change parts out of the tail. A truncate writes the entry ``lakebed.truncated``.
- An update of a table without keys and the replacement of a partition both put new rows in the place of old ones. The latter
  writes the entry ``lakebed.replaced``.
- A restore may look like any of them. It writes the entry ``lakebed.restored``.
- Rows whose time to live has ended leave like those of a delete in a table without keys, with the entry
  ``lakebed.rows_expired``.
- A MERGE INTO that only inserts rows in a table without keys looks like an append. It writes the entry ``lakebed.merged_into``.
- A change of the schema and one of properties both set the metadata. The former writes an entry ``lakebed.schema.…``.
- A change part records whether a mutation wrote it (``ChangePart.mutation``).
- A claim that ends keeps its description in the action that ends it, so an upload differs from a merge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

import orjson

from lakebed.log.actions import (
    Action,
    AddChangePart,
    AddPart,
    Commit,
    CommitInfo,
    Domain,
    RemoveChangePart,
    RemovePart,
    Transaction,
)
from lakebed.log.claims import Claim, claim_of
from lakebed.log.entries import (
    CLAIM,
    DETACHED,
    EXPIRED,
    FILES,
    HOLD,
    MERGED_INTO,
    POSITION,
    PURGE,
    PURGED,
    QUARANTINED,
    REMARKS,
    REPLACED,
    RESNAPSHOT,
    RESTORED,
    ROWS_EXPIRED,
    SCHEMA,
    TRUNCATED,
)
from lakebed.log.entry_values import readable_or_none
from lakebed.schema.metadata import Metadata, Protocol


class CommitKind(Enum):
    """What a commit did to the table."""

    CREATE = "create"
    CONVERT = "convert"
    PROPERTIES = "properties"
    ALTER = "alter"
    APPEND = "append"  # a batch of changes or rows, perhaps after a truncate of the source
    MUTATION = "mutation"
    SETTLE = "settle"
    MERGE = "merge"
    UPLOAD = "upload"
    TRUNCATE = "truncate"
    REPLACE_PARTITION = "replace partition"
    DETACH_PARTITION = "detach partition"
    ATTACH_PARTITION = "attach partition"
    DROP_DETACHED = "drop detached"
    RESTORE = "restore"  # an earlier version is the newest again
    EXPIRE_ROWS = "expire rows"  # rows whose time to live has ended leave
    PURGE = "purge"  # one of the commits of a purge that move no rows
    CLAIM = "claim"  # made, extended or given back
    HOLD = "hold"  # a reader begins or stops holding a version
    EXPIRE = "expire"
    OTHER = "other"


REWRITES = frozenset(
    {
        CommitKind.MUTATION,
        CommitKind.TRUNCATE,
        CommitKind.REPLACE_PARTITION,
        CommitKind.DETACH_PARTITION,
        CommitKind.ATTACH_PARTITION,
        CommitKind.RESTORE,
    }
)
"""What users do to rows that are there."""


def truncated(version: int) -> Domain:
    """The entry of a commit that empties the table: the version that did so last."""
    return Domain(TRUNCATED, orjson.dumps({"version": version}).decode())


def replaced(partition: Mapping[str, str | None], where: str | None = None) -> Domain:
    """The entry of a commit that replaces partitions: the version that did so last (when it is committed), and which.

    ``partition`` is empty for several: those for which ``where`` is true, without one all of them.
    """
    document: dict[str, object] = {"version": -1, "partition": dict(partition)}
    if where is not None:
        document["where"] = where
    return Domain(REPLACED, orjson.dumps(document).decode())


def restored(version: int, earlier: int) -> Domain:
    """The entry of a commit that restores an earlier version: the version that did so last, and the one it restored."""
    return Domain(RESTORED, orjson.dumps({"version": version, "restored": earlier}).decode())


def rows_expired(column: str, before: str, looked_ms: int) -> Domain:
    """The entry of a commit that removes old rows: before what their column was, and when rows within parts were looked for."""
    return Domain(ROWS_EXPIRED, orjson.dumps({"column": column, "before": before, "looked_ms": looked_ms}).decode())


def merged_into(version: int) -> Domain:
    """The entry of a MERGE INTO that inserts rows in a table without keys: the version that it read."""
    return Domain(MERGED_INTO, orjson.dumps({"version": version}).decode())


def expires_rows(commit: Commit) -> bool:
    """Whether the commit removed rows whose time to live had ended."""
    return any(_sets(action, ROWS_EXPIRED) for action in commit.actions)


def restores(commit: Commit) -> bool:
    """Whether the commit made the table what it was at an earlier version."""
    return any(_sets(action, RESTORED) for action in commit.actions)


def truncates(commit: Commit) -> bool:
    """Whether the commit took everything out of the table that was in it before."""
    return any(_sets(action, TRUNCATED) for action in commit.actions)


def settles(commit: Commit) -> bool:
    """Whether the commit brought change parts from the tail into the base."""
    leaves = any(isinstance(action, RemoveChangePart) for action in commit.actions)
    return leaves and not truncates(commit) and not restores(commit)


def replaces_rows(commit: Commit) -> bool:
    """Whether the commit put rows in place of others: of partitions, or of a condition."""
    return any(_sets(action, REPLACED) for action in commit.actions)


def ended_claim(commit: Commit) -> Claim | None:
    """The claim that the commit completed or abandoned; None if it ended none."""
    for action in commit.actions:
        if isinstance(action, Domain) and action.removed and action.configuration:
            claim = readable_or_none(action.domain, action.configuration, claim_of)
            if claim is not None:
                return claim
    return None


def is_append(actions: Iterable[Action], batch: Transaction | None = None) -> bool:
    """Whether the actions only bring new changes or rows, or move positions, beside what is kept of a batch."""
    actions = (*actions, batch) if batch else tuple(actions)
    batches = {action.app_id for action in actions if isinstance(action, Transaction)}
    brings = False
    for action in actions:
        match action:
            case AddChangePart() | AddPart(data_change=True):
                brings = True
            case CommitInfo() | Transaction():
                pass
            case Domain(domain, _, removed) if domain.startswith(FILES) or (
                domain.startswith(POSITION) and not removed
            ):
                brings = True
            case Domain(domain, _, False) if domain in batches or domain.startswith((REMARKS, QUARANTINED, RESNAPSHOT)):
                pass
            case _:
                return False
    return brings


def kind_of(commit: Commit) -> CommitKind:
    """What the commit did to the table."""
    if restores(commit):
        return CommitKind.RESTORE
    if any(isinstance(action, Domain) and action.domain.startswith(SCHEMA) for action in commit.actions):
        return CommitKind.ALTER
    if any(isinstance(action, Protocol) for action in commit.actions):
        return CommitKind.CREATE if commit.version == 0 else CommitKind.CONVERT
    if any(isinstance(action, Metadata) for action in commit.actions):
        return CommitKind.PROPERTIES
    return _kind_of_parts(commit) or _kind_of_entries(commit)


def _kind_of_parts(commit: Commit) -> CommitKind | None:
    """The kind of a commit that changes parts; None if it changes none."""
    actions = commit.actions
    changes = [action.part for action in actions if isinstance(action, AddChangePart)]
    moved = [action for action in actions if isinstance(action, (AddPart, RemovePart))]
    brings = bool(changes) or any(isinstance(action, AddPart) for action in moved)
    if truncates(commit):
        return CommitKind.APPEND if brings else CommitKind.TRUNCATE
    if settles(commit):
        return CommitKind.SETTLE
    if moved and not any(action.data_change for action in moved):
        claim = ended_claim(commit)
        return CommitKind.UPLOAD if claim is not None and claim.volatile else CommitKind.MERGE
    if replaces_rows(commit):
        return CommitKind.REPLACE_PARTITION
    if expires_rows(commit):
        return CommitKind.EXPIRE_ROWS
    detached = [action for action in actions if isinstance(action, Domain) and action.domain.startswith(DETACHED)]
    if moved and detached:
        return CommitKind.ATTACH_PARTITION if detached[0].removed else CommitKind.DETACH_PARTITION
    is_merge = any(_sets(action, MERGED_INTO) for action in actions)
    if is_merge or any(part.mutation for part in changes) or any(isinstance(action, RemovePart) for action in moved):
        return CommitKind.MUTATION
    return CommitKind.APPEND if brings else None


def _kind_of_entries(commit: Commit) -> CommitKind:
    """The kind of a commit that changes no part."""
    entries = [action.domain for action in commit.actions if isinstance(action, Domain)]
    if any(isinstance(action, Transaction) for action in commit.actions) or any(
        entry.startswith((POSITION, FILES, QUARANTINED)) for entry in entries
    ):
        return CommitKind.APPEND  # of an empty batch
    for prefix, kind in (
        (PURGED, CommitKind.PURGE),
        (PURGE, CommitKind.PURGE),
        (DETACHED, CommitKind.DROP_DETACHED),
        (CLAIM, CommitKind.CLAIM),
        (EXPIRED, CommitKind.EXPIRE),
        (HOLD, CommitKind.HOLD),
    ):
        if any(entry.startswith(prefix) for entry in entries):
            return kind
    return CommitKind.OTHER


def _sets(action: Action, entry: str) -> bool:
    return isinstance(action, Domain) and action.domain == entry and not action.removed
