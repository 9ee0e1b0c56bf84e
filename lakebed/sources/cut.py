"""Where a batch stops reading each partition, so that tables have whole transactions alone.

Debezium writes a partition transaction by transaction. So the events of transactions that have ended are a prefix of it:

1. The driver says up to which transaction all tables read (``target``), and gives the tasks the ids of those that have ended.
2. A task reads a partition up to the first event of any other transaction. Events without one (rows of a snapshot) pass.
3. An event passes, too, if nothing is known of its transaction and the event is older than ``horizon_ms``: its beginning would be
   among the transactions that were read, so its end was written before them.
4. The task counts the events of each transaction. An event that the connector sends again has a number that the partition had
   before, and is not counted.
5. The driver compares the counts with those that the transactions' ends give, and so knows which transactions a table has whole.
6. Events that an end counts may never come: a transformation of the connector's has left them out, or they were lost. A partition
   has no event of a transaction behind one of a later transaction. So when each partition of a topic has an event of a later one,
   what is missing will not come (``first_missing``).
7. An event whose transaction counts nothing for its topic is a *stray*: it is of a table whose events are routed into the topic.
   Until the driver knows which table, the topic is not whole, because the counts say nothing about it. The event names its table,
   and so the driver learns whose counts are those of the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from lakebed.decode.transaction_ids import TransactionIds
from lakebed.positions.positions import Counts, Progress

_ORDER_MAX = (1 << 40) - 1
_TABLES_MAX = 100
"""The names of so many tables are remembered whose events are in one topic."""
Report = Mapping[str, Any]
"""Of one partition, as JSON: ``counts``, by transaction its events and the number of the last one; ``stopped``, the transaction
that the partition was cut before, or None; ``strays``, the names of tables of events whose transaction counts nothing for the
topic, in their parts (``TransactionIds.table_of``)."""


@dataclass(frozen=True, slots=True)
class Expected:
    """A transaction that has ended, with events of one topic."""

    place: int  # in the order of transactions
    id: str
    events: int  # how many of them the topic has


@dataclass(frozen=True, slots=True)
class Partitions:
    """How many partitions a topic has; nothing of a transaction up to ``until`` is in any other."""

    count: int
    until: int


@dataclass(frozen=True, slots=True)
class TaskCut:
    """What a task needs to know to cut the partitions of one topic."""

    passing: frozenset[str]
    blocked: frozenset[str]
    horizon_ms: int
    counting: frozenset[str]
    counts: Counts = field(default_factory=dict)
    """What the table has already of the transactions to be counted."""
    own: frozenset[str] = frozenset()
    """The transactions that have events of the topic, or of which nobody knows that."""

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
    strays: set[tuple[str, ...]] = field(default_factory=set)

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
        is_stray = np.array([name in self.cut.passing and name not in self.cut.own for name in names] + [False], bool)
        self._count(names, which[:end], ids.orders, is_stray)
        for row in np.flatnonzero(is_stray[which[:end]])[:_TABLES_MAX].tolist():
            self.strays.add(ids.table_of(row))
        if end == len(records):
            return records, None
        self.stopped = names[which[end]]
        return records.slice(0, end), _offset(records, end)

    def _count(
        self, names: Sequence[str], which: np.ndarray[Any, Any], orders: pa.Array, is_stray: np.ndarray[Any, Any]
    ) -> None:
        """Count the events whose number is larger than those of their transaction before."""
        wanted = np.array([name in self.cut.counting for name in names] + [False], bool) | is_stray
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
        counts = {id: list(self.counts[id]) for id in sorted(self.changed)}
        return {"counts": counts, "stopped": self.stopped, "strays": sorted(self.strays)[:_TABLES_MAX]}


def _offset(records: pa.Table, row: int) -> int:
    return int(records.column("offset")[row].as_py())


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Up to where all tables read in a batch."""

    target: int  # the last transaction that they read
    passing: frozenset[str]  # the transactions up to it that are remembered
    blocked: frozenset[str]  # the transactions that are known and come later
    horizon_ms: int  # see step 3
    expected: Mapping[str, Sequence[Expected]]  # what transactions count of each topic, in order
    from_place: int = -1  # up to this transaction tables are not compared with counts
    now_ms: int = 0  # the time now, or the newest that is known of the source, whichever is later
    places: Mapping[str, int] = field(default_factory=dict)  # of the transactions that have ended, by their ids
    uncounted: frozenset[str] = frozenset()  # transactions whose counts are not known
    # of topics that lack events, as far as they are known
    partitions: Mapping[str, Partitions] = field(default_factory=dict)

    def for_topic(self, topic: str, progress: Progress | None) -> TaskCut:
        """What the tasks that read a topic need."""
        counting = frozenset(one.id for one in self._compared(topic, progress))
        own = self._own(topic)
        partial = progress.partial if progress else {}
        counts = {id: places for id, places in partial.items() if id in counting or id not in own}
        return TaskCut(self.passing, self.blocked, self.horizon_ms, counting, counts, own)

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
        stopped = {partition: report["stopped"] for partition, report in reports.items() if report["stopped"]}
        missing = first_missing(compared, partial, stopped, self.places.get, self.partitions.get(topic))
        until = [] if missing is None else [missing.place]
        own, start = self._own(topic), max(old.through, self.from_place)
        strays = {id: self.places[id] for id in partial if id in self.passing and id not in own}
        strays = {id: place for id, place in strays.items() if place > start}
        named = {tuple(name) for report in reports.values() for name in report["strays"]}
        through = max(old.through, min([*until, *strays.values(), self.target + 1]) - 1)
        later = {one.id for one in compared if one.place > through} | strays.keys()
        if old.cut > self.target:
            later |= old.partial.keys() - {one.id for one in compared}
        doubt = None if old.doubt_ms is None or old.doubt_ms < self.horizon_ms else old.doubt_ms
        return Progress(
            cut=max(old.cut, self.target),
            through=through,
            partial={id: places for id, places in partial.items() if id in later},
            doubt_ms=doubt,
            tables=old.tables if named.issubset(old.tables) else tuple(sorted(named.union(old.tables))[:_TABLES_MAX]),
        )

    def _own(self, topic: str) -> frozenset[str]:
        return self.uncounted.union(one.id for one in self.expected.get(topic, ()))

    def _compared(self, topic: str, progress: Progress | None) -> Iterable[Expected]:
        start = max(progress.through if progress else -1, self.from_place)
        return (one for one in self.expected.get(topic, ()) if start < one.place <= self.target)


def first_missing(
    expected: Sequence[Expected],
    has: Counts,
    stopped: Mapping[int, str],
    place_of: Callable[[str], int | None],
    partitions: Partitions | None,
) -> Expected | None:
    """The first transaction of which a table lacks events that may still come; None if there is none.

    ``expected``: what transactions count of the topic, in order; ``has``: what the table has of them; ``stopped``: by partition,
    the transaction of its next event; ``place_of``: a transaction that has ended.
    """
    for at, one in enumerate(expected):
        if sum(count for count, _ in has.get(one.id, {}).values()) >= one.events:
            continue
        if partitions is None or one.place > partitions.until:
            return one
        passed = {partition for each in expected[at + 1 :] for partition in has.get(each.id, {})}
        for partition, id in stopped.items():
            place = place_of(id)
            if place is None or place > one.place:
                passed.add(partition)
        if not passed.issuperset(range(partitions.count)):
            return one
    return None
