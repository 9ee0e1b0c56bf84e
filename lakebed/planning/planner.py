"""The planner: what to settle, merge and purge next, and why the rest is left alone. No input and output, no clock, no engine.

1. **Settle** the tail when that is cheap, or when the table's thresholds say so.
2. **Merge** partition by partition, in turn, the one in most need first. Where more than ``lakebed.read_budget`` runs lie over a
   point of the sort key, the policy says which of them become one (``policies``); their parts around that point are the inputs,
   as many as ``lakebed.plan_bytes_max`` allows, the smallest runs if not all (``layout``). Small parts side by side are counted
   likewise: at most ``lakebed.read_budget`` in a row; a row that fills a part becomes one, else the policy chooses.
   Without an order all parts lie over each other, so only the second rule is of use.
   With ``lakebed.merge`` = ``recluster`` it is levels that are looked at, and their average depth: see ``recluster``.
3. **Purge** parts of which ``lakebed.purge_dead_ratio`` is dead and a reader feels it, those with the most dead bytes first;
   and those that are dead altogether, which costs nothing. Deletes are dead once ``lakebed.tombstone_retention`` has passed.
4. **Resort** parts that are sorted by an earlier sort key, oldest first, when nothing of the above waits. Those that are read
   come before the merges too, most read first, as long as there would be nothing to merge without such parts: what comes in
   is merged in time whatever is read, and parts that nobody reads get their turn when the others are done.

In the hours of ``lakebed.off_peak`` the read budget and the purge ratio count half: what then has time anyway leaves room for
the day. Outside them, plans that read more than half a full part wait for these hours, unless the read budget is exceeded.

Plans of one round share no part and name no claimed one. With what is in flight they read at most twice ``plan_bytes_max``; the
first plan that does not fit ends the round, so that a large one gets its turn.

Repeated rounds come to an end: every merge lowers the ``measure``, and one that doesn't is not given out. It would bring
together rows of the same commits that were sorted together before: statistics can't tell them apart, and nothing is gained.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from lakebed.manifest.actions import ChangePart, Part, PartitionKey
from lakebed.manifest.snapshot import Snapshot
from lakebed.manifest.stale import stale_parts
from lakebed.planning.measure import Measure
from lakebed.planning.overlap import SMALL, Layout, Place, fullness
from lakebed.planning.plan import PART_READ_BYTES, Cause, Plan, PlanKind, Planning, Refusal
from lakebed.planning.plan_of_parts import partition_order, plan_of
from lakebed.planning.policies import FAN, Policy, binomial, lazy_leveled, size_tiered
from lakebed.planning.recluster import INPUTS_MAX, Group, Threshold, groups, overdue
from lakebed.planning.resort import resort_plans
from lakebed.settings import TableSettings, parse_hours
from lakebed.sortkey.known import KnownStatistics
from lakebed.sortkey.ranges import Indexes, Ranked, order_columns
from lakebed.sortkey.sort_key import SortTerm

IN_FLIGHT_PLANS = 2
PLANS_MAX = 64
_TIES_MAX = 8
_SHORT = 64
# What settling costs for each base part it marks (its action, its vector, and reading both again) and what a tail costs the
# views until the next batch, each of which resolves it anew.
_MARK_BYTES = 16 * 1024
_TAIL_READS = 8
_PURGE_BYTES_MIN = PART_READ_BYTES // 4  # less is not felt beside what opening the part costs
_TAIL_PART_BYTES = 64 * 1024
_TAIL_SECONDS_MAX = 120
_TAIL_ROWS_MAX = 2_000_000
_POLICIES: dict[str, Policy] = {
    "off": binomial,
    "auto": binomial,
    "bin-pack": binomial,
    "tiered": size_tiered,
    "leveled": lazy_leveled,
}
_Candidate = tuple[Indexes, Plan]
_WHY_NOT = {
    Cause.OFF: "partitions that are not merged, since lakebed.merge is off",
    Cause.WITHIN_READ_BUDGET: "partitions within lakebed.read_budget",
    Cause.CLAIMED: "parts named by live claims",
    Cause.CONSTANT: "full parts whose sort keys no merge can tell apart",
    Cause.PLAN_BYTES: "places where not even two parts fit into lakebed.plan_bytes_max",
    Cause.IN_FLIGHT: "plans (at least) that wait until less is in flight",
    Cause.OFF_PEAK: "heavy plans that wait for the hours of lakebed.off_peak",
    Cause.FEW_DEAD: "parts with dead rows, fewer than lakebed.purge_dead_ratio or too few to be felt",
    Cause.DELAYED: "change parts that wait until settling pays",
    Cause.WITHIN_DEPTH: "partitions whose levels are within lakebed.recluster_depth",
    Cause.NO_GAIN: "merges of parts of the same commits, which were sorted together as often as can make a difference",
    Cause.NO_ORDER: "partitions that can't be reclustered, since the table has neither a sort key nor keys",
}


def plan(
    snapshot: Snapshot, claimed: Collection[str], now_ms: int, in_flight_bytes: int = 0,
    reads: Mapping[str, int] | None = None, statistics: KnownStatistics | None = None,
) -> Planning:  # fmt: skip
    """What to do next.

    ``claimed``: paths that live claims name; ``now_ms``: the time in epoch milliseconds; ``in_flight_bytes``: input bytes of
    plans that run now; ``reads``: how often parts were read in the last hour, by path (none: not at all); ``statistics``: what
    was read of the parts' statistics before (none: nothing). It saves time and changes no plan.
    """
    claimed = frozenset(claimed)
    round_ = _Round(
        snapshot=snapshot,
        now_ms=now_ms,
        in_flight_bytes=in_flight_bytes,
        statistics=KnownStatistics() if statistics is None else statistics,
    )
    settle = _settle(snapshot, now_ms, round_)
    layouts, quiet, depth_max = layouts_of(snapshot, claimed, round_.settings, round_.statistics)
    round_.refuse(Cause.CLAIMED, sum(path in snapshot.parts for path in claimed))
    round_.refuse(Cause.CONSTANT, int(sum(layout.constant.sum() for layout in layouts)))
    round_.refuse(_why_quiet(snapshot), quiet)
    waiting = [part for part in stale_parts(snapshot) if part.path not in claimed]
    reads = reads or {}
    read = [part for part in waiting if part.path in reads]
    if read and not _is_merge_due_without_stale(round_, claimed):
        _resorts(read, round_, reads)
        _take(layouts, round_)
        waiting = [part for part in waiting if part.path not in reads]
    _merges(layouts, round_)
    _purges(claimed, round_)
    _resorts(waiting, round_, reads)
    plans = ([settle] if settle else []) + round_.plans
    backlog = (settle.bytes_in if settle else 0) + round_.backlog_bytes(layouts)
    refusals = tuple(Refusal(cause, count, _WHY_NOT[cause]) for cause, count in round_.refused.items() if count)
    return Planning(tuple(plans), refusals, backlog, depth_max)


@dataclass(slots=True, kw_only=True)
class _Round:
    """What one round has decided so far."""

    snapshot: Snapshot
    now_ms: int
    in_flight_bytes: int
    statistics: KnownStatistics
    plans: list[Plan] = field(default_factory=list)
    refused: Counter[Cause] = field(default_factory=Counter)
    waiting: dict[str, int] = field(default_factory=dict)  # bytes of parts that plans of a later round are for, by path
    is_over: bool = False

    measure: Measure = field(init=False)
    settings: TableSettings = field(init=False)  # as they count at this hour
    read_budget_told: str = field(init=False)
    may_be_heavy: bool = field(init=False)

    def __post_init__(self) -> None:
        self.measure = Measure(self.snapshot, self.now_ms)
        settings = self.snapshot.settings
        off_peak = _is_off_peak(settings.off_peak, self.now_ms)
        self.settings = settings
        self.read_budget_told = f"lakebed.read_budget is {settings.read_budget}"
        self.may_be_heavy = off_peak or not settings.off_peak
        if off_peak:
            self.settings = replace(
                settings, read_budget=max(1, settings.read_budget // 2), purge_dead_ratio=settings.purge_dead_ratio / 2
            )
            self.read_budget_told += ", half of it in the hours of lakebed.off_peak"

    def refuse(self, cause: Cause, count: int = 1) -> None:
        self.refused[cause] += count

    def wait(self, cause: Cause, candidate: Plan) -> None:
        """The plan waits for a later round."""
        self.refuse(cause)
        self.waiting |= {path: self.snapshot.parts[path].bytes for path in candidate.inputs}

    def accepts(self, candidate: Plan) -> bool:
        """Whether the plan runs in this round; if not, why is counted."""
        if not self.measure.is_lowered_by([self.snapshot.parts[path] for path in candidate.inputs]):
            self.refuse(Cause.NO_GAIN)
            return False
        heavy = candidate.bytes_in > self.settings.target_part_bytes * SMALL
        if heavy and candidate.depth_before <= self.settings.read_budget and not self.may_be_heavy:
            self.wait(Cause.OFF_PEAK, candidate)
            return False
        allowed = IN_FLIGHT_PLANS * self.settings.plan_bytes_max - self.in_flight_bytes
        if self.is_over or candidate.bytes_in > allowed or len(self.plans) >= PLANS_MAX:
            self.wait(Cause.IN_FLIGHT, candidate)
            self.is_over = True
            return False
        self.in_flight_bytes += candidate.bytes_in
        self.plans.append(candidate)
        return True

    def backlog_bytes(self, layouts: Sequence[Layout]) -> int:
        """Bytes of parts that this round's plans or later ones are for, or that stand where it is too deep."""
        wanted = dict(self.waiting)
        for candidate in self.plans:
            wanted |= {path: self.snapshot.parts[path].bytes for path in candidate.inputs}
        if self.settings.merge == "recluster":
            threshold = Threshold.of(self.settings.recluster_depth)
            late = [layout.parts[index] for layout in layouts for index in overdue(layout, threshold).tolist()]
            return sum((wanted | {part.path: part.bytes for part in late}).values())
        for layout in layouts if self.settings.merge != "off" else ():
            deep = np.cumsum(((layout.depth + layout.under_work) > self.settings.read_budget) & ~layout.given_up)
            before = np.where(layout.low > 0, deep[layout.low - 1], 0)
            for index in np.flatnonzero(layout.free & (deep[layout.high] > before)).tolist():
                wanted[layout.parts[index].path] = layout.parts[index].bytes
        return sum(wanted.values())


