"""One batch of one table, from ranges of its source: the table's own positions decide what is read (``positions.positions``).

1. The ranges that were planned say only up to where to read. For each partition the table reads from its position; without one,
   from where the stream begins, or the settings of the source say to begin. What lies before the planned ranges, as after a
   restored checkpoint or a pause, is read in pieces of bounded size.
2. The work is yielded to whoever runs it: in this process, in a task, or in a task with the work of other tables.
3. What records need of the schema alters the table, a truncate decides what counts: then the work is yielded again.
4. The commit carries the new positions. If another process has moved them meanwhile, nothing is committed, and what is left is
   read again. The files of the lost attempt are deleted.
5. What can't be used is handed over to the quarantine (``parts.quarantine``).

A position that the source no longer has (the topic was created again, or it ends before) is ``DataLoss``, or, where the settings
allow it, reading starts over at what the source has.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from lakebed import events
from lakebed.decode.decoder import Decoder
from lakebed.decode.source_order import first_of
from lakebed.errors import Contention, DataLoss
from lakebed.ingest.batch_writer import (
    BatchResult,
    Marks,
    Moved,
    WriteTask,
    Written,
    commit_written,
    in_this_process,
)
from lakebed.ingest.evolving import ROUNDS_MAX, Evolution, discard, refuse
from lakebed.lateness import Newest
from lakebed.log.actions import Transaction
from lakebed.log.entries import Operation
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.parts.changes import write_spec_of
from lakebed.parts.quarantine import Handover
from lakebed.positions.positions import Position, Progress, positions_of
from lakebed.positions.remarks import report_remarks
from lakebed.positions.truncates import Restart, cutoff_of, restarts_of
from lakebed.remarks import Counts, sum_of
from lakebed.sources.cut import Cut, Report, TaskCut
from lakebed.sources.source import (
    Bounds,
    Place,
    Planned,
    Range,
    RangeChanges,
    RangeReader,
    clipped,
    joined,
    limited,
    planned,
    read_to,
)

ATTEMPTS_MAX = 50
"""How often a batch is read at most, after losing races to another process, which brings the table forward each time."""
_logger = logging.getLogger("lakebed.ingest")


@dataclass(frozen=True, slots=True)
class WriteWork:
    """Work of one table: to be run here, in a task of its own, or in a task with work of other tables.

    The answer is what the task yields for the ranges, in their order (``run_here``, ``in_tasks``).
    """

    task: WriteTask
    ranges: tuple[Range, ...]

    @property
    def records(self) -> int:
        """About how many records there are to read."""
        return sum(one.records for one in self.ranges)


def run_here(work: WriteWork) -> Written:
    """Run the work of one table in this process. Raises its error."""
    task, stream = work.task, work.task.stream
    if isinstance(stream, RangeChanges):  # a table that waits for its source here can't be stopped, and a task can
        task = replace(task, stream=replace(stream, source=stream.source.impatient()))
    return in_this_process(task, work.ranges)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDone:
    """What became of a batch."""

    snapshot: Snapshot
    version: int | None = None  # that it was committed as; None if there was nothing to commit
    written: Written = field(default_factory=Written)
    # the table's position in each partition that was planned
    read_to: Mapping[Place, int] = field(default_factory=dict)
    left: int = 0  # how many offsets up to the ends of the ranges it has not read yet, except those behind the cut
    # the partitions that the cut stopped, and the transactions that it stopped them before
    stopped: Mapping[Place, str] = field(default_factory=dict)
    gone: frozenset[Place] = frozenset()  # partitions that the source no longer has, so there is nothing to read
    attempts: int = 0
    seconds: float = 0.0
    commit_seconds: float = 0.0

    @property
    def rows(self) -> int:
        return self.written.rows

    def report(self, table: str, source: str, batch: Transaction | None = None) -> None:
        """Emit what was committed, if anything was, and how many records the source had lost of it."""
        if self.version is None:
            return
        if lost := self.written.lost:
            events.emit(events.OffsetsLost(table=table, source=source, records=lost))
        events.emit(
            self.written.event(
                table,
                self.version,
                self.seconds,
                commit_seconds=self.commit_seconds,
                attempts=self.attempts,
                batch=batch,
            )
        )


Batch = Generator[WriteWork, Written, BatchDone]


def run_alone(batch: Batch, run: Callable[[WriteWork], Written]) -> BatchDone:
    """Bring one batch to its end."""
    try:
        work = next(batch)
        while True:
            work = batch.send(run(work))
    except StopIteration as end:
        done: BatchDone = end.value
        return done


class Reading(Protocol):
    """What one attempt reads, and what its commit says of that."""

    @property
    def ranges(self) -> tuple[Range, ...]:
        """What is read, in this order."""

    @property
    def topic_ids(self) -> Mapping[str, str | None]:
        """The ids of the topics that are read."""

    @property
    def anew(self) -> frozenset[str]:
        """The topics that were deleted and made again since the table has read them."""

    @property
    def remarks(self) -> Counts:
        """What there is to say of what was planned."""

    def up_to(self, cut: Cut) -> tuple[tuple[Range, ...], Mapping[str, TaskCut]]:
        """The ranges as they are read up to a cut, and where each topic is cut."""

    def marks(self, written: Written, cut: Cut | None) -> Marks | None:
        """What the commit says; None if there is nothing to say."""

    def done(self, snapshot: Snapshot, written: Written) -> BatchDone:
        """Up to where the table is then, at a version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begin:
    """Where a table begins to read a partition, and of which topic of that name. ``end``: as planned."""

    start: int
    end: int
    topic_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """What one attempt reads, by the positions of the table; a ``Reading``."""

    begins: Mapping[Place, _Begin]
    ranges: tuple[Range, ...]
    before: Mapping[str, Position | None]
    """The positions of the topics, as the attempt found them."""
    planned: frozenset[Place]
    """The partitions that were planned; the source may not have all of them any more."""
    restarts: tuple[Restart, ...] = ()
    """Those of the table's order."""
    remarks: Counts = field(default_factory=dict)

    @property
    def starts(self) -> dict[Place, int]:
        return {place: begin.start for place, begin in self.begins.items()}

    @property
    def anew(self) -> frozenset[str]:
        """The topics that were deleted and made again since the table has read them."""
        return frozenset(
            topic
            for (topic, _), begin in self.begins.items()
            if (position := self.before.get(topic)) is not None and is_another(position.topic_id, begin.topic_id)
        )

    def up_to(self, cut: Cut) -> tuple[tuple[Range, ...], Mapping[str, TaskCut]]:
        positions = self.before.items()
        cuts = {topic: cut.for_topic(topic, one.transactions if one else None) for topic, one in positions}
        return joined(self.ranges), cuts

    def marks(self, written: Written, cut: Cut | None) -> Marks | None:
        moved = self.moved(written, cut)
        return moved if moved.after else None

    def done(self, snapshot: Snapshot, written: Written) -> BatchDone:
        read = read_to(self.starts, written.read)
        stopped = {place: report["stopped"] for place, report in written.transactions.items() if report["stopped"]}
        ends = {place: begin.end for place, begin in self.begins.items() if place not in stopped}
        left = sum(max(0, end - read[place]) for place, end in ends.items())
        gone = self.planned - self.begins.keys()
        return BatchDone(snapshot=snapshot, written=written, read_to=read, left=left, stopped=stopped, gone=gone)

    @property
    def topic_ids(self) -> dict[str, str | None]:
        """The ids of the topics that are read."""
        return {topic: begin.topic_id for (topic, _), begin in self.begins.items() if begin.topic_id is not None}

    def moved(self, written: Written, cut: Cut | None) -> Moved:
        """The positions after what the tasks read, up to the ``cut``."""
        offsets: dict[str, dict[int, int]] = {}
        for (topic, partition), offset in read_to(self.starts, written.read).items():
            offsets.setdefault(topic, {})[partition] = offset
        after = {}
        for topic, moved in offsets.items():
            position = self.before.get(topic) or Position(offsets={})
            ids = {begin.topic_id for (name, _), begin in self.begins.items() if name == topic}
            topic_id = max(ids, key=lambda each: (is_another(position.topic_id, each), each or ""))
            if is_another(position.topic_id, topic_id):
                position = Position(offsets={}, newest=position.newest)
            names = written.sources.get(topic)
            now = replace(
                position,
                offsets={**position.offsets, **moved},
                topic_id=topic_id or position.topic_id,
                source=first_of(names) if names else position.source,
                newest=_newest_of_topic(topic, position, written.newest),
                last={
                    **position.last,
                    **{number: last for (name, number), last in written.last.items() if name == topic},
                },
            )
            if now != self.before.get(topic):
                now = replace(now, transactions=self._progress(topic, cut, written.transactions))
            after[topic] = now
        changed = {topic: position for topic, position in after.items() if position != self.before.get(topic)}
        before = {topic: self.before.get(topic) for topic in changed}
        return Moved(before=before, after=changed, restarts=self.restarts)

    def _progress(self, topic: str, cut: Cut | None, reports: Mapping[Place, Report]) -> Progress | None:
        """How far the table is in the transactions of the source; None if it was read without regard to them."""
        if cut is None:
            return None
        position = self.before.get(topic)
        own = {partition: report for (name, partition), report in reports.items() if name == topic}
        return cut.advanced(topic, position.transactions if position else None, own, is_new=position is None)


