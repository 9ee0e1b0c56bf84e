"""Keeps the points of a database: reads the topic of transactions, says where each batch is cut, and takes the points;
and has all tables settled up to one.

A pipeline calls it in one thread, in this order:

    add         each table, before the first batch that reads its topic
    cut_for     at the beginning of a batch, with all its ranges
    done, failed, park      what became of each table that had something to do in the batch
    batch_done  at the end: takes the point, if one is reached

Two processes may keep the points of one database: a point names versions of tables that are exactly there, whoever made them, and
the log of points refuses one that is not newer (``positions.point_log``).

``Points`` tells the keeper what became of each table of the batches of a database. All its calls come from the thread of the
batches, but for ``wants_batch``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Protocol

import pyarrow as pa

from lakebed import events
from lakebed.errors import LakebedError, Retry, Unsupported
from lakebed.ingest.database_member import Member
from lakebed.ingest.database_runner import Outcome
from lakebed.ingest.table_batch import BatchDone, is_another
from lakebed.log.snapshot import Snapshot
from lakebed.points.state import PointState, Reached, Strangers, TableDone
from lakebed.points.window import GIVEN_UP_MS, TransactionReader, Window
from lakebed.positions.point_log import Point, PointLog, Settled, TableAt, position_digest
from lakebed.positions.positions import Position, positions_of
from lakebed.sources.cut import Cut
from lakebed.sources.source import Range

_TIDY_SECONDS = 3600.0
_SILENT_SECONDS = 60.0
_logger = logging.getLogger("lakebed.ingest")


@dataclass(frozen=True, slots=True, kw_only=True)
class PointSettings:
    """What the pipeline's file says of points."""

    topic: str  # of transactions
    prefix: str  # of all topics, without the dot
    wait_seconds: float = 60.0  # how long a point waits for a table
    # whether the pipeline reads a topic as a table, as far as its name says that
    is_read: Callable[[str], bool] = lambda topic: True


class _PointSource(Protocol):
    """What a keeper of points asks the source."""

    def read(self, chosen: Range) -> Iterator[pa.Table]:
        """See ``RangeReader``."""

    def partitions(self, topics: Collection[str]) -> Mapping[str, int]:
        """The numbers of partitions of those topics that are there and that the pipeline selects. Raises Retry, InvalidInput."""


@dataclass(frozen=True, slots=True)
class _Name:
    name: str
    table_id: str
    position: str


