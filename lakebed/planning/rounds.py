"""The rounds of a recluster job: the plans of one round, and the cost of all of them. Pure.

A round makes one level of all partitions as shallow as its threshold says, the lowest level that is not. When no level is left,
parts that the table's sort key did not sort are sorted.

The estimate runs the same rounds on simulated parts: an end of a range is its rank among all ends, rows lie evenly between the
ends of their part, and the output of a group is cut at the target size. Real rows do not lie evenly, so it is an estimate.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import orjson
import pyarrow as pa

from lakebed.log.actions import Part, PartitionKey, passes_after
from lakebed.log.snapshot import Snapshot
from lakebed.planning.admission import Measure
from lakebed.planning.candidates import overlap_maps_of, recluster_of
from lakebed.planning.overlap import OverlapMap
from lakebed.planning.plan import MergePlan
from lakebed.planning.recluster import groups, level_depths, resort_plans
from lakebed.schema.conversion import schema_to_json
from lakebed.schema.metadata import Metadata
from lakebed.sortkey.ranges import Ranked, order_columns
from lakebed.sortkey.statistics_cache import StatisticsCache

_STEP = 1 << 20  # between two neighbouring ends
_PLACE = "place"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a job will do, judged by statistics. Depths are averages of parts, by level; ``plan_bytes_max`` of one plan."""

    rounds: int = 0
    plans: int = 0
    parts_in: int = 0
    parts_out: int = 0
    rows: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    plan_bytes_max: int = 0
    depth_before: Mapping[int, float] = field(default_factory=dict)
    depth_after: Mapping[int, float] = field(default_factory=dict)


def round_plans(
    snapshot: Snapshot,
    claimed: Collection[str],
    now_ms: int,
    reads: Mapping[str, int] | None = None,
    statistics: StatisticsCache | None = None,
) -> Iterator[MergePlan]:
    """The plans of the next round, one after the other; they share no part. None: nothing is left to do.

    ``now_ms``: the time in epoch milliseconds; ``reads``: how often parts were read in the last hour, by path;
    ``statistics``: what was read of the parts' statistics before, which saves time and changes no plan.
    """
    statistics = StatisticsCache() if statistics is None else statistics
    settings = replace(snapshot.settings, merge="recluster")
    threshold = settings.recluster_depth
    lowers = Measure(snapshot, now_ms).is_lowered_by
    overlap_maps, _, _ = overlap_maps_of(snapshot, claimed, settings, statistics)
    waiting = []
    for overlap_map in overlap_maps if any(overlap_map.is_ordered for overlap_map in overlap_maps) else ():
        found = (
            group for group in groups(overlap_map, threshold, settings.plan_bytes_max, lowers) if group.refused is None
        )
        first = next(found, None)
        if first is not None:
            waiting.append((overlap_map, first, found))
    level = min((first.level for _, first, _ in waiting), default=-1)
    for overlap_map, group, found in waiting:
        following: object = group
        while group.level == level and following is not None:
            yield recluster_of(overlap_map, group, settings)
            overlap_map.take(group.members)
            following = next(found, None)
            group = following or group
    if not waiting:
        yield from resort_plans(snapshot, unsorted(snapshot, claimed), reads or {}, statistics)


def unsorted(snapshot: Snapshot, claimed: Collection[str] = ()) -> list[Part]:
    """Free parts that the table's sort key did not sort, as far as is known."""
    version = snapshot.settings.sort_key_version
    return [part for part in snapshot.parts.values() if part.sort_key_version != version and part.path not in claimed]


def depth_by_level(snapshot: Snapshot, statistics: StatisticsCache | None = None) -> dict[int, float]:
    """The average depth of the parts of each level; without parts that no sorting can separate."""
    statistics = StatisticsCache() if statistics is None else statistics
    counts: dict[int, int] = {}
    sums: dict[int, float] = {}
    for partition, parts, ranges in _by_partition(snapshot, statistics):
        overlap_map = OverlapMap(partition, parts, ranges, (), snapshot.settings)
        for level, (count, average) in level_depths(overlap_map).items():
            counts[level] = counts.get(level, 0) + count
            sums[level] = sums.get(level, 0.0) + count * average
    return {level: sums[level] / counts[level] for level in sorted(counts)}


