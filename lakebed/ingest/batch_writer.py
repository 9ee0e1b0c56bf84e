"""Writing one batch of changes: parts first, then one commit that also says what of the source is in the table now.

1. Each task turns its input into changes, keeps the newest change of each key, and writes parts under new names.
2. The driver orders the parts by task and by their place in the task, and commits them with the positions that were read to
   (``positions.positions``), or with the batch's id where the source has no positions. The commit reads no rows of the table. So
   it conflicts only with the same batch (M3), with a writer that read the same topic, and with a change of the table's metadata.
3. Records that can't be used are written to files of the quarantine table. The commit lists them; after it they are committed
   there (``parts.quarantine``).
4. A truncate that no earlier batch contained removes everything before it (``truncates``). The tasks run again with the
   cutoff and write exactly the changes after it. The commit removes all parts of the table and records the truncate,
   for records that arrive later.
5. What records need of the table's schema first (``schema_evolution``) ends the writing too. The table is altered, and the tasks
   run again with the new schema. Nothing of the earlier run is committed.

The files of an attempt that did not commit are orphans: no log refers to them.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import duckdb
import pyarrow as pa

from lakebed import events
from lakebed.decode.decoder import Decoded, Tally, together
from lakebed.decode.row_changes import split
from lakebed.errors import InvalidChanges, Retry, TableReplaced
from lakebed.failures import crosses_spark, spark_job
from lakebed.lateness import Lateness, lateness
from lakebed.log.actions import (
    Action,
    AddChangePart,
    AddPart,
    Domain,
    Transaction,
)
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.conflicts import ReadWriteSet
from lakebed.log.entries import ORDER_RESTARTS, Operation
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import Committed, TableLog
from lakebed.parts.changes import WriteSpec, prepare, stored_rows, write_spec_of
from lakebed.parts.quarantine import QUARANTINE_SCHEMA, QUARANTINE_SUFFIX, Handover
from lakebed.parts.write import WrittenPart, write_parts
from lakebed.positions.positions import (
    Position,
    all_removals,
    entry_of,
    newest_by_place,
    position_entry,
    positions_of,
    topics_of_several,
)
from lakebed.positions.remarks import remarks_of
from lakebed.positions.resnapshots import entry_counting
from lakebed.positions.source_columns import Followed, followed
from lakebed.positions.truncates import Cutoff, Restart, cutoff_of, restarts_of, to_domain
from lakebed.remarks import Counts, sum_of
from lakebed.resolve.batches import newest_in_layers
from lakebed.sources.cut import Report
from lakebed.sources.source import Place, Range, RangeChanges
from lakebed.storage.data_files import open_part_storage
from lakebed.storage.engine import connect
from lakebed.telemetry import TaskRequests, counted, measured, report_requests

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SLICE_ROWS_MAX = 500_000
_SLICE_BYTES_MAX = 256 << 20
_SMALL_RECORDS = 20_000


class ChangeStream(Protocol):
    """Turns a task's input into changes; picklable."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Decoded]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Written(Tally):
    """What tasks of a batch wrote, in the order of changes, and what is known of the records besides."""

    parts: tuple[WrittenPart, ...] = ()
    quarantined: tuple[WrittenPart, ...] = ()
    lost: int = 0
    """Records that the source no longer had."""
    read: tuple[Range, ...] = ()
    """What was read, if the source has ranges."""
    transactions: Mapping[Place, Report] = field(default_factory=dict)
    """What there is to say of partitions that might be cut."""

    @staticmethod
    def of(several: Iterable[Written]) -> Written:
        """What several tasks wrote, in the order of the batch."""
        all = list(several)
        if len(all) == 1:
            return all[0]
        return Written(
            **together(all),
            parts=tuple(part for one in all for part in one.parts),
            quarantined=tuple(part for one in all for part in one.quarantined),
            lost=sum(one.lost for one in all),
            read=tuple(chosen for one in all for chosen in one.read),
            transactions={place: report for one in all for place, report in one.transactions.items()},
        )

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def records_unusable(self) -> int:
        """Records that did not become rows, though they should have."""
        return self.lost + sum(part.rows for part in self.quarantined)

    def event(
        self,
        table: str,
        version: int,
        seconds: float,
        *,
        commit_seconds: float = 0.0,
        attempts: int = 1,
        batch: Transaction | None = None,
    ) -> events.BatchCommitted:
        """The event of this batch, once it is committed as a version; ``seconds``: what it took in all."""
        return events.BatchCommitted(
            table=table,
            version=version,
            rows=self.rows,
            bytes=sum(part.bytes for part in self.parts),
            parts=len(self.parts),
            quarantined=sum(part.rows for part in self.quarantined),
            seconds=seconds,
            commit_seconds=commit_seconds,
            attempts=attempts,
            newest_event_seconds=None if self.event_time_max is None else self.event_time_max / 1e6,
            ignored=self.ignored,
            query=batch.app_id if batch else "",
            batch_id=batch.version if batch else None,
            truncated=self.truncated,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """What became of a batch. If it was replayed or is outdated, nothing was committed, and ``version`` is the newest version."""

    version: int
    snapshot: Snapshot
    replayed: bool = False  # it had been committed before
    outdated: bool = False  # its positions or the table's schema have changed, so it must be read again
    attempts: int = 1
    commit_seconds: float = 0.0
    remarks: Counts = field(default_factory=dict)
    """Those that were committed."""


class Marks(Protocol):
    """What a commit says of the source that it has read: positions, or files."""

    @property
    def domains(self) -> frozenset[str]:
        """The entries that it sets, or rests on."""

    def is_current(self, snapshot: Snapshot) -> bool:
        """Whether the table has read what it had read when the batch was planned."""

    def actions(self) -> list[Action]:
        """The actions that set the entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The positions of topics before a batch (None: the table has none) and after it."""

    before: Mapping[str, Position | None]
    after: Mapping[str, Position]
    restarts: tuple[Restart, ...] = ()
    """Those of the table's order with which the batch was read."""

    @property
    def domains(self) -> frozenset[str]:
        return frozenset(map(position_entry, self.after)) | {ORDER_RESTARTS}

    def is_current(self, snapshot: Snapshot) -> bool:
        positions = positions_of(snapshot)
        is_read = all(positions.get(topic) == before for topic, before in self.before.items())
        return is_read and restarts_of(snapshot) == self.restarts

    def actions(self) -> list[Action]:
        return [entry_of(topic, position) for topic, position in self.after.items()]


@dataclass(frozen=True, slots=True)
class WriteTask:
    """The work of each task: it reads its input and writes parts."""

    spec: WriteSpec
    root: str
    stream: ChangeStream

    @crosses_spark
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with counted() as requests:
            written = self.write(self.stream(batches))
        yield Answer.of(written, requests).batch()

    def write(self, changes: Iterator[Decoded], *, is_small: bool = False) -> Written:
        """Write what the stream of the task gives. ``is_small``: there are too few rows to spill any."""
        with measured(self.root, "write", may_spill=not is_small):
            connection = connect(threads=1)
            done = [self._write(decoded, connection) for decoded in slices(changes)]
            return told_by(self.stream, done)

    def _write(self, decoded: Decoded, connection: duckdb.DuckDBPyConnection) -> Written:
        if decoded.schema_needed is not None:
            return Written(schema_needed=decoded.schema_needed)  # the batch runs again
        incoming, strict = self.spec.incoming, getattr(self.stream, "strict", False)
        fill = self.stream.decoder.decoder_schema.fill if isinstance(self.stream, RangeChanges) else None
        changes, quarantined = decoded.changes, decoded.quarantined
        parts: list[WrittenPart] = []
        if len(changes):
            try:
                checked = prepare(changes, incoming, connection, fill=fill)
            except InvalidChanges:
                if strict:
                    raise
                checked, refused = split(changes, incoming, fill=fill)
                quarantined = pa.concat_tables([quarantined, refused], promote_options="default")
            layers, incomplete_rows = newest_in_layers(checked, incoming, connection)
            if len(incomplete_rows) and strict:
                raise InvalidChanges(incomplete_rows["reason"][0].as_py())
            quarantined = pa.concat_tables([quarantined, incomplete_rows], promote_options="default")
            storage = open_part_storage(self.root)
            for layer in layers:
                parts += write_parts(stored_rows(layer, self.spec), self.spec, storage)
        return Written(
            **together([decoded]), parts=tuple(parts), quarantined=tuple(write_aside(quarantined, self.root))
        )


def told_by(stream: ChangeStream, done: Sequence[Written]) -> Written:
    """What a task wrote, slice by slice, and what its source has to say of it."""
    written = Written.of(done)
    written = replace(written, truncates=Cutoff(new=written.truncates).remembered())
    if not isinstance(stream, RangeChanges):
        return written
    return replace(
        written,
        remarks=sum_of([written.remarks, stream.remarks()]),
        lost=stream.records_lost(),
        read=tuple(stream.ranges_read),
        transactions={(topic, partition): report for topic, partition, report in stream.reports},
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """What a task of Spark answers."""

    task: int  # its number
    written: Written
    requests: str  # what it asked of the object store

    @staticmethod
    def of(written: Written, requests: TaskRequests) -> Answer:
        """The answer of the task that runs here."""
        from pyspark import TaskContext

        context = TaskContext.get()
        return Answer(context.partitionId() if context else 0, written, requests.to_json())

    def batch(self) -> pa.RecordBatch:
        """One row, for Spark."""
        return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(self)], pa.binary())], names=["answer"])


