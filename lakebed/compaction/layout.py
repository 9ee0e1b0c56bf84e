"""One partition's parts on the line of their sort keys: runs, depth, and what lies over a point.

1. The ends of all ranges are sorted once; end number r stands at the coordinate 2r, the space after it at 2r + 1. A part covers
   what is between its ends; one of a single key covers that. So parts that only touch do not lie over each other.
2. A run is a set of parts of one block range that do not overlap: what one merge wrote, or one commit. Where two of a run
   touch, or overlap by no more than the resolution of statistics, one ends where the other begins: a run counts once.
3. Parts at work (claimed, or taken by a plan of this round) count as one run together: what will come of them.
   Full parts whose rows statistics can't tell apart are left out: no merge makes them shallower.
4. Depth at every coordinate is one cumulative sum.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lakebed.manifest.actions import Part
from lakebed.settings import TableSettings
from lakebed.sortkey.ranges import Range, is_point

Indexes = npt.NDArray[np.int64]
SMALL = 0.5
"""A part that is less full than this is small: two of them make one."""


@dataclass(frozen=True, slots=True)
class Place:
    """Neighbouring coordinates ``start`` to ``end`` that are too deep; ``point`` is the deepest of them, the leftmost of such."""

    start: int
    end: int
    point: int
    depth: int


class Layout:
    """The parts of one partition. ``take`` is its only change of state."""

    def __init__(
        self,
        partition: tuple[tuple[str, str | None], ...],
        parts: Sequence[Part],
        ranges: Sequence[Range] | None,
        claimed: Collection[str],
        settings: TableSettings,
    ) -> None:
        """``ranges`` None: the table has no order, so nothing lies over anything."""
        self.partition = partition
        order = sorted(
            range(len(parts)), key=lambda index: (parts[index].min_block, parts[index].max_block, parts[index].path)
        )
        parts = [parts[index] for index in order]
        self.is_ordered = ranges is not None
        ranges = [ranges[index] for index in order] if ranges else None
        if ranges is None:
            ranges = [Range((1, place), (1, place + 0.5)) for place in range(len(parts))]
        self.parts = parts
        self.live_bytes = np.array([live_bytes(part) for part in parts])
        self.full = np.array([fullness(part, settings) for part in parts])
        self.bytes = np.array([part.bytes for part in parts], dtype=np.int64)
        self.level = np.array([part.level for part in parts], dtype=np.int64)
        self.newest = np.array([part.max_block for part in parts], dtype=np.int64)
        self._place(ranges)
        constant = np.array([_is_constant(part, item) for part, item in zip(parts, ranges, strict=True)], dtype=bool)
        self.constant = constant & (self.full >= SMALL)
        self.busy = np.array([part.path in claimed for part in parts], dtype=bool)
        self.free = ~self.busy & ~self.constant
        flushes = self.live_bytes[self.level == 0]
        self.flush_bytes = max(1.0, float(np.median(flushes if len(flushes) else self.live_bytes)))
        self._left_alone = np.zeros(self.width, dtype=bool)
        self._measure()

    def _place(self, ranges: Sequence[Range]) -> None:
        ends = sorted({item.lower for item in ranges} | {item.upper for item in ranges})
        at = {end: 2 * number for number, end in enumerate(ends)}
        self.width = 2 * len(ends) + 1
        low, high = [], []
        for item in ranges:
            start, end = at[item.lower], at[item.upper]
            low.append(start if start == end else start + 1)
            high.append(end if start == end else end - 1)
        self.one_key = np.array([item.lower == item.upper for item in ranges], dtype=bool)
        run = list(range(len(ranges)))
        blocks: dict[tuple[int, int], list[int]] = {}
        for index, part in enumerate(self.parts):
            blocks.setdefault((part.min_block, part.max_block), []).append(index)
        for members in blocks.values():
            if len(members) < 2:
                continue
            members.sort(key=lambda index: (low[index], high[index], self.parts[index].path))
            runs: list[tuple[int, int]] = []  # of each run: where it ends and its last part, in this order
            for index in members:
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
        self.low = np.array(low, dtype=np.int64)
        self.high = np.array(high, dtype=np.int64)
        self.run = np.array(run, dtype=np.int64)

    def _measure(self) -> None:
        self.depth = self.cover(self.free)
        self.under_work = self.cover(self.busy) > 0

    def cover(self, which: npt.NDArray[np.bool_]) -> Indexes:
        """At each coordinate, how many of these parts lie over it."""
        begins = np.bincount(self.low[which], minlength=self.width)
        ends = np.bincount(self.high[which] + 1, minlength=self.width)
        return np.cumsum(begins - ends[: self.width])

    @property
    def depth_max(self) -> int:
        """The deepest point as readers meet it now, in runs: parts at work and those that no merge can tell apart included."""
        return int(self.cover(np.ones(len(self.parts), dtype=bool)).max(initial=0))

    @property
    def depth_to_be(self) -> int:
        """The deepest point when what is at work is done, in runs; what no merge can change aside."""
        return int((self.depth + self.under_work).max(initial=0))

    def take(self, indexes: Indexes) -> None:
        """These parts are at work from now on."""
        self.free[indexes] = False
        self.busy[indexes] = True
        self._measure()

    def leave_alone(self, place: Place) -> None:
        """The place is not looked at again: nothing can be done there now."""
        self._left_alone[place.start : place.end + 1] = True

    def places(self, depth_min: int) -> list[Place]:
        """Where there are at least so many runs, deepest first; two at least of them free."""
        total = self.depth + self.under_work
        deep = (total >= depth_min) & (self.depth >= 2) & ~self._left_alone
        edges = np.flatnonzero(np.diff(np.concatenate(([False], deep, [False])).astype(np.int8)))
        starts, ends = edges[::2], edges[1::2] - 1
        found = []
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            point = start + int(total[start : end + 1].argmax())
            found.append(Place(start, end, point, int(total[point])))
        return sorted(found, key=lambda place: (-place.depth, place.start))

    def stack(self, place: Place) -> tuple[Indexes, list[float]]:
        """The free parts over the place's point, and the live bytes of their runs within the place; largest first."""
        over = np.flatnonzero(self.free & (self.low <= place.point) & (self.high >= place.point)).tolist()
        within = self.free & (self.low <= place.end) & (self.high >= place.start)
        sizes = np.bincount(self.run[within], weights=self.live_bytes[within], minlength=len(self.parts))[self.run]
        over.sort(key=lambda index: (-sizes[index], self.newest[index], self.parts[index].path))
        return np.array(over, dtype=np.int64), [float(sizes[index]) for index in over]

    def window(self, place: Place, chosen: Indexes, bytes_max: int) -> Indexes | None:
        """Those parts of the chosen parts' runs within the place that may be merged together in one plan.

        The chosen ones first, then what continues them to the right and to the left without a gap (a gap would make the
        output lie where no input lay), while it fits. None if not even the chosen ones fit.
        """
        total = int(self.bytes[chosen].sum())
        if total > bytes_max:
            return None
        taken = set(chosen.tolist())
        low, high = int(self.low[chosen].min()), int(self.high[chosen].max())
        within = self.free & (self.low <= place.end) & (self.high >= place.start)
        others = [index for index in np.flatnonzero(within & np.isin(self.run, self.run[chosen])).tolist()]
        others = [index for index in others if index not in taken]
        for index in sorted(others, key=lambda index: (self.low[index], self.high[index], index)):
            if self.low[index] <= place.point:
                continue
            if self.low[index] > high + 2 or total + self.bytes[index] > bytes_max:
                break
            taken.add(index)
            total, high = total + int(self.bytes[index]), max(high, int(self.high[index]))
        for index in sorted(others, key=lambda index: (-self.high[index], -self.low[index], index)):
            if self.high[index] >= place.point:
                continue
            if self.high[index] < low - 2 or total + self.bytes[index] > bytes_max:
                break
            taken.add(index)
            total, low = total + int(self.bytes[index]), min(low, int(self.low[index]))
        return np.array(sorted(taken), dtype=np.int64)

    def small_rows(self) -> list[Indexes]:
        """Free small parts that follow each other with no larger one between; each as a row, oldest end first.

        Without an order: all free small parts.
        """
        if not self.is_ordered:
            return [np.flatnonzero(self.free & (self.full < SMALL))]
        order = np.lexsort((self.newest, self.high, self.low))
        order = order[~self.busy[order]]
        small = (self.full[order] < SMALL) & self.free[order]
        edges = np.flatnonzero(np.diff(np.concatenate(([False], small, [False])).astype(np.int8)))
        rows = []
        for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            row = order[start:end]
            half = len(row) // 2
            if half and self.newest[row[:half]].max() > self.newest[row[half:]].max():
                row = row[::-1]
            rows.append(row)
        return rows


def live_bytes(part: Part) -> float:
    """What the part's live rows take, its rows being alike."""
    if part.rows <= 0:
        return float(part.bytes)
    return part.bytes * max(0, part.live_rows) / part.rows


def fullness(part: Part, settings: TableSettings) -> float:
    """The part's bytes or rows over those that merges aim at, whichever is nearer: of what a merge would write again.

    These are its live rows, and deletes that are kept for late events: else parts full of them would be merged for ever.
    """
    rows = max(0, part.live_rows) + (part.deletes if settings.sequence_by else 0)
    written_bytes = part.bytes * rows / part.rows if part.rows > 0 else part.bytes
    return max(written_bytes / settings.target_part_bytes, rows / settings.target_part_rows)


def _is_constant(part: Part, item: Range) -> bool:
    # A level-0 part without bounds may be another writer's: a merge gives it bounds, if its type has any.
    return item.is_constant and (item.is_bounded or part.level > 0)
