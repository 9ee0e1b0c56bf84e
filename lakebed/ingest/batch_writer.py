"""Writing one batch of changes: parts first, then one commit that also says what of the source is in the table now.

1. Each task turns its input into changes, keeps the newest change of each key, and writes parts under new names.
2. The driver orders the parts by task and by their place in the task, and commits them with the positions that were read to
   (``manifest.positions``), or with the batch's id where the source has no positions. The commit reads no rows of the table. So
   it conflicts only with the same batch (M3), with somebody who read the same topic, and with a change of the table's metadata.
3. Records that can't be used are written to files of the quarantine table. The commit lists them; after it they are committed
   there (``handover``).
4. A truncate that no earlier batch contained removes everything before it (``truncates``). The tasks run again with the
   cutoff and write exactly the changes after it. The commit removes all parts of the table and records the truncate,
   for records that arrive later.
5. What records need of the table's schema first (``schema_evolution``) ends the writing too. The table is altered, and the tasks
   run again with the new schema. Nothing of the earlier run is committed.

The files of an attempt that did not commit are orphans: no log refers to them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from lakebed.error_transport import crosses_spark, from_spark
from lakebed.errors import InvalidChanges, Retry, TableReplaced
from lakebed.ingest.decoder import Decoded
from lakebed.ingest.handover import Handover
from lakebed.ingest.points.cut import Report
from lakebed.ingest.row_changes import split
from lakebed.ingest.schema_evolution import merged
from lakebed.ingest.source import Place, Range, RangeChanges, batch_of
from lakebed.ingest.source_tables import Seen, all_seen, topics_of_several
from lakebed.ingest.truncates import NO_CUTOFF, Cutoff, Truncate, cutoff_of, to_domain, to_json
from lakebed.manifest.actions import (
    Action,
    AddChangePart,
    AddPart,
    Domain,
    Transaction,
)
from lakebed.manifest.commit_loop import Finished, Proposal, commit_loop
from lakebed.manifest.conflicts import ReadWriteSet
from lakebed.manifest.entries import ORDER_RESTARTS, Operation
from lakebed.manifest.lateness import Lateness, Newest, lateness, newest_of
from lakebed.manifest.order_restarts import Restart, restarts_of
from lakebed.manifest.positions import Last, Position, entry_of, last_of, newest_by_place, position_entry, positions_of
from lakebed.manifest.remarks import Counts, RemarkCounts, remarks_of, sum_of
from lakebed.manifest.removals import all_removals
from lakebed.manifest.resnapshots import entry_counting
from lakebed.manifest.schema_change import SchemaChange
from lakebed.manifest.snapshot import Snapshot
from lakebed.manifest.source_columns import Followed, Met, followed, met_from_json, met_in, met_to_json
from lakebed.manifest.table_log import Committed, TableLog
from lakebed.parts.changes import WriteSpec, prepare, stored_rows, write_spec_of
from lakebed.parts.quarantine import QUARANTINE_SCHEMA, QUARANTINE_SUFFIX
from lakebed.parts.unavailable_values import newest_in_layers
from lakebed.parts.write import WrittenPart, write_parts
from lakebed.storage.engine import connect
from lakebed.storage.open import open_part_storage
from lakebed.telemetry.task_cost import measured
from lakebed.telemetry.task_requests import counted, report_requests

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SLICE_ROWS_MAX = 500_000
SLICE_BYTES_MAX = 256 << 20
SMALL_RECORDS = 20_000
TaskRow = tuple[str, int, str]
"""What a task yields: a kind, the number of the task, JSON."""


class ChangeStream(Protocol):
    """Turns a task's input into changes; picklable."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Decoded]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What the tasks of a batch wrote, in the order of changes, and what they counted."""

    parts: tuple[WrittenPart, ...] = ()
    quarantined: tuple[WrittenPart, ...] = ()
    truncates: tuple[Truncate, ...] = ()  # those that no earlier batch contained
    newest_event_us: int | None = None
    records_ignored: int = 0
    records_truncated: int = 0  # left out because they are from before a truncate
    records_of_snapshot: int = 0  # rows that the source's reader has read, and no changes
    records_lost: int = 0
    newest: Mapping[Place, Newest] = field(default_factory=dict)  # how far changes are in the order of their source
    last: Mapping[Place, Last] = field(default_factory=dict)  # the last record of each partition, if known
    met: Met = field(default_factory=dict)  # which columns the schemas of the records have
    remarks: Counts = field(default_factory=dict)  # what somebody should look at
    records_mismatched: int = 0  # among the quarantined: those that are what the format says and do not fit the table
    mismatch: str = ""  # why the first of them does not
    schema_needed: SchemaChange | None = None  # then nothing else counts
    read: tuple[Range, ...] = ()  # what was read, if the source has ranges
    transactions: Mapping[Place, Report] = field(default_factory=dict)  # of partitions that might be cut
    sources: Seen = field(default_factory=dict)  # whose events came, of topics of which the table does not know it

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def records_unusable(self) -> int:
        """Records that did not become rows, though they should have."""
        return self.records_lost + sum(part.rows for part in self.quarantined)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """``replayed``: the batch had been committed before; ``outdated``: its positions or the table's schema are others now, so it
    must be read again. In both cases nothing was committed, and ``version`` is the newest version.
    """

    version: int
    snapshot: Snapshot
    replayed: bool = False
    outdated: bool = False
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

    def with_cutoff(self, cutoff: Cutoff) -> WriteTask:
        """A copy of the task that leaves out changes from before a truncate."""
        if not isinstance(self.stream, RangeChanges):
            return self  # rows have no truncates
        return replace(self, stream=replace(self.stream, cutoff=cutoff))

    @crosses_spark
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        task = context.partitionId() if context else 0
        kinds, bodies = [], []
        for kind, body in self.run(batches):
            kinds.append(kind)
            bodies.append(body)
        tasks = pa.array([task] * len(kinds), pa.int32())
        yield pa.RecordBatch.from_arrays(
            [pa.array(kinds, pa.string()), tasks, pa.array(bodies, pa.string())], names=["kind", "task", "body"]
        )

    def run(self, batches: Iterator[pa.RecordBatch], *, is_small: bool = False) -> Iterator[tuple[str, str]]:
        """Yields (kind, JSON) of all that was written and counted, in order; last, the requests to the object store.

        ``is_small``: there are too few rows to spill any.
        """
        with counted() as requests, measured(self.root, "write", may_spill=not is_small):
            yield from self._run(batches)
        yield "requests", requests.to_json()

    def _run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, str]]:
        connection, incoming = connect(threads=1), self.spec.incoming
        storage = open_part_storage(self.root)
        tally = Tally(self.stream)
        for decoded in tally.slices(batches):
            changes, quarantined = decoded.changes, decoded.quarantined
            if len(changes):
                try:
                    checked = prepare(changes, incoming, connection)
                except InvalidChanges:
                    if getattr(self.stream, "strict", False):
                        raise
                    checked, refused = split(changes, incoming)
                    quarantined = pa.concat_tables([quarantined, refused], promote_options="default")
                layers, incomplete_rows = newest_in_layers(checked, incoming, connection)
                if len(incomplete_rows) and getattr(self.stream, "strict", False):
                    raise InvalidChanges(incomplete_rows["reason"][0].as_py())
                quarantined = pa.concat_tables([quarantined, incomplete_rows], promote_options="default")
                for layer in layers:
                    for part in write_parts(stored_rows(layer, self.spec), self.spec, storage):
                        yield "part", part.to_json()
            yield from write_aside(quarantined, self.root)
        yield "seen", tally.to_json()


