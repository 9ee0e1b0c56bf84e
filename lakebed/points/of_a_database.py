"""The points of a database, beside its batches: what the keeper of points is told of the tables, and when.

All calls come from the thread of the batches, but for ``wants_batch``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence

from lakebed.errors import LakebedError
from lakebed.ingest.database.member import Member
from lakebed.ingest.database.runner import Outcome
from lakebed.ingest.table_batch import BatchDone
from lakebed.points.keeper import PointKeeper
from lakebed.positions.positions import Position
from lakebed.sources.cut import Cut
from lakebed.sources.source import Range


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
