"""Where parts lie on the line of sort keys, and how deep they lie over each other.

1. A part's range is two flat tuples over the leading order columns, made from its statistics: what no row is below, and
   what no row is above. A null is (0, None) and sorts first, a value is (1, value); a bound that is missing ends the lower tuple
   and puts (2,), above everything, into the upper. What a merge wrote tells its first and its last key (``ORDER_BOUNDS``). Of
   other parts column-wise bounds are put side by side: they hold, but reach far where the first column's values change.
2. Depth: a sweep over the ends of the ranges, sorted once; ranges are closed. O(n log n).
"""

from __future__ import annotations

import datetime
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow as pa

from lakebed.sortkey.statistics import has_bounds, highest, lowest, parsed_stats

Bound = tuple[Any, ...]
ORDER_BOUNDS = "sortKeyBounds"
"""In a part's statistics: ``columns``, and the values of them that its rows are not below (``lower``) nor above (``upper``)."""
_NULL = (0, None)
_TOP = (2,)
_HIGHEST_CHARACTER = "\U0010ffff".encode()
_RESOLUTION = datetime.timedelta(milliseconds=3)  # a minimum cut down, a maximum raised twice


@dataclass(frozen=True, slots=True)
class Range:
    """A closed range of sort keys: every row of a part is in it. ``lower`` is () and ``upper`` is (2,) if unbounded."""

    lower: Bound = ()
    upper: Bound = _TOP

    @property
    def is_bounded(self) -> bool:
        return bool(self.lower) and self.upper != _TOP

    @property
    def is_constant(self) -> bool:
        """Whether statistics can't tell its rows apart: all equal, or equal as far as bounds are kept."""
        return is_point(self.lower, self.upper)


@dataclass(frozen=True, slots=True)
class Depth:
    """How deep ranges lie over each other, at the points where one begins or ends.

    ``histogram``: number of such points by their depth. All is 0 or empty for no ranges.
    """

    max: int = 0
    average: float = 0.0
    histogram: Mapping[int, int] = field(default_factory=dict)


def order_columns(schema: pa.Schema, order_by: Sequence[str], partition_by: Sequence[str]) -> tuple[pa.Field, ...]:
    """The leading columns of the order that ranges are made of: up to the first whose type has no bounds.

    Partition columns are left out: they are the same in all rows that are ever compared.
    """
    columns = []
    for name in order_by:
        if name in partition_by:
            continue
        column = schema.field(name)
        if not has_bounds(column.type):
            break
        columns.append(pa.field(name, column.type))
    return tuple(columns)


def range_of(stats: str | None, columns: tuple[pa.Field, ...]) -> Range:
    """The range of a part with these statistics (Delta's JSON)."""
    return range_reader(columns)(stats)


@lru_cache(maxsize=4)
def range_reader(columns: tuple[pa.Field, ...]) -> Callable[[str | None], Range]:
    """``range_of`` for many parts; it keeps what it has read."""

    @lru_cache(maxsize=32_768)
    def read(stats: str | None) -> Range:
        return _range_of(stats, columns)

    return read


def _range_of(stats: str | None, columns: tuple[pa.Field, ...]) -> Range:
    if stats is None or not columns:
        return Range()
    values = parsed_stats(stats)
    told = values.get(ORDER_BOUNDS)
    if told and told["columns"][: len(columns)] == [column.name for column in columns]:
        end = _told_bound(told["upper"], columns)
        return Range(_told_bound(told["lower"], columns), end if len(end) == 2 * len(columns) else (*end, *_TOP))
    rows = values.get("numRecords")
    lows, highs = values.get("minValues") or {}, values.get("maxValues") or {}
    nulls = values.get("nullCount") or {}
    lower: Bound = ()
    upper: Bound = ()
    lower_ends = upper_ends = False
    for column in columns:
        low, high = _bounds(lows.get(column.name), highs.get(column.name), column.type)
        null_count = nulls.get(column.name)
        if null_count is not None and null_count == rows:
            low = high = _NULL
        elif null_count != 0 and low is not None:
            low = _NULL
        if not lower_ends:
            lower_ends = low is None
            lower += low or ()
        if not upper_ends:
            upper_ends = high is None
            upper += high or _TOP
        if lower_ends and upper_ends:
            break
    return Range(lower, upper) if lower <= upper else Range()  # else the statistics make no sense


def _told_bound(values: Sequence[Any], columns: tuple[pa.Field, ...]) -> Bound:
    out: Bound = ()
    for value, column in zip(values, columns, strict=False):
        out += _NULL if value is None else (1, lowest(value, column.type))
    return out


def _bounds(low: Any, high: Any, kind: pa.DataType) -> tuple[Bound | None, Bound | None]:
    return _bound(low, kind, lowest), _bound(high, kind, highest)


def _bound(bound: Any, kind: pa.DataType, value_of: Any) -> Bound | None:
    if bound is None:
        return None
    try:
        value = value_of(bound, kind)
    except (ValueError, TypeError, AttributeError):  # another writer's way to write it, or a year that Python lacks
        return None
    if pa.types.is_integer(kind) and not isinstance(value, int):
        return None
    if value != value:
        return None
    return (1, value)


def is_point(lower: Bound, upper: Bound) -> bool:
    """Whether no statistics can tell a row at one bound from a row at the other, all that is known being equal."""
    for low, high in zip(lower, upper, strict=False):
        if low == high:
            continue
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
