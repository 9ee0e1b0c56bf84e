"""Table events: what a commit did to its table. A pure function of the commit's actions.

1. ``events_of`` looks at actions alone (``commit_kind``), never at what ``commitInfo`` says of an operation. So every process
   reads the same events of a log, at any time, also when another tool rewrote or dropped ``commitInfo``.
2. A commit has no event (a claim, a hold), one, or several in a fixed order: first what it did to the parts, then what its
   entries say, by their names. The place in this order is the event's ``index``.
3. ``(table_id, version, index)`` identifies an event. Whoever gets one twice knows it by that.
4. The time is that of the commit (``inCommitTimestamp``, which is part of Delta's format). If another tool dropped it, the time
   is the newest one in the actions; None if they have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, TypeAlias, assert_never

import orjson

from lakebed.coordination.table_figures import figures_of
from lakebed.listeners.event_types import (
    Adopted,
    Appended,
    Created,
    DetachedDropped,
    DropBegun,
    JobChanged,
    Merged,
    MergeParked,
    MergeResumed,
    Mutated,
    Offsets,
    Parked,
    PartitionAttached,
    PartitionDetached,
    PartitionReplaced,
    PointReached,
    PointSettled,
    PropertiesChanged,
    Purged,
    Reclustered,
    Restored,
    Resumed,
    Resync,
    RowsExpired,
    SchemaChanged,
    Settled,
    TableEvent,
    Truncated,
    Undropped,
    Verified,
    VersionsExpired,
)
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
    part_domain,
)
from lakebed.log.commit_kind import CommitKind, ended_claim, kind_of, truncates
from lakebed.log.entries import (
    DETACHED,
    DROPPED,
    EXPIRED,
    FAILING,
    JOB,
    PARKED,
    POINT,
    POINT_TABLE,
    POSITION,
    PURGED,
    REPLACED,
    RESTORED,
    ROWS_EXPIRED,
    SCHEMA,
    SETTLED,
    VERIFIED,
)
from lakebed.log.entry_values import decoded, document_of, integer_of, readable_or_none, reading
from lakebed.log.snapshot import Snapshot
from lakebed.positions.verified import Verified as Comparison
from lakebed.schema.metadata import Metadata, Protocol

_RECLUSTERS = frozenset({"recluster", "resort"})
_Common: TypeAlias = Callable[[], dict[str, Any]]
"""The fields that all events have, of the next event of a commit."""


def events_of(commit: Commit, *, table: str, table_id: str) -> tuple[TableEvent, ...]:
    """The events of a commit to the log of a table. ``table``: its name below the root; ``table_id``: Delta's. Pure."""
    common = _numbered(commit, table, table_id)
    return (*_of_parts(commit, common), *_of_entries(commit, common))


def database_events_of(commit: Commit, *, table: str, table_id: str) -> tuple[TableEvent, ...]:
    """The events of a commit to the log of points of a database (``point_log``). Pure."""
    common, actions = _numbered(commit, table, table_id), _set_entries(commit.actions)
    texts = {action.domain: action.configuration for action in actions}

    def reached() -> Iterator[TableEvent]:
        point = document_of(POINT, texts[POINT])
        versions = {
            domain.removeprefix(POINT_TABLE): integer_of(domain, text, "version")
            for domain, text in sorted(texts.items())
            if domain.startswith(POINT_TABLE)
        }
        yield PointReached(
            **common(),
            point=point["point"],
            source_ms=point["time_ms"],
            transaction=point["transaction"],
            versions=versions,
            left_out=point["left_out"],
        )

    def settled() -> Iterator[TableEvent]:
        yield PointSettled(**common(), point=integer_of(SETTLED, texts[SETTLED], "point"))

    return (
        *(_readable(POINT, reached) if POINT in texts else ()),
        *(_readable(SETTLED, settled) if SETTLED in texts else ()),
    )


def _readable(entry: str, events: Callable[[], Iterable[TableEvent]]) -> tuple[TableEvent, ...]:
    """The events of an entry; none if it can't be read."""

    def read(entry: str, _: str) -> tuple[TableEvent, ...]:
        with reading(entry):
            return tuple(events())

    return readable_or_none(entry, "", read) or ()


