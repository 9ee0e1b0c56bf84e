"""Merges that keep failing are parked by an entry of the table's log: every process leaves their parts alone for some time.

    lakebed.failing.<id>    {"sources": […], "failures": 4, "error": "…", "kind": "Corrupt", "since_ms": …, "not_before_ms": …}

1. A merge fails several times in one process. That process adds the entry. The id follows from the sources, so two processes that
   park the same merge write one entry. A merge that kills its process raises no error; ``lost_claims`` parks it.
2. Until ``not_before_ms`` no planner takes the sources, in any process. Then a process tries again. If that fails too, the merge
   is parked for twice as long, a day at most.
3. ``lakebed resume`` removes the entry, and the parts are planned at once. An entry without a source in the base means nothing,
   and maintenance removes it.

A merge is never parked for longer than a day. A time further ahead was written by a clock that is wrong, and counts as over (as
for ``claims``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import orjson

from lakebed.log.actions import Domain
from lakebed.log.claims import claimed_paths
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
    """A merge that is parked, or was. ``sources``: paths of parts; ``failures``: how often it failed; ``kind``: the class of the
    error, or WORKER_LOST. Times are epoch milliseconds."""

    sources: tuple[str, ...]
    failures: int
    error: str
    kind: str
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
        failing = parked_again(
            None, sources, failures=failures, error=str(error), kind=type(error).__name__, now_ms=now_ms
        )
        before = failing_of(snapshot).get(failing.domain)
        if before is not None and before.is_parked(now_ms):
            return Finished(before)
        if before is not None:
            failing = parked_again(
                before, sources, failures=before.failures + 1, error=failing.error, kind=failing.kind, now_ms=now_ms
            )
        access = ReadWriteSet(domains=frozenset([failing.domain]))
        return Proposal(actions=[failing.to_action()], access=access, result=lambda _: failing)

    return commit_loop(log, Operation.PARK_MERGE, build)


def parked_again(
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
