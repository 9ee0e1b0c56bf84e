"""Fill a new table with rows that Spark reads, as of a position of its source; from there on the source is followed.

One commit brings the rows and the positions of the topics. So after a crash there are both or neither, and of two processes that
begin at once only one commits. A table that has a position of one of the topics was filled before, or has read the topic: nothing
is done then.

Where what orders the changes is metadata of the records, the rows are older than every change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from lakebed.decode.row_changes import RowChanges, names_in_rows
from lakebed.errors import Contention, InvalidChanges, InvalidInput
from lakebed.ingest.batch_writer import Moved, WriteTask, commit_written, in_tasks
from lakebed.ingest.changes_frame import changes_frame, unknown_columns
from lakebed.ingest.evolving import ROUNDS_MAX
from lakebed.ingest.handover import Handover
from lakebed.log.entries import Operation
from lakebed.log.table_log import TableLog
from lakebed.parts.changes import OLDEST_SEQUENCE, SEQUENCE_COLUMN, write_spec_of
from lakebed.positions.positions import Position, positions_of
from lakebed.positions.remarks import report_remarks
from lakebed.quoting import quote_for_spark
from lakebed.schema.change_names import ChangeNames
from lakebed.schema.fitting import FIXED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OLDEST = f"cast('{OLDEST_SEQUENCE}' as long)"
"""In Spark's SQL: the sequence of a row that is older than every change."""
_logger = logging.getLogger("lakebed.ingest")


def bootstrap(
    table: str,
    log: TableLog,
    rows: Callable[[], DataFrame],
    offsets: Mapping[str, Mapping[int, int]],
    quarantine_log: Callable[[], TableLog],
) -> int | None:
    """Fill the table, unless it was filled before; returns the version, None if nothing was done.

    ``rows``: with all columns of the table, and ``_change_type`` (``ChangeNames``) if some are deletes; ``offsets``: by topic and
    partition, the first one that the rows do not have.
    Raises InvalidInput if the table has other rows, or the rows do not fit it; Contention, StoreUnavailable (it may be repeated).
    """
    handover = Handover(table, quarantine_log)
    for _ in range(ROUNDS_MAX):
        snapshot = log.refresh()
        if positions_of(snapshot).keys() & offsets.keys():
            handover.deliver(snapshot)
            return None
        if snapshot.parts or snapshot.tail:
            raise InvalidInput(f"{table} has rows already, and bootstrap fills an empty table; leave bootstrap out")
        spec = write_spec_of(snapshot)
        given, incoming = rows(), spec.incoming
        if spec.sequence_column == SEQUENCE_COLUMN and spec.sequence_by not in given.columns:
            given = given.selectExpr("*", f"{OLDEST} as {quote_for_spark(str(spec.sequence_by))}")
        sent = names_in_rows(incoming.schema.names, given.columns, FIXED)
        if lacking := [key for key in incoming.keys if key not in sent]:
            raise InvalidInput(f"the rows of bootstrap have no column {lacking[0]!r}, which is a key of {table}")
        kind = ChangeNames.beside(incoming.schema.names).type
        deletes = f"{kind} = 'delete'" if incoming.keys and kind in given.columns else None
        try:
            frame = changes_frame(given, incoming, deletes, ())
        except InvalidChanges as error:
            raise InvalidInput(str(error).replace("the changes lack", "the rows of bootstrap lack")) from None
        unknown = unknown_columns(given.columns, incoming, deletes, ())
        _logger.info("%s is filled by bootstrap", table)
        written = in_tasks(frame, WriteTask(spec, table, RowChanges(spec, unknown_columns=unknown)))
        after = {topic: Position(offsets=dict(partitions)) for topic, partitions in offsets.items()}
        marks = Moved(before=dict.fromkeys(after), after=after)
        result = commit_written(log, snapshot, written, None, Operation.BOOTSTRAP, marks=marks, handover=handover)
        if not result.outdated:
            handover.deliver(result.snapshot)
            report_remarks(table, written.remarks)
            return result.version
    raise Contention(f"{table} was changed by others while it was filled; it is tried again", table=table)