class Tally:
    """What a task counts while it decodes its input."""

    def __init__(self, stream: ChangeStream) -> None:
        self._stream = stream
        self._seen: dict[str, Any] = {}
        self._truncates: list[Truncate] = []
        self._newest: Mapping[Place, Newest] = {}
        self._last: Mapping[Place, Last] = {}
        self._met: Met = {}
        self._remarks = RemarkCounts()
        self._needs: list[SchemaChange] = []
        self._sources: list[Seen] = []

    def slices(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Decoded]:
        """The decoded input, in slices that fit in the memory of a task, until something is needed of the table first."""
        for decoded in _slices(_decodable(self._stream(batches), self._needs)):
            if self._needs:
                return  # the batch runs again, so what was read before them is not written
            yield decoded
            self._count(decoded)

    def _count(self, decoded: Decoded) -> None:
        seen = self._seen
        self._truncates += decoded.truncates
        seen["ignored"] = seen.get("ignored", 0) + decoded.ignored
        seen["truncated"] = seen.get("truncated", 0) + decoded.truncated
        seen["of_snapshot"] = seen.get("of_snapshot", 0) + decoded.of_snapshot
        self._newest = newest_of((self._newest, decoded.newest))
        self._last = last_of((self._last, decoded.last))
        self._met = met_in((self._met, decoded.met))
        self._remarks.add_all(decoded.remarks)
        self._sources = [all_seen([*self._sources, decoded.sources])]
        if decoded.mismatched:
            seen["mismatched"] = seen.get("mismatched", 0) + decoded.mismatched
            seen.setdefault("mismatch", decoded.mismatch)
        if decoded.event_time_max is not None:
            seen["newest_event_us"] = max(seen.get("newest_event_us", 0), decoded.event_time_max)

    def to_json(self) -> str:
        """What was counted (``collected``)."""
        if isinstance(self._stream, RangeChanges):
            self._remarks.add_all(self._stream.remarks())
        seen = self._seen | {"remarks": self._remarks.counts}
        if self._newest:
            seen["newest"] = [[*place, *astuple(newest)] for place, newest in self._newest.items()]
        if self._last:
            seen["last"] = [[*place, *last] for place, last in self._last.items()]
        if self._met:
            seen["met"] = met_to_json(self._met)
        if self._truncates:
            seen["truncates"] = [to_json(truncate) for truncate in Cutoff(new=tuple(self._truncates)).remembered()]
        if sources := all_seen(self._sources):
            seen["sources"] = sources
        if self._needs:
            seen["schema_needed"] = merged(self._needs).to_json()
        lost = getattr(self._stream, "records_lost", None)
        if callable(lost) and (count := lost()):
            seen["lost"] = count
        if isinstance(self._stream, RangeChanges):
            seen["read"] = [astuple(one) for one in self._stream.ranges_read]
            if self._stream.reports:
                seen["transactions"] = self._stream.reports
        return json.dumps(seen)


