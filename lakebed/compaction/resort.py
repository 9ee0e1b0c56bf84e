"""Which parts of an earlier sort key are sorted together by the table's. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lakebed.compaction.layout import SMALL, fullness
from lakebed.compaction.plan import Partition, Plan, PlanKind
from lakebed.compaction.plan_of_parts import partition_of, plan_of, spelled
from lakebed.compaction.recluster import INPUTS_MAX
from lakebed.manifest.actions import Part
from lakebed.manifest.snapshot import Snapshot
from lakebed.sortkey.ranges import Range, order_columns, range_reader

_LOOKED_AT = 2 * INPUTS_MAX  # of the oldest parts, for each group


def resort_plans(snapshot: Snapshot, stale: Sequence[Part]) -> Iterator[Plan]:
    """Plans that sort these parts by the table's sort key, oldest first.

    A group is the oldest part of a partition, and those that lie over it as the new order has them, or are small, while they
    fit into a plan. None for a table without an order.
    """
    settings = snapshot.settings
    order_by, partition_by = settings.sort_key or settings.keys, snapshot.metadata.partition_columns
    if not order_by:
        return
    columns = order_columns(snapshot.schema, order_by, partition_by, settings.sort_key_frame)
    read = range_reader(columns)
    waiting: dict[Partition, list[tuple[Part, Range, bool]]] = {}
    for part in sorted(stale, key=lambda part: (part.min_block, part.max_block, part.path)):
        entry = part, read(part.stats), fullness(part, settings) < SMALL
        waiting.setdefault(partition_of(part), []).append(entry)
    why = f"sorted by an earlier sort key, not by version {settings.sort_key_version}"
    for partition in sorted(waiting, key=spelled):
        rest = waiting[partition]
        while rest:
            oldest, reach, _ = rest[0]
            chosen, room, lower, upper = [oldest], settings.plan_bytes_max - oldest.bytes, reach.lower, reach.upper
            left = []
            for entry in rest[1:_LOOKED_AT]:
                part, item, is_small = entry
                joins = is_small or (item.lower <= upper and item.upper >= lower)
                if joins and part.bytes <= room and len(chosen) < INPUTS_MAX:
                    chosen.append(part)
                    room -= part.bytes
                    lower, upper = min(lower, item.lower), max(upper, item.upper)
                else:
                    left.append(entry)
            rest = left + rest[_LOOKED_AT:]
            yield plan_of(PlanKind.RESORT, partition, chosen, len(chosen), 1, why)
