"""The foreachBatch of a database: one micro-batch in, a commit for each table that has something new.

1.  The batch's offset document says which ranges of which topics are new. Each topic remembers what it wants (``member``).
2.  All topics that want something are read at once (``runner``), but for those that wait after a failure, are parked, or are
    still being read for an earlier batch. Each table commits for itself, and its log alone says what it has read. So the batch
    does not fail for the failure of a table, and a batch that comes again does nothing twice.
3.  What the outcomes mean for each table is decided (``ruling``). A table that failed is tried again by a later batch.
4.  If nothing new comes in, but a topic still wants something, a *tick* asks the planner for a batch (``PlanRequest``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from lakebed import events
from lakebed.coordination.failing import parked_of
from lakebed.errors import LakebedError, Retry, Unexpected
from lakebed.failures import Health, Outage, crosses_spark
from lakebed.ingest.database_member import LOOK_SECONDS as PARKED_LOOK_SECONDS
from lakebed.ingest.database_member import Failing, Ignored, Member, Open, ParkedTables, outage, ruling
from lakebed.ingest.database_runner import Outcome, Runner, Skipped
from lakebed.ingest.table_batch import BatchDone
from lakebed.log.snapshot import Snapshot
from lakebed.planning.settling import pressure
from lakebed.positions.positions import Position, positions_of
from lakebed.sources.cut import Cut
from lakebed.sources.source import Range

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROLE = "ingest"
LOOK_SECONDS = 0.2
_CLOSE_SECONDS = 10.0
_UNOPENED_SECONDS = 60.0
"""A topic that can't be made a table has no log that could say so: it is tried again after that time."""
_STOPPED_SECONDS = 1.0
"""After a batch in which a table read nothing of what it wants."""
_logger = logging.getLogger("lakebed.ingest")


class _PlannedBatch(Protocol):
    """What a batch reads."""

    @property
    def tick(self) -> int: ...
    @property
    def ranges(self) -> Sequence[Range]: ...
    @property
    def left(self) -> Collection[str]: ...
    @property
    def more(self) -> bool: ...