def estimate(
    snapshot: Snapshot, claimed: Collection[str], final: bool, statistics: StatisticsCache | None = None
) -> Estimate:
    """What one round will do, or all of them."""
    simulated = _simulated(snapshot, StatisticsCache() if statistics is None else statistics)
    statistics = StatisticsCache()  # of simulated parts
    before = depth_by_level(simulated, statistics)
    out = Estimate(depth_before=before)
    while plans := list(round_plans(simulated, claimed, 0, statistics=statistics)):
        parts = dict(simulated.parts)
        written: list[Part] = []
        for number, plan in enumerate(plans):
            inputs = [parts.pop(path) for path in plan.inputs]
            written += _output(plan, inputs, out.plans + number, simulated, statistics)
        parts |= {part.path: part for part in written}
        simulated = replace(simulated, parts=parts)
        out = replace(
            out,
            rounds=out.rounds + 1,
            plans=out.plans + len(plans),
            parts_in=out.parts_in + sum(len(plan.inputs) for plan in plans),
            parts_out=out.parts_out + len(written),
            rows=out.rows + sum(part.rows for part in written),
            bytes_in=out.bytes_in + sum(plan.bytes_in for plan in plans),
            bytes_out=out.bytes_out + sum(part.bytes for part in written),
            plan_bytes_max=max(out.plan_bytes_max, *(plan.bytes_in for plan in plans)),
        )
        if not final:
            break
    return replace(out, depth_after=depth_by_level(simulated, statistics))


def _by_partition(snapshot: Snapshot, statistics: StatisticsCache) -> Iterator[tuple[PartitionKey, list[Part], Ranked]]:
    columns = snapshot.order_terms
    partitions: dict[PartitionKey, list[Part]] = {}
    for part in snapshot.parts.values():
        partitions.setdefault(part.partition_key, []).append(part)
    for partition, parts in partitions.items():
        yield partition, parts, statistics.ranges([part.stats for part in parts], columns)


def _simulated(snapshot: Snapshot, statistics: StatisticsCache) -> Snapshot:
    """The same parts on a line of whole numbers, without their dead rows."""
    parts: dict[str, Part] = {}
    for _, members, found in _by_partition(snapshot, statistics):
        ranges = found.ranges
        ends = sorted({item.lower for item in ranges} | {item.upper for item in ranges})
        at = {end: place * _STEP for place, end in enumerate(ends)}
        for part, item in zip(members, ranges, strict=True):
            low, high = at[item.lower], at[item.upper]
            if item.is_constant and item.is_bounded:
                high = low
            parts[part.path] = replace(
                part,
                rows=max(1, part.live_rows),
                bytes=max(1, round(part.live_bytes)),
                deletes=0,
                deletion_vector=None,
                stats=_stats(low, high),
            )
    settings = replace(snapshot.settings, keys=(_PLACE,), sort_key=(_PLACE,), sort_key_frame="", sequence_by=None)
    metadata = Metadata(
        id="simulated",
        schema_string=schema_to_json(pa.schema([(_PLACE, pa.int64())])),
        partition_columns=(),
        configuration=settings.to_properties(),
    )
    return replace(snapshot, parts=parts, metadata=metadata, tail={}, domains={})


def _output(
    plan: MergePlan, inputs: Sequence[Part], number: int, snapshot: Snapshot, statistics: StatisticsCache
) -> list[Part]:
    """One run of parts of the target size, cut where the inputs' rows lie."""
    settings = snapshot.settings
    rows, size = sum(part.rows for part in inputs), sum(part.bytes for part in inputs)
    count = max(1, math.ceil(max(size / settings.target_part_bytes, rows / settings.target_part_rows) - 1e-6))
    count = min(count, rows)
    passes = passes_after(inputs, rows, settings.sort_key_version)
    columns = order_columns(snapshot.schema, (_PLACE,), ())
    ranges = statistics.ranges([part.stats for part in inputs], columns).ranges
    low = np.array([item.lower[1] for item in ranges], dtype=np.float64)
    high = np.maximum(np.array([item.upper[1] for item in ranges], dtype=np.float64), low + 1)
    points = np.unique(np.concatenate((low, high)))
    below = np.zeros(len(points))
    for part, start, end in zip(inputs, low, high, strict=True):
        below += part.rows * np.clip((points - start) / (end - start), 0.0, 1.0)
    cuts = np.interp(np.linspace(0.0, below[-1], count + 1), below, points).round().astype(np.int64).tolist()
    cuts[-1] = max(int(item.upper[1]) for item in ranges)
    return [
        Part(
            path=f"predicted-{number}-{place}",
            rows=rows * (place + 1) // count - rows * place // count,
            bytes=max(1, size // count),
            level=plan.level,
            min_block=min(part.min_block for part in inputs),
            max_block=max(part.max_block for part in inputs),
            sort_key_version=settings.sort_key_version,
            passes=passes,
            partition_values=inputs[0].partition_values,
            stats=_stats(min(cuts[place], cuts[place + 1]), cuts[place + 1]),
        )
        for place in range(count)
    ]


def _stats(low: int, high: int) -> str:
    return orjson.dumps(
        {"numRecords": 1, "minValues": {_PLACE: low}, "maxValues": {_PLACE: high}, "nullCount": {_PLACE: 0}}
    ).decode()
