"""JSON documents with a JSON Schema: which columns a schema gives, and how documents are read into them."""

from __future__ import annotations

import json
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lakebed.decode.decoder import RecordReader
from lakebed.decode.json.connect_types import Kind, LogicalType
from lakebed.decode.json.text import Unreadable
from lakebed.decode.json_schema import JsonSchemaFormat, JsonSchemaReader
from lakebed.decode.json_schema_types import SCHEMA_BYTES_MAX, columns_of

DECIMAL = {
    "type": "number", "title": "org.apache.kafka.connect.data.Decimal", "connect.type": "bytes",
    "connect.parameters": {"scale": "2", "connect.decimal.precision": "10"},
}  # fmt: skip
ROW = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "shop.orders.Value",
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "integer", "connect.type": "int64"},
        "small": {"oneOf": [{"type": "null"}, {"type": "integer", "connect.type": "int16"}]},
        "text": {"type": ["string", "null"]},
        "at": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"},
        "price": {"oneOf": [{"type": "null"}, DECIMAL]},
        "real": {"type": "number"},
        "flag": {"type": "boolean"},
        "raw": {"type": "string", "connect.type": "bytes"},
        "micros": {"type": "integer", "title": "io.debezium.time.MicroTimestamp", "connect.type": "int64"},
        "place": {"$ref": "#/definitions/Place"},
        "places": {"type": "array", "items": {"$ref": "#/definitions/Place"}},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "definitions": {
        "Place": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "zip": {"type": ["integer", "null"]}},
            "required": ["city"],
        }
    },
}


def compiled(schema: Any, references: dict[str, Any] | None = None) -> RecordReader:
    texts = {name: json.dumps(one) for name, one in (references or {}).items()}
    return JsonSchemaFormat().compile(json.dumps(schema), texts)


def read(reader: RecordReader, *documents: Any) -> tuple[list[dict[str, Any]], dict[int, str]]:
    encoded = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in documents]
    out = reader.read(pa.array(encoded, pa.binary()))
    out.rows.validate(full=True)
    assert out.rows.num_rows == len(documents)
    return out.rows.to_pylist(), dict(out.errors)


