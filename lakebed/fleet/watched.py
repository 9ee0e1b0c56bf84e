r"""One table that a worker owns: it rests, or it is under maintenance in this process.

                 a look finds work, and there is room
        resting --------------------------------------> active
           ^                                               |
           \--- nothing ran, waited or came for a while ---/

A worker that *stands by* for a table with a freshness looks at it too, and maintains it only when a change has waited for so long
that its owner should have settled it (``standby_due_ms``). Then it lets go after a while, and stands by again: if the owner
is dead, it takes the table over again when that is due.

A resting table is the number of its newest version, the name of its log, and a time: no thread, no snapshot, no file. Its log may
be in the cache of logs, which is bounded in bytes. What an active table is, ``compaction.table_maintainer`` says.

**What a table needs** now, and when it may need something although nobody commits to it, follows from its snapshot. A table that
needs nothing rests: a worker keeps of it the number of its newest version, and looks for the next one.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from lakebed.compaction.maintenance import TableMaintainers
from lakebed.compaction.merge import LEASE_SECONDS
from lakebed.coordination.failing import failing_of, has_gone, parked_settle, taken_paths
from lakebed.coordination.jobs import Job, due_jobs, jobs_of
from lakebed.coordination.log_cache import LogCache
from lakebed.discovery import RELIST_SECONDS, hinted_pause_seconds, pause_seconds, standby_pause_seconds
from lakebed.errors import LakebedError, Retry, TableNotFound
from lakebed.fleet.hints import HintPace
from lakebed.log.claims import claims_of
from lakebed.log.entries import SETTLED
from lakebed.log.removals import purges_of
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import LogStore, commit_name, has_object, open_store
from lakebed.log.table_log import TableLog, require_writable
from lakebed.planning.planner import plan
from lakebed.planning.settling import due_ms as settle_due_ms
from lakebed.planning.settling import reason_to_settle
from lakebed.positions.point_log import FOLDER as POINTS_FOLDER
from lakebed.settings import TIERS, DailyHours, retention_seconds
from lakebed.sortkey.statistics_cache import StatisticsCache
from lakebed.sparks.cluster import Cluster
from lakebed.table.internals import Internals

_JOB_WAITS_MS = 5_000
_DAY_MS = 86_400_000
_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """``why``: what there is to do now; empty: nothing. ``due_ms``: when there may be something without another commit."""

    why: str = ""
    due_ms: int | None = None


def work_of(snapshot: Snapshot, now_ms: int, statistics: StatisticsCache) -> Work:
    """What the table needs at a version. Times in epoch milliseconds."""
    parked = parked_settle(snapshot, now_ms)
    if parked is None and (why := reason_to_settle(snapshot, now_ms, statistics)):
        return Work(why=why)
    claims = claims_of(snapshot.domains).values()
    lease_ms = int(LEASE_SECONDS * 1000)
    if any(not claim.is_live(now_ms - lease_ms) for claim in claims):
        return Work(why="a claim is left in the log whose lease has ended")
    if purges_of(snapshot.domains):
        return Work(why="a purge is under way")
    if has_gone(snapshot):
        return Work(why="the log has an entry of a parked merge whose parts are gone")
    if merges := plan(snapshot, taken_paths(snapshot, now_ms), now_ms, statistics=statistics).merges:
        return Work(why=merges[0].why)
    due = [claim.lease_ms + (0 if claim.is_live(now_ms) else lease_ms) for claim in claims]
    due += [_job_due_ms(job, now_ms) for job in jobs_of(snapshot) if not job.has_ended]
    due += [each.not_before_ms for each in failing_of(snapshot).values() if each.is_parked(now_ms)]
    settles = settle_due_ms(snapshot) if parked is None else parked.not_before_ms
    if settles is not None:
        due.append(settles)
    if snapshot.settings.off_peak is not None:
        due.append(_next_begin_ms(snapshot.settings.off_peak, now_ms))
    return Work(due_ms=min(due, default=None))


def standby_due_ms(snapshot: Snapshot, rank: int, now_ms: int) -> int | None:
    """When a worker that stands by for the table takes it over, in epoch milliseconds; None if it need not.

    The owner settles when half of the freshness is over (``planning.settling``). What remains is for those that stand by: the
    first (``rank`` 1) gives the owner an eighth of the freshness, and each next one gives as much to the one before it. Nobody
    takes over what killed the owner and others (``settle_attempts``).
    """
    freshness = snapshot.settings.freshness_seconds
    if freshness is None or not snapshot.tail:
        return None
    oldest_ms = min(part.modified_ms for part in snapshot.tail.values())
    due_ms, parked = oldest_ms + 1000 * freshness * (4 + rank) // 8, parked_settle(snapshot, now_ms)
    return due_ms if parked is None else max(due_ms, parked.not_before_ms)


def _job_due_ms(job: Job, now_ms: int) -> int:
    """When to look at a job again: one that could run now waits for a free thread, or for another of its kind."""
    if job.is_held(now_ms):
        return job.until_ms
    return max(job.not_before_ms, now_ms + _JOB_WAITS_MS)


def _next_begin_ms(hours: DailyHours, now_ms: int) -> int:
    begin = now_ms - now_ms % _DAY_MS + hours.start_minute * _MINUTE_MS
    return begin if begin > now_ms else begin + _DAY_MS


_DAY_SECONDS = 86_400.0
_CLEAN_SECONDS = (60.0, 3600.0)

_REST_SECONDS = 30.0
"""A table rests after so long without a new version."""
_REST_LOOK_SECONDS = 5.0
_LEAVE_SECONDS = 600.0  # how long a merge may go on after another worker has come to own its table
_FAILED_SECONDS = (2.0, 300.0)
_NO_ROOM_SECONDS = 1.0
_BY_POINTS_SECONDS = 600.0
"""A pipeline that has taken no point for so long does not settle up to points any more."""
_logger = logging.getLogger("lakebed.fleet")


class Watched:
    """One table of a worker. ``look`` is for one thread at a time; the other members may be read by any."""

    def __init__(
        self,
        root: str,
        logs: LogCache,
        maintenance: TableMaintainers,
        may_begin: Callable[[int], bool],
        *,
        others_wait: Callable[[], bool] = lambda: False,
        run_jobs: Callable[[str], object] = lambda root: None,
        cluster: Cluster | None = None,
        look_seconds: float | None = None,
    ) -> None:
        """``may_begin``: whether there is room for one more active table, of this tier; it is taken if so.

        ``others_wait``: whether tables wait for room; ``run_jobs``: begins jobs of a table that are due;
        ``cluster``: where large merges run; ``look_seconds``: how long at most until it is looked at again.
        """
        self.root = root
        self.tier, self.pool = 1, "default"
        self.freshness: int | None = None
        """Of the table, in seconds, as far as it is known."""
        self.rank = 0
        """0: this worker owns the table; else how many are before it of those that stand by, and the owner."""
        self.is_active = False
        self.waits_since: float | None = None
        """Since when it has work and there is no room for it, by the monotonic clock."""
        self.is_gone = False
        self.error: LakebedError | None = None
        self.looks = 0
        """Looks that read the name of the next version and nothing else."""
        self._logs = logs
        self._maintenance = maintenance
        self._may_begin = may_begin
        self._others_wait = others_wait
        self._run_jobs = run_jobs
        self._cluster = cluster
        self._look_seconds = look_seconds
        self._store: LogStore | None = None
        self._log: TableLog | None = None  # while it is active
        self._known: tuple[str, int] = ("", -1)  # the table's id and version
        self._found_version = -1  # what came until then, others may have tried to settle
        self._changed_at = self._listed_at = -math.inf
        self._due_at = self._clean_at = self._leave_at = math.inf
        self._acts_as = 0  # the rank as of the last look
        self._begun_at = -math.inf
        self._failures = 0
        self._hints_in_vain = 0
        self._pace = HintPace()

    @property
    def was_seen(self) -> bool:
        """Whether its log was read."""
        return self._known[1] >= 0

    # -- from other threads --------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Let go of the table at the next looks: it is another worker's."""
        self._leave_at = min(self._leave_at, time.monotonic() + _LEAVE_SECONDS)

    def stay(self, rank: int = 0) -> bool:
        """It is this worker's after all, or this worker stands by for it; returns whether that is new."""
        is_new = rank != self.rank or self._leave_at < math.inf
        self.rank, self._leave_at = rank, math.inf
        return is_new

    def hinted(self) -> float | None:
        """A hint says that the table has changed; returns in how many seconds to look for that; None: it is planned."""
        return self._pace.hinted()

    def knows(self, version: int) -> bool:
        """Whether this version of the table was seen here."""
        log = self._log
        newest = None if log is None else log.newest
        return version <= (self._known[1] if newest is None else newest.version)

    # -- looking -------------------------------------------------------------------------------------------------------

    def look(self) -> float | None:
        """Find out whether the table has work; returns the seconds until the next look. None: it is let go of."""
        now, hinted = time.monotonic(), self._pace.begins()
        self._pace.not_before = now + hinted_pause_seconds(self._hints_in_vain)
        pause = self._look_or_fail(now, hinted)
        again = self._pace.ends()
        return None if pause is None else min(pause, again)

    def _look_or_fail(self, now: float, hinted: bool) -> float | None:
        try:
            pause = self._look(now, hinted)
            self.error, self._failures = None, 0
            return pause
        except TableNotFound:
            self._end()
            self.is_gone = True
            self._logs.forget(self.root)
            return None
        except LakebedError as error:
            if type(error) is not type(self.error):
                _logger.warning("%s is looked at again later: %s", self.root, error)
            self.error = error
            self._failures += 1
            first, last = _FAILED_SECONDS
            if isinstance(error, Retry):
                last = min(pause_seconds(math.inf, self.freshness), first * 2.0 ** min(self._failures, 10))
            self._pace.not_before = now + last  # a hint does not try it again earlier
            return last

    def _look(self, now: float, hinted: bool) -> float | None:
        if self._leave_at < math.inf and self._lets_go(now):
            return None
        if self._acts_as != self.rank:
            self._acts_as, self._known, self._due_at, self._clean_at = self.rank, ("", -1), now, math.inf
        if self.is_active:
            if hinted:
                self._maintenance.look(self.root)
            return self._look_at_active(now)
        if self._acts_as:
            return self._stand_by(now)
        has_news = self._has_news(now)
        if hinted:
            self._hints_in_vain = 0 if has_news else self._hints_in_vain + 1
            self._pace.not_before = now + hinted_pause_seconds(self._hints_in_vain)
        if has_news and self._look_closer(now):
            return _REST_LOOK_SECONDS
        if self.waits_since is not None:
            return _NO_ROOM_SECONDS
        next_look = now + pause_seconds(now - self._changed_at, self.freshness, self._look_seconds)
        return max(0.0, min(next_look, self._due_at, self._clean_at) - now)

    def _stand_by(self, now: float) -> float:
        if self._has_news(now):
            log = self._logs.open(self.root)
            snapshot = log.refresh()
            self._listed_at = now
            require_writable(snapshot.protocol)
            self._saw(snapshot, now)
            late_ms = standby_due_ms(snapshot, self._acts_as, log.now_ms())
            if late_ms is not None and late_ms <= log.now_ms() and not self._settles_by_points(snapshot):
                return _REST_LOOK_SECONDS if self._begin(log) else _NO_ROOM_SECONDS
            self.waits_since = None
            self._rest(snapshot, Work(due_ms=late_ms), log.now_ms(), now)
        return max(0.0, min(standby_pause_seconds(self.freshness), self._due_at - now))

    def _lets_go(self, now: float) -> bool:
        if self.is_active and now < self._leave_at and not self._maintenance.is_at_rest(self.root):
            return False
        self._end()
        return True

    def _has_news(self, now: float) -> bool:
        """Whether there is a new version, or it is time to look closer."""
        if now >= min(self._due_at, self._clean_at) or now - self._listed_at >= RELIST_SECONDS or self.waits_since:
            return True
        self.looks += 1
        self._store = self._store or open_store(self.root)
        return has_object(self._store, commit_name(self._known[1] + 1))

    def _look_closer(self, now: float) -> bool:
        """Read the newest version, and clean up if it is time; returns whether the table is active from now on."""
        log = self._logs.open(self.root)
        snapshot = log.refresh()  # lists the log too, if it was not listed lately
        self._listed_at = now
        require_writable(snapshot.protocol)
        self._saw(snapshot, now)
        if now >= self._clean_at:
            Internals(self.root, log).look_after()
            self._clean_at = now + clean_pause_seconds(snapshot, now - self._changed_at)
            snapshot = log.refresh()
        if due_jobs(snapshot, log.now_ms()):
            self._run_jobs(self.root)
        work = work_of(snapshot, log.now_ms(), log.statistics)
        if work.why or log.checkpoint_is_due(snapshot):
            if not self._settles_by_points(snapshot):
                return self._begin(log)
            work = Work(due_ms=log.now_ms() + int(_BY_POINTS_SECONDS * 1000))
        self.waits_since = None
        self._rest(snapshot, work, log.now_ms(), now)
        return False

    def _settles_by_points(self, snapshot: Snapshot) -> bool:
        """Whether a pipeline settles the table up to points, so that another one would settle beyond them."""
        if snapshot.settings.source_topic is None:
            return False
        points = self._logs.open(f"{self.root.rsplit('/', 2)[0]}/{POINTS_FOLDER}")
        try:
            newest = points.refresh()
        except TableNotFound:
            self._logs.forget(points.root)
            return False
        return SETTLED in newest.domains and points.now_ms() - newest.timestamp_ms < _BY_POINTS_SECONDS * 1000

    def _look_at_active(self, now: float) -> float:
        assert self._log is not None
        log, newest = self._log, self._log.newest
        if newest is not None and due_jobs(newest, log.now_ms()):
            self._run_jobs(self.root)
        if newest is None or not self._maintenance.is_at_rest(self.root):
            return _REST_LOOK_SECONDS
        self._saw(newest, now)
        if now - (self._begun_at if self._acts_as else self._changed_at) < _REST_SECONDS and not self._others_wait():
            return _REST_LOOK_SECONDS
        if self._acts_as:
            self._end()
            self._due_at = now
            return 0.0
        work = work_of(newest, log.now_ms(), log.statistics)
        if not work.why and not log.checkpoint_is_due(newest):
            self._end()
            self._rest(newest, work, log.now_ms(), now)
            return 0.0
        return _REST_LOOK_SECONDS

    def _saw(self, snapshot: Snapshot, now: float) -> None:
        seen, settings = (snapshot.metadata.id, snapshot.version), snapshot.settings
        self.freshness = settings.freshness_seconds
        self.tier, self.pool = TIERS.index(settings.tier), settings.pool
        if seen == self._known:
            return
        is_first, self._known = self._known[1] < 0, seen
        if is_first or self._acts_as:  # its owner did not settle what this worker takes over
            self._found_version = snapshot.version
        self._hints_in_vain = 0
        self._pace.not_before = min(self._pace.not_before, now + hinted_pause_seconds(0))
        # How long nothing came before this worker knew the table, by the clock of who committed last. It is a guess.
        self._changed_at = now - (max(0.0, time.time() - snapshot.timestamp_ms / 1000) if is_first else 0.0)
        if not self._acts_as:
            self._clean_at = min(self._clean_at, now + clean_pause_seconds(snapshot, 0.0))

    def _rest(self, snapshot: Snapshot, work: Work, now_ms: int, now: float) -> None:
        self._known = snapshot.metadata.id, snapshot.version
        self._due_at = math.inf if work.due_ms is None else now + max(1.0, (work.due_ms - now_ms) / 1000)

    def _begin(self, log: TableLog) -> bool:
        if not self._may_begin(self.tier):
            self.waits_since = self.waits_since or time.monotonic()
        else:
            self.is_active, self._log, self.waits_since, self._begun_at = True, log, None, time.monotonic()
            duties = Internals(self.root, log).duties(
                in_fleet=True, cluster=self._cluster, found_version=self._found_version
            )
            self._maintenance.add(duties)
        return self.is_active

    def _end(self) -> None:
        if self.is_active:
            self._maintenance.remove(self.root)
        self._log, self.is_active, self.waits_since = None, False, None


def clean_pause_seconds(snapshot: Snapshot, idle_seconds: float) -> float:
    """Seconds until a resting table is looked after again: an hour at most while it changes or if its rows expire, else a day.

    Then files are deleted that no version needs, and rows that are too old removed.

    ``idle_seconds``: since the table changed last. Infinite when nothing can be left to clean.
    """
    log_seconds = snapshot.settings.log_retention_seconds
    kept_seconds = max(log_seconds, retention_seconds(snapshot.metadata.configuration))
    if snapshot.settings.ttl is not None:
        return _CLEAN_SECONDS[1]
    if idle_seconds > kept_seconds + 2 * _DAY_SECONDS:
        return math.inf
    often = max(_CLEAN_SECONDS[0], min(_CLEAN_SECONDS[1], log_seconds / 2))
    return often if idle_seconds < _CLEAN_SECONDS[1] else max(often, _DAY_SECONDS)