def resync_of(snapshot: Snapshot, *, table: str, lost_after: int | None) -> Resync:
    """The event that says what a table is at a version."""
    figures, metadata = figures_of(snapshot), snapshot.metadata
    domains = [Domain(domain, text) for domain, text in snapshot.domains.items()]
    return Resync(
        table=table,
        table_id=metadata.id,
        version=snapshot.version,
        index=-1,
        time_ms=snapshot.timestamp_ms or None,
        lost_after=lost_after,
        **_described(metadata),
        rows=figures.rows,
        bytes=figures.bytes,
        parts=figures.parts,
        tail_rows=figures.tail_rows,
        tail_parts=figures.tail_parts,
        positions=_positions(domains),
        parked=PARKED in snapshot.domains,
    )


def time_of(commit: Commit) -> int | None:
    """When a commit was made, in epoch milliseconds: as it says, else the newest time in its actions; None if there is none."""
    return commit.timestamp_ms or max(filter(None, map(_time_in, commit.actions)), default=None)


def _numbered(commit: Commit, table: str, table_id: str) -> _Common:
    indices, time_ms = count(), time_of(commit)

    def common() -> dict[str, Any]:
        return {
            "table": table,
            "table_id": table_id,
            "version": commit.version,
            "index": next(indices),
            "time_ms": time_ms,
        }

    return common


@dataclass(frozen=True, slots=True)
class _Parts:
    """The actions of a commit that concern parts."""

    added: list[AddPart] = field(default_factory=list)
    removed: list[RemovePart] = field(default_factory=list)
    changes: list[AddChangePart] = field(default_factory=list)
    settled: list[RemoveChangePart] = field(default_factory=list)

    @staticmethod
    def of(commit: Commit) -> _Parts:
        found = _Parts()
        for action in commit.actions:
            match action:
                case AddPart():
                    found.added.append(action)
                case RemovePart():
                    found.removed.append(action)
                case AddChangePart():
                    found.changes.append(action)
                case RemoveChangePart():
                    found.settled.append(action)
                case Protocol() | Metadata() | Transaction() | Domain() | CommitInfo():
                    pass
                case _:
                    assert_never(action)
        return found

    @property
    def rows(self) -> int | None:
        """Of what was added; None if one part does not say it."""
        rows = [each.part.rows for each in self.added] + [each.part.rows for each in self.changes]
        return None if any(each < 0 for each in rows) else sum(rows)

    @property
    def bytes(self) -> int:
        return sum(each.part.bytes for each in self.added) + sum(each.part.bytes for each in self.changes)

    @property
    def deletes(self) -> int:
        return sum(each.part.deletes for each in self.added) + sum(each.part.deletes for each in self.changes)

    @property
    def bytes_removed(self) -> int | None:
        sizes = [each.bytes for each in self.removed]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    @property
    def partition(self) -> Mapping[str, str | None]:
        return dict(sorted(self.added[0].part.partition_values.items())) if self.added else {}


def _of_parts(commit: Commit, common: _Common) -> Iterator[TableEvent]:
    """What the commit did, by its kind."""
    parts, kind, metadata = _Parts.of(commit), kind_of(commit), _metadata(commit)
    if truncates(commit):
        yield Truncated(**common(), parts=len(parts.removed), change_parts=len(parts.settled))
    match kind:
        case CommitKind.CREATE if metadata is not None:
            yield Created(**common(), **_described(metadata))
        case CommitKind.CONVERT if metadata is not None:
            yield Adopted(**common(), **_described(metadata))
        case CommitKind.PROPERTIES if metadata is not None:
            yield PropertiesChanged(**common(), properties=dict(metadata.configuration))
        case CommitKind.APPEND:
            yield _appended(commit, parts, common)
        case CommitKind.MUTATION:
            changes = sum(each.part.rows for each in parts.changes)
            yield Mutated(**common(), changes=changes, parts_removed=len(parts.removed), parts_added=len(parts.added))
        case CommitKind.SETTLE:
            yield _settled(parts, common)
        case CommitKind.MERGE | CommitKind.UPLOAD:
            yield _merged(commit, parts, common)
        case (
            CommitKind.ALTER
            | CommitKind.TRUNCATE
            | CommitKind.REPLACE_PARTITION
            | CommitKind.DETACH_PARTITION
            | CommitKind.ATTACH_PARTITION
            | CommitKind.DROP_DETACHED
            | CommitKind.CLAIM
            | CommitKind.HOLD
            | CommitKind.RESTORE
            | CommitKind.EXPIRE_ROWS
            | CommitKind.PURGE
            | CommitKind.EXPIRE
            | CommitKind.OTHER
            | CommitKind.CREATE
            | CommitKind.CONVERT
            | CommitKind.PROPERTIES
        ):
            pass  # its entries say it, or it is no event
        case _:
            assert_never(kind)