def write_aside(records: pa.Table, root: str) -> Iterator[tuple[str, str]]:
    """Write records for the quarantine of a table; yields what a task says of the files."""
    if len(records):
        aside = open_part_storage(root + QUARANTINE_SUFFIX)
        for part in write_parts(records, WriteSpec(schema=QUARANTINE_SCHEMA), aside):
            yield "quarantined", part.to_json()


def _slices(stream: Iterator[Decoded]) -> Iterator[Decoded]:
    """Groups decoded input into slices that fit in the memory of a task."""
    held: list[Decoded] = []
    rows = size = 0
    for decoded in stream:
        held.append(decoded)
        rows += len(decoded.changes)
        size += decoded.changes.nbytes
        if rows >= SLICE_ROWS_MAX or size >= SLICE_BYTES_MAX:
            yield Decoded.concat(held) if len(held) > 1 else held[0]
            held, rows, size = [], 0, 0
    if held:
        yield Decoded.concat(held) if len(held) > 1 else held[0]


def _decodable(stream: Iterator[Decoded], needs: list[SchemaChange]) -> Iterator[Decoded]:
    """The stream until something is needed of the table's schema; what is needed, of the whole stream, is put into ``needs``."""
    for decoded in stream:
        if decoded.schema_needed is not None:
            needs.append(decoded.schema_needed)
        elif not needs:
            yield decoded


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
    quarantined: tuple[WrittenPart, ...] = ()
    if aside is not None and len(aside):
        beside = open_part_storage(root + QUARANTINE_SUFFIX)
        quarantined = tuple(write_parts(aside, WriteSpec(schema=QUARANTINE_SCHEMA), beside))
    parts = tuple(part for layer in stored for part in write_parts(layer, spec, storage))
    return Written(parts=parts, quarantined=quarantined)


def write_dataframe(frame: DataFrame, task: WriteTask, cutoff: Cutoff = NO_CUTOFF) -> Written:
    """Write the parts of a DataFrame in its tasks. After a truncate in the batch, the tasks run again with it as a cutoff.

    ``cutoff``: the truncates of earlier batches. Nothing is written if the table's schema must change first
    (``Written.schema_needed``). Raises InvalidChanges, and any LakebedError of a task.
    """
    return written_with(lambda each: in_tasks(frame, each), task, cutoff)


