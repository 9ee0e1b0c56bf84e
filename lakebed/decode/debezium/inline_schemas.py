"""The inline schemas that Kafka Connect's JSON converter writes before the payload of each record, and what they say of rows.

**Records of one schema** are found by their text (``InlineSchemas``), which is a common prefix of the records. The prefix is
parsed once, and what is left of a record is its payload and a brace.

**The columns** that rows would get are compared with those of a table (``row_of_envelope``).

A type holds every value that its schema allows, as ``json.values`` reads it: dates are dates, moments are timestamps (their
numbers count from 1970 in UTC, also where the source has no zone), times of day and decimals of any scale are texts.

**How fields are read** for a table follows from the schema of their events (``RowSchemas``).

**Old rows.** Which values of an event's old row (``before``) were sent, and which the connector filled in.

Of a row that is deleted, or whose key changes, PostgreSQL sends the columns of the table's replica identity: those of the primary
key, those of another index, or all. Debezium writes null for each other column or, if that may not be null, its default or else a
zero: 0, false, "", 1970-01-01. Such a *filling* looks like a value that was sent. The rules never take it for one:

    1.  A value that is neither a zero nor a default was sent.
    2.  A row is *whole* if all of it was sent. Other databases than PostgreSQL send whole rows. Else a column shows it that has a
        value though it may be null, since neither a primary key nor the index of a replica identity has such columns. Where the
        defaults are not known, nothing shows it.
    3.  A zero was sent if the row is whole, or if its column is in the message key. But if the message key has zeros alone, and
        another column has a value, then the replica identity is another index, and the message key was filled in too.
    4.  Without a message key that names its fields, the key of the table stands for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.json.columns import MISSES, Missed
from lakebed.decode.json.connect_types import SCHEMA_LEVELS_MAX, Kind, LogicalType, connect_fields, logical_type_of
from lakebed.decode.json.text import DECODER, Number, Unreadable, is_unicode
from lakebed.decode.json.values import JsonOptions
from lakebed.decode.source_order import ORDERS
from lakebed.decode.unknown_fields import KnownFields
from lakebed.positions.source_columns import RecordColumns
from lakebed.remarks import Remark
from lakebed.schema.change import SchemaChange
from lakebed.schema.fitting import ANY_PRECISION, FieldPath, described
from lakebed.settings import suggest

SEND_WHOLE_ROWS = ("mysql", "mariadb", "sqlserver", "oracle", "db2", "informix")
"""Connectors of databases whose events have whole old rows."""
_ZEROS = (
    r"|[+-]?0+(?:\.0*)?|0?0:00(?::00(?:\.0+)?)?(?:Z|[+-]00(?::?00)?)?|\{\}|\[\]|P0Y0M0DT0H0M0(?:\.0+)?S"
    r"|1970-01-01(?:[T ]00:00(?::00(?:\.0+)?)?(?:Z|[+-]00(?::?00)?)?)?"
)
"""Texts for zeros of other types."""
_ZERO_TEXT = re.compile(_ZEROS, re.ASCII)
_ZERO_BYTES = re.compile(r"AA==|AQEAAA[A=]+|\0+", re.ASCII)
"""Decimals and the point 0 0 as base64, and bytes as they are."""


class UnsentKey(Unreadable):
    """A change that may be about another row than it says."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(reason)
        self.remarks = ((Remark.UNSENT_KEY, column),)


class UnorderedDelete(Unreadable):
    """A delete without the column that orders the changes of the table."""

    def __init__(self, column: str, why: str) -> None:
        super().__init__(
            f"a delete {why} column {column!r}, which orders the changes (sequence_by): send whole old rows "
            "(REPLICA IDENTITY FULL), or order by what every change carries, such as source.lsn"
        )
        self.remarks = ((Remark.UNORDERED_DELETE, column),)


class Unordered(Unreadable):
    """A change without the metadata that orders the changes of the table, at ``path``; ``members``: what is beside it."""

    def __init__(self, path: tuple[str, str], members: Mapping[str, Any]) -> None:
        name = ".".join(filter(None, path))
        needs = ORDERS[path].needs if path in ORDERS else ""
        near = "" if path[1] in members else suggest(path[1], [str(member) for member in members])
        super().__init__(f"sequence_by {name!r}{needs} is null, missing or not an integer{near}")
        if path[1] not in members and path[0] != "kafka":
            self.remarks = ((Remark.UNORDERED_CHANGE, f"{name}{near}"),)


ANY_VALUE = object()
"""A default that no value can be compared with."""


