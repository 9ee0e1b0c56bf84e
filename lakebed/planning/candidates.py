"""Candidate merges: what would make reads of each partition cheaper, best first. Pure.

1. Where more than ``lakebed.read_budget`` runs lie over a point of the sort key, the policy decides which of them become one
   (see below). Their parts around that point are the inputs, as many as ``lakebed.plan_bytes_max`` allows, the smallest runs
   if not all (``overlap``). Where that would leave out parts of the chosen runs, the output would lie over these again. Then
   neighbouring runs that fit as a whole are merged instead, if there are any: those that become one of several times their
   size, else as large a multiple as possible, for the fewest bytes a run.
2. Small parts side by side are counted likewise: at most ``lakebed.read_budget`` in a row. A row that fills a part becomes one,
   else the policy chooses. Without an order all parts lie over each other, so only this rule is of use.
3. With ``lakebed.merge`` = ``recluster`` levels and their average depth decide: see ``recluster``.

**Merge policies** say which of the runs over one point of the sort key are merged into one.

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

**The least that any plan of merges writes** for n equal flushes, with at most k runs after each of them, is F(n, k).

A flush is written on its own first, then a merge may write some of the newest runs as one; so a flush that is not merged at
once costs nothing here. Look at the last time that everything was merged into one run, at flush m: before it there were
m − 1 flushes and k runs to keep them in, after it n − m flushes and k − 1 runs. Hence

    F(n, k) = min over m of F(m − 1, k) + c(m) + F(n − m, k − 1),  c(1) = 0, c(m) = m,  F(0, k) = 0,

1 ≤ m ≤ n, and no flush can be kept in no run.

Published with c(1) = 1 (Mathieu, Staelin, Young, Yousefi: "Bigtable Merge Compaction", arXiv 1407.3008),
where the memory's content itself is an input of a merge; ``first_write=1`` gives that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from lakebed.log.actions import PartitionKey
from lakebed.log.snapshot import Snapshot
from lakebed.planning.admission import Admission
from lakebed.planning.overlap import SMALL, Flags, OverlapMap, Place, Stack, fullness
from lakebed.planning.plan import Cause, Goal, MergeKind, MergePlan, partition_order
from lakebed.planning.recluster import INPUTS_MAX, Group, groups
from lakebed.settings import MergePolicy, TableSettings
from lakebed.sortkey.ranges import Indexes, Ranked
from lakebed.sortkey.statistics_cache import StatisticsCache

_FAN = 4

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


def _binomial_above(sizes: Sequence[float], budget: int, flush_size: float) -> slice | None:
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
    while end >= _FAN:
        tier = _tier(sizes[end - 1], flush_size)
        start = end - 1
        while start > 0 and _tier(sizes[start - 1], flush_size) == tier:
            start -= 1
        if end - start >= _FAN:
            return slice(start, end)
        end = start
    if len(sizes) > budget:
        return slice(max(0, len(sizes) - max(_FAN, len(sizes) - budget + 1)), len(sizes))
    return None


def _tier(size: float, flush_size: float) -> int:
    return round(math.log(max(size / flush_size, 1.0), _FAN))


def lazy_leveled(sizes: Sequence[float], budget: int, flush_size: float) -> slice | None:
    """As size_tiered above the largest run; with it when what would be merged is a FAN-th of it."""
    chosen = size_tiered(sizes[1:], max(1, budget - 1), flush_size)
    if chosen is None:
        return slice(0, len(sizes)) if len(sizes) > budget else None
    merged = sum(sizes[1:][chosen])
    if not sizes or merged * _FAN >= sizes[0]:
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


_TIES_MAX = 8
_SLICED_MAX = 32
_SHORT = 64
_Candidate = tuple[Indexes, MergePlan]
"""A plan and its parts' places in the layout."""


