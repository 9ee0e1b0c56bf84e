"""How the fields of rows are read for a table, by the inline schema of their events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from lakebed.decode.debezium.connect_schema import row_of_envelope
from lakebed.decode.debezium.inline_schemas import SCHEMAS_KEPT_MAX
from lakebed.decode.debezium.old_rows import RowFields, row_fields
from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.json.values import JsonOptions
from lakebed.decode.unknown_fields import KnownFields
from lakebed.positions.source_columns import RecordColumns
from lakebed.schema.change import SchemaChange
from lakebed.schema.possible_columns import FieldPath, described

CHANGES = ("c", "r", "u", "d")
"""The operations that change a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldsRead:
    """How the fields of rows with one schema are read, or of all rows without a schema."""

    decoder_schema: DecoderSchema
    """With the columns of fields whose names differ by case alone."""
    known: KnownFields | None
    """None where members that no column takes are ignored."""
    left_out: tuple[str, ...] = ()
    """Fields that no column can be like, each with the reason."""
    needed: SchemaChange | None = None
    """What the table must become before the rows can be read."""
    said: RowFields | None = None
    """What the schema says of them, by column; None if nobody knows."""
    columns: RecordColumns | None = None
    """What the schema says of the table's columns."""


class RowSchemas:
    """Keeps this for each inline schema."""

    def __init__(self, decoder_schema: DecoderSchema, options: JsonOptions) -> None:
        self._decoder_schema = decoder_schema
        self._options = options
        self._known = None if options.unknown_fields == "ignore" else self._known_fields()
        self._without_schema = FieldsRead(decoder_schema=decoder_schema, known=self._known)
        self._kept: dict[str, FieldsRead] = {}

    def of(self, schema: Any) -> FieldsRead:
        """For a parsed schema, or None. Raises ``Unreadable``."""
        if schema is None:
            return self._without_schema
        text = repr(schema)
        if text not in self._kept:
            if len(self._kept) >= SCHEMAS_KEPT_MAX:
                self._kept.clear()
            row = row_of_envelope(schema)
            fields = self._without_schema if row is None else self._of_row(row)
            if (said := row_fields(schema)) is not None:
                said = said.by_column(fields.decoder_schema)
                columns = self._decoder_schema.columns_in(said.names, said.filled)
                fields = replace(fields, said=said, columns=columns)
            self._kept[text] = fields
        return self._kept[text]

    def _of_row(self, row: pa.Schema) -> FieldsRead:
        unknown_fields, policy = self._options.unknown_fields, self._decoder_schema.policy
        if unknown_fields != "warn":  # no column is made of fields that are left out, or sent to the quarantine
            policy = replace(policy, allowed=policy.allowed - {"add"})
        needed = replace(self._decoder_schema, policy=policy).needed(row)
        left_out = needed.left_out if unknown_fields == "warn" and not policy.rescues else {}
        return FieldsRead(
            decoder_schema=self._decoder_schema.reading(row.names, declared=True),
            known=self._known_fields(left_out) if left_out else self._known,
            left_out=described(left_out),
            needed=needed.change,
        )

    def _known_fields(self, left_out: Iterable[FieldPath] = ()) -> KnownFields:
        return KnownFields(
            self._decoder_schema.columns, self._options.placeholder, self._decoder_schema.kept, left_out=left_out
        )


def row_of(event: Any) -> dict[str, Any] | None:
    """The row of a parsed event that changes one: ``after``, or else ``before``; None if it has none."""
    if not isinstance(event, dict) or event.get("op") not in CHANGES:
        return None
    for side in ("after", "before"):
        if isinstance(event.get(side), dict):
            row: dict[str, Any] = event[side]
            return row
    return None
