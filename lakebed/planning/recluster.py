"""Reclustering: which parts of a level are sorted together, so that fewer of them lie over a point. Pure.

A part's level is how many times its rows were merged. So that no row is merged over and over, parts of different levels are
never chosen together, and what becomes of them goes to the next level.

1. Levels in order, 0 first. A level whose average depth (over its parts, among themselves) is within the threshold is left.
2. Else its deepest point. If not all parts over it fit into a plan: as many of neighbouring ranges as fit, the ones that share
   the most of the line per byte. So there are a few large windows where a level is deep everywhere, and runs of as many
   parts as fit where every part spans the whole line: together they are the two passes of an external merge sort.
3. Neighbours are added, next ones first, while they fit and pay: they overlap the group and are too deep themselves, or are
   small and overlap or touch it.
4. Again, with what is left of the level, until it is within the threshold; then the next level.

Parts at work will leave their level, so they are not counted. Full parts whose rows statistics can't tell apart count as level
−1: they are left alone. Depth is ``Layout``'s: parts that only touch, or that one merge wrote side by side, don't lie over each
other.

It ends, whatever statistics say, because each group lowers the ``measure``; parts that can't are set apart. Before that, every
level is within its threshold, if bounds are exact. Count, for each gap between two neighbouring keys, the parts that reach over
it, all levels taken together. A group reaches over its stretch of the line without a hole, and what becomes of it reaches over
each gap of it once: so no count rises. If two parts of the group that have more than one key lie over the point of step 2, one
count falls. Else the parts over it are of one key each, the same (one part of more keys among them is left out), and not full; at
most one part that is not full comes out: the number of such parts falls.

The selection is that of Databend's ``ALTER TABLE … RECLUSTER`` (RFC "Recluster Table"; levels as in an LSM tree, average depth
against a threshold, deepest point ranges, constant blocks), after Snowflake's automatic clustering. Steps 2 and 3, and the bound
on what a group reads, are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lakebed.manifest.actions import Part
from lakebed.planning.overlap import SMALL, Layout
from lakebed.planning.plan import Cause
from lakebed.settings import ReclusterDepth
from lakebed.sortkey.clustering import greatest_within
from lakebed.sortkey.ranges import Indexes

INPUTS_MAX = 512
_Flags = npt.NDArray[np.bool_]
Lowers = Callable[[Sequence[Part]], bool]
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
    layout: Layout, threshold: ReclusterDepth, bytes_max: int, lowers: Lowers, inputs_max: int = INPUTS_MAX
) -> Iterator[Group]:
    """The groups of a partition, best first, the next one each time chosen from what is still free.

    Who accepts a group takes its members (``Layout.take``) before asking for the next; one not taken is not offered again.
    """
    for level in np.unique(layout.level[layout.free]).tolist():
        yield from _groups_of(layout, level, threshold, bytes_max, lowers, inputs_max)


def level_depths(layout: Layout) -> dict[int, tuple[int, float]]:
    """Of each level: how many parts there are that could be chosen, and their average depth."""
    out = {}
    for level in np.unique(layout.level[layout.free]).tolist():
        found = _depths(layout, layout.free & (layout.level == level))
        out[level] = len(found), float(found.mean())
    return out


def overdue(layout: Layout, threshold: ReclusterDepth) -> Indexes:
    """The free parts of levels that are too deep."""
    deep = [
        level
        for level, (_, average) in level_depths(layout).items()
        if average > threshold.of_level(_parts_of(layout, level))
    ]
    return np.flatnonzero(layout.free & np.isin(layout.level, deep))


def _parts_of(layout: Layout, level: int) -> int:
    """The level's parts, those at work too, so that a share of them stays the same while groups are taken."""
    return int(np.count_nonzero((layout.level == level) & ~layout.constant))


def _depths(layout: Layout, which: _Flags) -> Indexes:
    """How deep each of these parts lies among them."""
    return greatest_within(layout.cover(which), layout.low[which], layout.high[which])