def _is_off_peak(hours: str, now_ms: int) -> bool:
    """Whether it is one of the hours now; never, if there are none."""
    if not hours:
        return False
    start, end = parse_hours(hours)
    minute = now_ms // 60_000 % 1440
    return start <= minute < end if start < end else minute >= start or minute < end


# -- settle ----------------------------------------------------------------------------------------------------------


def reason_to_settle(snapshot: Snapshot, now_ms: int, statistics: KnownStatistics | None = None) -> str | None:
    """Why the tail should be settled now; None if there is none, or it can wait. ``statistics``: as for ``plan``."""
    tail = snapshot.tail_in_order()
    return (
        _reason_to_settle(snapshot, tail, now_ms, KnownStatistics() if statistics is None else statistics)
        if tail
        else None
    )


def _settle(snapshot: Snapshot, now_ms: int, round_: _Round) -> Plan | None:
    tail = snapshot.tail_in_order()
    if not tail:
        return None
    why = _reason_to_settle(snapshot, tail, now_ms, round_.statistics)
    if why is None:
        round_.refuse(Cause.DELAYED, len(tail))
        return None
    total = sum(part.bytes for part in tail)
    return Plan(
        kind=PlanKind.SETTLE, partition=(), inputs=tuple(part.path for part in tail), level=0,
        rows_in=sum(part.rows for part in tail), bytes_in=total, bytes_out=0,
        dead_rows=sum(part.deletes for part in tail), depth_before=len(tail), depth_after=0,
        gain=total + len(tail) * PART_READ_BYTES, why=why,
    )  # fmt: skip


