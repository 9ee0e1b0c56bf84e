"""Avro records become Arrow rows: every type, exactly; what is no record is an error of its own, whatever its bytes are."""

from __future__ import annotations

import io
import json
import pickle
import resource
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest

from lakebed.decode.decoder import ReadRecords
from lakebed.decode.json.connect_types import Kind, LogicalType
from lakebed.decode.json.text import Unreadable
from lakebed.decode.native.library import library
from lakebed.decode.typed.avro_reader import AvroFormat, AvroReader
from lakebed.decode.typed.avro_schema import number, parse_schema
from tests.decode import avro_fuzz
from tests.worlds import seeds

TOO_LARGE = "a number that is too large for its type in 'a'"
DIGITS = "a decimal with no digits or too many in 'a'"
INT_ARRAY = {"type": "array", "items": "int"}
POINT = {
    "type": "record",
    "name": "Point",
    "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": ["null", "int"]}],
}


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    named = [{"name": "abcdefghij"[place], "type": kind} for place, kind in enumerate(fields)]
    return {"type": "record", "name": name, "fields": named}


def fixed(size: int, **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": f"F{size}", "size": size, **more}


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def readers(writer: Any, reader: Any = None) -> tuple[AvroReader, AvroReader]:
    return avro_fuzz.both(writer, writer if reader is None else reader)


def read(writer: Any, *records: bytes, reader: Any = None) -> ReadRecords:
    """What both ways of reading say."""
    return ReadRecords(*avro_fuzz.assert_agree(*readers(writer, reader), list(records)))


def encoded(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return out.getvalue()


def value_of(kind: Any, raw: bytes) -> Any:
    """The value of a field of the type."""
    got = read(record(kind), raw)
    assert got.errors == {}, got.errors
    return got.rows.column(0)[0].as_py()


def fault_of(kind: Any, raw: bytes) -> str:
    """Why the bytes are no record with a field of the type; its neighbours are read as always."""
    good = avro_fuzz.World(1).encoded(record(kind), avro_fuzz.named_types(record(kind)))
    got = read(record(kind), good, raw, good)
    assert list(got.errors) == [1]
    assert got.rows.slice(0, 1).equals(got.rows.slice(2, 1))
    return got.errors[1].removeprefix("not a record of its Avro schema: ")


def refusal(schema: Any, reader: Any = None) -> str:
    with pytest.raises(Unreadable) as refused:
        readers(schema, reader)
    return str(refused.value)


def test_the_native_reader_is_what_is_compared() -> None:
    assert library() is not None


@pytest.mark.parametrize(
    ("kind", "arrow", "given", "wanted"),
    [
        ("boolean", pa.bool_(), True, True),
        ("int", pa.int32(), -(2**31), -(2**31)),
        ("long", pa.int64(), 2**63 - 1, 2**63 - 1),
        ("float", pa.float32(), 0.5, 0.5),
        ("double", pa.float64(), 0.1, 0.1),
        ("bytes", pa.binary(), b"\xff\x00", b"\xff\x00"),
        ("string", pa.string(), "é€😀", "é€😀"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, pa.string(), "B", "B"),
        (fixed(3), pa.binary(), b"abc", b"abc"),
        (INT_ARRAY, pa.list_(pa.field("element", pa.int32(), False)), [1, 2], [1, 2]),
        (
            {"type": "map", "values": "long"},
            pa.map_(pa.string(), pa.field("value", pa.int64(), False)),
            {"k": 1},
            [("k", 1)],
        ),
        (
            POINT,
            pa.struct([pa.field("x", pa.int32(), False), ("y", pa.int32())]),
            {"x": 1, "y": None},
            {"x": 1, "y": None},
        ),
        (["int", "long"], pa.int64(), 2**40, 2**40),
        (["double", "float"], pa.float64(), 0.1, 0.1),
        (
            ["int", "string", POINT],
            pa.struct(
                [
                    ("member_int", pa.int32()),
                    ("member_string", pa.string()),
                    ("member_point", pa.struct([pa.field("x", pa.int32(), False), ("y", pa.int32())])),
                ]
            ),
            "s",
            {"member_int": None, "member_string": "s", "member_point": None},
        ),
        (logical("bytes", "decimal", precision=5, scale=2), pa.decimal128(5, 2), Decimal("-9.99"), Decimal("-9.99")),
        (
            fixed(9, logicalType="decimal", precision=18, scale=18),
            pa.decimal128(18, 18),
            Decimal("0.000000000000000001"),
            Decimal("0.000000000000000001"),
        ),
        ({"type": "int", "connect.type": "int16"}, pa.int16(), -(2**15), -(2**15)),
        ({"type": "int", "connect.type": "int8"}, pa.int8(), 127, 127),
        (logical("int", "date"), pa.date32(), date(1969, 12, 31), date(1969, 12, 31)),
        (
            logical("long", "timestamp-millis"),
            pa.timestamp("ms", "UTC"),
            datetime(2024, 1, 2, 3, 4, 5, 6000, UTC),
            datetime(2024, 1, 2, 3, 4, 5, 6000, UTC),
        ),
        (
            logical("long", "local-timestamp-micros"),
            pa.timestamp("us"),
            datetime(1900, 1, 2, 3, 4, 5, 6),
            datetime(1900, 1, 2, 3, 4, 5, 6),
        ),
        (logical("string", "uuid"), pa.string(), UUID(int=5), str(UUID(int=5))),
    ],
)
def test_a_value_becomes_one_of_its_natural_arrow_type(kind: Any, arrow: pa.DataType, given: Any, wanted: Any) -> None:
    branches = kind if isinstance(kind, list) else [kind]
    named = [branch.get("name", branch) if isinstance(branch, dict) else branch for branch in branches]
    schema = record(kind, ["null", *named])
    reader = readers(schema)[0]
    assert list(reader.schema) == [pa.field("a", arrow, False), pa.field("b", arrow, True)]
    got = read(schema, encoded(schema, {"a": given, "b": None}), encoded(schema, {"a": given, "b": given}))
    assert got.rows.to_pylist() == [{"a": wanted, "b": None}, {"a": wanted, "b": wanted}]


@pytest.mark.parametrize(
    ("kind", "arrow", "meaning"),
    [
        (logical("int", "time-millis"), pa.int64(), LogicalType(Kind.TIME_MS)),
        (logical("long", "time-micros"), pa.int64(), LogicalType(Kind.TIME_US)),
        (
            {"type": "long", "connect.name": "io.debezium.time.NanoTimestamp"},
            pa.int64(),
            LogicalType(Kind.TIMESTAMP_NS),
        ),
        ({"type": "int", "connect.name": "io.debezium.time.Date"}, pa.int32(), LogicalType(Kind.DATE_DAYS)),
        (
            {"type": "string", "connect.name": "io.debezium.time.ZonedTimestamp"},
            pa.string(),
            LogicalType(Kind.TIMESTAMP_TEXT),
        ),
        (logical("bytes", "decimal", precision=64, scale=3), pa.binary(), LogicalType(Kind.DECIMAL_BYTES, scale=3)),
        (
            {
                "type": "bytes",
                "connect.name": "org.apache.kafka.connect.data.Decimal",
                "connect.parameters": {"scale": "4"},
            },
            pa.binary(),
            LogicalType(Kind.DECIMAL_BYTES, scale=4),
        ),
        (
            {"type": "array", "items": logical("int", "time-millis")},
            pa.list_(pa.field("element", pa.int64(), False)),
            LogicalType(item=LogicalType(Kind.TIME_MS)),
        ),
        (
            {
                "type": "record",
                "name": "V",
                "connect.name": "io.debezium.data.VariableScaleDecimal",
                "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
            },
            pa.struct([pa.field("scale", pa.int32(), False), pa.field("value", pa.binary(), False)]),
            LogicalType(Kind.DECIMAL_VARIABLE),
        ),
    ],
)
def test_what_arrow_types_can_not_say_is_a_logical_type(kind: Any, arrow: pa.DataType, meaning: LogicalType) -> None:
    reader = readers(record(kind))[0]
    assert (reader.schema.field("a").type, reader.logical_types) == (arrow, {"a": meaning})


@pytest.mark.parametrize(
    ("kind", "arrow"),
    [
        (logical("string", "date"), pa.string()),
        (logical("bytes", "decimal", precision=2, scale=3), pa.binary()),
        (logical("bytes", "decimal", precision=0), pa.binary()),
        (fixed(2, logicalType="decimal", precision=5), pa.binary()),
        (fixed(15, logicalType="uuid"), pa.binary()),
        (fixed(12, logicalType="duration"), pa.binary()),
        (logical("long", "stardate"), pa.int64()),
    ],
)
def test_a_logical_type_that_is_unknown_or_not_valid_is_ignored(kind: Any, arrow: pa.DataType) -> None:
    assert readers(record(kind))[0].schema.field("a").type == arrow


def test_uuids_of_bytes_become_texts_and_nanoseconds_stay() -> None:
    some = UUID("12345678-90ab-cdef-1234-567890abcdef")
    assert value_of(fixed(16, logicalType="uuid"), some.bytes) == str(some)
    moment = read(record(logical("long", "timestamp-nanos")), number(-1)).rows.column(0)
    assert (moment.type, moment[0].value) == (pa.timestamp("ns", "UTC"), -1)


def test_a_key_that_is_no_record_has_one_field() -> None:
    got = read("long", number(5), b"")
    assert got.rows.to_pylist() == [{"value": 5}, {"value": None}]
    assert list(got.errors) == [1]
    assert read(["null", POINT], b"\2\2\0").rows.to_pylist() == [{"value": {"x": 1, "y": None}}]


def test_a_field_that_is_always_null_has_no_column() -> None:
    got = read(record("null", "int", ["null"]), b"\2\0")
    assert got.rows.to_pylist() == [{"b": 1}]


def test_a_record_without_fields_is_a_row_without_columns() -> None:
    got = read(record(), b"", b"x", b"")
    assert (got.rows.num_rows, got.rows.num_columns, list(got.errors)) == (3, 0, [1])


def test_a_narrowed_reader_makes_columns_of_the_wanted_fields_alone() -> None:
    inner = {
        "type": "record",
        "name": "Inner",
        "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "string"}],
    }
    reader = readers(record(["null", inner], "string", "Inner"))[0]
    narrow = reader.narrowed({"a": ["x"], "c": None, "z": None})
    assert [(one.name, one.nullable) for one in narrow.schema] == [("a", True), ("c", False)]
    whole, null, broken = b"\2\2\2y\2b\4\2z", b"\0\2b\4\2z", b"\2\2\2\xff\2b\4\2z"
    got = narrow.read(avro_fuzz.exactly([whole, null, broken]))
    assert got.rows.to_pylist()[:2] == [{"a": {"x": 1}, "c": {"x": 2, "y": "z"}}, {"a": None, "c": {"x": 2, "y": "z"}}]
    assert got.errors == {
        2: "not a record of its Avro schema: a text that is not UTF-8 in 'a.y'"
    }  # skipped, and checked


# -- schemas ------------------------------------------------------------------------------------------------------------------


def test_names_are_resolved_by_their_namespaces() -> None:
    inner = {"type": "enum", "name": "Colour", "symbols": ["RED"]}
    schema = {
        "type": "record",
        "name": "shop.Order",
        "fields": [
            {"name": "a", "type": inner},
            {"name": "b", "type": "Colour"},
            {"name": "c", "type": "shop.Colour"},
            {"name": "d", "type": {"type": "enum", "name": "Colour", "namespace": "other", "symbols": ["BLUE"]}},
            {"name": "e", "type": ["null", "other.Colour"]},
        ],
    }
    row = {"a": "RED", "b": "RED", "c": "RED", "d": "BLUE", "e": "BLUE"}
    assert read(schema, b"\0\0\0\0\2\0").rows.to_pylist() == [row]


def test_references_define_types_for_those_that_come_after_them() -> None:
    country = json.dumps({"type": "enum", "name": "geo.Country", "symbols": ["NL"]})
    fields = [{"name": "country", "type": "geo.Country"}]
    address = json.dumps({"type": "record", "name": "geo.Address", "fields": fields})
    text = json.dumps(record("geo.Address", "geo.Country"))
    reader = AvroFormat().compile(text, {"country": country, "address": address})
    row = {"a": {"country": "NL"}, "b": "NL"}
    assert reader.read(pa.array([b"\0\0"], pa.binary())).rows.to_pylist() == [row]
    with pytest.raises(Unreadable, match=r"'geo.Address' that neither it nor its references define"):
        AvroFormat().compile(text, {"country": country})


def test_a_format_can_be_pickled() -> None:
    chosen = AvroFormat(json.dumps(record("int")))
    assert pickle.loads(pickle.dumps(chosen)) == chosen


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "record", "name": "R"}, "the record 'R' has no fields"),
        ({"type": "record", "fields": []}, "a record has no name"),
        (record({"type": "array"}), "null is no type"),
        (record("strnig"), "names a type 'strnig' that neither"),
        (record(["int", ["null"]]), "a union holds a union"),
        (record(["int", "int"]), "a union has 'int' twice"),
        (record([]), "a union has no types"),
        (record({"name": "x"}), "has no 'type'"),
        (record({"type": "enum", "name": "E", "symbols": ["A", "A"]}), "the enum 'E' has a symbol twice"),
        (record({"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}), "is none of its symbols"),
        (record(fixed(-1)), "the fixed 'F-1' has no size"),
        (record(fixed(3), fixed(3, aliases=["G"])), "the type 'F3' is defined twice"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}] * 2}, "has a field 'a' twice"),
        (record("\ud800"), "is not JSON"),
        (record(["null", "R"]), "the record 'R' contains itself"),
        (record({"type": "array", "items": "null"}), "array or map of nulls"),
        (record({"type": "array", "items": fixed(0)}), "the array 'a' can't be a column: its items take no bytes"),
        (record({"type": "map", "values": ["null"]}), "array or map of nulls"),
        (record(["string", "int", fixed(3, name="a.Int")]), "2 types of a union would be the field 'member_int'"),
    ],
)
def test_a_schema_that_is_not_valid_or_can_not_be_columns_says_why(schema: Any, why: str) -> None:
    assert why in refusal(schema)


