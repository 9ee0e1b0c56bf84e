"""The types of table events (what a commit did to its table), and each event as a CloudEvent in JSON.

No commit makes ``Resync`` and ``Dropped``, but the feed (``lakebed.listeners.feed``). Partitions are given by stored names. No
event has values of rows, except those of a partition.
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
class TableEvent:
    """What all table events have."""

    table: str  # its name below the root
    table_id: str  # Delta's id, another one after the table was created again
    version: int  # of the commit
    index: int  # which event of the commit, from 0; -1 for an event that no commit made
    time_ms: int | None  # epoch milliseconds

    @property
    def kind(self) -> str:
        """``appended``, ``schema_changed``, …"""
        return kind_of_event(type(self))

    @property
    def id(self) -> str:
        """The same whenever and wherever the event is read, and of no other event."""
        return f"{self.table_id}/{self.version}/{self.index if self.index >= 0 else self.kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Created(TableEvent):
    """The table was made."""

    columns: tuple[str, ...]  # their names
    partition_by: tuple[str, ...]
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted(TableEvent):
    """A Delta table became one of lakebed's, or its protocol changed."""

    columns: tuple[str, ...]  # their names
    partition_by: tuple[str, ...]
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended(TableEvent):
    """A batch came in. One without rows may still move positions."""

    rows: int | None  # changes or rows, including deletes; None if another writer did not count them
    deletes: int
    bytes: int
    parts: int
    positions: Offsets  # up to where its topics are read now


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled(TableEvent):
    """Change parts joined the base: every Delta reader sees their rows."""

    change_parts: int
    through: int | None  # up to which version; None if no row of the parts is left
    marked: int  # parts that got a new deletion vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged(TableEvent):
    """Parts became fewer ones."""

    work: str  # merge, or purge if only dead rows went
    level: int  # of the new parts
    uploaded: bool  # the new parts come from the local disk of a replica
    parts_before: int
    parts: int
    rows: int | None  # of the new parts; None if it is not known
    bytes: int  # of the new parts
    bytes_before: int | None  # None if it is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclustered(TableEvent):
    """Parts were sorted again. The fields are those of ``Merged``."""

    work: str  # recluster, or resort after a change of the sort key
    level: int
    uploaded: bool
    parts_before: int
    parts: int
    rows: int | None
    bytes: int
    bytes_before: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChanged(TableEvent):
    """The columns changed."""

    number: int  # of the change, in the history of the schema
    change: Mapping[str, Any]  # what ``Table.alter`` was given, with Delta's names of types
    reason: str
    columns: tuple[str, ...]  # their names now


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertiesChanged(TableEvent):
    """Properties were set."""

    properties: Mapping[str, str]  # all of them, as they are now


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutated(TableEvent):
    """Rows were deleted or updated."""

    changes: int  # rows of the change parts that it wrote, in a table with keys
    # from the base, in a table without keys; a part with a new deletion vector counts here and as added
    parts_removed: int
    parts_added: int  # to the base


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncated(TableEvent):
    """Everything that was in the table left it. What the same commit brought after that is an ``appended`` of its own."""

    parts: int
    change_parts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored(TableEvent):
    """The table is what it was at an earlier version."""

    restored: int  # that version


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsExpired(TableEvent):
    """Rows whose time to live has ended left the table."""

    column: str  # the column that has their age
    before: str  # rows with a smaller value left
    parts_removed: int  # a part with a new deletion vector counts here and as added
    parts_added: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReplaced(TableEvent):
    """New rows are in the place of all rows of a partition, or of several: then `partition` is empty."""

    partition: Mapping[str, str | None]
    parts_before: int
    parts: int
    rows: int | None
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDetached(TableEvent):
    """A partition left the table."""

    name: str  # the name by which it can be attached again
    partition: Mapping[str, str | None]
    parts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAttached(TableEvent):
    """A detached partition is back."""

    name: str
    partition: Mapping[str, str | None]
    parts: int
    rows: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachedDropped(TableEvent):
    """A detached partition was given up for good."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionsExpired(TableEvent):
    """Versions before this one can't be read any more, unless a reader holds one."""

    before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked(TableEvent):
    """The pipeline of its database leaves the table alone until it is resumed."""

    error: str  # the class of the error
    reason: str  # the text of the error
    failures: int  # in a row


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(TableEvent):
    """A parked table is read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified(TableEvent):
    """The table was compared with its source to the end."""

    outcome: str  # equal, differs, or unsettled: some keys changed all the time, and all others are equal
    position: str  # in the source's log
    rows: int  # of the source
    differing: int  # keys
    digest: str  # the count of the rows and the sum of their checksums


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeParked(TableEvent):
    """A merge failed so often that its parts are left alone for now."""

    name: str  # of its entry in the log
    sources: int  # how many parts
    error: str  # the class of the error
    reason: str  # the text of the error
    failures: int  # in a row
    not_before_ms: int  # when its parts may be merged again


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResumed(TableEvent):
    """The parts of a parked merge are planned again, or are gone."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged(TableEvent):
    """Rows were erased for good: all versions before this one are gone."""

    name: str  # the id of the purge
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChanged(TableEvent):
    """A job of the table was asked for, taken, went on, or ended."""

    name: str  # its id
    work: str  # its kind, such as settle
    state: str  # waiting, running, succeeded, failed or cancelled
    by: str  # who asked for it
    attempts: int
    progress: Mapping[str, Any]
    error: str  # why it failed


