"""Turn what ``reader`` yields of files with columns into changes: the rows of Parquet files, and lines of CSV for Spark."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from lakebed.decode.decoder import Decoded, DecoderSchema
from lakebed.decode.row_changes import fitting, quarantined_rows
from lakebed.decode.row_evolution import completed
from lakebed.errors import InvalidChanges
from lakebed.parts.changes import WriteSpec
from lakebed.parts.quarantine import QUARANTINE_SCHEMA
from lakebed.positions.truncates import NO_CUTOFF, Cutoff
from lakebed.remarks import Remark, remarks_on
from lakebed.schema.change import SchemaChange
from lakebed.sources.upstream.records import TIME, rows_in
from lakebed.storage.engine import connect


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
    """Passes lines on to Spark, which parses them (``transform.rows_of_files``)."""

    decoder_schema: DecoderSchema

    def bound_to(self, decoder_schema: DecoderSchema) -> CsvLines:
        return CsvLines(decoder_schema)

    def schema_needed(self, records: pa.Table) -> SchemaChange | None:
        return None

    def decode(self, records: pa.Table, cutoff: Cutoff = NO_CUTOFF) -> Decoded:
        return Decoded(changes=records, quarantined=QUARANTINE_SCHEMA.empty_table())
