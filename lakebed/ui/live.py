"""What only the process that ingests knows of a table: the age of changes since their events, and the lag of the source.

A page that ``lakebed run`` serves shows it. It is gathered from the events of the process, in memory.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lakebed.events import BatchCommitted, Event, QueryChanged, Settled, SourceLagged
from lakebed.monitoring.progress import FreshnessMeter, RecentAges
from lakebed.ui.documents import cut

_TOPICS_MAX = 100


@dataclass(slots=True)
class _Table:
    meter: FreshnessMeter = field(default_factory=FreshnessMeter)
    committed: RecentAges = field(default_factory=RecentAges)
    visible: RecentAges = field(default_factory=RecentAges)
    newest_event_ms: int | None = None
    lag: dict[str, int] = field(default_factory=dict)
    queries: dict[str, str] = field(default_factory=dict)


class Live:
    """Listens to the events of this process; ``of`` may be asked from any thread."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # of the tables
        self._tables: dict[str, _Table] = {}

    def __call__(self, event: Event) -> None:
        now = self._clock()
        with self._lock:
            match event:
                case BatchCommitted():
                    table = self._of(event.table)
                    if aged := table.meter.committed(event, now):
                        table.committed.add(aged, now)
                    if event.newest_event_seconds is not None:
                        table.newest_event_ms = int(event.newest_event_seconds * 1000)
                case Settled():
                    table = self._of(event.table)
                    for aged in table.meter.settled(event, now):
                        table.visible.add(aged, now)
                case SourceLagged():
                    lag = self._of(event.table).lag
                    if event.topic in lag or len(lag) < _TOPICS_MAX:
                        lag[event.topic] = event.records
                case QueryChanged():
                    self._of(event.table).queries[event.role] = event.state

    def of(self, root: str) -> dict[str, Any] | None:
        """The figures of a table; None if this process did nothing to it. Ages count from the event, as in the terminal."""
        with self._lock:
            table = self._tables.get(root)
            if table is None:
                return None
            lag = sorted(table.lag.items(), key=lambda each: (-each[1], each[0]))
            return {
                "committed_seconds": _rounded(table.committed.median),
                "visible_seconds": _rounded(table.visible.median),
                "newest_event_ms": table.newest_event_ms,
                "lag": [{"topic": cut(topic), "records": records} for topic, records in lag],
                "queries": dict(sorted(table.queries.items())),
            }

    def _of(self, path: str) -> _Table:
        return self._tables.setdefault(path, _Table())


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