def _reason_to_settle(
    snapshot: Snapshot, tail: Sequence[ChangePart], now_ms: int, statistics: KnownStatistics
) -> str | None:
    settings = snapshot.settings
    rows, size = sum(part.rows for part in tail), sum(part.bytes for part in tail)
    age_seconds = (now_ms - min(part.modified_ms for part in tail)) // 1000
    thresholds = (
        (settings.settle_after_changes, rows, "rows"),
        (settings.settle_after_bytes, size, "bytes"),
        (settings.settle_after_age_seconds, age_seconds, "seconds old"),
    )
    for threshold, value, unit in thresholds:
        if threshold is not None and value >= threshold:
            return f"the tail is {value:,} {unit}, which the table's settings let it become"
    if rows >= _TAIL_ROWS_MAX:
        return f"the tail is {rows:,} rows, as many as one settle takes"
    if any(threshold is not None for threshold, _, _ in thresholds):
        return None
    if age_seconds >= _TAIL_SECONDS_MAX:
        return f"the tail is {age_seconds:,} seconds old, the longest that other readers wait for it"
    marked = _parts_marked(snapshot, tail, statistics)
    if marked * _MARK_BYTES <= (size + len(tail) * _TAIL_PART_BYTES) * _TAIL_READS:
        return f"{rows:,} changes mark at most {marked:,} parts: cheaper than what the tail costs readers"
    return None


