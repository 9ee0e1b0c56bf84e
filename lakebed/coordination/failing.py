"""Merges that keep failing are parked by an entry of the table's log: every process leaves their parts alone for some time.

    lakebed.failing.<id>    {"sources": […], "failures": 4, "error": "…", "kind": "Corrupt", "since_ms": …, "not_before_ms": …}

1. A merge fails several times in one process. That process adds the entry. The id follows from the sources, so two processes that
   park the same merge write one entry. A merge that kills its process raises no error; losing its claims parks it.
2. Until ``not_before_ms`` no planner takes the sources, in any process. Then a process tries again. If that fails too, the merge
   is parked for twice as long, a day at most.
3. ``lakebed resume`` removes the entry, and the parts are planned at once. An entry without a source in the base means nothing,
   and maintenance removes it.

A merge is never parked for longer than a day. A time further ahead was written by a clock that is wrong, and counts as over (as
for ``claims``).

**Lost claims** are those whose replica ended without completing or releasing them. It was killed, perhaps by the
merge itself.

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
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import orjson

from lakebed.log.actions import Domain
from lakebed.log.claims import Claim, claimed_paths
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.conflicts import ReadWriteSet
from lakebed.log.entries import FAILING, LOST, Operation
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
        access = ReadWriteSet(domains=frozenset([failing.domain]))
        return Proposal(actions=[failing.to_action()], access=access, result=lambda _: failing)

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
        access = ReadWriteSet(domains=frozenset(names))
        actions = [Domain(name, "", removed=True) for name in names]
        return Proposal(actions=actions, access=access, result=lambda _: merges) if names else Finished(0)

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
    lost = [claim for claim in claims if not claim.is_made]
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
