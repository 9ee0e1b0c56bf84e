"""Whether the connector that fills topics is alive, as its heartbeats show.

Debezium writes a record into ``__debezium-heartbeat.<topic.prefix>`` each ``heartbeat.interval.ms``, also while nothing happens
in the database. By default it writes none. So the pace is learned: a topic that has moved several times, and then does not for
twice as long as it took lately, is silent. What it took when it was silent counts only the second time in a row, since once it
was an outage. Times in which the brokers do not answer say nothing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from lakebed.errors import Retry

PREFIX = "__debezium-heartbeat."
SILENT_SECONDS = 8.0
"""At least: a connector may pause for some seconds."""
SILENT_GAPS = 2.0
"""In longest gaps between two heartbeats of late."""
GAPS_MIN, GAPS_MAX = 3, 20


class Cluster(Protocol):
    """See ``KafkaCluster``."""

    def heartbeat_ends(self, prefix: str) -> dict[str, int]: ...


@dataclass(slots=True)
class _Beats:
    end: int
    moved_at: float
    is_silent: bool = False
    was_silent: bool = False
    """In the gap before the newest heartbeat."""
    gaps: deque[float] = field(default_factory=lambda: deque(maxlen=GAPS_MAX))

    @property
    def patience_seconds(self) -> float:
        return max(SILENT_SECONDS, SILENT_GAPS * max(self.gaps, default=0.0))


class Heartbeats:
    """Looks at the topics of heartbeats. One thread at a time."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._clock = clock
        self._beats: dict[str, _Beats] = {}

    def look(self) -> None:
        """Raises Retry if a connector is silent that was not before. While no broker answers, nothing changes."""
        try:
            self._compare(self._cluster.heartbeat_ends(PREFIX))
        except Retry:  # the watch over the brokers says so
            for known in self._beats.values():
                if not known.is_silent:
                    known.moved_at = self._clock()
        silent = sorted(topic.removeprefix(PREFIX) for topic, one in self._beats.items() if one.is_silent)
        if silent:
            raise Retry(f"the connector of {', '.join(silent)} sends no heartbeats any more")

    def _compare(self, ends: Mapping[str, int]) -> None:
        now = self._clock()
        self._beats = {topic: one for topic, one in self._beats.items() if topic in ends}
        for topic, end in ends.items():
            known = self._beats.setdefault(topic, _Beats(end, now))
            if end != known.end:
                if not known.is_silent or known.was_silent:  # once it was an outage, twice it is another interval
                    known.gaps.append(now - known.moved_at)
                known.end, known.moved_at, known.was_silent = end, now, known.is_silent
            late = now - known.moved_at
            known.is_silent = len(known.gaps) >= GAPS_MIN and late > known.patience_seconds
