"""What does not come into a table: batches that are refused or came too late, and records that are set aside.

The files of such batches are deleted at once. Other attempts that end without a commit (a crash, a store that does not answer)
leave files that no log refers to. A cleanup of the table deletes these; but a table whose records are refused has no
quarantine, so nobody would clean up in its folder.

Records that can't become rows are committed to the quarantine table (``set_aside``).
"""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa

from lakebed.decode.decoder import Decoder
from lakebed.errors import LakebedError, QuarantineRefused
from lakebed.ingest.batch_writer import Written, commit_written, write_arrow
from lakebed.log.actions import ChangePart, Transaction
from lakebed.log.entries import NAMED_BATCH, Operation
from lakebed.log.table_log import TableLog
from lakebed.parts.changes import write_spec_of
from lakebed.parts.quarantine import QUARANTINE_SUFFIX
from lakebed.sql import parquet
from lakebed.storage.data_files import open_part_storage
from lakebed.storage.engine import connect


def refuse(table: str, written: Written, decoder: Decoder | None, fails_on_quarantine: bool) -> None:
    """For ``on_mismatch: fail`` and ``quarantine: fail``. Raises QuarantineRefused."""
    try:
        if decoder is not None and decoder.decoder_schema.policy.on_mismatch == "fail":
            _refuse_mismatch(table, written)
        if fails_on_quarantine:
            _refuse_quarantine(table, written)
    except QuarantineRefused:
        discard(table, written)
        raise


def discard(table: str, written: Written) -> None:
    """Delete the files of a batch that was certainly not committed, as far as possible."""
    for root, parts in ((table, written.parts), (table + QUARANTINE_SUFFIX, written.quarantined)):
        if parts:
            with suppress(LakebedError):
                open_part_storage(root).delete_many([part.path for part in parts])


def _refuse_mismatch(table: str, written: Written) -> None:
    if written.mismatched:
        raise QuarantineRefused(
            f"{written.mismatched} records do not fit the table; the first: {written.mismatch} (on_mismatch: fail "
            "is set; with quarantine they go to the quarantine table, with rescue what fits comes in)",
            table=table,
            records=written.mismatched,
        )


def _refuse_quarantine(table: str, written: Written) -> None:
    """The error has the reason of the first bad record."""
    if not written.quarantined:
        return
    storage = open_part_storage(table + QUARANTINE_SUFFIX)
    connection = connect()
    storage.attach(connection)
    scan = parquet(storage.duckdb_url(written.quarantined[0].path))
    row = connection.execute(f'select topic, partition, "offset", reason from {scan} limit 1').fetchone()
    assert row is not None
    total = sum(part.rows for part in written.quarantined)
    raise QuarantineRefused(
        f"{total} records can't be used; the first is at topic {row[0]}, partition {row[1]}, offset {row[2]}: {row[3]} "
        "(quarantine: fail is set; with quarantine: table they go to the quarantine table and the stream continues)",
        table=table,
        records=total,
    )


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
