"""Commit records that can't become rows to the quarantine table beside their table."""

from __future__ import annotations

import pyarrow as pa

from lakebed.ingest.batch_writer import commit_written, write_arrow
from lakebed.log.actions import ChangePart, Transaction
from lakebed.log.entries import NAMED_BATCH, Operation
from lakebed.log.table_log import TableLog
from lakebed.parts.changes import write_spec_of


def set_aside(path: str, log: TableLog, change_part: ChangePart, records: pa.Table) -> None:
    """Commit the records of a change part that could not be settled to the quarantine table at ``path``, once per part.

    The part's domain is the batch id. The log keeps it for seven days; a settle that crashed is repeated before that.
    """
    snapshot, outdated = log.refresh(), True
    batch = Transaction(NAMED_BATCH + change_part.domain, 0)
    while outdated and snapshot.transaction_version(batch.app_id) < batch.version:
        written = write_arrow(records, write_spec_of(snapshot), path)
        result = commit_written(log, snapshot, written, batch, Operation.QUARANTINE)
        snapshot, outdated = result.snapshot, result.outdated
