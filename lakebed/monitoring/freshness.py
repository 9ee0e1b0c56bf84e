"""How old changes are when they are committed, and when every reader sees them.

A batch has the time of its newest event. Streams are near to time order, so the events of a batch happened between
the newest of the batch before and its own newest; they are assumed to be evenly spread over that time, and ``POINTS``
of them represent the batch. The first batch of a run has no batch before it, so only its newest event represents it.

Visible means settled: in the base, so that every Delta reader sees it. A table without keys needs no settling.
Viewed means that a temporary view of this process shows it, settled or not.

All of these count from the event. The terminal, the page and the log of a run show one figure of them, the median of the last
minute (``RecentAges``), so that they agree at any moment; Prometheus gets every age.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from lakebed.events import BatchCommitted, Settled, ViewRefreshed

POINTS = 8
_RECENT_SECONDS = 60.0
_RECENT_MAX = 8_000
_PENDING_MAX = 2_000  # batches that wait; beyond that the oldest are not measured


@dataclass(frozen=True, slots=True)
class Aged:
    """Rows and their ages in seconds, ``POINTS`` or one of them."""

    rows: int
    ages_seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Pending:
    version: int
    rows: int
    happened: tuple[float, ...]


class RecentAges:
    """The ages of the last minute in which changes came, or of the last ``_RECENT_MAX`` rows that represent them."""

    def __init__(self) -> None:
        self._ages = np.zeros(_RECENT_MAX)
        self._reached = np.full(_RECENT_MAX, -np.inf)  # when
        self._next = 0

    def add(self, aged: Aged, now: float) -> None:
        """Changes reached the stage now."""
        places = np.arange(self._next, self._next + len(aged.ages_seconds)) % _RECENT_MAX
        self._ages[places], self._reached[places] = aged.ages_seconds, now
        self._next = int(places[-1] + 1) % _RECENT_MAX

    @property
    def median(self) -> float | None:
        """In seconds; None before the first change."""
        newest = self._reached[self._next - 1]
        if newest == -np.inf:
            return None
        ages = self._ages[self._reached >= newest - _RECENT_SECONDS]
        middle = (len(ages) - 1) // 2
        return float(np.partition(ages, middle)[middle])


class FreshnessMeter:
    """Follows the batches of one table from their events to their settling. Not thread-safe: the caller locks."""

    def __init__(self) -> None:
        self._newest: float | None = None
        self._pending: deque[_Pending] = deque(maxlen=_PENDING_MAX)
        self._unseen: deque[_Pending] = deque(maxlen=_PENDING_MAX)

    def committed(self, batch: BatchCommitted, now: float) -> Aged | None:
        """The ages of a batch's events at its commit; None if it has no event time."""
        newest = batch.newest_event_seconds
        if newest is None or not batch.rows:
            return None
        oldest = newest if self._newest is None else min(self._newest, newest)
        self._newest = max(newest, self._newest or newest)
        steps = POINTS if oldest < newest else 1
        happened = tuple(newest - (newest - oldest) * step / steps for step in range(steps))
        pending = _Pending(batch.version, batch.rows, happened)
        self._pending.append(pending)
        self._unseen.append(pending)
        return _aged(pending, now)

    def settled(self, settled: Settled, now: float) -> list[Aged]:
        """The ages of the events that became visible to every reader."""
        out = []
        while self._pending and self._pending[0].version < settled.version:
            out.append(_aged(self._pending.popleft(), now))
        return out

    def viewed(self, refreshed: ViewRefreshed, now: float) -> list[Aged]:
        """The ages of the events that a view of this process now shows for the first time."""
        out = []
        while self._unseen and self._unseen[0].version <= refreshed.version:
            out.append(_aged(self._unseen.popleft(), now))
        return out


def _aged(pending: _Pending, now: float) -> Aged:
    return Aged(pending.rows, tuple(max(0.0, now - moment) for moment in pending.happened))