def overlap_maps_of(
    snapshot: Snapshot, claimed: Collection[str], settings: TableSettings, statistics: StatisticsCache
) -> tuple[list[OverlapMap], int, int]:
    """The partitions where there may be something to merge, the number of the others, and the depth of the deepest point."""
    columns = () if settings.merge == "bin-pack" else snapshot.order_terms
    everything = list(snapshot.parts.values())
    partitions: dict[PartitionKey, list[int]] = {}
    for place, part in enumerate(everything):
        partitions.setdefault(part.partition_key, []).append(place)
    found = statistics.ranges([part.stats for part in everything], columns) if columns else None
    overlap_maps, quiet, depth_max = [], 0, 0
    if settings.merge == "recluster":
        runs_max, small_max = int(settings.recluster_depth.of_level(1)), _SHORT
    else:
        runs_max = settings.read_budget if POLICIES[settings.merge] is binomial else min(_FAN - 1, settings.read_budget)
        small_max = runs_max
    for partition in sorted(partitions, key=partition_order):
        places = partitions[partition]
        parts = [everything[place] for place in places]
        if len(parts) <= _SHORT:  # few parts of many partitions: not worth arrays
            deep = _deepest(found, places) if found else 1
            if deep <= runs_max and sum(fullness(part, settings) < SMALL for part in parts) <= small_max:
                quiet, depth_max = quiet + 1, max(depth_max, deep)
                continue
        ranges = found.take(places) if found and len(partitions) > 1 else found
        overlap_map = OverlapMap(partition, parts, ranges, claimed, settings)
        overlap_maps.append(overlap_map)
        depth_max = max(depth_max, overlap_map.depth_max)
    return overlap_maps, quiet, depth_max


def _deepest(found: Ranked, places: Sequence[int]) -> int:
    """How many of these ranges lie over the deepest point; ranges are closed."""
    lower, upper = np.sort(found.lower[places]), np.sort(found.upper[places])
    return int((np.arange(1, len(lower) + 1) - np.searchsorted(upper, lower, side="left")).max(initial=0))


def why_quiet(snapshot: Snapshot) -> Cause:
    """Why there is nothing to merge in a partition."""
    match snapshot.settings.merge:
        case "off":
            return Cause.OFF
        case "recluster":
            has_order = bool(snapshot.settings.order_by)
            return Cause.WITHIN_DEPTH if has_order else Cause.NO_ORDER
        case _:
            return Cause.WITHIN_READ_BUDGET


def accept_merges(overlap_maps: Sequence[OverlapMap], admission: Admission) -> None:
    """Offer plans to the admission, partition by partition in turn, the one in most need first."""
    if admission.settings.merge == "off":
        admission.refuse(Cause.OFF, len(overlap_maps))
        return
    waiting = []
    for overlap_map in overlap_maps:
        following = candidates(overlap_map, admission)
        first = next(following, None)
        if first is None:
            admission.refuse(why_quiet(admission.snapshot))
        else:
            waiting.append((_urgency(first, overlap_map, admission), overlap_map, first, following))
    waiting.sort(key=lambda entry: entry[0])
    queue = [(overlap_map, first, following) for _, overlap_map, first, following in waiting]
    while queue:
        overlap_map, (indexes, candidate), following = queue.pop(0)
        if admission.accepts(candidate):
            overlap_map.take(indexes)
        elif admission.is_full:
            for _, (_, waits), _ in queue:
                admission.wait(Cause.IN_FLIGHT, waits)
            return
        second = next(following, None)
        if second is not None:
            queue.append((overlap_map, second, following))


def _urgency(
    candidate: _Candidate, overlap_map: OverlapMap, admission: Admission
) -> tuple[int, int, list[tuple[str, bool, str]]]:
    indexes, found = candidate
    return -found.depth_before, _tie(overlap_map, indexes, admission.settings), partition_order(overlap_map.partition)


def _tie(overlap_map: OverlapMap, indexes: Indexes, settings: TableSettings) -> int:
    if settings.merge_first == "lightest":
        return int(overlap_map.bytes[indexes].sum())
    return -int(overlap_map.newest[indexes].max())


