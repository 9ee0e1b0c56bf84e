"""The parts of a table as bars over its sort key, level by level, on an axis with true distances. Pure.

1. A part has a lower and an upper bound of the sort key (``sortkey.ranges``). The axis is all bounds of the table, sorted. A bar
   reaches from the rank of its lower bound to the rank of its upper bound, both included. Partitions are side by side.
2. Where the first term is a number or a time, each bound has a value too, so that the page can draw distances.
3. In a table without an order all parts overlap. Then the axis is the versions whose rows the parts hold.
4. Bars of one level that overlap go into different lanes: each into the first lane that is free where the bar begins.

The bars are columns of whole numbers, with one entry per part. Parts, and bounds without values, have ids that stay the same
from version to version, so the page finds again what was chosen and what was zoomed to. It requests the path and the bounds of
a part only when it shows them, so 10,000 parts take less than a megabyte.
"""

from __future__ import annotations

import datetime
import heapq
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby
from typing import Any

import pyarrow as pa

from lakebed.log.actions import ChangePart, Part, PartitionKey
from lakebed.log.snapshot import Snapshot
from lakebed.planning.plan import partition_order
from lakebed.sortkey.ranges import Bound, Range, plain_value
from lakebed.sortkey.sort_key import SortTerm
from lakebed.sortkey.statistics_cache import StatisticsCache
from lakebed.ui.documents import cut
from lakebed.view.clustering import readable

# -- The values of bounds on a number line, for an axis with true distances ------------------------------------------------
#
# 1. It takes a first term of the sort key that is a number, a date or a moment, or the date, day or hour of one. A bound has the
#    value of this term: the number, or epoch milliseconds. The values of a descending term are negated, so that they grow with
#    the order.
# 2. Bounds that are equal in the first term and differ in others are spread over one unit of whole numbers and dates, evenly by
#    rank. Of other types they have the same value.
# 3. NULL, NaN, the infinities and what is not bounded have no value. They are put just outside, and ``marks`` names them.


STEPS = 100_000_000
"""Places are whole numbers from 0 to this."""
_MARGIN = 0.03
_DAY_MS = 86_400_000.0
_HOUR_MS = 3_600_000.0
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()


def values_of(bounds: Sequence[Bound], terms: tuple[SortTerm, ...]) -> dict[str, Any] | None:
    """The places of sorted bounds between the values ``low`` and ``high``; None if they have no values, or all the same.

    ``unit`` is number or time (epoch milliseconds); ``is_mirrored``: values are negated; ``marks``: places with their texts.
    """
    term = terms[0]
    unit = _unit(term)
    if unit is None:
        return None
    values = _spread_equal(bounds, [_value(bound, term) for bound in bounds], unit)
    known = [value for value in values if math.isfinite(value)]
    if not known or known[0] == known[-1]:
        return None
    margin = (known[-1] - known[0]) * _MARGIN
    if not math.isfinite(margin):
        return None
    has_below, has_above = values[0] == -math.inf, values[-1] == math.inf
    low, high = known[0] - margin * has_below, known[-1] + margin * has_above
    scale = STEPS / (high - low)
    marks = []
    if has_below:
        marks.append([0, _mark(bounds[0], terms)])
    if has_above:
        marks.append([STEPS, _mark(bounds[-1], terms)])
    return {
        "unit": "time" if term.function or _is_time(term.type) else "number",
        "low": low,
        "high": high,
        "is_mirrored": term.is_descending,
        "places": [round((min(max(value, low), high) - low) * scale) for value in values],
        "marks": marks,
    }


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _unit(term: SortTerm) -> float | None:
    """The distance to the next value of a term, 0 where there are values in between; None if its values are no distances."""
    if term.function:
        return {"date": _DAY_MS, "day": _DAY_MS, "hour": _HOUR_MS}.get(term.function)
    if pa.types.is_date(term.type):
        return _DAY_MS
    if pa.types.is_integer(term.type):
        return 1.0
    return 0.0 if _is_number(term.type) or _is_time(term.type) else None


def _value(bound: Bound, term: SortTerm) -> float:
    """The first value of a bound; an infinity if it has none, below or above all values by its place in the order."""
    if not bound:
        return -math.inf
    if bound[0] != 1:
        return -math.inf if bound[0] < 1 else math.inf
    number = _plain_number(plain_value(bound[1], term)) * {"day": _DAY_MS, "hour": _HOUR_MS}.get(term.function, 1.0)
    return -number if term.is_descending else number


