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
class BatchCommitted:
    """A batch of changes was committed."""

    table: str
    version: int
    rows: int
    bytes: int
    parts: int
    quarantined: int
    seconds: float
    commit_seconds: float
    attempts: int
    newest_event_seconds: float | None = None  # epoch seconds of the newest event in the batch
    ignored: int = 0  # records without a change
    query: str = ""  # with ``batch_id``: the transaction that the log remembers the batch by, if it has an id
    batch_id: int | None = None
    truncated: int = 0  # changes left out, since they are from before a truncate of the source


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReplayed:
    """A batch came again after it had been committed, and was left out."""

    table: str
    query: str
    batch_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemarkMade:
    """A batch that was committed had something that a person should look at, such as a field that no column takes.

    ``kind`` and ``name``: see ``remarks``; ``records``: how many records it is about.
    """

    table: str
    kind: str
    name: str
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsLost:
    """The source dropped records before they were read, and the settings said to go on."""

    table: str
    source: str
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestDelayed:
    """Maintenance can't keep up, so a batch waits. ``reason``: tail_rows, tail_parts or level_0_parts; ``factor``: how far
    that is beyond its bound.
    """

    table: str
    reason: str
    factor: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """Change parts joined the base."""

    table: str
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
class KeyIndexRebuilt:
    """How far the rebuild of the key index is, after the type of a key changed; the last one has nothing left."""

    table: str
    parts: int
    parts_left: int
    rows: int
    rows_left: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewRefreshed:
    """A temporary view shows a newer version."""

    table: str
    view: str
    version: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeBegan:
    """The work on a plan began. ``kind``: merge, purge, recluster or resort; ``level``: of the output.

    ``claim``: the id of the claim that will be taken, the same in ``ClaimChanged``, ``MergeEnded`` and in the log.
    ``engine``: where it works, process or spark.
    """

    table: str
    kind: str
    level: int
    parts: int
    bytes: int
    claim: str = ""
    replica: str = ""
    engine: str = "process"


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeEnded:
    """A merge ended. ``outcome``: completed, cancelled, parked, or, if another was faster, claimed, replaced or overtaken.

    ``local``: its output is on the local disk for now.
    """

    table: str
    kind: str
    level: int
    outcome: str
    version: int
    parts_in: int
    parts_out: int
    rows: int
    bytes_in: int
    bytes_out: int
    carried_rows: int
    conflicts: int
    seconds: float
    local: bool = False
    claim: str = ""
    replica: str = ""
    engine: str = "process"


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeFailed:
    """A merge failed; ``parked``: its parts are left alone for an hour or longer, else it is tried again.

    ``passes``: the store or a disk is the cause, and merges wait until it is back.
    """

    table: str
    kind: str
    level: int
    parts: int
    parked: bool
    error: str
    claim: str = ""
    replica: str = ""
    engine: str = "process"
    passes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploaded:
    """A materialized part went into the object store, or (``outcome`` is not completed) was overtaken and deleted."""

    table: str
    outcome: str
    version: int
    parts_replaced: int
    parts: int
    rows: int
    bytes: int
    carried_rows: int
    seconds: float
    claim: str = ""
    replica: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReplicated:
    """What a replica on another host merges was built here too, for readers of this host (``lakebed.replicate_local``)."""

    table: str
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
class MutationBegan:
    """A delete or an update began. ``operation``: delete or update."""

    table: str
    operation: str
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MutationEnded:
    """A mutation was committed, or matched nothing (``rows`` is 0); the figures are those of its MutationResult."""

    table: str
    operation: str
    version: int
    rows: int
    rows_left: int
    parts_read: int
    parts_marked: int
    parts_added: int
    bytes_written: int
    conflicts: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MutationFailed:
    """A mutation raised an error."""

    table: str
    operation: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitEnded:
    """A commit to a log ended. ``operation``: its name in the log, such as SETTLE; ``result``: committed, conflicted
    (another came first; ``conflict``: what in it conflicted) or unknown (the store did not answer).
    """

    table: str
    operation: str
    result: str
    version: int
    attempts: int
    seconds: float
    conflict: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChanged:
    """The schema of a table was changed. ``change``: what was changed, in JSON; ``reason``: why, as its author says."""

    table: str
    version: int
    change: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitGivenUp:
    """An operation gave up: other commits came first at each of its ``attempts``."""

    table: str
    operation: str
    attempts: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimChanged:
    """``result``: taken, or taken_over (in place of an expired one of another replica), abandoned (given back), or expired
    (of a replica that is gone, taken out of the log). ``version``: of the commit; ``replica``: whose claim it is.
    """

    table: str
    result: str
    version: int = -1
    claim: str = ""
    replica: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRequested:
    """Requests to an object store, attempts that failed included. ``table``: the root that they concern.

    ``result``: ok, missing, taken (a name that was to be free), throttled, denied, failed, or no_answer.
    """

    table: str
    operation: str
    result: str
    bytes_read: int = 0
    bytes_written: int = 0
    requests: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMeasured:
    """What a task used of its process. ``kind``: write, merge or find.

    ``memory_bytes``: the most that the process ever had in memory; ``spilled_bytes``: the most in its temporary folder while the
    task ran, measured a few times a second.
    """

    table: str
    kind: str
    seconds: float
    memory_bytes: int
    spilled_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLagged:
    """How many records of a topic no committed batch has read yet."""

    table: str
    topic: str
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryChanged:
    """A streaming query of this process, or what does its work without Spark, changed. ``role``: ingest or maintain.

    ``state``: running; waiting (it failed, and starts again after ``pause_seconds``); failed (for a cause that never passes, or
    too often in a row); stopped. ``error``: the class of the error, ``reason``: its text. ``routine``: it began or was stopped
    together with those of many other tables, or failed again for the same cause.
    """

    table: str
    role: str
    state: str
    error: str = ""
    reason: str = ""
    pause_seconds: float | None = None
    routine: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TableParked:
    """The pipeline of a database leaves a table alone until it is resumed. ``error``: the class of the error, ``reason``:
    its text; ``failures``: in a row.
    """

    table: str
    error: str
    reason: str
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableResumed:
    """A table that was parked is read again."""

    table: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InvariantViolated:
    """A commit breaks an invariant (docs/invariants.md). ``when``: write (it was refused, so the table is as it was) or read
    (it is a version of the table). ``detail``: how.
    """

    table: str
    invariant: str
    version: int
    detail: str
    when: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PointTaken:
    """A point of a database was taken: all transactions of the source up to it are in the tables, whole.

    ``table``: the root of the log of points; ``time_ms``: of the point's last transaction, by the source; ``tables``: how many
    are in the point; ``left_out``: how many are not.
    """

    table: str
    number: int
    time_ms: int
    tables: int
    left_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerObserved:
    """What a worker of a fleet does now. ``table``: the first root of the fleet; ``workers``: those that it sees alive.

    Of the tables below the roots: ``known``; ``owned`` by this worker, ``active`` in it; ``waiting``: they have work, and wait
    for room for ``waiting_seconds`` at most; ``troubled``: they can't be read or maintained. ``looks``: since the last event.
    """

    table: str
    worker: str
    workers: int
    known: int
    owned: int
    active: int
    waiting: int
    waiting_seconds: float
    troubled: int
    looks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HintsReceived:
    """A worker of a fleet got a message of hints. ``table``: the first root of the fleet.

    The others count its hints by what the worker makes of them (``lakebed.fleet.worker.Heard``); ``malformed``: those that it
    can't read.
    """

    table: str
    worker: str
    looks: int = 0
    known: int = 0
    elsewhere: int = 0
    new: int = 0
    unrelated: int = 0
    malformed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsDelivered:
    """A round of deliveries to a listener ended. ``table``: the root whose tables it listens to; ``events``: what it
    acknowledged; ``failures``: tables with events that it did not.
    """

    table: str
    listener: str
    events: int
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSeen:
    """How a listener stands that this process delivers to. ``behind_seconds``: the age of the oldest event that waits."""

    table: str
    listener: str
    behind_seconds: float
    is_failing: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerLeft:
    """This process no longer delivers to a listener."""

    table: str
    listener: str


Event: TypeAlias = (
    BatchCommitted
    | BatchReplayed
    | RemarkMade
    | OffsetsLost
    | Settled
    | KeyIndexRebuilt
    | ViewRefreshed
    | MergeBegan
    | MergeEnded
    | MergeFailed
    | Uploaded
    | IngestDelayed
    | MutationBegan
    | MutationEnded
    | MutationFailed
    | CommitEnded
    | PartReplicated
    | SchemaChanged
    | CommitGivenUp
    | ClaimChanged
    | StoreRequested
    | TaskMeasured
    | SourceLagged
    | QueryChanged
    | TableParked
    | TableResumed
    | InvariantViolated
    | PointTaken
    | WorkerObserved
    | HintsReceived
    | EventsDelivered
    | ListenerSeen
    | ListenerLeft
)
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
