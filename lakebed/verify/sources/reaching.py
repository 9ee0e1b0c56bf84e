"""Waits until a table of the lake has everything of its source up to a position.

1. The connector has confirmed the position: by its slot in PostgreSQL (``postgres.SlotConnector``), or by the offset that
   Connect has stored (``stored_offsets``). So every event of a transaction that committed below the position is in a topic.
2. The ends of the table's topic are taken after that, so they are behind all of these events.
3. The table has read up to these ends, by the positions in its own log (invariant M6).

None of these steps rests on a clock, on the order of arrival, or on what the pipeline says of itself. A quiet database writes
nothing that the connector could confirm: after a moment it is nudged, if there is a way that changes nothing and is not refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from lakebed.errors import InvalidInput, Retry
from lakebed.log.snapshot import Snapshot
from lakebed.positions.positions import positions_of
from lakebed.verify.source import Connector

PAUSE_SECONDS, QUIET_SECONDS = 0.25, 2.0


@dataclass(slots=True, kw_only=True)
class Reaching:
    """Waits for one table."""

    table: str
    topic: str
    connector: Connector
    ends: Callable[[], Mapping[int, int]]  # the next offset of each partition of the topic
    newest: Callable[[], Snapshot]  # the table's newest version
    wait_seconds: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def reach(self, position: int) -> Snapshot:
        """A version that has everything up to a position. Raises Retry after ``wait_seconds`` without one."""
        self._confirm(position)
        ends = self.ends()
        until = self.clock() + self.wait_seconds
        while True:
            snapshot = self.newest()
            found = positions_of(snapshot).get(self.topic)
            offsets = found.offsets if found else {}
            behind = {number: end for number, end in ends.items() if offsets.get(number, 0) < end}
            if not behind:
                return snapshot
            if self.clock() >= until:
                number, end = next(iter(behind.items()))
                raise Retry(
                    f"{self.table} has read partition {number} of {self.topic} up to offset {offsets.get(number, 0):,}, "
                    f"and {end:,} is needed: does its pipeline run, and is the table not parked (lakebed status)?"
                )
            self.sleep(PAUSE_SECONDS)

    def _confirm(self, position: int) -> None:
        begun = said = self.clock()
        while why := self.connector.missing(position):
            now = self.clock()
            if now - begun >= self.wait_seconds:
                raise Retry(why)
            if now - said >= QUIET_SECONDS:
                said = now
                with suppress(InvalidInput):
                    self.connector.nudge()
            self.sleep(PAUSE_SECONDS)
