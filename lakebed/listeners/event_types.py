"""The types of table events (what a commit did to its table), and each event as a CloudEvent in JSON.

Two are of no commit: ``Resync`` and ``Dropped`` (``lakebed.listeners.feed``). Partitions are given by stored names. No event has
values of rows, except those of a partition.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import orjson

from lakebed.errors import InvalidInput

Offsets: TypeAlias = Mapping[str, Mapping[str, int]]
"""By topic and partition the next offset to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFields:
    """``table``: its name below the root; ``table_id``: Delta's, another one after it was created again; ``version``: of the
    commit; ``index``: which event of the commit, from 0, and -1 for an event of no commit; ``time_ms``: epoch milliseconds."""

    table: str
    table_id: str
    version: int
    index: int
    time_ms: int | None

    @property
    def kind(self) -> str:
        """``appended``, ``schema_changed``, …"""
        return kind_of_event(type(self))

    @property
    def id(self) -> str:
        """The same whenever and wherever the event is read, and of no other event."""
        return f"{self.table_id}/{self.version}/{self.index if self.index >= 0 else self.kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Created(EventFields):
    """The table was made. ``columns``: their names."""

    columns: tuple[str, ...]
    partition_by: tuple[str, ...]
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted(EventFields):
    """A Delta table became one of lakebed's, or its protocol changed. Fields: as of ``created``."""

    columns: tuple[str, ...]
    partition_by: tuple[str, ...]
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended(EventFields):
    """A batch came in. ``rows``: changes or rows, deletes included; None if another writer did not count them. ``positions``: up
    to where the topics that it came from are read now. A batch without rows may move positions."""

    rows: int | None
    deletes: int
    bytes: int
    parts: int
    positions: Offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled(EventFields):
    """Change parts joined the base: every Delta reader sees their rows. ``through``: up to which version, None if no row of the
    parts is left; ``marked``: parts that got a new deletion vector."""

    change_parts: int
    through: int | None
    marked: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged(EventFields):
    """Parts became fewer ones. ``work``: merge, or purge if only dead rows went; ``uploaded``: the new parts come from the local
    disk of a replica. ``level``, ``rows`` and ``bytes``: of the new parts; ``bytes_before``: None if it is not known."""

    work: str
    level: int
    uploaded: bool
    parts_before: int
    parts: int
    rows: int | None
    bytes: int
    bytes_before: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclustered(EventFields):
    """Parts were sorted again. ``work``: recluster, or resort after a change of the sort key. Other fields: as of ``merged``."""

    work: str
    level: int
    uploaded: bool
    parts_before: int
    parts: int
    rows: int | None
    bytes: int
    bytes_before: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChanged(EventFields):
    """The columns changed. ``change``: as ``Table.alter`` has it, with Delta's names of types; ``columns``: their names now."""

    number: int
    change: Mapping[str, Any]
    reason: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertiesChanged(EventFields):
    """Properties were set. ``properties``: all of them, as they are now."""

    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutated(EventFields):
    """A ``delete`` or ``update``. ``changes``: rows of the change parts that it wrote, in a table with keys. In one without keys,
    ``parts_removed`` and ``parts_added``: of the base. A part with a new deletion vector counts in both."""

    changes: int
    parts_removed: int
    parts_added: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncated(EventFields):
    """Everything that was in the table left it. What the same commit brought after that is an ``appended`` of its own."""

    parts: int
    change_parts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored(EventFields):
    """The table is what it was at an earlier version, ``restored``."""

    restored: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsExpired(EventFields):
    """Rows whose time to live has ended left the table: those whose ``column`` is below ``before``. Parts: as of ``mutated``."""

    column: str
    before: str
    parts_removed: int
    parts_added: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReplaced(EventFields):
    """New rows are in the place of all rows of a partition."""

    partition: Mapping[str, str | None]
    parts_before: int
    parts: int
    rows: int | None
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDetached(EventFields):
    """A partition left the table and can be attached again, by ``name``."""

    name: str
    partition: Mapping[str, str | None]
    parts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAttached(EventFields):
    """A detached partition is back."""

    name: str
    partition: Mapping[str, str | None]
    parts: int
    rows: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachedDropped(EventFields):
    """A detached partition was given up for good."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionsExpired(EventFields):
    """Versions before this one can't be read any more, unless a reader holds one."""

    before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked(EventFields):
    """The pipeline of its database leaves the table alone until it is resumed. ``error``: the class of the error;
    ``reason``: its text."""

    error: str
    reason: str
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(EventFields):
    """A parked table is read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeParked(EventFields):
    """A merge failed so often that its parts are left alone until ``not_before_ms``. ``name``: of its entry; ``sources``: how
    many parts. Other fields: as of ``parked``."""

    name: str
    sources: int
    error: str
    reason: str
    failures: int
    not_before_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResumed(EventFields):
    """The parts of a parked merge are planned again, or are gone."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged(EventFields):
    """Rows were erased for good: all versions before this one are gone. ``name``: the id of the purge."""

    name: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChanged(EventFields):
    """A job of the table was asked for, taken, went on, or ended. ``name``: its id; ``work``: its kind, such as settle;
    ``state``: waiting, running, succeeded, failed or cancelled; ``by``: who asked for it; ``error``: why it failed."""

    name: str
    work: str
    state: str
    by: str
    attempts: int
    progress: Mapping[str, Any]
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PointReached(EventFields):
    """A point was taken: an event of the database, not of a table. ``point``: its number; ``source_ms``: when the source
    committed its last transaction; ``versions``: of the tables whose version changed since the point before; ``left_out``: tables
    that are not in it, and why."""

    point: int
    source_ms: int
    transaction: str
    versions: Mapping[str, int]
    left_out: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PointSettled(EventFields):
    """All tables are settled up to this point, so every Delta reader can read them as of it."""

    point: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resync(EventFields):
    """Events before this one can't be read any more: this is the table at ``version`` instead, and what comes after it follows.
    ``lost_after``: the version up to which events were read before; None if none were. Rows, bytes and parts: of the base, dead
    rows left out; ``tail_rows`` are not settled yet."""

    lost_after: int | None
    columns: tuple[str, ...]
    partition_by: tuple[str, ...]
    properties: Mapping[str, str]
    rows: int
    bytes: int
    parts: int
    tail_rows: int
    tail_parts: int
    positions: Offsets
    parked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped(EventFields):
    """The table is gone, or another one was made in its place. ``version``: the last one whose events were read; what came after
    it, if anything did, went with the table."""


