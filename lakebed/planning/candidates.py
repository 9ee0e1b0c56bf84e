"""Candidate merges: what would make reads of each partition cheaper, best first. Pure.

1. Where more than ``lakebed.read_budget`` runs lie over a point of the sort key, the policy decides which of them become one
   (``policies``). Their parts around that point are the inputs, as many as ``lakebed.plan_bytes_max`` allows, the smallest runs
   if not all (``overlap``). Where that would leave out parts of the chosen runs, the output would lie over these again. Then
   neighbouring runs that fit as a whole are merged instead, if there are any: those that become one of several times their
   size, else as large a multiple as possible, for the fewest bytes a run.
2. Small parts side by side are counted likewise: at most ``lakebed.read_budget`` in a row. A row that fills a part becomes one,
   else the policy chooses. Without an order all parts lie over each other, so only this rule is of use.
3. With ``lakebed.merge`` = ``recluster`` levels and their average depth decide: see ``recluster``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from lakebed.log.actions import PartitionKey
from lakebed.log.snapshot import Snapshot
from lakebed.planning.admission import Admission
from lakebed.planning.overlap import SMALL, Flags, OverlapMap, Place, Stack, fullness
from lakebed.planning.plan import Cause, Goal, MergeKind, MergePlan, partition_order
from lakebed.planning.policies import FAN, POLICIES, Policy, binomial, binomial_above
from lakebed.planning.recluster import INPUTS_MAX, Group, groups
from lakebed.settings import TableSettings
from lakebed.sortkey.ranges import Indexes, Ranked
from lakebed.sortkey.statistics_cache import StatisticsCache

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
        runs_max = settings.read_budget if POLICIES[settings.merge] is binomial else min(FAN - 1, settings.read_budget)
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
    depth_min = budget + 1 if policy is binomial else min(FAN, budget + 1)
    if admission.goal is Goal.HERE:
        policy = binomial_above
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
                -min(sum(sizes) / max(1.0, sizes[0]), FAN),
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
