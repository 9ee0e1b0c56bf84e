"""Merges that keep failing, as entries of the table's log: every process leaves their parts alone until it is time to try again.

    lakebed.failing.<id>    {"sources": […], "failures": 4, "error": "…", "kind": "Corrupt", "since_ms": …, "not_before_ms": …}

1. A process that a merge has failed in several times parks it: it adds the entry. The id follows from the sources, so two that
   park the same merge write one entry.
2. Until ``not_before_ms`` no planner takes the sources, in any process. Then somebody tries again. If that fails too, the merge
   is parked for twice as long, a day at most.
3. ``lakebed resume`` removes the entry, and the parts are planned at once. An entry without a source in the base means nothing;
   maintenance removes it.

A time further ahead than a merge is ever parked was written by a clock that is wrong, and counts as over (as for ``claims``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import orjson

from lakebed.manifest.actions import Domain
from lakebed.manifest.claims import claimed_paths
from lakebed.manifest.commit_loop import Finished, Proposal, commit_loop
from lakebed.manifest.conflicts import ReadWriteSet
from lakebed.manifest.entries import FAILING, Operation
from lakebed.manifest.snapshot import Snapshot
from lakebed.manifest.table_log import TableLog

PARKED_MS = 3_600_000
PARKED_MS_MAX = 24 * PARKED_MS
_ERROR_LENGTH_MAX = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """``sources``: paths of parts; ``kind``: the class of the error; times in epoch milliseconds."""

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


def failing_of(snapshot: Snapshot) -> dict[str, Failing]:
    """The merges that have failed before and whose parts are still there, by the name of the entry."""
    out = {}
    for name, text in snapshot.domains.items():
        if name.startswith(FAILING):
            value = orjson.loads(text)
            failing = Failing(**{**value, "sources": tuple(value["sources"])})
            if any(path in snapshot.parts for path in failing.sources):
                out[name] = failing
    return out


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
        failing = Failing(
            sources=tuple(sources), failures=failures, error=str(error)[:_ERROR_LENGTH_MAX], kind=type(error).__name__,
            since_ms=now_ms, not_before_ms=now_ms + PARKED_MS,
        )  # fmt: skip
        before = failing_of(snapshot).get(failing.domain)
        if before is not None and before.is_parked(now_ms):
            return Finished(before)
        if before is not None:
            again_ms = min(PARKED_MS_MAX, 2 * max(PARKED_MS, before.not_before_ms - before.since_ms))
            failing = Failing(
                **{**asdict(failing), "failures": before.failures + 1, "not_before_ms": now_ms + again_ms}
            )
        action = Domain(failing.domain, orjson.dumps(asdict(failing)).decode())
        access = ReadWriteSet(domains=frozenset([failing.domain]))
        return Proposal(actions=[action], access=access, result=lambda _: failing)

    return commit_loop(log, Operation.PARK_MERGE, build)


def resume_merges(log: TableLog) -> int:
    """Let the parts of parked merges be planned at once; returns how many merges there were.

    Raises Contention, StoreUnavailable, TableNotFound.
    """
    return _remove(log, lambda snapshot: list(failing_of(snapshot)))


def forget_gone(log: TableLog) -> int:
    """Remove the entries of merges whose parts are gone; returns how many there were. Raises Contention, StoreUnavailable."""
    return _remove(log, _gone)


def has_gone(snapshot: Snapshot) -> bool:
    """Whether there are entries of merges whose parts are gone."""
    return bool(_gone(snapshot))


def _gone(snapshot: Snapshot) -> list[str]:
    names = [name for name in snapshot.domains if name.startswith(FAILING)]
    return sorted(set(names) - failing_of(snapshot).keys()) if names else []


def _remove(log: TableLog, chosen: Callable[[Snapshot], Sequence[str]]) -> int:
    def build(snapshot: Snapshot) -> Proposal[int] | Finished[int]:
        names = chosen(snapshot)
        access = ReadWriteSet(domains=frozenset(names))
        actions = [Domain(name, "", removed=True) for name in names]
        return Proposal(actions=actions, access=access, result=lambda _: len(names)) if names else Finished(0)

    return commit_loop(log, Operation.RESUME_MERGES, build)
