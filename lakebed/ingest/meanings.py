"""What a JSON value stands for: Kafka Connect's and Debezium's logical types.

An event with an inline schema says it by the schema's name. An event without one leaves ``PLAIN``: then the table's
column type and the JSON type of the value decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Kind(Enum):
    PLAIN = "plain"
    DATE_DAYS = "days since the epoch"
    TIME_MS = "milliseconds since midnight"
    TIME_US = "microseconds since midnight"
    TIME_NS = "nanoseconds since midnight"
    TIMESTAMP_MS = "milliseconds since the epoch"
    TIMESTAMP_US = "microseconds since the epoch"
    TIMESTAMP_NS = "nanoseconds since the epoch"
    DECIMAL_BYTES = "unscaled big-endian bytes, base64"
    DECIMAL_VARIABLE = "a scale and unscaled big-endian bytes, base64"
    BYTES = "bytes, base64"


@dataclass(frozen=True, slots=True)
class Meaning:
    kind: Kind = Kind.PLAIN
    scale: int = 0
    """Digits after the point; for DECIMAL_BYTES only."""
    item: Meaning | None = None
    """The meaning of an array's elements."""
    fields: tuple[tuple[str, Meaning], ...] = ()
    """The meanings of a struct's fields."""

    def of_item(self) -> Meaning:
        return self.item or PLAIN

    def of_field(self, name: str) -> Meaning:
        return dict(self.fields).get(name, PLAIN)


PLAIN = Meaning()

KIND_OF_NAME = {
    "io.debezium.time.Date": Kind.DATE_DAYS,
    "io.debezium.time.Time": Kind.TIME_MS,
    "io.debezium.time.MicroTime": Kind.TIME_US,
    "io.debezium.time.NanoTime": Kind.TIME_NS,
    "io.debezium.time.Timestamp": Kind.TIMESTAMP_MS,
    "io.debezium.time.MicroTimestamp": Kind.TIMESTAMP_US,
    "io.debezium.time.NanoTimestamp": Kind.TIMESTAMP_NS,
    "io.debezium.data.VariableScaleDecimal": Kind.DECIMAL_VARIABLE,
    "io.debezium.data.Bits": Kind.BYTES,
    "org.apache.kafka.connect.data.Date": Kind.DATE_DAYS,
    "org.apache.kafka.connect.data.Time": Kind.TIME_MS,
    "org.apache.kafka.connect.data.Timestamp": Kind.TIMESTAMP_MS,
    "org.apache.kafka.connect.data.Decimal": Kind.DECIMAL_BYTES,
}
"""Names left out (ZonedTimestamp, ZonedTime, Year, Uuid, Json, Xml, Enum, EnumSet) are plain strings or numbers."""


def meaning_of(schema: Mapping[str, Any]) -> Meaning:
    """The meaning of a field of an inline Kafka Connect schema."""
    kind = KIND_OF_NAME.get(str(schema.get("name")))
    if kind is Kind.DECIMAL_BYTES:
        return Meaning(kind, scale=int(schema.get("parameters", {}).get("scale", 0)))
    if kind is not None:
        return Meaning(kind)
    match schema.get("type"):
        case "bytes":
            return Meaning(Kind.BYTES)
        case "array":
            return Meaning(item=meaning_of(schema.get("items") or {}))
        case "struct":
            return Meaning(fields=fields_of(schema))
    return PLAIN


def fields_of(schema: Mapping[str, Any]) -> tuple[tuple[str, Meaning], ...]:
    return tuple((str(field["field"]), meaning_of(field)) for field in schema.get("fields", ()))


def columns_of_envelope(schema: Mapping[str, Any] | None) -> dict[str, Meaning]:
    """The meanings of a table's columns, out of the inline schema of a change event."""
    for name in ("after", "before"):
        for field in (schema or {}).get("fields", ()):
            if field.get("field") == name:
                return dict(fields_of(field))
    return {}
