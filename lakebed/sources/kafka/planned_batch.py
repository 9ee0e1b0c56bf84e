"""What the driver of a database and the process that plans its batches tell each other.

**The planner tells** what a batch reads: it is the offset document of the query (``PlannedBatch``).

    {"batch": 17, "tick": 2, "begin": {topic: {"0": 7}},
     "topics": {topic: {"id": "…", "ranges": {"0": [100, 250]}, "first": [0]}}, "left": [topic], "more": true}

The document holds the ranges of its own batch alone, so its size follows what the batch reads and not the number of topics. Up to
where the tables have read is in their logs (``positions.positions``).

**The driver tells** what the planner has to know by a file in a folder that both know (``Control``). The driver replaces
``control.json`` whenever something in it changes; the planner looks at it ten times a second. ``positions.json`` says where
planning begins: it is written once, before the query starts.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lakebed.positions.positions import Position
from lakebed.sources.kafka.cluster import Partitions
from lakebed.sources.source import Range

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
