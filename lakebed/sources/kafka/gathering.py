"""Which topics of a database the next batch reads: a table's share of a batch has a fixed cost, so unread records gather.

1. A topic is due when it has as many unread records as are worth a commit, or when records have been unread for its maximal age.
   What was unread before the first look is due at once.
2. If any topic is due, those that would be due soon join the batch.
3. A batch reads ``TOPICS_MAX`` topics at most, and the next one follows at once. So no topic waits long for the others, and
   topics that became due together do not stay together.
4. At the pace of ``together_seconds`` all topics with unread records are due, and in one batch.
5. A limit of records is shared in turn: those served longest ago first (``in_turn``).

That is pure: the time is an argument.

**The planner tells** what a batch reads: it is the offset document of the query (``PlannedBatch``).

    {"batch": 17, "tick": 2, "begin": {topic: {"0": 7}},
     "topics": {topic: {"id": "…", "ranges": {"0": [100, 250]}, "first": [0]}}, "left": [topic], "more": true}

The document holds the ranges of its own batch alone, so its size follows what the batch reads and not the number of topics. Up to
where the tables have read is in their logs (``positions.positions``).

**The driver tells** what the planner has to know by a file in a folder that both know (``Control``). The driver replaces
``control.json`` whenever something in it changes; the planner looks at it ten times a second. ``positions.json`` says where
planning begins: it is written once, before the query starts.

**A limit of bytes** is turned into one of records by a sample of their size (``RecordBytes``).
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from lakebed.positions.positions import Position
from lakebed.sources.kafka.cluster import Partitions
from lakebed.sources.kafka.range import consume_range
from lakebed.sources.kafka.settings import KafkaSettings
from lakebed.sources.source import HOT_RECORDS, Range

_MAX_AGE_SECONDS = 10.0
_CONTROL, _POSITIONS = "control.json", "positions.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What the driver wants of the planner."""

    tick: int = 0  # a larger one than before asks for a batch, even if nothing is new
    default_max_age_seconds: float = _MAX_AGE_SECONDS  # for topics that are not in ``max_age_seconds``
    # how long unread records of a topic may wait for others, by topic
    max_age_seconds: Mapping[str, float] = field(default_factory=dict)
    # how many records of a topic a batch may read; 0 leaves the topic out
    limits: Mapping[str, int] = field(default_factory=dict)
    # at this pace all topics that have unread records are read together, whatever their age
    together_seconds: float | None = None

    def max_age_of(self, topic: str) -> float:
        return self.max_age_seconds.get(topic, self.default_max_age_seconds)


