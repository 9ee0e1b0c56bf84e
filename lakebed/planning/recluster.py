"""Reclustering: which parts of a level are sorted together, so that fewer of them lie over a point. Pure.

A part's level is how many times its rows were merged. So that no row is merged over and over, parts of different levels are
never chosen together, and their output goes to the next level.

1. Levels are taken in order, 0 first. A level whose average depth (over its parts, among themselves) is within the threshold is
   skipped.
2. Otherwise the parts over its deepest point are taken. If they do not all fit into a plan, as many neighbours by range are taken
   as fit: those that share the most of the line per byte. Where a level is deep everywhere, this gives a few large windows; where
   every part spans the whole line, it gives runs of as many parts as fit. Together they are the two passes of an external merge
   sort.
3. Neighbours are added, next ones first, while they fit and pay: they overlap the group and are too deep themselves, or are
   small and overlap or touch it.
4. Again, with what is left of the level, until it is within the threshold; then the next level.

Parts at work will leave their level, so they are not counted. Nor are full parts whose rows statistics can't separate: they are
skipped. Depth is ``OverlapMap``'s: parts that only touch, or that one merge wrote side by side, don't lie
over each other.

It ends, whatever statistics say, because each group lowers the measure of ``admission``; parts that can't are set apart. Before
that, every level is within its threshold, if bounds are exact. Count, for each gap between two neighbouring keys, the parts that
reach over it, all levels taken together. A group covers its piece of the line without a hole, and its output reaches over each
gap of it once: so no count rises. If two parts of the group that have more than one key lie over the point of step 2, one count
falls. Else the parts over it are of one key each, the same (one part of more keys among them is left out), and not full; at most
one part that is not full comes out: the number of such parts falls.

The selection is that of Databend's ``ALTER TABLE … RECLUSTER`` (RFC "Recluster Table"; levels as in an LSM tree, average depth
against a threshold, deepest point ranges, constant blocks), after Snowflake's automatic clustering. Steps 2 and 3, and the bound
on what a group reads, are ours.

**Resorting** (``resort_plans``): which parts of an earlier sort key are sorted together by the table's, and in what order. Pure.

1. Those read most come first, whichever their partition; else partition by partition, the oldest first. A read of a part reads
   its bytes, so how often it is read is what sorting it again can save for each byte that this rewrites, whatever its size.
2. A group is the first part that is left, and those of its partition that lie over it as the new order has them, or are small,
   while they fit into a plan. A part that is read is only grouped with parts that are read at least half as often, so that
   parts that nobody reads do not delay it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lakebed.log.actions import Part, PartitionKey
from lakebed.log.snapshot import Snapshot
from lakebed.planning.overlap import SMALL, OverlapMap, fullness
from lakebed.planning.plan import Cause, MergeKind, MergePlan, partition_order
from lakebed.settings import ReclusterDepth
from lakebed.sortkey.ranges import Indexes, Range, greatest_within
from lakebed.sortkey.statistics_cache import StatisticsCache

INPUTS_MAX = 512
_Flags = npt.NDArray[np.bool_]
_Lowers = Callable[[Sequence[Part]], bool]
"""Whether a merge of these parts lowers the measure (``Measure.is_lowered_by``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Parts of one level to be sorted together, by their places in the layout. Depths are the level's, at the deepest point.

    ``level_depth``: the level's average when the group was chosen. ``members`` is empty if there is a reason to leave the parts
    of this place alone: ``refused``.
    """

    level: int
    members: Indexes
    level_depth: float
    threshold: float
    depth_before: int
    depth_after: int
    refused: Cause | None = None


def groups(
    overlap_map: OverlapMap, threshold: ReclusterDepth, bytes_max: int, lowers: _Lowers, inputs_max: int = INPUTS_MAX
) -> Iterator[Group]:
    """The groups of a partition, best first, the next one each time chosen from what is still free.

    The caller that accepts a group takes its members (``OverlapMap.take``) before it asks for the next. A group that is not
    taken is not offered again.
    """
    for level in np.unique(overlap_map.level[overlap_map.free]).tolist():
        yield from _groups_of(overlap_map, level, threshold, bytes_max, lowers, inputs_max)


def level_depths(overlap_map: OverlapMap) -> dict[int, tuple[int, float]]:
    """For each level, how many parts could be chosen, and their average depth."""
    out = {}
    for level in np.unique(overlap_map.level[overlap_map.free]).tolist():
        found = _depths(overlap_map, overlap_map.free & (overlap_map.level == level))
        out[level] = len(found), float(found.mean())
    return out


def overdue(overlap_map: OverlapMap, threshold: ReclusterDepth) -> Indexes:
    """The free parts of levels that are too deep."""
    deep = [
        level
        for level, (_, average) in level_depths(overlap_map).items()
        if average > threshold.of_level(_parts_of(overlap_map, level))
    ]
    return np.flatnonzero(overlap_map.free & np.isin(overlap_map.level, deep))


def _parts_of(overlap_map: OverlapMap, level: int) -> int:
    """The level's parts, those at work too, so that a share of them stays the same while groups are taken."""
    return int(np.count_nonzero((overlap_map.level == level) & ~overlap_map.constant))


def _depths(overlap_map: OverlapMap, which: _Flags) -> Indexes:
    """How deep each of these parts lies among them."""
    return greatest_within(overlap_map.cover(which), overlap_map.low[which], overlap_map.high[which])


def _groups_of(
    overlap_map: OverlapMap, level: int, threshold: ReclusterDepth, bytes_max: int, lowers: _Lowers, inputs_max: int
) -> Iterator[Group]:
    allowed = threshold.of_level(_parts_of(overlap_map, level))
    left_alone = np.zeros(overlap_map.width, dtype=bool)
    while True:
        of_level = overlap_map.free & (overlap_map.level == level)
        if np.count_nonzero(of_level) < 2:
            return
        depths = _depths(overlap_map, of_level)
        average = float(depths.mean())
        if average <= allowed:
            return
        alike, several = (
            overlap_map.cover(of_level & overlap_map.one_key),
            overlap_map.cover(of_level & ~overlap_map.one_key),
        )
        cover = np.where(((alike > 1) | (several > 1)) & ~left_alone, alike + several, 0)
        point = int(cover.argmax())
        deepest = int(cover[point])
        if not deepest:
            return
        over = np.flatnonzero(of_level & (overlap_map.low <= point) & (overlap_map.high >= point))
        members = _that_gain(
            overlap_map, _of_those_over(overlap_map, _that_gain(overlap_map, over), bytes_max, inputs_max)
        )
        if not len(members):
            left_alone[overlap_map.low[over].max() : overlap_map.high[over].min() + 1] = True
            yield Group(
                level=level,
                members=members,
                level_depth=average,
                threshold=allowed,
                depth_before=deepest,
                depth_after=deepest,
                refused=Cause.PLAN_BYTES,
            )
            continue
        if not lowers(overlap_map.parts_at(members)):
            overlap_map.set_apart(members)
            yield Group(
                level=level,
                members=members[:0],
                level_depth=average,
                threshold=allowed,
                depth_before=deepest,
                depth_after=deepest,
                refused=Cause.NO_GAIN,
            )
            continue
        at_point = len(members)
        if at_point == len(over):
            too_deep = np.zeros(len(overlap_map.parts), dtype=bool)
            too_deep[np.flatnonzero(of_level)[depths > allowed]] = True
            wider = _with_neighbours(overlap_map, members, of_level, too_deep, bytes_max, inputs_max)
            members = wider if lowers(overlap_map.parts_at(wider)) else members
        yield Group(
            level=level,
            members=np.sort(members),
            level_depth=average,
            threshold=allowed,
            depth_before=deepest,
            depth_after=deepest - at_point + 1,
        )
        if overlap_map.free[members].any():
            left_alone[overlap_map.low[members].min() : overlap_map.high[members].max() + 1] = True


def _that_gain(overlap_map: OverlapMap, over: Indexes) -> Indexes:
    """Without a part that is alone in having more than one key; nothing if one part is left."""
    several = over[~overlap_map.one_key[over]]
    kept = over if len(several) != 1 else over[overlap_map.one_key[over]]
    return kept if len(kept) > 1 else kept[:0]


def _of_those_over(overlap_map: OverlapMap, over: Indexes, bytes_max: int, inputs_max: int) -> Indexes:
    """Step 2: of the parts over a point, all if they fit, else the window of neighbours by range that gains most a byte."""
    if not len(over):
        return over
    size = overlap_map.bytes[over]
    over = over[size + size.min() <= bytes_max]  # with the others it could not be merged at all
    if len(over) <= inputs_max and overlap_map.bytes[over].sum() <= bytes_max:
        return over if len(over) > 1 else over[:0]
    over = over[np.lexsort((over, overlap_map.high[over], overlap_map.low[over]))]
    low, high = overlap_map.low[over], overlap_map.high[over]
    below = np.concatenate(([0], np.cumsum(overlap_map.bytes[over])))
    starts = np.arange(len(over))
    stops = np.searchsorted(below, below[:-1] + bytes_max, side="right") - 1
    stops = np.minimum(stops, starts + inputs_max)
    width = np.concatenate(([0], np.cumsum(high - low + 1)))
    shared = width[stops] - width[starts] - (greatest_within(high, starts, stops - 1) - low + 1)
    gain = np.where(stops - starts > 1, shared / np.maximum(1, below[stops] - below[starts]), -1.0)
    best = int(gain.argmax()) if len(gain) else 0
    if not len(gain) or gain[best] < 0:
        return over[:0]
    return over[best : stops[best]]


def _with_neighbours(
    overlap_map: OverlapMap, members: Indexes, available: _Flags, too_deep: _Flags, bytes_max: int, inputs_max: int
) -> Indexes:
    """Step 3, to the right and then to the left. Ends of parts are even coordinates: two parts touch if they share one."""
    taken = members.tolist()
    room = bytes_max - int(overlap_map.bytes[members].sum())
    low, high = int(overlap_map.low[members].min()), int(overlap_map.high[members].max())
    available = available.copy()
    available[members] = False
    others = np.flatnonzero(available)
    small = overlap_map.full < SMALL
    for index in others[np.lexsort((others, overlap_map.high[others], overlap_map.low[others]))].tolist():
        if overlap_map.high[index] < low:
            continue
        overlaps, touches = overlap_map.low[index] <= high, overlap_map.low[index] <= high + 1 + high % 2
        if not touches or overlap_map.bytes[index] > room or len(taken) >= inputs_max:
            break
        if small[index] or (overlaps and too_deep[index]):
            taken.append(index)
            available[index] = False
            room -= int(overlap_map.bytes[index])
            low, high = min(low, int(overlap_map.low[index])), max(high, int(overlap_map.high[index]))
    others = np.flatnonzero(available)
    for index in others[np.lexsort((others, -overlap_map.low[others], -overlap_map.high[others]))].tolist():
        if overlap_map.low[index] > high:
            continue
        overlaps, touches = overlap_map.high[index] >= low, overlap_map.high[index] >= low - 1 - low % 2
        if not touches or overlap_map.bytes[index] > room or len(taken) >= inputs_max:
            break
        if small[index] or (overlaps and too_deep[index]):
            taken.append(index)
            room -= int(overlap_map.bytes[index])
            low, high = min(low, int(overlap_map.low[index])), max(high, int(overlap_map.high[index]))
    return np.array(taken, dtype=np.int64)


_LOOKED_AT = 2 * INPUTS_MAX  # of the parts that are next, for each group
_ALIKE = 0.5


def resort_plans(
    snapshot: Snapshot, stale: Sequence[Part], reads: Mapping[str, int], statistics: StatisticsCache
) -> Iterator[MergePlan]:
    """Plans that sort these parts by the table's sort key, first to last. None for a table without an order.

    ``reads``: how often parts were read in the last hour, by path; ``statistics``: what was read of parts' statistics before.
    """
    settings = snapshot.settings
    if not settings.order_by:
        return
    columns = snapshot.order_terms
    waiting: dict[PartitionKey, list[tuple[Part, Range, bool]]] = {}
    in_turn = sorted(stale, key=lambda part: (-reads.get(part.path, 0), part.min_block, part.max_block, part.path))
    ranges = statistics.ranges([part.stats for part in in_turn], columns).ranges
    for part, range_ in zip(in_turn, ranges, strict=True):
        entry = part, range_, fullness(part, settings) < SMALL
        waiting.setdefault(part.partition_key, []).append(entry)

    def turn(partition: PartitionKey) -> tuple[int, list[tuple[str, bool, str]], PartitionKey]:
        first, _, _ = waiting[partition][0]
        return -reads.get(first.path, 0), partition_order(partition), partition

    turns = [turn(partition) for partition in waiting]
    heapq.heapify(turns)
    while turns:
        _, _, partition = heapq.heappop(turns)
        rest = waiting[partition]
        first, reach, _ = rest[0]
        first_reads = reads.get(first.path, 0)
        chosen, room, lower, upper = [first], settings.plan_bytes_max - first.bytes, reach.lower, reach.upper
        left = []
        for entry in rest[1:_LOOKED_AT]:
            part, item, is_small = entry
            joins = is_small or (item.lower <= upper and item.upper >= lower)
            joins = joins and reads.get(part.path, 0) >= first_reads * _ALIKE
            if joins and part.bytes <= room and len(chosen) < INPUTS_MAX:
                chosen.append(part)
                room -= part.bytes
                lower, upper = min(lower, item.lower), max(upper, item.upper)
            else:
                left.append(entry)
        waiting[partition] = left + rest[_LOOKED_AT:]
        if waiting[partition]:
            heapq.heappush(turns, turn(partition))
        why = f"sorted by an earlier sort key; the table's is version {settings.sort_key_version}"
        if first_reads:
            why += f"; read {first_reads:,} {'times' if first_reads > 1 else 'time'} in the last hour"
        yield MergePlan.of(MergeKind.RESORT, partition, chosen, depth_before=len(chosen), depth_after=1, why=why)
