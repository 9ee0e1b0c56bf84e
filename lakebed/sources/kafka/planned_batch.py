"""What one batch of a database reads: the offset document of its query.

    {"batch": 17, "tick": 2, "begin": {topic: {"0": 7}},
     "topics": {topic: {"id": "…", "ranges": {"0": [100, 250]}, "first": [0]}}, "left": [topic], "more": true}

The document holds the ranges of its own batch alone, so its size follows what the batch reads and not the number of topics. Up to
where the tables have read is in their logs (``positions.positions``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lakebed.positions.positions import Position
from lakebed.sources.kafka.cluster import Partitions
from lakebed.sources.source import Range


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBatch:
    """``number``: 1 for the first batch of a checkpoint. ``tick``: the last tick of the driver when the batch was planned.

    A range ``is_first`` if nothing before it was read, or what was read is no longer there. ``begin``: where partitions begin
    that had no position as the process began, unless the settings begin all at the earliest offset. ``left``: topics that had
    records, when the batch was planned, which it does not read; only where points are taken. ``more``: the next batch follows at
    once, since a limit leaves out records that are due.
    """

    number: int = 0
    tick: int = 0
    ranges: tuple[Range, ...] = ()
    begin: Partitions = field(default_factory=dict)
    left: tuple[str, ...] = ()
    more: bool = False

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