def _newest_of_topic(topic: str, before: Position, read: Mapping[Place, Newest]) -> dict[int, Newest]:
    """How far the changes of a topic were, by partition."""
    new = {
        number: newest.or_later(before.newest.get(number)) for (name, number), newest in read.items() if name == topic
    }
    return {**before.newest, **new}


def is_another(one: str | None, other: str | None) -> bool:
    """Whether two ids say that a topic was created again; an id that is not known says nothing."""
    return one is not None and other is not None and one != other


class TableIngest:
    """Brings ranges of a source into one table. One thread at a time."""

    def __init__(
        self,
        table: str,
        log: TableLog,
        source: RangeReader,
        decoder: Decoder,
        *,
        evolution: Evolution,
        quarantine_log: Callable[[], TableLog],
        quarantine: str = "table",
    ) -> None:
        """``evolution``: changes the table where records need it; ``quarantine``: ``table`` or ``fail``."""
        self._table = table
        self._log = log
        self._source = source
        self._decoder = decoder
        self._evolution = evolution
        self._fails_on_quarantine = quarantine == "fail"
        self._handover = Handover(table, quarantine_log)
        self._ahead: set[Place] = set()

    def batch(self, ranges: Sequence[Range], *, records_max: int | None = None, cut: Cut | None = None) -> Batch:
        """Read from the table's positions up to the ends of ``ranges``, about ``records_max`` records at most, and commit that.
        With a ``cut``, partitions end before transactions that are not in it.

        ``ranges`` has all partitions that the table reads, also those of which nothing is new (empty ranges). Raises DataLoss,
        QuarantineRefused, Contention, Retry, StoreUnavailable; whatever it raises, the same call may be repeated.
        """
        started = time.perf_counter()
        snapshot = self._log.refresh()
        self._handover.deliver(snapshot)
        for attempt in range(1, ATTEMPTS_MAX + 1):
            reading = self._reading(snapshot, ranges, records_max)
            if not reading.ranges and reading.marks(Written(), cut) is None:
                return replace(reading.done(snapshot, Written()), seconds=time.perf_counter() - started)
            result, written = yield from self._attempt(snapshot, reading, cut)
            snapshot = result.snapshot
            if not result.outdated:
                break
            discard(self._table, written)
            _logger.info("%s: another process was faster, so a batch is read again (%d)", self._table, attempt)
        else:
            raise Contention(
                f"{self._table}: others read the same topics or changed the schema {ATTEMPTS_MAX} times while a batch was read; "
                "it is tried again",
                table=self._table,
                operation=Operation.STREAMING_UPDATE,
                attempts=ATTEMPTS_MAX,
            )
        self._handover.deliver(snapshot)
        self._log.checkpoint_if_due(snapshot, slack=2)  # if nobody maintains the table, the writer must do this
        report_remarks(self._table, result.remarks)
        return replace(
            reading.done(snapshot, written),
            version=None if result.replayed else result.version,
            attempts=result.attempts + attempt - 1,
            seconds=time.perf_counter() - started,
            commit_seconds=result.commit_seconds,
        )

    def _attempt(
        self, snapshot: Snapshot, reading: Reading, cut: Cut | None
    ) -> Generator[WriteWork, Written, tuple[BatchResult, Written]]:
        written = Written()
        if reading.ranges:
            snapshot, written = yield from self._written(snapshot, reading, cut)
        refuse(self._table, written, self._decoder, self._fails_on_quarantine)
        marks = reading.marks(written, cut)
        if marks is None:  # the cut is where the table is
            return BatchResult(version=snapshot.version, snapshot=snapshot, replayed=True), written
        if reading.remarks:
            written = replace(written, remarks=sum_of([written.remarks, reading.remarks]))
        result = commit_written(
            self._log, snapshot, written, None, Operation.STREAMING_UPDATE, marks=marks, handover=self._handover
        )
        return result, written

    def _written(
        self, snapshot: Snapshot, reading: Reading, cut: Cut | None
    ) -> Generator[WriteWork, Written, tuple[Snapshot, Written]]:
        """Have the parts written; returns also the version of the table that they are written for."""
        ranges, cuts = (reading.ranges, {}) if cut is None else reading.up_to(cut)
        firsts: dict[str, str] = {}
        for _ in range(ROUNDS_MAX):
            self._decoder = self._evolution.bound(self._decoder, snapshot)
            cutoff = cutoff_of(snapshot, reading.topic_ids).of_sources(firsts, without=reading.anew)
            stream = RangeChanges(self._source, self._decoder, cutoff, cuts)
            task = WriteTask(write_spec_of(snapshot), self._table, stream)
            written = yield WriteWork(task, ranges)
            if written.truncates and written.schema_needed is None:
                stream = replace(stream, cutoff=replace(cutoff, new=written.truncates))
                written = yield WriteWork(replace(task, stream=stream), ranges)
            if written.schema_needed is None:
                several = {topic: names for topic, names in written.sources.items() if len(names) > 1}
                if not several:
                    learned = {topic: {name: (0, 0)} for topic, name in firsts.items()}
                    return snapshot, replace(written, sources={**learned, **written.sources})
                # The first one decides, also for what the batch has read already.
                discard(self._table, written)
                firsts |= {topic: first_of(names) for topic, names in several.items()}
                continue
            snapshot = self._evolution.evolve(snapshot, written.schema_needed)
        raise self._evolution.gave_up()

    # -- what is read --------------------------------------------------------------------------------------------------

    def _reading(self, snapshot: Snapshot, ranges: Sequence[Range], records_max: int | None) -> Reading:
        positions = positions_of(snapshot)
        begins = self._begins(planned(ranges), positions)
        starts = {place: begin.start for place, begin in begins.items() if begin.start < begin.end}
        chosen = limited(clipped(ranges, starts), records_max)
        topics = {topic for topic, _ in begins}
        return _Reading(
            begins=begins,
            ranges=tuple(chosen),
            before={topic: positions.get(topic) for topic in topics},
            planned=frozenset(one.place for one in ranges),
            restarts=restarts_of(snapshot),
        )

    def _begins(self, plans: Sequence[Planned], positions: Mapping[str, Position]) -> dict[Place, _Begin]:
        """Where each partition begins. The source is asked only about those whose beginning the positions do not say."""
        begins: dict[Place, _Begin] = {}
        unclear: list[tuple[Planned, Position | None]] = []
        for plan in plans:
            first, position = plan.first, positions.get(plan.first.topic)
            offset = position.offsets.get(first.partition) if position else None
            if position and is_another(position.topic_id, first.topic_id):
                unclear.append((plan, position))
            elif offset is None and first.is_first:
                begins[plan.place] = _Begin(start=first.start, end=plan.end, topic_id=first.topic_id)
            elif offset is None or (offset > plan.end and plan.place not in self._ahead):
                unclear.append((plan, position))
            else:
                begins[plan.place] = _Begin(start=offset, end=plan.end, topic_id=first.topic_id)
        if unclear:
            bounds = self._source.bounds([plan.place for plan, _ in unclear])
            for plan, position in unclear:
                found = self._asked(plan, position, bounds.get(plan.place))
                if found is not None:
                    begins[plan.place] = found
        return begins

    def _asked(self, plan: Planned, position: Position | None, bounds: Bounds | None) -> _Begin | None:
        """Where a partition begins of which the source was asked; None if it is not there any more. Raises DataLoss."""
        (topic, partition), topic_id = plan.place, plan.first.topic_id
        offset = position.offsets.get(partition) if position else None
        if bounds is None:
            return None
        if bounds.topic_id is not None and is_another(bounds.topic_id, topic_id):
            topic_id, plan = bounds.topic_id, replace(plan, end=0)  # it was planned before the topic was created again
        if position and is_another(position.topic_id, topic_id):
            why = "the topic was deleted and created again, or is one of another cluster"
            return self._over_again(plan, bounds, topic_id, why)
        if offset is None:
            start = bounds.earliest if position else bounds.starting  # a new partition of a topic that is being read
            return _Begin(start=start, end=plan.end, topic_id=topic_id)
        if bounds.end is not None and offset > bounds.end:
            return self._over_again(
                plan, bounds, topic_id, f"it ends at offset {bounds.end}, and the table has {offset}"
            )
        self._ahead.add((topic, partition))
        return _Begin(start=offset, end=plan.end, topic_id=topic_id)

    def _over_again(self, plan: Planned, bounds: Bounds, topic_id: str | None, why: str) -> _Begin:
        topic, partition = plan.place
        if not self._source.skips_losses:
            raise DataLoss(
                f"topic {topic!r} partition {partition}: what the table {self._table} has not read of it is lost: {why}. To "
                f"continue with the records that are there now, set on_data_loss to 'skip', or for this table alone: lakebed "
                f"source rewind {self._table} {topic}",
                table=self._table,
                topic=topic,
                partition=partition,
            )
        _logger.warning(
            "%s: reading of topic %r partition %d starts over at offset %d: %s",
            self._table,
            topic,
            partition,
            bounds.earliest,
            why,
        )
        return _Begin(start=bounds.earliest, end=plan.end, topic_id=topic_id)