def answered(pickled: Iterable[bytes]) -> Written:
    """What the tasks of a job wrote, in the order of their numbers; reports what they asked of the object store."""
    answers: list[Answer] = sorted(map(pickle.loads, pickled), key=lambda answer: answer.task)
    for answer in answers:
        report_requests(answer.requests)
    return Written.of(answer.written for answer in answers)


def write_aside(records: pa.Table, root: str) -> list[WrittenPart]:
    """Write records for the quarantine of a table."""
    if not len(records):
        return []
    aside = open_part_storage(root + QUARANTINE_SUFFIX)
    return list(write_parts(records, WriteSpec(schema=QUARANTINE_SCHEMA), aside))


def slices(stream: Iterator[Decoded]) -> Iterator[Decoded]:
    """Groups decoded input into slices that fit in the memory of a task."""
    held: list[Decoded] = []
    rows = size = 0
    for decoded in stream:
        held.append(decoded)
        rows += len(decoded.changes)
        size += decoded.changes.nbytes
        if rows >= _SLICE_ROWS_MAX or size >= _SLICE_BYTES_MAX:
            yield Decoded.concat(held) if len(held) > 1 else held[0]
            held, rows, size = [], 0, 0
    if held:
        yield Decoded.concat(held) if len(held) > 1 else held[0]


