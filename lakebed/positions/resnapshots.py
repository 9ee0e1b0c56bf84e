r"""A resnapshot: a connector was asked to send rows of a table again.

The entry ``lakebed.resnapshot`` of the table's log says what was asked, and how far it is.

    asked ──the first row comes──> running ──the connector has read all──> read ──all that was sent is in──> ended
      \_______________________________\_______________ it can't be done ______________________________________> failed

1. Whoever asks writes the entry, and sends the signal after that. A new entry takes the place of an earlier one.
2. The commits that bring rows count them in the entry, so each is counted once.
3. The pipeline that reads the connector's notifications says what the connector has read, and up to which offsets it sent it.
4. With ``mirror_from``, the rows that the source no longer has are removed before it ends (``operations.mutate``).

The entry ``lakebed.topic_gone`` says, for people alone, whether the topic that a table is read from is gone. The pipeline of the
table's database sets it, and removes it when the topic is there again. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Literal, Protocol

import orjson

from lakebed.log.actions import Domain
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.conflicts import ReadWriteSet
from lakebed.log.entries import RESNAPSHOT, TOPIC_GONE, Operation
from lakebed.log.entry_values import decoded, readable_or_none
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.positions.positions import positions_of
from lakebed.positions.remarks import sent_again


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicGone:
    """``since_ms``: when that was noticed, in epoch milliseconds."""

    topic: str
    since_ms: int


def topic_gone_of(snapshot: Snapshot) -> TopicGone | None:
    """The topic that is gone; None if none is."""
    text = snapshot.domains.get(TOPIC_GONE)
    return readable_or_none(TOPIC_GONE, text, partial(decoded, TopicGone))


def note_topic(log: TableLog, topic: str, *, is_gone: bool) -> bool:
    """Say in the log of a table that its topic is gone, or that it is there again; returns whether that is news.

    Raises Contention, StoreUnavailable, TableNotFound.
    """

    def build(snapshot: Snapshot) -> Proposal[bool] | Finished[bool]:
        if (TOPIC_GONE in snapshot.domains) == is_gone:
            return Finished(False)
        text = orjson.dumps(asdict(TopicGone(topic=topic, since_ms=log.now_ms()))).decode()
        action = Domain(TOPIC_GONE, text) if is_gone else Domain(TOPIC_GONE, "", removed=True)
        return Proposal(actions=[action], result=lambda _: True)

    return commit_loop(log, Operation.TOPIC, build)


_DAY_MS = 86_400_000
State = Literal["asked", "running", "read", "ended", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resnapshot:
    """What was asked, and how far it is. Times are epoch milliseconds.

    What was asked: ``id`` is the signal's. ``begin`` has the ends of the table's topic at that time, and ``notifications`` those
    of the topic of notifications, None if there is none. Rows whose sequence is not above ``mirror_from`` are removed at the
    end, unless they come again; None removes none. ``is_partial``: not all rows were asked for.

    How far it is: the table has got ``came`` rows. ``deleted`` deletes came meanwhile, and ``unusable`` records could not be
    used. The connector is at the key ``at``, has read ``read`` rows in all, and has sent them up to the offsets ``ends``. At the
    end ``removed`` rows were removed.
    """

    id: str
    topic: str
    asked_ms: int
    begin: Mapping[int, int]
    notifications: Mapping[int, int] | None = None
    mirror_from: int | None = None
    is_partial: bool = False
    state: State = "asked"
    came: int = 0
    came_ms: int | None = None
    deleted: int = 0
    unusable: int = 0
    at: str = ""
    read: int | None = None
    ends: Mapping[int, int] = field(default_factory=dict)
    removed: int | None = None
    ended_ms: int | None = None
    error: str = ""

    @property
    def is_active(self) -> bool:
        """Whether more is to happen."""
        return self.state not in ("ended", "failed")

    def is_in(self, snapshot: Snapshot) -> bool:
        """Whether a version has all that the connector sent up to ``ends``."""
        position = positions_of(snapshot).get(self.topic)
        offsets = position.offsets if position else {}
        return all(offsets.get(number, 0) >= end for number, end in self.ends.items())

    def at_the_end(self, snapshot: Snapshot) -> list[Domain]:
        """What the commit does besides that ends it: rows that were wrong until they were sent again are right."""
        return [] if self.is_partial else sent_again(snapshot, self.asked_ms)

    def to_action(self) -> Domain:
        """The action that sets the entry."""
        return Domain(RESNAPSHOT, orjson.dumps(asdict(self), option=orjson.OPT_NON_STR_KEYS).decode())


class _ReadRange(Protocol):
    """A range of a topic that was read."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def end(self) -> int: ...