def _appended(commit: Commit, parts: _Parts, common: _Common) -> Appended:
    return Appended(
        **common(),
        rows=parts.rows,
        deletes=parts.deletes,
        bytes=parts.bytes,
        parts=len(parts.added) + len(parts.changes),
        positions=_positions(_set_entries(commit.actions)),
    )


def _settled(parts: _Parts, common: _Common) -> Settled:
    joined = {each.domain for each in parts.settled}
    versions = [each.part.max_block for each in parts.added if part_domain(each.part.path) in joined]
    marked = {each.path for each in parts.removed} & {each.part.path for each in parts.added}
    return Settled(**common(), change_parts=len(joined), through=max(versions, default=None), marked=len(marked))


def _merged(commit: Commit, parts: _Parts, common: _Common) -> Merged | Reclustered:
    claim = ended_claim(commit)
    work = (claim.kind if claim else "") or "merge"
    event = Reclustered if work in _RECLUSTERS else Merged
    return event(
        **common(),
        work=work,
        level=max((each.part.level for each in parts.added), default=claim.level if claim else 0),
        uploaded=claim is not None and claim.volatile,
        parts_before=len(parts.removed),
        parts=len(parts.added),
        rows=parts.rows,
        bytes=parts.bytes,
        bytes_before=parts.bytes_removed,
    )


def _of_entries(commit: Commit, common: _Common) -> Iterator[TableEvent]:
    """What the entries of the commit say, in the order of their names."""
    if commit.version == 0:
        return  # they are part of the table as it was made
    parts, kind = _Parts.of(commit), kind_of(commit)
    for action in sorted(_entries(commit.actions), key=lambda each: each.domain):
        yield from _readable(action.domain, partial(_of_entry, action, commit, parts, kind, common))


def _of_entry(action: Domain, commit: Commit, parts: _Parts, kind: CommitKind, common: _Common) -> Iterator[TableEvent]:
    domain, value = action.domain, {} if action.removed else _value(action)
    if domain == PARKED:
        yield (
            Resumed(**common())
            if action.removed
            else Parked(**common(), error=value["kind"], reason=value["error"], failures=value.get("failures", 1))
        )
    elif domain == DROPPED:
        yield Undropped(**common()) if action.removed else DropBegun(**common(), final=value.get("is_final") is True)
    elif domain == EXPIRED and not action.removed:
        yield VersionsExpired(**common(), before=int(value["before"]))
    elif domain == REPLACED and kind is CommitKind.REPLACE_PARTITION and not action.removed:
        yield PartitionReplaced(
            **common(),
            partition=value["partition"],
            parts_before=len(parts.removed),
            parts=len(parts.added),
            rows=parts.rows,
            bytes=parts.bytes,
        )
    elif domain == RESTORED and not action.removed:
        yield Restored(**common(), restored=int(value["restored"]))
    elif domain == ROWS_EXPIRED and kind is CommitKind.EXPIRE_ROWS and parts.removed and not action.removed:
        yield RowsExpired(
            **common(),
            column=value["column"],
            before=value["before"],
            parts_removed=len(parts.removed),
            parts_added=len(parts.added),
        )
    elif domain == VERIFIED and not action.removed:
        found = decoded(Comparison, domain, action.configuration)
        yield Verified(
            **common(),
            outcome=found.outcome,
            position=found.position,
            rows=found.rows,
            differing=found.differing,
            digest=found.digest,
        )
    elif domain == PURGED and not action.removed:
        yield Purged(**common(), name=value["id"], rows=value["rows"])
    elif domain.startswith((FAILING, JOB)):
        yield from _of_work(action, value, common)
    elif domain.startswith(DETACHED):
        yield from _of_detached(domain.removeprefix(DETACHED), value, kind, parts, common)
    elif domain.startswith(SCHEMA) and not action.removed:
        metadata = _metadata(commit)
        yield SchemaChanged(
            **common(),
            number=int(domain.removeprefix(SCHEMA)),
            change=value["change"],
            reason=value.get("reason", ""),
            columns=_columns(metadata) if metadata else (),
        )