def written_with(run: Callable[[WriteTask], list[TaskRow]], task: WriteTask, cutoff: Cutoff = NO_CUTOFF) -> Written:
    """What ``run`` writes with a task; it runs again where a truncate in the batch decides what counts."""
    steps = writing(task, cutoff)
    try:
        chosen = next(steps)
        while True:
            chosen = steps.send(run(chosen))
    except StopIteration as done:
        written: Written = done.value
        return written


def writing(task: WriteTask, cutoff: Cutoff) -> Generator[WriteTask, list[TaskRow], Written]:
    """Yields the task to run, once or twice, and gets what it yielded; returns what was written."""
    written = collected((yield task.with_cutoff(cutoff)))
    if written.truncates and written.schema_needed is None:
        written = collected((yield task.with_cutoff(replace(cutoff, new=written.truncates))))
    return written


def in_tasks(frame: DataFrame, task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]) -> list[TaskRow]:
    """Run a task on each partition of a DataFrame; returns what they yielded, in the order of their numbers."""
    from pyspark.sql.types import IntegerType, StringType, StructType

    result = StructType().add("kind", StringType()).add("task", IntegerType()).add("body", StringType())
    with from_spark():
        rows = [tuple(row) for row in frame.mapInArrow(task, result).collect()]
    return sorted(rows, key=lambda row: int(row[1]))  # a stable sort keeps the order within a task


def in_this_process(task: WriteTask, ranges: Sequence[Range]) -> list[TaskRow]:
    """Run a task on ranges here, one after the other. Raises the errors of the task."""
    assert isinstance(task.stream, RangeChanges)
    own = replace(task, stream=task.stream.anew())
    is_small = sum(one.records for one in ranges) <= SMALL_RECORDS
    return [(kind, 0, body) for kind, body in own.run(iter([batch_of(ranges)]), is_small=is_small)]


def collected(rows: Iterable[TaskRow]) -> Written:
    """What the tasks of a batch wrote and counted, from what they yielded, in the order of the batch."""
    parts: list[WrittenPart] = []
    quarantined: list[WrittenPart] = []
    seen: list[dict[str, Any]] = []
    for kind, _, body in rows:
        match kind:
            case "part":
                parts.append(WrittenPart.from_json(body))
            case "quarantined":
                quarantined.append(WrittenPart.from_json(body))
            case "seen":
                seen.append(json.loads(body))
            case "requests":
                report_requests(body)
    needs = [SchemaChange.from_json(s["schema_needed"]) for s in seen if "schema_needed" in s]
    return Written(
        parts=tuple(parts),
        quarantined=tuple(quarantined),
        truncates=tuple(Truncate(**one) for s in seen for one in s.get("truncates", ())),
        newest_event_us=max((s["newest_event_us"] for s in seen if "newest_event_us" in s), default=None),
        records_ignored=sum(s.get("ignored", 0) for s in seen),
        records_truncated=sum(s.get("truncated", 0) for s in seen),
        records_of_snapshot=sum(s.get("of_snapshot", 0) for s in seen),
        records_lost=sum(s.get("lost", 0) for s in seen),
        records_mismatched=sum(s.get("mismatched", 0) for s in seen),
        mismatch=next((s["mismatch"] for s in seen if s.get("mismatch")), ""),
        schema_needed=merged(needs) if needs else None,
        newest=newest_of({(t, n): Newest(*newest)} for s in seen for t, n, *newest in s.get("newest", ())),
        last=last_of({(t, n): (end, transaction)} for s in seen for t, n, end, transaction in s.get("last", ())),
        met=met_in(met_from_json(s["met"]) for s in seen if "met" in s),
        remarks=sum_of(s["remarks"] for s in seen),
        read=tuple(Range(*one) for s in seen for one in s.get("read", ())),
        sources=all_seen(_places(s["sources"]) for s in seen if "sources" in s),
        transactions={(topic, number): report for s in seen for topic, number, report in s.get("transactions", ())},
    )


def _places(sources: Mapping[str, Mapping[str, Sequence[int]]]) -> Seen:
    """From JSON, which has lists for places."""
    return {topic: {name: (place[0], place[1]) for name, place in names.items()} for topic, names in sources.items()}


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
    if written.records_truncated:
        metrics["recordsTruncated"] = written.records_truncated

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
        snapshot, written.read, now_ms, came=written.records_of_snapshot,
        deleted=sum(part.deletes for part in written.parts), unusable=written.records_unusable,
    )  # fmt: skip
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
