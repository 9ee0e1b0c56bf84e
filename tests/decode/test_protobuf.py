"""What Protobuf messages are as rows. Every test reads both ways: with native code, and with google.protobuf."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import message_factory

from lakebed.decode.decoder import ReadRecords
from lakebed.decode.json.connect_types import Kind, LogicalType
from lakebed.decode.native import build
from lakebed.decode.native.library import library
from lakebed.decode.typed.protobuf_reader import compiled
from lakebed.far_times import INFINITY_MICROS, MINUS_INFINITY_MICROS
from tests.decode.protobuf_fuzz import PROTO2, PROTO3, check, exact, reader_of


class Topic:
    """Records of one schema."""

    def __init__(self, schema: str) -> None:
        self.reader = reader_of(schema)
        self.message = message_factory.GetMessageClass(compiled(schema, {}))

    def read(self, *records: Any) -> ReadRecords:
        """Reads messages, or bytes, both ways, which agree."""
        encoded = [record if isinstance(record, bytes) else record.SerializeToString() for record in records]
        check(self.reader, encoded)
        return self.reader.read(exact(encoded))

    def row(self, record: Any) -> dict[str, Any]:
        read = self.read(record)
        assert not read.errors
        (row,) = read.rows.to_pylist()
        return dict(row)

    def error(self, record: Any) -> str:
        read = self.read(record)
        return read.errors[0]


@pytest.fixture(scope="module")
def order() -> Topic:
    build.build_if_needed()
    assert library() is not None
    return Topic(PROTO3)


@pytest.fixture(scope="module")
def old() -> Topic:
    return Topic(PROTO2)


def test_the_schema_of_a_row_has_a_column_for_each_field(order: Topic) -> None:
    schema = order.reader.schema
    kinds = {name: str(schema.field(name).type) for name in schema.names}
    assert kinds | {
        "i32": "int32", "u32": "int64", "u64": "decimal128(20, 0)", "s64": "int64", "f32": "int64", "f64": "decimal128(20, 0)",
        "single": "float", "real": "double", "flag": "bool", "text": "string", "raw": "binary", "state": "string",
        "at": "timestamp[us, tz=UTC]", "took": "decimal128(21, 9)", "total": "decimal128(20, 0)", "name": "string",
        "extra": "string", "any_value": "string", "day": "date32[day]", "clock": "int64", "cash": "bool",
        "price": "decimal128(10, 2)", "small": "int16",
    } == kinds  # fmt: skip
    assert schema.field("numbers").type == pa.list_(pa.field("element", pa.int32(), False))
    assert schema.field("by_id").type.key_type == pa.int64()
    assert schema.field("what").type == pa.struct(
        [pa.field("type_url", pa.string(), False), pa.field("value", pa.binary(), False)]
    )


def test_a_field_is_nullable_where_a_message_can_say_that_it_has_none(order: Topic, old: Topic) -> None:
    nullable = {field.name for field in order.reader.schema if field.nullable}
    assert nullable == {
        "maybe", "note", "card", "voucher", "cash", "swap", "at", "took", "total", "name", "extra", "any_value", "day", "clock",
        "what", "price", "rate", "address",
    }  # fmt: skip
    assert {field.name for field in old.reader.schema if field.nullable} == {"plain", "part", "x", "y", "inner", "raw"}


def test_logical_types_are_those_that_arrow_lacks(order: Topic) -> None:
    kinds = order.reader.logical_types
    assert kinds == {"clock": LogicalType(Kind.TIME_NS), "rate": LogicalType(Kind.DECIMAL_VARIABLE)}


def test_an_empty_message_has_zeros_and_nulls(order: Topic) -> None:
    row = order.row(b"")
    zeros = {name: row[name] for name in ("id", "u64", "real", "flag", "text", "raw", "state", "numbers", "counts")}
    assert zeros == {
        "id": 0,
        "u64": 0,
        "real": 0.0,
        "flag": False,
        "text": "",
        "raw": b"",
        "state": "NEW",
        "numbers": [],
        "counts": [],
    }
    assert {row[name] for name in ("maybe", "card", "voucher", "cash", "at", "total")} == {None}


def test_the_largest_numbers_keep_every_digit(order: Topic) -> None:
    m = order.message(
        id=-(2**63),
        i32=-(2**31),
        u32=2**32 - 1,
        u64=2**64 - 1,
        s32=-(2**31),
        s64=2**63 - 1,
        f32=2**32 - 1,
        f64=2**64 - 1,
        sf32=-1,
        sf64=-(2**63),
        real=5e-324,
        single=1.5,
    )
    row = order.row(m)
    assert (row["id"], row["i32"], row["u32"], row["u64"]) == (-(2**63), -(2**31), 2**32 - 1, 2**64 - 1)
    assert (row["s32"], row["s64"], row["f32"], row["f64"]) == (-(2**31), 2**63 - 1, 2**32 - 1, 2**64 - 1)
    assert (row["sf32"], row["sf64"], row["real"], row["single"]) == (-1, -(2**63), 5e-324, 1.5)


def test_an_optional_field_that_is_set_to_zero_is_zero_and_not_null(order: Topic) -> None:
    row = order.row(order.message(maybe=0, note="", voucher=0))
    assert (row["maybe"], row["note"], row["voucher"], row["card"]) == (0, "", 0, None)


def test_an_enum_is_its_name_and_an_unknown_number_of_an_open_one_is_text(order: Topic) -> None:
    row = order.row(order.message(state=1, states=[2, 7]))
    assert (row["state"], row["states"]) == ("PAID", ["SENT", "7"])


def test_an_unknown_number_of_a_closed_enum_is_an_error(old: Topic) -> None:
    assert "no value of the enum Kind" in old.error(bytes.fromhex("0801 2809"))
    assert "no value of the enum Kind" in old.error(bytes.fromhex("0801 3009"))
    assert "entry of unknown values" in old.error(bytes.fromhex("0801 6a04 3800 1000"))  # as the library has it
    assert "by.value is 7, which is no value of the enum Zero" in old.error(bytes.fromhex("0801 6a04 0801 1007"))


def test_proto2_has_declared_defaults_and_nulls(old: Topic) -> None:
    row = old.row(old.message(id=1))
    assert (row["text"], row["number"], row["kind"], row["plain"], row["raw"]) == ("none", -7, "B", None, None)
    assert row["x"] is None  # a member of a oneof is null where another one may be set
    assert old.row(old.message(id=1, inner={"deeper": {}}))["inner"] == {"deeper": {"kinds": [], "f": 1.5}, "z": None}


def test_a_required_field_that_is_missing_is_an_error(old: Topic) -> None:
    assert "lacks id" in old.error(b"")
    assert "lacks part.b" in old.error(bytes.fromhex("0801 4b 4c"))


def test_groups_are_structs(old: Topic) -> None:
    row = old.row(old.message(id=1, part={"a": "x", "b": 2}, piece=[{"c": 3}, {}]))
    assert (row["part"], row["piece"]) == ({"a": "x", "b": 2}, [{"c": 3}, {"c": None}])


def test_a_group_ends_with_its_own_number(old: Topic) -> None:
    assert old.error(bytes.fromhex("0801 4b 1002 54"))
    assert old.error(bytes.fromhex("0801 4b 1002 4b"))


def test_a_number_with_more_bits_than_its_type_is_cut_as_the_library_does(order: Topic) -> None:
    wide = bytes.fromhex("8380808010")  # 2**32 + 3
    row = order.row(b"\x10" + wide + b"\x18" + wide + b"\x28" + wide + b"\x68" + wide)
    assert (row["i32"], row["u32"], row["s32"], row["flag"]) == (3, 3, -2, True)
    assert order.row(b"\x68" + bytes.fromhex("8080808010"))["flag"] is True


def test_the_last_one_of_a_repeated_scalar_wins_and_pieces_of_a_message_are_merged(order: Topic) -> None:
    first, second = order.message(id=1, text="a", numbers=[1]), order.message(id=2, numbers=[2])
    first.address.street, second.address.place.city = "street", "city"
    row = order.row(first.SerializeToString() + second.SerializeToString())
    assert (row["id"], row["text"], row["numbers"]) == (2, "a", [1, 2])
    assert row["address"] == {"street": "street", "place": {"city": "city", "since": None}, "current": None}


def test_the_last_member_of_a_oneof_wins(order: Topic) -> None:
    row = order.row(order.message(card="c").SerializeToString() + order.message(voucher=5).SerializeToString())
    assert (row["card"], row["voucher"]) == (None, 5)
    assert order.row(order.message(cash={}))["cash"] is True


def test_the_last_value_of_a_key_wins(order: Topic) -> None:
    record = order.message(counts={"a": 1}).SerializeToString() + order.message(counts={"a": 2}).SerializeToString()
    assert order.row(record)["counts"] == [("a", 2)]
    many = order.message(counts={f"key {number}": number for number in range(1000)})
    assert dict(order.row(many)["counts"])["key 999"] == 999


def test_lists_are_read_packed_and_one_by_one(order: Topic) -> None:
    packed, single = bytes.fromhex("f201 03 01ac02"), bytes.fromhex("f001 01 f001 ac02")
    assert order.row(packed)["numbers"] == order.row(single)["numbers"] == [1, 300]
    assert order.row(single + packed)["numbers"] == [1, 300, 1, 300]
    assert order.row(bytes.fromhex("fa01 02 0102"))["signed"] == [-1, 1]  # declared as not packed


def test_unknown_fields_are_skipped(order: Topic) -> None:
    strange = bytes.fromhex("c03e01 c13e0102030405060708 c23e0161 c53e01020304 c33e 0801 c43e")
    assert order.row(strange + order.message(id=4).SerializeToString())["id"] == 4


def test_well_known_messages_are_values(order: Topic) -> None:
    m = order.message(day={"year": 2024, "month": 2, "day": 29}, clock={"hours": 23, "nanos": 5})
    m.at.FromJsonString("1969-12-31T23:59:59.999999999Z")
    m.took.FromJsonString("-1.5s")
    m.total.value = 2**64 - 1
    m.name.SetInParent()
    m.extra.update({"b": [1, 2.5, None, True], "a": {"x": "ü"}})
    m.any_value.null_value = 0
    row = order.row(m)
    assert row["at"] == datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)
    assert (row["took"], row["total"], row["name"]) == (Decimal("-1.5"), 2**64 - 1, "")
    assert (row["extra"], row["any_value"]) == ('{"a":{"x":"ü"},"b":[1,2.5,null,true]}', "null")
    assert (row["day"], row["clock"]) == (date(2024, 2, 29), 82_800_000_000_005)


@pytest.mark.parametrize(
    ("seconds", "nanos", "micros"),
    [
        (-63_517_780_800, 5_000, -63_517_780_799_999_995),
        (575_983_828_800, 0, 575_983_828_800_000_000),
        (9_223_372_036_825, 200_000_000, INFINITY_MICROS),
        (-9_223_372_036_833, 600_000_000, MINUS_INFINITY_MICROS),
    ],
)
def test_far_and_infinite_timestamps_are_read(order: Topic, seconds: int, nanos: int, micros: int) -> None:
    rows = order.read(order.message(at={"seconds": seconds, "nanos": nanos})).rows
    assert rows.column("at").cast(pa.int64()).to_pylist() == [micros]


@pytest.mark.parametrize(
    "field, value, reason",
    [
        ("at", {"seconds": 2**62}, "at is no timestamp"),
        ("at", {"nanos": 10**9}, "at is no timestamp"),
        ("times", [{"seconds": 1}, {"nanos": -1}], "times.element is no timestamp"),
        ("took", {"seconds": 1, "nanos": -1}, "took is not a duration"),
        ("took", {"seconds": -(2**63)}, "took is not a duration"),
        ("day", {"year": 2023, "month": 2, "day": 29}, "day is no date"),
        ("day", {"year": 2024}, "day is no date"),
        ("clock", {"hours": 24}, "clock is no time"),
        ("price", {"value": b"\x01", "scale": 3}, "price is a decimal of another scale than 2"),
        ("price", {"value": b"\x7f" * 9, "scale": 2}, "price does not fit decimal128(10, 2)"),
        ("price", {"value": b"\x80" + bytes(15), "scale": 2}, "price does not fit decimal128(10, 2)"),
        ("any_value", {"number_value": float("inf")}, "any_value is no google.protobuf.Value"),
        ("small", 40_000, "small is out of the range of int16"),
        ("address", {"place": {"since": {"nanos": -1}}}, "address.place.since is no timestamp"),
        ("by_id", {1: {"part": {"states": {}}}}, None),
    ],
)  # fmt: skip
def test_what_is_no_value_of_its_type_is_an_error_of_that_record_alone(
    order: Topic, field: str, value: Any, reason: str | None
) -> None:
    read = order.read(order.message(id=1), order.message(**{field: value}), order.message(id=3))
    if reason is None:
        assert not read.errors
        return
    assert list(read.errors) == [1] and reason in read.errors[1]
    assert read.rows.column("id").to_pylist() == [1, None, 3]


def test_decimals_of_connect_have_the_scale_of_the_schema_or_their_own(order: Topic) -> None:
    m = order.message(price={"value": (-12345).to_bytes(2, "big", signed=True), "scale": 2})
    m.rate.value, m.rate.scale, m.rate.precision = b"\x01\x00", 5, 3
    row = order.row(m)
    assert (row["price"], row["rate"]) == (Decimal("-123.45"), {"scale": 5, "value": b"\x01\x00"})
    limit = order.message(price={"value": (10**10 - 1).to_bytes(20, "big", signed=True), "scale": 2})
    assert order.row(limit)["price"] == Decimal("99999999.99")


def test_another_wire_type_than_the_schemas_is_an_error(order: Topic) -> None:
    assert "id (field 1) has wire type 2" in order.error(bytes.fromhex("0a0141"))
    assert "text (field 14) has wire type 0" in order.error(bytes.fromhex("7001"))


def test_a_text_that_is_not_utf8_is_an_error(order: Topic, old: Topic) -> None:
    assert order.error(bytes.fromhex("7202c328"))
    assert "text is not UTF-8" in old.error(bytes.fromhex("0801 1202c328"))


def test_editions_are_read_by_their_features() -> None:
    schema = """
        edition = "2023";
        message E {
          int32 explicit = 1;
          int32 implicit = 2 [features.field_presence = IMPLICIT];
          Inner delimited = 3 [features.message_encoding = DELIMITED];
          repeated int32 expanded = 4 [features.repeated_field_encoding = EXPANDED];
          Closed closed = 5;
          message Inner { string a = 1; }
          enum Closed { option features.enum_type = CLOSED; ONE = 1; }
        }
        """
    topic = Topic(schema)
    m = topic.message(delimited={"a": "x"}, expanded=[1, 2], closed=1)
    assert topic.row(m) == {
        "explicit": None,
        "implicit": 0,
        "delimited": {"a": "x"},
        "expanded": [1, 2],
        "closed": "ONE",
    }
    assert "no value of the enum Closed" in topic.error(bytes.fromhex("2807"))


def test_names_of_fields_may_be_those_of_the_library() -> None:
    topic = Topic(
        'syntax = "proto3"; message M { optional int32 HasField = 1; string FromString = 2; int32 DESCRIPTOR = 3; }'
    )
    m = topic.message(FromString="a")
    assert topic.row(m) == {"HasField": None, "FromString": "a", "DESCRIPTOR": 0}