def candidates(overlap_map: OverlapMap, admission: Admission) -> Iterator[_Candidate]:
    """The partition's plans, the next one each time made of what is still free. A plan that was refused is not proposed again."""
    if admission.settings.merge == "recluster":
        yield from _reclusters(overlap_map, admission)
        return
    policy, budget = POLICIES[admission.settings.merge], admission.settings.read_budget
    depth_min = budget + 1 if policy is binomial else min(_FAN, budget + 1)
    if admission.goal is Goal.HERE:
        policy = _binomial_above
    found_over: dict[Place, tuple[Indexes, int]] = {}
    while places := overlap_map.deepest(depth_min, _TIES_MAX):
        options = []
        for place in places:
            over = found_over.get(place) or _merge_over(overlap_map, place, policy, admission)
            if over is None:
                continue
            found_over[place] = over
            options.append((_tie(overlap_map, over[0], admission.settings), place.start, place))
        if options:
            _, _, place = min(options, key=lambda option: option[:2])
            indexes, count = found_over[place]
            why = f"{place.depth} runs overlap at a point of the sort key; {admission.budget_text}"
            yield indexes, _merge_of(overlap_map, indexes, place.depth, place.depth - count + 1, why)
            if overlap_map.free[indexes].any():
                overlap_map.leave_alone(place)
            low, high = overlap_map.low[indexes].min(), overlap_map.high[indexes].max()
            found_over = {each: over for each, over in found_over.items() if each.end < low or each.start > high}
    refused = np.zeros(len(overlap_map.parts), dtype=bool)
    while (found := _merge_row(overlap_map, policy, refused, admission)) is not None:
        yield found
        if overlap_map.free[found[0]].any():
            refused[found[0]] = True


def _merge_over(
    overlap_map: OverlapMap, place: Place, policy: Policy, admission: Admission
) -> tuple[Indexes, int] | None:
    """The merge over a place, and how many runs become one there; None if nothing can be done, and the place is left alone."""
    settings = admission.settings
    stack = overlap_map.stack(place)
    at_work = int(overlap_map.under_work[place.point])
    chosen = policy(stack.sizes, max(1, settings.read_budget - at_work), overlap_map.flush_bytes)
    if chosen is None:
        overlap_map.leave_alone(place)
        return None
    start, stop = max(chosen.start, chosen.stop - INPUTS_MAX), chosen.stop
    found = None
    while stop - start >= 2 and found is None:
        found = overlap_map.window(stack, stack.indexes[start:stop], settings.plan_bytes_max)
        if found is None or not overlap_map.is_whole(found):
            instead = _whole_runs(overlap_map, stack, admission)
            if instead is not None:
                return instead
        start += found is None
    if found is None:
        admission.refuse(Cause.PLAN_BYTES)
        overlap_map.leave_alone(place)
        return None
    smallest = stack.indexes[start:stop]
    while found is not None and not admission.measure.is_lowered_by(overlap_map.parts_at(found)):
        start -= 1  # larger runs may be of other commits
        is_possible = start >= 0 and stop - start <= INPUTS_MAX
        found = overlap_map.window(stack, stack.indexes[start:stop], settings.plan_bytes_max) if is_possible else None
    if found is None:
        admission.refuse(Cause.NO_GAIN)
        overlap_map.give_up(smallest)
        return None
    return found, stop - start


def _whole_runs(overlap_map: OverlapMap, stack: Stack, admission: Admission) -> tuple[Indexes, int] | None:
    """A merge of neighbouring runs that leaves out none of their parts where it writes, and how many they are."""
    best: tuple[tuple[float, float], Indexes, int] | None = None
    count = min(len(stack.sizes), _SLICED_MAX)
    for stop in range(len(stack.sizes), len(stack.sizes) - count + 1, -1):
        for start in range(stop - 2, len(stack.sizes) - count - 1, -1):
            found = overlap_map.window(stack, stack.indexes[start:stop], admission.settings.plan_bytes_max)
            if found is None:
                break
            sizes = stack.sizes[start:stop]
            rank = (
                -min(sum(sizes) / max(1.0, sizes[0]), _FAN),
                float(overlap_map.bytes[found].sum()) / (stop - start - 1),
            )
            if best is not None and rank >= best[0]:
                continue
            if overlap_map.is_whole(found) and admission.measure.is_lowered_by(overlap_map.parts_at(found)):
                best = rank, found, stop - start
    return best and best[1:]


