"""Merge policies: which of the runs over one point of the sort key are merged into one.

A policy sees the sizes of the runs (live bytes, largest first), the read budget k and the size of a flush, and returns a
slice of them, or None. It knows no parts, so the same rules serve tables with and without an order.

**binomial** (the default) writes nearly the least for the budget. Largest first, run i may be followed by k − i others. It is
merged with all that is smaller as soon as the smaller ones are together as large as the binomial schedule lets them become;
a run of C(d + b − 1, b) flushes, b being its budget with itself, waits for C(d + b − 1, b − 1) of them. Flushes of one size give
exactly the schedule that is optimal at n = C(d + k, k) − 1 for every d; sizes in between are interpolated, so that runs may have
lost rows, and flushes may differ. Sources: Mathieu, Staelin, Young, Yousefi, "Bigtable Merge Compaction"; the binomial policy in
Mao, Jacobs, Amjad, Hristidis, Tsotras, Young, "Comparison and evaluation of state-of-the-art LSM merge policies" (VLDB J. 2021).

**binomial_above** is for merges that stay on a local disk. The largest runs, half of the budget, cost most to merge and change
least, so they stay as the store has them.

**size_tiered** merges FAN runs of about one size. **lazy_leveled** (Dayan, Idreos, "Dostoevsky", SIGMOD 2018) does so too, but
keeps one largest run, into which it merges what has grown to a FAN-th of it. Both merge the smallest runs when over the budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from lakebed.settings import MergePolicy

FAN = 4

Policy = Callable[[Sequence[float], int, float], slice | None]


def binomial(sizes: Sequence[float], budget: int, flush_size: float) -> slice | None:
    """What to merge now that there are more runs than the budget; None while there are not."""
    if len(sizes) <= budget:
        return None
    above = sum(sizes)
    for place, size in enumerate(sizes[: budget - 1]):
        above -= size
        if above >= flush_size * (_allowance(size / flush_size, budget - place) - 0.5):
            return slice(place, len(sizes))
    return slice(budget - 1, len(sizes))


def binomial_above(sizes: Sequence[float], budget: int, flush_size: float) -> slice | None:
    """As binomial, but the largest runs, half of the budget, stay as they are."""
    if len(sizes) <= budget:
        return None
    apart = budget // 2
    found = binomial(sizes[apart:], budget - apart, flush_size)
    return found and slice(found.start + apart, found.stop + apart)


def _allowance(run: float, budget: int) -> float:
    """How many flushes may lie over a run of so many flushes, before they are merged into it."""
    below, depth = 1, 1  # C(depth + budget − 1, budget)
    while True:
        next_below = below * (depth + budget) // depth
        if run < next_below:
            break
        below, depth = next_below, depth + 1
    here, there = below * budget / depth, next_below * budget / (depth + 1)
    share = max(0.0, (run - below) / (next_below - below))
    return here + (there - here) * share


def size_tiered(sizes: Sequence[float], budget: int, flush_size: float) -> slice | None:
    """The smallest tier that is full; else the smallest runs if there are more than the budget."""
    end = len(sizes)
    while end >= FAN:
        tier = _tier(sizes[end - 1], flush_size)
        start = end - 1
        while start > 0 and _tier(sizes[start - 1], flush_size) == tier:
            start -= 1
        if end - start >= FAN:
            return slice(start, end)
        end = start
    if len(sizes) > budget:
        return slice(max(0, len(sizes) - max(FAN, len(sizes) - budget + 1)), len(sizes))
    return None


def _tier(size: float, flush_size: float) -> int:
    return round(math.log(max(size / flush_size, 1.0), FAN))


def lazy_leveled(sizes: Sequence[float], budget: int, flush_size: float) -> slice | None:
    """As size_tiered above the largest run; with it when what would be merged is a FAN-th of it."""
    chosen = size_tiered(sizes[1:], max(1, budget - 1), flush_size)
    if chosen is None:
        return slice(0, len(sizes)) if len(sizes) > budget else None
    merged = sum(sizes[1:][chosen])
    if not sizes or merged * FAN >= sizes[0]:
        return slice(0, len(sizes))
    return slice(chosen.start + 1, chosen.stop + 1)


POLICIES: dict[MergePolicy, Policy] = {
    "off": binomial,
    "auto": binomial,
    "bin-pack": binomial,
    "tiered": size_tiered,
    "leveled": lazy_leveled,
}
"""By the value of ``lakebed.merge``. ``recluster`` is none of these: it chooses groups of parts, not of runs (``recluster``)."""