def test_schemas_are_bounded() -> None:
    deep: Any = "int"
    for _ in range(70):
        deep = {"type": "array", "items": deep}
    assert "nested more than 64 levels" in refusal(record(deep))
    with pytest.raises(Unreadable, match="nested too deep"):
        parse_schema('{"type":"array","items":' * 100_000)
    laughs = record("int", name="L0")
    for level in range(1, 40):  # each has the one before twice: 2**40 columns in 3 KB
        laughs = record(laughs, f"L{level - 1}", name=f"L{level}")
    assert "more than 10,000 columns" in refusal(laughs)
    assert "more than 100,000 steps" in refusal(laughs, {**record(name="L39"), "aliases": ["L39"]})
    with pytest.raises(Unreadable, match="is not JSON"):
        parse_schema("not JSON")


# -- bytes that are no record -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "raw", "fault"),
    [
        ("int", b"", "the record ends too early in 'a'"),
        ("int", b"\x80", "the record ends too early in 'a'"),
        ("int", b"\x02\x02", "bytes behind the record's end"),
        ("int", number(2**31), TOO_LARGE),
        ("int", number(-(2**31) - 1), TOO_LARGE),
        ({"type": "int", "connect.type": "int16"}, number(2**15), TOO_LARGE),
        ({"type": "int", "connect.type": "int8"}, number(-129), TOO_LARGE),
        ("long", b"\xff" * 9 + b"\x02", "a number of more than 64 bits in 'a'"),
        ("long", b"\xff" * 10 + b"\x01", "a number of more than 64 bits in 'a'"),
        ("double", b"\0" * 7, "the record ends too early in 'a'"),
        ("boolean", b"\x02", "a boolean that is neither 0 nor 1 in 'a'"),
        ("string", number(-1), "a length below zero in 'a'"),
        ("string", number(2**40) + b"abc", "the record ends too early in 'a'"),
        ("string", number(2**63 - 1) + b"abc", "the record ends too early in 'a'"),
        ("string", number(2) + b"\xff\xfe", "a text that is not UTF-8 in 'a'"),
        ("string", number(3) + b"\xed\xa0\x80", "a text that is not UTF-8 in 'a'"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, number(1), "a symbol that the enum does not have in 'a'"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, number(-1), "a symbol that the enum does not have in 'a'"),
        (["null", "int"], number(2), "a branch that the union does not have in 'a'"),
        (["null", "int"], number(-1), "a branch that the union does not have in 'a'"),
        (fixed(3), b"ab", "the record ends too early in 'a'"),
        (INT_ARRAY, number(2**40) + b"\x02", "the record ends too early in 'a.element'"),
        (INT_ARRAY, number(-2) + number(1) + b"\x02\x02\0", "a block that is not as long as it says in 'a'"),
        (INT_ARRAY, number(-2) + number(3) + b"\x02\x02\0", "a block that is not as long as it says in 'a'"),
        (INT_ARRAY, number(-1) + number(2**62) + b"\x02\0", "the record ends too early in 'a'"),
        (INT_ARRAY, number(-1) + number(-1) + b"\x02\0", "a length below zero in 'a'"),
        (INT_ARRAY, number(-(2**63)) + number(1) + b"\x02\0", "the record ends too early in 'a.element'"),
        ({"type": "map", "values": "int"}, b"\x04\x02k\x02\x02k\x04\0", "a key twice in 'a'"),
        ({"type": "map", "values": "int"}, b"\x02\x02k\x02\x02\x02k\x04\0", "a key twice in 'a'"),
        ({"type": "map", "values": "int"}, b"\x02\x02\xff\x02\0", "a text that is not UTF-8 in 'a'"),
        (logical("bytes", "decimal", precision=3), b"\0", DIGITS),
        (logical("bytes", "decimal", precision=3), number(2) + b"\x03\xe8", DIGITS),
        (logical("bytes", "decimal", precision=38), number(17) + b"\x00\x80" + b"\0" * 15, DIGITS),
        (logical("bytes", "decimal", precision=38), number(18) + b"\1" * 18, DIGITS),
        (POINT, b"\x02\x02", "the record ends too early in 'a.y'"),
    ],
)  # fmt: skip
def test_bytes_that_are_no_record_are_an_error_beside_good_neighbours(kind: Any, raw: bytes, fault: str) -> None:
    assert fault_of(kind, raw) == fault


