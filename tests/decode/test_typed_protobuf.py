"""Protobuf and documents with a JSON Schema become changes, from a registry: what Debezium's events mean in JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import message_factory

from lakebed.decode.debezium.events import DebeziumJson
from lakebed.decode.decoder import Decoder, DecoderSchema
from lakebed.decode.formats import decoder
from lakebed.decode.typed.protobuf_reader import compiled
from lakebed.decode.typed.registry import RegistrySettings
from lakebed.parts.changes import MOVES_COLUMN, SEQUENCE_COLUMN
from lakebed.sources.generator import COLUMNS, KEYS, OrderStream
from tests.decode.records import event, records
from tests.decode.schema_registry import SchemaRegistry

VALUE = """
    syntax = "proto3";
    package shop.orders;
    import "confluent/meta.proto";
    import "confluent/type/decimal.proto";
    import "google/protobuf/timestamp.proto";
    import "google/type/date.proto";
    import "google/type/timeofday.proto";
    message Other { string text = 1; }
    message Envelope {
      optional Value before = 1;
      optional Value after = 2;
      Source source = 3;
      string op = 4;
      optional int64 ts_ms = 5;
      message Value {
        int64 id = 1;
        optional string name = 2;
        int32 qty = 3 [(confluent.field_meta) = {params: [{key: "connect.type", value: "int16"}]}];
        confluent.type.Decimal money = 4 [(confluent.field_meta) = {
          params: [{key: "precision", value: "12"}, {key: "scale", value: "2"}]}];
        confluent.type.Decimal rate = 5;
        google.protobuf.Timestamp at = 6;
        google.type.Date day = 7;
        google.type.TimeOfDay clock = 8;
        repeated string tags = 9;
        map<string, int64> counts = 10;
        optional int64 micros = 11;
        optional uint64 big = 12;
        optional bytes raw = 13;
        Kind kind = 14;
      }
      enum Kind { SMALL = 0; LARGE = 1; }
    }
    message Source { string connector = 1; int64 ts_ms = 2; optional int64 lsn = 3; string table = 4; }
    """
KEY = 'syntax = "proto3"; package shop.orders; message Key { int64 id = 1; }'
ORDERS = pa.schema(
    [
        pa.field("id", pa.int64(), False),
        pa.field("name", pa.string()),
        pa.field("qty", pa.int32(), False),
        pa.field("money", pa.decimal128(12, 2)),
        pa.field("rate", pa.decimal128(12, 4)),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("day", pa.date32()),
        pa.field("clock", pa.string()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("counts", pa.map_(pa.string(), pa.int64())),
        pa.field("micros", pa.timestamp("us", "UTC")),
        pa.field("big", pa.decimal128(20, 0)),
        pa.field("raw", pa.binary()),
        pa.field("kind", pa.string()),
    ]
)
SHAPE = DecoderSchema(ORDERS, ("id",), "source.lsn")
ENVELOPE = (1,)


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as started:
        yield started


def framed(schema_id: int, indexes: bytes, message: Any) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + indexes + message.SerializeToString()


def envelope(**fields: Any) -> Any:
    message = message_factory.GetMessageClass(compiled(VALUE, {}, ENVELOPE))(**fields)
    message.source.connector, message.source.ts_ms, message.source.lsn = "postgresql", 1_700_000_000_000, 7
    message.ts_ms = 1_700_000_000_500
    return message


def of(format: str, registry: SchemaRegistry, shape: DecoderSchema = SHAPE) -> Decoder:
    return decoder(format, shape, {"registry": RegistrySettings(url=registry.url)})


def test_events_of_protobuf_become_changes(registry: SchemaRegistry) -> None:
    value, key = registry.register(VALUE, "PROTOBUF"), registry.register(KEY, "PROTOBUF")
    row = {"id": 1, "name": "a", "qty": 3, "tags": ["x"], "counts": {"k": 2}, "big": 2**64 - 1, "kind": 1}
    full = envelope(op="c", after=row)
    full.after.money.value, full.after.money.scale = (-150).to_bytes(2, "big", signed=True), 2
    full.after.rate.value, full.after.rate.scale = b"\x0f", 1
    full.after.at.FromJsonString("2024-01-02T03:04:05.678901234Z")
    full.after.day.year, full.after.day.month, full.after.day.day = 2024, 2, 29
    full.after.clock.hours, full.after.clock.nanos = 23, 5
    full.after.micros, full.after.raw = 1_700_000_000_000_000, b"\xff"
    values = [
        framed(value, b"\x02\x02", full),
        framed(value, b"\x02\x02", envelope(op="u", before={"id": 2}, after={"id": 2, "qty": 4})),
        framed(value, b"\x02\x02", envelope(op="d", before={"id": 3})),
        None,
    ]
    keys = [
        framed(key, b"\0", message_factory.GetMessageClass(compiled(KEY, {}))(id=number)) for number in (1, 2, 3, 3)
    ]
    decoded = of("debezium-protobuf", registry).decode(records(values, keys))
    assert decoded.quarantined.num_rows == 0 and decoded.ignored == 1
    rows = decoded.changes.to_pylist()
    assert [(row["id"], row["_lakebed_op"], row[SEQUENCE_COLUMN]) for row in rows] == [
        (1, "u", 7),
        (2, "u", 7),
        (3, "d", 7),
    ]
    assert {name: rows[0][name] for name in ORDERS.names} == {
        "id": 1, "name": "a", "qty": 3, "money": Decimal("-1.50"), "rate": Decimal("1.5"),
        "at": datetime(2024, 1, 2, 3, 4, 5, 678_901, UTC), "day": date(2024, 2, 29), "clock": "23:00:00.000000005",
        "tags": ["x"], "counts": [("k", 2)], "micros": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
        "big": Decimal(2**64 - 1), "raw": b"\xff", "kind": "LARGE",
    }  # fmt: skip
    assert (rows[1]["name"], rows[1]["qty"], rows[1]["tags"], rows[1]["kind"]) == (None, 4, [], "SMALL")


GENERATED = """
    syntax = "proto3";
    import "confluent/meta.proto";
    import "confluent/type/decimal.proto";
    message Envelope { Value before = 1; Value after = 2; Source source = 3; string op = 4; optional int64 ts_ms = 5; }
    message Value {
      int64 order_id = 1; optional int64 customer_id = 2; optional string region = 3; optional string status = 4;
      confluent.type.Decimal amount = 5 [(confluent.field_meta) = {
        params: [{key: "precision", value: "12"}, {key: "scale", value: "2"}]}];
      optional string note = 6; optional int64 created_at = 7; optional int64 updated_at = 8;
    }
    message Source { string connector = 1; int64 ts_ms = 2; optional int64 lsn = 3; string table = 4; }
    """


def test_generated_events_are_the_same_changes_in_protobuf_as_in_json(registry: SchemaRegistry) -> None:
    as_json = OrderStream().events(0, 2_000, 1_700_000_000_000_000)
    number = registry.register(GENERATED, "PROTOBUF")
    kind = message_factory.GetMessageClass(compiled(GENERATED, {}))
    encoded = []
    for change in map(json.loads, as_json["value"].to_pylist()):
        source = {"lsn": change["source"]["lsn"], "ts_ms": change["source"]["ts_ms"]}
        message = kind(op=change["op"], ts_ms=change["ts_ms"], source=source)
        for side in ("before", "after"):
            if (row := change[side]) is not None:
                amount = row.pop("amount", None)
                target = getattr(message, side)
                target.MergeFrom(type(target)(**{name: value for name, value in row.items() if value is not None}))
                target.SetInParent()
                if amount is not None:
                    target.amount.value = int(amount.replace(".", "")).to_bytes(5, "big", signed=True)
                    target.amount.scale = 2
        encoded.append(framed(number, b"\0", message))
    place = as_json.schema.get_field_index("value")
    as_protobuf = as_json.set_column(place, "value", pa.array(encoded, pa.binary()))
    shape = DecoderSchema(COLUMNS, KEYS, "source.lsn")
    options = {"registry": RegistrySettings(url=registry.url), "key_format": "json"}
    ours, wanted = decoder("debezium-protobuf", shape, options).decode(as_protobuf), DebeziumJson(shape).decode(as_json)
    assert wanted.quarantined.num_rows == 0 and wanted.changes.num_rows >= 2_000
    assert ours.quarantined.num_rows == 0
    assert ours.changes.equals(wanted.changes.drop_columns([MOVES_COLUMN])), "these messages name no transactions"
    assert ours.event_time_max == wanted.event_time_max


def test_each_bad_record_is_quarantined_with_its_reason_and_the_others_come_in(registry: SchemaRegistry) -> None:
    value = registry.register(VALUE, "PROTOBUF")
    recursive = registry.register('syntax = "proto3"; message M { M again = 1; }', "PROTOBUF")
    good = framed(value, b"\x02\x02", envelope(op="c", after={"id": 1}))
    values = [
        good,
        good[:-3],
        framed(value, b"\x02\x12", envelope(op="c", after={"id": 1})),
        framed(recursive, b"\0", envelope(op="c")),
        framed(99, b"\0", envelope(op="c")),
        b"\0\0\0",
        framed(value, b"\x02\x02", envelope(op="c", after={"id": 1, "day": {"year": 2024}})),
        good,
        framed(value, b"\x01", envelope(op="c", after={"id": 1})),
        b"\0" + value.to_bytes(4, "big") + b"\x04\x02",
    ]
    decoded = of("debezium-protobuf", registry).decode(records(values))
    assert decoded.changes["id"].to_pylist() == [1, 1]
    reasons = dict(
        zip(decoded.quarantined["offset"].to_pylist(), decoded.quarantined["reason"].to_pylist(), strict=True)
    )
    wanted = {
        1: "not a Protobuf message",
        2: "no message at [9]",
        3: "contains itself",
        4: "99",
        5: "header",
        6: "no date",
        8: "message indexes",
        9: "message indexes are cut off",
    }
    assert reasons.keys() == wanted.keys()
    for row, words in wanted.items():
        assert words in reasons[row], (row, reasons[row])


def test_rows_of_several_messages_and_schemas_become_changes_in_their_order(registry: SchemaRegistry) -> None:
    first = (
        'syntax = "proto3"; message A { int64 id = 1; string name = 2; } message B { string name = 1; int64 id = 2; }'
    )
    second = 'syntax = "proto3"; message A { int64 id = 1; optional string name = 3; }'
    one, two = registry.register(first, "PROTOBUF"), registry.register(second, "PROTOBUF")
    places = ((first, (0,)), (first, (1,)), (second, (0,)))
    a, b, c = (message_factory.GetMessageClass(compiled(text, {}, place)) for text, place in places)
    values = [
        framed(one, b"\0", a(id=1, name="x")),
        framed(one, b"\x02\x02", b(id=2, name="y")),
        framed(two, b"\0", c(id=3)),
        framed(one, b"\0", a(id=4)),
        None,
    ]
    shape = DecoderSchema(pa.schema([pa.field("id", pa.int64(), False), pa.field("name", pa.string())]), ("id",))
    decoded = of("protobuf", registry, shape).decode(records(values))
    assert decoded.quarantined.num_rows == 0 and decoded.ignored == 1
    assert [(row["id"], row["name"]) for row in decoded.changes.to_pylist()] == [(1, "x"), (2, "y"), (3, None), (4, "")]


def test_documents_with_a_json_schema_become_changes(registry: SchemaRegistry) -> None:
    row = {
        "type": "object", "required": ["id"], "properties": {
            "id": {"type": "integer"},
            "name": {"type": ["string", "null"]},
            "money": {"type": "number", "title": "org.apache.kafka.connect.data.Decimal", "connect.type": "bytes",
                      "connect.parameters": {"scale": "2"}},
            "at": {"type": "integer", "title": "io.debezium.time.MicroTimestamp", "connect.type": "int64"},
        },
    }  # fmt: skip
    shape = DecoderSchema(pa.schema([f for f in ORDERS if f.name in row["properties"]]), ("id",))  # type: ignore[operator]
    number = registry.register(row, "JSON").to_bytes(4, "big")
    values = [
        {"id": 1, "name": "a", "money": "AJY=", "at": 5},
        {"name": "b"},
        {"id": 3, "at": "x"},
        {"id": 4, "more": 1},
    ]
    decoded = of("json-schema", registry, shape).decode(
        records([b"\0" + number + json.dumps(one).encode() for one in values])
    )
    assert [(one["id"], one["money"]) for one in decoded.changes.to_pylist()] == [(1, Decimal("1.50")), (4, None)]
    assert decoded.changes["at"][0].as_py() == datetime(1970, 1, 1, 0, 0, 0, 5, UTC)
    assert decoded.quarantined["offset"].to_pylist() == [1, 2]
    assert decoded.remarks.get("unknown_field", {}) == {"more": 1}

    image = {"oneOf": [{"type": "null"}, {"title": "Value", **row}]}
    source = {"type": "object", "properties": {"lsn": {"type": ["integer", "null"]}, "ts_ms": {"type": "integer"}}}
    members = {
        "before": image,
        "after": image,
        "source": source,
        "op": {"type": "string"},
        "ts_ms": {"type": ["integer", "null"]},
    }
    number = registry.register({"type": "object", "properties": members}, "JSON").to_bytes(4, "big")
    changes = [event("c", {"id": 1, "money": "AJY=", "more": 1}), event("d", before={"id": 2})]
    decoded = of("debezium-json-schema", registry, shape).decode(
        records([b"\0" + number + json.dumps(one).encode() for one in changes])
    )
    assert decoded.quarantined.num_rows == 0 and decoded.remarks.get("unknown_field", {}) == {"more": 1}
    assert [(one["id"], one["_lakebed_op"], one["money"]) for one in decoded.changes.to_pylist()] == [
        (1, "u", Decimal("1.50")),
        (2, "d", None),
    ]
