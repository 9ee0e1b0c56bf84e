"""All tables of the service at a glance, for answers about many of them: renewed while requests come, and kept in memory.

1. While requests come, a thread passes over the tables every ``PASS_SECONDS``, or less often: it takes at most a fifth of the
   time (``ui.watch.Looking``). If nobody asks for a minute, it sleeps.
2. A pass asks the logs of those that are due for a newer version: one request to the store for each. A table that is worked on,
   or has a job that has not ended, is due at each pass; another one after a tenth of the time for which nothing came to it, a
   minute at most. Only of a new version, or when a time has come, is the planner asked. What is wrong with a table
   is looked up at most once a minute (``health.sampler``): that lists its files, too, every ten minutes if it is quiet.
3. Which tables there are is listed every ``LIST_SECONDS``, by this or by what looks for jobs. A table whose log was not read yet
   is counted as ``unseen``, so an answer in the first seconds says what it lacks.
4. What this service was asked for is seen at once: tables with a hint are looked at before the next answer.

So an answer about all tables is up to a minute old where other processes commit. What a table's own routes say is the newest.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum

from lakebed.compaction.merge import LEASE_SECONDS
from lakebed.coordination.failing import (
    Failing,
    Parked,
    ParkedSettle,
    failing_of,
    parked_of,
    parked_settle,
    taken_paths,
)
from lakebed.coordination.jobs import Job, jobs_of
from lakebed.coordination.table_figures import figures_of
from lakebed.discovery import pause_seconds
from lakebed.errors import LakebedError, TableNotFound
from lakebed.fleet.membership import FOLDER, Worker, workers_of
from lakebed.fleet.watched import work_of
from lakebed.health.finding import Finding, Severity
from lakebed.health.run_report import Runs
from lakebed.health.sampler import Glance
from lakebed.log.claims import Claim, claims_of
from lakebed.log.snapshot import Snapshot
from lakebed.planning.planner import plan
from lakebed.planning.settling import due_ms as settle_due_ms
from lakebed.service.catalog import Catalog
from lakebed.settings import TIERS
from lakebed.sortkey.statistics_cache import StatisticsCache
from lakebed.ui.watch import Looking

# -- What the newest version of a table says of its upkeep: figures, jobs, claims, what is parked, and what is due ---------
#
# All of it is in the table's own log, so any service says the same. Times are epoch milliseconds; what depends on the time of
# day is computed when it is asked for (``state_of``).


_LATE_MS = int(LEASE_SECONDS * 1000)


class TableState(StrEnum):
    """The state of a table: of these, the first that is true."""

    UNREADABLE = "unreadable"  # its log can't be read
    PARKED = "parked"  # its pipeline leaves it alone
    FAILING = "failing"  # a merge or its settle is parked
    CRITICAL = "critical"  # rows may be lost, wrong or unreadable, or ingest is slowed down
    LATE = "late"  # its tail is older than it should be
    RUNNING = "running"  # a process works on it
    WAITING = "waiting"  # there is something to do
    QUIET = "quiet"  # there is nothing to do


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClaimSeen:
    """A claim, and what of its sources is still in the table."""

    claim: Claim
    parts: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Surveyed:
    """A table as it was when it was looked at."""

    table_id: str = ""
    version: int = -1
    committed_ms: int = 0
    rows: int = 0
    bytes: int = 0
    parts: int = 0
    tail_rows: int = 0
    tail_since_ms: int | None = None  # of its oldest change
    late_from_ms: int | None = None  # when the tail is late
    depth: int = 0
    read_budget: int = 0
    tier: str = ""
    pool: str = ""
    freshness_seconds: int | None = None
    why: str = ""  # what there is to do; empty for nothing
    due_ms: int | None = None  # when there may be something without another commit
    jobs: tuple[Job, ...] = ()
    claims: tuple[_ClaimSeen, ...] = ()
    failing: tuple[Failing, ...] = ()
    parked: Parked | None = None
    settle: ParkedSettle | None = None
    findings: tuple[Finding, ...] = ()  # what is wrong, the critical ones first (``health.sampler``)
    error: str = ""  # why the newest version can't be read; the rest is then of the last one that could, or empty

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


def _claims(snapshot: Snapshot) -> tuple[_ClaimSeen, ...]:
    found = []
    for claim in sorted(claims_of(snapshot.domains).values(), key=lambda claim: (claim.since_ms, claim.id)):
        covered = [snapshot.parts[path] for path in claim.sources if path in snapshot.parts]
        found.append(_ClaimSeen(claim=claim, parts=len(covered), bytes=sum(part.bytes for part in covered)))
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


# -- All tables of the service at a glance ---------------------------------------------------------------------------------


PASS_SECONDS = 2.0
LIST_SECONDS = 60.0
LOOK_SECONDS_MAX = 60.0
_THREADS = 8
_WAIT_SECONDS = 5.0
_ERROR_MAX = 1_000
_logger = logging.getLogger("lakebed.service")


@dataclass(slots=True)
class Member:
    """A table that was listed."""

    name: str
    root: str
    glance: Glance
    seen: Surveyed | None = None  # what is known of it; None before the first look
    looked_ms: int = 0  # when it was looked at
    due: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What is known of all tables."""

    tables: tuple[tuple[Member, Surveyed], ...]  # those whose logs were read, by name
    workers: Mapping[str, Worker]  # of fleets
    unseen: int
    error: str  # why tables can't be listed; empty if they can

    @property
    def looked_ms(self) -> int | None:
        """When the table was looked at that was looked at longest ago; None if none was."""
        return min((member.looked_ms for member, _ in self.tables), default=None)