def write_arrow(changes: pa.Table, spec: WriteSpec, root: str, aside: pa.Table | None = None) -> Written:
    """Write the parts of an Arrow table that ``prepare`` has checked, in this process. Raises InvalidChanges.

    ``aside``: records for the quarantine, which are written there.
    """
    connection = connect()
    storage = open_part_storage(root)
    layers, incomplete_rows = newest_in_layers(changes, spec.incoming, connection)
    if len(incomplete_rows):
        raise InvalidChanges(incomplete_rows["reason"][0].as_py())
    stored = (stored_rows(layer, spec) for layer in layers)
    quarantined = () if aside is None else tuple(write_aside(aside, root))
    parts = tuple(part for layer in stored for part in write_parts(layer, spec, storage))
    return Written(parts=parts, quarantined=quarantined)


def in_tasks(frame: DataFrame, task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]) -> Written:
    """Run a task on each partition of a DataFrame."""
    with spark_job():
        return answered([bytes(row[0]) for row in frame.mapInArrow(task, "answer binary").collect()])


def in_this_process(task: WriteTask, ranges: Sequence[Range]) -> Written:
    """Run a task on ranges here, one after the other. Raises the errors of the task."""
    assert isinstance(task.stream, RangeChanges)
    stream = task.stream.anew()
    is_small = sum(one.records for one in ranges) <= _SMALL_RECORDS
    return replace(task, stream=stream).write(stream.decoded(ranges), is_small=is_small)


