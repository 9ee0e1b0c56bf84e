"""Topics of which transactions count events, and that are no tables: whether a point waits for them.

1. One that the pipeline does not read, because its file excludes it, never becomes a table.
2. One that is not there has no events: a connector writes the end of a transaction after its events, and a topic is made before
   its first event is written. So the events went elsewhere, or nowhere: they are messages, or a transformation of the connector's
   left them out or routed them. Brokers get to know a new topic one after the other, and events that are routed to a table show
   there (``cut``). So the first point waits for ``ABSENT_SECONDS``.
3. Any other may become a table in a moment. The first point waits for that, ``wait_seconds`` at most. The points name the topic
   until it is a table.

Later points do not wait, nor do those of a process that begins later: the points keep what is known (``to_json``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

ABSENT_SECONDS = 10.0
KEPT_MAX = 1_000
"""So many topics are remembered. Further ones are not waited for."""


@dataclass(slots=True)
class _Seen:
    """``since``: when it was first found there, or not there."""

    is_there: bool
    since: float


@dataclass(slots=True, kw_only=True)
class Strangers:
    """``is_read``: whether the pipeline reads a topic as a table, as far as its name says that. Times are monotonic seconds."""

    wait_seconds: float
    is_read: Callable[[str], bool] = lambda topic: True
    _ignored: set[str] = field(default_factory=set)
    _seen: dict[str, _Seen] = field(default_factory=dict)

    def ignore(self, topic: str) -> None:
        """The topic is no table."""
        self._ignored.add(topic)
        self._seen.pop(topic, None)

    def is_table(self, topic: str) -> None:
        """The topic is a table now."""
        self._seen.pop(topic, None)

    def remember(self, kept: Mapping[str, bool]) -> None:
        """Points have been waiting for these already (``to_json``)."""
        self._seen |= {topic: _Seen(is_there, float("-inf")) for topic, is_there in kept.items()}

    def to_json(self) -> dict[str, bool]:
        """The topics that points do not wait for any more, and whether they are there."""
        return {topic: seen.is_there for topic, seen in self._seen.items()}

    def among(self, topics: Iterable[str]) -> set[str]:
        """Those that may become tables."""
        return {topic for topic in topics if topic not in self._ignored and self.is_read(topic)}

    def hold_back(self, topics: Collection[str], there: Collection[str], now: float) -> bool:
        """Whether a point waits for one of the topics; ``there``: those of them that are there."""
        waits = False
        for topic in topics:
            is_there = topic in there
            seen = self._seen.get(topic)
            if seen is None and len(self._seen) >= KEPT_MAX:
                continue
            if seen is None or seen.is_there != is_there:
                seen = self._seen[topic] = _Seen(is_there, now)
            waits |= now - seen.since < (self.wait_seconds if is_there else ABSENT_SECONDS)
        return waits

    def named(self) -> list[str]:
        """Those that may become tables, and that were waited for in vain."""
        return [topic for topic, seen in self._seen.items() if seen.is_there]