def _of_detached(
    name: str, value: Mapping[str, Any], kind: CommitKind, parts: _Parts, common: _Common
) -> Iterator[TableEvent]:
    """``value``: what the entry of a detached partition says; empty if the commit removes it."""
    if value and kind is CommitKind.DETACH_PARTITION:
        yield PartitionDetached(**common(), name=name, partition=value["partition"], parts=len(value["parts"]))
    elif not value and kind is CommitKind.ATTACH_PARTITION:
        yield PartitionAttached(
            **common(), name=name, partition=parts.partition, parts=len(parts.added), rows=parts.rows
        )
    elif not value:
        yield DetachedDropped(**common(), name=name)


def _of_work(action: Domain, value: Mapping[str, Any], common: _Common) -> Iterator[TableEvent]:
    """``value``: what the entry of a merge that fails, or of a job, says; empty if the commit removes it."""
    if action.domain.startswith(FAILING):
        name = action.domain.removeprefix(FAILING)
        if not value:
            yield MergeResumed(**common(), name=name)
            return
        yield MergeParked(
            **common(),
            name=name,
            sources=len(value["sources"]),
            error=value["kind"],
            reason=value["error"],
            failures=value["failures"],
            not_before_ms=value["not_before_ms"],
        )
    elif value:  # the oldest jobs that have ended are forgotten
        yield JobChanged(
            **common(),
            name=action.domain.removeprefix(JOB),
            work=value["kind"],
            state=value["state"],
            by=value.get("by", ""),
            attempts=value.get("attempts", 0),
            progress=value.get("progress", {}),
            error=value.get("error", ""),
        )


def _value(action: Domain) -> dict[str, Any]:
    try:
        value = orjson.loads(action.configuration)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _entries(actions: Iterable[Action]) -> list[Domain]:
    return [action for action in actions if isinstance(action, Domain)]


def _set_entries(actions: Iterable[Action]) -> list[Domain]:
    return [action for action in _entries(actions) if not action.removed]


def _metadata(commit: Commit) -> Metadata | None:
    return next((action for action in commit.actions if isinstance(action, Metadata)), None)


def _described(metadata: Metadata) -> dict[str, Any]:
    return {
        "columns": _columns(metadata),
        "partition_by": metadata.partition_columns,
        "properties": dict(metadata.configuration),
    }


def _columns(metadata: Metadata) -> tuple[str, ...]:
    return tuple(each["name"] for each in orjson.loads(metadata.schema_string).get("fields", ()))


def _positions(entries: Iterable[Domain]) -> Offsets:
    found = {
        each.domain.removeprefix(POSITION): _value(each).get("offsets", {})
        for each in entries
        if each.domain.startswith(POSITION)
    }
    return dict(sorted(found.items()))


def _time_in(action: Action) -> int | None:
    match action:
        case AddPart(part, _):
            return part.modified_ms
        case AddChangePart(change_part):
            return change_part.modified_ms
        case RemovePart():
            return action.deleted_ms
        case Transaction():
            return action.updated_ms
        case Metadata():
            return action.created_ms
        case RemoveChangePart() | Protocol() | Domain() | CommitInfo():
            return None
        case _:
            assert_never(action)
