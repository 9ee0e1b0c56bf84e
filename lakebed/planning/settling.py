"""When the tail is settled: when the table's thresholds say so, or when that is cheap. Pure.

With ``lakebed.freshness`` at the latest when half of it is over, so that the rest is left to find the changes and to settle them.

Without thresholds: as soon as marking base parts costs less than the tail costs readers, each of whom resolves it again; at the
latest after two minutes, because other readers see nothing of the tail.

A settle writes the vectors of the parts that it marks again, with all dead rows since the last merge. With updates all over a
large table these are most of what is written, so they count (``_VECTOR_COST``): the larger the vectors, the more changes go into
a settle. The bytes of vectors for each byte of changes are then bounded, and do not grow with the table.

**Uploads**: what of a table with parts on a local disk is put into the store.

1. What the planner merges for readers elsewhere (``Goal.ELSEWHERE``), which bounds the runs that they meet.
2. Parts that are old, or that are too many bytes for the disk: what other readers of a table into which little comes read is
   merged for them too, if late (``UploadRules``).

**Backpressure** (``pressure``): ingest slows down, gradually, when maintenance can't keep up. It never fails for that.

How far a table is beyond what its readers can bear follows from its newest snapshot alone. So this also works when maintenance
runs elsewhere, or not at all. The factor is 1 up to the bounds, and grows with how far they are exceeded:

1. Batches become smaller than they last were without pressure, by the factor (Kafka).
2. Before each batch ingest waits, for the time that the last batch took times (factor - 1), at most ``DELAY_SECONDS_MAX``.

So at a factor of 2 half as much comes in, in the same time; the rest waits in the source.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from lakebed.log.actions import ChangePart
from lakebed.log.claims import claims_of
from lakebed.log.snapshot import Snapshot
from lakebed.planning.plan import PART_READ_BYTES, MergeKind, MergePlan, Planning, SettlePlan
from lakebed.sortkey.ranges import order_columns
from lakebed.sortkey.statistics_cache import StatisticsCache

_TAIL_ROWS_MAX = 8_000_000
TAIL_PARTS_MAX = 500
SMALL_PARTS_PER_BUDGET = 25
_FACTOR_MAX = 20.0
DELAY_SECONDS_MAX = 10.0

# What settling costs for each base part it marks (its action, and a short vector in it), and for each byte of the vectors that
# are written again (once written, and read by the next settle, by merges and by readers); and what a tail costs the views until
# the next batch, each of which resolves it again.
_MARK_BYTES = 16 * 1024
_VECTOR_COST = 4
_TAIL_READS = 8
_TAIL_PART_BYTES = 64 * 1024
_TAIL_SECONDS_MAX = 120
_TAIL_ROWS_MAX = 2_000_000


def settle_plan(snapshot: Snapshot, now_ms: int, statistics: StatisticsCache) -> SettlePlan | None:
    """The plan to settle the tail now; None if there is no tail, or it can wait."""
    tail = snapshot.tail_in_order()
    why = _reason_to_settle(snapshot, tail, now_ms, statistics) if tail else None
    if why is None:
        return None
    total = sum(part.bytes for part in tail)
    return SettlePlan(
        inputs=tuple(part.path for part in tail),
        rows_in=sum(part.rows for part in tail),
        bytes_in=total,
        deletes=sum(part.deletes for part in tail),
        gain=total + len(tail) * PART_READ_BYTES,
        why=why,
    )


def reason_to_settle(snapshot: Snapshot, now_ms: int, statistics: StatisticsCache | None = None) -> str | None:
    """Why the tail should be settled now; None if there is no tail, or it can wait. ``statistics``: as for ``planner.plan``."""
    found = settle_plan(snapshot, now_ms, StatisticsCache() if statistics is None else statistics)
    return found.why if found else None


def due_ms(snapshot: Snapshot) -> int | None:
    """When the tail is due by its age, in epoch milliseconds; None without a tail, or if only more changes make it due."""
    if not snapshot.tail:
        return None
    settings = snapshot.settings
    thresholds = (settings.settle_after_changes, settings.settle_after_bytes, settings.settle_after_age_seconds)
    ages = [settings.settle_after_age_seconds] if settings.settle_after_age_seconds is not None else []
    if settings.freshness_seconds is not None:
        ages.append(-(-settings.freshness_seconds // 2))
    if all(threshold is None for threshold in thresholds):
        ages.append(_TAIL_SECONDS_MAX)
    oldest_ms = min(part.modified_ms for part in snapshot.tail.values())
    return oldest_ms + 1000 * min(ages) if ages else None


def _reason_to_settle(
    snapshot: Snapshot, tail: Sequence[ChangePart], now_ms: int, statistics: StatisticsCache
) -> str | None:
    settings = snapshot.settings
    rows, size = sum(part.rows for part in tail), sum(part.bytes for part in tail)
    age_seconds = (now_ms - min(part.modified_ms for part in tail)) // 1000
    thresholds = (
        ("changes", settings.settle_after_changes, rows, f"holds {rows:,} rows"),
        ("bytes", settings.settle_after_bytes, size, f"holds {size:,} bytes"),
        ("age", settings.settle_after_age_seconds, age_seconds, f"is {age_seconds:,} seconds old"),
    )
    for name, threshold, value, text in thresholds:
        if threshold is not None and value >= threshold:
            return f"the tail {text}; lakebed.settle_after_{name} is {threshold:,}"
    freshness = settings.freshness_seconds
    if freshness is not None and 2 * age_seconds >= freshness:
        return f"the tail is {age_seconds:,} seconds old, half of lakebed.freshness, {freshness:,} seconds"
    if rows >= _TAIL_ROWS_MAX:
        return f"the tail holds {rows:,} rows, as many as one settle takes"
    if any(threshold is not None for _, threshold, _, _ in thresholds):
        return None
    if age_seconds >= _TAIL_SECONDS_MAX:
        return f"the tail is {age_seconds:,} seconds old, and other Delta readers see nothing of it until it is settled"
    marked, vector_bytes = _marked(snapshot, tail, statistics)
    costs = marked * _MARK_BYTES + vector_bytes * _VECTOR_COST
    if costs <= (size + len(tail) * _TAIL_PART_BYTES) * _TAIL_READS:
        return f"settling {rows:,} changes marks at most {marked:,} parts, which costs less than reading the tail does"
    return None


def _marked(snapshot: Snapshot, tail: Sequence[ChangePart], statistics: StatisticsCache) -> tuple[int, int]:
    """How many base parts settling may mark, and the bytes of their vectors, which are written again.

    Parts are marked whose keys meet the tail's, and no more than there are changes. Which of those that meet is not known, so
    their vectors count by the share that may be marked.
    """
    columns = order_columns(snapshot.schema, snapshot.settings.keys, ())
    parts = list(snapshot.parts.values())
    count = len(parts)
    found = statistics.ranges([part.stats for part in parts] + [part.stats for part in tail], columns)
    lower, upper = found.lower[:count], found.upper[:count]
    begun = np.searchsorted(np.sort(lower), found.upper[count:], side="right")
    ended = np.searchsorted(np.sort(upper), found.lower[count:], side="left")
    rows = np.array([part.rows for part in tail], dtype=np.int64)
    marked = min(int(np.minimum(rows, begun - ended).sum()), count)
    meets = (lower <= found.upper[count:].max()) & (upper >= found.lower[count:].min())
    vectors = (parts[at].deletion_vector for at in np.flatnonzero(meets).tolist())
    vector_bytes = sum(vector.bytes for vector in vectors if vector)
    return marked, vector_bytes * marked // max(marked, int(meets.sum()), 1)


class Held(Protocol):
    """What one merge wrote to the local disk. ``oldest_ms``: when the first of the merges behind it was made."""

    @property
    def bytes(self) -> int: ...

    @property
    def oldest_ms(self) -> int: ...


_Held = TypeVar("_Held", bound=Held)


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadRules:
    """Says when a part on a local disk is uploaded: when it is old, or the largest ones when there are too many bytes."""

    age_seconds: float
    local_bytes_max: int

    def due(self, held: Sequence[_Held], now_ms: int) -> list[_Held]:
        """The parts that are due, in the order in which to upload them."""
        chosen = [one for one in held if now_ms - one.oldest_ms >= self.age_seconds * 1000]
        rest = sorted((one for one in held if one not in chosen), key=lambda one: one.bytes)
        while rest and sum(one.bytes for one in rest) > self.local_bytes_max:
            chosen.append(rest.pop())
        return chosen


def uploaded_plans(planning: Planning, below: Set[str]) -> list[MergePlan]:
    """Those plans for readers elsewhere that run now. ``below``: paths of the parts that parts on the local disk stand for.

    These are not purged or sorted again alone: they will be merged soon, and what stands for them would have to be made again.
    """
    return [plan for plan in planning.merges if plan.kind is MergeKind.MERGE or below.isdisjoint(plan.inputs)]


@dataclass(frozen=True, slots=True)
class Pressure:
    """``factor`` 1: none. ``reason``: the figure that exceeds its bound most; empty if none does."""

    factor: float = 1.0
    reason: str = ""

    def delay_seconds(self, batch_seconds: float) -> float:
        """How long to wait before the next batch, given how long one takes."""
        return min(DELAY_SECONDS_MAX, batch_seconds * (self.factor - 1))

    def limit(self, rows: int) -> int:
        """How many rows the next batch may have, given how many it had without pressure."""
        return max(1, int(rows / self.factor))


def pressure(snapshot: Snapshot) -> Pressure:
    """How far the table is beyond what readers can bear. Pure.

    Counted are the rows and parts of the tail, which each view resolves, and level-0 parts of the fullest partition, against
    ``SMALL_PARTS_PER_BUDGET`` times the read budget. Claimed parts are not: a replica merges them, or has merged them and
    not uploaded yet.
    """
    claimed = {path for claim in claims_of(snapshot.domains).values() for path in claim.sources}
    levels_0 = Counter(
        part.partition_key for part in snapshot.parts.values() if part.level == 0 and part.path not in claimed
    )
    parts_max = SMALL_PARTS_PER_BUDGET * snapshot.settings.read_budget
    found = {
        "tail_rows": sum(part.rows for part in snapshot.tail.values()) / _TAIL_ROWS_MAX,
        "tail_parts": len(snapshot.tail) / TAIL_PARTS_MAX,
        "level_0_parts": max(levels_0.values(), default=0) / parts_max if snapshot.settings.merge != "off" else 0.0,
    }
    reason = max(found, key=lambda name: found[name])
    if found[reason] <= 1:
        return Pressure()
    return Pressure(min(_FACTOR_MAX, found[reason]), reason)
