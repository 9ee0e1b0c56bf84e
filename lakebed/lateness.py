"""How a batch of changes stands to what was read before it, in the order of their source.

A change has a *place* in that order: the number that ``sequence_by`` gives it (``decode.source_order``), by which it also counts
in the table. In one partition of a topic places grow with the source's clock. A source that was moved to another server, restored
from a backup, or whose log was reset goes on at lower places. Then its changes are later by the clock, lower by their places, and
lose against the rows that the table has. What is sent or read again is lower by both, and loses rightly.

So the table remembers the greatest place and the latest time of what was read of each partition (``Newest``, in its positions),
and each batch is compared with that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

FAR = 1 << 30
"""No change of the same millisecond is this far below the greatest place: a GiB of PostgreSQL's log, or an earlier file of a
binary log."""
CLOCK_STEP_US = 10_000_000
"""By how much the clock of a source may step back, or the times of two commits differ from their order."""
Place = tuple[str, int]
"""A partition of a topic."""


@dataclass(frozen=True, slots=True)
class Newest:
    """The greatest place of some changes, and the latest time of them by the source's clock, in microseconds since the epoch."""

    place: int
    time_us: int

    def or_later(self, other: Newest | None) -> Newest:
        """The newest of both."""
        if other is None:
            return self
        return Newest(max(self.place, other.place), max(self.time_us, other.time_us))


def newest_of(several: Iterable[Mapping[Place, Newest]]) -> dict[Place, Newest]:
    """The newest of several, by partition."""
    found: dict[Place, Newest] = {}
    for one in several:
        for place, newest in one.items():
            found[place] = newest.or_later(found.get(place))
    return found


class Lateness(StrEnum):
    """How a batch of changes stands to what was read before it."""

    NONE = ""
    """It is newer, or that is not known."""
    AGAIN = "again"
    """Some of it is lower and earlier: it was sent or read again. What loses of it loses rightly."""
    LOWER = "lower"
    """Some of it is lower, and not earlier: the order of the source may have begun again."""


def lateness(batch: Mapping[Place, Newest], before: Mapping[Place, Newest]) -> Lateness:
    """How a batch stands to what was read before it."""
    found = Lateness.NONE
    for place, newest in batch.items():
        known = before.get(place)
        if known is not None and newest.place < known.place:
            if newest.time_us >= known.time_us:
                return Lateness.LOWER
            found = Lateness.AGAIN
    return found
