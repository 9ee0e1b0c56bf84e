"""The state of a table at one version: an immutable value and a pure ``apply``.

Invariant M2: ``apply`` is the only way state changes, so replaying commits from any checkpoint gives the same snapshot.

1. A commit's actions are folded into copies of the maps that it touches; the other maps are shared with the old value.
2. A part whose path is added again with another deletion vector replaces the old one.
3. Parts whose path left the base are remembered in ``removed`` until they expire: a cleanup needs them. A purge forgets them
   all: it deletes their files itself, and their partition values may be of rows that it took out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import pyarrow as pa

from lakebed.errors import Corrupt
from lakebed.log.actions import (
    AddChangePart,
    AddPart,
    ChangePart,
    Commit,
    CommitInfo,
    Domain,
    Part,
    RemoveChangePart,
    RemovePart,
    Transaction,
)
from lakebed.log.entries import NAMED_BATCH, PURGED
from lakebed.schema.column_mapping import ColumnMapping, columns_of, is_mapped, stored_settings
from lakebed.schema.metadata import Metadata, Protocol
from lakebed.settings import TableSettings, read_settings
from lakebed.sortkey.ranges import order_columns
from lakebed.sortkey.sort_key import SortTerm

_V = TypeVar("_V")
_REMOVED_SECONDS = (900, 3 * 3_600)
"""At least, at most; between them three times the log's retention, in which maintenance cleans up several times."""
_NAMED_BATCH_RETENTION_MS = 7 * 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A table at one version."""

    version: int
    timestamp_ms: int
    protocol: Protocol
    metadata: Metadata
    parts: Mapping[str, Part] = field(default_factory=dict)  # the base, by path
    tail: Mapping[str, ChangePart] = field(default_factory=dict)  # the change parts, by domain
    domains: Mapping[str, str] = field(default_factory=dict)
    transactions: Mapping[str, Transaction] = field(default_factory=dict)
    removed: Mapping[str, RemovePart] = field(default_factory=dict)
    # of the version's commit file, which identifies the history that the version is of; empty if it is unknown
    digest: str = field(default="", compare=False, repr=False)

    @property
    def columns(self) -> ColumnMapping:
        """The stored and the logical names of the columns. Raises InvalidSchema, Unsupported."""
        return columns_of(self.metadata, self.protocol)

    @property
    def schema(self) -> pa.Schema:
        """The stored schema, which everything inside works with. Raises InvalidSchema, Unsupported."""
        return self.columns.stored

    @property
    def logical_schema(self) -> pa.Schema:
        """The schema with the user's names; without column mapping the same object as ``schema``."""
        return self.columns.logical

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """The stored names of the partition columns; the log's ``metadata.partition_columns`` are the logical ones."""
        return self.metadata.partition_columns if self._has_one_name() else _cached_state(self).partition_columns

    @property
    def settings(self) -> TableSettings:
        """The settings, with stored names in keys, sort key and sequence."""
        return self.logical_settings if self._has_one_name() else _cached_state(self).settings

    def _has_one_name(self) -> bool:
        """Whether stored and logical names are the same; the schema is read only where it must be."""
        return not is_mapped(self.metadata, self.protocol) or self.columns.is_identity

    @property
    def logical_settings(self) -> TableSettings:
        """The settings as the log has them, with the user's names."""
        return _cached_settings(self.metadata)

    @property
    def order_terms(self) -> tuple[SortTerm, ...]:
        """The terms that parts of a partition are compared by (``order_columns``); none in a table without an order."""
        settings = self.settings
        return order_columns(self.schema, settings.order_by, self.partition_columns, settings.sort_key_frame)

    def tail_in_order(self) -> list[ChangePart]:
        """The tail, oldest change first."""
        return sorted(self.tail.values(), key=lambda part: (part.version, part.ordinal, part.path))

    def transaction_version(self, app_id: str) -> int:
        """The newest batch that an application committed, -1 for none."""
        transaction = self.transactions.get(app_id)
        return transaction.version if transaction else -1

    def keeps_deletes(self, part: Part, now_ms: int) -> bool:
        """Whether deletes of a part still win against late changes: within ``lakebed.tombstone_retention`` a merge keeps them."""
        if not part.deletes or self.settings.sequence_by is None:
            return False
        return part.newest_delete_ms >= now_ms - self.settings.tombstone_retention_seconds * 1000


