"""The figures of one run, gathered from the events of this process, for the display and the summary.

Write amplification is the bytes of parts and deletion vectors written into the table by this process, divided by the
bytes of the change parts that ingest wrote. So 1.0 means that only the changes were written; the log is left out.

**How old changes are** when they are committed, and when every reader sees them. A batch has the time of its newest event.
Streams are near to time order, so the events of a batch happened between the newest of the batch before and its own newest; they
are assumed to be evenly spread over that time, and ``POINTS`` of them represent the batch. The first batch of a run has no batch
before it, so only its newest event represents it.

Visible means settled: in the base, so that every Delta reader sees it. A table without keys needs no settling.
Viewed means that a temporary view of this process shows it, settled or not.

All of these count from the event. The terminal, the page and the log of a run show one figure of them, the median of the last
minute (``RecentAges``), so that they agree at any moment; Prometheus gets every age.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lakebed.events import (
    BatchCommitted,
    BatchReplayed,
    Event,
    MergeEnded,
    OffsetsLost,
    QueryChanged,
    Settled,
    Uploaded,
    ViewRefreshed,
)

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


_RATE_SECONDS = 10.0
_SAMPLES_MAX = 20_000


@dataclass(frozen=True, slots=True)
class Ages:
    """Seconds from the event; None before the first. ``recent``: the median of the last minute; p50 and p99 are of the run."""

    recent: float | None = None
    p50: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A run up to one moment. ``rows`` are changes committed (the newest per key and batch)."""

    seconds: float
    rows: int
    rows_per_second: float
    batches: int
    replayed: int
    quarantined: int
    lost: int
    bytes_ingested: int
    bytes_written: int
    version: int | None
    committed: Ages
    visible: Ages
    last_error: str | None

    @property
    def rows_per_second_overall(self) -> float:
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    @property
    def write_amplification(self) -> float | None:
        """See the module; None before the first batch."""
        return self.bytes_written / self.bytes_ingested if self.bytes_ingested else None


class _Sample:
    """A bounded sample of ages; each row has the same chance to be in it (reservoir, Vitter 1985, over batches)."""

    def __init__(self) -> None:
        self._recent = RecentAges()
        self._ages = np.empty(_SAMPLES_MAX)
        self._seen = 0
        self._random = random.Random(0)

    def add(self, aged: Aged, now: float) -> None:
        self._recent.add(aged, now)
        for age in aged.ages_seconds:
            self._seen += 1
            place = self._seen - 1 if self._seen <= _SAMPLES_MAX else self._random.randrange(self._seen)
            if place < _SAMPLES_MAX:
                self._ages[place] = age

    def ages(self) -> Ages:
        if not self._seen:
            return Ages()
        known = self._ages[: self._seen]
        p50, p99 = (round((len(known) - 1) * share) for share in (0.5, 0.99))
        ordered = np.partition(known, (p50, p99))  # a run of many tables asks several times a second
        return Ages(self._recent.median, float(ordered[p50]), float(ordered[p99]))


class Progress:
    """Listens to the events of one table, or of all tables of a database; ``figures`` may be asked from any thread."""

    def __init__(self, path: str, clock: Callable[[], float] = time.time, *, is_database: bool = False) -> None:
        """``path``: of the table or the database."""
        self._table = path
        self._below = f"{path.rstrip('/')}/" if is_database else None
        self._clock = clock
        self._lock = threading.Lock()
        self._started = clock()
        self._meters: dict[str, FreshnessMeter] = {}
        self._committed = _Sample()
        self._visible = _Sample()
        self._recent: deque[tuple[float, int, str]] = deque()
        self._rows = self._batches = self._replayed = self._quarantined = self._lost = 0
        self._bytes_ingested = self._bytes_written = 0
        self._version: int | None = None
        self._errors: dict[str, str] = {}  # by role, the newest last

    def __call__(self, event: Event) -> None:
        if event.table != self._table and not (self._below and event.table.startswith(self._below)):
            return
        now = self._clock()
        with self._lock:
            match event:
                case BatchCommitted():
                    self._batch(event, now)
                case Settled():
                    self._errors.pop("maintain", None)
                    self._version = max(event.version, self._version or 0)
                    self._quarantined += event.quarantined
                    self._bytes_written += event.bytes_written
                    for aged in self._meter(event.table).settled(event, now):
                        self._visible.add(aged, now)
                case MergeEnded():
                    self._version = max(event.version, self._version or 0)
                    self._bytes_written += 0 if event.local else event.bytes_out
                case Uploaded():
                    self._version = max(event.version, self._version or 0)
                    self._bytes_written += event.bytes
                case BatchReplayed():
                    self._replayed += 1
                    self._errors.pop("ingest", None)
                case QueryChanged(state="running"):
                    self._errors.pop(event.role, None)
                case OffsetsLost():
                    self._lost += event.records

    def failed(self, role: str, error: str) -> None:
        """Record the error of ingest or maintenance. It stays until that has done some work again, or runs."""
        with self._lock:
            self._errors.pop(role, None)
            self._errors[role] = error

    def healed(self, role: str) -> None:
        """Ingest or maintenance runs."""
        with self._lock:
            self._errors.pop(role, None)

    def errors(self) -> tuple[str, ...]:
        """The errors for which ingest and maintenance wait now."""
        with self._lock:
            return tuple(self._errors.values())

    def restart_clock(self) -> None:
        """Count the time of the run from now on."""
        with self._lock:
            self._started = self._clock()

    def figures(self) -> Figures:
        """The figures now."""
        with self._lock:
            span = self._forget_older_rates()
            return Figures(
                seconds=self._clock() - self._started,
                rows=self._rows,
                rows_per_second=sum(rows for _, rows, _ in self._recent) / span,
                batches=self._batches,
                replayed=self._replayed,
                quarantined=self._quarantined,
                lost=self._lost,
                bytes_ingested=self._bytes_ingested,
                bytes_written=self._bytes_written,
                version=self._version,
                committed=self._committed.ages(),
                visible=self._visible.ages(),
                last_error=next(reversed(self._errors.values()), None),
            )

    def rates(self) -> dict[str, float]:
        """Rows a second of each table that committed some lately, by its root."""
        with self._lock:
            span = self._forget_older_rates()
            rates: Counter[str] = Counter()
            for _, rows, table in self._recent:
                rates[table] += rows
        return {table: rows / span for table, rows in rates.items()}

    @property
    def batches(self) -> int:
        """The number of batches that were committed."""
        with self._lock:
            return self._batches

    def _forget_older_rates(self) -> float:
        """Forget rows that no rate counts any more; returns the seconds of those that are left. The caller holds the lock."""
        now = self._clock()
        while self._recent and self._recent[0][0] < now - _RATE_SECONDS:
            self._recent.popleft()
        return min(_RATE_SECONDS, max(now - self._started, 1e-3))

    def _batch(self, event: BatchCommitted, now: float) -> None:
        self._errors.pop("ingest", None)
        self._batches += 1
        self._rows += event.rows
        self._quarantined += event.quarantined
        self._bytes_ingested += event.bytes
        self._bytes_written += event.bytes
        self._version = max(event.version, self._version or 0)
        self._recent.append((now, event.rows, event.table))
        if aged := self._meter(event.table).committed(event, now):
            self._committed.add(aged, now)

    def _meter(self, table: str) -> FreshnessMeter:
        return self._meters.setdefault(table, FreshnessMeter())
