"""Ranges of parts over the sort key, and their depth: how many of them cover a point.

1. A part's range is two flat tuples over the leading terms of the sort key, made from its statistics: no row is before the
   lower one, and none after the upper one. A value is (1, value), NaN (1.25, None), a null (0, None) where nulls are first and
   (1.5, None) where they are last; a bound that is missing ends the lower tuple and puts (2,), above everything, into the upper.
   Values of a descending term are mirrored, so that the greatest comes first: numbers negated, NaN (0.5, None), bytes see
   ``_MirroredBytes``.
2. Statistics of parts that we sorted have the first and the last key (``ORDER_BOUNDS``). For other parts the bounds
   of the columns are combined: they hold, but are wide where the first column's values change. They also bound functions that
   grow with their column.
3. Depth: a sweep over the ends of the ranges, sorted once; ranges are closed. O(n log n).
"""

from __future__ import annotations

import datetime
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.sortkey.order_values import corners
from lakebed.sortkey.sort_key import SortTerm, parse_sort_key
from lakebed.sortkey.statistics import has_bounds, highest, lowest, parsed_stats

Bound = tuple[Any, ...]
Indexes = npt.NDArray[np.int64]
ORDER_BOUNDS = "sortKeyBounds"
"""In a part's statistics: ``columns``, the names of terms, and the values of them that no row is before (``lower``) or after."""
_NULL_FIRST = (0, None)
_NULL_LAST = (1.5, None)
TOP = (2,)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_EPOCH_DAY = _EPOCH.toordinal()
_HIGHEST_CHARACTER = "\U0010ffff".encode()
_RESOLUTION = datetime.timedelta(milliseconds=3)  # a minimum cut down, a maximum raised twice


@dataclass(frozen=True, slots=True)
class Range:
    """A closed range of sort keys: every row of a part is in it. ``lower`` is () and ``upper`` is (2,) if unbounded."""

    lower: Bound = ()
    upper: Bound = TOP

    @property
    def is_bounded(self) -> bool:
        return bool(self.lower) and self.upper != TOP

    @property
    def is_constant(self) -> bool:
        """Whether statistics can't separate its rows: all are equal, or equal as far as bounds are kept."""
        return is_point(self.lower, self.upper)


@dataclass(frozen=True, slots=True, eq=False)
class Ranked:
    """Ranges of one order, and the ranks of their ends: numbers that are equal, less or greater as the ends are."""

    ranges: Sequence[Range]
    lower: Indexes
    upper: Indexes

    def take(self, places: Sequence[int] | Indexes) -> Ranked:
        """Those at some places, in this order."""
        where = np.asarray(places, dtype=np.int64)
        return Ranked([self.ranges[place] for place in where.tolist()], self.lower[where], self.upper[where])


@dataclass(frozen=True, slots=True)
class Depth:
    """How many ranges cover each point at which one begins or ends.

    ``histogram``: number of such points by their depth. All is 0 or empty for no ranges.
    """

    max: int = 0
    average: float = 0.0
    histogram: Mapping[int, int] = field(default_factory=dict)


class _MirroredBytes(bytes):
    """Bytes that sort in the reverse order of the plain ones.

    A zero byte becomes 00 FF, 00 00 marks the end, and all is complemented: a text's beginning comes after the text.
    """

    @classmethod
    def of(cls, plain: bytes) -> _MirroredBytes:
        return cls((plain.replace(b"\0", b"\0\xff") + b"\0\0").translate(_COMPLEMENT))

    def plain(self) -> bytes:
        return self.translate(_COMPLEMENT)[:-2].replace(b"\0\xff", b"\0")


