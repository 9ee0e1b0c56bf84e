"""Applying one batch of changes: rows of this process, which it writes, or a DataFrame of Spark, which tasks write.

``bring_rows`` commits rows that a caller gives: those of ``Table.apply``, and the micro-batches of a user's stream.

``bootstrap`` fills a new table with rows that Spark reads, as of a position of its source; from there on the source is followed.

One commit brings the rows and the positions of the topics. So after a crash there are both or neither, and of two processes that
begin at once only one commits. A table that has a position of one of the topics was filled before, or has read the topic: nothing
is done then.

Where what orders the changes is metadata of the records, the rows are older than every change.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from lakebed import events
from lakebed.decode.row_changes import (
    RowChanges,
    columns_left_out,
    names_in_rows,
    prepare_or_split,
    require_columns,
    rescued,
    under_their_names,
)
from lakebed.errors import Contention, InvalidChanges, InvalidInput, InvalidSchema
from lakebed.ingest.batch_writer import BatchResult, Moved, WriteTask, Written, commit_written, in_tasks, write_arrow
from lakebed.ingest.changes_frame import changes_frame, unknown_columns
from lakebed.ingest.evolving import ROUNDS_MAX, Evolution, discard, evolved, first_names, with_rescued_column
from lakebed.log.actions import Transaction
from lakebed.log.entries import APPLIED, NAMED_BATCH, Operation
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog, require_writable
from lakebed.parts.arrow_rows import Rows, arrow_rows, is_spark_frame
from lakebed.parts.changes import OLDEST_SEQUENCE, SEQUENCE_COLUMN, WriteSpec, prepare, write_spec_of
from lakebed.parts.fills import Fill
from lakebed.parts.quarantine import Handover
from lakebed.positions.positions import Position, positions_of
from lakebed.positions.remarks import report_remarks
from lakebed.quoting import quote_for_spark
from lakebed.remarks import Remark, remarks_on
from lakebed.schema.conversion import ChangeNames, canonical_type, type_from_json
from lakebed.schema.fitting import FIXED, RESCUED_COLUMN, EvolvePolicy
from lakebed.storage.engine import connect, connect_sealed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OLDEST = f"cast('{OLDEST_SEQUENCE}' as long)"
"""In Spark's SQL: the sequence of a row that is older than every change."""
_logger = logging.getLogger("lakebed.ingest")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How changes are read (``Table.apply``), and what may be done where they and the table differ."""

    apply_as_deletes: str | None = None
    except_columns: Sequence[str] = ()
    policy: EvolvePolicy
    fill: Fill | None = None
    """Which columns of its row a change fills; None for all."""

    def for_table(self, snapshot: Snapshot) -> How:
        """A column that was renamed in the table still comes under its first name too."""
        policy = self.policy
        renamed = {
            column: first for first, column in first_names(snapshot).items() if first not in policy.names_of(column)
        }
        return replace(self, policy=replace(policy, renamed={**renamed, **policy.renamed})) if renamed else self

    def unknown(self, given: Sequence[str], spec: WriteSpec) -> tuple[str, ...]:
        """The columns that no column of the table takes, and that nothing refers to."""
        return unknown_columns(given, spec, self.apply_as_deletes, self.except_columns, self.policy)

    def evolved(self, given: pa.Schema, snapshot: Snapshot, evolution: Evolution) -> Snapshot:
        """The table as it must be for changes with these columns; it is altered if it is not. Raises InvalidChanges."""
        if self.fill is None:
            require_columns(snapshot.logical_schema.names, given.names, self.policy, self.except_columns)
        unknown = self.unknown(given.names, write_spec_of(snapshot).incoming)
        table = names_in_rows(snapshot.logical_schema.names, given.names, self.policy).values()
        known = [name for name in given.names if (name in table or name in unknown) and name not in self.except_columns]
        return evolved(given, known, snapshot, self.policy, evolution)


def filled(
    columns: Literal["sent"] | Sequence[str] | None, ignore_null_updates: bool, *, rescues: bool = False
) -> Fill | None:
    """Which columns of their rows changes fill, by the arguments of ``Table.apply``; None for all. Raises InvalidInput."""
    if columns is None and not ignore_null_updates:
        return None
    if isinstance(columns, str):
        if columns != "sent":
            raise InvalidInput(
                f"columns is {columns!r}; give a list of columns, or 'sent' for those that the changes have"
            )
        columns = None
    if isinstance(columns, Mapping):
        raise InvalidInput("columns is a mapping; give a list of columns, or the mapping as renamed_columns")
    return Fill(None if columns is None else tuple(columns), ignore_null_updates, rescues)


def apply(
    path: str,
    log: TableLog,
    changes: Rows | DataFrame,
    how: How,
    evolution: Evolution,
    quarantine_log: Callable[[], TableLog],
    *,
    batch_id: int | str | None = None,
) -> int:
    """Commit one batch of changes; returns the version. See ``Table.apply``."""
    snapshot = log.refresh()
    require_writable(snapshot.protocol)
    batch = _batch(batch_id)
    is_empty = isinstance(changes, list) and not changes
    given = changes if is_spark_frame(changes) or is_empty else arrow_rows(changes, snapshot.logical_schema)

    def write(snapshot: Snapshot) -> tuple[Snapshot, Written]:
        if is_spark_frame(given):
            stream, frame, snapshot = frame_changes(given, how, log, evolution, strict=how.policy.on_mismatch == "fail")
            return snapshot, in_tasks(frame, WriteTask(write_spec_of(snapshot), path, stream))
        if is_empty:  # no row says which columns there are
            return snapshot, Written()
        return _write_rows(path, given, how.for_table(snapshot), snapshot, evolution)

    return bring_rows(log, snapshot, write, batch, Operation.APPLY, Handover(path, quarantine_log)).version


def frame_changes(
    changes: DataFrame, how: How, log: TableLog, evolution: Evolution, *, strict: bool
) -> tuple[RowChanges, DataFrame, Snapshot]:
    """A user's DataFrame for the write tasks, and the version of the table that it is for, which is altered if need be."""
    snapshot = log.refresh()
    how = how.for_table(snapshot)
    policy = how.policy
    if policy.allowed:
        snapshot = how.evolved(_arrow_schema(changes), snapshot, evolution)
    if policy.rescues:
        snapshot = with_rescued_column(snapshot, evolution)
    spec = write_spec_of(snapshot)
    unknown = how.unknown(changes.columns, spec.incoming)
    frame = changes_frame(
        changes,
        spec.incoming,
        how.apply_as_deletes,
        how.except_columns,
        fill=how.fill,
        policy=policy,
        rescued=unknown if policy.rescues else (),
    )
    rows = RowChanges(spec, strict=strict, unknown_columns=unknown, rescues=policy.rescues, fill=how.fill)
    return rows, frame, snapshot