@dataclass(frozen=True, slots=True, kw_only=True)
class PointReached(TableEvent):
    """A point was taken: an event of the database, not of a table."""

    point: int  # its number
    source_ms: int  # when the source committed its last transaction
    transaction: str
    versions: Mapping[str, int]  # of the tables whose version changed since the point before
    left_out: Mapping[str, str]  # tables that are not in it, and why


@dataclass(frozen=True, slots=True, kw_only=True)
class PointSettled(TableEvent):
    """All tables are settled up to this point, so every Delta reader can read them as of it."""

    point: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DropBegun(TableEvent):
    """The table is dropped: it can't be read any more, but may come back as long as its files are there."""

    final: bool  # its files are being deleted, so it does not come back


@dataclass(frozen=True, slots=True, kw_only=True)
class Undropped(TableEvent):
    """A dropped table is back, as it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resync(TableEvent):
    """Events before this one can't be read any more. This is the table at ``version``; what comes after it follows."""

    lost_after: int | None  # the version up to which events were read before; None if none were
    columns: tuple[str, ...]
    partition_by: tuple[str, ...]
    properties: Mapping[str, str]
    rows: int  # live rows of the base
    bytes: int  # of the base
    parts: int  # of the base
    tail_rows: int  # rows that are not settled yet
    tail_parts: int
    positions: Offsets
    parked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped(TableEvent):
    """The table is gone, or another one was made in its place. ``version`` is the last one whose events were read; what came
    after it, if anything did, went with the table.
    """


EVENT_TYPES: tuple[type[TableEvent], ...] = (
    Created, Adopted, Appended, Settled, Merged, Reclustered, SchemaChanged, PropertiesChanged, Mutated, Truncated,
    Restored, RowsExpired, PartitionReplaced, PartitionDetached, PartitionAttached, DetachedDropped,
    VersionsExpired, Parked, Resumed, MergeParked, MergeResumed, Verified, Purged, JobChanged,
    PointReached, PointSettled, DropBegun, Undropped, Resync, Dropped,
)  # fmt: skip


def kind_of_event(event: type[TableEvent]) -> str:
    """How a type of events is called: ``SchemaChanged`` is ``schema_changed``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", event.__name__).lower()


KINDS: Mapping[str, type[TableEvent]] = {kind_of_event(each): each for each in EVENT_TYPES}
DEFINITION_KINDS = frozenset(
    map(
        kind_of_event,
        (Created, Adopted, SchemaChanged, PropertiesChanged, Restored, DropBegun, Undropped, Resync, Dropped),
    )
)
"""The kinds of events that tell of what a table is: whether it is there, its columns, its properties."""


def data_of(event: TableEvent) -> dict[str, Any]:
    """All fields of an event, as JSON has them."""
    return {each.name: getattr(event, each.name) for each in fields(event)}


def _event_of(kind: str, data: Mapping[str, Any]) -> TableEvent:
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
        return _event_of(kind.removeprefix(_PREFIX).removesuffix(_SUFFIX), value["data"])
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(
            f"an event of the type {kind!r} is no event of a table that is known here: {error}"
        ) from None


def _iso(time_ms: int) -> str:
    time = datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
