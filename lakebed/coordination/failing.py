"""Work that keeps failing is parked by an entry of the table's log: every process leaves it alone for some time.

**Merges**

    lakebed.failing.<id>    {"sources": […], "failures": 4, "error": "…", "kind": "Corrupt", "since_ms": …, "not_before_ms": …}

1. A merge fails several times in one process. That process adds the entry. The id follows from the sources, so two processes that
   park the same merge write one entry. A merge that kills its process raises no error; losing its claims parks it.
2. Until ``not_before_ms`` no planner takes the sources, in any process. Then a process tries again. If that fails too, the merge
   is parked for twice as long, a day at most.
3. ``lakebed resume`` removes the entry, and the parts are planned at once. An entry without a source in the base means nothing,
   and maintenance removes it.

A merge is never parked for longer than a day. A time further ahead was written by a clock that is wrong, and counts as over.

**Lost claims** are those whose replica ended without completing or releasing them. It was killed, perhaps by the merge itself.

    lakebed.lost.<claim>    {"sources": […], "replica": "…", "lost_ms": …}

1. Who ends a claim because its lease has ended notes in the same commit that it was lost; a replica that starts again does so for
   the claims that it left behind. A claim whose merge has ended is not lost: its output was on a local disk.
2. A part that is a source of ``LOST_MAX`` lost claims is parked in the same commit, as for errors that were raised (``failing``):
   for an hour at first. Each part is counted for itself, because plans vary: the one that kills is in all of these claims, others
   are planned without it meanwhile.
3. After the time a process tries again. A part that was parked so before is parked by one more loss, for twice as long.
4. A process that was only asleep finds its claim gone. It takes the note back, and with it what was parked because of it.
5. A loss counts for a day. So who kills all workers once a day parks nothing; who kills them more often may park, for an hour,
   parts whose merges each time were among those that ran.

No row rests on these entries: one that is lost, or wrong, makes a merge later or sooner.

**Settles** that killed their processes (ADR 44)

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

**Tables** are left alone by the pipeline of their database if reading into them failed and would fail again. The entry
``lakebed.parked`` of the table's own log says why and since when. It says nothing of what was read: that is in the table's
positions, so a table that is resumed goes on where it stopped. Whoever removes the entry resumes it, from any process.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache, partial
from typing import TypeAlias, TypeVar

import orjson

from lakebed.errors import Corrupt
from lakebed.log.actions import Domain
from lakebed.log.claims import Claim, claimed_paths
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.entries import FAILING, LOST, PARKED, SETTLING, Operation
from lakebed.log.entry_values import decoded, readable, readable_or_none
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog

PARKED_MS = 3_600_000
PARKED_MS_MAX = 24 * PARKED_MS
WORKER_LOST = "WorkerLost"
"""The ``kind`` of a merge that ended the processes which ran it."""
_ERROR_LENGTH_MAX = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """A merge that is parked, or was. Times are epoch milliseconds."""

    sources: tuple[str, ...]  # paths of parts
    failures: int  # how often it failed
    error: str
    kind: str  # the class of the error, or WORKER_LOST
    since_ms: int
    not_before_ms: int

    @property
    def domain(self) -> str:
        """The name of the entry."""
        return FAILING + hashlib.sha256("\n".join(sorted(self.sources)).encode()).hexdigest()[:16]

    def is_parked(self, now_ms: int) -> bool:
        """Whether it is too early to try again."""
        return now_ms < self.not_before_ms <= now_ms + PARKED_MS_MAX

    def to_action(self) -> Domain:
        """The action that sets the entry."""
        return Domain(self.domain, orjson.dumps(asdict(self)).decode())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sources:
    sources: tuple[str, ...]


def failing_of(snapshot: Snapshot) -> dict[str, Failing]:
    """The merges that have failed before and whose parts are still there, by the name of the entry."""
    found = readable(snapshot.domains, FAILING, partial(decoded, Failing))
    return {name: failing for name, failing in found if any(path in snapshot.parts for path in failing.sources)}


def parked_paths(snapshot: Snapshot, now_ms: int) -> frozenset[str]:
    """Paths of the parts that are left alone for now, because merges of them failed."""
    parked = (each for each in failing_of(snapshot).values() if each.is_parked(now_ms))
    return frozenset(path for each in parked for path in each.sources)


def taken_paths(snapshot: Snapshot, now_ms: int) -> frozenset[str]:
    """Paths of the parts that nobody plans with now: live claims or parked merges have them as sources."""
    return claimed_paths(snapshot, now_ms) | parked_paths(snapshot, now_ms)


def park_merge(
    log: TableLog, sources: Sequence[str], error: Exception, failures: int, now_ms: int | None = None
) -> Failing | None:
    """Park a merge that failed so often in this process; None if one of its parts is gone.

    ``now_ms``: the time, in epoch milliseconds (default: of the log's clock). Raises Contention, StoreUnavailable, TableNotFound.
    """

    now_ms = log.now_ms() if now_ms is None else now_ms

    def build(snapshot: Snapshot) -> Proposal[Failing | None] | Finished[Failing | None]:
        if not all(path in snapshot.parts for path in sources):
            return Finished(None)
        failing = _parked_again(
            None, sources, failures=failures, error=str(error), kind=type(error).__name__, now_ms=now_ms
        )
        before = failing_of(snapshot).get(failing.domain)
        if before is not None and before.is_parked(now_ms):
            return Finished(before)
        if before is not None:
            failing = _parked_again(
                before, sources, failures=before.failures + 1, error=failing.error, kind=failing.kind, now_ms=now_ms
            )
        return Proposal(actions=[failing.to_action()], result=lambda _: failing)

    return commit_loop(log, Operation.PARK_MERGE, build)


def _parked_again(
    before: Failing | None, sources: Sequence[str], *, failures: int, error: str, kind: str, now_ms: int
) -> Failing:
    """The entry of a merge that is parked now. ``before``: that of the last time it was, if it ever was."""
    pause_ms = PARKED_MS
    if before is not None:
        pause_ms = min(PARKED_MS_MAX, 2 * max(PARKED_MS, before.not_before_ms - before.since_ms))
    return Failing(
        sources=tuple(sources),
        failures=failures,
        error=error[:_ERROR_LENGTH_MAX],
        kind=kind,
        since_ms=now_ms,
        not_before_ms=now_ms + pause_ms,
    )


def resume_merges(log: TableLog) -> int:
    """Let the parts of parked merges be planned at once; returns how many merges there were.

    Raises Contention, StoreUnavailable, TableNotFound.
    """

    def chosen(snapshot: Snapshot) -> list[str]:
        failing = list(failing_of(snapshot))
        return [*failing, *(name for name in snapshot.domains if failing and name.startswith(LOST))]

    return _remove(log, chosen)


def forget_gone(log: TableLog) -> int:
    """Remove the entries of merges whose parts are gone; returns how many were parked. Raises Contention, StoreUnavailable."""
    return _remove(log, _gone)


def has_gone(snapshot: Snapshot) -> bool:
    """Whether there are entries of merges whose parts are gone."""
    return bool(_gone(snapshot))


def _gone(snapshot: Snapshot) -> list[str]:
    names = [name for name in snapshot.domains if name.startswith((FAILING, LOST))]
    return [name for name in sorted(names) if not _has_source(name, snapshot)]


def _has_source(name: str, snapshot: Snapshot) -> bool:
    merge = readable_or_none(name, snapshot.domains[name], partial(decoded, _Sources))
    return merge is not None and any(path in snapshot.parts for path in merge.sources)


def _remove(log: TableLog, chosen: Callable[[Snapshot], Sequence[str]]) -> int:
    def build(snapshot: Snapshot) -> Proposal[int] | Finished[int]:
        names = chosen(snapshot)
        merges = sum(name.startswith(FAILING) for name in names)
        actions = [Domain(name, "", removed=True) for name in names]
        return Proposal(actions=actions, result=lambda _: merges) if names else Finished(0)

    return commit_loop(log, Operation.RESUME_MERGES, build)


LOST_MAX = 3
_LOST_KEPT_MS = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A claim that was lost."""

    sources: tuple[str, ...]  # paths of parts
    replica: str
    lost_ms: int  # when that was noticed (epoch milliseconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """What a commit does that ends lost claims. ``parked``: what it parks, None for nothing."""

    actions: Sequence[Domain]
    parked: Failing | None

    @property
    def domains(self) -> frozenset[str]:
        """The names of the entries."""
        return frozenset(action.domain for action in self.actions)


def lost_of(snapshot: Snapshot, now_ms: int) -> dict[str, Lost]:
    """The claims that were lost in the last day and have a source in the base, by the names of the entries."""
    found = readable(snapshot.domains, LOST, partial(decoded, Lost))
    return {
        name: lost
        for name, lost in found
        if now_ms - _LOST_KEPT_MS < lost.lost_ms and any(path in snapshot.parts for path in lost.sources)
    }


def losses(snapshot: Snapshot, claims: Iterable[Claim], now_ms: int) -> Losses:
    """What to commit, beside the end of these claims, if their replicas were lost."""
    lost = [claim for claim in claims if claim.sources and not claim.is_made]
    if not lost:
        return Losses(actions=(), parked=None)
    known = lost_of(snapshot, now_ms)
    names = [name for name in snapshot.domains if name.startswith(LOST)]
    actions = [Domain(name, "", removed=True) for name in names if name not in known]
    for claim in lost:
        value = {"sources": list(claim.sources), "replica": claim.replica, "lost_ms": now_ms}
        actions.append(Domain(LOST + claim.id, orjson.dumps(value).decode()))
    counts = _counts([*(each.sources for each in known.values()), *(claim.sources for claim in lost)])
    before = [each for each in failing_of(snapshot).values() if each.kind == WORKER_LOST]
    again = {path for each in before for path in each.sources}
    sources = {path for claim in lost for path in claim.sources if path in snapshot.parts}
    parked = sorted(path for path in sources if counts[path] >= LOST_MAX or path in again)
    if not parked:
        return Losses(actions=actions, parked=None)
    times = max(max(counts[path] for path in parked), LOST_MAX)
    error = (
        f"{lost[-1].replica} and the workers before it ended while they merged this: they were killed, perhaps because memory "
        "ran out; the logs of their machines say why"
    )
    earlier = max((each for each in before if not set(parked).isdisjoint(each.sources)), key=_pause_ms, default=None)
    failing = _parked_again(earlier, parked, failures=times, error=error, kind=WORKER_LOST, now_ms=now_ms)
    return Losses(actions=[*actions, failing.to_action()], parked=failing)


def taken_back(snapshot: Snapshot, claims: Collection[str]) -> list[Domain]:
    """The actions by which a process that lives takes back that its claims, by id, were lost; none if nobody said so."""
    names = {LOST + id for id in claims} & snapshot.domains.keys()
    if not names:
        return []
    left = readable(snapshot.domains, LOST, partial(decoded, Lost))
    counts = _counts(lost.sources for name, lost in left if name not in names)
    over = [
        name
        for name, each in failing_of(snapshot).items()
        if each.kind == WORKER_LOST
        and each.failures <= LOST_MAX
        and all(counts[path] < LOST_MAX for path in each.sources)
    ]
    return [Domain(name, "", removed=True) for name in (*sorted(names), *over)]


def _counts(sources: Iterable[Sequence[str]]) -> Counter[str]:
    return Counter(path for each in sources for path in each)


def _pause_ms(failing: Failing) -> int:
    return failing.not_before_ms - failing.since_ms


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
    return Proposal(actions=[action], result=lambda committed: result(committed.snapshot))


def ended(snapshot: Snapshot) -> list[Domain]:
    """What a commit does that settles: no attempt counts any more."""
    return [Domain(SETTLING, "", removed=True)] if SETTLING in snapshot.domains else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """Why a table is parked. ``kind``: the class of the error; ``since_ms``: epoch milliseconds; ``failures``: in a row."""

    error: str
    kind: str
    since_ms: int
    failures: int = 1


def parked_of(snapshot: Snapshot) -> Parked | None:
    """Why a table is parked; None if it is not. One whose entry can't be read is parked too."""
    text = snapshot.domains.get(PARKED)
    if text is None:
        return None
    try:
        return decoded(Parked, PARKED, text)
    except Corrupt as error:
        return Parked(error=str(error), kind="Corrupt", since_ms=0)


def park(log: TableLog, parked: Parked) -> bool:
    """Park a table; returns whether it was not parked yet. One that was keeps its reason.

    Raises Contention, StoreUnavailable, TableNotFound.
    """
    text = orjson.dumps(asdict(parked)).decode()
    return _commit(log, Operation.PARK, Domain(PARKED, text))


def resume(log: TableLog) -> bool:
    """Let the pipeline of its database go on with a table; returns whether it was parked.

    Raises Contention, StoreUnavailable, TableNotFound.
    """
    return _commit(log, Operation.RESUME, Domain(PARKED, "", removed=True))


def _commit(log: TableLog, operation: Operation, action: Domain) -> bool:
    def build(snapshot: Snapshot) -> Proposal[bool] | Finished[bool]:
        if (PARKED in snapshot.domains) != action.removed:
            return Finished(False)
        return Proposal(actions=[action], result=lambda _: True)

    return commit_loop(log, operation, build)
