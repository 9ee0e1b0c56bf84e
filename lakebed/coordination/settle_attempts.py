"""Attempts to settle a table that did not end, because they killed their processes (ADR 44).

    lakebed.settling    {"attempts": [{"process": "…", "version": …, "since_ms": …}, …]}

1. A tail that comes while a process maintains the table is settled without a note: if that kills the process, the tail is still
   there. A process that *finds* a tail, when it begins to maintain the table, notes before it settles that it tries to
   (``begin_settle``). So only tables whose maintenance has just begun cost this commit.
2. The commit that settles removes the entry. So does a process that ends in an orderly way, for its own attempt
   (``end_attempt``). What is left is of processes that were killed, or that are still at it.
3. With ``ATTEMPTS_MAX`` attempts of others nobody settles, in any process, for an hour since the newest one: the settle is
   *parked*. Then one process tries again; each further attempt that does not end parks for twice as long, a day at most.
4. A process settles tables that others tried one at a time (``compaction.settler``): its death counts for the one that it tried.
5. ``lakebed resume`` removes the entry, and the tail is settled at once.
6. An attempt counts for a day, and as long as the oldest change that it began with is in the tail. From ``ATTEMPTS_MAX`` on all
   count for longer: a pause may be as long as a day.

While it is parked, ingest goes on and readers resolve the tail. Nothing but the time of a settle rests on the entry. Attempts are
told apart by the name of a process, so a process that is slow, asleep, or fails and tries again counts once.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache, partial
from typing import TypeAlias, TypeVar

import orjson

from lakebed.coordination.failing import PARKED_MS, PARKED_MS_MAX
from lakebed.log.actions import Domain
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.conflicts import ReadWriteSet
from lakebed.log.entries import SETTLING, Operation
from lakebed.log.entry_values import decoded, readable_or_none
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog

ATTEMPTS_MAX = 3
_COUNTS_MS = 86_400_000
_KEPT_MAX = 9
"""With so many attempts the pause has long been the longest."""
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A process began to settle. ``version``: of the oldest change in the tail; ``since_ms``: epoch milliseconds."""

    process: str
    version: int
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleAttempts:
    """Attempts to settle that did not end, or not yet; the oldest first."""

    attempts: tuple[Attempt, ...]

    def of_others(self, process: str, oldest: int, now_ms: int) -> tuple[Attempt, ...]:
        """Those that count, without one of this process. ``oldest``: the version of the oldest change in the tail."""
        others = tuple(each for each in self.attempts if each.process != process and oldest <= each.version)
        if len(others) >= ATTEMPTS_MAX:
            return others
        return tuple(each for each in others if now_ms - _COUNTS_MS < each.since_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedSettle:
    """The settle of a table is left alone. Times are epoch milliseconds; ``processes``: that began it and did not end it."""

    since_ms: int
    not_before_ms: int
    processes: tuple[str, ...]

    @property
    def error(self) -> str:
        """Why, for people."""
        until = datetime.fromtimestamp(self.not_before_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
        return (
            f"{len(self.processes)} processes began to settle the tail and none has ended it, the last one "
            f"{self.processes[-1]}: they were killed, perhaps because memory ran out; it is left alone until {until}"
        )


_Begun: TypeAlias = tuple[Snapshot, ParkedSettle | None]


@cache
def this_process() -> str:
    """The name of this process in attempts; no other process ever has it."""
    return f"{os.uname().nodename}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def attempts_of(snapshot: Snapshot) -> SettleAttempts:
    """The attempts in a table's log. An entry that can't be read counts as not there."""
    found = readable_or_none(SETTLING, snapshot.domains.get(SETTLING), partial(decoded, SettleAttempts))
    return found or SettleAttempts(attempts=())


def parked_settle(snapshot: Snapshot, now_ms: int, process: str = "") -> ParkedSettle | None:
    """Whether nobody, or not this process, settles the table now; None if its tail is settled as usual.

    A time in the future was written by a clock that is wrong: the pause counts as over (as for ``failing``).
    """
    if not snapshot.tail:
        return None
    others = attempts_of(snapshot).of_others(process, _oldest(snapshot), now_ms)
    if len(others) < ATTEMPTS_MAX:
        return None
    since_ms = max(each.since_ms for each in others)
    not_before_ms = since_ms + min(PARKED_MS_MAX, PARKED_MS << (len(others) - ATTEMPTS_MAX))
    if not now_ms < not_before_ms <= now_ms + PARKED_MS_MAX:
        return None
    return ParkedSettle(
        since_ms=since_ms, not_before_ms=not_before_ms, processes=tuple(each.process for each in others)
    )


def begin_settle(log: TableLog, process: str) -> _Begun:
    """Note that this process is about to settle, unless that is parked; returns the table after it.

    Raises Contention, StoreUnavailable, TableNotFound.
    """

    def build(snapshot: Snapshot) -> Proposal[_Begun] | Finished[_Begun]:
        now_ms = log.now_ms()
        parked, known = parked_settle(snapshot, now_ms, process), attempts_of(snapshot)
        if parked is not None or not snapshot.tail or any(each.process == process for each in known.attempts):
            return Finished((snapshot, parked))
        oldest = _oldest(snapshot)
        new = Attempt(process=process, version=oldest, since_ms=now_ms)
        attempts = (*known.of_others(process, oldest, now_ms), new)
        return _proposal(attempts[-_KEPT_MAX:], lambda after: (after, None))

    return commit_loop(log, Operation.BEGIN_SETTLE, build)


def end_attempt(log: TableLog, process: str) -> None:
    """Take the attempt of a process that ends back, if it has one. Raises Contention, StoreUnavailable, TableNotFound."""

    def build(snapshot: Snapshot) -> Proposal[None] | Finished[None]:
        known = attempts_of(snapshot)
        left = tuple(each for each in known.attempts if each.process != process)
        return Finished(None) if left == known.attempts else _proposal(left, lambda after: None)

    commit_loop(log, Operation.BEGIN_SETTLE, build)


def resume_settle(log: TableLog) -> bool:
    """Let the tail be settled at once; returns whether that was parked. Raises Contention, StoreUnavailable, TableNotFound."""

    def build(snapshot: Snapshot) -> Proposal[bool] | Finished[bool]:
        known = attempts_of(snapshot).attempts
        if not known:  # or it can't be read: that is removed otherwise
            return Finished(False)
        was_parked = len(known) >= ATTEMPTS_MAX
        return _proposal((), lambda after: was_parked)

    return commit_loop(log, Operation.RESUME, build)


def _oldest(snapshot: Snapshot) -> int:
    return min(part.version for part in snapshot.tail.values())


def _proposal(attempts: Sequence[Attempt], result: Callable[[Snapshot], R]) -> Proposal[R]:
    value = orjson.dumps({"attempts": [asdict(each) for each in attempts]}).decode()
    action = Domain(SETTLING, value) if attempts else Domain(SETTLING, "", removed=True)
    access = ReadWriteSet(domains=frozenset([SETTLING]))
    return Proposal(actions=[action], access=access, result=lambda committed: result(committed.snapshot))


def ended(snapshot: Snapshot) -> list[Domain]:
    """What a commit does that settles: no attempt counts any more."""
    return [Domain(SETTLING, "", removed=True)] if SETTLING in snapshot.domains else []
