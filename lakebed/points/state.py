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
   the newest point.
5. What is known not to come is not waited for: events of topics that are no tables (``Strangers``), and events that are missing
   before those of later transactions (``cut.first_missing``). If a table has such gaps, points wait for it for
   ``_PATIENCE_SECONDS`` alone. If nobody can know whether an event comes, its table is left out until the window forgets the
   transaction.
6. Safety rests on the logs of the tables alone: a point names versions whose own progress says that they are exactly there. Time
   decides only how long is waited.

Whether a point waits for topics that are no tables (``Strangers``):

1. One that the pipeline does not read, because its file excludes it, never becomes a table.
2. One that is not there has no events: a connector writes the end of a transaction after its events, and a topic is made before
   its first event is written. So the events went elsewhere, or nowhere: they are messages, or a transformation of the connector's
   left them out or routed them. Brokers get to know a new topic one after the other, and events that are routed to a table show
   there (``cut``). So the first point waits for ``_ABSENT_SECONDS``.
3. Any other may become a table in a moment. The first point waits for that, ``wait_seconds`` at most. The points name the topic
   until it is a table.

Later points do not wait, nor do those of a process that begins later: the points keep what is known (``to_json``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from lakebed.points.window import End, Window
from lakebed.positions.positions import Progress
from lakebed.sources.cut import Cut, Expected, Partitions, first_missing

_ABSENT_SECONDS = 10.0
_KEPT_MAX = 1_000  # how many topics are remembered; further ones are not waited for


@dataclass(slots=True)
class _Seen:
    """``since``: when it was first found there, or not there."""

    is_there: bool
    since: float


@dataclass(slots=True, kw_only=True)
class Strangers:
    """Topics that may have events of transactions, and are no tables of the database (yet). Times are monotonic seconds."""

    wait_seconds: float
    # whether the pipeline reads a topic as a table, as far as its name says that
    is_read: Callable[[str], bool] = lambda topic: True
    _ignored: set[str] = field(default_factory=set)
    _seen: dict[str, _Seen] = field(default_factory=dict)

    def ignore(self, topic: str) -> None:
        """The topic is no table."""
        self._ignored.add(topic)
        self._seen.pop(topic, None)

    def is_table(self, topic: str) -> None:
        """The topic is a table now."""
        self._seen.pop(topic, None)

    def remember(self, kept: Mapping[str, bool]) -> None:
        """Points have been waiting for these already (``to_json``)."""
        self._seen |= {topic: _Seen(is_there, float("-inf")) for topic, is_there in kept.items()}

    def to_json(self) -> dict[str, bool]:
        """The topics that points do not wait for any more, and whether they are there."""
        return {topic: seen.is_there for topic, seen in self._seen.items()}

    def among(self, topics: Iterable[str]) -> set[str]:
        """Those that may become tables."""
        return {topic for topic in topics if topic not in self._ignored and self.is_read(topic)}

    def hold_back(self, topics: Collection[str], there: Collection[str], now: float) -> bool:
        """Whether a point waits for one of the topics; ``there``: those of them that are there."""
        waits = False
        for topic in topics:
            is_there = topic in there
            seen = self._seen.get(topic)
            if seen is None and len(self._seen) >= _KEPT_MAX:
                continue
            if seen is None or seen.is_there != is_there:
                seen = self._seen[topic] = _Seen(is_there, now)
            waits |= now - seen.since < (self.wait_seconds if is_there else _ABSENT_SECONDS)
        return waits

    def named(self) -> list[str]:
        """Those that may become tables, and that were waited for in vain."""
        return [topic for topic, seen in self._seen.items() if seen.is_there]


_PATIENCE_SECONDS = 2.0
LATE_SECONDS = 1.0
"""After this time a table that lacks events may have a gap."""
_PAUSE_SECONDS = 30.0  # until a point waits again for a table that was not in the one before


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDone:
    """What a table is after a batch."""

    version: int  # the version that has what the table has
    progress: Progress | None  # what is in that version; None if the table has read nothing
    is_behind: bool = False  # whether there are records before the cut that it has not read
    # the transaction that the cut stopped it before, by partition
    stopped: Mapping[int, str] = field(default_factory=dict)


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
    stopped: Mapping[int, str] = field(default_factory=dict)
    partitions: Partitions | None = None
    """Of its topic, if that was asked."""
    has_gaps: bool = False
    """Whether events that were counted have not come, though later ones have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A point that may be taken."""

    end: End
    versions: Mapping[str, int]  # of the tables in it, by topic
    left_out: Mapping[str, str]  # the other tables, and why


@dataclass(slots=True, kw_only=True)
class PointState:
    """What is known of all tables, to find the next point. Times are monotonic seconds, except ``wall_ms``."""

    window: Window  # of transactions
    wait_seconds: float = 60.0  # how long a point waits for a table
    strangers: Strangers
    # how many partitions these topics have, if they are there; None if that is not known now
    partitions: Callable[[Collection[str]], Mapping[str, int] | None]
    target: int = -1
    _tables: dict[str, _Table] = field(default_factory=dict)
    _chosen_at: float = 0.0
    _patience: float = _PATIENCE_SECONDS
    _whole: bool = True
    _left: Collection[str] = ()
    new_gaps: list[str] = field(default_factory=list)
    """The topics of tables that were found to have gaps, for whoever reports them."""

    def add(
        self,
        topic: str,
        version: int,
        progress: Progress | None,
        *,
        has_read: bool,
        wall_ms: int,
        is_begun: bool = False,
        was_waited_for: bool = False,
        has_gaps: bool = False,
    ) -> None:
        """A table that takes part from now on, and what it is. ``has_read``: whether it has a position in the topic;
        ``is_begun``: whether it was in a point before; ``was_waited_for``: whether the newest point left it out."""
        if progress is None and has_read:
            progress = Progress(doubt_ms=wall_ms)
        self._tables[topic] = _Table(
            version=version,
            progress=progress,
            is_begun=is_begun,
            missed=self.window.base,
            unmet_since=float("-inf") if was_waited_for else None,
            has_gaps=has_gaps,
        )
        self.strangers.is_table(topic)
        self._learn(topic, self._tables[topic])
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
                self._patience = min(2 * self._patience, max(self.wait_seconds, _PATIENCE_SECONDS))
            self.target, self._chosen_at = place, now
        behind = any(table.trouble is None and table.missed >= self.window.base for table in self._tables.values())
        known = {topic: found for topic, table in self._tables.items() if (found := self._partitions_of(topic, table))}
        cut = self.window.cut(self.target, whole=self._whole or behind, wall_ms=wall_ms, partitions=known)
        self._whole = False
        return cut

    def _learn(self, topic: str, table: _Table) -> None:
        """Whose events are routed into the topic of a table."""
        progress = table.progress or Progress()
        for id in progress.partial if progress.tables else ():
            for name in progress.tables:
                self._whole |= self.window.learn(topic, id, name)

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
        self.strangers.is_table(topic)
        table.version, table.trouble = result.version, None
        table.progress = result.progress or table.progress
        table.is_behind = result.is_behind
        table.stopped = result.stopped
        self._whole |= any(self.window.has(id) for id in result.stopped.values())
        self._learn(topic, table)

    def reached(self, now: float) -> Reached | None:
        """The point that the tables are at after a batch; None if there is none."""
        for topic, table in self._tables.items():
            table.is_begun |= topic not in self._left and not table.is_behind and table.trouble is None
        end = self.window.end_at(self.target)
        if end is None or not self._tables:
            return None
        self._look_for_gaps(now)
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
        if must_wait or not versions or self._waits_for_strangers(now):
            return None
        return Reached(end=end, versions=versions, left_out=left_out | self._named())

    def _waits_for_strangers(self, now: float) -> bool:
        found = self.strangers.among(self.window.topics(self.window.base, self.target) - self._tables.keys())
        if not found:
            return False
        there = self.partitions(found)
        return there is None or self.strangers.hold_back(found, there.keys(), now)

    def _named(self) -> dict[str, str]:
        return dict.fromkeys(self.strangers.named(), "it has no table yet")

    def _completed(self, end: End) -> Reached | None:
        """The newest point again, with tables that were left out of it and are there by now; None if there are none."""
        whys = {topic: table.trouble or self._why_not(topic, table) for topic, table in self._tables.items()}
        if not any(why is None and self._tables[topic].missed == end.place for topic, why in whys.items()):
            return None
        if any(why is not None and self._tables[topic].missed != end.place for topic, why in whys.items()):
            return None
        versions = {topic: self._tables[topic].version for topic, why in whys.items() if why is None}
        left_out = {topic: why for topic, why in whys.items() if why is not None}
        return Reached(end=end, versions=versions, left_out=left_out | self._named())

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
        self._patience = _PATIENCE_SECONDS

    def _waits_for(self, table: _Table, now: float) -> bool:
        """Whether a point waits for a table that is not exactly there."""
        if table.unmet_since is None:
            table.unmet_since = now
        if now - table.unmet_since >= (_PATIENCE_SECONDS if table.has_gaps else self.wait_seconds):
            return False
        if table.missed < 0 or table.missed < self.window.base:
            return True
        if now - table.waited_for >= _PAUSE_SECONDS:
            table.waited_for = now
        return now - table.waited_for < _PATIENCE_SECONDS

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
        if strays := self.window.strays(topic, progress.partial, start, self.target):
            return (
                f"transaction {strays[0]} counts no events of it, and some came: they are of tables that are not known"
            )
        missing = self._missing(topic, table)
        if missing is None:
            return None
        came = sum(count for count, _ in progress.partial.get(missing.id, {}).values())
        return f"transaction {missing.id} counts {missing.events} events of it, and {came} came"

    def _missing(self, topic: str, table: _Table) -> Expected | None:
        """The first transaction up to the target of which a table lacks events that may come."""
        progress = table.progress or Progress()
        expected = self.window.expected(topic, max(progress.through, self.window.from_place), self.target)
        partitions = self._partitions_of(topic, table)
        return first_missing(expected, progress.partial, table.stopped, self.window.place_of, partitions)

    # Gaps -------------------------------------------------------------------------------------------------------------

    def gaps(self) -> set[str]:
        """The topics of tables that have gaps."""
        return {topic for topic, table in self._tables.items() if table.has_gaps}

    def _partitions_of(self, topic: str, table: _Table) -> Partitions | None:
        """If they are known. Of a topic with events of several tables nothing is concluded from their order: several connectors
        may write it."""
        return None if table.partitions is None or topic in self.window.routes.values() else table.partitions

    def _look_for_gaps(self, now: float) -> None:
        """Ask how many partitions the topics have of tables that have lacked events for a while."""
        lacking: dict[str, int] = {}
        for topic, table in self._tables.items():
            is_late = table.has_gaps or (table.unmet_since is not None and now - table.unmet_since >= LATE_SECONDS)
            missing = self._missing(topic, table) if is_late and table.trouble is None else None
            if missing is not None and (table.partitions is None or table.partitions.until < missing.place):
                lacking[topic] = missing.place
        newest = self.window.newest
        there = self.partitions(lacking) if lacking else None
        if newest is None or there is None:
            return
        for topic, place in lacking.items():
            table = self._tables[topic]
            table.partitions = Partitions(there[topic], until=newest.place) if topic in there else None
            missing = self._missing(topic, table)
            if not table.has_gaps and (missing is None or missing.place > place):
                table.has_gaps = True
                self.new_gaps.append(topic)
