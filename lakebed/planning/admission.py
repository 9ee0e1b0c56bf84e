"""Which candidate plans run now, by the measure, the time of day, and what is in flight. Pure.

1. A plan that does not lower the measure is refused: without that, merges might not come to an end.
2. In the hours of ``lakebed.off_peak`` the read budget and the purge ratio count half: work that is done then leaves room for
   the day. Outside them, plans that read more than half a full part wait for these hours, unless the read budget is exceeded.
3. With what is in flight, plans read at most twice ``lakebed.plan_bytes_max``. The first plan that does not fit ends the
   admission, so that a large one gets its turn.

**The measure.** Every merge lowers it, whatever statistics say: that is why planning comes to an end. Which merge pays is judged
by where statistics say that rows lie, and these may say little: texts are cut, values have no bounds, another writer gives none.
Two parts that statistics can't separate overlap however often they are merged. So depth does not prove that merges come to an
end. This measure does, because nothing in it rests on statistics. Over all parts of a table it is a list of numbers, where the
first that differs decides:

1. the number of parts that have no rows, or of which the number of rows is not known;
2. the number of physical rows, dead ones included;
3. the number of rows in parts without the version of the sort key that merges now sort by (none without an order);
4. minus the sum over rows of how many versions their part's block range spans;
5. minus the sum over rows of their part's passes (``log.actions``).

``is_lowered_by`` allows a merge of these parts, one or more of one partition, only if

- one of them has no rows, or their number is not known: no such part is written, so 1 falls;
- or one has dead rows that are not kept as deletes: they are left out, so 2 falls;
- or one does not have that version: what is written has it, so 3 falls;
- or their block ranges differ: what is written spans all of them, which is more for the rows of one part at least, so 4 falls;
- or none of them has made twice as many passes as the number of parts of their block range has binary digits. If nothing else
  changes, what is written has one pass more than the one that had most, so 5 falls.

None of the earlier ones rises then: what is written has rows, none but those of the inputs, sorted as the table says, in parts
that span the blocks of all inputs. All are whole numbers, and bounded: 1 to 3 by 0. No block range reaches beyond those that
there are, so 4 is at least minus the rows times the versions. There are never more parts than there are rows and, at the start,
parts without; so 5 is at least minus the rows times twice the binary digits of that sum. So without other commits there is a last
merge, under any policy, budget or threshold, and also where these change from one hour to the next. A settle makes the tail
shorter, which no merge makes longer. Plans of one round share no part, and the measure is a sum over parts: each of the merges at
work at once lowers it. How many parts a merge writes, and where they say that they lie, makes no difference.

Passes that each double what is sorted together sort all parts of one block range in as many passes as their number has binary
digits. Merges are chosen by size and place and do not go in even passes, so twice as many are allowed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from lakebed.log.actions import Part, PartitionKey, is_one_block_range
from lakebed.log.snapshot import Snapshot
from lakebed.planning.overlap import SMALL, OverlapMap
from lakebed.planning.plan import Cause, Goal, MergePlan
from lakebed.planning.recluster import overdue
from lakebed.settings import TableSettings
from lakebed.sortkey.statistics_cache import StatisticsCache

_PASSES = 2


class Measure:
    """The measure at one snapshot and time (epoch milliseconds; it decides which deletes are still kept)."""

    def __init__(self, snapshot: Snapshot, now_ms: int) -> None:
        self._snapshot = snapshot
        self._now_ms = now_ms
        settings = snapshot.settings
        self._order_version = settings.sort_key_version if settings.order_by else None

    def is_lowered_by(self, parts: Sequence[Part]) -> bool:
        """Whether a merge of these parts lowers it."""
        if not is_one_block_range(parts) or any(map(self._is_changed, parts)):
            return True
        first = parts[0]
        alike = self._parts_by_blocks[first.partition_key, first.min_block, first.max_block]
        return max(part.passes for part in parts) < _PASSES * alike.bit_length()

    def _is_changed(self, part: Part) -> bool:
        """Whether a merge of this part alone changes it."""
        if part.rows <= 0 or part.sort_key_version != self._order_version:
            return True
        return part.dead_rows > (part.deletes if self._snapshot.keeps_deletes(part, self._now_ms) else 0)

    @cached_property
    def _parts_by_blocks(self) -> Counter[tuple[PartitionKey, int, int]]:
        parts = self._snapshot.parts.values()
        return Counter((part.partition_key, part.min_block, part.max_block) for part in parts)


_ELSEWHERE = 2.5
"""Readers on other hosts meet as many times ``lakebed.read_budget`` runs at most; on average it is less than twice as many."""
IN_FLIGHT_PLANS = 2
_PLANS_MAX = 64


def budget_elsewhere(read_budget: int) -> int:
    """How many runs a reader on another host may meet while parts are on local disks."""
    return int(_ELSEWHERE * read_budget)


@dataclass(slots=True, kw_only=True)
class Admission:
    """The plans accepted so far, and what was refused."""

    snapshot: Snapshot
    now_ms: int
    in_flight_bytes: int
    statistics: StatisticsCache
    goal: Goal = Goal.ALL
    plans: list[MergePlan] = field(default_factory=list)
    refused: Counter[Cause] = field(default_factory=Counter)
    waiting: dict[str, int] = field(default_factory=dict)  # bytes of parts that plans wait for, by path
    is_full: bool = False

    measure: Measure = field(init=False)
    settings: TableSettings = field(init=False)  # as they apply at this hour
    budget_text: str = field(init=False)
    may_be_heavy: bool = field(init=False)

    def __post_init__(self) -> None:
        self.measure = Measure(self.snapshot, self.now_ms)
        settings = self.snapshot.settings
        off_peak = settings.off_peak is not None and settings.off_peak.contain(self.now_ms)
        self.budget_text = f"lakebed.read_budget is {settings.read_budget}"
        if self.goal is Goal.ELSEWHERE:
            settings = replace(settings, read_budget=budget_elsewhere(settings.read_budget))
            self.budget_text += f", which allows readers on other hosts {settings.read_budget}"
        self.settings = settings
        self.may_be_heavy = off_peak or settings.off_peak is None
        if off_peak:
            self.settings = replace(
                settings, read_budget=max(1, settings.read_budget // 2), purge_dead_ratio=settings.purge_dead_ratio / 2
            )
            self.budget_text += ", and half of it counts in the hours of lakebed.off_peak"

    def refuse(self, cause: Cause, count: int = 1) -> None:
        self.refused[cause] += count

    def wait(self, cause: Cause, candidate: MergePlan) -> None:
        """The plan waits until the planner is asked again."""
        self.refuse(cause)
        self.waiting |= {path: self.snapshot.parts[path].bytes for path in candidate.inputs}

    @property
    def taken(self) -> set[str]:
        """Paths of the inputs of accepted plans."""
        return {path for accepted in self.plans for path in accepted.inputs}

    def accepts(self, candidate: MergePlan) -> bool:
        """Whether the plan runs now; if not, the cause is counted."""
        if not self.measure.is_lowered_by([self.snapshot.parts[path] for path in candidate.inputs]):
            self.refuse(Cause.NO_GAIN)
            return False
        heavy = candidate.bytes_in > self.settings.target_part_bytes * SMALL
        if heavy and candidate.depth_before <= self.settings.read_budget and not self.may_be_heavy:
            self.wait(Cause.OFF_PEAK, candidate)
            return False
        allowed = IN_FLIGHT_PLANS * self.settings.plan_bytes_max - self.in_flight_bytes
        if self.is_full or candidate.bytes_in > allowed or len(self.plans) >= _PLANS_MAX:
            self.wait(Cause.IN_FLIGHT, candidate)
            self.is_full = True
            return False
        self.in_flight_bytes += candidate.bytes_in
        self.plans.append(candidate)
        return True

    def backlog_bytes(self, overlap_maps: Sequence[OverlapMap]) -> int:
        """Bytes of parts that plans of now or later are for, or that lie where it is too deep."""
        wanted = dict(self.waiting)
        for candidate in self.plans:
            wanted |= {path: self.snapshot.parts[path].bytes for path in candidate.inputs}
        if self.settings.merge == "recluster":
            depth = self.settings.recluster_depth
            late = [
                overlap_map.parts[index]
                for overlap_map in overlap_maps
                for index in overdue(overlap_map, depth).tolist()
            ]
            return sum((wanted | {part.path: part.bytes for part in late}).values())
        for overlap_map in overlap_maps if self.settings.merge != "off" else ():
            deep = np.cumsum(
                ((overlap_map.depth + overlap_map.under_work) > self.settings.read_budget) & ~overlap_map.given_up
            )
            before = np.where(overlap_map.low > 0, deep[overlap_map.low - 1], 0)
            for index in np.flatnonzero(overlap_map.free & (deep[overlap_map.high] > before)).tolist():
                wanted[overlap_map.parts[index].path] = overlap_map.parts[index].bytes
        return sum(wanted.values())
