"""Rows in place of records: what readers of files with columns and of other tables yield, and their decoders.

**Records of rows.** A record has its place, what a change row says besides its columns, and ``row``: a struct of the upstream's
columns under the names that they have now, as nullable as they are there. Users' names are within the struct only, so they
never meet the others.

**Files** (``FileRows``, ``CsvLines``): the rows of Parquet files, and lines of CSV for Spark.

**Change rows** of an upstream table (``ChangeRows``).

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
from lakebed.decode.row_changes import completed, fitting, names_in_rows, quarantined_rows, rescued, under_their_names
from lakebed.errors import InvalidChanges
from lakebed.parts.changes import DELETE, OP_COLUMN, UPSERT, WriteSpec
from lakebed.parts.quarantine import QUARANTINE_SCHEMA
from lakebed.positions.truncates import NO_CUTOFF, Cutoff, Truncate
from lakebed.remarks import Remark, remarks_on
from lakebed.schema.change import SchemaChange
from lakebed.schema.conversion import ChangeNames
from lakebed.schema.fitting import RESCUED_COLUMN
from lakebed.storage.engine import connect

_USUAL = ChangeNames()
TYPE, SEQUENCE, TIME = _USUAL.type, _USUAL.sequence, _USUAL.time
"""What a change row says besides its columns (``parts.change_rows``), under the usual names."""
ROW = "row"
PARTITION = 0
"""A table is a topic, and the offset of its records is their version."""
WHOLE = 1
"""The partition of the whole table: what is read of it at most once is the table at one version, with which a layer begins."""


def records_of(rows: pa.Table, columns: pa.Schema, topic: str) -> pa.Table:
    """Change rows of one version as records. ``columns``: those of the upstream."""
    count, names = len(rows), ChangeNames.beside(columns.names)
    struct = pa.StructArray.from_arrays([rows[field.name].combine_chunks() for field in columns], fields=list(columns))
    return pa.table(
        {
            "topic": pa.repeat(pa.scalar(topic), count),
            "partition": pa.repeat(pa.scalar(PARTITION, pa.int32()), count),
            "offset": rows[names.version],
            TYPE: rows[names.type],
            SEQUENCE: rows[names.sequence] if names.sequence in rows.column_names else pa.nulls(count, pa.int64()),
            TIME: rows[names.time],
            ROW: struct,
        }
    )


def rows_in(records: pa.Table) -> pa.Table:
    """The upstream's columns of records."""
    chunks = [pa.Table.from_struct_array(chunk) for chunk in records[ROW].chunks]
    return pa.concat_tables(chunks) if chunks else _columns_in(records).empty_table()


def _columns_in(records: pa.Table) -> pa.Schema:
    """The upstream's columns."""
    return pa.schema(list(records.schema.field(ROW).type))


@dataclass(frozen=True, slots=True)
class FileRows:
    """The decoder of rows with their place. A row that does not fit goes to the quarantine.

    ``for_spark``: the rows go on to Spark and are checked after that, so what has the types already is left alone.
    """

    decoder_schema: DecoderSchema
    for_spark: bool = False

    def bound_to(self, decoder_schema: DecoderSchema) -> FileRows:
        return FileRows(decoder_schema, self.for_spark)

    def schema_needed(self, records: pa.Table) -> SchemaChange | None:
        return None

    def decode(self, records: pa.Table, cutoff: Cutoff = NO_CUTOFF) -> Decoded:
        mine = self.decoder_schema
        spec = WriteSpec(schema=mine.columns, keys=mine.keys, sequence_by=mine.sequence_by)
        rows = rows_in(records)
        if self.for_spark and rows.column_names == mine.columns.names and rows.schema.types == mine.columns.types:
            return Decoded(changes=rows, quarantined=QUARANTINE_SCHEMA.empty_table())
        given = rows.column_names
        renamed = {old: name for old, name in mine.first_names.items() if name not in given}
        rows = completed(rows.rename_columns([renamed.get(name, name) for name in given]), spec)
        try:
            good, reasons = fitting(rows, spec, connect(threads=1))
        except InvalidChanges as error:  # no row of these columns fits
            good = mine.change_schema().empty_table()
            reasons = [(row, str(error)) for row in range(len(rows))]
        unknown = [name for name in rows.column_names if name not in (*mine.columns.names, mine.sequence_by)]
        return Decoded(
            changes=good,
            quarantined=quarantined_rows(records, rows, reasons, TIME),
            remarks=remarks_on(Remark.UNKNOWN_FIELD, dict.fromkeys(unknown, len(rows))),
            mismatched=len(reasons),
            mismatch=reasons[0][1] if reasons else "",
        )


@dataclass(frozen=True, slots=True)
class CsvLines:
    """Passes lines on to Spark, which parses them (``ingest.transform_files``)."""

    decoder_schema: DecoderSchema

    def bound_to(self, decoder_schema: DecoderSchema) -> CsvLines:
        return CsvLines(decoder_schema)

    def schema_needed(self, records: pa.Table) -> SchemaChange | None:
        return None

    def decode(self, records: pa.Table, cutoff: Cutoff = NO_CUTOFF) -> Decoded:
        return Decoded(changes=records, quarantined=QUARANTINE_SCHEMA.empty_table())


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
        return self.decoder_schema.needed(_columns_in(records)).change

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