def resnapshot_of(snapshot: Snapshot) -> Resnapshot | None:
    """The newest one that was asked of a table; None if none was, or if the entry can't be read."""
    return readable_or_none(RESNAPSHOT, snapshot.domains.get(RESNAPSHOT), partial(decoded, Resnapshot))


def ask(
    log: TableLog, asked: Resnapshot, besides: Callable[[Snapshot], tuple[list[Domain], frozenset[str]]] | None = None
) -> None:
    """Write down what is asked now. ``besides``: what else the commit says of a version, and the entries that this rests on.

    Raises Contention, StoreUnavailable, TableNotFound.
    """

    def build(snapshot: Snapshot) -> Proposal[None]:
        actions, rests_on = besides(snapshot) if besides else ([], frozenset())
        access = ReadWriteSet(domains=frozenset([RESNAPSHOT]) | rests_on)
        return Proposal(actions=[asked.to_action(), *actions], access=access, result=lambda _: None)

    commit_loop(log, Operation.RESNAPSHOT, build)


def advance(log: TableLog, id: str, change: Callable[[Resnapshot], Resnapshot]) -> Snapshot:
    """Change the entry of a resnapshot, unless it is over or another one took its place; returns a snapshot after that.

    Raises Contention, StoreUnavailable, TableNotFound.
    """

    def build(snapshot: Snapshot) -> Proposal[Snapshot] | Finished[Snapshot]:
        now = active(snapshot, id)
        if now is None or (then := change(now)) == now:
            return Finished(snapshot)
        besides = then.at_the_end(snapshot) if then.state == "ended" else []
        return Proposal(actions=[then.to_action(), *besides], result=lambda committed: committed.snapshot)

    return commit_loop(log, Operation.RESNAPSHOT, build)


def active(snapshot: Snapshot, id: str | None = None) -> Resnapshot | None:
    """The resnapshot under way; None if there is none, or another one than that with ``id``."""
    found = resnapshot_of(snapshot)
    if found is None or not found.is_active or (id is not None and found.id != id):
        return None
    return found


def entry_counting(
    snapshot: Snapshot, read: Iterable[_ReadRange], now_ms: int, *, came: int, deleted: int, unusable: int
) -> Domain | None:
    """The action that counts what a batch brings, to be put into its commit; None if there is nothing to count.

    ``read``: the ranges of the batch. Those from before it was asked do not count.
    """
    if not (came or deleted or unusable) or (found := active(snapshot)) is None:
        return None
    if not any(one.topic == found.topic and one.end > found.begin.get(one.partition, 0) for one in read):
        return None
    then = replace(
        found,
        came=found.came + came,
        came_ms=now_ms if came else found.came_ms,
        deleted=found.deleted + deleted,
        unusable=found.unusable + unusable,
        state="running" if came and found.state == "asked" else found.state,
    )
    return then.to_action()


def recent(snapshot: Snapshot, now_ms: int) -> str:
    """How far a resnapshot is that is under way, or how one ended in the last day, in words; empty if there is none."""
    found = resnapshot_of(snapshot)
    if found is None or (not found.is_active and now_ms - (found.ended_ms or found.asked_ms) > _DAY_MS):
        return ""
    return described(found, now_ms)


def described(found: Resnapshot, now_ms: int) -> str:
    """How far it is, in words."""
    rows = f"{found.came:,} rows came"
    match found.state:
        case "asked":
            return f"asked {ago(found.asked_ms, now_ms)}, and nothing came yet"
        case "running":
            last = f", the last {ago(found.came_ms, now_ms)}" if found.came_ms is not None else ""
            return f"{rows}{last}" + (f"; the connector is at key {found.at}" if found.at else "")
        case "read":
            then = "the rest, and to remove what is gone" if found.mirror_from is not None else "the rest"
            return f"the connector has read {found.read or 0:,} rows; {rows}; waiting for {then}"
        case "ended":
            gone = (
                "" if found.removed is None else f", {found.removed:,} rows that the source no longer has were removed"
            )
            return f"ended {ago(found.ended_ms or now_ms, now_ms)}: {rows}{gone}"
        case "failed":
            return f"failed: {found.error}"


def ago(then_ms: int | None, now_ms: int) -> str:
    """How long ago a time was, in words; times are epoch milliseconds."""
    seconds = max(0, now_ms - (then_ms or now_ms)) // 1000
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} seconds ago"
