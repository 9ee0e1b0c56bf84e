"""The parts of a table as bars over its sort key, level by level. Pure.

1. Every part is between two bounds of the sort key (``sortkey.ranges``). All bounds of a table, sorted, are the axis: a bar
   reaches from the rank of its first bound to that of its last one, both included. Partitions are side by side.
2. In a table without an order all parts overlap: there the axis is the versions whose rows they hold.
3. Bars of a level that meet are put into different lanes, each into the first one that is free from its beginning on.

Bars are columns of whole numbers, a place a part; a part's path and bounds are asked for one at a time. So 10,000 parts are
half a megabyte.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakebed.manifest.actions import ChangePart, Part, PartitionKey
from lakebed.manifest.snapshot import Snapshot
from lakebed.planning.plan import partition_order
from lakebed.sortkey.ranges import Bound, Range
from lakebed.sortkey.statistics_cache import StatisticsCache
from lakebed.ui.texts import cut
from lakebed.view.clustering import readable

PARTS_MAX = 50_000
LABELS_MAX = 256
PARTITIONS_MAX = 200
STATES = ("settled", "claimed", "other_order", "tail")
_End = tuple[tuple[tuple[str, bool, str], ...], Bound]


@dataclass(frozen=True, slots=True)
class Levels:
    """``document`` is the picture, ``part(index)`` has what the columns lack for the bar at an index."""

    document: dict[str, Any]
    part: Callable[[int], dict[str, Any]]


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


def levels(snapshot: Snapshot, claimed: frozenset[str], statistics: StatisticsCache | None = None) -> Levels:
    """Of more than ``PARTS_MAX`` parts, the largest are shown.

    ``claimed``: paths that live claims name; ``statistics``: what was read of the parts' statistics before.
    """
    statistics = StatisticsCache() if statistics is None else statistics
    settings = snapshot.settings
    order, terms = settings.order_by, snapshot.order_terms

    def bar(part: Part | ChangePart, range_: Range) -> _Bar:
        if isinstance(part, ChangePart):
            state, versions = STATES.index("tail"), Range((part.version,), (part.version,))
        else:
            state = int(part.path in claimed)
            if not state and order and part.sort_key_version != settings.sort_key_version:
                state = STATES.index("other_order")
            versions = Range((part.min_block,), (part.max_block,))
        where = part.partition_key
        return _Bar(part, where, range_ if terms else versions, state)

    def bound_text(bound: Bound) -> str:
        return cut(readable(bound, terms)[1:-1] if terms else f"version {bound[0]}")

    everything: list[Part | ChangePart] = [*snapshot.tail.values(), *snapshot.parts.values()]
    chosen = heapq.nlargest(PARTS_MAX, everything, key=lambda part: (part.bytes, part.path))
    shown = chosen if len(everything) > PARTS_MAX else everything
    bars = list(map(bar, shown, statistics.ranges([part.stats for part in shown], terms).ranges))
    ends = sorted({end for each in bars for end in each.ends()})
    rank = {end: place for place, end in enumerate(ends)}
    placed = sorted(
        (each.level, rank[each.ends()[0]], rank[each.ends()[1]], each.part.path, each) for each in bars
    )  # the path is unique, so bars are never compared
    groups, lanes = _groups(placed)
    document = {
        "version": snapshot.version,
        "parts": len(everything),
        "read_budget": settings.read_budget,
        "axis": {
            "kind": "sort_key" if terms else "versions",
            "by": [cut(name) for name in order] if terms else [],
            "points": len(ends),
            "labels": [[place, bound_text(ends[place][1])] for place in _spread(len(ends))],
            "partitions": _partitions(ends),
        },
        "groups": groups,
        "states": STATES,
        "columns": {
            "group": [number for number, group in enumerate(groups) for _ in range(group["parts"])],
            "lane": lanes,
            "first": [first for _, first, _, _, _ in placed],
            "last": [last for _, _, last, _, _ in placed],
            "rows": [each.part.rows for *_, each in placed],
            "dead_rows": [each.part.dead_rows if isinstance(each.part, Part) else 0 for *_, each in placed],
            "bytes": [each.part.bytes for *_, each in placed],
            "min_block": [_blocks(each.part)[0] for *_, each in placed],
            "max_block": [_blocks(each.part)[1] for *_, each in placed],
            "state": [each.state for *_, each in placed],
        },
    }

    def part_at(index: int) -> dict[str, Any]:
        each = placed[index][-1]
        part = each.part
        return {
            "version": snapshot.version,
            "path": cut(part.path),
            "partition": _partition_text(tuple(partition_order(each.partition))),
            "from": bound_text(each.range.lower),
            "to": bound_text(each.range.upper),
            "sort_key_version": part.sort_key_version,
            "deletes": part.deletes,
            "modified_ms": part.modified_ms,
        }

    return Levels(document, part_at)


def _groups(placed: Sequence[tuple[int, int, int, str, _Bar]]) -> tuple[list[dict[str, Any]], list[int]]:
    """A group a level, the tail first; and the lane of each bar."""
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


def _blocks(part: Part | ChangePart) -> tuple[int, int]:
    return (part.version, part.version) if isinstance(part, ChangePart) else (part.min_block, part.max_block)


def _spread(count: int) -> list[int]:
    """At most ``LABELS_MAX`` places, evenly spread, the first and the last among them."""
    if count <= LABELS_MAX:
        return list(range(count))
    return [round(number * (count - 1) / (LABELS_MAX - 1)) for number in range(LABELS_MAX)]


def _partitions(ends: Sequence[_End]) -> list[list[Any]]:
    """The first rank of each partition and what it is called; empty if there are none, or too many to show."""
    starts = [place for place, (where, _) in enumerate(ends) if place == 0 or ends[place - 1][0] != where]
    if len(starts) > PARTITIONS_MAX or all(not where for where, _ in ends[:1]):
        return []
    return [[place, _partition_text(ends[place][0])] for place in starts]


def _partition_text(where: Sequence[tuple[str, bool, str]]) -> str:
    named: Mapping[str, str] = {name: value if is_set else "NULL" for name, is_set, value in where}
    return cut(", ".join(f"{name}={value}" for name, value in named.items()))