def test_values_at_the_ends_of_their_ranges_are_read() -> None:
    nines = 10**38 - 1
    for whole in (nines, -nines, 0, -1, 127, 128, -128, -129):
        for size in (16, 17, 40):
            raw = number(size) + whole.to_bytes(size, "big", signed=True)
            assert value_of(logical("bytes", "decimal", precision=38), raw) == Decimal(whole)
    assert value_of("long", b"\x82\x80\x80\0") == 1  # more bytes than it needs
    many = b"".join(number(len(key)) + key + b"\2" for key in (b"%d" % place for place in range(1000)))
    assert len(value_of({"type": "map", "values": "int"}, number(1000) + many + b"\0")) == 1000


def test_numbers_of_every_length_are_read_wherever_they_are() -> None:
    whole = [sign * (1 << bits) + more for bits in range(63) for sign in (1, -1) for more in (-1, 0, 1)]
    for behind in (b"", b"\0" * 20):
        records = [number(value) + number(len(behind)) + behind for value in whole]
        got = read(record("long", "bytes"), *records)
        assert (got.rows.column(0).to_pylist(), got.errors) == (whole, {})


def test_texts_of_every_length_are_checked_wherever_they_are() -> None:
    good = ["x" * before + "é" + "y" * behind for before in range(20) for behind in range(20)]
    for rest in (b"", b"\xff" * 20):
        records = [number(len(text.encode())) + text.encode() + number(len(rest)) + rest for text in good]
        got = read(record("string", "bytes"), *records)
        assert (got.rows.column(0).to_pylist(), got.errors) == (good, {})
        bad = [each.replace(b"\xc3", b"x") for each in records]
        wanted = {"not a record of its Avro schema: a text that is not UTF-8 in 'a'"}
        assert set(read(record("string", "bytes"), *bad).errors.values()) == wanted
        assert len(read(record("string", "bytes"), *bad).errors) == len(bad)


