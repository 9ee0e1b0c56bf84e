"""When the tail is settled: when the table's thresholds say so, or when that is cheap. Pure.

Without thresholds: as soon as marking base parts costs less than the tail costs readers, each of whom resolves it anew; at the
latest after two minutes, because other readers see nothing of the tail.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lakebed.manifest.actions import ChangePart
from lakebed.manifest.snapshot import Snapshot
from lakebed.planning.plan import PART_READ_BYTES, SettlePlan
from lakebed.sortkey.ranges import order_columns
from lakebed.sortkey.statistics_cache import StatisticsCache

# What settling costs for each base part it marks (its action, its vector, and reading both again) and what a tail costs the
# views until the next batch, each of which resolves it anew.
_MARK_BYTES = 16 * 1024
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
    if rows >= _TAIL_ROWS_MAX:
        return f"the tail holds {rows:,} rows, as many as one settle takes"
    if any(threshold is not None for _, threshold, _, _ in thresholds):
        return None
    if age_seconds >= _TAIL_SECONDS_MAX:
        return f"the tail is {age_seconds:,} seconds old, and other Delta readers see nothing of it until it is settled"
    marked = _parts_marked(snapshot, tail, statistics)
    if marked * _MARK_BYTES <= (size + len(tail) * _TAIL_PART_BYTES) * _TAIL_READS:
        return f"settling {rows:,} changes marks at most {marked:,} parts, which costs less than reading the tail does"
    return None


def _parts_marked(snapshot: Snapshot, tail: Sequence[ChangePart], statistics: StatisticsCache) -> int:
    """How many base parts settling may mark: those whose keys meet the tail's, and no more than there are changes."""
    columns = order_columns(snapshot.schema, snapshot.settings.keys, ())
    count = len(snapshot.parts)
    texts = [part.stats for part in snapshot.parts.values()] + [part.stats for part in tail]
    found = statistics.ranges(texts, columns)
    begun = np.searchsorted(np.sort(found.lower[:count]), found.upper[count:], side="right")
    ended = np.searchsorted(np.sort(found.upper[:count]), found.lower[count:], side="left")
    rows = np.array([part.rows for part in tail], dtype=np.int64)
    return min(int(np.minimum(rows, begun - ended).sum()), count)