@pytest.mark.parametrize(
    "schema, kind",
    [
        ({"type": "integer"}, "int64"),
        ({"type": "integer", "connect.type": "int8"}, "int8"),
        ({"type": "integer", "format": "int32"}, "int32"),
        ({"type": "number"}, "double"),
        ({"type": "number", "connect.type": "float32"}, "float"),
        ({"type": "number", "connect.type": "int8"}, "double"),
        ({"type": ["integer", "number"]}, "double"),
        ({"type": "boolean"}, "bool"),
        ({"type": "string"}, "string"),
        ({"type": "string", "format": "date-time"}, "timestamp[us, tz=UTC]"),
        ({"type": "string", "title": "io.debezium.time.ZonedTimestamp"}, "timestamp[us, tz=UTC]"),
        ({"type": "string", "format": "date"}, "date32[day]"),
        ({"type": "string", "format": "uuid"}, "string"),
        ({"type": "string", "contentEncoding": "base64"}, "binary"),
        ({"type": "string", "connect.type": "bytes"}, "binary"),
        (DECIMAL, "decimal128(10, 2)"),
        ({**DECIMAL, "connect.parameters": {"scale": "0"}}, "decimal128(38, 0)"),
        ({"enum": ["a", "b"]}, "string"),
        ({"enum": [1, 2]}, "int64"),
        ({"const": True}, "bool"),
        ({"type": "array", "items": {"type": "integer"}}, "list<element: int64 not null>"),
        ({"items": {"type": ["integer", "null"]}}, "list<element: int64>"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "map<string, double"),
        ({"type": "object", "patternProperties": {"^x": {"type": "integer"}}}, "map<string, int64"),
        ({"properties": {"a": {"type": "integer"}}, "required": ["a"]}, "struct<a: int64 not null>"),
        ({"allOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"b": {"type": "string"}}, "required": ["b"]}]},
         "struct<a: int64, b: string not null>"),
        ({"anyOf": [{"type": "integer"}, {"type": "integer", "minimum": 3}]}, "int64"),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, "string"),
        ({"type": ["integer", "string"]}, "string"),
        ({"type": "object"}, "string"),
        ({"type": "array"}, "string"),
        ({"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "integer"}}, "string"),
        ({"type": "array", "items": [{"type": "integer"}]}, "string"),
        ({}, "string"),
        (True, "string"),
    ],
)  # fmt: skip
def test_a_schema_gives_a_type(schema: Any, kind: str) -> None:
    field = compiled({"type": "object", "properties": {"x": schema}, "required": ["x"]}).schema.field("x")
    assert str(field.type).startswith(kind)


@pytest.mark.parametrize(
    "schema, required, nullable",
    [
        ({"type": "integer"}, True, False),
        ({"type": "integer"}, False, True),
        ({"type": ["integer", "null"]}, True, True),
        ({"type": "integer", "nullable": True}, True, True),
        ({"oneOf": [{"type": "null"}, {"type": "integer"}]}, True, True),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, True, True),
        ({"enum": [1, None]}, True, True),
        ({"enum": [1, 2]}, True, False),
        ({}, True, True),
        ({"$ref": "#/$defs/maybe"}, True, True),
    ],
)
def test_a_column_is_nullable_where_the_schema_allows_null_or_absence(
    schema: Any, required: bool, nullable: bool
) -> None:
    whole = {"type": "object", "properties": {"x": schema}, "$defs": {"maybe": {"type": ["integer", "null"]}}}
    field = compiled({**whole, "required": ["x"] if required else []}).schema.field("x")
    assert field.nullable == nullable


@pytest.mark.parametrize(
    "reference, other",
    [
        ("#/$defs/item", None),
        ("#item", None),
        ("item.json", {"item.json": {"type": "integer"}}),
        ("shop/item.json#/definitions/a~1b%25", {"shop/item.json": {"definitions": {"a/b%": {"type": "integer"}}}}),
        ("http://shop/item", {"any name": {"$id": "http://shop/item", "type": "integer"}}),
        (
            "chain.json",
            {"chain.json": {"$ref": "item.json#/$defs/i"}, "item.json": {"$defs": {"i": {"type": "integer"}}}},
        ),
    ],
)
def test_references_are_followed(reference: str, other: dict[str, Any] | None) -> None:
    whole = {"properties": {"x": {"$ref": reference}}, "$defs": {"item": {"$anchor": "item", "type": "integer"}}}
    assert compiled(whole, other).schema.field("x").type == pa.int64()


def test_parts_of_other_documents_keep_their_own_references() -> None:
    base = {"properties": {"x": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}}}
    whole = {
        "allOf": [{"$ref": "base.json"}],
        "properties": {"y": {"type": "string"}},
        "$defs": {"n": {"type": "boolean"}},
    }
    kinds = {field.name: str(field.type) for field in compiled(whole, {"base.json": base}).schema}
    assert kinds == {"y": "string", "x": "int64"}


@pytest.mark.parametrize(
    "schema, reason",
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "nested too deep"),
        ("3", "is not a schema"),
        ({"properties": {"x": {"$ref": "#/$defs/gone"}}}, "refers to '#/$defs/gone' at x, where nothing is"),
        ({"properties": {"x": {"$ref": "gone.json"}}}, "neither in it nor a reference"),
        ({"properties": {"x": {"$ref": 5}}}, "$ref at x is not a string"),
        ({"properties": {"x": {"$ref": "#"}}}, "'x' contains itself"),
        ({"properties": {"x": {"type": "array", "items": {"$ref": "#/properties/x"}}}}, "contains itself"),
        ({"properties": {"x": {"$ref": "#/properties/x"}}}, "lead to each other"),
        ({"properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}}, "lead to each other"),
        ({"properties": {"x": False}}, "allows no value at x"),
        ({"properties": {"x": {**DECIMAL, "connect.parameters": {}}}}, "without a scale"),
        ({"properties": {"x": {**DECIMAL, "connect.parameters": {"scale": "40"}}}}, "precision 38 and scale 40"),
        ({"properties": {"x": {"title": [], "type": ["object", 3], "properties": {"y": 7}}}}, "is not a schema at x.y"),
        ({"properties": {f"c{at}": {"type": "integer"} for at in range(10_001)}}, "more than 10000 fields"),
        ('"' + "x" * SCHEMA_BYTES_MAX + '"', "more than 8388608 bytes"),
    ],
)  # fmt: skip
def test_a_schema_that_can_not_be_mapped_is_refused_with_the_reason(schema: Any, reason: str) -> None:
    with pytest.raises(Unreadable) as raised:
        JsonSchemaFormat().compile(schema if isinstance(schema, str) else json.dumps(schema), {})
    assert reason in str(raised.value) and len(str(raised.value)) < 700


