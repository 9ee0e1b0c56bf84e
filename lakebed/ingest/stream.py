"""The foreachBatch of an ingest query: one micro-batch in, at most one commit out, exactly once.

What was read is in the log of the table, in the commit that brings it:

- A source that carries ranges has positions there, or, if they are of files, these (``RangeIngest``, ``table_batch``,
  ``files_read``). Spark's checkpoint only says how far to read, so it may be old, lost, or shared by two processes.
- For a user's DataFrame the id of the batch is there (``txn``), under the id of the query's checkpoint (``FrameIngest``). When
  Spark repeats a batch after a crash, it has the same id and the same input. A query with a new checkpoint is a new query.

**What a batch reads**, as Spark planned it, is in offset documents in the query's checkpoint.

Spark writes the source's offset document of a batch into ``offsets/<batch id>`` before the batch runs. A batch reads what lies
between the document of the batch before and its own; the first one begins at ``{}``. So the driver knows the ranges of a batch
without a task that reads them from the stream.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakebed import events
from lakebed.decode.row_changes import RowChanges
from lakebed.errors import InvalidInput, LakebedError, Retry, Unexpected
from lakebed.failures import crosses_spark
from lakebed.ingest.apply import bring_rows
from lakebed.ingest.batch_writer import Marks, WriteTask, Written, in_tasks
from lakebed.ingest.evolving import Evolution, refuse
from lakebed.ingest.table_batch import BatchDone, Reading, TableIngest, WriteWork, run_alone, run_here
from lakebed.ingest.transform_files import BAD_LINE, RowsOfFiles
from lakebed.ingest.transform_query import Transform
from lakebed.ingest.transform_run import SourceRows, Task, first_bad_line, passed_through, transformed
from lakebed.log.actions import Transaction
from lakebed.log.entries import STREAM, Operation
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.parts.changes import WriteSpec, write_spec_of
from lakebed.parts.quarantine import Handover
from lakebed.planning.settling import pressure
from lakebed.positions.files_read import FileRead, FilesRead
from lakebed.remarks import Counts, Remark, RemarkCounts
from lakebed.sources.cut import Cut, TaskCut
from lakebed.sources.files.planner import file_of
from lakebed.sources.files.reader import FilesReader, bad_line
from lakebed.sources.files.settings import shown
from lakebed.sources.source import Range, RangeChanges, batch_of, grouped
from lakebed.sparks.compiled import is_local, quick_checkpoint, read_with_spark
from lakebed.sparks.jvm import is_on_one_machine
from lakebed.storage.roots import LocalRoot, parse_root

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# -- What a batch reads, as Spark planned it ---------------------------------------------------------------------------


_VERSION = "v1"
_Document = dict[str, Any]


class OffsetDocuments:
    """The offset documents of one query with one source."""

    def __init__(self, checkpoint: str, read: Callable[[str], str]) -> None:
        """``checkpoint``: a path or URL, for messages; ``read`` returns the text of a file below it."""
        self._checkpoint = checkpoint
        self._read = read

    @staticmethod
    def of(spark: SparkSession, checkpoint: str) -> OffsetDocuments:
        """Those of a checkpoint as Spark spells its path. A local one is read here, any other by Hadoop."""
        root = parse_root(checkpoint) if is_local(spark, checkpoint) else None
        if isinstance(root, LocalRoot):
            folder = Path(root.path)
            return OffsetDocuments(checkpoint, lambda name: Path(folder, name).read_text())
        return OffsetDocuments(checkpoint, lambda name: read_with_spark(spark, f"{checkpoint}/{name}"))

    def read(self, name: str) -> str:
        """The text of a file of the checkpoint."""
        return self._read(name)

    def of_batch(self, batch_id: int) -> tuple[_Document, _Document]:
        """The documents between which a batch reads. Raises Unexpected if the checkpoint has not what Spark writes."""
        return {} if batch_id == 0 else self._document(batch_id - 1), self._document(batch_id)

    def _document(self, batch_id: int) -> _Document:
        name = f"offsets/{batch_id}"
        try:
            version, _, *sources = self._read(name).splitlines()
            document = json.loads(sources[0])
        except (OSError, ValueError, IndexError) as error:
            raise self._unreadable(name, str(error)) from None
        if version != _VERSION or len(sources) != 1 or not isinstance(document, dict):
            raise self._unreadable(name, f"it is of version {version}, with {len(sources)} sources")
        return document

    def _unreadable(self, name: str, why: str) -> Unexpected:
        return Unexpected(
            f"the checkpoint {self._checkpoint} has no plan that can be read in {name}: {why}. Set 'checkpoint' to a new folder: "
            "what was read is in the table, so nothing is lost or doubled"
        )


# -- The batches -------------------------------------------------------------------------------------------------------


class FilesIngest(TableIngest):
    """Brings files into one table. One thread at a time."""

    def _reading(self, snapshot: Snapshot, ranges: Sequence[Range], records_max: int | None) -> Reading:
        return _files_reading(snapshot, ranges)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FilesReading:
    """What one attempt reads; a ``Reading``. ``files``: those of the ranges; ``rewritten``: not read, but in another state."""

    before: FilesRead
    ranges: tuple[Range, ...]
    files: tuple[FileRead, ...]
    rewritten: tuple[FileRead, ...]
    remarks: Counts = field(default_factory=dict)
    topic_ids: Mapping[str, str | None] = field(default_factory=dict)
    anew: frozenset[str] = frozenset()

    def up_to(self, cut: Cut) -> tuple[tuple[Range, ...], Mapping[str, TaskCut]]:
        return self.ranges, {}

    def marks(self, written: Written, cut: Cut | None) -> Marks | None:
        if not self.files and not self.remarks:
            return None
        return self.before.plus(self.files, self.rewritten)

    def done(self, snapshot: Snapshot, written: Written) -> BatchDone:
        return BatchDone(snapshot=snapshot, written=written)


def _files_reading(snapshot: Snapshot, ranges: Sequence[Range]) -> _FilesReading:
    """What is to be read of the ranges of a batch: all of each file that the table has not read."""
    read = FilesRead.of(snapshot)
    planned = {one.topic: file_of(one) for one in ranges if one.size}
    unread = set(read.without(list(planned)))
    files = tuple(file for url, file in planned.items() if url in unread)
    only_told = [file_of(one) for one in ranges if not one.size]
    known = set(read.places([one.url for one in only_told]))
    rewritten = tuple(read.rewritten(only_told))
    urls_of = {
        Remark.FILE_REWRITTEN: [one.url for one in rewritten],
        Remark.FILE_FORGOTTEN: [one.url for one in only_told if one.url not in known],
        Remark.FILE_LATE: _late(snapshot, read, files),
    }
    return _FilesReading(
        before=read,
        ranges=tuple(one for one in ranges if one.size and one.topic in unread),
        files=files,
        rewritten=rewritten,
        remarks=_remarks({kind: list(map(_named, urls)) for kind, urls in urls_of.items()}),
    )


def _remarks(names: Mapping[Remark, Sequence[str]]) -> Counts:
    counts = RemarkCounts()
    for kind, several in names.items():
        for name in several:
            counts.add(kind, name)
    return counts.counts


def _late(snapshot: Snapshot, read: FilesRead, files: Sequence[FileRead]) -> list[str]:
    """The files that are older than one of an earlier batch, where the order of reading decides which row is newer."""
    if not snapshot.settings.keys or snapshot.settings.sequence_by is not None:
        return []
    return [one.url for one in files if one.time_ns < read.newest_ns]


def _named(url: str) -> str:
    """The name of a file in a remark: the end of its path, which tells more than its beginning."""
    return shown(url).rpartition("/")[2]


RECORDS_HERE_MAX = 20_000
"""Batches up to this size are read in the driver, in some 0.15 s; a Spark job without records costs 0.2 s of CPU."""
_PIECE_RECORDS_MAX = 2_000_000
"""What a table has to catch up with is read in pieces of so many records, or of as many as the batch has, if those are more."""
_QUERY_ID_PROPERTY = "sql.streaming.queryId"
_logger = logging.getLogger("lakebed.ingest")


class RangeIngest:
    """Called by Structured Streaming with every micro-batch of a source that carries ranges."""

    def __init__(
        self,
        table: str,
        log: TableLog,
        stream: RangeChanges,
        quarantine: str,
        quarantine_log: Callable[[], TableLog],
        *,
        evolution: Evolution,
        documents: OffsetDocuments,
    ) -> None:
        """``evolution``: changes the table where records need it; ``documents``: what the batches of the query read."""
        _check_quarantine(quarantine)
        self._table = table
        self._log = log
        self._source = stream.source
        self._documents = documents
        self._backpressure = Backpressure(table, log)
        kind = FilesIngest if isinstance(stream.source, FilesReader) else TableIngest
        self._ingest = kind(
            table,
            log,
            stream.source,
            stream.decoder,
            evolution=evolution,
            quarantine_log=quarantine_log,
            quarantine=quarantine,
        )

    @crosses_spark
    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        query, spark = _query_of(frame), frame.sparkSession
        ranges = self._source.ranges(*self._documents.of_batch(batch_id))
        piece = max(_PIECE_RECORDS_MAX, sum(one.size for one in ranges))
        while True:
            self._backpressure.apply(self._log.newest or self._log.refresh())
            done = run_alone(self._ingest.batch(ranges, records_max=piece), lambda work: self._run(work, spark))
            if done.version is None:
                events.emit(events.BatchReplayed(table=self._table, query=STREAM + query, batch_id=batch_id))
            else:
                self._backpressure.batch_seconds = done.seconds
                done.report(self._table, query, Transaction(STREAM + query, batch_id))
            if not done.left or done.version is None:
                break

    def _run(self, work: WriteWork, spark: SparkSession) -> Written:
        """Do the work: in this process if it is small, and Spark's tasks run on this machine too."""
        assert isinstance(work.task.stream, RangeChanges)
        if isinstance(decoder := work.task.stream.decoder, SourceRows):
            return run_in_tasks(work, spark, decoder.transform)
        if work.records <= RECORDS_HERE_MAX and is_on_one_machine(spark):
            try:
                return run_here(work)
            except Retry as error:
                _logger.info("a batch of %s is written by tasks, since it failed here: %s", self._table, error)
        return run_in_tasks(work, spark)


