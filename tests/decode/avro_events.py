"""Writes what Debezium sends as Avro: Connect's schemas and the values of its JSON as Confluent's Avro converter has them."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import fastavro

Schema = Mapping[str, Any]
PLAIN = {
    "int8": "int", "int16": "int", "int32": "int", "int64": "long", "float": "float", "double": "double",
    "boolean": "boolean", "string": "string", "bytes": "bytes",
}  # fmt: skip
LOGICAL = {"Date": "date", "Time": "time-millis", "Timestamp": "timestamp-millis"}
CONNECT = "org.apache.kafka.connect.data."
SOURCE = [
    {"type": "string", "field": "connector"},
    {"type": "int64", "field": "ts_ms", "optional": True},
    {"type": "int64", "field": "ts_us", "optional": True},
    {"type": "int64", "field": "lsn", "optional": True},
    {"type": "int64", "field": "txId", "optional": True},
    {"type": "string", "field": "sequence", "optional": True},
    {"type": "string", "field": "table", "optional": True},
]


def avro_type(schema: Schema, name: str) -> Any:
    """The Avro type for a schema of Connect; ``name`` is for a record."""
    kind = schema["type"]
    more: dict[str, Any] = {"connect.name": schema["name"]} if "name" in schema else {}
    if "parameters" in schema:
        more["connect.parameters"] = schema["parameters"]
    made: Any
    if kind == "struct" and schema.get("name") == "io.debezium.data.VariableScaleDecimal":
        schema = {**schema, "fields": [{"type": "int32", "field": "scale"}, {"type": "bytes", "field": "value"}]}
    if kind == "struct":
        fields = [
            {"name": f["field"], "type": avro_type(f, f"{name}_{f['field']}")}
            | ({"default": f.get("default")} if f.get("optional") or "default" in f else {})
            for f in schema["fields"]
        ]
        made = {"type": "record", "name": name, "fields": fields, **more}
    elif kind == "array":
        made = {"type": "array", "items": avro_type(schema["items"], name + "_item"), **more}
    elif kind == "map":
        made = {"type": "map", "values": avro_type(schema["values"], name + "_value"), **more}
    else:
        made = {"type": PLAIN[kind], **more}
        if schema.get("name") == CONNECT + "Decimal":
            scale = int(schema["parameters"]["scale"])
            made |= {"logicalType": "decimal", "precision": int(schema.get("precision", 64)), "scale": scale}
        elif (schema.get("name") or "").startswith(CONNECT):
            made["logicalType"] = LOGICAL[schema["name"].removeprefix(CONNECT)]
        made = made if len(made) > 1 else made["type"]
    branches = ["null", made] if schema.get("default") is None else [made, "null"]
    return branches if schema.get("optional") else made


def avro_value(value: Any, schema: Schema) -> Any:
    """A value of Debezium's JSON as fastavro takes it."""
    if value is None:
        return None
    match schema["type"]:
        case "struct" if schema.get("name") == "io.debezium.data.VariableScaleDecimal":
            return {"scale": value["scale"], "value": base64.b64decode(value["value"])}
        case "struct":
            return {f["field"]: avro_value(value.get(f["field"]), f) for f in schema["fields"]}
        case "array":
            return [avro_value(item, schema["items"]) for item in value]
        case "map":
            return {key: avro_value(item, schema["values"]) for key, item in value.items()}
        case "bytes":
            return base64.b64decode(value)
        case "float" | "double":
            return float(value)
    return value


def encoded(schema: Any, value: Any) -> bytes:
    """One value by fastavro. Values are those of the plain types: logical types stay out of it."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(_without_logical(json.loads(json.dumps(schema)))), value)
    return out.getvalue()


def _without_logical(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_logical(one) for one in schema]
    if isinstance(schema, dict):
        return {
            name: _without_logical(one)
            for name, one in schema.items()
            if name not in ("logicalType", "precision", "scale")
        }
    return schema


def envelope(fields: Sequence[Schema]) -> dict[str, Any]:
    """Connect's schema of the events of a table with these fields."""
    row = {"type": "struct", "fields": list(fields), "optional": True}
    return {
        "type": "struct",
        "fields": [
            {**row, "field": "before"},
            {**row, "field": "after"},
            {"type": "struct", "fields": SOURCE, "field": "source"},
            {"type": "string", "field": "op"},
            {"type": "int64", "field": "ts_ms", "optional": True},
        ],
    }


def envelope_schema(fields: Sequence[Schema]) -> Any:
    """The same as Avro, where ``before`` and ``after`` share a record."""
    schema = avro_type(envelope(fields), "Envelope")
    schema["fields"][0]["type"] = ["null", {**schema["fields"][0]["type"][1], "name": "Value"}]
    schema["fields"][1]["type"] = ["null", "Value"]
    return schema


def framed(schema_id: int, payload: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + payload


def decimal_text(value: Decimal, scale: int) -> str:
    """A decimal as Connect's JSON has it."""
    unscaled = int(value.scaleb(scale))
    return base64.b64encode(unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)).decode()