class Points(Protocol):
    """Who is told what becomes of the tables, and says where a batch is cut (``points.keeper``)."""

    @property
    def topic(self) -> str: ...
    def positions(self) -> dict[str, Position]: ...
    def know(self, members: Iterable[Member]) -> None: ...
    def cut_for(self, ranges: Sequence[Range], left: Collection[str]) -> Cut: ...
    def hear(self, ended: Iterable[tuple[Member, Outcome]]) -> None: ...
    def batch_done(self, members: Iterable[Member]) -> None: ...
    def wants_batch(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What is asked of the planner."""

    tick: int = 0  # a batch is wanted if that of the last one is smaller
    left_out: frozenset[str] = frozenset()  # topics that no batch need read


@dataclass(frozen=True, slots=True)
class TableStanding:
    """The state of a topic."""

    topic: str
    name: str
    root: str  # of its table
    state: str  # live, waiting, parked or new (it has no table yet)
    error: str = ""
    unread: int = 0


def _position_of(member: Member) -> Position | None:
    """The position of a topic in the log of its table; None if it has none, or if that is not known now."""
    if member.table is None:
        return None
    try:
        log = member.table.log
        return positions_of(log.newest or log.refresh()).get(member.topic)
    except LakebedError:  # more is planned then than the table reads
        return None


def _nothing_planned(batch_id: int) -> _PlannedBatch:
    raise Unexpected(f"batch {batch_id} came before a query began")


@dataclass(slots=True)
class _State:
    """What all threads of the pipeline share."""

    members: dict[str, Member] = field(default_factory=dict)
    failing: Mapping[str, Failing] = field(default_factory=dict)
    worked: int = 0
    in_batch: bool = False
    tick: int = 0
    requested: PlanRequest | None = None


class DatabaseIngest:
    """Called by Structured Streaming with every micro-batch; serves one query after the other until ``close``."""

    def __init__(
        self,
        path: str,
        open_table: Open,
        *,
        points: Points | None = None,
        runner: Runner | None = None,
        clock: Callable[[], float] = time.monotonic,
        look_seconds: float = PARKED_LOOK_SECONDS,
    ) -> None:
        """``path``: of the database. ``look_seconds``: how often the logs of parked tables are looked at."""
        self.path = path
        self._clock = clock
        self._runner = runner or Runner(open_table)
        self._points = points
        self._state = _State()
        self._lock = threading.Lock()
        self._planned: Callable[[int], _PlannedBatch] = _nothing_planned
        self._ask: Callable[[PlanRequest], None] = lambda request: None
        self._health: dict[str, Health] = {}
        self._parked = ParkedTables(self._resumed, look_seconds)
        self._asking = Outage("asking the planner for a batch", _logger)
        self.is_something_down: Callable[[], bool] = lambda: False
        """Whether something that the pipeline needs is known not to answer."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._look, name="lakebed-database", daemon=True)
        self._thread.start()

    # -- a query -------------------------------------------------------------------------------------------------------

    def begin(self, planned: Callable[[int], _PlannedBatch], ask: Callable[[PlanRequest], None]) -> dict[str, Position]:
        """A query begins; returns the positions from which it has to plan, by topic.

        ``planned``: what the batch with an id reads; ``ask``: gives the planner a request.
        """
        self._planned, self._ask = planned, ask
        with self._lock:
            members = list(self._state.members.values())
            for member in members:
                member.forget()
            self._state.requested = None
        found: dict[str, Position] = {}
        for member in members:
            position = _position_of(member)
            found |= {member.topic: position} if position else {}
        return found | (self._points.positions() if self._points else {})

    @crosses_spark
    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        self.batch(self._planned(batch_id), frame.sparkSession)

    def batch(self, planned: _PlannedBatch, spark: Any = None) -> None:
        """Read what a batch planned, and what is left of earlier ones."""
        ended = self._runner.late()
        self._hear(ended)
        with self._lock:
            self._take(planned)
            self._state.in_batch = True
        try:
            opening = [member for member in self._due() if member.table is None]
            self._hear(self._runner.open(opening))
            for member in opening:
                if member.table is not None and member.table.log.newest is not None:
                    self._heed(member, member.table.log.newest)
            chosen = [member for member in self._due() if member.table is not None]
            cut = None
            if self._points is not None:
                self._points.know(self._members())
                self._points.hear(ended)
                cut = self._points.cut_for(planned.ranges, planned.left)
            ended = self._runner.run(chosen, cut, spark, more=planned.more and self._points is None)
            self._hear(ended)
            if self._points is not None:
                self._points.hear(ended)
                self._points.batch_done(self._members())
        finally:
            with self._lock:
                self._state.in_batch = False
        self.ask()

    def wake(self) -> None:
        """What was down is back: try again now all that waits after a failure."""
        with self._lock:
            state, now = self._state, self._clock()
            woken = {topic: one for topic, one in state.failing.items() if isinstance(one.error, Retry)}
            state.failing = {**state.failing, **{t: replace(one, failures=0, due=now) for t, one in woken.items()}}
            for topic in woken:
                state.members[topic].due = now

    def close(self) -> None:
        """End. Tables that are being read get a few seconds to end; what they do not commit is read again by the next run."""
        self._closing.set()
        self._runner.close(_CLOSE_SECONDS)
        self._parked.close()
        self._thread.join(_CLOSE_SECONDS)
        for health in self._health.values():
            health.stopped()

    # -- what is known -------------------------------------------------------------------------------------------------

    @property
    def trouble(self) -> LakebedError | None:
        """Why no table can be read now; None if any can."""
        with self._lock:
            state = self._state
            read = [one for one in state.members.values() if not one.is_ignored and one.parked is None]
            tables = {one.topic for one in read if one.table is not None} or {one.topic for one in read}
            return outage(state.failing, state.worked, tables)

    def standings(self) -> list[TableStanding]:
        """How each topic that is a table stands, by name."""
        with self._lock:
            found = [self._standing(member) for member in self._state.members.values() if not member.is_ignored]
        return sorted(found, key=lambda one: one.name)

    def is_idle(self) -> bool:
        """Whether no topic is being read or is due."""
        with self._lock:
            now = self._clock()
            members = self._state.members.values()
            at_work = (one.is_busy or (one.is_due(now) and not one.is_stopped) for one in members)
            return not self._state.in_batch and not any(at_work)

    def know(self, members: Sequence[Member]) -> None:
        """Topics whose tables are open before the first batch, parked ones among them."""
        with self._lock:
            self._state.members |= {member.topic: member for member in members}
        for member in members:
            if member.parked is not None:
                self._report_parked(member)
                self._parked.watch(member, in_log=True)

    def _standing(self, member: Member) -> TableStanding:
        name = member.table.name if member.table else member.topic
        failing = self._state.failing.get(member.topic)
        if member.parked is not None:
            state, error = "parked", member.parked.error
        elif failing is not None:
            state, error = "waiting", str(failing.error)
        else:
            state, error = "live" if member.table else "new", ""
        return TableStanding(member.topic, name, member.table.root if member.table else "", state, error, member.unread)

    # -- what a batch means --------------------------------------------------------------------------------------------

    def _members(self) -> list[Member]:
        with self._lock:
            return list(self._state.members.values())

    def _due(self) -> list[Member]:
        now = self._clock()
        return [member for member in self._members() if member.is_due(now)]

    def _take(self, planned: _PlannedBatch) -> None:
        self._state.tick = max(self._state.tick, planned.tick)
        for one in planned.ranges:
            if self._points is not None and one.topic == self._points.topic:
                continue
            self._state.members.setdefault(one.topic, Member(one.topic)).want(one)

    def _hear(self, ended: Sequence[tuple[Member, Outcome]]) -> None:
        """What became of tables."""
        if not ended:
            return
        parked: list[Member] = []
        outcomes: dict[str, LakebedError | None] = {}
        with self._lock:
            state, now = self._state, self._clock()
            before = state.failing
            for member, outcome in ended:
                if isinstance(outcome, Ignored):
                    member.is_ignored = True
                    member.forget()
                    continue
                if isinstance(outcome, Skipped):
                    continue
                outcomes[member.topic] = outcome if isinstance(outcome, LakebedError) else None
                if isinstance(outcome, BatchDone):
                    member.due = now + self._pause(member, outcome)
            found = ruling(before, outcomes, state.worked, now, is_down=self.is_something_down())
            failing = dict(found.failing)
            for topic, park in found.park.items():
                member = state.members[topic]
                if member.table is None:  # it has no log that could say so: it is tried again, seldom
                    failing[topic] = Failing(park.error, park.failures, now + _UNOPENED_SECONDS, found.worked)
                else:
                    member.parked = park.entry(int(time.time() * 1000))
                    parked.append(member)
            state.failing, state.worked = failing, found.worked
            for topic, one in failing.items():
                state.members[topic].due = one.due
            for topic in outcomes:
                state.members[topic].is_apart = topic in failing
        for member, outcome in ended:
            if isinstance(outcome, BatchDone):
                self._heed(member, outcome.snapshot)
        for topic in outcomes:
            self._report(self._state.members[topic], before.get(topic), failing.get(topic))
        for member in parked:
            self._report_parked(member)
            self._parked.watch(member, in_log=False)

    def _heed(self, member: Member, snapshot: Snapshot) -> None:
        """Leave a table alone if its log says so: another process has parked it, or an earlier run."""
        parked = parked_of(snapshot)
        if parked is not None and member.parked is None:
            member.parked = parked
            self._report_parked(member)
            self._parked.watch(member, in_log=True)

    def _pause(self, member: Member, done: BatchDone) -> float:
        """How long a table waits before it is read again."""
        read = member.has_read(done)
        member.is_stopped = bool(done.stopped) and not done.left
        assert member.table is not None
        found = pressure(done.snapshot)
        delay = found.delay_seconds(1.0)
        if delay:
            events.emit(
                events.IngestDelayed(table=member.table.root, reason=found.reason, factor=found.factor, seconds=delay)
            )
        return max(delay, 0.0 if read or member.is_stopped or not member.wanted else _STOPPED_SECONDS)

    def _report(self, member: Member, before: Failing | None, now: Failing | None) -> None:
        place = member.table.root if member.table else member.topic
        health = self._health.get(member.topic)
        if health is not None and health.table != place:  # it has become a table since
            health.stopped()
            health = None
        if now is not None or (before is not None and member.parked is None):
            health = self._health[member.topic] = health or Health(place, _ROLE)
            if now is None:
                health.runs()
            else:
                health.waits(now.error, max(0.0, now.due - self._clock()))

    def _report_parked(self, member: Member) -> None:
        assert member.table is not None and member.parked is not None
        root, parked = member.table.root, member.parked
        if (health := self._health.pop(member.topic, None)) is not None:
            health.stopped()
        _logger.error(
            "%s is parked: %s (lakebed resume lets it go on)",
            member.table.name,
            parked.error,
            extra=events.ALSO_AN_EVENT,
        )
        events.emit(events.TableParked(table=root, error=parked.kind, reason=parked.error, failures=parked.failures))

    def _resumed(self, member: Member) -> None:
        assert member.table is not None
        with self._lock:
            member.parked = None
            member.is_kept = False
            member.due = 0.0
            self._state.failing = {topic: one for topic, one in self._state.failing.items() if topic != member.topic}
        _logger.info("%s is resumed", member.table.name)
        events.emit(events.TableResumed(table=member.table.root))

    # -- ticks ---------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        while not self._closing.wait(LOOK_SECONDS):
            self.ask()

    def ask(self) -> None:
        """Ask the planner for a batch, if one is wanted. Never raises: a later look may do better, and nothing else asks."""
        try:
            self._ask_if_due()
        except Exception as error:
            self._asking.failed(error)
        else:
            self._asking.works()

    def _ask_if_due(self) -> None:
        """Give the planner a new request, if it differs from the last one.

        Two threads may do so at once: the one whose request came last asks again if it is not the newest.
        """
        request: PlanRequest | None = None
        while True:
            with self._lock:
                newest = self._newest_request()
                if newest == self._state.requested and request in (None, newest):
                    return
                self._state.requested = request = newest
            try:
                self._ask(request)
            except BaseException:
                with self._lock:
                    self._state.requested = None  # the next look asks again
                raise

    def _newest_request(self) -> PlanRequest:
        state, now = self._state, self._clock()
        members = state.members.values()
        wants = any(member.is_due(now) and not member.is_stopped for member in members)
        wants = not state.in_batch and (wants or (self._points is not None and self._points.wants_batch()))
        left_out = frozenset(one.topic for one in members if one.parked is not None or one.is_ignored)
        return PlanRequest(state.tick + 1 if wants else state.tick, left_out)