def replay(commits: Iterable[Commit], start: Snapshot | None = None) -> Snapshot:
    """The snapshot after the commits, which must be contiguous. Raises Corrupt."""
    snapshot = start
    for commit in commits:
        snapshot = apply(snapshot, commit)
    if snapshot is None:
        raise Corrupt("a log without commits has no snapshot")
    return snapshot


def apply(snapshot: Snapshot | None, commit: Commit) -> Snapshot:
    """The snapshot after one more commit. Pure. Raises Corrupt if the commit does not follow the snapshot."""
    if snapshot is None:
        snapshot = _first(commit)
    elif commit.version != snapshot.version + 1:
        raise Corrupt(
            f"version {commit.version} of the log can't follow version {snapshot.version}", version=commit.version
        )
    elif not follows(snapshot, commit):
        raise Corrupt(
            f"version {commit.version} was not made on the version {snapshot.version} that is in the log",
            version=commit.version,
        )
    parts = _Copy(snapshot.parts)
    tail = _Copy(snapshot.tail)
    domains = _Copy(snapshot.domains)
    transactions = _Copy(snapshot.transactions)
    removed = _Copy(snapshot.removed)
    protocol, metadata = snapshot.protocol, snapshot.metadata
    timestamp_ms = max(snapshot.timestamp_ms, commit.timestamp_ms)
    # Removes first: a commit that marks rows removes and adds the same path, in either order.
    for action in commit.actions:
        if isinstance(action, RemovePart):
            parts.drop(action.path)
            removed.set(action.path, action)
    for action in commit.actions:
        match action:
            case AddPart(part, _):
                parts.set(part.path, part)
                removed.drop(part.path)
            case AddChangePart(change_part):
                tail.set(change_part.domain, change_part)
            case RemoveChangePart(domain):
                tail.drop(domain)
            case Domain(domain, configuration, False):
                domains.set(domain, configuration)
                if domain == PURGED:
                    removed = _Copy({})
            case Domain(domain, _, True):
                domains.drop(domain)
            case Transaction(app_id, _, _):
                transactions.set(app_id, action)
            case Protocol():
                protocol = action
            case Metadata():
                metadata = action
            case RemovePart() | CommitInfo() | Domain():
                pass
    return Snapshot(
        version=commit.version,
        timestamp_ms=timestamp_ms,
        protocol=protocol,
        metadata=metadata,
        parts=parts.now,
        tail=tail.now,
        domains=domains.now,
        transactions=transactions.now,
        removed=removed.now,
        digest=commit.digest,
    )


def follows(snapshot: Snapshot, commit: Commit) -> bool:
    """Whether the commit of the next version was made on this one; also True if another writer did not record that."""
    info = commit.info
    parent = info.parent if info else ""
    return not parent or not snapshot.digest or parent == snapshot.digest


def without_expired(snapshot: Snapshot, now_ms: int) -> Snapshot:
    """The snapshot without what nobody needs any more: parts removed long ago, and old batches whose ids are texts.

    Removed parts are kept while a commit under way may ask for them and a cleanup needs to find them without a listing
    (``_REMOVED_SECONDS``); at several commits a second, a week of them would outgrow all else. Numbered batches stay for good:
    a stream may pause for any time.
    """
    shortest, longest = _REMOVED_SECONDS
    seconds = min(longest, max(shortest, 3 * snapshot.settings.log_retention_seconds))
    removed = {
        path: action for path, action in snapshot.removed.items() if action.deleted_ms >= now_ms - seconds * 1000
    }
    oldest_ms = now_ms - _NAMED_BATCH_RETENTION_MS
    batches = {
        app_id: batch
        for app_id, batch in snapshot.transactions.items()
        if not app_id.startswith(NAMED_BATCH) or (batch.updated_ms or oldest_ms) >= oldest_ms
    }
    if len(removed) == len(snapshot.removed) and len(batches) == len(snapshot.transactions):
        return snapshot
    return replace(snapshot, removed=removed, transactions=batches)