class Surveyor:
    """Follows the tables of a catalog, from ``start`` until ``close``. Safe to use from several threads."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._members: dict[str, Member] = {}
        self._runs = Runs()
        self._workers: dict[str, Worker] = {}
        self._hints: set[str] = set()
        self._lock = threading.Lock()  # of the hints
        self._has_new = False
        self._error = ""
        self._looking: Looking[int] = Looking("survey", PASS_SECONDS, self._pass)

    def start(self) -> None:
        self._looking.start()

    def close(self) -> None:
        self._looking.close()

    def hint(self, root: str) -> None:
        """A caller has just changed this table through the service: look at it before the next answer."""
        with self._lock:
            self._hints.add(root)

    def survey(self) -> Survey:
        """What is known of all tables; waits some seconds for the first look at them, or the first after a sleep."""
        self._looking.seen(time.monotonic() + _WAIT_SECONDS)
        with self._lock:
            hints, self._hints = self._hints, set()
        for root in hints:
            member = self._members.get(root)
            if member is None:
                self._has_new = True  # the next pass lists
            else:
                self._look(member)
        members = list(self._members.values())
        known = [(member, seen) for member in members if (seen := member.seen) is not None]
        known.sort(key=lambda each: (each[0].name, each[0].root))
        return Survey(tables=tuple(known), workers=self._workers, unseen=len(members) - len(known), error=self._error)

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _pass(self, is_due: bool) -> int:
        """Look at the tables that are due; returns how many there are in all."""
        try:
            self._list()
            self._error = ""
        except Exception as error:  # those that are known are looked at; the next pass tries again
            if not isinstance(error, LakebedError):
                _logger.exception("listing the tables failed")
            self._error = str(error)[:_ERROR_MAX] or type(error).__name__
        now = time.monotonic()
        due = [member for member in list(self._members.values()) if member.due <= now]
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="lakebed-survey") as pool:
            list(pool.map(self._look, due))
        self._workers = self._fleet()
        return len(self._members)

    def _list(self) -> None:
        seconds, self._has_new = 0.0 if self._has_new else LIST_SECONDS, False
        found = {root: name for name, roots in self._catalog.tables_lately(seconds).items() for root in roots}
        self._members = {
            root: self._members.get(root) or Member(name, root, Glance(root, runs=self._runs))
            for root, name in found.items()
        }

    def _look(self, member: Member) -> None:
        log = self._catalog.logs.open(member.root)
        last, now_ms = member.seen, log.now_ms()
        try:
            snapshot = log.refresh()
            is_same = last is not None and (last.table_id, last.version) == (snapshot.metadata.id, snapshot.version)
            is_due = last is not None and last.due_ms is not None and last.due_ms <= now_ms
            if last is None or last.error or not is_same or is_due:
                last = surveyed(snapshot, now_ms, log.statistics)
            found = member.glance.look(snapshot, now_ms).findings
            last = last if last.findings == found else replace(last, findings=found)
        except TableNotFound:
            self._members.pop(member.root, None)
            self._catalog.forget(member.root)
            return
        except Exception as error:  # the table's trouble alone
            if not isinstance(error, LakebedError):
                _logger.exception("looking at %s failed", member.root)
            last = replace(last or Surveyed(), error=str(error)[:_ERROR_MAX] or type(error).__name__)
        idle_seconds = max(0.0, (now_ms - last.committed_ms) / 1000)
        pause = 0.0 if last.is_busy else min(LOOK_SECONDS_MAX, pause_seconds(idle_seconds))
        member.seen, member.looked_ms, member.due = last, now_ms, time.monotonic() + pause

    def _fleet(self) -> dict[str, Worker]:
        found: dict[str, Worker] = {}
        for root in self._catalog.roots:
            place = f"{root.rstrip('/')}/{FOLDER}"
            try:
                found |= workers_of(self._catalog.logs.open(place).refresh())
            except TableNotFound:  # there is no fleet
                self._catalog.logs.forget(place)
            except LakebedError as error:
                _logger.debug("the workers of %s are not known: %s", root, error)
                found |= self._workers
        return found