def commit_written(
    log: TableLog,
    read: Snapshot,
    written: Written,
    batch: Transaction | None,
    operation: Operation,
    *,
    marks: Marks | None = None,
    handover: Handover | None = None,
) -> BatchResult:
    """Commit a batch's parts as the newest changes of the table; ``marks``: what it has read of its source.

    ``handover``: to the quarantine of the table, for what is quarantined. The result is ``outdated`` if the table was purged
    meanwhile: the batch must be written again. Raises Retry if the table's schema or keys changed meanwhile (with ``marks`` the
    result is ``outdated``); TableReplaced; Contention; StoreUnavailable (a batch with an id or
    positions may then be repeated).
    """
    spec, started = write_spec_of(read), time.perf_counter()
    domains = marks.domains if marks else frozenset()
    access = ReadWriteSet(whole_table=bool(written.truncates), domains=domains)
    metrics = {"rows": written.rows, "bytes": sum(part.bytes for part in written.parts), "parts": len(written.parts)}
    if written.truncated:
        metrics["recordsTruncated"] = written.truncated

    def build(snapshot: Snapshot) -> Proposal[BatchResult] | Finished[BatchResult]:
        if snapshot.metadata.id != read.metadata.id:
            raise TableReplaced(
                "another table was created in this one's place while the batch was written; apply it again",
                table=log.root,
            )
        nothing = BatchResult(version=snapshot.version, snapshot=snapshot, commit_seconds=time.perf_counter() - started)
        if batch is not None and snapshot.transaction_version(batch.app_id) >= batch.version:
            return Finished(replace(nothing, replayed=True))
        if marks is not None and not marks.is_current(snapshot):
            return Finished(replace(nothing, outdated=True))
        newest = write_spec_of(snapshot)
        if not spec.fits(newest):
            if marks is not None or spec.fence != newest.fence:
                return Finished(replace(nothing, outdated=True))
            raise Retry(
                "the table's schema or keys changed while the batch was written; apply it again", table=log.root
            )
        actions = _actions(snapshot, written, spec)
        actions += marks.actions() if marks else []
        entries, columns = _entries(snapshot, written, handover, log.now_ms())
        actions += entries
        # Of two commits at once, the later one would drop what the other one says in such an entry.
        rests_on = replace(access, domains=domains | {entry.domain for entry in entries})

        def result(committed: Committed) -> BatchResult:
            seconds = time.perf_counter() - started
            return BatchResult(
                version=committed.version,
                snapshot=committed.snapshot,
                replayed=False,
                attempts=committed.attempts,
                commit_seconds=seconds,
                remarks=sum_of([written.remarks, columns.counts]),
            )

        return Proposal(actions=actions, access=rests_on, result=result, metrics=metrics, batch=batch)

    return commit_loop(log, operation, build, first=read, repeatable=batch is not None or marks is not None)


def _entries(
    snapshot: Snapshot, written: Written, handover: Handover | None, now_ms: int
) -> tuple[list[Domain], Followed]:
    """What the log says of a batch beside its parts and its positions; and the columns of the source."""
    listed = handover.entry(snapshot, written.quarantined) if handover else None
    sent_again = entry_counting(
        snapshot,
        written.read,
        now_ms,
        came=written.of_snapshot,
        deleted=sum(part.deletes for part in written.parts),
        unusable=written.records_unusable,
    )
    mixed = topics_of_several(snapshot, written.sources)
    met = {(topic, columns): span for (topic, columns), span in written.met.items() if topic not in mixed}
    columns = followed(snapshot, met, is_emptied=bool(written.truncates))
    entries = (listed, sent_again, columns.entry, _remarks(snapshot, written, columns, now_ms))
    return [entry for entry in entries if entry is not None], columns


def _remarks(snapshot: Snapshot, written: Written, columns: Followed, now_ms: int) -> Domain | None:
    """The entry with the remarks of a batch; None if they stay as they are."""
    before = remarks_of(snapshot)
    kept = before.without_sent_again(now_ms) if written.truncates else before  # all rows before it are gone
    after = columns.remarks(kept.plus(written.remarks, now_ms) if written.remarks else kept, now_ms)
    return None if after == before else after.to_entry()


def _actions(snapshot: Snapshot, written: Written, spec: WriteSpec) -> list[Action]:
    actions: list[Action] = []
    if written.truncates:
        actions += all_removals(snapshot, int(time.time() * 1000))
        actions.append(to_domain(replace(cutoff_of(snapshot), new=written.truncates)))
    late = lateness(written.newest, newest_by_place(positions_of(snapshot)))
    return [*actions, *appended(written.parts, spec, late)]


def appended(parts: Sequence[WrittenPart], spec: WriteSpec, late: Lateness = Lateness.NONE) -> list[Action]:
    """The actions that add these parts, in their order, as the newest changes of the table."""
    if spec.keys:
        return [AddChangePart(part.change_part(ordinal, late=late)) for ordinal, part in enumerate(parts)]
    return [AddPart(part.base_part(has_op_column=False)) for part in parts]
