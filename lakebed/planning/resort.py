"""Which parts of an earlier sort key are sorted together by the table's, and in what order. Pure.

1. Those read most come first, whichever their partition; else partition by partition, the oldest first. A read of a part reads
   its bytes, so how often it is read is what sorting it again can save for each byte that this rewrites, whatever its size.
2. A group is the first part that is left, and those of its partition that lie over it as the new order has them, or are small,
   while they fit into a plan. A part that is read is only grouped with parts that are read at least half as often, so that
   parts that nobody reads do not delay it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence

from lakebed.log.actions import Part, PartitionKey
from lakebed.log.snapshot import Snapshot
from lakebed.planning.overlap import SMALL, fullness
from lakebed.planning.plan import MergeKind, MergePlan, partition_order
from lakebed.planning.recluster import INPUTS_MAX
from lakebed.sortkey.ranges import Range
from lakebed.sortkey.statistics_cache import StatisticsCache

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
