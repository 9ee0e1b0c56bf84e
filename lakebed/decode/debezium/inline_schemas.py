"""The inline schemas that Kafka Connect's JSON converter writes before the payload of each record, and what they say of rows.

**Records of one schema** are found by their text (``InlineSchemas``), which is a common prefix of the records. The prefix is
parsed once, and what is left of a record is its payload and a brace.

**The columns** that rows would get are compared with those of a table (``row_of_envelope``).

A type holds every value that its schema allows, as ``json.values`` reads it: dates are dates, moments are timestamps (their
numbers count from 1970 in UTC, also where the source has no zone), times of day and decimals of any scale are texts.

**How fields are read** for a table follows from the schema of their events (``RowSchemas``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.decode.debezium.old_rows import RowFields, row_fields
from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.json.columns import MISSES, Missed
from lakebed.decode.json.connect_types import SCHEMA_LEVELS_MAX, Kind, LogicalType, connect_fields, logical_type_of
from lakebed.decode.json.text import DECODER, Unreadable, is_unicode
from lakebed.decode.json.values import JsonOptions
from lakebed.decode.unknown_fields import KnownFields
from lakebed.positions.source_columns import RecordColumns
from lakebed.schema.change import SchemaChange
from lakebed.schema.fitting import ANY_PRECISION
from lakebed.schema.possible_columns import FieldPath, described

_SCHEMA_FIRST = b'{"schema":'
_SCHEMAS_PER_SLICE_MAX = 4
SCHEMAS_KEPT_MAX = 64
_PAYLOAD_NEXT = re.compile(r'[ \t\n\r]*,[ \t\n\r]*"payload"[ \t\n\r]*:[ \t\n\r]*')

S = TypeVar("S")
_Mask = np.ndarray[Any, Any]


class InlineSchemas(Generic[S]):
    """What is kept for each inline schema; ``made`` makes it of the parsed schema. For records without one it is ``none``."""

    def __init__(self, none: S, made: Callable[[Any], S]) -> None:
        self.none = none
        self._made = made
        self._kept: dict[bytes, S] = {}

    def groups(self, values: pa.BinaryArray, present: _Mask) -> list[tuple[bytes, S, _Mask]]:
        """Row numbers, grouped by the prefix that holds their schema. Rows in no group are read one by one."""
        inline = _have_schema(values)
        if not inline.any():
            return [(b"", self.none, np.flatnonzero(present))] if present.any() else []
        groups = []
        plain = present & ~inline
        if plain.any():
            groups.append((b"", self.none, np.flatnonzero(plain)))
        for _ in range(_SCHEMAS_PER_SLICE_MAX):
            if not inline.any():
                break
            prefix, source = self._of(values[int(np.argmax(inline))].as_py())
            same = inline & _begin_with(values, prefix) & np.asarray(pc.fill_null(pc.ends_with(values, b"}"), False))
            if not same.any():
                break
            groups.append((prefix, source, np.flatnonzero(same)))
            inline &= ~same
        return groups

    def all_of(self, values: pa.BinaryArray) -> list[tuple[int, S]]:
        """The first record of each schema, and what is kept for it, as far as they are found quickly and can be read."""
        found, inline = [], _have_schema(values).copy()
        for _ in range(SCHEMAS_KEPT_MAX):
            if not inline.any():
                break
            first = int(np.argmax(inline))
            inline[first] = False
            try:
                prefix, source = self._of(values[first].as_py())
            except MISSES:
                continue
            found.append((first, source))
            inline &= ~_begin_with(values, prefix)
        return found

    def _of(self, value: bytes) -> tuple[bytes, S]:
        """The part of a value before its payload, and what is kept for the schema in it."""
        for prefix, source in self._kept.items():
            if value.startswith(prefix):
                return prefix, source
        text = value.decode("utf-8")
        schema, end = DECODER.raw_decode(text, len(_SCHEMA_FIRST))
        payload = _PAYLOAD_NEXT.match(text, end)
        if payload is None:
            raise Missed("no payload after the schema")
        prefix = text[: payload.end()].encode()
        if len(self._kept) >= SCHEMAS_KEPT_MAX:
            self._kept.clear()
        source = self._kept[prefix] = self._made(schema)
        return prefix, source


def payloads_of(values: pa.BinaryArray, prefix: bytes) -> pa.BinaryArray:
    """The payloads of records that begin with a prefix."""
    return pc.binary_slice(values, len(prefix), -1) if prefix else values


def _have_schema(values: pa.BinaryArray) -> _Mask:
    return _begin_with(values, _SCHEMA_FIRST)


def _begin_with(values: pa.BinaryArray, prefix: bytes) -> _Mask:
    return np.array(pc.fill_null(pc.starts_with(values, prefix), False))


_PRECISION = "connect.decimal.precision"
_PRECISION_MAX = 38
_TYPES = {
    "int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64(),
    "float": pa.float32(), "float32": pa.float32(), "double": pa.float64(), "float64": pa.float64(),
    "boolean": pa.bool_(), "string": pa.string(), "bytes": pa.binary(),
}  # fmt: skip


def row_of_envelope(schema: Any) -> pa.Schema | None:
    """The columns of a table's rows, from the inline schema of its change events; None if the schema has no rows.

    A field whose schema no column can have has Arrow's type of nulls. Raises ``Unreadable``.
    """
    images = {one["field"]: one for one in connect_fields(schema)}
    for side in ("after", "before"):
        if side in images and connect_fields(images[side]):
            return pa.schema([_field(one, 0) for one in connect_fields(images[side])])
    return None


def column_type(natural: pa.DataType, logical_type: LogicalType) -> pa.DataType:
    """The type of a column for values of a natural type and a logical one, such as an int64 that counts microseconds."""
    match logical_type.kind:
        case Kind.DATE_DAYS:
            return pa.date32()
        case Kind.TIME_MS | Kind.TIME_US | Kind.TIME_NS | Kind.DECIMAL_VARIABLE:
            return pa.string()
        case Kind.TIMESTAMP_MS | Kind.TIMESTAMP_US | Kind.TIMESTAMP_NS | Kind.TIMESTAMP_TEXT:
            return pa.timestamp("us", "UTC")
        case Kind.DECIMAL_BYTES:
            if pa.types.is_decimal(natural):
                return natural
            return pa.decimal128(_PRECISION_MAX, logical_type.scale) if 0 <= logical_type.scale <= 38 else pa.string()
        case Kind.BYTES:
            return pa.binary()
    if pa.types.is_struct(natural):
        return pa.struct([one.with_type(column_type(one.type, logical_type.of_field(one.name))) for one in natural])
    if pa.types.is_list(natural):
        return pa.list_(natural.value_field.with_type(column_type(natural.value_type, logical_type.of_item())))
    if pa.types.is_map(natural):
        item = natural.item_field.with_type(column_type(natural.item_type, logical_type.of_item()))
        return pa.map_(natural.key_type, item)
    if pa.types.is_timestamp(natural):
        return pa.timestamp("us", "UTC")
    return pa.binary() if pa.types.is_fixed_size_binary(natural) else natural


def _field(schema: Mapping[str, Any], level: int, name: str = "") -> pa.Field:
    name = name or schema["field"]
    if not is_unicode(name):
        raise Unreadable("its inline schema can't be read: the name of a field holds half of a surrogate pair")
    nullable = schema.get("optional") is True
    parameters = schema.get("parameters")
    given = parameters.get(_PRECISION) if isinstance(parameters, Mapping) else None
    logical_type = logical_type_of({**schema, "fields": []} if schema.get("type") == "struct" else schema)
    if logical_type.kind is Kind.DECIMAL_BYTES:
        kind = column_type(pa.binary(), logical_type)
        if str(given).isdecimal() and pa.types.is_decimal(kind):
            precision = int(str(given))
            fits = logical_type.scale <= precision <= _PRECISION_MAX
            return pa.field(name, pa.decimal128(precision, logical_type.scale) if fits else pa.string(), nullable)
        return pa.field(name, kind, nullable, ANY_PRECISION)
    kind = _type(schema, logical_type, level)
    return pa.field(name, kind, nullable or pa.types.is_null(kind))


def _type(schema: Mapping[str, Any], logical_type: LogicalType, level: int) -> pa.DataType:
    if level >= SCHEMA_LEVELS_MAX:
        raise Unreadable("its inline schema can't be read: it is nested too deep")
    known = column_type(pa.null(), logical_type)
    if not pa.types.is_null(known):
        return known
    match schema.get("type"):
        case "struct":
            fields = [_field(one, level + 1) for one in connect_fields(schema)]
            return pa.struct(fields) if fields else pa.null()
        case "array":
            return pa.list_(_inner(schema.get("items"), "element", level))
        case "map":
            keys, values = schema.get("keys"), _inner(schema.get("values"), "value", level)
            has_texts = isinstance(keys, Mapping) and keys.get("type") == "string"
            return pa.map_(pa.string(), values) if has_texts else pa.null()
        case str() as name:
            return _TYPES.get(name, pa.null())
    return pa.null()


def _inner(schema: Any, name: str, level: int) -> pa.Field:
    if not isinstance(schema, Mapping):
        raise Unreadable(f"its inline schema can't be read: the schema of an {name} is not an object")
    return _field(schema, level + 1, name)


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