def _plain_number(value: Any) -> float:
    if isinstance(value, datetime.datetime):
        return (value - _EPOCH) / datetime.timedelta(milliseconds=1)
    if isinstance(value, datetime.date):
        return (value.toordinal() - _EPOCH_DAY) * _DAY_MS
    assert isinstance(value, int | float | Decimal)
    return float(value)


def _spread_equal(bounds: Sequence[Bound], values: Sequence[float], unit: float) -> list[float]:
    out: list[float] = []
    for _, same in groupby(range(len(bounds)), key=lambda place: values[place]):
        places = list(same)
        out += [values[place] + unit * number / len(places) for number, place in enumerate(places)]
    return out


def _mark(bound: Bound, terms: tuple[SortTerm, ...]) -> str:
    return cut(readable(bound[:2], terms)[1:-1])


# -- The parts of a table as bars over its sort key ------------------------------------------------------------------------


PARTS_MAX = 50_000
_LABELS_MAX = 256
_PARTITIONS_MAX = 200
STATES = ("settled", "claimed", "other_order", "tail")
_End = tuple[tuple[tuple[str, bool, str], ...], Bound]


@dataclass(frozen=True, slots=True)
class Levels:
    """``document`` is the layout; ``part(id)`` returns what the columns lack for a bar, None if there is none with this id."""

    document: dict[str, Any]
    part: Callable[[int], dict[str, Any] | None]


@dataclass(frozen=True, slots=True)
class _Bar:
    part: Part | ChangePart
    partition: PartitionKey
    range: Range
    state: int

    @property
    def level(self) -> int:
        """-1 for the tail."""
        return self.part.level if isinstance(self.part, Part) else -1

    def ends(self) -> tuple[_End, _End]:
        where = tuple(partition_order(self.partition))
        return (where, self.range.lower), (where, self.range.upper)


_Placed = tuple[int, int, int, str, _Bar]
"""Level, first rank, last rank, path, bar. The path is unique, so sorting never compares bars."""


def levels(snapshot: Snapshot, claimed: frozenset[str], statistics: StatisticsCache | None = None) -> Levels:
    """Lays out the parts; of more than ``PARTS_MAX`` parts, the largest.

    ``claimed``: paths in live claims; ``statistics``: a cache of the parts' statistics.
    """
    statistics = StatisticsCache() if statistics is None else statistics
    terms = snapshot.order_terms
    parts: list[Part | ChangePart] = [*snapshot.tail.values(), *snapshot.parts.values()]
    shown = parts
    if len(parts) > PARTS_MAX:
        shown = heapq.nlargest(PARTS_MAX, parts, key=lambda part: (part.bytes, part.path))
    ranges = statistics.ranges([part.stats for part in shown], terms).ranges
    bars = [_bar(part, range_, snapshot, claimed) for part, range_ in zip(shown, ranges, strict=True)]
    ends = sorted({end for bar in bars for end in bar.ends()})
    rank = {end: place for place, end in enumerate(ends)}
    placed = sorted((bar.level, rank[bar.ends()[0]], rank[bar.ends()[1]], bar.part.path, bar) for bar in bars)
    groups, lanes = _groups(placed)
    columns = _columns(placed, groups, lanes)
    document = {
        "version": snapshot.version,
        "parts": len(parts),
        "read_budget": snapshot.settings.read_budget,
        "axis": _axis(ends, snapshot),
        "groups": groups,
        "states": STATES,
        "columns": columns,
    }

    places = {number: place for place, number in enumerate(columns["id"])}

    def part_at(number: int) -> dict[str, Any] | None:
        if number not in places:
            return None
        bar = placed[places[number]][-1]
        part = bar.part
        return {
            "path": cut(part.path),
            "partition": _partition_text(tuple(partition_order(bar.partition))),
            "from": _bound_text(bar.range.lower, terms),
            "to": _bound_text(bar.range.upper, terms),
            "sort_key_version": part.sort_key_version,
            "deletes": part.deletes,
            "modified_ms": part.modified_ms,
        }

    return Levels(document, part_at)


def _bar(part: Part | ChangePart, range_: Range, snapshot: Snapshot, claimed: frozenset[str]) -> _Bar:
    settings = snapshot.settings
    if isinstance(part, ChangePart):
        state, versions = STATES.index("tail"), Range((part.version,), (part.version,))
    else:
        state = int(part.path in claimed)
        if not state and settings.order_by and part.sort_key_version != settings.sort_key_version:
            state = STATES.index("other_order")
        versions = Range((part.min_block,), (part.max_block,))
    partition = tuple((snapshot.columns.logical_name(name), value) for name, value in part.partition_key)
    return _Bar(part, partition, range_ if snapshot.order_terms else versions, state)


