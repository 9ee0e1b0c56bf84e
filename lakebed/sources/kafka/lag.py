"""Whether what comes through Kafka keeps up: how far a query is behind, and whether the connector is alive.

The lag is computed from Spark's report on the last batch.

**Heartbeats.** Debezium writes a record into ``__debezium-heartbeat.<topic.prefix>`` each ``heartbeat.interval.ms``, also while
nothing happens in the database. By default it writes none. So the pace is learned: a topic that has moved several times, and
then does not for twice as long as it took lately, is silent. What it took when it was silent counts only the second time in a
row, since once it was an outage. Times in which the brokers do not answer say nothing.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from lakebed.errors import Retry


def lag_by_topic(progress: Mapping[str, Any]) -> dict[str, int]:
    """By topic, the records that existed when the last batch was planned and that no batch has read yet.

    ``progress`` is a StreamingQueryProgress as a mapping. The result is empty if the source reports no offsets. A
    partition that no batch has begun to read is left out. Of a database it has the topics with most of these records.
    """
    lag: dict[str, int] = {}
    for source in progress.get("sources", ()):
        latest, end = _document(source["latestOffset"]), _document(source["endOffset"])
        if "left" in latest:
            return dict(latest["left"])
        for topic, offsets in _topics(end).items():
            ends = _topics(latest).get(topic)
            if ends is None:
                continue
            behind = sum(max(0, ends.get(partition, offset) - offset) for partition, offset in offsets.items())
            lag[topic] = lag.get(topic, 0) + behind
    return lag


def lag_in_all(progress: Mapping[str, Any]) -> int:
    """The same for all topics together."""
    known = [_document(source["latestOffset"]).get("left_in_all") for source in progress.get("sources", ())]
    return sum(lag_by_topic(progress).values()) if not known or known[0] is None else int(known[0])


def lag_of_tables(
    progress: Mapping[str, Any], waiting: Mapping[str, int], before: Iterable[str] = ()
) -> tuple[dict[str, int], int]:
    """Of a database, by topic and in all, the records that are in no table yet, as far as this is known.

    ``waiting``: by topic, what batches planned for tables that can't be read now; ``before``: topics that had such records
    the last time. Those that have none any more are in the result with 0.
    """
    left, in_all = lag_by_topic(progress), lag_in_all(progress)
    is_whole = bool(progress) and sum(left.values()) == in_all
    topics = [*left, *waiting, *(before if is_whole else ())]
    found = {topic: left.get(topic, 0) + waiting.get(topic, 0) for topic in topics}
    return found, in_all + sum(waiting.values())


def _topics(document: Mapping[str, Any]) -> Mapping[str, Mapping[str, int]]:
    topics = document.get("topics")
    return topics if isinstance(topics, Mapping) else {}


def _document(offset: Any) -> Mapping[str, Any]:
    """An offset document of ``kafka.source`` or ``kafka.database_source``; empty for any other text."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return {}
    return offset if isinstance(offset, Mapping) else {}


PREFIX = "__debezium-heartbeat."
SILENT_SECONDS = 8.0
"""At least: a connector may pause for some seconds."""
_SILENT_GAPS = 2.0
"""In longest gaps between two heartbeats of late."""
GAPS_MIN, GAPS_MAX = 3, 20


class _Cluster(Protocol):
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
        return max(SILENT_SECONDS, _SILENT_GAPS * max(self.gaps, default=0.0))


class Heartbeats:
    """Looks at the topics of heartbeats. One thread at a time."""

    def __init__(self, cluster: _Cluster, clock: Callable[[], float] = time.monotonic) -> None:
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