TableEvent: TypeAlias = (
    Created
    | Adopted
    | Appended
    | Settled
    | Merged
    | Reclustered
    | SchemaChanged
    | PropertiesChanged
    | Mutated
    | Truncated
    | Restored
    | RowsExpired
    | PartitionReplaced
    | PartitionDetached
    | PartitionAttached
    | DetachedDropped
    | VersionsExpired
    | Parked
    | Resumed
    | MergeParked
    | MergeResumed
    | Purged
    | JobChanged
    | PointReached
    | PointSettled
    | Resync
    | Dropped
)
EVENT_TYPES: tuple[type[TableEvent], ...] = (
    Created, Adopted, Appended, Settled, Merged, Reclustered, SchemaChanged, PropertiesChanged, Mutated, Truncated,
    Restored, RowsExpired, PartitionReplaced, PartitionDetached, PartitionAttached, DetachedDropped,
    VersionsExpired, Parked, Resumed, MergeParked, MergeResumed, Purged, JobChanged,
    PointReached, PointSettled, Resync, Dropped,
)  # fmt: skip


def kind_of_event(event: type[EventFields]) -> str:
    """How a type of events is called: ``SchemaChanged`` is ``schema_changed``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", event.__name__).lower()


KINDS: Mapping[str, type[TableEvent]] = {kind_of_event(each): each for each in EVENT_TYPES}


def data_of(event: TableEvent) -> dict[str, Any]:
    """All fields of an event, as JSON has them."""
    return {each.name: getattr(event, each.name) for each in fields(event)}


def event_of(kind: str, data: Mapping[str, Any]) -> TableEvent:
    """The inverse of ``data_of``; fields that are not known are left out. Raises KeyError for an unknown kind, TypeError."""
    cls = KINDS[kind]
    known = {each.name for each in fields(cls)}
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in data.items() if name in known
    }
    return cls(**given)


# -- Table events as CloudEvents 1.0 in JSON, as webhooks, Kafka topics and clients of the service get them ----------------


CONTENT_TYPE = "application/cloudevents+json"
_PREFIX, _SUFFIX = "dev.lakebed.table.", ".v1"


def type_of(event: TableEvent) -> str:
    """The CloudEvents type: ``dev.lakebed.table.appended.v1``."""
    return f"{_PREFIX}{event.kind}{_SUFFIX}"


def cloud_event(event: TableEvent, source: str) -> dict[str, Any]:
    """The event as a JSON object. ``source``: the root that the table is below."""
    time = {} if event.time_ms is None else {"time": _iso(event.time_ms)}
    return {
        "specversion": "1.0",
        "id": event.id,
        "type": type_of(event),
        "source": source,
        "subject": event.table,
        **time,
        "datacontenttype": "application/json",
        "data": data_of(event),
    }


def encoded(event: TableEvent, source: str) -> bytes:
    """The event as the bytes that are sent: the same whenever it is sent."""
    return orjson.dumps(cloud_event(event, source))


def table_event(value: Mapping[str, Any]) -> TableEvent:
    """The table event in a CloudEvent. Raises InvalidInput for one of another type, or of a newer version."""
    kind = str(value.get("type", ""))
    try:
        return event_of(kind.removeprefix(_PREFIX).removesuffix(_SUFFIX), value["data"])
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(
            f"an event of the type {kind!r} is no event of a table that is known here: {error}"
        ) from None


def _iso(time_ms: int) -> str:
    time = datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