def _axis(ends: Sequence[_End], snapshot: Snapshot) -> dict[str, Any]:
    terms = snapshot.order_terms
    partitions = _partitions(ends)
    is_one_partition = not ends or ends[0][0] == ends[-1][0]
    values = values_of([bound for _, bound in ends], terms) if terms and is_one_partition else None
    return {
        "kind": "sort_key" if terms else "versions",
        "by": [cut(name) for name in snapshot.logical_settings.order_by] if terms else [],
        "points": len(ends),
        "ids": None if values else [zlib.crc32(repr(end).encode("utf-8", "replace")) for end in ends],
        "labels": _labels(ends, terms),
        "partitions": partitions,
        "values": values,
    }


def _labels(ends: Sequence[_End], terms: tuple[SortTerm, ...]) -> list[list[Any]]:
    """Ranks and their bounds as text: evenly spread ones, and those at which the first term of the sort key changes."""
    changes = [place for place in range(1, len(ends)) if ends[place][1][:2] != ends[place - 1][1][:2]]
    chosen = {*_spread(len(ends)), *(changes[place] for place in _spread(len(changes)))}
    return [[place, _bound_text(ends[place][1], terms)] for place in sorted(chosen)]


def _columns(placed: Sequence[_Placed], groups: Sequence[dict[str, Any]], lanes: list[int]) -> dict[str, list[int]]:
    bars = [bar for *_, bar in placed]
    return {
        "group": [number for number, group in enumerate(groups) for _ in range(group["parts"])],
        "lane": lanes,
        "first": [first for _, first, _, _, _ in placed],
        "last": [last for _, _, last, _, _ in placed],
        "id": [zlib.crc32(path.encode("utf-8", "surrogateescape")) for *_, path, _ in placed],
        "rows": [bar.part.rows for bar in bars],
        "dead_rows": [bar.part.dead_rows if isinstance(bar.part, Part) else 0 for bar in bars],
        "bytes": [bar.part.bytes for bar in bars],
        "min_block": [_blocks(bar.part)[0] for bar in bars],
        "max_block": [_blocks(bar.part)[1] for bar in bars],
        "state": [bar.state for bar in bars],
    }


def _groups(placed: Sequence[_Placed]) -> tuple[list[dict[str, Any]], list[int]]:
    """One group per level, the tail first; and the lane of each bar."""
    groups: list[dict[str, Any]] = []
    lanes: list[int] = []
    taken: list[tuple[int, int]] = []
    free: list[int] = []
    for level, first, last, _, bar in placed:
        if not groups or groups[-1]["level"] != level:
            groups.append({"level": level, "lanes": 0, "parts": 0, "rows": 0, "dead_rows": 0, "bytes": 0})
            taken, free = [], []
        group = groups[-1]
        while taken and taken[0][0] < first:
            heapq.heappush(free, heapq.heappop(taken)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, group["lanes"] = group["lanes"], group["lanes"] + 1
        heapq.heappush(taken, (last, lane))
        lanes.append(lane)
        group["parts"] += 1
        group["rows"] += bar.part.rows
        group["dead_rows"] += bar.part.dead_rows if isinstance(bar.part, Part) else 0
        group["bytes"] += bar.part.bytes
    return groups, lanes


def _bound_text(bound: Bound, terms: tuple[SortTerm, ...]) -> str:
    return cut(readable(bound, terms)[1:-1] if terms else f"version {bound[0]}")


def _blocks(part: Part | ChangePart) -> tuple[int, int]:
    return (part.version, part.version) if isinstance(part, ChangePart) else (part.min_block, part.max_block)


def _spread(count: int) -> list[int]:
    """At most ``_LABELS_MAX`` ranks, evenly spread, including the first and the last."""
    if count <= _LABELS_MAX:
        return list(range(count))
    return [round(number * (count - 1) / (_LABELS_MAX - 1)) for number in range(_LABELS_MAX)]


def _partitions(ends: Sequence[_End]) -> list[list[Any]]:
    """The first rank and the name of each partition; empty if there are no partitions, or too many to show."""
    starts = [place for place, (where, _) in enumerate(ends) if place == 0 or ends[place - 1][0] != where]
    if len(starts) > _PARTITIONS_MAX or all(not where for where, _ in ends[:1]):
        return []
    return [[place, _partition_text(ends[place][0])] for place in starts]


def _partition_text(where: Sequence[tuple[str, bool, str]]) -> str:
    named: Mapping[str, str] = {name: value if is_set else "NULL" for name, is_set, value in where}
    return cut(", ".join(f"{name}={value}" for name, value in named.items()))
