"""Records of one Avro schema read by another, by the rules of the specification: what has no rule is refused, never guessed."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest

from lakebed.decode.json.text import Unreadable
from lakebed.decode.typed.avro_schema import encoded, number, parse_schema
from tests.decode.avro_fuzz import exactly
from tests.decode.test_avro import POINT, fixed, logical, read, readers, record, refusal


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def row(*fields: dict[str, Any], name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def resolved(writer: Any, reader: Any, raw: bytes) -> Any:
    """The value of the only field, written as one type and read as another."""
    got = read(row(field("a", writer)), raw, reader=row(field("a", reader)))
    assert got.errors == {}, got.errors
    return got.rows.column(0)[0].as_py()


@pytest.mark.parametrize(
    ("writer", "reader", "raw", "wanted"),
    [
        ("int", "long", number(-5), -5),
        ("int", "float", number(2**24 + 1), float(2**24)),
        ("int", "double", number(2**24 + 1), float(2**24 + 1)),
        ("long", "double", number(2**53 + 1), float(2**53)),
        ("long", "float", number(2**60 + 2**36 + 1), float(2**60 + 2**37)),  # by way of a double it would be 2**60
        ("float", "double", struct.pack("<f", 0.1), struct.unpack("<f", struct.pack("<f", 0.1))[0]),
        ("string", "bytes", b"\4\xc3\xa9", b"\xc3\xa9"),
        ("bytes", "string", b"\4\xc3\xa9", "é"),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, b"\2\2\0", [1]),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "double"}, b"\2\2k\2\0", [("k", 1.0)]),
        ("int", ["null", "long"], b"\2", 1),
        (["null", "int"], ["null", "long"], b"\2\2", 1),
        (["null", "int"], ["null", "long"], b"\0", None),
        (["int", "null"], ["null", "int"], b"\0\2", 1),
        (["null", "int"], "int", b"\2\2", 1),
        ("int", ["string", "long", "int"], b"\2", {"member_string": None, "member_long": None, "member_int": 1}),
        ("int", ["string", "double"], b"\2", {"member_string": None, "member_double": 1.0}),
        (fixed(2), ["null", {**fixed(2), "name": "other.F2"}], b"ab", b"ab"),
        (fixed(2), {**fixed(2), "name": "G", "aliases": ["F2"]}, b"ab", b"ab"),
        ("long", logical("long", "timestamp-micros"), number(0), pa.scalar(0, pa.timestamp("us", "UTC")).as_py()),
    ],
)
def test_values_take_the_type_of_the_reader(writer: Any, reader: Any, raw: bytes, wanted: Any) -> None:
    assert resolved(writer, reader, raw) == wanted


def test_fields_are_found_by_name_then_by_alias_and_in_any_order() -> None:
    writer = row(field("a", "int"), field("b", "string"), field("c", "boolean"), field("d", "int"))
    reader = row(
        field("c", "boolean"), field("renamed", "string", aliases=["b", "d"]), field("d", "long", aliases=["a"])
    )
    got = read(writer, b"\2\2x\1\4", reader=reader)
    assert got.rows.to_pylist() == [{"c": True, "renamed": "x", "d": 2}]


def test_fields_that_nobody_reads_are_skipped_whatever_they_are() -> None:
    everything = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
    tree = row(field("children", {"type": "array", "items": "Tree"}), field("value", everything), name="Tree")
    writer = row(field("tree", tree), field("m", {"type": "map", "values": ["Tree", fixed(2)]}), field("a", "int"))
    leaves = b"\6" + b"\0\2\1" + b"\0\6\6" + b"\0\x0e\4hi" + b"\0" + b"\0"  # three children and no value
    entries = b"\3\x0c\2k\0" + b"\0\0" + b"\0"
    got = read(writer, leaves + b"\0" + b"\2", leaves + b"\2\2k\2ab\0" + b"\2", entries, reader=row(field("a", "int")))
    assert (got.rows.to_pylist(), list(got.errors)) == ([{"a": 1}, {"a": 1}, {"a": None}], [2])


def test_what_is_skipped_may_contain_itself_sixty_four_times() -> None:
    node = row(field("a", "int"), field("next", ["null", "R"]))
    reader = row(field("a", "int"))

    def chain(length: int) -> bytes:
        return b"\2\2" * (length - 1) + b"\2\0"

    got = read(node, chain(64), chain(65), chain(50_000), chain(1), reader=reader)
    assert got.rows.to_pylist() == [{"a": 1}, {"a": None}, {"a": None}, {"a": 1}]
    assert got.errors[1] == got.errors[2] == "not a record of its Avro schema: more than 64 levels in 'next'"


@pytest.mark.parametrize(
    ("kind", "default", "wanted"),
    [
        ("null", None, None),
        ("boolean", True, True),
        ("int", -(2**31), -(2**31)),
        ("long", 2**63 - 1, 2**63 - 1),
        ("float", 1, 1.0),
        ("double", 0.1, 0.1),
        ("bytes", "\u00ff\u0000", b"\xff\x00"),
        ("string", "né", "né"),
        (fixed(2), "\u00ffa", b"\xffa"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
        ({"type": "array", "items": "int"}, [1, 2], [1, 2]),
        ({"type": "array", "items": "int"}, [], []),
        ({"type": "map", "values": "string"}, {"k": "v"}, [("k", "v")]),
        (["null", "int"], None, None),
        (["int", "null"], 3, 3),
        (["null", "string"], "x", "x"),
        (POINT, {"x": 1, "y": None}, {"x": 1, "y": None}),
        (row(field("x", "int", default=9), name="S"), {}, {"x": 9}),
        (["int", "string"], "x", {"member_int": None, "member_string": "x"}),
        (logical("int", "date"), 0, pa.scalar(0, pa.date32()).as_py()),
    ],
)
def test_fields_that_the_writer_lacks_have_their_default(kind: Any, default: Any, wanted: Any) -> None:
    reader = row(field("a", "int"), field("b", kind, default=default))
    got = read(row(field("a", "int")), b"\2", b"", b"\4", reader=reader)
    column = got.rows.to_pylist()
    assert [each.get("b") for each in column] == [wanted, None, wanted]
    assert list(got.errors) == [1]


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("int", 2**31),
        ("int", True),
        ("int", 1.5),
        ("float", 1e300),
        ("boolean", 0),
        ("bytes", "€"),
        ("string", 1),
        (fixed(2), "abc"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B"),
        ({"type": "array", "items": "int"}, ["x"]),
        (POINT, {"x": 1}),
        (["null", "int"], "x"),
    ],
)
def test_a_default_of_another_type_is_refused(kind: Any, default: Any) -> None:
    assert "a default value of" in refusal(
        row(field("a", "int")), row(field("a", "int"), field("b", kind, default=default))
    )


def test_a_default_that_contains_itself_is_refused() -> None:
    reader = row(field("a", "int"), field("b", row(field("c", ["null", "S"], default={}), name="S"), default={}))
    with pytest.raises(Unreadable, match="nested too deep"):
        encoded(parse_schema('{"type":"record","name":"S","fields":[{"name":"c","type":"S","default":{}}]}'), {})
    assert "contains itself" in refusal(row(field("a", "int")), reader)


def test_symbols_are_found_by_name_and_unknown_ones_take_the_default() -> None:
    writer = row(field("a", {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}))
    fewer = {"type": "enum", "name": "E", "symbols": ["C", "A"]}
    got = read(writer, b"\0", b"\2", b"\4", reader=row(field("a", fewer)))
    assert got.rows.to_pylist() == [{"a": "A"}, {"a": None}, {"a": "C"}]
    assert got.errors == {1: "not a record of its Avro schema: a symbol that the reader's schema does not have in 'a'"}
    got = read(writer, b"\0", b"\2", b"\4", reader=row(field("a", {**fewer, "default": "A"})))
    assert got.rows.to_pylist() == [{"a": "A"}, {"a": "A"}, {"a": "C"}]


def test_a_branch_that_the_reader_lacks_is_an_error_of_the_records_that_have_it() -> None:
    writer, reader = row(field("a", ["null", "int", "string"])), row(field("a", ["null", "int"]))
    got = read(writer, b"\0", b"\2\2", b"\4\2x", reader=reader)
    assert got.rows.to_pylist() == [{"a": None}, {"a": 1}, {"a": None}]
    assert got.errors == {2: "not a record of its Avro schema: 'a': 'string' was written, which is not '[null, int]'"}
    got = read(row(field("a", ["null", "int"])), b"\0", b"\2\2", reader=row(field("a", "int")))
    assert list(got.errors) == [0]


@pytest.mark.parametrize(
    ("writer", "reader", "why"),
    [
        ("long", "int", "'a': 'long' was written, which is not 'int'"),
        ("double", "float", "'a': 'double' was written, which is not 'float'"),
        ("int", "string", "'a': 'int' was written, which is not 'string'"),
        ("null", "int", "'a': 'null' was written"),
        (fixed(2), {**fixed(3), "name": "F2"}, "'a': 'F2' was written"),
        (fixed(2), {**fixed(2), "name": "G"}, "'a': 'F2' was written, which is not 'G'"),
        (["int", "string"], "boolean", "'a': 'int' was written"),
        (
            {"type": "array", "items": "int"},
            {"type": "map", "values": "int"},
            "'array' was written, which is not 'map'",
        ),
        ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, "'a.element': 'long' was written"),
        (logical("long", "timestamp-millis"), logical("long", "timestamp-micros"), "'timestamp-millis' was written"),
        (
            logical("bytes", "decimal", precision=5, scale=2),
            logical("bytes", "decimal", precision=5, scale=1),
            "'decimal' was written",
        ),
        ("string", logical("bytes", "decimal", precision=5), "'string' was written, which is not 'decimal'"),
    ],
)
def test_schemas_that_do_not_match_are_refused_at_once(writer: Any, reader: Any, why: str) -> None:
    told = refusal(row(field("a", writer)), row(field("a", reader)))
    assert told.startswith("the writer's Avro schema can't be read by the reader's: ") and why in told


def test_a_field_without_default_and_a_record_of_another_name_are_refused() -> None:
    assert "the field 'b' is not in the writer's schema and has no default" in refusal(
        row(field("a", "int")), row(field("a", "int"), field("b", "int"))
    )
    assert "'R' was written, which is not 'S'" in refusal(row(field("a", "int")), row(field("a", "int"), name="S"))
    aliased = row(field("a", "int"), name="ns.S", aliases=["other.R"])
    assert read(row(field("a", "int"), name="other.R"), b"\2", reader=aliased).rows.to_pylist() == [{"a": 1}]


def test_the_readers_schema_says_what_is_nullable() -> None:
    native, _ = readers(
        row(field("a", ["null", "int"])), row(field("a", "int"), field("b", ["null", "int"], default=None))
    )
    assert [column.nullable for column in native.schema] == [False, True]
    assert native.read(exactly([b"\0", b"\2\2"])).rows.to_pylist() == [{"a": None, "b": None}, {"a": 1, "b": None}]


def test_a_wide_record_reads_as_a_narrow_one() -> None:
    writer = record(*["string"] * 10)
    got = read(writer, b"\2x" * 10, reader=row(field("j", "string")))
    assert got.rows.to_pylist() == [{"j": "x"}]
