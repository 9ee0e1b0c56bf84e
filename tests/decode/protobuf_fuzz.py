"""Random Protobuf messages, damaged ones among them: native code and google.protobuf read them alike.

python -m tests.decode.protobuf_fuzz --records 200000 --seed 1 [--library sanitized.so]
"""

from __future__ import annotations

import argparse
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor

from lakebed.decode.native import library as native
from lakebed.decode.native.library import DONE
from lakebed.decode.typed.protobuf_reader import ProtobufReader, compiled
from lakebed.far_times import python_values

PROTO3 = """
    syntax = "proto3";
    package shop;
    import "google/protobuf/timestamp.proto";
    import "google/protobuf/duration.proto";
    import "google/protobuf/wrappers.proto";
    import "google/protobuf/struct.proto";
    import "google/protobuf/empty.proto";
    import "google/protobuf/any.proto";
    import "google/type/date.proto";
    import "google/type/timeofday.proto";
    import "confluent/meta.proto";
    import "confluent/type/decimal.proto";
    message Order {
      int64 id = 1; int32 i32 = 2; uint32 u32 = 3; uint64 u64 = 4; sint32 s32 = 5; sint64 s64 = 6; fixed32 f32 = 7;
      fixed64 f64 = 8; sfixed32 sf32 = 9; sfixed64 sf64 = 10; float single = 11; double real = 12; bool flag = 13;
      string text = 14; bytes raw = 15; State state = 16; optional int32 maybe = 17; optional string note = 18;
      oneof paid { string card = 20; int32 voucher = 21; google.protobuf.Empty cash = 22; Item swap = 23; }
      repeated int32 numbers = 30; repeated sint64 signed = 31 [packed = false]; repeated double reals = 32;
      repeated bool flags = 33; repeated string tags = 34; repeated State states = 35; repeated Item items = 36;
      map<string, int32> counts = 40; map<int64, Item> by_id = 41; map<bool, State> by_flag = 42; map<uint64, bytes> blobs = 43;
      google.protobuf.Timestamp at = 50; google.protobuf.Duration took = 51; google.protobuf.UInt64Value total = 52;
      google.protobuf.StringValue name = 53; google.protobuf.Struct extra = 54; google.protobuf.Value any_value = 55;
      google.type.Date day = 56; google.type.TimeOfDay clock = 57; google.protobuf.Any what = 58;
      confluent.type.Decimal price = 60 [(confluent.field_meta) = {
        params: [{key: "scale", value: "2"}, {key: "precision", value: "10"}]}];
      confluent.type.Decimal rate = 61;
      int32 small = 62 [(confluent.field_meta) = {params: [{key: "connect.type", value: "int16"}]}];
      repeated google.protobuf.Timestamp times = 63; Address address = 64;
    }
    enum State { NEW = 0; PAID = 1; SENT = 2; }
    message Item { string sku = 1; int32 amount = 2; repeated string notes = 3; Part part = 4; }
    message Part { double weight = 1; map<string, State> states = 2; }
    message Address { string street = 1; Place place = 2; optional bool current = 3; }
    message Place { string city = 1; google.protobuf.Timestamp since = 2; }
    """
PROTO2 = """
    syntax = "proto2";
    message Old {
      required int64 id = 1;
      optional string text = 2 [default = "none"];
      optional int32 number = 3 [default = -7];
      optional bool plain = 4;
      optional Kind kind = 5 [default = B];
      repeated Kind kinds = 6;
      repeated int32 packed = 7 [packed = true];
      repeated fixed64 loose = 8;
      optional group Part = 9 { optional string a = 1; required int32 b = 2; }
      repeated group Piece = 10 { optional int32 c = 1; }
      oneof one { int32 x = 11 [default = 5]; Inner y = 12; }
      map<int32, Zero> by = 13;
      optional Inner inner = 14;
      optional bytes raw = 536870911;
      enum Zero { NONE = 0; ONE = 1; }
      enum Kind { A = 1; B = 2; C = -3; }
      message Inner { optional Inner2 deeper = 1; optional sint32 z = 2; }
      message Inner2 { repeated Kind kinds = 1; optional float f = 2 [default = 1.5]; }
    }
    """
