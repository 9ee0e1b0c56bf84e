"""Where a batch stops reading each partition, so that tables have whole transactions alone.

Debezium writes a partition transaction by transaction. So the events of transactions that have ended are a prefix of it:

1. The driver says up to which transaction all tables read (``target``), and gives the tasks the ids of those that have ended.
2. A task reads a partition up to the first event of any other transaction. Events without one (rows of a snapshot) pass.
3. An event passes, too, if nothing is known of its transaction and the event is older than ``horizon_ms``: its beginning would be
   among the transactions that were read, so its end was written before them.
4. The task counts the events of each transaction. An event that the connector sends again has a number that the partition had
   before, and is not counted.
5. The driver compares the counts with those that the transactions' ends give, and so knows which transactions a table has whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from lakebed.ingest.points.transaction_ids import TransactionIds
from lakebed.manifest.progress import Counts, Progress

_ORDER_MAX = (1 << 40) - 1
Report = Mapping[str, Any]
"""Of one partition, as JSON: ``counts``, by transaction its events and the number of the last one; ``stopped``, the transaction
that the partition was cut before, or None."""


@dataclass(frozen=True, slots=True)
class Expected:
    """A transaction that has ended, with events of one topic. ``place``: in the order of transactions."""

    place: int
    id: str
    events: int


@dataclass(frozen=True, slots=True)
class TaskCut:
    """What a task needs to know to cut the partitions of one topic."""

    passing: frozenset[str]
    blocked: frozenset[str]
    horizon_ms: int
    counting: frozenset[str]
    counts: Counts = field(default_factory=dict)
    """What the table has already of the transactions to be counted."""

    def begin(self, partition: int) -> Cutting:
        """For the records of one partition, in their order."""
        counts = {id: places[partition] for id, places in self.counts.items() if partition in places}
        return Cutting(self, counts)


@dataclass(slots=True)
class Cutting:
    """Cuts one partition."""

    cut: TaskCut
    counts: dict[str, tuple[int, int]]
    changed: set[str] = field(default_factory=set)
    stopped: str | None = None

    def take(self, records: pa.Table, ids: TransactionIds) -> tuple[pa.Table, int | None]:
        """The records before the cut, and the offset of the first one behind it; None if the cut is not among them."""
        if self.stopped is not None:
            return records.slice(0, 0), _offset(records, 0) if len(records) else None
        encoded = ids.ids.dictionary_encode()
        names = encoded.dictionary.to_pylist()
        known = np.array([name in self.cut.passing for name in names] + [True], bool)
        old = np.array([name not in self.cut.blocked for name in names] + [True], bool)
        which = np.asarray(encoded.indices.fill_null(len(names)))
        passes = known[which]
        if not passes.all():
            times = np.asarray(records.column("timestamp").combine_chunks().view(pa.int64()).fill_null(2**62))
            passes |= old[which] & (times < self.cut.horizon_ms)
        end = len(records) if passes.all() else int(np.argmin(passes))
        self._count(names, which[:end], ids.orders)
        if end == len(records):
            return records, None
        self.stopped = names[which[end]]
        return records.slice(0, end), _offset(records, end)

    def _count(self, names: Sequence[str], which: np.ndarray[Any, Any], orders: pa.Array) -> None:
        """Count the events whose number is larger than those of their transaction before."""
        wanted = np.array([name in self.cut.counting for name in names] + [False], bool)
        rows = np.flatnonzero(wanted[which])
        if not len(rows):
            return
        rows = rows[np.argsort(which[rows], kind="stable")]
        codes, order = which[rows], np.minimum(np.asarray(orders.fill_null(0))[rows], _ORDER_MAX)
        first = np.flatnonzero(np.diff(codes, prepend=-1))
        known = [self.counts.get(names[code], (0, 0)) for code in codes[first].tolist()]
        before = np.array([last for _, last in known])
        group = np.repeat(np.arange(len(first)), np.diff(first, append=len(rows)))
        place = group * (_ORDER_MAX + 1) + order  # transaction by transaction, so one maximum serves all
        is_new = (order > before[group]) & (place > np.maximum.accumulate(np.concatenate(([-1], place[:-1]))))
        counted = np.add.reduceat(is_new.astype(np.int64), first).tolist()
        newest = np.maximum(before, np.maximum.reduceat(np.where(is_new, order, 0), first)).tolist()
        for code, (count, _), more, last in zip(codes[first].tolist(), known, counted, newest, strict=True):
            self.counts[names[code]] = (count + more, last)
            self.changed.add(names[code])

    def report(self) -> dict[str, Any]:
        """What the driver needs to know of the partition."""
        return {"counts": {id: list(self.counts[id]) for id in sorted(self.changed)}, "stopped": self.stopped}


def _offset(records: pa.Table, row: int) -> int:
    return int(records.column("offset")[row].as_py())


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Up to where all tables read in a batch.

    ``target``: the last transaction that they read; ``passing``: the transactions up to it that are remembered; ``blocked``:
    those that are known and come later; ``horizon_ms``: see step 3; ``expected``: by topic, what transactions count of it, in
    order; ``from_place``: up to this transaction tables are not compared with counts; ``now_ms``: the time now, or the newest
    that is known of the source, whichever is later.
    """

    target: int
    passing: frozenset[str]
    blocked: frozenset[str]
    horizon_ms: int
    expected: Mapping[str, Sequence[Expected]]
    from_place: int = -1
    now_ms: int = 0

    def for_topic(self, topic: str, progress: Progress | None) -> TaskCut:
        """What the tasks that read a topic need."""
        counting = {one.id for one in self._compared(topic, progress)}
        counts = {id: places for id, places in (progress.partial if progress else {}).items() if id in counting}
        return TaskCut(self.passing, self.blocked, self.horizon_ms, frozenset(counting), counts)

    def advanced(
        self, topic: str, progress: Progress | None, reports: Mapping[int, Report], *, is_new: bool = False
    ) -> Progress:
        """The progress of a table that has read its partitions as reported. Pure.

        ``is_new``: the table had read nothing of the topic before. If it had, and has no progress, it was read without a cut.
        """
        old = progress or Progress(doubt_ms=None if is_new else self.now_ms)
        partial: dict[str, dict[int, tuple[int, int]]] = {id: dict(places) for id, places in old.partial.items()}
        for partition, report in reports.items():
            for id, (count, last) in report["counts"].items():
                partial.setdefault(id, {})[partition] = (count, last)
        compared = list(self._compared(topic, progress))
        through = max(old.through, self.target)
        for one in compared:
            if sum(count for count, _ in partial.get(one.id, {}).values()) < one.events:
                through = max(old.through, one.place - 1)
                break
        later = {one.id for one in compared if one.place > through}
        if old.cut > self.target:
            later |= old.partial.keys() - {one.id for one in compared}
        doubt = None if old.doubt_ms is None or old.doubt_ms < self.horizon_ms else old.doubt_ms
        return Progress(
            cut=max(old.cut, self.target),
            through=through,
            partial={id: places for id, places in partial.items() if id in later},
            doubt_ms=doubt,
        )

    def _compared(self, topic: str, progress: Progress | None) -> Iterable[Expected]:
        start = max(progress.through if progress else -1, self.from_place)
        return (one for one in self.expected.get(topic, ()) if start < one.place <= self.target)
