"""How fast records with a schema become Arrow columns on one core: Avro, Protobuf, JSON with a JSON Schema, and other readers.

    python -m benchmarks.record_formats [--events 200000]

Each way reads the same rows of ten columns, in batches of 16,384, in one process; the figure is CPU time for a record, the best
of a few rounds, all ways in turn within a round. ``JSON: native`` is the JSON parser alone, so all figures are for reading only.
``plain types`` has no decimal and no times, because pyruhvro and ptars do not read all of them. fastavro makes dictionaries
only, google.protobuf messages only. The ways in Python read a tenth of the rows.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import random
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from google.protobuf import message_factory

from lakebed.decode.decoder import RecordReader
from lakebed.decode.json.objects import JsonParser
from lakebed.decode.json_schema import JsonSchemaFormat
from lakebed.decode.native.library import library
from lakebed.decode.typed.avro_reader import AvroReader
from lakebed.decode.typed.avro_schema import encoded, parse_schema
from lakebed.decode.typed.protobuf_reader import ProtobufReader, compiled

BATCH_ROWS = 16_384
ROUNDS = 5
FIELDS: dict[str, Any] = {
    "order_id": "long",
    "customer_id": "long",
    "region": "string",
    "status": {"type": "enum", "name": "Status", "symbols": ["PLACED", "PAID", "SENT", "BACK"]},
    "amount": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2},
    "quantity": "int",
    "weight": "double",
    "note": ["null", "string"],
    "created_at": {"type": "long", "logicalType": "timestamp-millis"},
    "updated_at": {"type": "long", "logicalType": "timestamp-micros"},
}
PLAIN: dict[str, Any] = {**FIELDS, "amount": "double", "created_at": "long", "updated_at": "long"}
PROTOBUF = """
    syntax = "proto3";
    import "google/protobuf/timestamp.proto";
    import "confluent/meta.proto";
    import "confluent/type/decimal.proto";
    message Order {
      int64 order_id = 1; int64 customer_id = 2; string region = 3; Status status = 4; AMOUNT int32 quantity = 6;
      double weight = 7; optional string note = 8; TIME created_at = 9; TIME updated_at = 10;
    }
    enum Status { PLACED = 0; PAID = 1; SENT = 2; BACK = 3; }
    """
AMOUNT = """confluent.type.Decimal amount = 5 [(confluent.field_meta) = {
    params: [{key: "precision", value: "12"}, {key: "scale", value: "2"}]}];"""
JSON_SCHEMA = {
    "order_id": {"type": "integer"}, "customer_id": {"type": "integer"}, "region": {"type": "string"},
    "status": {"enum": ["PLACED", "PAID", "SENT", "BACK"]},
    "amount": {"type": "number", "title": "org.apache.kafka.connect.data.Decimal",
               "connect.parameters": {"scale": "2", "connect.decimal.precision": "12"}},
    "quantity": {"type": "integer", "connect.type": "int32"}, "weight": {"type": "number"},
    "note": {"type": ["string", "null"]}, "created_at": {"type": "integer"}, "updated_at": {"type": "integer"},
}  # fmt: skip
JSON_TYPES = {
    "order_id": pa.int64(), "customer_id": pa.int64(), "region": pa.string(), "status": pa.string(),
    "amount": pa.decimal128(12, 2), "quantity": pa.int32(), "weight": pa.float64(), "note": pa.string(),
    "created_at": pa.int64(), "updated_at": pa.int64(),
}  # fmt: skip


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--events", type=int, default=200_000)
    count = arguments.parse_args().events
    rows = _rows(count)
    ways: dict[str, tuple[int, Callable[[], object]]] = {}
    for name, fields in (("Avro", FIELDS), ("Avro, plain types", PLAIN)):
        schema = _schema(fields)
        kind = parse_schema(schema)
        records = [encoded(kind, _as_default(row, fields)) for row in rows]
        if library():
            ways[f"{name}: native"] = count, _reading(AvroReader(kind, kind), records)
        ways[f"{name}: in Python"] = count // 10, _reading(AvroReader(kind, kind, native=False), records[: count // 10])
        if importlib.util.find_spec("fastavro"):
            ways[f"{name}: fastavro, dictionaries"] = count // 10, _fastavro(schema, records[: count // 10])
        if importlib.util.find_spec("pyruhvro") and fields is PLAIN:
            ways[f"{name}: pyruhvro"] = count, _pyruhvro(schema, records)
        print(f"{name}: {sum(map(len, records)) / count:.0f} bytes a record")
    for name in ("Protobuf", "Protobuf, plain types"):
        ways |= _protobuf_ways(name, rows)
    texts = [_as_json(row) for row in rows]
    print(f"JSON: {sum(map(len, texts)) / count:.0f} bytes a record")
    ways["JSON with a JSON Schema"] = count, _reading(_json_schema(), texts)
    ways |= {"JSON: native": (count, _json(texts))} if library() else {}
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(ROUNDS):
        for name, (records_read, way) in ways.items():
            started = time.process_time()
            way()
            best[name] = min(best[name], (time.process_time() - started) / records_read)
    for name, seconds in best.items():
        print(
            f"{name:42} {1e6 * seconds:>8.3f} µs a record {seconds / best['JSON: native']:>8.2f} x JSON"
            if library()
            else ""
        )


def _protobuf_ways(name: str, rows: list[dict[str, Any]]) -> dict[str, tuple[int, Callable[[], object]]]:
    is_plain, count = name.endswith("plain types"), len(rows)
    text = PROTOBUF.replace("AMOUNT", "double amount = 5;" if is_plain else AMOUNT)
    descriptor = compiled(text.replace("TIME", "int64" if is_plain else "google.protobuf.Timestamp"), {})
    kind = message_factory.GetMessageClass(descriptor)
    records = [_as_protobuf(kind, row, is_plain) for row in rows]
    print(f"{name}: {sum(map(len, records)) / count:.0f} bytes a record")
    few, one_by_one = records[: count // 10], ProtobufReader(descriptor)
    one_by_one.parser = None
    ways: dict[str, tuple[int, Callable[[], object]]] = {
        f"{name}: in Python": (len(few), _reading(one_by_one, few)),
        f"{name}: google.protobuf, messages": (len(few), lambda: [kind.FromString(record) for record in few]),
    }
    if library():
        ways[f"{name}: native"] = count, _reading(ProtobufReader(descriptor), records)
    if importlib.util.find_spec("ptars") and is_plain:
        ways[f"{name}: ptars"] = count, _ptars(descriptor, records)
    return ways


def _as_protobuf(kind: Any, row: dict[str, Any], is_plain: bool) -> bytes:
    status = ("PLACED", "PAID", "SENT", "BACK").index(row["status"])
    message = kind(
        **{name: value for name, value in row.items() if name not in ("status", "amount") and name[-3:] != "_at"}
    )
    message.status = status
    if is_plain:
        message.amount, message.created_at, message.updated_at = (
            row["amount"] / 100,
            row["created_at"],
            row["updated_at"],
        )
    else:
        message.amount.value, message.amount.precision, message.amount.scale = row["amount"].to_bytes(4, "big"), 12, 2
        message.created_at.FromMilliseconds(row["created_at"])
        message.updated_at.FromMicroseconds(row["updated_at"])
    encoded_message: bytes = message.SerializeToString()
    return encoded_message


def _ptars(descriptor: Any, records: list[bytes]) -> Callable[[], object]:
    import ptars

    handler = ptars.HandlerPool([descriptor.file]).get_for_message(descriptor)
    batches = _batches(records)
    return lambda: [handler.array_to_record_batch(batch) for batch in batches]


def _json_schema() -> RecordReader:
    required = [name for name in JSON_SCHEMA if name != "note"]
    return JsonSchemaFormat().compile(json.dumps({"properties": JSON_SCHEMA, "required": required}), {})


def _rows(count: int) -> list[dict[str, Any]]:
    rng = random.Random(1)
    notes = (None, "leave at the door", "gift", None, "call before delivery, second floor")
    return [
        {
            "order_id": 1_000_000 + number,
            "customer_id": rng.randrange(10_000_000),
            "region": rng.choice(("eu-west", "us-east", "ap-south")),
            "status": rng.choice(("PLACED", "PAID", "SENT", "BACK")),
            "amount": rng.randrange(100, 1_000_000),
            "quantity": rng.randrange(1, 100),
            "weight": round(rng.random() * 50, 3),
            "note": rng.choice(notes),
            "created_at": 1_700_000_000_000 + number,
            "updated_at": 1_700_000_000_000_000 + 1000 * number,
        }
        for number in range(count)
    ]


def _schema(fields: dict[str, Any]) -> str:
    described = [{"name": name, "type": kind} for name, kind in fields.items()]
    return json.dumps({"type": "record", "name": "Order", "fields": described})


def _as_default(row: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """The row as a schema writes a default value."""
    cents = row["amount"]
    if fields["amount"] == "double":
        return {**row, "amount": cents / 100}
    return {**row, "amount": cents.to_bytes(4, "big", signed=True).decode("latin-1")}


def _as_json(row: dict[str, Any]) -> bytes:
    cents = row["amount"]
    text = json.dumps({**row, "amount": 0}, separators=(",", ":"))
    return text.replace('"amount":0', f'"amount":{cents // 100}.{cents % 100:02d}', 1).encode()


def _batches(records: list[bytes]) -> list[pa.BinaryArray]:
    return [pa.array(records[at : at + BATCH_ROWS], pa.binary()) for at in range(0, len(records), BATCH_ROWS)]


def _reading(reader: RecordReader, records: list[bytes]) -> Callable[[], None]:
    batches = _batches(records)

    def read() -> None:
        for batch in batches:
            assert not reader.read(batch).errors

    return read


def _json(texts: list[bytes]) -> Callable[[], None]:
    parser = JsonParser.of(pa.schema(list(JSON_TYPES.items())), {})
    batches = _batches(texts)

    def read() -> None:
        for batch in batches:
            assert parser is not None and not parser.parse(batch).unsure

    return read


def _fastavro(schema: str, records: list[bytes]) -> Callable[[], object]:
    import fastavro

    parsed = fastavro.parse_schema(json.loads(schema))
    return lambda: [fastavro.schemaless_reader(io.BytesIO(record), parsed) for record in records]


def _pyruhvro(schema: str, records: list[bytes]) -> Callable[[], object]:
    import pyruhvro

    lists = [records[at : at + BATCH_ROWS] for at in range(0, len(records), BATCH_ROWS)]
    return lambda: [pyruhvro.deserialize_array(each, schema) for each in lists]


if __name__ == "__main__":
    main()