def _groups_of(
    layout: Layout, level: int, threshold: ReclusterDepth, bytes_max: int, lowers: Lowers, inputs_max: int
) -> Iterator[Group]:
    allowed = threshold.of_level(_parts_of(layout, level))
    left_alone = np.zeros(layout.width, dtype=bool)
    while True:
        of_level = layout.free & (layout.level == level)
        if np.count_nonzero(of_level) < 2:
            return
        depths = _depths(layout, of_level)
        average = float(depths.mean())
        if average <= allowed:
            return
        alike, several = layout.cover(of_level & layout.one_key), layout.cover(of_level & ~layout.one_key)
        cover = np.where(((alike > 1) | (several > 1)) & ~left_alone, alike + several, 0)
        point = int(cover.argmax())
        deepest = int(cover[point])
        if not deepest:
            return
        over = np.flatnonzero(of_level & (layout.low <= point) & (layout.high >= point))
        members = _that_gain(layout, _of_those_over(layout, _that_gain(layout, over), bytes_max, inputs_max))
        if not len(members):
            left_alone[layout.low[over].max() : layout.high[over].min() + 1] = True
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
        if not lowers(layout.parts_at(members)):
            layout.set_apart(members)
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
            too_deep = np.zeros(len(layout.parts), dtype=bool)
            too_deep[np.flatnonzero(of_level)[depths > allowed]] = True
            wider = _with_neighbours(layout, members, of_level, too_deep, bytes_max, inputs_max)
            members = wider if lowers(layout.parts_at(wider)) else members
        yield Group(
            level=level,
            members=np.sort(members),
            level_depth=average,
            threshold=allowed,
            depth_before=deepest,
            depth_after=deepest - at_point + 1,
        )
        if layout.free[members].any():
            left_alone[layout.low[members].min() : layout.high[members].max() + 1] = True


def _that_gain(layout: Layout, over: Indexes) -> Indexes:
    """Without a part that is alone in having more than one key; nothing if one part is left."""
    several = over[~layout.one_key[over]]
    kept = over if len(several) != 1 else over[layout.one_key[over]]
    return kept if len(kept) > 1 else kept[:0]


def _of_those_over(layout: Layout, over: Indexes, bytes_max: int, inputs_max: int) -> Indexes:
    """Step 2: of the parts over a point, all if they fit, else the window of neighbours by range that gains most a byte."""
    if not len(over):
        return over
    size = layout.bytes[over]
    over = over[size + size.min() <= bytes_max]  # with the others it could not be merged at all
    if len(over) <= inputs_max and layout.bytes[over].sum() <= bytes_max:
        return over if len(over) > 1 else over[:0]
    over = over[np.lexsort((over, layout.high[over], layout.low[over]))]
    low, high = layout.low[over], layout.high[over]
    below = np.concatenate(([0], np.cumsum(layout.bytes[over])))
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
    layout: Layout, members: Indexes, available: _Flags, too_deep: _Flags, bytes_max: int, inputs_max: int
) -> Indexes:
    """Step 3, to the right and then to the left. Ends of parts are even coordinates: two parts touch if they share one."""
    taken = members.tolist()
    room = bytes_max - int(layout.bytes[members].sum())
    low, high = int(layout.low[members].min()), int(layout.high[members].max())
    available = available.copy()
    available[members] = False
    others = np.flatnonzero(available)
    small = layout.full < SMALL
    for index in others[np.lexsort((others, layout.high[others], layout.low[others]))].tolist():
        if layout.high[index] < low:
            continue
        overlaps, touches = layout.low[index] <= high, layout.low[index] <= high + 1 + high % 2
        if not touches or layout.bytes[index] > room or len(taken) >= inputs_max:
            break
        if small[index] or (overlaps and too_deep[index]):
            taken.append(index)
            available[index] = False
            room -= int(layout.bytes[index])
            low, high = min(low, int(layout.low[index])), max(high, int(layout.high[index]))
    others = np.flatnonzero(available)
    for index in others[np.lexsort((others, -layout.low[others], -layout.high[others]))].tolist():
        if layout.low[index] > high:
            continue
        overlaps, touches = layout.high[index] >= low, layout.high[index] >= low - 1 - low % 2
        if not touches or layout.bytes[index] > room or len(taken) >= inputs_max:
            break
        if small[index] or (overlaps and too_deep[index]):
            taken.append(index)
            room -= int(layout.bytes[index])
            low, high = min(low, int(layout.low[index])), max(high, int(layout.high[index]))
    return np.array(taken, dtype=np.int64)
