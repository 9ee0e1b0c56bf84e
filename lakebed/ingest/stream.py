"""The foreachBatch of an ingest query: one micro-batch in, one commit out, exactly once.

When Spark repeats a batch after a crash, the batch has the same id and the same input. The id is committed with the
batch (``txn`` of the log), under the id of the query's checkpoint. So a restarted query continues where it stopped, and
a query with a new checkpoint is a new query. ``batch_fingerprint`` checks that the input is the same.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lakebed import events
from lakebed.error_transport import crosses_spark
from lakebed.errors import InvalidInput, QuarantineRefused, Retry, TableNotFound
from lakebed.ingest.batch_fingerprint import batch_fingerprint, require_same
from lakebed.ingest.batch_writer import (
    ChangeStream,
    WriteTask,
    Written,
    commit_written,
    refuse_quarantine,
    write_dataframe,
    write_ranges,
)
from lakebed.ingest.checkpoint_files import quick_checkpoint
from lakebed.ingest.evolving import ROUNDS_MAX, Evolution
from lakebed.ingest.planned import PlannedBatches
from lakebed.ingest.quarantined_offsets import NOTHING_BEFORE, QuarantinedBefore, quarantined_before
from lakebed.ingest.row_changes import RowChanges
from lakebed.ingest.source import Range, RangeChanges, RecordChanges
from lakebed.ingest.truncates import cutoff_of
from lakebed.ingest.unknown_report import report_unknown
from lakebed.manifest.actions import Transaction
from lakebed.manifest.entries import STREAM, Operation
from lakebed.manifest.snapshot import Snapshot
from lakebed.manifest.stores import open_store
from lakebed.manifest.table_log import TableLog
from lakebed.parts.changes import WriteSpec, write_spec_of
from lakebed.parts.quarantine import QUARANTINE_SUFFIX
from lakebed.planning.backpressure import pressure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

RECORDS_HERE_MAX = 20_000
"""So many take some 0.15 s here; a Spark job and its Python workers take 0.2 s of CPU time for none. Tasks share more records."""
_QUERY_ID_PROPERTY = "sql.streaming.queryId"
_logger = logging.getLogger("lakebed.ingest")


class Ingest:
    """Called by Structured Streaming with every micro-batch."""

    def __init__(
        self, table: str, log: TableLog, stream: ChangeStream, quarantine: str, quarantine_log: Callable[[], TableLog],
        *, evolution: Evolution, planned: PlannedBatches | None = None,
    ) -> None:  # fmt: skip
        """``evolution``: changes the table where records need it; ``planned``: the batches of the query, from which a small one
        is written without a Spark job.
        """
        if quarantine not in ("table", "fail"):
            raise InvalidInput(f"quarantine is {quarantine!r}; it must be 'table' or 'fail'")
        self._table = table
        self._log = log
        self._stream = stream
        self._fail_on_quarantine = quarantine == "fail"
        self._quarantine_log = quarantine_log
        self._evolution = evolution
        self._planned = planned
        self._batch_seconds = 0.0
        self._has_begun = False

    @crosses_spark
    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        started = time.perf_counter()
        query = frame.sparkSession.sparkContext.getLocalProperty(_QUERY_ID_PROPERTY)
        assert query, "Structured Streaming runs every batch under the id of its query"
        batch = Transaction(STREAM + query, batch_id)
        snapshot = self._log.refresh()
        if snapshot.transaction_version(batch.app_id) >= batch_id:
            if isinstance(self._stream, RangeChanges):
                ranges = self._ranges(batch_id) or [Range(**row.asDict()) for row in frame.collect()]
                require_same(snapshot, batch, batch_fingerprint(ranges))
            events.emit(events.BatchReplayed(table=self._table, query=batch.app_id, batch_id=batch_id))
            return
        snapshot = self._apply_backpressure(snapshot)
        started = time.perf_counter()
        before = self._quarantined_before(batch)
        snapshot, written = self._write(frame, batch_id, snapshot)
        self._refuse_mismatch(written)
        quarantined = sum(part.rows for part in written.quarantined)
        if quarantined:
            if self._fail_on_quarantine:
                refuse_quarantine(written, self._table)
                raise QuarantineRefused(
                    f"{quarantined} records can't be used, and quarantine: fail is set",
                    table=self._table,
                    records=quarantined,
                )
            log = self._quarantine_log()
            aside = type(written)(parts=written.quarantined)
            aside_batch, entry = before.entry(batch, written.quarantined_offsets)
            commit_written(log, log.refresh(), aside, aside_batch, Operation.QUARANTINE, entry)
        if written.records_lost:
            events.emit(events.OffsetsLost(table=self._table, source=query, records=written.records_lost))
        result = commit_written(self._log, snapshot, written, batch, Operation.STREAMING_UPDATE)
        if result.replayed:
            if written.read is not None:
                require_same(result.snapshot, batch, written.read)
            events.emit(events.BatchReplayed(table=self._table, query=batch.app_id, batch_id=batch_id))
            return
        report_unknown(self._table, written)
        self._batch_seconds = time.perf_counter() - started
        newest = None if written.newest_event_us is None else written.newest_event_us / 1e6
        events.emit(
            events.BatchCommitted(
                table=self._table,
                version=result.version,
                rows=written.rows,
                bytes=sum(part.bytes for part in written.parts),
                parts=len(written.parts),
                quarantined=quarantined,
                seconds=self._batch_seconds,
                commit_seconds=result.commit_seconds,
                attempts=result.attempts,
                newest_event_seconds=newest,
                ignored=written.records_ignored,
                query=batch.app_id,
                batch_id=batch_id,
                truncated=written.records_truncated,
            )
        )
        self._log.checkpoint_if_due(result.snapshot, slack=2)  # if nobody maintains the table, the writer must do this

    def _write(self, frame: DataFrame, batch_id: int, snapshot: Snapshot) -> tuple[Snapshot, Written]:
        """Write the parts of a batch; returns the version of the table that they are written for."""
        for _ in range(ROUNDS_MAX):
            if isinstance(self._stream, (RangeChanges, RecordChanges)):
                decoder = self._evolution.bound(self._stream.decoder, snapshot)
                if decoder is not self._stream.decoder:
                    self._stream = replace(self._stream, decoder=decoder)
            written = self._write_for(snapshot, frame, batch_id)
            if written.schema_needed is None:
                return snapshot, written
            snapshot = self._evolution.evolve(snapshot, written.schema_needed)
        raise self._evolution.gave_up()

    def _quarantined_before(self, batch: Transaction) -> QuarantinedBefore:
        """What an earlier attempt at the batch has in the quarantine; from then on the stream leaves these records out."""
        before = NOTHING_BEFORE
        if not self._has_begun:  # an attempt that fails ends the query, so only the first batch may come again
            with suppress(TableNotFound):
                log = TableLog(open_store(self._table + QUARANTINE_SUFFIX))
                before = quarantined_before(log.refresh(), batch)
        self._has_begun = True
        if isinstance(self._stream, RangeChanges) and self._stream.left_out != before.offsets:
            self._stream = replace(self._stream, left_out=before.offsets)
        return before

    def _refuse_mismatch(self, written: Written) -> None:
        """For ``on_mismatch: fail``. Raises QuarantineRefused."""
        if not isinstance(self._stream, (RangeChanges, RecordChanges)) or not written.records_mismatched:
            return
        if self._stream.decoder.decoder_schema.policy.on_mismatch == "fail":
            raise QuarantineRefused(
                f"{written.records_mismatched} records do not fit the table; the first: {written.mismatch} (on_mismatch: fail "
                "is set; with quarantine they go to the quarantine table, with rescue what fits comes in)",
                table=self._table,
                records=written.records_mismatched,
            )

    def _write_for(self, snapshot: Snapshot, frame: DataFrame, batch_id: int) -> Written:
        """Write the parts: of a small batch in this process, if Spark's tasks run on this machine too."""
        spec, cutoff = write_spec_of(snapshot), cutoff_of(snapshot)
        if isinstance(self._stream, RowChanges):
            spec = self._stream.spec.in_the_order_of(
                spec
            )  # its rows are of the columns that the table had when it started
        task = WriteTask(spec, self._table, self._stream)
        ranges = self._ranges(batch_id)
        if ranges is not None and self._is_written_here(ranges, frame):
            assert isinstance(self._stream, RangeChanges)
            # A batch that waits for its source here can't be stopped, and a task can.
            stream = replace(self._stream, source=self._stream.source.impatient())
            try:
                return write_ranges(ranges, replace(task, stream=stream), cutoff)
            except Retry as error:
                _logger.info("a batch of %s is written by tasks, since it failed here: %s", self._table, error)
        return write_dataframe(frame, task, cutoff)

    def _is_written_here(self, ranges: Sequence[Range], frame: DataFrame) -> bool:
        records = sum(each.end - each.start for each in ranges)
        return records <= RECORDS_HERE_MAX and str(frame.sparkSession.sparkContext.master).startswith("local")

    def _ranges(self, batch_id: int) -> list[Range] | None:
        """What a batch reads, if that is known without Spark."""
        if self._planned is None or not isinstance(self._stream, RangeChanges):
            return None
        return self._planned.ranges(batch_id, self._stream.source)

    def _apply_backpressure(self, snapshot: Snapshot) -> Snapshot:
        """Wait if maintenance can't keep up. Returns the snapshot to write against: after a wait, the newest one."""
        found = pressure(snapshot)
        delay = found.delay_seconds(self._batch_seconds)
        if not delay:
            return snapshot
        events.emit(events.IngestDelayed(table=self._table, reason=found.reason, factor=found.factor, seconds=delay))
        time.sleep(delay)
        return self._log.refresh()


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


def start_ingest(
    ingest: Ingest, frame: DataFrame, checkpoint: str, name: str, trigger: Mapping[str, Any] | None = None
) -> StreamingQuery:
    """Start the query that passes every micro-batch of ``frame`` to ``ingest``; ``checkpoint`` is a path as Spark writes it."""
    writer = frame.writeStream.queryName(name).option("checkpointLocation", checkpoint).foreachBatch(ingest)
    with quick_checkpoint(frame.sparkSession, checkpoint):
        return writer.trigger(**dict(trigger or {"processingTime": "0 seconds"})).start()