def _parts_marked(snapshot: Snapshot, tail: Sequence[ChangePart], statistics: KnownStatistics) -> int:
    """How many base parts settling may mark: those whose keys meet the tail's, and no more than there are changes."""
    columns = order_columns(snapshot.schema, snapshot.settings.keys, ())
    count = len(snapshot.parts)
    texts = [part.stats for part in snapshot.parts.values()] + [part.stats for part in tail]
    found = statistics.ranges(texts, columns)
    begun = np.searchsorted(np.sort(found.lower[:count]), found.upper[count:], side="right")
    ended = np.searchsorted(np.sort(found.upper[:count]), found.lower[count:], side="left")
    rows = np.array([part.rows for part in tail], dtype=np.int64)
    return min(int(np.minimum(rows, begun - ended).sum()), count)


# -- merge -----------------------------------------------------------------------------------------------------------


def layouts_of(
    snapshot: Snapshot, claimed: Collection[str], settings: TableSettings, statistics: KnownStatistics
) -> tuple[list[Layout], int, int]:
    """The partitions where there may be something to merge, the number of the others, and the depth of the deepest point."""
    columns: tuple[SortTerm, ...] = ()
    if settings.merge != "bin-pack":
        order_by = settings.sort_key or settings.keys
        columns = order_columns(snapshot.schema, order_by, snapshot.metadata.partition_columns, settings.sort_key_frame)
    everything = list(snapshot.parts.values())
    partitions: dict[PartitionKey, list[int]] = {}
    for place, part in enumerate(everything):
        partitions.setdefault(part.partition_key, []).append(place)
    found = statistics.ranges([part.stats for part in everything], columns) if columns else None
    layouts, quiet, depth_max = [], 0, 0
    if settings.merge == "recluster":
        runs_max, small_max = int(Threshold.of(settings.recluster_depth).depth(1)), _SHORT
    else:
        runs_max = settings.read_budget if _POLICIES[settings.merge] is binomial else min(FAN - 1, settings.read_budget)
        small_max = runs_max
    for partition in sorted(partitions, key=partition_order):
        places = partitions[partition]
        parts = [everything[place] for place in places]
        if len(parts) <= _SHORT:  # few parts of many partitions: not worth arrays
            deep = _deepest(found, places) if found else 1
            if deep <= runs_max and sum(fullness(part, settings) < SMALL for part in parts) <= small_max:
                quiet, depth_max = quiet + 1, max(depth_max, deep)
                continue
        ranges = found.take(places) if found and len(partitions) > 1 else found
        layout = Layout(partition, parts, ranges, claimed, settings)
        layouts.append(layout)
        depth_max = max(depth_max, layout.depth_max)
    return layouts, quiet, depth_max