class PointKeeper:
    """Keeps the points of one database. One thread at a time."""

    def __init__(
        self,
        settings: PointSettings,
        points: PointLog,
        source: _PointSource,
        transactions: TransactionReader,
        *,
        clock: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        """The log of ``points`` is created. Raises StoreUnavailable."""
        self._settings = settings
        self._points = points
        self._source = source
        self._transactions = transactions
        self._clock = clock
        self._now_ms = now_ms
        self._names: dict[str, _Name] = {}
        self._left_out: dict[str, str] = {}
        self._begun: dict[str, str] = {}
        """The tables of the newest point as the process began: names and ids."""
        self._tidied = clock()
        self._silent_since: float | None = clock()
        points.create()
        newest = points.newest()
        window = Window(prefix=settings.prefix)
        strangers = Strangers(wait_seconds=settings.wait_seconds, is_read=settings.is_read)
        self._gaps: frozenset[str] = frozenset()
        self._topic_id: str | None = None
        if newest is not None:
            window.base, window.shift = newest.number, int(newest.resume["shift"])
            window.next_offset = int(newest.resume["offset"])
            window.from_place = window.next_offset + window.shift - 1
            self._topic_id = newest.resume["topic_id"]
            self._left_out = dict(newest.left_out)
            self._begun = {name: at.table_id for name, at in newest.tables.items()}
            strangers.remember(newest.resume.get("strangers", {}))
            window.routes = dict(newest.resume.get("routes", {}))
            self._gaps = frozenset(newest.resume.get("gaps", ()))
        self.state = PointState(
            window=window,
            wait_seconds=settings.wait_seconds,
            target=window.base,
            strangers=strangers,
            partitions=self._partitions,
        )

    @property
    def topic(self) -> str:
        """The topic of transactions: its ranges are read by the keeper alone."""
        return self._settings.topic

    @property
    def has_more(self) -> bool:
        """Whether transactions have ended that are in no point yet: then another batch brings tables further, also without new
        records."""
        newest = self.state.window.newest
        return newest is not None and newest.place > self.state.window.base

    @property
    def resume(self) -> tuple[int, str | None] | None:
        """From which offset, of the topic with which id, the topic of transactions is to be planned; None: from its beginning."""
        offset = self.state.window.next_offset
        return None if offset is None else (offset, self._topic_id)

    # Tables -----------------------------------------------------------------------------------------------------------

    def add(self, topic: str, name: str, snapshot: Snapshot) -> None:
        """A table from now on, and its newest version."""
        position = positions_of(snapshot).get(topic)
        progress = position.transactions if position else None
        self.name(topic, name, table_id=snapshot.metadata.id, position=position_digest(snapshot))
        is_begun = self._begun.get(name) == snapshot.metadata.id
        self.state.add(
            topic,
            snapshot.version,
            progress,
            has_read=position is not None,
            wall_ms=self._now_ms(),
            is_begun=is_begun,
            was_waited_for=name in self._left_out,
            has_gaps=topic in self._gaps,
        )

    def name(self, topic: str, name: str, *, table_id: str, position: str = "") -> None:
        """What the points call the table of a topic."""
        self._names[topic] = _Name(name, table_id, position)

    def done(self, topic: str, result: BatchDone) -> None:
        """A table after a batch. One that had nothing to do in it is as it was."""
        position = positions_of(result.snapshot).get(topic)
        done = TableDone(
            version=result.snapshot.version,
            progress=position.transactions if position else None,
            is_behind=result.left > 0,
            stopped={partition: id for (name, partition), id in result.stopped.items() if name == topic},
        )
        self._names[topic] = replace(self._names[topic], position=position_digest(result.snapshot))
        self.state.done(topic, done)

    def failed(self, topic: str) -> None:
        """A table that could not be brought further in a batch: points wait for it."""
        self.state.failed(topic)

    def park(self, topic: str, reason: str) -> None:
        """A table that is left out of points until it is ``done`` again."""
        self.state.park(topic, reason)

    def ignore(self, topic: str) -> None:
        """The topic is no table: points do not wait for it."""
        self.state.strangers.ignore(topic)

    # Batches ----------------------------------------------------------------------------------------------------------

    def cut_for(self, ranges: Sequence[Range], left: Collection[str] = ()) -> Cut:
        """Up to where the tables read in a batch. Of ``ranges`` those of the topic of transactions are read.

        ``left``: topics that had records, when the batch was planned, which are not in it.

        Raises Unsupported if this topic has several partitions, Retry if the source does not answer, and InvalidInput for a
        record that is no transaction's.
        """
        for one in ranges:
            if one.topic == self.topic:
                self._read(one)
        return self.state.cut(self._clock(), self._now_ms(), left)

    def batch_done(self) -> Point | None:
        """Take the point that the tables are at, if they are; returns the point of this process. Raises nothing that may pass."""
        now = self._clock()
        self._say_if_there_are_none(now)
        reached = self.state.reached(now)
        while self.state.new_gaps:
            _logger.warning(
                "%s: transactions count more events of it than came, and later ones have come: a transformation of the "
                "connector's leaves some out, or some were lost. Points do not wait for them",
                self._names[self.state.new_gaps.pop()].name,
            )
        if reached is None:
            return None
        point = self._point(reached)
        try:
            taken = self._points.take(point)
        except Retry as error:
            _logger.warning("point %d could not be taken yet: %s", point.number, error)
            return None
        self.state.took(taken.number, reached.left_out)
        self._keep_short(now)
        if taken.number != point.number:
            return None
        self._say(point)
        return taken

    def _say_if_there_are_none(self, now: float) -> None:
        """Report once that no transaction ends: then the connector is not set to say where they do."""
        if self.state.window.newest is not None or self.state.window.base >= 0:
            self._silent_since = None
        elif self._silent_since is not None and now - self._silent_since >= _SILENT_SECONDS:
            self._silent_since = None
            _logger.warning(
                "no transaction has ended in the topic %s, so there are no points: does the connector have "
                "provide.transaction.metadata=true, and is this its topic of transactions?",
                self.topic,
            )

    def _partitions(self, topics: Collection[str]) -> Mapping[str, int] | None:
        try:
            return self._source.partitions(topics)
        except LakebedError as error:
            _logger.info("a point waits, because it is not known whether topics are there: %s", error)
            return None

    def _keep_short(self, now: float) -> None:
        """Write a checkpoint of the log if it is due, and delete old points once an hour."""
        try:
            self._points.log.checkpoint_if_due(self._points.log.refresh())
            if now - self._tidied >= _TIDY_SECONDS:
                self._tidied = now
                self._points.tidy()
        except Retry as error:
            _logger.warning("old points are not deleted yet: %s", error)

    def _read(self, one: Range) -> None:
        if one.partition != 0:
            raise Unsupported(
                f"the topic of transactions {self.topic!r} has several partitions, so their order is not known: "
                "create it again with one partition (topic.creation.default.partitions=1), or leave database.points out",
            )
        window = self.state.window
        if is_another(self._topic_id, one.topic_id):
            window.start_over()
        self._topic_id = one.topic_id or self._topic_id
        start = one.start if window.next_offset is None else window.next_offset
        if one.start > start and one.is_first:
            start = one.start
            window.from_place = max(window.from_place, start + window.shift - 1)
        if start >= one.end:
            return
        for records in self._source.read(Range(one.topic, 0, start, one.end)):
            window.observe(self._transactions.read(records))
        while window.given_up:
            _logger.warning(
                "the end of transaction %s does not come, though later ones have ended for %d minutes: it counts as ended. If "
                "its changes were lost, as when a replication slot is dropped, lakebed source resnapshot has the rows sent again",
                window.given_up.pop(0),
                GIVEN_UP_MS // 60_000,
            )
        window.next_offset = one.end

    def _point(self, reached: Reached) -> Point:
        window = self.state.window
        names = self._names
        return Point(
            number=reached.end.place,
            time_ms=reached.end.time_ms,
            transaction=reached.end.text,
            tables={
                names[topic].name: TableAt(
                    version=version, table_id=names[topic].table_id, position=names[topic].position
                )
                for topic, version in reached.versions.items()
            },
            left_out={names[topic].name if topic in names else topic: why for topic, why in reached.left_out.items()},
            resume={
                "offset": window.read_from,
                "shift": window.shift,
                "topic_id": self._topic_id,
                "routes": window.routes,
                "gaps": sorted(self.state.gaps()),
                "strangers": self.state.strangers.to_json(),
            },
            taken_ms=self._now_ms(),
        )

    def _say(self, point: Point) -> None:
        """Report the point, and tables that have just been left out or are in again."""
        for name, why in point.left_out.items():
            if name not in self._left_out:
                _logger.warning("table %s is left out of points: %s", name, why)
        for name in self._left_out.keys() - point.left_out.keys():
            _logger.info("table %s is in the points again", name)
        self._left_out = dict(point.left_out)
        events.emit(
            events.PointTaken(
                table=self._points.log.root,
                number=point.number,
                time_ms=point.time_ms,
                tables=len(point.tables),
                left_out=len(point.left_out),
            )
        )


class Points:
    """Tells a keeper what becomes of the tables of a database."""

    def __init__(
        self, keeper: PointKeeper, interval_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._keeper = keeper
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._batch_at = clock()
        self._parked: set[str] = set()

    @property
    def topic(self) -> str:
        """The topic of transactions, which is no table."""
        return self._keeper.topic

    def positions(self) -> dict[str, Position]:
        """Where planning begins to read the topic of transactions; empty: where it begins."""
        found = self._keeper.resume
        return {} if found is None else {self.topic: Position(offsets={0: found[0]}, topic_id=found[1])}

    def know(self, members: Iterable[Member]) -> None:
        """Before a batch: all tables that are open."""
        for member in members:
            table = member.table
            if table is not None and not member.is_kept:
                self._keeper.add(member.topic, table.name, table.log.newest or table.log.refresh())
                member.is_kept = True
                self._parked.discard(member.topic)
            if member.is_ignored:
                self._keeper.ignore(member.topic)
            if member.parked is not None and member.topic not in self._parked:
                self._keeper.park(member.topic, member.parked.error)
                self._parked.add(member.topic)

    def cut_for(self, ranges: Sequence[Range], left: Collection[str]) -> Cut:
        """Up to where the tables read in a batch; ``left``: topics of which it does not read all. Raises Retry, Unsupported,
        InvalidInput."""
        return self._keeper.cut_for(ranges, left)

    def hear(self, ended: Iterable[tuple[Member, Outcome]]) -> None:
        """What became of tables."""
        for member, outcome in ended:
            if isinstance(outcome, BatchDone):
                self._keeper.done(member.topic, outcome)
                self._parked.discard(member.topic)  # one that is parked none the less is left out again
            elif isinstance(outcome, LakebedError) and member.table is not None:
                self._keeper.failed(member.topic)

    def batch_done(self, members: Iterable[Member]) -> None:
        """A batch has ended: the point is taken that it reached, if it did."""
        members = list(members)
        self.know(members)  # those that it parked
        for member in members:
            if member.is_kept and member.parked is None and member.wanted and not member.is_stopped:
                self._keeper.failed(member.topic)  # it has something left that it did not read
        self._keeper.batch_done()
        self._batch_at = self._clock()

    def wants_batch(self) -> bool:
        """Whether another batch brings the tables to the next point, though nothing new is in their topics."""
        return self._keeper.has_more and self._clock() - self._batch_at >= self._interval_seconds


# -- All tables of a database settled up to one point, so that every Delta reader can read them as of it -------------------
#
#     idle --next--> the newest point is chosen; each table is settled up to the version that it names
#     settling --next--> not done: go on; done: the log of points says the versions; a table could not: nothing, the next point
#
# Tables that have not changed since they were settled keep their version, and cost nothing. Between two rounds a table is not
# settled beyond the point. One that is left out of the points is settled at its own pace, and all are if no point comes for
# long.


_SettleTo = Callable[[str, int], "Future[int | None]"]
"""Settles a table, by name, exactly up to a version. The result is the version at which it is; None if that can't be any more."""
_PAUSES_MAX = 5
"""After so many rounds without a newer point, tables are settled at their own pace."""
_LOOK_SECONDS = 0.5
_settling_logger = logging.getLogger("lakebed.compaction")


@dataclass(slots=True)
class SettledPoints:
    """``release``: lets a table, by name, be settled at its own pace; ``pause_seconds``: from one round to the next."""

    points: PointLog
    settle_to: _SettleTo
    pause_seconds: float
    release: Callable[[str], None] = lambda name: None
    clock: Callable[[], float] = time.monotonic
    _round: tuple[Point, Mapping[str, Future[int | None]]] | None = None
    _began: float = float("-inf")
    _number: int = -1
    _said: int = -1
    _moved: float = 0.0
    _known: dict[str, tuple[TableAt, int]] = field(default_factory=dict)

    def run(self, stop: threading.Event) -> None:
        """Settle in this thread until ``stop`` is set."""
        while not stop.wait(min(_LOOK_SECONDS, self.pause_seconds)):
            try:
                self.next()
            except LakebedError as error:
                _settling_logger.warning("the tables are not settled up to a point yet: %s", error)
            except Exception:  # a later round may do better, and nobody else begins one
                _settling_logger.exception("the tables are not settled up to a point yet")

    def next(self) -> None:
        """Begin a round if one is due, or end the one under way if its tables are settled. Raises LakebedError."""
        if self._round is not None:
            self._end(*self._round)
        elif self.clock() - self._began >= self.pause_seconds:
            self._begin()

    def _begin(self) -> None:
        self._began = self.clock()
        point = self.points.newest()
        if point is None:
            return
        if point.number > self._number:
            self._number, self._moved = point.number, self._began
        elif self._began - self._moved >= _PAUSES_MAX * self.pause_seconds:
            for name in point.tables:
                self.release(name)
            return
        for name in point.left_out:
            self.release(name)
        changed = {n: at for n, at in point.tables.items() if n not in self._known or self._known[n][0] != at}
        if changed or point.number > self._said:  # all may be settled, and the log could not be written
            self._round = point, {name: self.settle_to(name, at.version) for name, at in changed.items()}

    def _end(self, point: Point, futures: Mapping[str, Future[int | None]]) -> None:
        if not all(future.done() for future in futures.values()):
            return
        self._round = None
        for name, future in futures.items():
            try:
                version = future.result()
            except LakebedError as error:
                _settling_logger.warning("table %s could not be settled up to point %d: %s", name, point.number, error)
                continue
            if version is not None:
                self._known[name] = point.tables[name], version
        if all(name in self._known and self._known[name][0] == at for name, at in point.tables.items()):
            versions = {name: self._known[name][1] for name in point.tables}
            self.points.settle(Settled(number=point.number, versions=versions))
            self._said = point.number
