"""Message keys whose schema is known: where a row lacks its key, the key of its record has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pyarrow as pa

from lakebed.ingest.debezium.connect_types import PLAIN, LogicalType
from lakebed.ingest.debezium.message_key import MessageKey, message_key
from lakebed.ingest.headers import KEY_SCHEMA
from lakebed.ingest.json.text import Unreadable
from lakebed.ingest.slices import Record
from lakebed.ingest.typed.schemas import Group, Schemas
from lakebed.ingest.typed.values import json_value, plain_logical, plain_values

KeySchemas = Schemas | Literal["json", "none"] | None
"""What message keys are read by; ``none``: they are no keys of the table; None: nobody said how to read them."""


class MessageKeys:
    """Reads the keys of records. ``names``: the key columns of the table."""

    def __init__(self, schemas: KeySchemas, names: tuple[str, ...]) -> None:
        self._schemas = schemas
        self._names = names

    def read(
        self, keys: pa.BinaryArray, headers: pa.BinaryArray | None
    ) -> Iterator[tuple[Group, dict[str, pa.Array], dict[str, LogicalType]]]:
        """Groups of keys that are without errors, as columns with their logical types. Keys with errors are left out.

        ``headers``: what a header of each record says of its key's schema.
        """
        if self._schemas is None or isinstance(self._schemas, str):
            return
        for group in self._schemas.grouped(keys, headers).groups:
            read = group.reader.read(group.payload)
            if read.errors:
                continue
            names = self._named(read.rows.schema.names)
            logical = {self._named([name])[0]: kind for name, kind in group.reader.logical_types.items()}
            yield group, dict(zip(names, read.rows.columns, strict=True)), logical

    def of(self, record: Record) -> MessageKey | None:
        """As ``message_key``. Raises ``Unreadable``."""
        if self._schemas == "none" or record.key is None:
            return None
        if self._schemas is None:
            raise Unreadable("message key: it has no schema; set format.key_schema_file, or key_format: json or none")
        if self._schemas == "json":
            return message_key(record, self._names)
        header = pa.array([record.headers.get(KEY_SCHEMA)], pa.binary())
        grouped = self._schemas.grouped(pa.array([record.key], pa.binary()), header)
        for reason in grouped.errors.values():
            raise Unreadable(f"message key: {reason}")
        reader = grouped.groups[0].reader
        read = reader.read(grouped.groups[0].payload)
        for reason in read.errors.values():
            raise Unreadable(f"message key: {reason}")
        names = self._named(read.rows.schema.names)
        columns = [plain_values(column) for column in read.rows.columns]
        values = [json_value(column[0].as_py(), column.type) for column in columns]
        kinds = [plain_logical(f.type, reader.logical_types.get(f.name, PLAIN)) for f in read.rows.schema]
        is_bare = names != read.rows.schema.names
        return MessageKey(dict(zip(names, values, strict=True)), dict(zip(names, kinds, strict=True)), is_bare)

    def _named(self, names: list[str]) -> list[str]:
        """The names of the fields. A key that is one value, not a record of fields, is the table's only key."""
        return list(self._names) if names == ["value"] and len(self._names) == 1 else names