def _deepest(found: Ranked, places: Sequence[int]) -> int:
    """How many of these ranges lie over the deepest point; ranges are closed."""
    lower, upper = np.sort(found.lower[places]), np.sort(found.upper[places])
    return int((np.arange(1, len(lower) + 1) - np.searchsorted(upper, lower, side="left")).max(initial=0))


def _why_quiet(snapshot: Snapshot) -> Cause:
    """Why there is nothing to merge in a partition."""
    match snapshot.settings.merge:
        case "off":
            return Cause.OFF
        case "recluster":
            has_order = bool(snapshot.settings.sort_key or snapshot.settings.keys)
            return Cause.WITHIN_DEPTH if has_order else Cause.NO_ORDER
        case _:
            return Cause.WITHIN_READ_BUDGET


def _merges(layouts: Sequence[Layout], round_: _Round) -> None:
    if round_.settings.merge == "off":
        round_.refuse(Cause.OFF, len(layouts))
        return
    waiting = []
    for layout in layouts:
        candidates = _candidates(layout, round_)
        first = next(candidates, None)
        if first is None:
            round_.refuse(_why_quiet(round_.snapshot))
        else:
            waiting.append((_urgency(first, layout, round_), layout, first, candidates))
    waiting.sort(key=lambda entry: entry[0])
    queue = [(layout, first, candidates) for _, layout, first, candidates in waiting]
    while queue:
        layout, (indexes, candidate), candidates = queue.pop(0)
        if round_.accepts(candidate):
            layout.take(indexes)
        elif round_.is_over:
            for _, (_, waits), _ in queue:
                round_.wait(Cause.IN_FLIGHT, waits)
            return
        following = next(candidates, None)
        if following is not None:
            queue.append((layout, following, candidates))


def _urgency(candidate: _Candidate, layout: Layout, round_: _Round) -> tuple[int, int, list[tuple[str, bool, str]]]:
    indexes, found = candidate
    return -found.depth_before, _tie(layout, indexes, round_.settings), partition_order(layout.partition)


def _tie(layout: Layout, indexes: Indexes, settings: TableSettings) -> int:
    if settings.merge_first == "lightest":
        return int(layout.bytes[indexes].sum())
    return -int(layout.newest[indexes].max())


def _candidates(layout: Layout, round_: _Round) -> Iterator[_Candidate]:
    """The partition's plans, the next one each time made of what is still free; one refused is not offered again."""
    if round_.settings.merge == "recluster":
        yield from _reclusters(layout, round_)
        return
    policy = _POLICIES[round_.settings.merge]
    budget = round_.settings.read_budget
    depth_min = budget + 1 if policy is binomial else min(FAN, budget + 1)
    found_over: dict[Place, tuple[Indexes, int]] = {}
    while places := layout.deepest(depth_min, _TIES_MAX):
        options = []
        for place in places:
            over = found_over.get(place) or _merge_over(layout, place, policy, round_)
            if over is None:
                continue
            found_over[place] = over
            options.append((_tie(layout, over[0], round_.settings), place.start, place))
        if options:
            _, _, place = min(options, key=lambda option: option[:2])
            indexes, count = found_over[place]
            why = f"{place.depth} runs lie over a point; {round_.read_budget_told}"
            yield indexes, _merge_of(layout, indexes, place.depth, place.depth - count + 1, why)
            if layout.free[indexes].any():
                layout.leave_alone(place)
            low, high = layout.low[indexes].min(), layout.high[indexes].max()
            found_over = {each: over for each, over in found_over.items() if each.end < low or each.start > high}
    refused = np.zeros(len(layout.parts), dtype=bool)
    while (found := _merge_row(layout, policy, refused, round_)) is not None:
        yield found
        if layout.free[found[0]].any():
            refused[found[0]] = True


