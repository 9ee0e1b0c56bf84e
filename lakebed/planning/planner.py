"""The planner: what to settle, merge and purge next, and why the rest is left alone. No input and output, no clock, no engine.

1. **Settle** the tail when that is cheap, or when the table's thresholds say so (``settling``).
2. **Merge** partition by partition, in turn, the one in most need first (``candidates``).
3. **Purge** parts of which ``lakebed.purge_dead_ratio`` is dead, if that saves readers a quarter of the cost of opening a part;
   those with the most dead bytes first. Parts without live rows are purged in any case, which costs nothing. Deletes are dead
   once ``lakebed.tombstone_retention`` has passed.
4. **Resort** parts that are sorted by an earlier sort key, oldest first, when there is nothing else to do. Those that are read
   come before the merges, most read first, unless new data alone would give a merge. So new data is merged in time, whatever
   is read, and parts that nobody reads come last.

Plans of one call share no part and take no claimed one. How many run at once is decided by ``admission``.

While parts stay on local disks, plans are made twice (``Goal``): for readers elsewhere, on what the store has, with a larger read
budget; then for readers here. What the former merge is uploaded. So it is chosen by what the store needs, as if nothing were on
a local disk, and not by what happens to lie there.

Repeated calls come to an end: every plan lowers the measure of ``admission``. A merge that would not lower it is refused: it
would sort rows of the same commits together once more, and statistics can't separate them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from lakebed.log.actions import Part
from lakebed.log.snapshot import Snapshot, parts_to_resort
from lakebed.planning.admission import Admission
from lakebed.planning.candidates import POLICIES, accept_merges, binomial, candidates, overlap_maps_of, why_quiet
from lakebed.planning.overlap import OverlapMap
from lakebed.planning.plan import PART_READ_BYTES, Cause, Goal, MergeKind, MergePlan, Planning, Refusal
from lakebed.planning.recluster import resort_plans
from lakebed.planning.settling import settle_plan
from lakebed.sortkey.statistics_cache import StatisticsCache

_PURGE_BYTES_MIN = PART_READ_BYTES // 4  # less does not matter beside the cost of opening the part
_WHY_NOT = {
    Cause.OFF: "partitions that are not merged, because lakebed.merge is off",
    Cause.WITHIN_READ_BUDGET: "partitions within lakebed.read_budget",
    Cause.CLAIMED: "parts under a live claim",
    Cause.CONSTANT: "full parts that no merge can separate by sort key",
    Cause.PLAN_BYTES: "places where not even two parts fit into lakebed.plan_bytes_max",
    Cause.IN_FLIGHT: "plans that wait until less work is in flight (there may be more)",
    Cause.OFF_PEAK: "large plans that wait for the hours of lakebed.off_peak",
    Cause.FEW_DEAD: "parts with dead rows, but below lakebed.purge_dead_ratio or too few to matter",
    Cause.DELAYED: "change parts that wait until settling them pays",
    Cause.WITHIN_DEPTH: "partitions whose levels are within lakebed.recluster_depth",
    Cause.NO_GAIN: "merges that would gain nothing, because their parts hold the same commits and were sorted together before",
    Cause.NO_ORDER: "partitions that can't be reclustered, because the table has neither a sort key nor keys",
}


def plan(
    snapshot: Snapshot,
    claimed: Collection[str],
    now_ms: int,
    in_flight_bytes: int = 0,
    reads: Mapping[str, int] | None = None,
    goal: Goal = Goal.ALL,
    *,
    statistics: StatisticsCache | None = None,
) -> Planning:
    """What to do next.

    ``claimed``: paths that live claims list; ``now_ms``: the time in epoch milliseconds; ``in_flight_bytes``: input bytes of
    plans that run now; ``reads``: how often parts were read in the last hour, by path (none: not at all); ``goal``: for which
    readers (for those here ``snapshot`` has parts on the local disk in place of their sources); ``statistics``: what was read of
    the parts' statistics before (none: nothing). It saves time and changes no plan.
    """
    claimed = frozenset(claimed)
    admission = Admission(
        snapshot=snapshot,
        now_ms=now_ms,
        in_flight_bytes=in_flight_bytes,
        statistics=StatisticsCache() if statistics is None else statistics,
        goal=goal,
    )
    if goal is Goal.HERE:
        return _here(claimed, admission)
    settle = settle_plan(snapshot, now_ms, admission.statistics)
    if settle is None:
        admission.refuse(Cause.DELAYED, len(snapshot.tail))
    overlap_maps, quiet, depth_max = overlap_maps_of(snapshot, claimed, admission.settings, admission.statistics)
    admission.refuse(Cause.CLAIMED, sum(path in snapshot.parts for path in claimed))
    admission.refuse(Cause.CONSTANT, int(sum(overlap_map.constant.sum() for overlap_map in overlap_maps)))
    admission.refuse(why_quiet(snapshot), quiet)
    waiting = [part for part in parts_to_resort(snapshot) if part.path not in claimed]
    reads = reads or {}
    read = [part for part in waiting if part.path in reads]
    if read and not _is_merge_due_without_resorts(admission, claimed):
        _resorts(read, admission, reads)
        _take(overlap_maps, admission)
        waiting = [part for part in waiting if part.path not in reads]
    accept_merges(overlap_maps, admission)
    _purges(claimed, admission)
    _resorts(waiting, admission, reads)
    backlog = (settle.bytes_in if settle else 0) + admission.backlog_bytes(overlap_maps)
    refusals = tuple(Refusal(cause, count, _WHY_NOT[cause]) for cause, count in admission.refused.items() if count)
    return Planning(
        settle=settle, merges=tuple(admission.plans), refusals=refusals, backlog_bytes=backlog, depth_max=depth_max
    )


def _here(claimed: Collection[str], admission: Admission) -> Planning:
    """Merges of runs, and nothing else: what settles, purges and sorts again is for all readers."""
    overlap_maps, _, depth_max = overlap_maps_of(admission.snapshot, claimed, admission.settings, admission.statistics)
    if POLICIES.get(admission.settings.merge) is binomial:
        accept_merges(overlap_maps, admission)
    merges = tuple(replace(each, is_local=True) for each in admission.plans)
    return Planning(merges=merges, backlog_bytes=admission.backlog_bytes(overlap_maps), depth_max=depth_max)


def _purges(claimed: Collection[str], admission: Admission) -> None:
    settings = admission.settings
    taken = admission.taken.union(claimed)
    found: list[tuple[float, str, Part]] = []
    few = 0
    for part in admission.snapshot.parts.values():
        if part.deletion_vector is None or part.rows <= 0 or part.path in taken:
            continue
        dead = part.dead_rows - _kept_deletes(part, admission)
        dead_bytes = part.bytes * dead / part.rows
        felt = dead_bytes >= _PURGE_BYTES_MIN or dead == part.rows
        if dead >= part.rows * settings.purge_dead_ratio and felt:
            found.append((-dead_bytes, part.path, part))
        elif dead > 0:
            few += 1
    admission.refuse(Cause.FEW_DEAD, few)
    for _, _, part in sorted(found, key=lambda entry: entry[:2]):
        if part.bytes > settings.plan_bytes_max:
            admission.refuse(Cause.PLAN_BYTES)
        elif not admission.is_full:
            why = f"{part.dead_rows:,} of {part.rows:,} rows are dead"
            purge = MergePlan.of(MergeKind.PURGE, part.partition_key, [part], depth_before=1, depth_after=1, why=why)
            admission.accepts(purge)


def _is_merge_due_without_resorts(whole: Admission, claimed: Collection[str]) -> bool:
    snapshot = whole.snapshot
    stale = {part.path for part in parts_to_resort(snapshot)}
    fresh = {path: part for path, part in snapshot.parts.items() if path not in stale}
    admission = Admission(
        snapshot=replace(snapshot, parts=fresh), now_ms=whole.now_ms, in_flight_bytes=0, statistics=whole.statistics
    )
    if admission.settings.merge == "off":
        return False
    overlap_maps, _, _ = overlap_maps_of(admission.snapshot, claimed, admission.settings, admission.statistics)
    return any(next(candidates(overlap_map, admission), None) is not None for overlap_map in overlap_maps)


def _take(overlap_maps: Sequence[OverlapMap], admission: Admission) -> None:
    """Mark the inputs of accepted plans as at work."""
    taken = admission.taken
    for overlap_map in overlap_maps:
        overlap_map.take(np.flatnonzero([part.path in taken for part in overlap_map.parts]))


def _resorts(waiting: Sequence[Part], admission: Admission, reads: Mapping[str, int]) -> None:
    taken = admission.taken
    free = [part for part in waiting if part.path not in taken]
    for candidate in resort_plans(admission.snapshot, free, reads, admission.statistics):
        if admission.is_full:
            return
        if candidate.bytes_in > admission.settings.plan_bytes_max:
            admission.refuse(Cause.PLAN_BYTES)
        else:
            admission.accepts(candidate)


def _kept_deletes(part: Part, admission: Admission) -> int:
    """Deletes that still win against late changes: they stay, dead, in what a merge writes. The others are only dead rows."""
    return part.deletes if admission.snapshot.keeps_deletes(part, admission.now_ms) else 0