def test_a_count_of_items_that_are_not_there_takes_no_memory() -> None:
    empty = record(name="Empty")
    schema = record({"type": "array", "items": "int"}, {"type": "map", "values": empty})
    wild = [number(count) + b"\2" * 5 for count in (2**62, -(2**62), 2**31, 10**9)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    got = read(schema, *wild * 100)
    assert len(got.errors) == 400
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KB


def test_values_that_take_no_bytes_are_bounded() -> None:
    wide = {"type": "record", "name": "Wide", "fields": [{"name": f"f{at}", "type": "int"} for at in range(1000)]}
    lines = record({"type": "array", "items": ["null", wide]})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    few, many = (number(count) + b"\0" * count + b"\0" for count in (10, 100_000))
    got = read(lines, few, many, many)
    assert got.rows.column(0).to_pylist() == [[None] * 10, None, None]
    assert set(got.errors.values()) == {
        "not a record of its Avro schema: more values than its few bytes can be meant to have in 'a.element'"
    }
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KB; all nulls take 400,000
    before_and_after = record(["null", wide], ["null", "Wide"])
    assert read(before_and_after, *[b"\0\0"] * 10).errors == {}


def test_batches_may_be_empty_or_parts_of_others() -> None:
    for reader in readers(record("int")):
        assert reader.read(pa.array([], pa.binary())).rows.num_rows == 0
        assert reader.read(avro_fuzz.exactly([])).rows.num_rows == 0
        piece = pa.array([b"x", b"\2", b"\4", b""], pa.binary()).slice(1, 3)
        got = reader.read(piece)
        assert (got.rows.to_pylist(), list(got.errors)) == ([{"a": 1}, {"a": 2}, {"a": None}], [2])


def test_items_without_bytes_that_nobody_reads_are_skipped_at_once() -> None:
    schema = record({"type": "array", "items": "null"}, "int")
    wanted = {**record(name="R"), "fields": [{"name": "b", "type": "int"}]}
    got = read(schema, number(2**62) + b"\0\2", number(-(2**62)) + b"\0\0\2", reader=wanted)
    assert (got.rows.to_pylist(), got.errors) == ([{"b": 1}, {"b": 1}], {})


@seeds(20, quick=5)
def test_random_records_of_random_schemas_whole_and_damaged(seed: int) -> None:
    avro_fuzz.run(seed)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(avro_fuzz.sanitizer() is None, reason="the compiler has no AddressSanitizer to preload")
def test_the_native_reader_passes_sanitizers() -> None:
    ended = avro_fuzz.sanitized(25, 1000)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_python_alone_reads_where_there_is_no_native_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakebed.decode.typed.avro_reader.library", lambda: None)
    point = parse_schema(json.dumps(POINT))
    assert AvroReader(point, point).read(pa.array([b"\2\0"], pa.binary())).rows.to_pylist() == [{"x": 1, "y": None}]
