"""Claims that were lost: their replica ended without completing or releasing them. It was killed, perhaps by the merge itself.

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

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import orjson

from lakebed.coordination.failing import WORKER_LOST, Failing, failing_of, parked_again
from lakebed.log.actions import Domain
from lakebed.log.claims import Claim
from lakebed.log.entries import LOST
from lakebed.log.entry_values import decoded, readable
from lakebed.log.snapshot import Snapshot

LOST_MAX = 3
LOST_KEPT_MS = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A claim that was lost. ``sources``: paths of parts; ``lost_ms``: when that was noticed, in epoch milliseconds."""

    sources: tuple[str, ...]
    replica: str
    lost_ms: int


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
        if now_ms - LOST_KEPT_MS < lost.lost_ms and any(path in snapshot.parts for path in lost.sources)
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
    failing = parked_again(earlier, parked, failures=times, error=error, kind=WORKER_LOST, now_ms=now_ms)
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
