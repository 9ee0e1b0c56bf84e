"""Brings rows that a caller gives into a table: those of ``Table.apply``, and the micro-batches of a user's stream."""

from __future__ import annotations

import time
from collections.abc import Callable

from lakebed import events
from lakebed.errors import Contention
from lakebed.ingest.batch_writer import BatchResult, Written, commit_written
from lakebed.ingest.handover import Handover
from lakebed.ingest.refusals import discard
from lakebed.log.actions import Transaction
from lakebed.log.entries import Operation
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.positions.remarks import report_remarks

ATTEMPTS_MAX = 5
"""How often a batch is written at most, if purges interfere."""


def bring_rows(
    log: TableLog,
    snapshot: Snapshot,
    write: Callable[[Snapshot], tuple[Snapshot, Written]],
    batch: Transaction | None,
    operation: Operation,
    handover: Handover,
) -> BatchResult:
    """Write a batch and commit it, once: a ``batch`` that the table has is left out.

    Args:
        log: Of the table.
        snapshot: A version of the table.
        write: Writes the rows for a version of the table, or for a newer one, which it returns.
        batch: The name of the batch; None if it has none.
        operation: The name of the commit.
        handover: Takes rows that do not fit to the quarantine.

    Raises:
        Contention: The table was purged each time while the rows were written.
    """
    table, started = log.root, time.perf_counter()
    for _ in range(ATTEMPTS_MAX):
        if batch and snapshot.transaction_version(batch.app_id) >= batch.version:
            events.emit(events.BatchReplayed(table=table, query=batch.app_id, batch_id=batch.version))
            return BatchResult(version=snapshot.version, snapshot=snapshot, replayed=True)
        snapshot, written = write(snapshot)
        if not written.parts and not written.quarantined and batch is None:
            return BatchResult(version=snapshot.version, snapshot=snapshot)
        result = commit_written(log, snapshot, written, batch, operation, handover=handover)
        snapshot = result.snapshot
        if result.outdated or result.replayed:
            discard(table, written)
            continue
        handover.deliver(snapshot)
        report_remarks(table, result.remarks)
        events.emit(
            written.event(
                table,
                result.version,
                time.perf_counter() - started,
                commit_seconds=result.commit_seconds,
                attempts=result.attempts,
                batch=batch,
            )
        )
        log.checkpoint_if_due(snapshot, slack=2)  # if nobody maintains the table, the writer must do this
        return result
    raise Contention(
        f"{table} was purged {ATTEMPTS_MAX} times while a batch was written; apply it again",
        table=table,
        operation=operation,
        attempts=ATTEMPTS_MAX,
    )
