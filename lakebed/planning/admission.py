"""Which candidate plans run now, by the measure, the time of day, and what is in flight. Pure.

1. A plan that does not lower the ``measure`` is refused: without that, merges might not come to an end.
2. In the hours of ``lakebed.off_peak`` the read budget and the purge ratio count half: work that is done then leaves room for
   the day. Outside them, plans that read more than half a full part wait for these hours, unless the read budget is exceeded.
3. With what is in flight, plans read at most twice ``lakebed.plan_bytes_max``. The first plan that does not fit ends the
   admission, so that a large one gets its turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from lakebed.log.snapshot import Snapshot
from lakebed.planning.measure import Measure
from lakebed.planning.overlap import SMALL, OverlapMap
from lakebed.planning.plan import Cause, Goal, MergePlan
from lakebed.planning.recluster import overdue
from lakebed.settings import TableSettings
from lakebed.sortkey.statistics_cache import StatisticsCache

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
