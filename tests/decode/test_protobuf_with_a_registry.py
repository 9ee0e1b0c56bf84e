"""Protobuf and JSON Schema with a real registry, written by Confluent's serializers."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import message_factory

from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.formats import decoder
from lakebed.decode.typed.protobuf_reader import compiled
from lakebed.decode.typed.registry import RegistrySettings
from tests.decode.records import records
from tests.infra.registry import RegistryServer

pytestmark = pytest.mark.slow

ITEM = """
    syntax = "proto3";
    package shop;
    import "google/type/date.proto";
    message Item { string sku = 1; google.type.Date day = 2; }
    """
ORDER = """
    syntax = "proto3";
    package shop;
    import "shop/item.proto";
    message Unused { string text = 1; }
    message Order { int64 id = 1; Item item = 2; optional string note = 3; }
    """
COLUMNS = DecoderSchema(
    pa.schema(
        [
            pa.field("id", pa.int64(), False),
            pa.field("item", pa.struct([("sku", pa.string()), ("day", pa.date32())])),
            pa.field("note", pa.string()),
        ]
    ),
    ("id",),
)


@pytest.mark.long
def test_records_of_the_registrys_own_serializers_become_rows(registry: RegistryServer) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    kind = message_factory.GetMessageClass(compiled(ORDER, {"shop/item.proto": ITEM}, "Order"))
    order = kind(id=5, item={"sku": "a", "day": {"year": 2024, "month": 2, "day": 29}})

    client.register_schema("shop/item.proto", Schema(ITEM, "PROTOBUF"))
    reference = SchemaReference("shop/item.proto", "shop/item.proto", 1)
    by_text = client.register_schema("texts-value", Schema(ORDER, "PROTOBUF", [reference]))
    text = b"\0" + by_text.to_bytes(4, "big") + b"\x02\x02" + order.SerializeToString()
    serializer = ProtobufSerializer(kind, client)
    serialized = serializer(order, SerializationContext("serialized", MessageField.VALUE))

    settings = {"registry": RegistrySettings(url=registry.url)}
    decoded = decoder("protobuf", COLUMNS, settings).decode(records([text, serialized]))
    assert decoded.quarantined["reason"].to_pylist() == []
    rows = [(row["id"], row["item"]["sku"], row["item"]["day"].isoformat()) for row in decoded.changes.to_pylist()]
    assert rows == [(5, "a", "2024-02-29")] * 2

    item = {"$id": "item.json", "type": "object", "properties": {"sku": {"type": "string"}}}
    schema = {
        "title": "Order",
        "type": "object",
        "required": ["id"],
        "properties": {"id": {"type": "integer"}, "item": {"$ref": "item.json"}},
    }
    client.register_schema("item.json", Schema(json.dumps(item), "JSON"))
    whole = Schema(json.dumps(schema), "JSON", [SchemaReference("item.json", "item.json", 1)])
    json_serializer = JSONSerializer(whole, client)
    value = json_serializer({"id": 6, "item": {"sku": "b"}}, SerializationContext("documents", MessageField.VALUE))
    decoded = decoder("json-schema", COLUMNS, settings).decode(records([value]))
    assert decoded.quarantined["reason"].to_pylist() == []
    assert [(row["id"], row["item"]["sku"]) for row in decoded.changes.to_pylist()] == [(6, "b")]