def statistics_of(snapshot: Snapshot) -> list[str | None]:
    """The statistics of all parts, base and tail."""
    return [part.stats for part in snapshot.parts.values()] + [part.stats for part in snapshot.tail.values()]


def _first(commit: Commit) -> Snapshot:
    protocol = next((a for a in commit.actions if isinstance(a, Protocol)), None)
    metadata = next((a for a in commit.actions if isinstance(a, Metadata)), None)
    if commit.version != 0 or protocol is None or metadata is None:
        raise Corrupt(
            f"version {commit.version} can't begin a log: it needs version 0 with a protocol and metadata",
            version=commit.version,
        )
    return Snapshot(version=-1, timestamp_ms=0, protocol=protocol, metadata=metadata)


class _Copy(Generic[_V]):
    """A map that is copied when it is first written to."""

    __slots__ = ("_own", "now")

    def __init__(self, value: Mapping[str, _V]) -> None:
        self.now: Mapping[str, _V] = value
        self._own: dict[str, _V] | None = None

    def set(self, key: str, value: _V) -> None:
        self._writable()[key] = value

    def drop(self, key: str) -> None:
        if key in self.now:
            del self._writable()[key]

    def _writable(self) -> dict[str, _V]:
        if self._own is None:
            self.now = self._own = dict(self.now)
        return self._own


@dataclass(frozen=True, slots=True)
class _Stored:
    """What a snapshot's metadata says, with stored names."""

    settings: TableSettings
    partition_columns: tuple[str, ...]


# Pure functions of metadata, which is one object at many versions of a table.
_settings: dict[int, tuple[Metadata, TableSettings]] = {}
_stored: dict[int, tuple[Metadata, Protocol, _Stored]] = {}
_CACHED_MAX = 4_096  # tables of one process; with more, some are read again


def _cached_settings(metadata: Metadata) -> TableSettings:
    found = _settings.get(id(metadata))
    if found is None or found[0] is not metadata:
        if len(_settings) > _CACHED_MAX:
            _settings.clear()
        found = _settings[id(metadata)] = (metadata, read_settings(metadata.configuration))
    return found[1]


def _cached_state(snapshot: Snapshot) -> _Stored:
    metadata, protocol = snapshot.metadata, snapshot.protocol
    found = _stored.get(id(metadata))
    if found is None or found[0] is not metadata or found[1] is not protocol:
        if len(_stored) > _CACHED_MAX:
            _stored.clear()
        found = _stored[id(metadata)] = (metadata, protocol, _stored_state(metadata, protocol))
    return found[2]


def _stored_state(metadata: Metadata, protocol: Protocol) -> _Stored:
    columns = columns_of(metadata, protocol)
    settings = stored_settings(_cached_settings(metadata), columns)
    return _Stored(settings, columns.stored_names(metadata.partition_columns))


def parts_to_resort(snapshot: Snapshot) -> list[Part]:
    """The parts of the base that an earlier sort key sorted; none in a table without an order.

    Maintenance sorts them again, and readers count how often they are read.

    Parts whose order is unknown (another writer's) are left as they are until the table's order is changed.
    """
    settings = snapshot.settings
    if not settings.order_by:
        return []
    version = settings.sort_key_version
    return [
        part
        for part in snapshot.parts.values()
        if part.sort_key_version != version and (part.sort_key_version is not None or version > 1)
    ]
