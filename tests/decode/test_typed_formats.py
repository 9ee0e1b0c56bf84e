"""Each format with schemas, from the bytes that a producer writes to changes of a table, by way of a registry."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

from lakebed.decode.decoder import Decoded, DecoderSchema
from lakebed.decode.formats import SchemaText, decoder
from lakebed.decode.typed.registry import RegistrySettings
from lakebed.parts.changes import MOVES_COLUMN
from tests.decode.avro_events import framed
from tests.decode.records import records
from tests.decode.schema_registry import SchemaRegistry

COLUMNS = pa.schema(
    [pa.field("id", pa.int64(), False), pa.field("name", pa.string()), pa.field("at", pa.timestamp("us", "UTC"))]
)
TABLE = DecoderSchema(COLUMNS, ("id",), "source.lsn")
MICROS = 1_709_210_096_789_012
PROTO = """
syntax = "proto3";
message Envelope {
  message Value { int64 id = 1; optional string name = 2; optional int64 at = 3; }
  message Source { optional int64 ts_ms = 1; optional int64 lsn = 2; }
  Value before = 1;
  Value after = 2;
  Source source = 3;
  string op = 4;
  optional int64 ts_ms = 5;
}
message Key { int64 id = 1; }
"""


@pytest.fixture(scope="module")
def messages() -> dict[str, Any]:
    """Classes of the messages of ``PROTO``, as a producer has them."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "e.proto").write_text(PROTO)
        out = Path(folder, "e.bin")
        assert protoc.main(["", f"-I{folder}", f"--descriptor_set_out={out}", "e.proto"]) == 0
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    names = ("Envelope", "Key")
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names}


def changes(decoded: Decoded) -> list[tuple[Any, ...]]:
    assert decoded.quarantined["reason"].to_pylist() == []
    table = decoded.changes.set_column(2, "at", decoded.changes["at"].cast(pa.int64()))
    table = table.select([name for name in table.column_names if name != MOVES_COLUMN])
    return [tuple(row.values()) for row in table.to_pylist()]


def of_registry(kind: str, registry: SchemaRegistry, table: DecoderSchema = TABLE) -> Any:
    return decoder(kind, table, {"registry": RegistrySettings(url=registry.url)})


def test_debeziums_events_of_protobuf_are_changes_and_their_keys_are_another_message_of_the_schema(
    messages: Any,
) -> None:
    envelope, key = messages["Envelope"], messages["Key"]
    value = envelope.Value(id=1, name="a", at=MICROS)
    source = envelope.Source(ts_ms=5, lsn=9)
    events = [
        envelope(op="c", after=value, source=source),
        envelope(op="u", before=value, after=envelope.Value(id=2), source=source),
        envelope(op="d", source=source),
    ]
    with SchemaRegistry() as registry:
        number = registry.register(PROTO, "PROTOBUF")
        values = [framed(number, b"\0" + event.SerializeToString()) for event in events]
        keys = [framed(number, b"\2\2" + key(id=7).SerializeToString())] * 3
        decoded = of_registry("debezium-protobuf", registry).decode(records(values, keys))
    assert changes(decoded) == [
        (1, "a", MICROS, "u", 9),
        (1, None, None, "d", 9),
        (2, None, None, "u", 9),
        (7, None, None, "d", 9),
    ]


def test_rows_of_protobuf_of_a_file_have_no_header(messages: Any) -> None:
    table = DecoderSchema(pa.schema([pa.field("id", pa.int64(), False)]), ("id",))
    reader = decoder("protobuf", table, {"schema": SchemaText(text=PROTO, message="Key")})
    decoded = reader.decode(records([messages["Key"](id=3).SerializeToString(), b"\xff"]))
    assert decoded.changes["id"].to_pylist() == [3]
    assert decoded.quarantined["offset"].to_pylist() == [1]


def json_field(name: str, kind: str, order: int, title: str | None = None) -> dict[str, Any]:
    typed: dict[str, Any] = {"type": "integer" if kind.startswith("int") else kind, "connect.index": order}
    typed |= {"connect.type": kind} if kind.startswith("int") else {}
    return {name: {"oneOf": [{"type": "null"}, typed | ({"title": title} if title else {})]}}


def test_debeziums_events_of_json_schema_are_changes_with_their_logical_types() -> None:
    row = {
        "type": "object",
        "properties": json_field("id", "int64", 0)
        | json_field("name", "string", 1)
        | json_field("at", "int64", 2, "io.debezium.time.MicroTimestamp"),
    }
    source = {"type": "object", "properties": json_field("lsn", "int64", 0) | json_field("ts_ms", "int64", 1)}
    schema = {
        "type": "object",
        "properties": {
            "before": {"oneOf": [{"type": "null"}, row]},
            "after": {"oneOf": [{"type": "null"}, row]},
            "source": source,
            "op": {"type": "string"},
        }
        | json_field("ts_ms", "int64", 4),
    }
    event = {"op": "c", "before": None, "after": {"id": 1, "name": "a", "at": MICROS}, "source": {"lsn": 9, "ts_ms": 5}}
    with SchemaRegistry() as registry:
        number = registry.register(schema, "JSON")
        decoded = of_registry("debezium-json-schema", registry).decode(
            records([framed(number, json.dumps(event).encode())])
        )
    assert changes(decoded) == [(1, "a", MICROS, "u", 9)]


def test_rows_of_json_schema_are_upserts_and_tombstones_delete_by_json_keys() -> None:
    schema = {
        "type": "object",
        "properties": {"id": {"type": "integer"}, "name": {"type": "string"}},
        "required": ["id"],
    }
    table = DecoderSchema(pa.schema([pa.field("id", pa.int64(), False), pa.field("name", pa.string())]), ("id",))
    with SchemaRegistry() as registry:
        number = registry.register(schema, "JSON")
        options = {"registry": RegistrySettings(url=registry.url), "key_format": "json"}
        values = [framed(number, b'{"id": 1, "name": "a"}'), None, framed(number, b'{"id": ')]
        decoded = decoder("json-schema", table, options).decode(records(values, [None, {"id": 5}, None]))
    assert [tuple(row.values()) for row in decoded.changes.to_pylist()] == [(1, "a", "u"), (5, None, "d")]
    assert decoded.quarantined["offset"].to_pylist() == [2]