def _merge_row(overlap_map: OverlapMap, policy: Policy, refused: Flags, admission: Admission) -> _Candidate | None:
    budget = admission.settings.read_budget
    for row in overlap_map.small_rows():
        if refused[row].any():
            continue
        filled = int(np.searchsorted(np.cumsum(overlap_map.full[row]), 1.0))
        if len(row) > budget and filled < len(row):
            chosen = slice(0, max(2, filled))
            why = f"{len(row)} small parts side by side, enough to fill one"
        else:
            sizes = [float(size) for size in overlap_map.live_bytes[row]]
            found = policy(sizes, budget, overlap_map.flush_bytes)
            if found is None or found.stop - found.start < 2:
                continue
            chosen = found
            why = f"{len(row)} small parts side by side; {admission.budget_text}"
        indexes = np.sort(row[chosen][-INPUTS_MAX:])
        if overlap_map.bytes[indexes].sum() > admission.settings.plan_bytes_max:
            refused[row] = True
            admission.refuse(Cause.PLAN_BYTES)
            continue
        if not admission.measure.is_lowered_by(overlap_map.parts_at(indexes)):
            refused[row] = True
            admission.refuse(Cause.NO_GAIN)
            continue
        return indexes, _merge_of(overlap_map, indexes, len(row), len(row) - len(indexes) + 1, why)
    return None


def _reclusters(overlap_map: OverlapMap, admission: Admission) -> Iterator[_Candidate]:
    if not overlap_map.is_ordered:
        return
    settings = admission.settings
    for group in groups(
        overlap_map, settings.recluster_depth, settings.plan_bytes_max, admission.measure.is_lowered_by
    ):
        if group.refused is None:
            yield group.members, recluster_of(overlap_map, group, settings)
        else:
            admission.refuse(group.refused)


def recluster_of(overlap_map: OverlapMap, group: Group, settings: TableSettings) -> MergePlan:
    """The plan that sorts a group together."""
    why = (
        f"level {group.level} is {group.level_depth:.2f} deep on average, {group.depth_before} parts over its deepest point; "
        f"lakebed.recluster_depth is {settings.recluster_depth}"
    )
    parts = overlap_map.parts_at(group.members)
    return MergePlan.of(
        MergeKind.RECLUSTER,
        overlap_map.partition,
        parts,
        depth_before=group.depth_before,
        depth_after=group.depth_after,
        why=why,
    )


def _merge_of(overlap_map: OverlapMap, indexes: Indexes, before: int, after: int, why: str) -> MergePlan:
    return MergePlan.of(
        MergeKind.MERGE,
        overlap_map.partition,
        overlap_map.parts_at(indexes),
        depth_before=before,
        depth_after=after,
        why=why,
    )


# -- The least that any plan of merges writes --------------------------------------------------------------------------


_NEVER = np.int64(1) << 60
_WINDOW = 64


def least_written(flushes: int, runs: int, first_write: int = 0) -> int:
    """F(n, k): flushes written by merges (``first_write=1``: also those written by no merge at once)."""
    return int(least_written_up_to(flushes, runs, first_write)[flushes])


def least_written_up_to(flushes: int, runs: int, first_write: int = 0) -> np.ndarray:
    """F(0 … n, k)."""
    last = np.full(flushes + 1, _NEVER, dtype=np.int64)
    last[0] = 0
    cost = np.arange(flushes + 1, dtype=np.int64)
    cost[1:2] = first_write
    for _ in range(min(runs, flushes)):
        now = np.zeros(flushes + 1, dtype=np.int64)
        best = 1
        for n in range(1, flushes + 1):
            best = _step(now, last, cost, n, best)
        last = now
    return last


def _step(now: np.ndarray, last: np.ndarray, cost: np.ndarray, n: int, before: int) -> int:
    """Fill in ``now[n]``; the best m, which never moves down as n grows and then by little."""
    start = max(1, before - _WINDOW)
    while True:
        end = min(n, before + _WINDOW)
        m = np.arange(start, end + 1)
        total = now[m - 1] + cost[m] + last[n - m]
        best = start + int(total.argmin())
        if best < before + _WINDOW or end == n:
            now[n] = total[best - start]
            return best
        before = best
