"""How well parts are clustered, level by level: overlaps, depth, and the deepest ranges. Pure.

The *overlaps* of a part are how many other parts its range meets. Its *depth* is how many parts, itself included, cover the
deepest point within its range. Averages are over parts. Snowflake's ``SYSTEM$CLUSTERING_INFORMATION`` and Databend's
``clustering_information`` define these figures so; here they count parts.

1. The ends of the ranges are sorted; ranges are closed. How many ranges cover each end is a running sum. O(n log n).
2. A part's depth is the maximum of that within its range. A table holds the maxima over windows of powers of two; the depth is
   the greater maximum of two windows that cover the range.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lakebed.sortkey.ranges import Range, overlaps

_DEEPEST = 5
_EXACT_UP_TO = 16


@dataclass(frozen=True, slots=True)
class Placed:
    """A part and its range in its partition. ``sorted``: its rows are known to be in the order of the sort key."""

    level: int
    partition: object
    range: Range
    sorted: bool


@dataclass(frozen=True, slots=True)
class DeepRange:
    """Neighbouring points of one partition that all have this depth."""

    partition: object
    range: Range
    depth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Clustering:
    """``constant``: parts whose rows all have one sort key. ``unsorted``: order or range unknown.

    ``histogram``: parts by depth; depths over 16 are counted under the next power of two.
    """

    parts: int = 0
    constant: int = 0
    unsorted: int = 0
    average_overlaps: float = 0.0
    average_depth: float = 0.0
    max_depth: int = 0
    histogram: Mapping[int, int] | None = None
    deepest: tuple[DeepRange, ...] = ()


def clustering(parts: Sequence[Placed]) -> Clustering:
    """The figures of all these parts together; parts of different partitions never meet."""
    if not parts:
        return Clustering(histogram={})
    by_partition: dict[object, list[Range]] = {}
    for part in parts:
        by_partition.setdefault(part.partition, []).append(part.range)
    meetings = 0
    depths: list[int] = []
    deepest: list[DeepRange] = []
    for partition, ranges in by_partition.items():
        meetings += sum(overlaps(ranges))
        line = _Line(ranges)
        depths += line.depths()
        deepest += [DeepRange(partition, found, deep) for found, deep in line.deepest()]
    deepest.sort(key=lambda found: -found.depth)
    return Clustering(
        parts=len(parts),
        constant=sum(part.range.is_bounded and part.range.is_constant for part in parts),
        unsorted=sum(not part.sorted or not part.range.is_bounded for part in parts),
        average_overlaps=meetings / len(parts),
        average_depth=sum(depths) / len(depths),
        max_depth=max(depths),
        histogram=dict(sorted(Counter(map(_bucket, depths)).items())),
        deepest=tuple(deepest[:_DEEPEST]),
    )


def _bucket(depth: int) -> int:
    return depth if depth <= _EXACT_UP_TO else 1 << (depth - 1).bit_length()


def greatest_within(
    values: npt.NDArray[np.int64], first: npt.NDArray[np.int64], last: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The greatest of the values from each ``first`` to its ``last`` place, both included."""
    windows = [values]
    while (width := 1 << len(windows)) <= len(values):
        end = len(values) - width + 1
        windows.append(np.maximum(windows[-1][:end], windows[-1][width // 2 :][:end]))
    out = np.empty(len(first), dtype=np.int64)
    sizes = np.frexp(last - first + 1)[1] - 1
    for size in np.unique(sizes):
        chosen = sizes == size
        found = windows[size]
        out[chosen] = np.maximum(found[first[chosen]], found[last[chosen] - (1 << int(size)) + 1])
    return out


class _Line:
    """Ranges of one partition by their ends."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        lowers = sorted(item.lower for item in ranges)
        uppers = sorted(item.upper for item in ranges)
        self._points = sorted({*lowers, *uppers})
        # Closed ranges: one that ends at a point still covers it.
        self._covers = np.array(
            [bisect_right(lowers, point) - bisect_left(uppers, point) for point in self._points], dtype=np.int64
        )
        at = {point: place for place, point in enumerate(self._points)}
        self._first = np.array([at[item.lower] for item in ranges], dtype=np.int64)
        self._last = np.array([at[item.upper] for item in ranges], dtype=np.int64)

    def depths(self) -> list[int]:
        """The depth of each range."""
        depths: list[int] = greatest_within(self._covers, self._first, self._last).tolist()
        return depths

    def deepest(self) -> list[tuple[Range, int]]:
        """The deepest ranges of neighbouring points of equal depth, deepest first; only those deeper than one."""
        edges = np.flatnonzero(np.diff(self._covers)) + 1
        starts = np.concatenate(([0], edges))
        ends = np.concatenate((edges, [len(self._covers)])) - 1
        order = np.lexsort((starts, -self._covers[starts]))[:_DEEPEST]
        return [
            (Range(self._points[starts[place]], self._points[ends[place]]), int(self._covers[starts[place]]))
            for place in order
            if self._covers[starts[place]] > 1
        ]
