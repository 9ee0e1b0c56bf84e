"""Deletes and updates rows, of a table with keys or without, and emits the events."""

from __future__ import annotations

from lakebed import events
from lakebed.log.table_log import TableLog, require_writable
from lakebed.operations.mutate.mutate import Beside, RowsForSql, mutate
from lakebed.operations.mutate.mutation import Mutation, MutationResult
from lakebed.operations.mutate.unkeyed import mutate_unkeyed
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.storage.part_storage import PartStorage


def run_mutation(
    path: str,
    log: TableLog,
    storage: PartStorage,
    deletion_vectors: DeletionVectorCache,
    rows_for_sql: RowsForSql,
    mutation: Mutation,
    *,
    beside: Beside | None = None,
) -> MutationResult:
    """Run it. ``beside``: entries that its commit sets too, of a table with keys.

    Raises InvalidInput, Contention; StoreUnavailable, after which the timeline shows whether it was committed.
    """
    snapshot = log.refresh()
    require_writable(snapshot.protocol)
    operation = mutation.operation.lower()
    events.emit(events.MutationBegan(table=path, operation=operation, where=mutation.where.text))
    try:
        if snapshot.settings.keys:
            result = mutate(log, storage, rows_for_sql, mutation, beside=beside)
        else:
            result = mutate_unkeyed(log, storage, deletion_vectors, mutation)
    except BaseException as error:
        events.emit(events.MutationFailed(table=path, operation=operation, error=str(error)))
        raise
    events.emit(
        events.MutationEnded(
            table=path,
            operation=operation,
            version=result.version,
            rows=result.rows,
            rows_left=result.rows_left,
            parts_read=result.parts_read,
            parts_marked=result.parts_marked,
            parts_added=result.parts_added,
            bytes_written=result.bytes_written,
            conflicts=result.conflicts,
            seconds=result.seconds,
        )
    )
    return result