def test_a_schema_that_is_nested_deep_or_grows_is_refused() -> None:
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(70):
        deep = {"properties": {"x": deep}}
    with pytest.raises(Unreadable, match="nested more than 64 deep"):
        compiled(deep)
    levels = {f"l{at}": {"properties": {f"c{n}": {"$ref": f"#/$defs/l{at + 1}"} for n in range(10)}} for at in range(9)}
    with pytest.raises(Unreadable, match="more than 10000 fields"):
        compiled({"properties": {"x": {"$ref": "#/$defs/l0"}}, "$defs": {**levels, "l9": {"type": "integer"}}})


def test_documents_become_rows() -> None:
    reader = compiled(ROW)
    assert reader.logical_types == {"micros": LogicalType(Kind.TIMESTAMP_US)}
    rows, errors = read(
        reader,
        {"id": 1, "small": 5, "text": "a", "at": "2024-01-02T03:04:05.5+01:00", "day": "2024-02-29", "price": "MDk=", "real": 1,
         "flag": True, "raw": "AAE=", "micros": 7, "place": {"city": "x"}, "places": [{"city": "y", "zip": 1}], "tags": []},
        {"id": 2, "price": 12.5, "more": [{"unknown": None}]},
    )  # fmt: skip
    assert not errors
    assert rows[0] == {
        "id": 1, "small": 5, "text": "a", "at": datetime(2024, 1, 2, 2, 4, 5, 500_000, UTC), "day": date(2024, 2, 29),
        "price": Decimal("123.45"), "real": 1.0, "flag": True, "raw": b"\0\1", "micros": 7, "place": {"city": "x", "zip": None},
        "places": [{"city": "y", "zip": 1}], "tags": [],
    }  # fmt: skip
    assert {name for name, value in rows[1].items() if value is not None} == {"id", "price"}
    assert rows[1]["price"] == Decimal("12.50")


@pytest.mark.parametrize(
    "document, reason",
    [
        ({}, "'id' is missing"),
        ({"id": None}, "'id' is null"),
        ({"id": 1, "small": 40_000}, "small: 40000 is out of the range of int16"),
        ({"id": 1, "place": {}}, "place: 'city' in it may not be null"),
        ({"id": 1, "places": [None]}, "places: 'element' in it may not be null"),
        ({"id": 1, "at": "yesterday"}, 'at: "yesterday" is not a valid timestamp'),
        ({"id": 1, "at": 1_700_000_000}, "at: 1700000000 is a text by its schema, so no timestamp"),
        ({"id": 1, "day": 19782}, "day: 19782 is a text by its schema, so no date"),
        ({"id": 1, "price": 12.345}, "price: 12.345 has more than 2 digits"),
        ({"id": 1, "raw": "%"}, "raw:"),
        ([], "not a JSON object"),
        (b"", "not JSON"),
        (b"\xff", "not UTF-8"),
        (b'{"id":1}{"id":2}', "not JSON"),
        (b'{"id":1} null', "not JSON"),
        (b'{"id":1,"tags":' + b"[" * 10_000 + b"]" * 10_000 + b"}", "tags:"),
        (b'{"id":' + b"9" * 5_000 + b"}", "id:"),
    ],
)
def test_a_document_that_does_not_fit_is_an_error_of_its_own(document: Any, reason: str) -> None:
    good = [{"id": at} for at in range(100)]
    rows, errors = read(compiled(ROW), *good, document, *good)
    assert list(errors) == [100] and reason in errors[100]
    assert [row["id"] for row in rows] == [*range(100), None, *range(100)]