def _write_rows(
    path: str, rows: pa.Table, how: How, snapshot: Snapshot, evolution: Evolution
) -> tuple[Snapshot, Written]:
    policy = how.policy
    snapshot = how.evolved(rows.schema, snapshot, evolution)
    incoming = write_spec_of(snapshot).incoming
    unknown = how.unknown(rows.column_names, incoming)
    left_out = columns_left_out(names_in_rows(incoming.schema.names, rows.column_names, policy), how.except_columns)
    rows = under_their_names(rows, incoming, policy)
    if policy.rescues:
        rows, texts = rescued(rows, incoming, unknown)
        if texts.null_count < len(texts):
            snapshot = with_rescued_column(snapshot, evolution)
            incoming = write_spec_of(snapshot).incoming
        if RESCUED_COLUMN in incoming.schema.names:
            rows = rows.append_column(RESCUED_COLUMN, texts)
        unknown = ()
    elif RESCUED_COLUMN in incoming.schema.names and RESCUED_COLUMN not in rows.column_names and how.fill is None:
        rows = rows.append_column(RESCUED_COLUMN, pa.nulls(len(rows), pa.string()))
    connection = connect() if how.apply_as_deletes is None else connect_sealed()
    deletes = how.apply_as_deletes
    if policy.on_mismatch == "quarantine":
        checked, aside = prepare_or_split(rows, incoming, connection, deletes, left_out, how.fill)
    else:
        checked, aside = prepare(rows, incoming, connection, deletes, left_out, how.fill), None
    written = write_arrow(checked, write_spec_of(snapshot), path, aside)
    return snapshot, replace(written, remarks=remarks_on(Remark.UNKNOWN_FIELD, dict.fromkeys(unknown, len(rows))))


def _arrow_schema(frame: DataFrame) -> pa.Schema:
    """The columns of a DataFrame; those of types that tables do not have are of Arrow's type of nulls."""
    fields = []
    for one in frame.schema.fields:
        try:
            kind = canonical_type(type_from_json(one.dataType.jsonValue(), one.name), one.name)
        except InvalidSchema:
            kind = pa.null()
        fields.append(pa.field(one.name, kind))
    return pa.schema(fields)


def _batch(batch_id: int | str | None) -> Transaction | None:
    if batch_id is None:
        return None
    if isinstance(batch_id, str):
        return Transaction(f"{NAMED_BATCH}{batch_id}", 0)
    if batch_id < 0:
        raise InvalidInput(f"batch_id is {batch_id}; a number must be 0 or more, and grow from batch to batch")
    return Transaction(APPLIED, batch_id)


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
