"""One partition's parts on the line of their sort keys: runs, depth, and what lies over a point.

1. The ends of all ranges are sorted once; end number r lies at the coordinate 2r, the space after it at 2r + 1. A part covers
   what is between its ends; one of a single key covers that. So parts that only touch do not lie over each other.
2. A run is a set of parts of one block range that do not overlap: what one merge wrote, or one commit. Where two of a run
   touch, or overlap by no more than the resolution of statistics, one ends where the other begins: a run counts once.
3. Parts at work (claimed, or inputs of a plan that was just accepted) count together as the one run that they become.
   Full parts whose rows statistics can't separate do not count: no merge makes them shallower.
4. Depth at every coordinate is one cumulative sum.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from lakebed.log.actions import Part, PartitionKey
from lakebed.settings import TableSettings
from lakebed.sortkey.ranges import Indexes, Range, Ranked, is_point

Flags = npt.NDArray[np.bool_]
SMALL = 0.5
"""A part that is less full than this is small: two of them make one."""
_BY_BLOCK = attrgetter("min_block", "max_block", "path")


@dataclass(frozen=True, slots=True)
class Place:
    """Neighbouring coordinates ``start`` to ``end`` that are too deep; ``point`` is the deepest of them, the leftmost of such."""

    start: int
    end: int
    point: int
    depth: int


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """The free parts over a place's point and the live bytes of their runs within the place, largest first.

    ``within``: all free parts that reach into the place.
    """

    place: Place
    indexes: Indexes
    sizes: list[float]
    within: Indexes


class OverlapMap:
    """The parts of one partition."""

    def __init__(
        self,
        partition: PartitionKey,
        parts: Sequence[Part],
        ranges: Ranked | None,
        claimed: Collection[str],
        settings: TableSettings,
    ) -> None:
        """``ranges`` None: the table has no order, so nothing lies over anything."""
        self.partition = partition
        keys = list(map(_BY_BLOCK, parts))
        order = sorted(range(len(parts)), key=keys.__getitem__)
        self.parts = parts = [parts[index] for index in order]
        self.is_ordered = ranges is not None
        if ranges is None:
            side_by_side = np.arange(len(parts))
            apart = [Range((1, place), (1, place + 0.5)) for place in range(len(parts))]
            ranges = Ranked(apart, 2 * side_by_side, 2 * side_by_side + 1)
        else:
            ranges = ranges.take(order)
        self.bytes = _column(parts, "bytes")
        self.level = _column(parts, "level")
        self.newest = _column(parts, "max_block")
        self.live_bytes, self.full = _live_and_full(parts, self.bytes, settings)
        self._place(ranges)
        self.constant = self.full >= SMALL
        for index in np.flatnonzero(self.constant).tolist():
            self.constant[index] = _is_constant(parts[index], ranges.ranges[index])
        self.busy = np.zeros(len(parts), dtype=bool)
        if claimed:
            self.busy[:] = [part.path in claimed for part in parts]
        self.free = ~self.busy & ~self.constant
        flushes = self.live_bytes[self.level == 0]
        flush_bytes = np.median(flushes) if len(flushes) else self.live_bytes.min(initial=1.0)
        self.flush_bytes = max(1.0, float(flush_bytes))
        self._left_alone = np.zeros(self.width, dtype=bool)
        self.given_up = np.zeros(self.width, dtype=bool)
        self._along: Indexes | None = None
        self.depth = self.cover(self.free)
        self.under_work = self.cover(self.busy) > 0

    def _place(self, found: Ranked) -> None:
        is_end = np.zeros(max(found.lower.max(initial=-1), found.upper.max(initial=-1)) + 1, dtype=bool)
        is_end[found.lower] = is_end[found.upper] = True
        at = 2 * (np.cumsum(is_end) - 1)
        self.width = 2 * int(np.count_nonzero(is_end)) + 1
        self.one_key = found.lower == found.upper
        self.low, self.high = at[found.lower] + ~self.one_key, at[found.upper] - ~self.one_key
        # By block, then along the line. Where none of a block overlaps the one before it, they are one run.
        oldest = _column(self.parts, "min_block")
        block = np.zeros(len(self.parts), dtype=np.int64)
        block[1:] = np.cumsum((np.diff(oldest) != 0) | (np.diff(self.newest) != 0))
        order = np.lexsort((self.high, self.low, block))
        block = block[order]
        firsts = np.flatnonzero(np.diff(block, prepend=-1))
        self.run = np.empty(len(self.parts), dtype=np.int64)
        self.run[order] = order[firsts][block]
        same = block[1:] == block[:-1]
        before, after = order[:-1][same], order[1:][same]
        crossed = np.unique(block[1:][same][self.low[after] <= self.high[before]])
        touching = after[(self.high[before] == self.low[after] - 2) & ~np.isin(block[1:][same], crossed)]
        self.low[touching] -= 1  # no gap in the run
        stops = np.append(firsts[1:], len(order))
        low, high, run = self.low.tolist(), self.high.tolist(), self.run.tolist()
        for start, stop in zip(firsts[crossed].tolist(), stops[crossed].tolist(), strict=True):
            _find_runs(order[start:stop].tolist(), low, high, run, found.ranges)
        self.low, self.run = np.array(low, dtype=np.int64), np.array(run, dtype=np.int64)

    def cover(self, which: Flags) -> Indexes:
        """At each coordinate, how many of these parts lie over it."""
        begins = np.bincount(self.low[which], minlength=self.width)
        ends = np.bincount(self.high[which] + 1, minlength=self.width)
        return np.cumsum(begins - ends[: self.width])

    @property
    def depth_max(self) -> int:
        """The deepest point as readers meet it now, in runs: with parts at work and those that no merge can separate."""
        return int(self.cover(np.ones(len(self.parts), dtype=bool)).max(initial=0))

    @property
    def depth_to_be(self) -> int:
        """The deepest point when what is at work is done, in runs; what no merge can change aside."""
        return int((self.depth + self.under_work).max(initial=0))

    def take(self, indexes: Indexes) -> None:
        """From now on these parts, which are free, are at work."""
        for low, high in zip(self.low[indexes].tolist(), self.high[indexes].tolist(), strict=True):
            self.depth[low : high + 1] -= 1
            self.under_work[low : high + 1] = True
        self.free[indexes] = False
        self.busy[indexes] = True

    def leave_alone(self, place: Place) -> None:
        """The place is not looked at again: nothing can be done there now."""
        self._left_alone[place.start : place.end + 1] = True

    def give_up(self, indexes: Indexes) -> None:
        """There is nothing to do where all of these parts lie, now or later."""
        where = slice(int(self.low[indexes].max()), int(self.high[indexes].min()) + 1)
        self._left_alone[where] = self.given_up[where] = True

    def set_apart(self, indexes: Indexes) -> None:
        """These parts, which are free, count from now on as if no merge could separate their rows."""
        self.free[indexes] = False
        self.constant[indexes] = True
        self.depth = self.cover(self.free)

    def parts_at(self, indexes: Indexes) -> list[Part]:
        return [self.parts[index] for index in indexes.tolist()]

    def deepest(self, depth_min: int, count: int) -> list[Place]:
        """Up to ``count`` of the deepest places, leftmost first: ``depth_min`` runs or more, at least two of them free."""
        total = self.depth + self.under_work
        deep = (total >= depth_min) & (self.depth >= 2) & ~self._left_alone
        total[~deep] = 0
        greatest = int(total.max(initial=0))
        points = np.flatnonzero(total == greatest) if greatest else np.zeros(0, dtype=np.int64)
        found: list[Place] = []
        at = 0
        while at < len(points) and len(found) < count:
            point = int(points[at])
            start, end = point - _leading(deep[:point][::-1]), point + _leading(deep[point:]) - 1
            found.append(Place(start, end, point, greatest))
            at = int(np.searchsorted(points, end, side="right"))
        return found

    def stack(self, place: Place) -> Stack:
        """What lies over the place's point."""
        within = np.flatnonzero(self.free & (self.low <= place.end) & (self.high >= place.start))
        _, run = np.unique(self.run[within], return_inverse=True)
        sizes = np.bincount(run, weights=self.live_bytes[within])[run]
        is_over = (self.low[within] <= place.point) & (self.high[within] >= place.point)
        over, sizes = within[is_over], sizes[is_over]
        paths = [self.parts[index].path for index in over.tolist()]
        entries = zip((-sizes).tolist(), self.newest[over].tolist(), paths, range(len(over)), strict=True)
        order = [number for *_, number in sorted(entries)]
        return Stack(place, over[order], sizes[order].tolist(), within)

    def window(self, stack: Stack, chosen: Indexes, bytes_max: int) -> Indexes | None:
        """Those parts of the chosen parts' runs within the place that may be merged together in one plan.

        The chosen ones first, then what continues them to the right and to the left without a gap (a gap would make the
        output lie where no input lay), while it fits. None if not even the chosen ones fit.
        """
        total = int(self.bytes[chosen].sum())
        if total > bytes_max:
            return None
        taken = chosen.tolist()
        low, high = int(self.low[chosen].min()), int(self.high[chosen].max())
        of_runs, is_other = np.zeros(len(self.parts), dtype=bool), np.ones(len(self.parts), dtype=bool)
        of_runs[self.run[chosen]], is_other[chosen] = True, False
        others = stack.within[of_runs[self.run[stack.within]] & is_other[stack.within]]
        right = others[self.low[others] > stack.place.point]
        for index in right[np.lexsort((right, self.high[right], self.low[right]))].tolist():
            if self.low[index] > high + 2 or total + self.bytes[index] > bytes_max:
                break
            taken.append(index)
            total, high = total + int(self.bytes[index]), max(high, int(self.high[index]))
        left = others[self.high[others] < stack.place.point]
        for index in left[np.lexsort((left, -self.low[left], -self.high[left]))].tolist():
            if self.high[index] < low - 2 or total + self.bytes[index] > bytes_max:
                break
            taken.append(index)
            total, low = total + int(self.bytes[index]), min(low, int(self.low[index]))
        return np.array(sorted(taken), dtype=np.int64)

    def is_whole(self, indexes: Indexes) -> bool:
        """Whether the runs of these parts have no other free part between the outermost ends of these."""
        left, right = int(self.low[indexes].min()), int(self.high[indexes].max())
        between = self.free & (self.low <= right) & (self.high >= left)
        between[indexes] = False
        return not np.isin(self.run[between], self.run[indexes]).any()

    def small_rows(self) -> Iterator[Indexes]:
        """Two or more free small parts that follow each other with no larger one between, longest row first, oldest end first.

        Without an order: all free small parts.
        """
        if not self.is_ordered:
            yield np.flatnonzero(self.free & (self.full < SMALL))
            return
        if self._along is None:
            self._along = np.lexsort((self.newest, self.high, self.low))
        order = self._along[~self.busy[self._along]]
        small = (self.full[order] < SMALL) & self.free[order]
        edges = np.flatnonzero(np.diff(np.concatenate(([False], small, [False])).astype(np.int8)))
        starts, ends = edges[::2], edges[1::2]
        for number in np.argsort(starts - ends, kind="stable").tolist():
            row = order[starts[number] : ends[number]]
            half = len(row) // 2
            if not half:
                return
            yield row[::-1] if self.newest[row[:half]].max() > self.newest[row[half:]].max() else row


