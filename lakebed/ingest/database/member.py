"""What the pipeline of a database knows of one topic: its table, if it is open, and what batches planned and it has not read.

The planner plans each record once in a run. What a table did not read then, because it failed, was slow or stopped at a cut, is
remembered here and read by a later batch. It need not be remembered longer: a new run plans from the positions in the logs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from lakebed.coordination.parked import Parked
from lakebed.ingest.table_batch import BatchDone, TableIngest, is_another
from lakebed.log.table_log import TableLog
from lakebed.sources.source import Range


@dataclass(frozen=True, slots=True)
class OpenTable:
    """A table of the database. ``root``: its path; ``name``: as the source calls it."""

    name: str
    root: str
    log: TableLog
    ingest: TableIngest


@dataclass(frozen=True, slots=True)
class Ignored:
    """A topic that is no table, and why."""

    reason: str


Open: TypeAlias = Callable[[str, Sequence[Range]], OpenTable | Ignored]
"""Opens the table of a topic, or makes it from the first records that there are. Raises LakebedError if it can't now."""


@dataclass(slots=True)
class Member:
    """One topic. ``wanted``: by partition, what was planned and not read. ``parked``: why it is not read."""

    topic: str
    table: OpenTable | None = None
    wanted: dict[int, Range] = field(default_factory=dict)
    parked: Parked | None = None
    is_ignored: bool = False
    is_busy: bool = False
    """Whether a thread reads it now."""
    due: float = 0.0
    """When it may be read again, in monotonic seconds."""
    is_kept: bool = False
    """Whether the points of the database know its table as it is."""
    is_stopped: bool = False
    """Whether it has read up to where the last batch was cut: what is left needs no batch of its own."""
    is_apart: bool = False
    """Whether a thread reads it apart from all others, because it failed or was slow."""

    @property
    def unread(self) -> int:
        """The records, at most, that were planned and not read."""
        return sum(one.size for one in self.wanted.values())

    def is_due(self, now: float) -> bool:
        """Whether a batch reads it now."""
        return bool(self.wanted) and self.parked is None and not self.is_busy and now >= self.due

    def want(self, chosen: Range) -> None:
        """A batch was planned that reads this range."""
        if self.is_ignored or not chosen.size:
            return
        before = self.wanted.get(chosen.partition)
        # Where the source begins again, or with another topic of that name, offsets mean other records.
        if before is not None and not chosen.is_first and not is_another(before.topic_id, chosen.topic_id):
            topic_id = chosen.topic_id or before.topic_id
            chosen = replace(before, start=min(before.start, chosen.start), end=chosen.end, topic_id=topic_id)
        self.wanted[chosen.partition] = chosen

    def has_read(self, done: BatchDone) -> int:
        """The table ended a batch; returns how many of the records that were wanted are not any more."""
        unread = self.unread
        for topic, partition in done.gone:
            if topic == self.topic:
                self.wanted.pop(partition, None)
        for (topic, partition), offset in done.read_to.items():
            one = self.wanted.get(partition)
            if topic != self.topic or one is None or offset <= one.start:
                continue
            if offset >= one.end:
                del self.wanted[partition]
            else:
                self.wanted[partition] = replace(one, start=offset, is_first=False)
        return unread - self.unread

    def forget(self) -> None:
        """The topic is no table, or its planning starts again."""
        self.wanted.clear()