_NUMBERS = [0, 1, -1, 7, 127, 128, 300, 2**31 - 1, -(2**31), 2**32 - 1, 2**63 - 1, -(2**63), 2**64 - 1]
_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_TOKENS = [
    b"\x00", b"\x07", b"\x80", b"\xff" * 9 + b"\x01", b"\xff" * 9 + b"\x02", b"\xff" * 10, b"\xff\xff\xff\xff\x0f", b"\xfb\x07",
    b"\xfb\x07\xfc\x07", b"\x0b" * 70, b"\x0b" * 90 + b"\x0c" * 90, b"\x4b\x4c", b"\xe2\x82", b"\xed\xa0\x80", b"\x0a\x00",
    b"\x0a\xff\xff\xff\xff\x07", b"\x08\x01", b"\x80\x01\x05", b"\x28\x09", b"\xb2\x02\x00", b"\x32\x01\x07",
]  # fmt: skip


def reader_of(schema: str) -> ProtobufReader:
    return ProtobufReader(compiled(schema, {}))


def scalar(field: Any, rng: random.Random) -> Any:
    if field.enum_type is not None:
        known = [value.number for value in field.enum_type.values]
        return rng.choice(known if field.enum_type.is_closed else [*known, 9, -1])
    if field.cpp_type in _RANGES:
        low, high = _RANGES[field.cpp_type] if field.name != "small" else (-(2**15), 2**15 - 1)
        return rng.choice([number for number in _NUMBERS if low <= number <= high])
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_BOOL:
            return rng.random() < 0.5
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return rng.choice([0.0, -0.0, 1.5, -2.25, float("inf"), float("nan")])
    text = rng.choice(["", "a", "é€😀", "x" * 40])
    return text if field.type == FieldDescriptor.TYPE_STRING else text.encode() + b"\xff"


def fill(message: Any, rng: random.Random, share: float = 0.4) -> Any:
    """Sets a share of the fields."""
    for field in message.DESCRIPTOR.fields:
        if rng.random() > share and not field.is_required:
            continue
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key_field, value_field = field.message_type.fields
            for _ in range(rng.randrange(3)):
                key = scalar(key_field, rng)
                if value_field.message_type is not None:
                    fill(value[key], rng)
                else:
                    value[key] = scalar(value_field, rng)
        elif field.message_type is not None:
            for one in [value.add() for _ in range(rng.randrange(3))] if field.is_repeated else [value]:
                fill_message(one, rng)
        elif field.is_repeated:
            value.extend(scalar(field, rng) for _ in range(rng.randrange(4)))
        else:
            setattr(message, field.name, scalar(field, rng))
    return message


def fill_message(message: Any, rng: random.Random) -> None:
    message.SetInParent()
    odd = rng.random() < 0.02
    name = message.DESCRIPTOR.full_name
    if name in ("google.protobuf.Timestamp", "google.protobuf.Duration"):
        message.seconds = rng.choice(
            [-(10**14), 2**62]
            if odd
            else [10**12 if name.endswith("Timestamp") else 7, 0, 1, 1_700_000_000, 253_402_300, 99]
        )
        message.nanos = rng.choice([-3, 10**9] if odd else [0, 1, 999, 1_999_999, 999_999_999])
    elif name == "google.type.Date":
        message.year, message.month, message.day = rng.choice(
            [(2023, 2, 29), (0, 1, 1), (1, 13, 1)] if odd else [(2024, 2, 29), (1, 1, 1), (9999, 12, 31)]
        )
    elif name == "google.type.TimeOfDay":
        message.hours, message.minutes, message.nanos = rng.choice(
            [(24, 0, 0), (5, -1, 7)] if odd else [(0, 0, 0), (23, 59, 999_999_999)]
        )
    elif name == "confluent.type.Decimal":
        limit = 10**10
        value = rng.choice([limit, -limit, 2**63, -(2**64), 2**127] if odd else [0, 1, -1, 12345, limit - 1, 1 - limit])
        message.value = value.to_bytes(rng.choice([6, 8, 16, 17, 20]) if not odd else 20, "big", signed=True)
        message.scale = rng.choice([2, 3]) if odd else 2
    elif name in ("google.protobuf.Struct", "google.protobuf.ListValue", "google.protobuf.Value"):
        fill(message, rng, 0.3)
    else:
        fill(message, rng)