@dataclass(frozen=True, slots=True)
class RowFields:
    """What the schema of events says of the columns of rows."""

    names: frozenset[str] = frozenset()
    nullable: frozenset[str] = frozenset()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Of those whose default is no zero."""
    filled: frozenset[str] = frozenset()
    """Those that have a value in every row, since they may not be null or have a default."""

    @staticmethod
    def given(nullable: Mapping[str, bool], defaults: Mapping[str, Any]) -> RowFields:
        """``nullable``: of every field, whether it may be null; ``defaults``: of those that have one."""
        return RowFields(
            frozenset(nullable),
            frozenset(name for name, may_be_null in nullable.items() if may_be_null),
            {name: one for name, one in defaults.items() if not is_zero(one)},
            frozenset(name for name, may_be_null in nullable.items() if not may_be_null or name in defaults),
        )

    def by_column(self, decoder_schema: DecoderSchema) -> RowFields:
        """Under the names of the columns that fields go to."""
        names, nullable, filled = (
            frozenset(decoder_schema.column_for(name) or name for name in some)
            for some in (self.names, self.nullable, self.filled)
        )
        return RowFields(names, nullable, decoder_schema.types_by_column(self.defaults), filled)

    def is_default(self, column: str, value: Any) -> bool:
        """Whether a parsed value may be the default of its column."""
        default = self.defaults.get(column)
        if isinstance(default, Number) and isinstance(value, Number):
            return default.text == value.text
        return default is not None and (default is ANY_VALUE or bool(default == value))


def _row_fields(schema: Any) -> RowFields | None:
    """The fields of rows in an inline schema of events; None if it does not say them. Raises ``Unreadable``."""
    images = {one["field"]: one for one in connect_fields(schema)}
    for side in ("before", "after"):
        if side in images and (fields := connect_fields(images[side])):
            return RowFields.given(
                {one["field"]: one.get("optional") is True for one in fields},
                {one["field"]: one["default"] for one in fields if one.get("default") is not None},
            )
    return None


@dataclass(frozen=True)
class OldRow:
    """An old row, to be asked which of its values were sent."""

    values: Mapping[str, Any]
    """As parsed, by column, without those that are known not to have been sent."""
    message_key: frozenset[str]
    """The columns of the message key, or else those of the table's key."""
    fields: RowFields | None
    """None: nobody knows which columns have defaults."""
    connector: str | None = None

    def was_sent(self, column: str) -> bool:
        """Whether a zero or a default in a column was sent."""
        if self.is_whole:
            return True
        in_key = self._certain & self.message_key
        return column in self.message_key and (bool(in_key) or not self._certain)

    def is_default(self, column: str) -> bool:
        """Whether the value of a column may be its default, filled in."""
        return self.fields is not None and self.fields.is_default(column, self.values.get(column))

    def described(self) -> str:
        """The message key, for people."""
        return f"the message key has {', '.join(sorted(self.message_key))}"

    @cached_property
    def is_whole(self) -> bool:
        """Whether all of the row was sent."""
        if self.connector in SEND_WHOLE_ROWS:
            return True
        if self.fields is None:
            return False
        return bool(self._certain & self.fields.nullable)

    @cached_property
    def _certain(self) -> frozenset[str]:
        """The columns whose values were certainly sent."""
        return frozenset(
            name for name, value in self.values.items() if not is_zero(value) and not self.is_default(name)
        )


def is_zero(value: Any) -> bool:
    """Whether a parsed value is null, or what Debezium writes for a value that was not sent and may not be null."""
    match value:
        case None | False:
            return True
        case int():
            return value == 0
        case Number():
            return not value.text.strip("-+.0")
        case float():
            return value == 0
        case str():
            return _ZERO_TEXT.fullmatch(value) is not None or _ZERO_BYTES.fullmatch(value) is not None
        case bytes():
            return not value.strip(b"\0")
        case list():
            return all(map(is_zero, value))
        case dict():
            return all(map(is_zero, value.values()))
    return False


def zeros(values: pa.Array) -> np.ndarray[Any, Any]:
    """Which values of a column of the table may be zeros that Debezium filled in. A null is none."""
    kind = values.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        zero = Decimal(0) if pa.types.is_decimal(kind) else 0
        found = pc.equal(values, pa.scalar(zero, kind))
    elif pa.types.is_boolean(kind):
        found = pc.invert(values)
    elif pa.types.is_temporal(kind):
        found = pc.equal(values.view(pa.int32() if kind.bit_width == 32 else pa.int64()), 0)
    elif pa.types.is_string(kind):
        found = pc.match_substring_regex(values, f"^(?:{_ZEROS})$")
    elif pa.types.is_binary(kind):
        found = pc.or_(pc.equal(pc.binary_length(values), 0), pc.starts_with(values, b"\0"))
    else:
        found = values.is_valid()
    return np.asarray(pc.fill_null(found, False), dtype=bool)


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
            if (said := _row_fields(schema)) is not None:
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
