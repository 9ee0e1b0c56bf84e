"""Binds decoders to the schema that a table has now, changes the table where its records need that, and refuses the rest.

1.  Before a batch its decoder is bound to the newest schema. So a table that was altered stops no stream.
2.  If the batch needs something of the table, the table is altered, and the batch is decoded again. Altering is idempotent: of
    two processes that need the same at once, one finds that it is done.
3.  If the table refuses the change, each piece of it is tried by itself. If the table is as it was then, what was asked for is
    remembered, and counts as not allowed until the table has another schema. So after each round the table is another, or less
    is asked for.

After a crash between the two commits the batch is decoded with the schema that it needed: its rows are the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa

from lakebed.column_groups import order_of_stream
from lakebed.decode.decoder import Decoder, DecoderSchema
from lakebed.errors import InvalidInput, InvalidSchema, LakebedError, QuarantineRefused, Retry, Unsupported
from lakebed.ingest.batch_writer import Written, commit_written, write_arrow
from lakebed.log.actions import ChangePart, Transaction
from lakebed.log.entries import NAMED_BATCH, Operation
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.parts.changes import write_spec_of
from lakebed.parts.quarantine import QUARANTINE_SUFFIX
from lakebed.positions.remarks import fields_got_columns
from lakebed.schema.change import SchemaChange
from lakebed.schema.conversion import canonical_type
from lakebed.schema.fitting import RESCUED_COLUMN, EvolvePolicy, needed, pieces_of
from lakebed.schema.nested import nullable
from lakebed.sql import parquet
from lakebed.storage.data_files import open_part_storage
from lakebed.storage.engine import connect

ROUNDS_MAX = 10
"""How often a batch is decoded at most; more than twice only if others keep changing the table."""
_Alter = Callable[[SchemaChange, str], object]
"""Changes the table; the text says why. Raises InvalidInput if the table refuses the change as it is."""

_logger = logging.getLogger("lakebed.ingest")


def first_names(snapshot: Snapshot) -> dict[str, str]:
    """The columns that were renamed in the table, by their first names, unless other columns have these now."""
    columns = snapshot.logical_schema.names
    both = zip(snapshot.schema.names, columns, strict=True)
    return {stored: logical for stored, logical in both if stored != logical and stored not in columns}


class Evolution:
    """What one stream, or one replay, may do to the schema of its table. ``reason``: for the table's history."""

    def __init__(self, log: TableLog, alter: _Alter, reason: str) -> None:
        self._log = log
        self._alter = alter
        self._reason = reason
        self._refused: frozenset[str] = frozenset()
        self._refused_for: pa.Schema | None = None

    @property
    def refused(self) -> frozenset[str]:
        """Paths that the table refused to change."""
        return self._refused

    def gave_up(self) -> Retry:
        """The error after ``ROUNDS_MAX`` rounds, in which others kept changing the table."""
        root = self._log.root
        return Retry(
            f"the schema of {root} changed {ROUNDS_MAX} times while a batch was read; try it again", table=root
        )

    def bound(self, decoder: Decoder, snapshot: Snapshot) -> Decoder:
        """The decoder for the table as it is at a version."""
        columns, settings = snapshot.logical_schema, snapshot.logical_settings
        if self._refused_for is not None and not columns.equals(self._refused_for):
            self._refused, self._refused_for = frozenset(), None
        policy = replace(decoder.decoder_schema.policy, refused=self._refused)
        order = order_of_stream(policy.fills, settings, columns.names)
        wanted = DecoderSchema.of_table(columns, settings.keys, order, policy, first_names(snapshot))
        counts_rows = not write_spec_of(snapshot).combines_changes
        wanted = replace(wanted, source=decoder.decoder_schema.source, counts_rows=counts_rows)
        fields_got_columns(self._log, snapshot, wanted.column_of)
        return decoder if wanted == decoder.decoder_schema else decoder.bound_to(wanted)

    def evolve(self, snapshot: Snapshot, needed: SchemaChange) -> Snapshot:
        """Alter the table; returns the newest snapshot. Raises what ``_Alter`` raises for another reason than a refusal."""
        self._alter_as_far_as_possible(needed)
        newest = self._log.refresh()
        if newest.logical_schema.equals(snapshot.logical_schema):
            self._refused |= {path for path, _ in pieces_of(needed)}
            self._refused_for = newest.logical_schema
        return newest

    def _alter_as_far_as_possible(self, needed: SchemaChange) -> None:
        try:
            self._alter(needed, self._reason)
            return
        except (InvalidInput, Unsupported):
            pass  # the pieces say which of them it is
        for _, piece in pieces_of(needed):
            try:
                self._alter(piece, self._reason)
            except (InvalidInput, Unsupported) as error:
                _logger.warning("%s can't be changed as its records need it: %s", self._log.root, error)


def evolved(
    given: pa.Schema, known: Sequence[str], snapshot: Snapshot, policy: EvolvePolicy, evolution: Evolution
) -> Snapshot:
    """Alter the table as the policy allows and the rows need; returns the newest version.

    ``given``: the columns of the rows; ``known``: those of them that are meant for the table.
    """
    fields = [pa.field(one.name, _canonical(one)) for one in given if one.name in known]
    record = pa.schema([one if pa.types.is_null(one.type) else one.with_nullable(False) for one in fields])
    for _ in range(ROUNDS_MAX if policy.allowed else 0):
        allowed = replace(policy, refused=evolution.refused)
        settings = snapshot.logical_settings
        never_null = [*settings.keys, settings.sequence_by or ""]
        change = needed(snapshot.logical_schema, record, allowed, never_null).change
        if change is None:
            return snapshot
        snapshot = evolution.evolve(snapshot, change)
    if policy.allowed:
        raise evolution.gave_up()
    return snapshot


def with_rescued_column(snapshot: Snapshot, evolution: Evolution) -> Snapshot:
    """The table with a column for what is rescued. Raises InvalidSchema if it can't have one."""
    if RESCUED_COLUMN not in snapshot.logical_schema.names:
        snapshot = evolution.evolve(snapshot, SchemaChange(add={RESCUED_COLUMN: pa.string()}))
    at = snapshot.logical_schema.get_field_index(RESCUED_COLUMN)
    if at < 0 or snapshot.logical_schema.field(at).type != pa.string():
        raise InvalidSchema(
            f"column {RESCUED_COLUMN!r}: on_mismatch: rescue keeps values in it as JSON; make it a string"
        )
    return snapshot


def _canonical(field: pa.Field) -> pa.DataType:
    """The type that a column for these values would have; Arrow's type of nulls if there is none."""
    try:
        return nullable(canonical_type(field.type, field.name))
    except InvalidSchema:
        return pa.null()


# -- What does not come into a table: batches that are refused or came too late, and records that are set aside ------------
#
# The files of such batches are deleted at once. Other attempts that end without a commit (a crash, a store that does not
# answer) leave files that no log refers to. A cleanup of the table deletes these; but a table whose records are refused has no
# quarantine, so nobody would clean up in its folder.
#
# Records that can't become rows are committed to the quarantine table (``set_aside``).


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
