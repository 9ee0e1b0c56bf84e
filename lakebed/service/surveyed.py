"""What the newest version of a table says of its upkeep: figures, jobs, claims, what is parked, and what is due. Pure.

All of it is in the table's own log, so any service says the same. Times are epoch milliseconds; what depends on the time of
day is computed when it is asked for (``state_of``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lakebed.compaction.merge import LEASE_SECONDS
from lakebed.coordination.failing import Failing, failing_of, taken_paths
from lakebed.coordination.jobs import Job, jobs_of
from lakebed.coordination.parked import Parked, parked_of
from lakebed.coordination.settle_attempts import ParkedSettle, parked_settle
from lakebed.coordination.table_figures import figures_of
from lakebed.fleet.work import work_of
from lakebed.health.finding import Finding, Severity
from lakebed.log.claims import Claim, claims_of
from lakebed.log.snapshot import Snapshot
from lakebed.planning.planner import plan
from lakebed.planning.settling import due_ms as settle_due_ms
from lakebed.settings import TIERS
from lakebed.sortkey.statistics_cache import StatisticsCache

_LATE_MS = int(LEASE_SECONDS * 1000)


class TableState(StrEnum):
    """How a table is, the worst that is true of it: the first of these.

    ``unreadable``: its log can't be read; ``parked``: its pipeline leaves it alone; ``failing``: a merge or its settle is parked;
    ``critical``: rows may be lost, wrong or unreadable, or ingest is slowed down; ``late``: its tail is older than it should be;
    ``running``: a process works on it; ``waiting``: there is something to do; ``quiet``: nothing.
    """

    UNREADABLE = "unreadable"
    PARKED = "parked"
    FAILING = "failing"
    CRITICAL = "critical"
    LATE = "late"
    RUNNING = "running"
    WAITING = "waiting"
    QUIET = "quiet"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSeen:
    """A claim, and what of its sources is still in the table."""

    claim: Claim
    parts: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Surveyed:
    """A table as it was when it was looked at.

    ``why``: what there is to do, "" for nothing; ``due_ms``: when there may be something without another commit.
    ``tail_since_ms``: of its oldest change; ``late_from_ms``: when the tail is late. ``findings``: what is wrong, the
    critical ones first (``health.glance``). ``error``: why the newest version can't be
    read; the rest is then of the last one that could, or empty.
    """

    table_id: str = ""
    version: int = -1
    committed_ms: int = 0
    rows: int = 0
    bytes: int = 0
    parts: int = 0
    tail_rows: int = 0
    tail_since_ms: int | None = None
    late_from_ms: int | None = None
    depth: int = 0
    read_budget: int = 0
    tier: str = ""
    pool: str = ""
    freshness_seconds: int | None = None
    why: str = ""
    due_ms: int | None = None
    jobs: tuple[Job, ...] = ()
    claims: tuple[ClaimSeen, ...] = ()
    failing: tuple[Failing, ...] = ()
    parked: Parked | None = None
    settle: ParkedSettle | None = None
    findings: tuple[Finding, ...] = ()
    error: str = ""

    @property
    def is_busy(self) -> bool:
        """Whether it may change soon: a merge is under way, or a job that has not ended."""
        return any(not each.claim.volatile for each in self.claims) or any(not job.has_ended for job in self.jobs)

    def is_settle_parked(self, now_ms: int) -> bool:
        """Whether its tail is left alone."""
        return self.settle is not None and now_ms < self.settle.not_before_ms

    def late_seconds(self, now_ms: int) -> float | None:
        """The age of the oldest change that is not settled; None if all are."""
        return None if self.tail_since_ms is None else max(0, now_ms - self.tail_since_ms) / 1000


def surveyed(snapshot: Snapshot, now_ms: int, statistics: StatisticsCache) -> Surveyed:
    """A table at a version. It asks the planner, which costs what the newest plan of the table costs."""
    figures, settings = figures_of(snapshot, now_ms), snapshot.settings
    planning = plan(snapshot, taken_paths(snapshot, now_ms), now_ms, statistics=statistics)
    work = work_of(snapshot, now_ms, statistics)
    settles = settle_due_ms(snapshot)
    oldest = min((part.modified_ms for part in snapshot.tail.values()), default=None)
    late_from = None if settles is None else settles + _LATE_MS
    if oldest is not None and settings.freshness_seconds is not None:
        late_from = oldest + settings.freshness_seconds * 1000
    return Surveyed(
        table_id=snapshot.metadata.id,
        version=snapshot.version,
        committed_ms=snapshot.timestamp_ms,
        rows=figures.rows,
        bytes=figures.bytes,
        parts=figures.parts,
        tail_rows=figures.tail_rows,
        tail_since_ms=oldest,
        late_from_ms=late_from,
        depth=planning.depth_max,
        read_budget=settings.read_budget,
        tier=settings.tier,
        pool=settings.pool,
        freshness_seconds=settings.freshness_seconds,
        why=work.why,
        due_ms=work.due_ms,
        jobs=jobs_of(snapshot),
        claims=_claims(snapshot),
        failing=tuple(failing_of(snapshot).values()),
        parked=parked_of(snapshot),
        settle=parked_settle(snapshot, now_ms),
    )


def _claims(snapshot: Snapshot) -> tuple[ClaimSeen, ...]:
    found = []
    for claim in sorted(claims_of(snapshot.domains).values(), key=lambda claim: (claim.since_ms, claim.id)):
        covered = [snapshot.parts[path] for path in claim.sources if path in snapshot.parts]
        found.append(ClaimSeen(claim=claim, parts=len(covered), bytes=sum(part.bytes for part in covered)))
    return tuple(found)


def state_of(table: Surveyed, now_ms: int) -> TableState:
    """How a table is now, as far as is known."""
    if table.error:
        return TableState.UNREADABLE
    if table.parked is not None:
        return TableState.PARKED
    if table.is_settle_parked(now_ms) or any(each.is_parked(now_ms) for each in table.failing):
        return TableState.FAILING
    if table.findings and table.findings[0].severity is Severity.CRITICAL:
        return TableState.CRITICAL
    if table.late_from_ms is not None and table.late_from_ms <= now_ms:
        return TableState.LATE
    works = (each.claim.is_live(now_ms) and not each.claim.volatile for each in table.claims)
    if any(works) or any(job.is_held(now_ms) for job in table.jobs):
        return TableState.RUNNING
    return TableState.WAITING if table.why else TableState.QUIET


def urgency(table: Surveyed, now_ms: int) -> tuple[int, float, float]:
    """Sorts tables as a fleet takes them: by tier, then how late, measured by their freshness, then how late in seconds."""
    late = table.late_seconds(now_ms) or 0.0
    measured = late / table.freshness_seconds if table.freshness_seconds else 0.0
    return (TIERS.index(table.tier) if table.tier in TIERS else len(TIERS), -measured, -late)
