"""A worker of a fleet: maintains the tables below some folders that it owns, with a few threads and bounded memory.

1. The *beat* says that this worker lives, and shows who else does (``membership``).
2. *Discovery* lists the folders below the roots now and then (``discovery``).
3. After either, the tables are *assigned*: this worker looks at those that rendezvous hashing gives to it (``membership``).
4. Each owned table is looked at, seldom while nothing comes (``looks``, ``watched``). One that has work is maintained here until
   it has none. At most ``tables_max`` are at a time; the others that have work wait, and go in the order of the scheduler. Some
   room is left for tables of the first tier.
5. For tables with a freshness that others own this worker may *stand by*: it looks after them if the owner does not.
6. Jobs that users requested (``lakebed.jobs``) run beside that, one at a time, in the worker that owns the table.

Nothing here is needed for the tables to be right. Any number of workers may run, with any view of each other.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

from lakebed import events
from lakebed.compaction.maintenance import TableMaintainers
from lakebed.compaction.scheduler import HEAD_START_SECONDS_MAX, ScheduledJob, Scheduler
from lakebed.coordination.log_cache import LogCache
from lakebed.discovery import may_be_found, require_apart, tables_in
from lakebed.errors import InvalidInput, LakebedError
from lakebed.failures import Outage
from lakebed.fleet.hints import Hint, HintPace, message_of
from lakebed.fleet.membership import BEAT_SECONDS, Membership, Worker, fleet_log, ranks_of
from lakebed.fleet.watched import Watched
from lakebed.jobs import JobRunner
from lakebed.settings import TIERS
from lakebed.sparks.cluster import MERGE_BYTES, MERGES_MAX, Cluster
from lakebed.storage.roots import parse_root
from lakebed.table import Table, internals_of
from lakebed.table import open as open_table

DISCOVERY_SECONDS = 600.0
HINTED_DISCOVERY_SECONDS = 10.0
"""After a discovery at the earliest, for a hint of a table that is not known; twice as long after each that found nothing."""
_OBSERVE_SECONDS = 10.0
_LOOK_THREADS = 4
_SLOW_SECONDS = 5.0
_CLOSE_SECONDS = 10.0
_TABLE_BYTES = 2 << 20
"""What an active table takes beside its snapshot, at most, so that ``tables_max`` follows from the memory."""
_TIERS = len(TIERS) + 1
_logger = logging.getLogger("lakebed.fleet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a worker may use."""

    cores: int = field(default_factory=lambda: os.cpu_count() or 1)  # threads that merge
    memory_bytes: int = 4 << 30  # a quarter of it is for snapshots, a quarter for tables
    shares: Mapping[str, float] = field(default_factory=dict)  # of pools of tables (``lakebed.pool``), 1 for any other
    # how long at most until an idle table is looked at again; None: as ``looks`` says
    look_seconds: float | None = None

    @property
    def cluster_merges_max(self) -> int:
        """How many merges may be on a cluster at a time: what they return to this process takes an eighth of the memory."""
        return max(1, min(MERGES_MAX, self.memory_bytes // 8 // MERGE_BYTES))

    def tables_max(self, tier: int = 0) -> int:
        """How many tables are maintained at a time before another one of this tier has to wait."""
        return max(4, self.memory_bytes // 4 // _TABLE_BYTES) * (_TIERS - tier) // _TIERS


@dataclass(frozen=True, slots=True, kw_only=True)
class _FleetState:
    """``known``: tables below the roots; ``owned``: by this worker; ``unseen``: of these, logs that were not read yet;
    ``standing_by``: for so many tables that others own; ``active``: under maintenance here; ``waiting``: they have work, and wait
    for room, for ``waiting_seconds`` at most. ``looks``: requests that only asked for a new version so far. ``troubles``: by root
    of a table.
    """

    workers: Mapping[str, float]
    known: int
    owned: int
    unseen: int
    standing_by: int
    active: int
    waiting: int
    waiting_seconds: float
    looks: int
    troubles: Mapping[str, LakebedError]


class Heard(StrEnum):
    """What a worker makes of a hint."""

    LOOKS = "looks"
    """The table is looked at, as soon as the time between two looks for hints is over."""
    KNOWN = "known"
    """This version was seen here already."""
    ELSEWHERE = "elsewhere"
    """Another worker owns the table."""
    NEW = "new"
    """No such table is known; the folders are listed soon."""
    UNRELATED = "unrelated"
    """It is below no folder of this fleet."""


@dataclass(slots=True)
class _Discovery:
    """The discovery of a root. ``pause_seconds``: from one to the next for a hint."""

    job: ScheduledJob
    outage: Outage
    pause_seconds: float
    pace: HintPace = field(default_factory=HintPace)


class FleetWorker:
    """One worker. Safe to use from several threads."""

    def __init__(
        self,
        roots: Sequence[str],
        limits: Limits | None = None,
        name: str | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        """``roots``: the first one has the log of the fleet; ``name``: an id of its own. Raises InvalidInput.

        ``cluster``: where large merges run. The worker closes it.
        """
        require_apart(roots)
        self.roots = tuple(dict.fromkeys(str(parse_root(root)) for root in roots))
        self.limits = limits or Limits()
        host = os.uname().nodename
        self.id = name or f"{host}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._membership = Membership(fleet_log(self.roots[0]), Worker(id=self.id, host=host, cores=self.limits.cores))
        self._maintenance = TableMaintainers(
            threads=max(4, 2 * self.limits.cores), merges=self.limits.cores, shares=self.limits.shares
        )
        self._logs = LogCache(self.limits.memory_bytes // 4)
        self._scheduler = Scheduler("look", _LOOK_THREADS, slow_seconds=_SLOW_SECONDS, shares=self.limits.shares)
        self._cluster = cluster
        self._jobs = JobRunner(self._open, threads=1)
        self._alive: dict[str, float] = {}
        self._log_outage = Outage("the log of the fleet", _logger)
        self._fresh: frozenset[str] = frozenset()
        self._found: dict[str, frozenset[str]] = {}
        self._tables: dict[str, tuple[Watched, ScheduledJob]] = {}
        self._room = threading.Lock()  # of _active and _waiting
        self._active: set[str] = set()
        self._waiting: set[str] = set()
        self._looks_reported = self._looks_of_the_gone = 0
        self._observe = ScheduledJob(self._run_observe, "the figures")
        # Before the looks at all tables, which may take minutes: meanwhile the others would take this worker for dead.
        self._beat = ScheduledJob(self._run_beat, "the beat", head_start_seconds=HEAD_START_SECONDS_MAX, tier=0)
        self._assign = ScheduledJob(self._run_assign, "the assignment")
        self._discoveries = {
            root: _Discovery(
                ScheduledJob(partial(self._discover, root), f"the discovery of {root}"),
                Outage(f"listing the tables below {root}", _logger),
                HINTED_DISCOVERY_SECONDS,
            )
            for root in self.roots
        }
        self._end_listening = events.listen(self._hear)

    def start(self) -> None:
        """Join the fleet and begin to work."""
        self._scheduler.wake(self._beat)
        self._scheduler.wake(self._observe)
        for each in self._discoveries.values():
            self._scheduler.wake(each.job)

    def close(self) -> None:
        """Stop working, release the claims, and leave the fleet."""
        self._end_listening()
        self._scheduler.close(_CLOSE_SECONDS)
        self._jobs.close()
        self._maintenance.stop()
        if self._cluster is not None:
            self._cluster.close()
        try:
            self._membership.leave()
        except LakebedError as error:
            _logger.warning("the others will notice by themselves that this worker has ended: %s", error)

    def poke(self, root: str) -> bool:
        """Let a table be looked at now; returns whether this worker looks after it."""
        watched = self._tables.get(root)
        if watched is None:
            return False
        self._maintenance.look(root)
        self._scheduler.wake(watched[1])
        return True

    def poked(self, body: object) -> Mapping[str, object]:
        """Take the JSON of a poke; returns the roots of its tables by what this worker makes of each. Raises InvalidInput."""
        try:
            message = message_of(body)
        except InvalidInput:
            events.emit(events.HintsReceived(table=self.roots[0], worker=self.id, malformed=1))
            raise
        heard: dict[str, list[str]] = {each.value: [] for each in Heard}
        for hint in message.hints:
            root, what = self.hear(hint)
            heard[what].append(root)
        counts = {what: len(roots) for what, roots in heard.items()}
        events.emit(events.HintsReceived(table=self.roots[0], worker=self.id, malformed=message.malformed, **counts))
        return {"worker": self.id, **heard, "malformed": message.malformed}

    def hear(self, hint: Hint) -> tuple[str, Heard]:
        """Take a hint from outside; returns the root of the table, and what this worker makes of it. Makes no request itself."""
        for root in hint.roots:
            if (watched := self._tables.get(root)) and watched[0].rank == 0:
                return root, self._hinted(*watched, hint.version)
        for root in hint.roots:
            if any(root in found for found in self._found.values()):
                return root, Heard.ELSEWHERE
        for root in hint.roots:
            if places := [place for place in self.roots if may_be_found(place, root)]:
                for place in places:
                    self._discover_soon(place)
                return root, Heard.NEW
        return hint.roots[0], Heard.UNRELATED

    def state(self) -> _FleetState:
        """What this worker does now."""
        tables, now = [watched for watched, _ in list(self._tables.values())], time.monotonic()
        owned = [each for each in tables if each.rank == 0]
        waiting = [each.waits_since for each in tables if each.waits_since is not None]
        troubles = {each.root: each.error for each in tables if each.error is not None}
        return _FleetState(
            workers=dict(self._alive),
            known=len(frozenset().union(*self._found.values())),
            owned=len(owned),
            unseen=sum(not each.was_seen for each in owned),
            standing_by=len(tables) - len(owned),
            active=sum(each.is_active for each in tables),
            waiting=len(waiting),
            waiting_seconds=max((now - since for since in waiting), default=0.0),
            looks=self._looks_of_the_gone + sum(each.looks for each in tables),
            troubles=troubles | self._maintenance.waiting_merges() | self._maintenance.troubles(),
        )

    def _hinted(self, watched: Watched, job: ScheduledJob, version: int | None) -> Heard:
        if version is not None and watched.knows(version):
            return Heard.KNOWN
        if (delay := watched.hinted()) is not None:
            self._scheduler.wake(job, delay)
        return Heard.LOOKS

    def _discover_soon(self, root: str) -> None:
        discovery = self._discoveries[root]
        if (delay := discovery.pace.hinted()) is not None:
            self._scheduler.wake(discovery.job, delay)

    # -- the jobs ------------------------------------------------------------------------------------------------------

    def _run_beat(self) -> float:
        try:
            tables = [watched for watched, _ in list(self._tables.values())]
            alive = self._membership.beat(
                [each.root for each in tables if each.rank == 0 and each.freshness is not None]
            )
            fresh = self._membership.fresh_tables
            self._membership.tidy()
            self._log_outage.works()
        except LakebedError as error:
            self._log_outage.failed(error)
            alive, fresh = self._alive or {self.id: self.limits.cores}, self._fresh  # alone, until it is known better
        if alive != self._alive:
            _logger.info("%d workers are alive: %s", len(alive), ", ".join(sorted(alive)))
        if (alive, fresh) != (self._alive, self._fresh):
            self._alive, self._fresh = alive, fresh
            self._scheduler.wake(self._assign)
        return BEAT_SECONDS

    def _run_observe(self) -> float:
        state = self.state()
        looks, self._looks_reported = state.looks - self._looks_reported, state.looks
        events.emit(
            events.WorkerObserved(
                table=self.roots[0],
                worker=self.id,
                workers=len(state.workers),
                known=state.known,
                owned=state.owned,
                active=state.active,
                waiting=state.waiting,
                waiting_seconds=state.waiting_seconds,
                troubled=len(state.troubles),
                looks=looks,
            )
        )
        return _OBSERVE_SECONDS

    def _discover(self, root: str) -> float:
        discovery, began = self._discoveries[root], time.monotonic()
        was_hinted = discovery.pace.begins()
        pause = self._find(root, discovery, was_hinted)
        discovery.pace.not_before = began + discovery.pause_seconds
        return min(pause, discovery.pace.ends())

    def _find(self, root: str, discovery: _Discovery, was_hinted: bool) -> float:
        try:
            found = frozenset(tables_in(root, self._found.get(root, frozenset())))
        except LakebedError as error:
            discovery.outage.failed(error)
            return BEAT_SECONDS
        discovery.outage.works()
        has_more = bool(found - self._found.get(root, frozenset()))
        if was_hinted or has_more:
            again = HINTED_DISCOVERY_SECONDS if has_more else 2 * discovery.pause_seconds
            discovery.pause_seconds = min(again, DISCOVERY_SECONDS)
        if found != self._found.get(root):
            self._found = {**self._found, root: found}
            self._scheduler.wake(self._assign)
        return DISCOVERY_SECONDS

    def _run_assign(self) -> None:
        """Take the tables that this worker owns or stands by for, and let go of the others."""
        if not self._alive:
            return
        tables = frozenset().union(*self._found.values())
        ranks = ranks_of(self.id, tables, self._fresh, self._alive)
        for root, rank in ranks.items():
            if root not in self._tables:
                self._take(root, rank)
            elif (found := self._tables[root])[0].stay(rank):
                self._scheduler.wake(found[1])
        for root in self._tables.keys() - ranks.keys():
            watched, job = self._tables[root]
            watched.leave()
            self._scheduler.wake(job)
        owned = sum(rank == 0 for rank in ranks.values())
        _logger.info("this worker owns %d of %d tables, and stands by for %d", owned, len(tables), len(ranks) - owned)

    def _take(self, root: str, rank: int) -> None:
        watched = Watched(
            root,
            self._logs,
            self._maintenance,
            partial(self._begins, root),
            others_wait=lambda: bool(self._waiting),
            run_jobs=self._jobs.look,
            cluster=self._cluster,
            look_seconds=self.limits.look_seconds,
        )
        watched.stay(rank)
        job = ScheduledJob(lambda: self._look(watched, job), f"the look at {root}")
        self._tables[root] = watched, job
        self._scheduler.wake(job)

    def _look(self, watched: Watched, job: ScheduledJob) -> float | None:
        pause = watched.look()
        job.tier, job.pool = watched.tier, watched.pool
        with self._room:
            if not watched.is_active:
                self._active.discard(watched.root)
            if watched.waits_since is None:
                self._waiting.discard(watched.root)
        if pause is None:
            self._tables.pop(watched.root, None)
            self._looks_of_the_gone += watched.looks
            if watched.is_gone:
                self._found = {root: found - {watched.root} for root, found in self._found.items()}
            self._scheduler.wake(self._assign)  # it may be this worker's again by now
        return pause

    def _open(self, root: str) -> Table:
        """A table for a job that a user requested."""
        table = open_table(root)
        internals_of(table).compaction.cluster = self._cluster
        return table

    def _begins(self, root: str, tier: int) -> bool:
        with self._room:
            may_begin = len(self._active) < self.limits.tables_max(tier)
            (self._active if may_begin else self._waiting).add(root)
            return may_begin

    def _hear(self, event: events.Event) -> None:
        if isinstance(event, events.BatchCommitted):
            self.poke(event.table)