def run_in_tasks(work: WriteWork, spark: SparkSession, transform: Transform | RowsOfFiles | None = None) -> Written:
    """Do the work in a job of Spark's; small ranges share a task."""
    parallel = spark.sparkContext.defaultParallelism
    groups = grouped(work.ranges, max(RECORDS_HERE_MAX, work.records // parallel))
    numbers = spark.range(0, len(groups), 1, len(groups))
    chosen = tuple(tuple(group) for group in groups)
    if isinstance(transform, RowsOfFiles):
        return _files_through_spark(work, numbers, transform, lambda task: _NumberedTask(task, chosen))
    if transform is not None:
        return transformed(numbers, work.task, transform, lambda task: _NumberedTask(task, chosen))
    return in_tasks(numbers, _NumberedTask(work.task, chosen))


def _files_through_spark(
    work: WriteWork, numbers: DataFrame, rows: RowsOfFiles, on_input: Callable[[Task], Task]
) -> Written:
    """Have Spark parse lines, or evaluate what a user wrote. Raises InvalidChanges that names a line which does not fit."""
    assert isinstance(work.task.stream, RangeChanges) and isinstance(work.task.stream.source, FilesReader)
    rows = rows.for_folders(work.task.stream.source.of_folders(work.ranges))
    try:
        run = passed_through if rows.transform is None else transformed
        return run(numbers, work.task, rows, on_input)
    except LakebedError:
        raise
    except Exception as error:
        bad = first_bad_line(numbers, work.task, rows, on_input) if BAD_LINE in str(error) else None
        if bad is None:
            raise
        url = next(one.topic for one in work.ranges if one.partition == bad[0])
        raise bad_line(url, bad[1], bad[2]) from None


@dataclass(frozen=True, slots=True)
class _NumberedTask:
    """Runs the task on the ranges of its number."""

    task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    groups: tuple[tuple[Range, ...], ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        chosen = [batch_of(self.groups[number]) for batch in batches for number in batch.column(0).to_pylist()]
        yield from self.task(iter(chosen))


class FrameIngest:
    """Called by Structured Streaming with every micro-batch of a user's rows."""

    def __init__(
        self,
        table: str,
        log: TableLog,
        stream: RowChanges,
        quarantine: str,
        quarantine_log: Callable[[], TableLog],
        *,
        backpressure: Backpressure | None = None,
    ) -> None:
        """``backpressure``: where other batches of the table are known already."""
        _check_quarantine(quarantine)
        self._table = table
        self._log = log
        self._stream = stream
        self._fails_on_quarantine = quarantine == "fail"
        self._handover = Handover(table, quarantine_log)
        self._backpressure = backpressure or Backpressure(table, log)

    @crosses_spark
    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        snapshot = self._log.refresh()
        self._handover.deliver(snapshot)
        snapshot = self._backpressure.apply(snapshot)
        started = time.perf_counter()
        batch = Transaction(STREAM + _query_of(frame), batch_id)
        bring_rows(
            self._log, snapshot, lambda now: self._write(frame, now), batch, Operation.STREAMING_UPDATE, self._handover
        )
        self._backpressure.batch_seconds = time.perf_counter() - started

    def _write(self, frame: DataFrame, snapshot: Snapshot) -> tuple[Snapshot, Written]:
        """Write the parts of a batch; its rows are of the columns that the table had when the query started."""
        spec = self._stream.spec.in_the_order_of(write_spec_of(snapshot))
        task = WriteTask(spec, self._table, self._stream)
        written = in_tasks(frame, task)
        refuse(self._table, written, None, self._fails_on_quarantine)
        return snapshot, written


@dataclass(slots=True)
class Backpressure:
    """Waits before a batch if maintenance can't keep up. ``batch_seconds``: what the batch before took."""

    table: str
    log: TableLog
    batch_seconds: float = 0.0

    def apply(self, snapshot: Snapshot) -> Snapshot:
        """Returns the snapshot to write against: after a wait, the newest one."""
        found = pressure(snapshot)
        delay = found.delay_seconds(self.batch_seconds)
        if not delay:
            return snapshot
        events.emit(events.IngestDelayed(table=self.table, reason=found.reason, factor=found.factor, seconds=delay))
        time.sleep(delay)
        return self.log.refresh()


def _query_of(frame: DataFrame) -> str:
    query = frame.sparkSession.sparkContext.getLocalProperty(_QUERY_ID_PROPERTY)
    assert query, "Structured Streaming runs every batch under the id of its query"
    return str(query)


def _check_quarantine(quarantine: str) -> None:
    if quarantine not in ("table", "fail"):
        raise InvalidInput(f"quarantine is {quarantine!r}; it must be 'table' or 'fail'")


def require_keys(spec: WriteSpec, keys: Sequence[str] | None, sequence_by: str | None) -> None:
    """Raises InvalidInput if a caller expects other keys or another ``sequence_by`` than the table has."""
    if keys is not None and tuple(keys) != spec.keys:
        raise InvalidInput(
            f"the table's keys are {list(spec.keys)}, not {list(keys)}; keys are fixed when a table is created"
        )
    if sequence_by is not None and sequence_by != spec.sequence_by:
        raise InvalidInput(
            f"the table's sequence_by is {spec.sequence_by!r}, not {sequence_by!r}; it is fixed when a table is created"
        )


def start_query(
    each_batch: Callable[[DataFrame, int], None],
    frame: DataFrame,
    checkpoint: str,
    name: str,
    trigger: Mapping[str, Any] | None = None,
) -> StreamingQuery:
    """Start the query that passes every micro-batch of ``frame`` on; ``checkpoint`` is a path as Spark writes it.

    Raises InvalidInput if this Spark can't tell a source of ours where a query with this trigger ends.
    """
    chosen = dict(trigger or {"processingTime": "0 seconds"})
    with quick_checkpoint(frame.sparkSession, checkpoint):
        if isinstance(each_batch, RangeIngest) and "availableNow" in chosen:
            require_an_end(frame.sparkSession.version)
        writer = frame.writeStream.queryName(name).option("checkpointLocation", checkpoint).foreachBatch(each_batch)
        return writer.trigger(**chosen).start()


def require_an_end(version: str) -> None:
    """Raises InvalidInput unless this Spark tells a source where a query with the trigger ``availableNow`` ends."""
    from lakebed.sparks.streams import TELLS_THE_START

    if not TELLS_THE_START:
        raise InvalidInput(
            f"the trigger availableNow needs Spark 4.2, this is {version}: start the query without it, call "
            "query.processAllAvailable(), then query.stop()"
        )