def _merge_over(layout: Layout, place: Place, policy: Policy, round_: _Round) -> tuple[Indexes, int] | None:
    """What is merged over a place, and how many runs become one there; None, and it is left alone, if nothing can be done."""
    settings = round_.settings
    stack = layout.stack(place)
    at_work = int(layout.under_work[place.point])
    chosen = policy(stack.sizes, max(1, settings.read_budget - at_work), layout.flush_bytes)
    if chosen is None:
        layout.leave_alone(place)
        return None
    start, stop = max(chosen.start, chosen.stop - INPUTS_MAX), chosen.stop
    found = None
    while stop - start >= 2 and found is None:
        found = layout.window(stack, stack.indexes[start:stop], settings.plan_bytes_max)
        start += found is None
    if found is None:
        round_.refuse(Cause.PLAN_BYTES)
        layout.leave_alone(place)
        return None
    smallest = stack.indexes[start:stop]
    while found is not None and not round_.measure.is_lowered_by(layout.parts_at(found)):
        start -= 1  # larger runs may be of other commits
        is_possible = start >= 0 and stop - start <= INPUTS_MAX
        found = layout.window(stack, stack.indexes[start:stop], settings.plan_bytes_max) if is_possible else None
    if found is None:
        round_.refuse(Cause.NO_GAIN)
        layout.give_up(smallest)
        return None
    return found, stop - start


def _merge_row(
    layout: Layout, policy: Policy, refused: np.ndarray[tuple[int], np.dtype[np.bool_]], round_: _Round
) -> _Candidate | None:
    budget = round_.settings.read_budget
    for row in layout.small_rows():
        if refused[row].any():
            continue
        filled = int(np.searchsorted(np.cumsum(layout.full[row]), 1.0))
        if len(row) > budget and filled < len(row):
            chosen = slice(0, max(2, filled))
            why = f"{len(row)} small parts in a row, enough to fill one"
        else:
            sizes = [float(size) for size in layout.live_bytes[row]]
            found = policy(sizes, budget, layout.flush_bytes)
            if found is None or found.stop - found.start < 2:
                continue
            chosen = found
            why = f"{len(row)} small parts in a row; {round_.read_budget_told}"
        indexes = np.sort(row[chosen][-INPUTS_MAX:])
        if layout.bytes[indexes].sum() > round_.settings.plan_bytes_max:
            refused[row] = True
            round_.refuse(Cause.PLAN_BYTES)
            continue
        if not round_.measure.is_lowered_by(layout.parts_at(indexes)):
            refused[row] = True
            round_.refuse(Cause.NO_GAIN)
            continue
        return indexes, _merge_of(layout, indexes, len(row), len(row) - len(indexes) + 1, why)
    return None


# -- recluster ---------------------------------------------------------------------------------------------------------


def _reclusters(layout: Layout, round_: _Round) -> Iterator[_Candidate]:
    if not layout.is_ordered:
        return
    settings = round_.settings
    threshold = Threshold.of(settings.recluster_depth)
    for group in groups(layout, threshold, settings.plan_bytes_max, round_.measure.is_lowered_by):
        if group.refused is None:
            yield group.members, recluster_of(layout, group, settings)
        else:
            round_.refuse(group.refused)