class ControlFile:
    """The newest ``Control`` in a folder; the defaults until there is one."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _CONTROL
        self._seen: tuple[int, int] | None = None
        self._control = Control()

    def newest(self) -> Control:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return self._control
        seen = found.st_ino, found.st_mtime_ns
        if seen != self._seen:
            self._control, self._seen = Control(**json.loads(self._path.read_text())), seen
        return self._control


def write_control(folder: Path, control: Control) -> None:
    """Replaces what the planner was told before."""
    _replace(folder / _CONTROL, json.dumps(asdict(control)))


def write_positions(folder: Path, positions: Mapping[str, Position]) -> None:
    """Says where planning begins: the position of each topic that a table has read."""
    documents = {
        topic: {"id": position.topic_id, "offsets": dict(position.offsets)} for topic, position in positions.items()
    }
    _replace(folder / _POSITIONS, json.dumps(documents))


def read_positions(folder: Path) -> dict[str, Position]:
    """What ``write_positions`` wrote; empty if it did not."""
    try:
        documents = json.loads((folder / _POSITIONS).read_text())
    except FileNotFoundError:
        return {}
    return {
        topic: Position(
            offsets={int(number): offset for number, offset in found["offsets"].items()}, topic_id=found["id"]
        )
        for topic, found in documents.items()
    }


def _replace(path: Path, text: str) -> None:
    written = path.with_name(f"{path.name}.{threading.get_ident()}")  # several threads may write it
    written.write_text(text)
    os.replace(written, path)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBatch:
    """A batch that was planned. A range ``is_first`` if nothing before it was read, or what was read is no longer there."""

    number: int = 0  # 1 for the first batch of a checkpoint
    tick: int = 0  # the last tick of the driver when the batch was planned
    ranges: tuple[Range, ...] = ()
    # where partitions begin that had no position as the process began, unless the settings begin all at the earliest offset
    begin: Partitions = field(default_factory=dict)
    # topics that had records when the batch was planned, and that it does not read; only where points are taken
    left: tuple[str, ...] = ()
    more: bool = False  # the next batch follows at once, since a limit leaves out records that are due

    @staticmethod
    def of(document: Mapping[str, Any]) -> PlannedBatch:
        """The batch of an offset document; number 0 for ``{}``."""
        return PlannedBatch(
            number=document.get("batch", 0),
            tick=document.get("tick", 0),
            ranges=tuple(
                Range(
                    topic, int(number), start, end, topic_id=of.get("id"), is_first=int(number) in of.get("first", ())
                )
                for topic, of in document.get("topics", {}).items()
                for number, (start, end) in of.get("ranges", {}).items()
            ),
            begin={
                (topic, int(number)): offset
                for topic, of in document.get("begin", {}).items()
                for number, offset in of.items()
            },
            left=tuple(document.get("left", ())),
            more=document.get("more", False),
        )

    def with_beginnings(self, positions: Mapping[str, Position]) -> PlannedBatch:
        """The first batch of a process, which may come again: what batches before it planned of a partition that still has no
        position was not read, so the partition is read from its beginning.
        """
        read = {(topic, number) for topic, position in positions.items() for number in position.offsets}
        begin = {place: offset for place, offset in self.begin.items() if place not in read}
        ranges = tuple(
            replace(one, start=min(begin[one.place], one.start), is_first=True) if one.place in begin else one
            for one in self.ranges
        )
        return replace(self, ranges=ranges)

    def document(self) -> dict[str, Any]:
        """The offset document, in a fixed order."""
        topics: dict[str, dict[str, Any]] = {}
        for each in sorted(self.ranges, key=lambda each: each.place):
            of = topics.setdefault(each.topic, {} if each.topic_id is None else {"id": each.topic_id})
            of.setdefault("ranges", {})[str(each.partition)] = [each.start, each.end]
            if each.is_first:
                of.setdefault("first", []).append(each.partition)
        document: dict[str, Any] = {"batch": self.number, "tick": self.tick, "topics": topics}
        document |= {"left": list(self.left)} if self.left else {}
        document |= {"more": True} if self.more else {}
        begin: dict[str, dict[str, int]] = {}
        for (topic, partition), offset in sorted(self.begin.items()):
            begin.setdefault(topic, {})[str(partition)] = offset
        return {**document, "begin": begin} if begin else document


T = TypeVar("T")


def in_proportion(waiting: Partitions, records: int) -> Partitions:
    """Of ``records`` each partition gets as much as it has of all waiting records, so all are read at the same time."""
    total = sum(waiting.values())
    if records >= total:
        return dict(waiting)
    shares = {p: count * records // total for p, count in waiting.items()}
    left = max(records, 1) - sum(shares.values())
    for p in sorted(waiting, key=lambda p: (shares[p] - waiting[p], p)):
        more = min(left, waiting[p] - shares[p], 1 + left // len(waiting))
        shares[p] += more
        left -= more
    return shares


def in_turn(order: Iterable[T], waiting: Mapping[T, int], records: int, piece: int) -> dict[T, int]:
    """In this order, each gets up to ``piece`` records; what is left then is given away in the same order.

    So many that wait for little get it at once, and a few that wait for much get pieces that are worth their batch.
    """
    shares: dict[T, int] = {}
    turn = list(order)
    for most in (piece, records):
        for each in turn:
            more = min(records, max(0, min(waiting[each], most) - shares.get(each, 0)))
            if more:
                shares[each] = shares.get(each, 0) + more
                records -= more
    return shares


_SAMPLE_SECONDS = 10.0
_SAMPLE_RECORDS = 500
_UNKNOWN_BYTES = 1024.0


class RecordBytes:
    """Samples now and then."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._mean: float | None = None
        self._sampled_at = float("-inf")

    def mean(self, topic: str, partition: int, start: int, end: int) -> float:
        """Of records like those of this range."""
        if self._mean is None or time.monotonic() - self._sampled_at >= _SAMPLE_SECONDS:
            records = size = 0
            sample = min(end, start + _SAMPLE_RECORDS)
            for table in consume_range(self._settings, topic, partition, start, sample, lambda lost: None):
                records += table.num_rows
                size += table.column("key").nbytes + table.column("value").nbytes
            if records:
                self._mean = max(1.0, size / records)
            self._sampled_at = time.monotonic()
        return self._mean or _UNKNOWN_BYTES


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
