"""Change rows of an upstream table as changes of this one.

1. The upstream's columns are compared with the table's, as those of records with a schema are (``schema_evolution``).
2. A truncate empties the table, and rows of earlier versions are left out. The order is exact: a table is one topic of one
   partition, and the offset of a row is its version.
3. A row that does not fit goes to the quarantine as JSON, or what fits of it comes in (``on_mismatch``).

What orders the changes may be a column, or what the rows say besides (``sequences``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.decode.decoder import Decoded, DecoderSchema
from lakebed.decode.row_changes import fitting, quarantined_rows
from lakebed.decode.row_evolution import completed, names_in_rows, rescued, under_their_names
from lakebed.errors import InvalidChanges
from lakebed.parts.changes import DELETE, OP_COLUMN, UPSERT, WriteSpec
from lakebed.positions.truncates import NO_CUTOFF, Cutoff, Truncate
from lakebed.remarks import Remark, remarks_on
from lakebed.schema.change import SchemaChange
from lakebed.schema.change_names import ChangeNames
from lakebed.schema.fitting import RESCUED_COLUMN
from lakebed.sources.upstream.records import SEQUENCE, TIME, TYPE, columns_in, rows_in
from lakebed.storage.engine import connect


def sequences(columns: Iterable[str]) -> tuple[str, ...]:
    """Names that ``sequence_by`` may have besides those of the upstream's columns."""
    names = ChangeNames.beside(columns)
    return names.sequence, names.version, names.time


def _besides(sequence_by: str) -> str | None:
    """The member of a record that a name of these means, whatever columns the upstream got since; None for another name."""
    members = dict(zip(sequences(()), (SEQUENCE, "offset", TIME), strict=True))
    return members.get("_" + sequence_by.lstrip("_"))


@dataclass(frozen=True, slots=True)
class ChangeRows:
    """The decoder of change rows; records are as ``records_of`` makes them."""

    decoder_schema: DecoderSchema

    def bound_to(self, decoder_schema: DecoderSchema) -> ChangeRows:
        return ChangeRows(decoder_schema)

    def schema_needed(self, records: pa.Table) -> SchemaChange | None:
        return self.decoder_schema.needed(columns_in(records)).change

    def decode(self, records: pa.Table, cutoff: Cutoff = NO_CUTOFF) -> Decoded:
        if (change := self.schema_needed(records)) is not None:
            return Decoded.needing(change, self.decoder_schema)
        is_truncate = pc.equal(records[TYPE], "truncate")
        truncates = [_truncate(place) for place in records.filter(is_truncate).to_pylist()]
        new = tuple(one for one in truncates if not _is_known(one, cutoff))
        rows = records.filter(pc.invert(is_truncate))
        late = _before_a_truncate(rows, cutoff)
        rows = rows.filter(pa.array(~late))
        changes, unknown = self._changes(rows)
        if RESCUED_COLUMN in changes.column_names and self._lacks_rescued(changes[RESCUED_COLUMN]):
            return Decoded.needing(SchemaChange(add={RESCUED_COLUMN: pa.string()}), self.decoder_schema)
        try:
            good, reasons = fitting(changes, self._spec, connect(threads=1))
        except InvalidChanges as error:  # no row of these columns fits
            good = self.decoder_schema.change_schema().empty_table()
            reasons = [(row, str(error)) for row in range(len(rows))]
        return Decoded(
            changes=good,
            quarantined=quarantined_rows(rows, changes.drop_columns([OP_COLUMN]), reasons, TIME),
            truncates=new,
            event_time_max=pc.max(rows[TIME].cast(pa.int64())).as_py() if len(rows) else None,
            ignored=len(truncates) - len(new),
            truncated=int(late.sum()),
            remarks=remarks_on(Remark.UNKNOWN_FIELD, dict.fromkeys(unknown, len(rows)) if len(rows) else {}),
            mismatched=len(reasons),
            mismatch=reasons[0][1] if reasons else "",
        )

    def _lacks_rescued(self, texts: pa.ChunkedArray) -> bool:
        """Whether the table lacks the column for what was rescued."""
        mine = self.decoder_schema
        return mine.policy.rescues and not mine.has_rescued and texts.null_count < len(texts)

    @property
    def _spec(self) -> WriteSpec:
        """The shape of the table's rows, as far as ``prepare`` needs it."""
        mine = self.decoder_schema
        columns = mine.columns.append(pa.field(RESCUED_COLUMN, pa.string())) if mine.policy.rescues else mine.columns
        return WriteSpec(schema=columns, keys=mine.keys, sequence_by=mine.sequence_by)

    def _changes(self, records: pa.Table) -> tuple[pa.Table, tuple[str, ...]]:
        """The rows under the names of the table's columns, with their operation; and the columns that nothing takes."""
        mine, spec = self.decoder_schema, self._spec
        rows = rows_in(records)
        given = rows.column_names
        renamed = {old: name for old, name in mine.first_names.items() if name not in given and old in mine.column_of}
        rows = rows.rename_columns([renamed.get(name, name) for name in given])
        sent = names_in_rows(mine.columns.names, rows.column_names, mine.policy).values()
        unknown = tuple(name for name in rows.column_names if name not in sent)
        rows = under_their_names(rows, spec, mine.policy)
        if mine.policy.rescues:
            rows, texts = rescued(rows, replace(spec, schema=mine.columns), unknown)
            rows, unknown = rows.append_column(RESCUED_COLUMN, texts), ()
        rows = completed(rows, spec)
        sequence = mine.sequence_metadata
        if sequence is not None and (besides := _besides(sequence)) is not None:
            rows = rows.drop_columns([sequence]) if sequence in rows.column_names else rows
            rows = rows.append_column(sequence, records[besides])
        operations = pc.if_else(pc.equal(records[TYPE], "delete"), DELETE, UPSERT)
        return rows.append_column(OP_COLUMN, operations), unknown


def _truncate(record: dict[str, Any]) -> Truncate:
    return Truncate(topic=record["topic"], partition=record["partition"], offset=record["offset"])


def _is_known(truncate: Truncate, cutoff: Cutoff) -> bool:
    """Whether an earlier batch has applied this truncate, or a later one."""
    offsets = [one.offset for one in cutoff.known if one.topic == truncate.topic and one.offset is not None]
    return truncate.offset is not None and max(offsets, default=-1) >= truncate.offset


def _before_a_truncate(records: pa.Table, cutoff: Cutoff) -> np.ndarray[Any, np.dtype[np.bool_]]:
    late = np.zeros(len(records), bool)
    for one in (*cutoff.known, *cutoff.new):
        if one.offset is not None:
            before = pc.and_(pc.equal(records["topic"], one.topic), pc.less(records["offset"], one.offset))
            late |= np.asarray(before, dtype=bool)
    return late