class _MirroredMoment(int):
    """A point in time that sorts in reverse order: microseconds before 1970."""

    @classmethod
    def of(cls, plain: datetime.datetime) -> _MirroredMoment:
        return cls((_EPOCH - plain) // datetime.timedelta(microseconds=1))

    def plain(self) -> datetime.datetime:
        return _EPOCH - datetime.timedelta(microseconds=self)


_COMPLEMENT = bytes(range(255, -1, -1))
_MIRRORED = (_MirroredBytes, _MirroredMoment)


def order_columns(
    schema: pa.Schema, order_by: Sequence[str], partition_by: Sequence[str], frame: str = ""
) -> tuple[SortTerm, ...]:
    """The leading terms of the order that ranges are made of: up to the first whose type has no bounds.

    Terms of partition columns alone are left out: they are the same in all rows that are ever compared. ``frame``: the table's
    property ``lakebed.sort_key_frame``.
    """
    terms = []
    for term in parse_sort_key(order_by, schema, frame):
        if set(term.columns) <= set(partition_by):
            continue
        if not has_bounds(term.type):
            break
        terms.append(term)
    return tuple(terms)


def range_of(stats: str | None, columns: tuple[SortTerm, ...]) -> Range:
    """The range of a part with these statistics (Delta's JSON). For many parts of a table there is ``StatisticsCache``."""
    return Range() if stats is None else range_in(parsed_stats(stats), columns, [term.name for term in columns])


def range_in(values: Mapping[str, Any], columns: tuple[SortTerm, ...], names: Sequence[str]) -> Range:
    """``range_of`` for statistics that are parsed; ``names``: those of the terms."""
    if not columns:
        return Range()
    recorded = values.get(ORDER_BOUNDS)
    if recorded and recorded["columns"][: len(columns)] == names:
        end = _recorded_bound(recorded["upper"], columns)
        return Range(_recorded_bound(recorded["lower"], columns), end if len(end) == 2 * len(columns) else (*end, *TOP))
    lower: Bound = ()
    upper: Bound = ()
    lower_ends = upper_ends = False
    for term in columns:
        first, last = _curve_ends(values, term) if term.is_curve else _ends(values, term)
        if not lower_ends:
            lower_ends = first is None
            lower += first or ()
        if not upper_ends:
            upper_ends = last is None
            upper += last or TOP
        if lower_ends and upper_ends:
            break
    return Range(lower, upper) if lower <= upper else Range()  # else the statistics make no sense


def _recorded_bound(values: Sequence[Any], columns: tuple[SortTerm, ...]) -> Bound:
    out: Bound = ()
    for value, term in zip(values, columns, strict=False):
        out += _null(term) if value is None else _placed(lowest(value, term.type), term)
    return out


NAN, NAN_MIRRORED = (1.25, None), (0.5, None)  # after all values and before a null that is last; the other way round


def _null(term: SortTerm) -> Bound:
    return _NULL_LAST if term.nulls_last else _NULL_FIRST


def _placed(value: Any, term: SortTerm) -> Bound:
    if value != value:  # NaN is the greatest number
        return NAN_MIRRORED if term.is_descending else NAN
    return (1, mirrored(value) if term.is_descending else value)


def mirrored(value: Any) -> Any:
    """The mirrored value of a descending term: the greater of two values has the lesser mirrored value."""
    if isinstance(value, bytes):
        return _MirroredBytes.of(value)
    if isinstance(value, datetime.datetime):
        return _MirroredMoment.of(value)
    if isinstance(value, datetime.date):
        return -value.toordinal()
    return value.copy_negate() if isinstance(value, Decimal) else -value


def plain_value(value: Any, term: SortTerm) -> Any:
    """The value of the term that a bound holds, mirrored back."""
    if not term.is_descending:
        return value
    if isinstance(value, (_MirroredBytes, _MirroredMoment)):
        return value.plain()
    return datetime.date.fromordinal(-value) if pa.types.is_date(term.type) else mirrored(value)


def _ends(stats: Mapping[str, Any], term: SortTerm) -> tuple[Bound | None, Bound | None]:
    """The least and the greatest value of this term, from the bounds of its column; None where there are none."""
    rows, null_count = stats.get("numRecords"), (stats.get("nullCount") or {}).get(term.columns[0])
    if null_count is not None and null_count == rows:
        return _null(term), _null(term)
    low, high = _column_bounds(stats, term.columns[0], term.kinds[0]) if term.is_monotone else (None, None)
    ends = [None if value is None else _placed(_applied(value, term), term) for value in (low, high)]
    first, last = reversed(ends) if term.is_descending else ends
    if null_count != 0 and not term.nulls_last and first is not None:
        first = _NULL_FIRST
    if null_count != 0 and term.nulls_last and last is not None:
        last = _NULL_LAST
    return first, last


def _applied(value: Any, term: SortTerm) -> Any:
    """The value of the term for a bound of its column, as ``order_values`` has it for rows."""
    match term.function:
        case "date":
            return value.date() if isinstance(value, datetime.datetime) else value
        case "year":
            return value.year - _EPOCH.year
        case "month":
            return (value.year - _EPOCH.year) * 12 + value.month - 1
        case "day":
            return value.toordinal() - _EPOCH_DAY
        case "hour":
            return (value - _EPOCH) // datetime.timedelta(hours=1)
        case "substr":
            return value.decode()[: term.numbers[1]].encode()
    return value


def _curve_ends(stats: Mapping[str, Any], term: SortTerm) -> tuple[Bound | None, Bound | None]:
    """The corners of the box that the bounds of a Z-order's columns span."""
    if not term.is_monotone:
        return None, None
    nulls = stats.get("nullCount") or {}
    bounds = [_column_bounds(stats, name, kind) for name, kind in zip(term.columns, term.kinds, strict=True)]
    if all(low is None for low, _ in bounds):
        return None, None
    lows = [low if nulls.get(name) == 0 else None for (low, _), name in zip(bounds, term.columns, strict=True)]
    try:
        first, last = corners(term, lows, [high for _, high in bounds])
    except (pa.ArrowException, OverflowError):  # another writer's statistics
        return None, None
    return (1, first), (1, last)


def _column_bounds(stats: Mapping[str, Any], name: str, kind: pa.DataType) -> tuple[Any, Any]:
    low, high = (stats.get("minValues") or {}).get(name), (stats.get("maxValues") or {}).get(name)
    return _bound(low, kind, lowest), _bound(high, kind, highest)


def _bound(bound: Any, kind: pa.DataType, value_of: Any) -> Any:
    if bound is None or not has_bounds(kind):
        return None
    try:
        value = value_of(bound, kind)
    except (ValueError, TypeError, AttributeError):  # another writer's way to write it, or a year that Python lacks
        return None
    if pa.types.is_integer(kind) and not isinstance(value, int):
        return None
    return None if value != value else value


def is_point(lower: Bound, upper: Bound) -> bool:
    """Whether statistics can't separate a row at one bound from a row at the other, because all that is known is equal."""
    low: Any
    high: Any
    for low, high in zip(lower, upper, strict=False):
        if low == high:
            continue
        if isinstance(low, _MIRRORED) and isinstance(high, _MIRRORED):
            low, high = high.plain(), low.plain()
        if isinstance(low, bytes) and isinstance(high, bytes):
            if high != low + _HIGHEST_CHARACTER:
                return False
        elif isinstance(low, datetime.datetime) and isinstance(high, datetime.datetime):
            if not datetime.timedelta() <= high - low <= _RESOLUTION:
                return False
        else:
            return False
    return True


def overlaps(ranges: Sequence[Range]) -> list[int]:
    """For each range, how many others it meets."""
    lowers = sorted(item.lower for item in ranges)
    uppers = sorted(item.upper for item in ranges)
    # All but those that begin after its end and those that end before its beginning, and itself.
    return [bisect_right(lowers, item.upper) - bisect_left(uppers, item.lower) - 1 for item in ranges]


def depth(ranges: Sequence[Range]) -> Depth:
    """The depth at every end of a range."""
    if not ranges:
        return Depth()
    begins = Counter(item.lower for item in ranges)
    ends = Counter(item.upper for item in ranges)
    histogram: Counter[int] = Counter()
    covering = 0
    for point in sorted(begins.keys() | ends.keys()):
        covering += begins[point]
        histogram[covering] += 1
        covering -= ends[point]
    points = histogram.total()
    average = sum(deep * count for deep, count in histogram.items()) / points
    return Depth(max(histogram), average, dict(sorted(histogram.items())))


# -- How well parts are clustered, level by level --------------------------------------------------------------------------
#
# The *overlaps* of a part are how many other parts its range meets. Its *depth* is how many parts, itself included, cover the
# deepest point within its range. Averages are over parts. Snowflake's ``SYSTEM$CLUSTERING_INFORMATION`` and Databend's
# ``clustering_information`` define these figures so; here they count parts.
#
# 1. The ends of the ranges are sorted; ranges are closed. How many ranges cover each end is a running sum. O(n log n).
# 2. A part's depth is the maximum of that within its range. A table holds the maxima over windows of powers of two; the depth
#    is the greater maximum of two windows that cover the range.


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