def _find_runs(
    members: Sequence[int], low: list[int], high: Sequence[int], run: list[int], ranges: Sequence[Range]
) -> None:
    """Of a block of which some parts overlap, given along the line: as few runs as will do, and where each part now begins."""
    runs: list[tuple[int, int]] = []  # of each run: where it ends and its last part, in this order
    for index in members:
        run[index] = index
        place = bisect_left(runs, (low[index], -1))
        if place < len(runs) and is_point(ranges[index].lower, ranges[runs[place][1]].upper):
            end, last = runs.pop(place)
            low[index] = min(max(low[index], end + 1), high[index])
            run[index] = run[last]
        elif place > 0:
            end, last = runs.pop(place - 1)
            run[index] = run[last]
            if end == low[index] - 2:  # they touch: no gap in the run
                low[index] -= 1
        insort(runs, (high[index], index))


def fullness(part: Part, settings: TableSettings) -> float:
    """The part's bytes or rows over those that merges aim at, whichever is nearer: of what a merge would write again.

    These are its live rows, and deletes that are kept for late changes: else parts full of them would be merged forever.
    """
    rows = max(0, part.live_rows) + (part.deletes if settings.sequence_by else 0)
    written_bytes = part.bytes * rows / part.rows if part.rows > 0 else part.bytes
    return max(written_bytes / settings.target_part_bytes, rows / settings.target_part_rows)


def _column(parts: Sequence[Part], name: str) -> Indexes:
    return np.fromiter(map(attrgetter(name), parts), np.int64, len(parts))


def _live_and_full(
    parts: Sequence[Part], size: Indexes, settings: TableSettings
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """``Part.live_bytes`` and ``fullness`` of many parts."""
    rows, live = _column(parts, "rows"), np.maximum(0, _column(parts, "live_rows"))
    kept = live + _column(parts, "deletes") if settings.sequence_by else live
    bytes_a_row = size / np.maximum(1, rows)
    written = np.where(rows > 0, bytes_a_row * kept, size)
    full = np.maximum(written / settings.target_part_bytes, kept / settings.target_part_rows)
    return np.where(rows > 0, bytes_a_row * live, size), full


def _leading(flags: Flags) -> int:
    """How many are true before the first that is not."""
    return len(flags) if flags.all() else int(flags.argmin())


def _is_constant(part: Part, item: Range) -> bool:
    # A level-0 part without bounds may be another writer's: a merge gives it bounds, if its type has any.
    return item.is_constant and (item.is_bounded or part.level > 0)