def test_a_map_may_have_times() -> None:
    schema = {
        "properties": {"at": {"type": "object", "additionalProperties": {"type": "string", "format": "date-time"}}}
    }
    rows, errors = read(compiled(schema), {"at": {"a": "2024-01-02T03:04:05Z"}}, {"at": {"a": 5}})
    assert rows[0] == {"at": [("a", datetime(2024, 1, 2, 3, 4, 5, 0, UTC))]}
    assert errors == {1: "at: 5 is a text by its schema, so no timestamp"}


def test_a_value_that_is_no_object_is_the_column_value() -> None:
    reader = compiled({"type": "integer"})
    rows, errors = read(reader, 5, b'6,"x":7', "a", b"null")
    assert reader.schema == pa.schema([pa.field("value", pa.int64(), False)])
    assert [row["value"] for row in rows] == [5, None, None, None] and sorted(errors) == [1, 2, 3]
    assert [row["value"] for row in read(compiled({"type": ["string", "null"]}), "a", None)[0]] == ["a", None]


def test_what_documents_have_beyond_the_schema_is_counted() -> None:
    documents = [{"id": 1}, {"id": 2, "more": 1, "place": {"city": "x", "street": 1}}, {"id": 3, "more": None}]
    read_records = compiled(ROW).read(pa.array([json.dumps(one).encode() for one in documents], pa.binary()))
    assert not read_records.errors and read_records.unknown_fields == {"more": 2, "place.street": 1}


def test_columns_of_anything_hold_the_json_text() -> None:
    reader = compiled(
        {"properties": {"a": {}, "b": {"type": "object"}, "m": {"additionalProperties": {"type": "integer"}}}}
    )
    rows, errors = read(reader, {"a": [1.50, None], "b": {"x": {}}, "m": {"k": 1}}, {"a": "text", "b": {}, "m": {}})
    assert not errors
    assert rows[0] == {"a": "[1.5,null]", "b": '{"x":{}}', "m": [("k", 1)]}
    assert rows[1] == {"a": "text", "b": "{}", "m": []}


def documents(rng: random.Random, count: int) -> list[bytes]:
    """Rows of ROW, some of them damaged or odd."""
    out = []
    for at in range(count):
        row = {
            "id": at, "small": rng.choice([1, None, -5]), "text": rng.choice(["", "é", "x\n"]), "at": "2024-01-02T03:04:05Z",
            "day": "2024-02-29", "price": rng.choice(["MDk=", "AA=="]), "real": rng.choice([1.5, 2]), "flag": True, "raw": "AAE=",
            "micros": 7, "place": rng.choice([None, {"city": "x", "zip": 1}]), "places": [{"city": "y"}], "tags": ["a", "b"],
        }  # fmt: skip
        if rng.random() < 0.1:
            odd = [
                None,
                1,
                -0.0,
                "1",
                "x",
                [],
                {},
                True,
                12.5,
                "2024-01-01",
                {"city": None},
                [None],
                [{"zip": 1}],
                2**70,
            ]
            row[rng.choice(list(row))] = rng.choice(odd)
        if rng.random() < 0.1:
            del row[rng.choice(list(row))]
        text = json.dumps(row, ensure_ascii=rng.random() < 0.5).encode()
        if rng.random() < 0.05:
            cut = rng.randrange(len(text))
            text = (
                text[:cut]
                + rng.choice([b"", b"\x00", b"\xff", b'"', b"}", b"\\ud800"])
                + text[cut + rng.randrange(3) :]
            )
        out.append(text)
    return out


@pytest.mark.parametrize("native", ["on", "off"])
def test_documents_are_read_alike_as_a_whole_and_one_by_one(native: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if native == "off":
        monkeypatch.setattr("lakebed.decode.json.objects.library", lambda: None)
    rng = random.Random(5)
    columns, is_object = columns_of(json.dumps(ROW), {})
    errors = 0
    for count in (1, 30, 300, 500):
        values = pa.array(documents(rng, count), pa.binary())
        whole = JsonSchemaReader(columns, is_object).read(values)
        with monkeypatch.context() as patched:
            patched.setattr("lakebed.decode.json_schema.reader_for", lambda *_: None)
            single = JsonSchemaReader(columns, is_object).read(values)
        assert whole.errors == single.errors
        assert whole.rows.to_pylist() == single.rows.to_pylist()
        errors += len(whole.errors)
    assert 40 < errors < 400
