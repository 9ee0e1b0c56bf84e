"""Applying one batch of changes: rows of this process, which it writes, or a DataFrame of Spark, which tasks write."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lakebed import events
from lakebed.errors import InvalidInput
from lakebed.ingest.batch_writer import (
    RowChanges,
    WriteTask,
    Written,
    commit_written,
    write_arrow,
    write_dataframe,
)
from lakebed.ingest.changes_frame import changes_frame, unknown_columns
from lakebed.ingest.unknown_report import report_unknown
from lakebed.manifest.actions import Transaction
from lakebed.manifest.entries import APPLIED, NAMED_BATCH, Operation
from lakebed.manifest.snapshot import Snapshot
from lakebed.manifest.table_log import TableLog, require_writable
from lakebed.parts.arrow_rows import Rows, arrow_rows, is_spark_frame
from lakebed.parts.changes import prepare, write_spec_of
from lakebed.storage.engine import connect, connect_sealed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def apply(
    path: str,
    log: TableLog,
    changes: Rows | DataFrame,
    apply_as_deletes: str | None = None,
    except_column_list: Sequence[str] = (),
    batch_id: int | str | None = None,
) -> int:
    """Commit one batch of changes; returns the version. See ``Table.apply``."""
    started = time.perf_counter()
    snapshot = log.refresh()
    require_writable(snapshot.protocol)
    batch = _batch(batch_id)
    if batch and snapshot.transaction_version(batch.app_id) >= batch.version:
        events.emit(events.BatchReplayed(table=path, query=batch.app_id, batch_id=batch.version))
        return snapshot.version
    spec = write_spec_of(snapshot)
    incoming = spec.incoming
    if is_spark_frame(changes):
        frame = changes_frame(changes, incoming, apply_as_deletes, except_column_list)
        unknown = unknown_columns(changes.columns, incoming, apply_as_deletes, except_column_list)
        task = WriteTask(spec, path, RowChanges(spec, strict=True, unknown_columns=unknown))
        written = write_dataframe(frame, task)
    elif isinstance(changes, list) and not changes:  # no row says which columns there are
        written = Written()
    else:
        connection = connect() if apply_as_deletes is None else connect_sealed()
        rows = arrow_rows(changes, incoming.schema)
        written = write_arrow(prepare(rows, incoming, connection, apply_as_deletes, except_column_list), spec, path)
        unknown = unknown_columns(rows.column_names, incoming, apply_as_deletes, except_column_list)
        written = replace(written, unknown_fields=dict.fromkeys(unknown, len(rows)))
    if not written.parts and batch is None:
        return snapshot.version
    return _commit(path, log, snapshot, written, batch, time.perf_counter() - started)


def _commit(
    path: str, log: TableLog, snapshot: Snapshot, written: Written, batch: Transaction | None, before_seconds: float
) -> int:
    result = commit_written(log, snapshot, written, batch, Operation.APPLY)
    if result.replayed and batch:
        events.emit(events.BatchReplayed(table=path, query=batch.app_id, batch_id=batch.version))
        return result.version
    report_unknown(path, written)
    newest = None if written.newest_event_us is None else written.newest_event_us / 1e6
    events.emit(
        events.BatchCommitted(
            table=path,
            version=result.version,
            rows=written.rows,
            bytes=sum(part.bytes for part in written.parts),
            parts=len(written.parts),
            quarantined=sum(part.rows for part in written.quarantined),
            seconds=before_seconds + result.commit_seconds,
            commit_seconds=result.commit_seconds,
            attempts=result.attempts,
            newest_event_seconds=newest,
            ignored=0,
            query=batch.app_id if batch else "",
            batch_id=batch.version if batch else None,
        )
    )
    log.checkpoint_if_due(result.snapshot, slack=2)  # if nobody maintains the table, the writer must do this
    return result.version


def _batch(batch_id: int | str | None) -> Transaction | None:
    if batch_id is None:
        return None
    if isinstance(batch_id, str):
        return Transaction(f"{NAMED_BATCH}{batch_id}", 0)
    if batch_id < 0:
        raise InvalidInput(f"batch_id is {batch_id}; a number must be 0 or more, and grow from batch to batch")
    return Transaction(APPLIED, batch_id)
