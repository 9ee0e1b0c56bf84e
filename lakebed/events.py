"""Events, as typed values. The core emits them; metrics, a display or a user's code listens.

from lakebed import events
events.listen(print)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

_logger = logging.getLogger("lakebed")
ALSO_AN_EVENT = {"lakebed_event": True}
"""``extra`` of a log record that repeats an event: a log of events leaves the record out (``monitoring.event_log``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What happened in this process. ``table``: the root of the table, unless the event says otherwise."""

    table: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCommitted(Event):
    """A batch of changes was committed."""

    version: int
    rows: int  # changes; of each key in a batch only the newest counts
    bytes: int  # of the parts
    parts: int
    quarantined: int  # records that went to the quarantine
    seconds: float  # from the start of the batch to its commit
    commit_seconds: float  # of the commit alone
    attempts: int  # to commit it
    newest_event_seconds: float | None = None  # epoch seconds of the newest event in the batch
    ignored: int = 0  # records without a change
    query: str = ""  # with ``batch_id``: the transaction that the log remembers the batch by, if it has an id
    batch_id: int | None = None
    truncated: int = 0  # changes left out, since they are from before a truncate of the source


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReplayed(Event):
    """A batch came again after it had been committed, and was left out."""

    query: str
    batch_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemarkMade(Event):
    """A batch that was committed had something that needs attention, such as a field that no column takes."""

    kind: str  # the value of a ``Remark`` of ``lakebed.remarks``
    name: str  # what it is about, such as the name of the field
    records: int  # how many of them have it


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsLost(Event):
    """The source dropped records before they were read, and the settings said to go on."""

    source: str
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestDelayed(Event):
    """Maintenance can't keep up, so a batch waits."""

    reason: str  # tail_rows, tail_parts or level_0_parts
    factor: float  # how far the reason is beyond its bound
    seconds: float  # how long the batch waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled(Event):
    """Change parts joined the base."""

    version: int
    change_parts: int
    rows: int
    rows_marked_dead: int
    conflicts: int
    seconds: float
    bytes_written: int = 0
    quarantined: int = 0
    superseded: int = 0  # changes that a newer one of their key had replaced already (deletes are not counted)
    late: int = 0  # changes, deletes too, that lost against newer ones that had come before, by ``sequence_by``


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyIndexRebuilt(Event):
    """How far the rebuild of the key index is, after the type of a key changed; the last one has nothing left."""

    parts: int
    parts_left: int
    rows: int
    rows_left: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergMetadataDamaged(Event):
    """Iceberg's metadata could not be read. It was passed over, and newer metadata was written."""

    file: str  # relative to the table's root
    number: int  # of the metadata that readers find now


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewRefreshed(Event):
    """A temporary view shows a newer version."""

    view: str
    version: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeBegan(Event):
    """The work on a plan began."""

    kind: str  # merge, purge, recluster or resort
    level: int  # of the output
    parts: int
    bytes: int  # of the parts
    # the id of the claim that will be taken, the same in ``ClaimChanged``, ``MergeEnded`` and in the log
    claim: str = ""
    replica: str = ""
    engine: str = "process"  # where it works: process or spark


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeEnded(Event):
    """A merge ended."""

    kind: str
    level: int
    outcome: str  # completed, cancelled, parked; or, if another one was faster, claimed, replaced or overtaken
    version: int
    parts_in: int
    parts_out: int
    rows: int
    bytes_in: int
    bytes_out: int
    carried_rows: int  # rows that died while it ran, and are marked in its output
    conflicts: int
    seconds: float
    local: bool = False  # its output is on the local disk for now
    claim: str = ""
    replica: str = ""
    engine: str = "process"


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeFailed(Event):
    """A merge failed."""

    kind: str
    level: int
    parts: int
    parked: bool  # its parts are left alone for an hour or longer; otherwise it is tried again
    error: str
    claim: str = ""
    replica: str = ""
    engine: str = "process"
    passes: bool = False  # the store or a disk is the cause, and merges wait until it is back


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded(Event):
    """A materialized part went into the object store, or another commit overtook it and it was deleted."""

    outcome: str  # completed, or how it was overtaken
    version: int
    parts_replaced: int
    parts: int
    rows: int
    bytes: int
    carried_rows: int  # rows that died since it was merged, and are marked in it
    seconds: float
    claim: str = ""
    replica: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReplicated(Event):
    """What a replica on another host merges was built here too, for readers of this host (``lakebed.replicate_local``)."""

    claim: str
    replica: str
    version: int
    parts_in: int
    parts_out: int
    rows: int
    bytes_in: int
    bytes_out: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MutationBegan(Event):
    """A delete or an update began."""

    operation: str  # delete or update
    where: str  # its condition, as it was given


@dataclass(frozen=True, slots=True, kw_only=True)
class MutationEnded(Event):
    """A mutation was committed, or matched nothing (``rows`` is 0); the figures are those of its MutationResult."""

    operation: str
    version: int
    rows: int
    parts_read: int
    parts_marked: int
    parts_added: int
    bytes_written: int
    conflicts: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MutationFailed(Event):
    """A mutation raised an error."""

    operation: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitEnded(Event):
    """A commit to a log ended."""

    operation: str  # its name in the log, such as SETTLE
    result: str  # committed, conflicted (another one came first) or unknown (the store did not answer)
    version: int
    attempts: int
    seconds: float
    conflict: str = ""  # what in the other commit it conflicted with


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChanged(Event):
    """The schema of a table was changed."""

    version: int
    change: str  # what was changed, in JSON
    reason: str  # why, as its author says


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitGivenUp(Event):
    """An operation gave up, because another commit came first at each attempt."""

    operation: str
    attempts: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimChanged(Event):
    """A claim was taken, or left the log."""

    # taken, taken_over (from an expired one of another replica), abandoned (given back), or expired (its replica is gone)
    result: str
    version: int = -1  # of the commit
    claim: str = ""
    replica: str = ""  # whose claim it is


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRequested(Event):
    """Requests to an object store, including attempts that failed."""

    table: str  # the root that they concern
    operation: str
    result: str  # ok, missing, taken (a name that had to be free), throttled, denied, failed, or no_answer
    bytes_read: int = 0
    bytes_written: int = 0
    requests: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMeasured(Event):
    """What a task used of its process."""

    kind: str  # write, merge or find
    seconds: float
    memory_bytes: int  # the most that the process ever had in memory
    spilled_bytes: int  # the most in its temporary folder while the task ran, measured a few times a second


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLagged(Event):
    """How many records of a topic no committed batch has read yet."""

    topic: str
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryChanged(Event):
    """A streaming query of this process, or what does its work without Spark, changed its state."""

    role: str  # ingest or maintain
    # running; waiting (it failed, and starts again); failed (for a cause that never passes, or too often in a row); stopped
    state: str
    error: str = ""  # the class of the error
    reason: str = ""  # the text of the error
    pause_seconds: float | None = None  # until it starts again
    routine: bool = False  # it began or stopped together with many other tables, or failed again for the same cause


@dataclass(frozen=True, slots=True, kw_only=True)
class TableParked(Event):
    """The pipeline of a database leaves a table alone until it is resumed."""

    error: str  # the class of the error
    reason: str  # the text of the error
    failures: int  # in a row


@dataclass(frozen=True, slots=True, kw_only=True)
class TableResumed(Event):
    """A table that was parked is read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InvariantViolated(Event):
    """A commit breaks an invariant (docs/invariants.md)."""

    invariant: str  # its id
    version: int
    detail: str  # how the commit breaks it
    when: str  # write (it was refused, so the table is as it was) or read (it is a version of the table)


@dataclass(frozen=True, slots=True, kw_only=True)
class PointTaken(Event):
    """A point of a database was taken: all transactions of the source up to it are in the tables, whole."""

    table: str  # the root of the log of points
    number: int
    time_ms: int  # when the source committed the last transaction of the point
    tables: int  # how many are in the point
    left_out: int = 0  # how many are not


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerObserved(Event):
    """What a worker of a fleet does now. The tables are those below its roots."""

    table: str  # the first root of the fleet
    worker: str
    workers: int  # those that it sees alive
    known: int  # tables that it knows of
    owned: int  # tables that it owns
    active: int  # tables that it maintains now
    waiting: int  # tables that have work and wait for room
    waiting_seconds: float  # the longest time that one of them has waited
    troubled: int  # tables that can't be read or maintained
    looks: int  # requests for a newer version since the last event


@dataclass(frozen=True, slots=True, kw_only=True)
class HintsReceived(Event):
    """A worker of a fleet got a message of hints. They are counted by what the worker makes of them
    (``lakebed.fleet.worker.Heard``).
    """

    table: str  # the first root of the fleet
    worker: str
    looks: int = 0
    known: int = 0
    elsewhere: int = 0
    new: int = 0
    unrelated: int = 0
    malformed: int = 0  # hints that it can't read


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsDelivered(Event):
    """A round of deliveries to a listener ended."""

    table: str  # the root whose tables it listens to
    listener: str
    events: int  # how many it acknowledged
    failures: int  # tables with events that it did not acknowledge


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSeen(Event):
    """The state of a listener that this process delivers to."""

    listener: str
    behind_seconds: float  # the age of the oldest event that waits
    is_failing: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerLeft(Event):
    """This process no longer delivers to a listener."""

    listener: str


Listener: TypeAlias = Callable[[Event], None]
_listeners: list[Listener] = []


def listen(listener: Listener) -> Callable[[], None]:
    """Call ``listener`` with every event of this process; returns a function that ends this. A listener is added only once."""
    if listener not in _listeners:
        _listeners.append(listener)
    return lambda: _listeners.remove(listener) if listener in _listeners else None


def listeners() -> tuple[Listener, ...]:
    """The current listeners."""
    return tuple(_listeners)


def emit(event: Event) -> None:
    """Call the listeners. One that fails is logged, and the work goes on."""
    for listener in listeners():
        try:
            listener(event)
        except Exception:
            _logger.exception("a listener failed on %s", type(event).__name__)
