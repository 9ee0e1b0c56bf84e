"""When a point is reached, and up to where the next batch reads. Pure, but for the window, which it fills.

    target chosen ──batches──> every table is exactly at the target ──> point ──> next target

1. Before a batch the topic of transactions is read as far as the batch goes. The target is the last transaction that has ended.
   It stays until there is a point at it, so that topics which lag behind can reach it.
2. A table is exactly at the target if it has no event of a later transaction, each event that transactions up to the target count
   of it, and has read what its topic had, but for what is behind the cut. Rows of a snapshot are in no transaction, so no count
   says whether they are there: a table takes part once it has read all that its topic had when a batch was planned.
3. If every table is, there is a point. A parked table is left out of it.
4. If the point does not come within ``patience``, the target moves on, and the next patience is twice as long: events that come
   again may stand before the target's. A table that is not exactly there for ``wait_seconds`` is left out of the point, with the
   reason. It is in later points as soon as it is exactly there; now and then they wait for it. If the source is quiet, it joins
   the newest point. If an event never comes, that is when the window has forgotten its transaction.
5. Safety rests on the logs of the tables alone: a point names versions whose own progress says that they are exactly there. Time
   decides only how long is waited.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from lakebed.ingest.points.cut import Cut
from lakebed.ingest.points.window import End, Window
from lakebed.manifest.progress import Progress

PATIENCE_SECONDS = 2.0
PAUSE_SECONDS = 30.0
"""So much time passes until a point waits again for a table that was not in the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDone:
    """What a table is after a batch.

    ``version`` has what the table has, and ``progress`` is in it; None: the table has read nothing. ``is_behind``: whether there
    are records before the cut that it has not read; ``stopped``: transactions that the cut stopped its partitions before.
    """

    version: int
    progress: Progress | None
    is_behind: bool = False
    stopped: Collection[str] = ()


