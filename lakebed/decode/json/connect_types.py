"""Logical types of Kafka Connect and Debezium, which decide how a JSON value is read.

In an event with an inline schema, the name of a field's schema gives its logical type, or else its type does. Without an inline
schema the logical type is ``PLAIN``: then the table's column type and the JSON type of the value decide. Whole numbers without a
name are ``PLAIN`` too: their schema does not say what they count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from lakebed.decode.json.text import Unreadable


class Kind(Enum):
    PLAIN = "plain"
    DATE_DAYS = "days since the epoch"
    TIME_MS = "milliseconds since midnight"
    TIME_US = "microseconds since midnight"
    TIME_NS = "nanoseconds since midnight"
    TIMESTAMP_MS = "milliseconds since the epoch"
    TIMESTAMP_US = "microseconds since the epoch"
    TIMESTAMP_NS = "nanoseconds since the epoch"
    TIMESTAMP_TEXT = "a moment in ISO 8601"
    DECIMAL_BYTES = "unscaled big-endian bytes, base64"
    DECIMAL_VARIABLE = "a scale and unscaled big-endian bytes, base64"
    BYTES = "bytes, base64"
    TEXT = "a text"
    NUMBER = "a number that counts neither days nor time since the epoch"


@dataclass(frozen=True, slots=True)
class LogicalType:
    kind: Kind = Kind.PLAIN
    scale: int = 0
    """Digits after the point; for DECIMAL_BYTES only."""
    item: LogicalType | None = None
    """The logical type of an array's elements, or of a map's values."""
    fields: tuple[tuple[str, LogicalType], ...] = ()
    """The logical types of a struct's fields."""

    def of_item(self) -> LogicalType:
        return self.item or PLAIN

    def of_field(self, name: str) -> LogicalType:
        return dict(self.fields).get(name, PLAIN)


PLAIN = LogicalType()
INTEGER = re.compile(r"-?\d{1,40}", re.ASCII)

KIND_OF_NAME = {
    "io.debezium.time.Date": Kind.DATE_DAYS,
    "io.debezium.time.Time": Kind.TIME_MS,
    "io.debezium.time.MicroTime": Kind.TIME_US,
    "io.debezium.time.NanoTime": Kind.TIME_NS,
    "io.debezium.time.Timestamp": Kind.TIMESTAMP_MS,
    "io.debezium.time.MicroTimestamp": Kind.TIMESTAMP_US,
    "io.debezium.time.NanoTimestamp": Kind.TIMESTAMP_NS,
    "io.debezium.time.ZonedTimestamp": Kind.TIMESTAMP_TEXT,
    "io.debezium.data.VariableScaleDecimal": Kind.DECIMAL_VARIABLE,
    "io.debezium.data.Bits": Kind.BYTES,
    "io.debezium.time.Year": Kind.NUMBER,
    "io.debezium.time.MicroDuration": Kind.NUMBER,
    "io.debezium.time.NanoDuration": Kind.NUMBER,
    "org.apache.kafka.connect.data.Date": Kind.DATE_DAYS,
    "org.apache.kafka.connect.data.Time": Kind.TIME_MS,
    "org.apache.kafka.connect.data.Timestamp": Kind.TIMESTAMP_MS,
    "org.apache.kafka.connect.data.Decimal": Kind.DECIMAL_BYTES,
}
"""Other names (ZonedTime, Uuid, Json, Xml, Enum, EnumSet) say no more than the type."""

KIND_OF_TYPE = {
    "string": Kind.TEXT, "bytes": Kind.BYTES, "float": Kind.NUMBER, "float32": Kind.NUMBER, "double": Kind.NUMBER,
    "float64": Kind.NUMBER,
}  # fmt: skip

SCHEMA_LEVELS_MAX = 100


def logical_type_of(schema: Any, level: int = 0) -> LogicalType:
    """The logical type of a field of an inline Kafka Connect schema. Raises ``Unreadable`` if it is not such a schema."""
    _expect(isinstance(schema, Mapping), "a field's schema is not an object")
    _expect(level < SCHEMA_LEVELS_MAX, "it is nested too deep")
    name = schema.get("name")
    kind = KIND_OF_NAME.get(name) if isinstance(name, str) else None
    if kind is Kind.DECIMAL_BYTES:
        return LogicalType(kind, scale=_scale(schema.get("parameters")))
    if kind is not None:
        return LogicalType(kind)
    match schema.get("type"):
        case str() as kind_of if kind_of in KIND_OF_TYPE:
            return LogicalType(KIND_OF_TYPE[kind_of])
        case "array":
            return LogicalType(item=logical_type_of(schema.get("items"), level + 1))
        case "map" if schema.get("values") is not None:
            return LogicalType(item=logical_type_of(schema["values"], level + 1))
        case "struct":
            return LogicalType(fields=fields_of(schema, level + 1))
    return PLAIN


def _scale(parameters: Any) -> int:
    scale = parameters.get("scale") if isinstance(parameters, Mapping) else None
    _expect(isinstance(scale, int | str) and INTEGER.fullmatch(str(scale)) is not None, "a decimal without a scale")
    return int(str(scale))


def fields_of(schema: Any, level: int = 0) -> tuple[tuple[str, LogicalType], ...]:
    """The fields of a struct's schema with their logical types; empty for a null schema. Raises ``Unreadable``."""
    return tuple((field["field"], logical_type_of(field, level)) for field in connect_fields(schema))


def columns_of_envelope(schema: Any) -> dict[str, LogicalType]:
    """The logical types of a table's columns, from the inline schema of a change event. Raises ``Unreadable``."""
    images = {field["field"]: field for field in connect_fields(schema)}
    for name in ("after", "before"):
        if name in images:
            return dict(fields_of(images[name]))
    return {}


def connect_fields(schema: Any) -> list[Mapping[str, Any]]:
    """The fields of a struct's inline schema; none of a null schema. Raises ``Unreadable``."""
    if schema is None:
        return []
    _expect(isinstance(schema, Mapping), "it is not an object")
    fields = schema.get("fields")
    if fields is None:
        return []
    _expect(isinstance(fields, list), "'fields' is not a list")
    for field in fields:
        _expect(isinstance(field, Mapping) and isinstance(field.get("field"), str), "a field has no name")
    named: list[Mapping[str, Any]] = fields
    return named


def envelope_of(document: Any) -> tuple[Any, Any]:
    """(payload, schema) of an event or key. The envelope of an inline schema has exactly these two members."""
    if isinstance(document, dict) and document.keys() == {"schema", "payload"}:
        return document["payload"], document["schema"]
    return document, None


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Unreadable(f"its inline schema can't be read: {otherwise}")
