"""Which topics of a database the next batch reads: a table's share of a batch has a fixed cost, so unread records gather.

1. A topic is due when it has as many unread records as are worth a commit, or when records have been unread for its maximal age.
   What was unread before the first look is due at once.
2. If any topic is due, those that would be due soon join the batch.
3. A batch reads ``TOPICS_MAX`` topics at most, and the next one follows at once. So no topic waits long for the others, and
   topics that became due together do not stay together.
4. At the pace of ``together_seconds`` all topics with unread records are due, and in one batch.
5. A limit of records is shared in turn: those served longest ago first (``shares.in_turn``).

Pure: the time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lakebed.sources.kafka.cluster import Partitions
from lakebed.sources.kafka.planned_batch import Control
from lakebed.sources.kafka.shares import in_proportion, in_turn
from lakebed.sources.pace import HOT_RECORDS
from lakebed.sources.source import Range

JOINS = 0.8
"""A topic joins a batch from this share of its maximal age on."""
TOPICS_MAX = 20
"""Their commits cost some ten times as much as the batch itself."""
PIECE_RECORDS = 50_000
_LONG_AGO = float("-inf")


@dataclass(slots=True)
class Gathering:
    """``positions``: the next offset of each partition that no batch reads yet."""

    positions: Partitions
    _unread: dict[str, Partitions] = field(default_factory=dict)
    _since: dict[str, float] = field(default_factory=dict)
    _served: dict[str, float] = field(default_factory=dict)
    _looked: float = _LONG_AGO
    _together: float = _LONG_AGO
    _leaves_due: bool = False

    def saw(self, ends: Mapping[tuple[str, int], int], now: float) -> None:
        """The ends of partitions that have a position. A topic without an end has nothing to read."""
        self._unread = {}
        for (topic, partition), end in ends.items():
            behind = end - self.positions[topic, partition]
            if behind > 0:
                self._unread.setdefault(topic, {})[topic, partition] = behind
        self._since = {topic: self._since.get(topic, self._looked) for topic in self._unread}
        self._looked = now

    def unread(self) -> dict[str, int]:
        """By topic, the number of records that no batch reads yet; only topics that have some."""
        return {topic: sum(partitions.values()) for topic, partitions in self._unread.items()}

    def left(self, control: Control) -> tuple[str, ...]:
        """The topics that may be read and have records that no batch reads yet."""
        return tuple(sorted(topic for topic in self._unread if control.limits.get(topic, 1) > 0))

    def due(self, control: Control, now: float) -> list[str]:
        """The topics that a batch reads now; none if no batch is due. Those served longest ago come first."""
        unread = {topic: count for topic, count in self.unread().items() if control.limits.get(topic, 1) > 0}
        self._leaves_due = False
        if control.together_seconds is not None and now - self._together >= control.together_seconds:
            return self._in_order(unread)
        age = {
            topic: float("inf") if count >= HOT_RECORDS else (now - self._since[topic]) / control.max_age_of(topic)
            for topic, count in unread.items()
        }
        if not any(share >= 1 for share in age.values()):
            return []
        order = self._in_order(topic for topic, share in age.items() if share >= JOINS)
        self._leaves_due = any(age[topic] >= 1 for topic in order[TOPICS_MAX:])
        return order[:TOPICS_MAX]

    def all(self) -> list[str]:
        """All topics that have unread records."""
        return self._in_order(self._unread)

    def take(self, topics: Iterable[str], control: Control, records_max: int, now: float) -> tuple[list[Range], bool]:
        """The ranges of a batch of these topics; and whether a limit leaves out records that are due."""
        order, unread = list(topics), self.unread()
        if len(order) == len(unread):
            self._together = now
        wanted = {topic: min(unread[topic], control.limits.get(topic, unread[topic])) for topic in order}
        shares = in_turn(order, wanted, records_max, PIECE_RECORDS)
        ranges = []
        for topic, records in shares.items():
            for partition, count in in_proportion(self._unread[topic], records).items():
                if count:
                    start = self.positions[partition]
                    ranges.append(Range(*partition, start, start + count))
            self._served[topic] = now
        for each in ranges:
            self._read(each)
        return ranges, self._leaves_due or sum(shares.values()) < sum(wanted.values())

    def longest(self, topics: Iterable[str]) -> tuple[str, int, int, int]:
        """The partition of these topics with most unread records: its topic, number, and their first and last offset + 1."""
        (topic, partition), count = max(
            (item for topic in topics for item in self._unread[topic].items()), key=lambda item: item[1]
        )
        start = self.positions[topic, partition]
        return topic, partition, start, start + count

    def start_over(self, positions: Partitions) -> None:
        """What was known of these partitions is of records that are gone. They are due with the next look."""
        self.positions |= positions
        for topic in {topic for topic, _ in positions}:
            self._unread.pop(topic, None)
            self._since[topic] = _LONG_AGO

    def _read(self, each: Range) -> None:
        of = self._unread[each.topic]
        self.positions[each.topic, each.partition] = each.end
        of[each.topic, each.partition] -= each.end - each.start
        if not any(of.values()):
            del self._unread[each.topic], self._since[each.topic]

    def _in_order(self, topics: Iterable[str]) -> list[str]:
        return sorted(topics, key=lambda topic: (self._served.get(topic, _LONG_AGO), self._since[topic], topic))
