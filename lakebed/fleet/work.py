"""What a table needs now, and when it may need something although nobody commits to it. Pure.

A table that needs nothing rests: a worker keeps of it the number of its newest version, and looks for the next one.
"""

from __future__ import annotations

from dataclasses import dataclass

from lakebed.compaction.merge import LEASE_SECONDS
from lakebed.coordination.failing import failing_of, has_gone, taken_paths
from lakebed.coordination.jobs import Job, jobs_of
from lakebed.coordination.settle_attempts import parked_settle
from lakebed.log.claims import claims_of
from lakebed.log.purges import purges_of
from lakebed.log.snapshot import Snapshot
from lakebed.planning.planner import plan
from lakebed.planning.settling import due_ms as settle_due_ms
from lakebed.planning.settling import reason_to_settle
from lakebed.settings import DailyHours
from lakebed.sortkey.statistics_cache import StatisticsCache

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