def damaged(encoded: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    for _ in range(rng.randrange(1, 4)):
        at, more = rng.randrange(len(encoded) + 1), rng.randrange(4)
        match rng.randrange(7):
            case 0:
                encoded = encoded[:at] + rng.choice(_TOKENS) + encoded[at:]
            case 1:
                encoded = encoded[:at] + encoded[at + more :]
            case 2:
                encoded = encoded[:at]
            case 3:
                encoded += rng.choice(others)  # a message in two pieces
            case 4:
                encoded = rng.choice(others) + encoded
            case 5:
                encoded = encoded[:at] + bytes([rng.randrange(256)]) + encoded[at + 1 :]
            case _:
                encoded += rng.choice(_TOKENS)
    return encoded


def plain(value: Any) -> Any:
    """A value that can be compared: the order of a map's entries means nothing, and a NaN is a NaN."""
    if isinstance(value, list):
        if value and all(isinstance(one, tuple) for one in value):
            return sorted((repr(key), plain(item)) for key, item in value)
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return repr(value) if isinstance(value, float) else value


def exact(records: list[bytes]) -> pa.BinaryArray:
    """An array in a buffer of just the length of its bytes, which a sanitizer guards."""
    offsets = np.concatenate([[0], np.cumsum([len(record) for record in records])]).astype(np.int32)
    data = np.frombuffer(b"".join(records), np.uint8).copy()
    return pa.Array.from_buffers(pa.binary(), len(records), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def check(reader: ProtobufReader, records: list[bytes]) -> tuple[int, int]:
    """Compares both ways. Returns how many records native code was sure of, and how many are errors."""
    values = exact(records)
    fast = reader.read(values)
    fast.rows.validate(full=True)
    parser, reader.parser = reader.parser, None
    assert parser is not None
    slow = reader.read(values)
    reader.parser = parser
    assert sorted(fast.errors) == sorted(slow.errors), [
        (records[row].hex(), fast.errors.get(row), slow.errors.get(row))
        for row in fast.errors.keys() ^ slow.errors.keys()
    ][:3]
    for at, name in enumerate(reader.schema.names):
        left, right = plain(python_values(fast.rows.column(at))), plain(python_values(slow.rows.column(at)))
        for row, (one, other) in enumerate(zip(left, right, strict=True)):
            assert one == other, (name, records[row].hex(), one, other)
    for row in fast.errors:
        assert all(column[row].as_py() is None for column in fast.rows.columns)
    outcome = parser.parse(values)[1].tolist()
    assert outcome == [parser.parse(exact([record]))[1][0] for record in records]  # whatever stands behind a record
    return outcome.count(DONE), len(fast.errors)


def fuzz(schema: str, records: int, seed: int) -> tuple[int, int]:
    """Returns how many records native code was sure of, and how many are errors."""
    reader, rng = reader_of(schema), random.Random(seed)
    message = message_factory.GetMessageClass(compiled(schema, {}))
    sure = errors = 0
    for _ in range(max(1, records // 100)):
        whole = [fill(message(), rng, rng.choice([0.1, 0.4, 0.9])).SerializeToString() for _ in range(100)]
        batch = [damaged(one, rng, whole) if rng.random() < 0.6 else one for one in whole]
        counts = check(reader, batch)
        sure, errors = sure + counts[0], errors + counts[1]
    full = fill(message(), rng, 1.0).SerializeToString()
    check(reader, [full[:end] for end in range(len(full))])
    return sure, errors


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--library", type=Path)
    options = parser.parse_args()
    if options.library is not None:
        native.LIBRARY = options.library
        os.environ.pop(
            "LD_PRELOAD", None
        )  # the compiler of schemas needs no sanitizer, which would take too much memory
    for schema in (PROTO3, PROTO2):
        sure, errors = fuzz(schema, options.records // 2, options.seed)
        print(f"{options.records // 2} records: native code was sure of {sure}, {errors} are errors")


if __name__ == "__main__":
    main()