@dataclass(slots=True, kw_only=True)
class _Table:
    version: int
    progress: Progress | None
    is_begun: bool = False
    """Whether it has read, at some time, all that its topic had."""
    is_behind: bool = False
    trouble: str | None = None
    """Why it takes no part; None: it does."""
    missed: int = -1
    """The last point that it was not in."""
    unmet_since: float | None = None
    waited_for: float = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A point that may be taken. ``versions``: of the tables in it, by topic; ``left_out``: the others, and why."""

    end: End
    versions: Mapping[str, int]
    left_out: Mapping[str, str]


@dataclass(slots=True, kw_only=True)
class PointState:
    """``window``: of transactions; ``wait_seconds``: how long a point waits for a table. Times are monotonic seconds, but
    ``wall_ms``."""

    window: Window
    wait_seconds: float = 60.0
    target: int = -1
    _tables: dict[str, _Table] = field(default_factory=dict)
    _chosen_at: float = 0.0
    _patience: float = PATIENCE_SECONDS
    _whole: bool = True
    _left: Collection[str] = ()
    _unknown_since: float | None = None

    def add(
        self,
        topic: str,
        version: int,
        progress: Progress | None,
        *,
        has_read: bool,
        wall_ms: int,
        is_begun: bool = False,
    ) -> None:
        """A table that takes part from now on, and what it is. ``has_read``: whether it has a position in the topic;
        ``is_begun``: whether it was in a point before."""
        if progress is None and has_read:
            progress = Progress(doubt_ms=wall_ms)
        self._tables[topic] = _Table(version=version, progress=progress, is_begun=is_begun, missed=self.window.base)
        self._whole = True

    def cut(self, now: float, wall_ms: int, left: Collection[str] = ()) -> Cut:
        """Up to where the next batch reads. Before the first transaction has ended, that is all but events of transactions.

        ``left``: topics that have records which the batch does not read.
        """
        self._left = left
        newest = self.window.newest
        place = max(self.window.base, newest.place if newest else -1)
        is_over = self.target <= self.window.base or now - self._chosen_at >= self._patience
        if is_over and place > self.target:
            if self.target > self.window.base:
                self._patience = min(2 * self._patience, max(self.wait_seconds, PATIENCE_SECONDS))
            self.target, self._chosen_at = place, now
        behind = any(table.trouble is None and table.missed >= self.window.base for table in self._tables.values())
        cut = self.window.cut(self.target, whole=self._whole or behind, wall_ms=wall_ms)
        self._whole = False
        return cut

    def failed(self, topic: str) -> None:
        """The table could not be brought further in this batch; it goes on in a later one."""
        if topic in self._tables:
            self._tables[topic].is_behind = True

    def park(self, topic: str, reason: str) -> None:
        """The table takes no part until it is ``done`` again."""
        if topic in self._tables:
            self._tables[topic].trouble = reason

    def done(self, topic: str, result: TableDone) -> None:
        """What a table is after a batch. One of which nothing is said is unchanged."""
        table = self._tables.setdefault(topic, _Table(version=result.version, progress=None))
        table.version, table.trouble = result.version, None
        table.progress = result.progress or table.progress
        table.is_behind = result.is_behind
        self._whole |= any(self.window.has(id) for id in result.stopped)

    def reached(self, now: float) -> Reached | None:
        """The point that the tables are at after a batch; None if there is none."""
        for topic, table in self._tables.items():
            table.is_begun |= topic not in self._left and not table.is_behind and table.trouble is None
        end = self.window.end_at(self.target)
        if end is None or not self._tables:
            return None
        if self.target <= self.window.base:
            return self._completed(end)
        versions: dict[str, int] = {}
        left_out: dict[str, str] = {}
        must_wait = False
        for topic, table in self._tables.items():
            why = table.trouble or self._why_not(topic, table)
            if why is None:
                versions[topic], table.unmet_since = table.version, None
                continue
            left_out[topic] = why
            if table.trouble is None:
                must_wait |= self._waits_for(table, now)
        strangers = self.window.topics(self.window.base, self.target) - self._tables.keys()
        self._unknown_since = (self._unknown_since or now) if strangers else None
        if must_wait or (self._unknown_since is not None and now - self._unknown_since < self.wait_seconds):
            return None
        left_out |= dict.fromkeys(strangers, "it has no table yet")
        return Reached(end=end, versions=versions, left_out=left_out) if versions else None

    def _completed(self, end: End) -> Reached | None:
        """The newest point again, with tables that were left out of it and are there by now; None if there are none."""
        whys = {topic: table.trouble or self._why_not(topic, table) for topic, table in self._tables.items()}
        if not any(why is None and self._tables[topic].missed == end.place for topic, why in whys.items()):
            return None
        if any(why is not None and self._tables[topic].missed != end.place for topic, why in whys.items()):
            return None
        versions = {topic: self._tables[topic].version for topic, why in whys.items() if why is None}
        return Reached(end=end, versions=versions, left_out={t: why for t, why in whys.items() if why is not None})

    def took(self, place: int, left_out: Collection[str]) -> None:
        """There is a point at this place now; ``left_out``: topics of tables that are not in it."""
        for topic, table in self._tables.items():
            if topic not in left_out:
                table.missed = min(table.missed, place - 1)
                continue
            table.missed = place
        needed = [
            table.progress.through if table.progress else -1 for table in self._tables.values() if table.trouble is None
        ]
        self.window.took(place, min(needed, default=place))
        self._patience = PATIENCE_SECONDS

    def _waits_for(self, table: _Table, now: float) -> bool:
        """Whether a point waits for a table that is not exactly there."""
        if table.unmet_since is None:
            table.unmet_since = now
        if now - table.unmet_since >= self.wait_seconds:
            return False
        if table.missed < 0 or table.missed < self.window.base:
            return True
        if now - table.waited_for >= PAUSE_SECONDS:
            table.waited_for = now
        return now - table.waited_for < PATIENCE_SECONDS

    def _why_not(self, topic: str, table: _Table) -> str | None:
        """Why a table is not exactly at the target; None if it is."""
        progress = table.progress or Progress()
        if progress.cut > self.target:
            return "it is ahead of the others"
        if table.is_behind or not table.is_begun:
            return "it has not read all that its topic has"
        if progress.doubt_ms is not None and (
            progress.doubt_ms >= self.window.horizon_ms(self.target) or self.window.open
        ):
            return "it was read without points until a short time ago"
        start = max(progress.through, self.window.from_place)
        for one in self.window.expected(topic, start, self.target):
            counted = sum(count for count, _ in progress.partial.get(one.id, {}).values())
            if counted < one.events:
                return f"transaction {one.id} counts {one.events} events of it, and {counted} came"
        return None
