"""Settles all tables of a database up to one point, now and then, so that every Delta reader can read them as of it.

    idle --next--> the newest point is chosen; each table is settled up to the version that it names
    settling --next--> not done: go on; done: the log of points says the versions; a table could not: nothing, the next point

Tables that have not changed since they were settled keep their version, and cost nothing. Between two rounds a table is not
settled beyond the point. One that is left out of the points is settled at its own pace, and all are if no point comes for long.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from lakebed.errors import LakebedError
from lakebed.positions.point_log import Point, PointLog, Settled, TableAt

_SettleTo = Callable[[str, int], "Future[int | None]"]
"""Settles a table, by name, exactly up to a version. The result is the version at which it is; None if that can't be any more."""
_PAUSES_MAX = 5
"""After so many rounds without a newer point, tables are settled at their own pace."""
_LOOK_SECONDS = 0.5
_logger = logging.getLogger("lakebed.compaction")


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
                _logger.warning("the tables are not settled up to a point yet: %s", error)
            except Exception:  # a later round may do better, and nobody else begins one
                _logger.exception("the tables are not settled up to a point yet")

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
                _logger.warning("table %s could not be settled up to point %d: %s", name, point.number, error)
                continue
            if version is not None:
                self._known[name] = point.tables[name], version
        if all(name in self._known and self._known[name][0] == at for name, at in point.tables.items()):
            versions = {name: self._known[name][1] for name in point.tables}
            self.points.settle(Settled(number=point.number, versions=versions))
            self._said = point.number