def recluster_of(layout: Layout, group: Group, settings: TableSettings) -> Plan:
    """The plan that sorts a group together."""
    why = (
        f"level {group.level} is {group.level_depth:.2f} deep on average, {group.depth_before} parts over its deepest point; "
        f"lakebed.recluster_depth is {settings.recluster_depth}"
    )
    parts = layout.parts_at(group.members)
    return plan_of(PlanKind.RECLUSTER, layout.partition, parts, group.depth_before, group.depth_after, why)


# -- purge -----------------------------------------------------------------------------------------------------------


def _purges(claimed: Collection[str], round_: _Round) -> None:
    settings = round_.settings
    taken = {path for merge in round_.plans for path in merge.inputs}.union(claimed)
    found: list[tuple[float, str, Part]] = []
    few = 0
    for part in round_.snapshot.parts.values():
        if part.deletion_vector is None or part.rows <= 0 or part.path in taken:
            continue
        dead = part.dead_rows - _kept_deletes(part, round_)
        dead_bytes = part.bytes * dead / part.rows
        felt = dead_bytes >= _PURGE_BYTES_MIN or dead == part.rows
        if dead >= part.rows * settings.purge_dead_ratio and felt:
            found.append((-dead_bytes, part.path, part))
        elif dead > 0:
            few += 1
    round_.refuse(Cause.FEW_DEAD, few)
    for _, _, part in sorted(found, key=lambda entry: entry[:2]):
        if part.bytes > settings.plan_bytes_max:
            round_.refuse(Cause.PLAN_BYTES)
        elif not round_.is_over:
            why = f"{part.dead_rows:,} of {part.rows:,} rows are dead"
            round_.accepts(plan_of(PlanKind.PURGE, part.partition_key, [part], 1, 1, why))


# -- resort ----------------------------------------------------------------------------------------------------------


def _is_merge_due_without_stale(whole: _Round, claimed: Collection[str]) -> bool:
    snapshot = whole.snapshot
    stale = {part.path for part in stale_parts(snapshot)}
    fresh = {path: part for path, part in snapshot.parts.items() if path not in stale}
    round_ = _Round(
        snapshot=replace(snapshot, parts=fresh), now_ms=whole.now_ms, in_flight_bytes=0, statistics=whole.statistics
    )
    if round_.settings.merge == "off":
        return False
    layouts, _, _ = layouts_of(round_.snapshot, claimed, round_.settings, round_.statistics)
    return any(next(_candidates(layout, round_), None) is not None for layout in layouts)


def _take(layouts: Sequence[Layout], round_: _Round) -> None:
    """What the round's plans are for so far is at work."""
    taken = {path for one in round_.plans for path in one.inputs}
    for layout in layouts:
        layout.take(np.flatnonzero([part.path in taken for part in layout.parts]))


def _resorts(waiting: Sequence[Part], round_: _Round, reads: Mapping[str, int]) -> None:
    taken = {path for one in round_.plans for path in one.inputs}
    free = [part for part in waiting if part.path not in taken]
    for candidate in resort_plans(round_.snapshot, free, reads, round_.statistics):
        if round_.is_over:
            return
        if candidate.bytes_in > round_.settings.plan_bytes_max:
            round_.refuse(Cause.PLAN_BYTES)
        else:
            round_.accepts(candidate)


def _kept_deletes(part: Part, round_: _Round) -> int:
    """Deletes that still outweigh late events: they stay, dead, in what a merge writes. The others are dead weight."""
    return part.deletes if round_.snapshot.keeps_deletes(part, round_.now_ms) else 0


def _merge_of(layout: Layout, indexes: Indexes, before: int, after: int, why: str) -> Plan:
    return plan_of(PlanKind.MERGE, layout.partition, layout.parts_at(indexes), before, after, why)
