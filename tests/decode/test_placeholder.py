"""What Debezium sends in place of a value that it does not have is recognized in every type and format, and nothing else is."""

from __future__ import annotations

import base64
import json
from hashlib import md5
from json import dumps
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from lakebed.decode.debezium.events import DebeziumJson
from lakebed.decode.decoder import Decoded, DecoderSchema
from lakebed.decode.formats import SchemaText, decoder
from lakebed.decode.json.encoded_columns import Placeholder
from lakebed.decode.json.values import JsonOptions
from lakebed.parts.changes import UNAVAILABLE_COLUMN
from tests.decode.avro_events import avro_value, encoded, envelope, envelope_schema
from tests.decode.fuzz import assert_same, only_one_by_one, without_native_code
from tests.decode.records import event, records, with_schema

DEFAULT = "__debezium_unavailable_value"
TIME, CONNECT = "io.debezium.time.", "org.apache.kafka.connect.data."
DECIMAL = {"type": "bytes", "name": CONNECT + "Decimal", "parameters": {"scale": "2"}}
VARIABLE = {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal"}
PLACE = [{"type": "bytes", "field": "wkb", "optional": True}, {"type": "int32", "field": "srid", "optional": True}]
GEOMETRY = {"type": "struct", "fields": PLACE}
POINT = {"type": "struct", "fields": [{"type": "double", "field": "x"}, {"type": "double", "field": "y"}, *PLACE]}
WKB = pa.struct([("wkb", pa.binary()), ("srid", pa.int32())])


def b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def array(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": {**items, "optional": True}}


def place(wkb: str, srid: int | None = 4326, **more: float) -> dict[str, Any]:
    return {"wkb": b64(bytes.fromhex(wkb)), "srid": srid, **more}


def shapes(raw: bytes) -> dict[str, tuple[dict[str, Any], pa.DataType, Any, Any]]:
    """By type: Connect's schema, a column, what stands for a value that was not sent, and a real value that is much like it."""
    text = raw.decode("utf-8", "replace")
    signed = [byte - 256 if byte > 127 else byte for byte in raw]
    string, uuid = {"type": "string"}, str(UUID(bytes=md5(raw).digest(), version=3))
    nowhere, written = "fc83d797c1000000fc83d797c1", json.dumps(text, ensure_ascii=False)
    return {
        "text": (string, pa.string(), text, text + "s"),
        "bytea": ({"type": "bytes"}, pa.binary(), b64(raw), b64(raw + b"\0")),
        "bytea in hex": (string, pa.string(), raw.hex(), raw.hex()[1:] + "g"),
        "text[]": (array(string), pa.list_(pa.string()), [text], [text, text]),
        "bytea[]": (array({"type": "bytes"}), pa.list_(pa.binary()), [b64(raw)], [b64(raw + b"\0")]),
        "uuid[]": (array(string), pa.list_(pa.string()), [uuid], [uuid, uuid]),
        "smallint[]": (array({"type": "int16"}), pa.list_(pa.int16()), signed, signed[1:]),
        "integer[]": (array({"type": "int32"}), pa.list_(pa.int32()), signed, [*signed[1:], 7]),
        "bigint[]": (array({"type": "int64"}), pa.list_(pa.int64()), signed, [*signed[:-1], 7]),
        "date[]": (array({"type": "int32", "name": TIME + "Date"}), pa.list_(pa.date32()), signed, [*signed, 0]),
        "timestamp[]": (
            array({"type": "int64", "name": TIME + "MicroTimestamp"}), pa.list_(pa.timestamp("us")), signed, [*signed, 0],
        ),
        "real[]": (
            array({"type": "float"}), pa.list_(pa.float32()), [float(n) for n in signed], [*map(float, signed[:-1]), 7.5],
        ),
        "vector": (
            array({"type": "double"}), pa.list_(pa.float64()), [float(n) for n in signed], [n + 0.25 for n in signed],
        ),
        "numeric(9,2)[]": (
            array(DECIMAL), pa.list_(pa.decimal128(9, 2)), [b64(bytes([byte])) for byte in raw],
            [b64(bytes([byte])) for byte in raw[:-1]] + [b64(b"\x01")],
        ),
        "numeric[]": (
            array(VARIABLE), pa.list_(pa.decimal128(38, 9)),
            [{"scale": 0, "value": b64(bytes([byte]))} for byte in raw],
            [{"scale": 1, "value": b64(bytes([byte]))} for byte in raw],
        ),
        "boolean[]": (
            array({"type": "boolean"}), pa.list_(pa.bool_()), [byte != 0 for byte in raw], [byte == 0 for byte in raw],
        ),
        "hstore": (
            {"type": "map", "keys": string, "values": string}, pa.map_(pa.string(), pa.string()), {text: text}, {text: ""},
        ),
        "hstore as JSON": (string, pa.string(), f"{{{written}:{written}}}", f'{{{written}:""}}'),
        "geometry": (
            GEOMETRY, WKB, place("0101000020e6100000000000" + nowhere), place("0101000020e610000001000000" + nowhere[2:]),
        ),
        "geography": (
            GEOMETRY, WKB, place("0101000020e61000000c21e7fdff7f66401842cefbff7f5640"),
            place("0101000020e61000000c21e7fdff7f66401842cefbff7f5641"),
        ),
        "geometry by bytes": (GEOMETRY, WKB, {"wkb": b64(raw), "srid": 4326}, {"wkb": b64(raw[1:]), "srid": 4326}),
        "point": (
            POINT, pa.struct([("x", pa.float64()), ("y", pa.float64())]),
            place("0101000000000000" + nowhere, None, x=-99999999.0, y=-99999999.0),
            {"x": -99999999.0, "y": 7.0, "wkb": None, "srid": None},
        ),
    }  # fmt: skip


HEX = "hex:00ff5f8a7b0142c3"
SETTINGS = {
    DEFAULT: DEFAULT.encode(),
    "left out ä": "left out ä".encode(),
    HEX: bytes.fromhex(HEX.removeprefix("hex:")),
    "hex:zz": b"hex:zz",
}
CASES = [
    pytest.param(setting, *shape, id=f"{name} {setting}")
    for setting, raw in SETTINGS.items()
    for name, shape in shapes(raw).items()
    if setting in (DEFAULT, HEX) or name in ("text", "bytea", "text[]", "hstore", "hstore as JSON")
]
SHAPE = pytest.mark.parametrize(("setting", "field", "target", "unsent", "real"), CASES)


def decoder_schema(target: pa.DataType) -> DecoderSchema:
    return DecoderSchema(pa.schema([pa.field("id", pa.int64(), False), pa.field("value", target)]), ("id",))


def updates(values: list[Any]) -> list[dict[str, Any]]:
    return [event("u", {"id": i, "value": value}) for i, value in enumerate(values)]


def assert_unsent(decoded: Decoded, unsent: list[bool]) -> None:
    assert decoded.quarantined["reason"].to_pylist() == []
    if any(unsent):
        found = decoded.changes[UNAVAILABLE_COLUMN].to_pylist()
        assert found == [["value"] if one else None for one in unsent]
    else:
        assert UNAVAILABLE_COLUMN not in decoded.changes.column_names
    assert [value is None for value in decoded.changes["value"].to_pylist()] == unsent


def test_bytes_that_were_not_sent_come_in_any_text() -> None:
    raw = bytes.fromhex("00ffff8a")  # whose base64 has a slash
    forms = [b64(raw), base64.urlsafe_b64encode(raw).decode(), raw.hex(), raw.hex().upper()]
    assert len(set(forms)) == 4 and all(map(Placeholder.of("hex:" + raw.hex()).stands_for, forms))


@SHAPE
@pytest.mark.parametrize("inline", [True, False], ids=["schema", "no schema"])
def test_the_placeholder_of_every_type_is_recognized_in_json(
    setting: str, field: dict[str, Any], target: pa.DataType, unsent: Any, real: Any, inline: bool
) -> None:
    fields = [{"type": "int64", "field": "id"}, {**field, "field": "value", "optional": True}]
    given = [unsent if i % 5 == 1 else real for i in range(15)]
    values = [with_schema(one, fields) if inline else one for one in updates(given)]
    events = records(values)
    options = JsonOptions(unavailable_value=setting, decimal_text="precise")
    fast = DebeziumJson(decoder_schema(target), options).decode(events)
    assert_unsent(fast, [i % 5 == 1 for i in range(15)])
    with without_native_code():
        assert_same(DebeziumJson(decoder_schema(target), options).decode(events), fast)
    with only_one_by_one():
        assert_same(DebeziumJson(decoder_schema(target), options).decode(events), fast)


@SHAPE
def test_the_placeholder_of_every_type_is_recognized_in_avro(
    setting: str, field: dict[str, Any], target: pa.DataType, unsent: Any, real: Any
) -> None:
    fields = [{"type": "int64", "field": "id"}, {**field, "field": "value", "optional": True}]
    schema = envelope_schema(fields)
    values = [encoded(schema, avro_value(one, envelope(fields))) for one in updates([real, unsent, None, real])]
    options = {"schema": SchemaText(text=dumps(schema)), "unavailable_value": setting, "key_format": "none"}
    made = decoder("debezium-avro", decoder_schema(target), options)
    assert made.decode(records(values)).changes[UNAVAILABLE_COLUMN].to_pylist() == [None, ["value"], None, None]
    assert made.decode(records(values)).changes["value"].is_valid().to_pylist() == [True, False, False, True]


JSON_SCHEMAS = {
    "text": {"type": "string"},
    "bytea": {"type": "string", "connect.type": "bytes"},
    "uuid[]": {"type": "array", "items": {"type": "string"}},
    "integer[]": {"type": "array", "items": {"type": "integer", "connect.type": "int32"}},
    "vector": {"type": "array", "items": {"type": "number"}},
    "numeric(9,2)[]": {
        "type": "array",
        "items": {"type": "string", "connect.type": "bytes", "title": DECIMAL["name"], "connect.parameters": {"scale": "2"}},
    },
    "boolean[]": {"type": "array", "items": {"type": "boolean"}},
    "hstore": {"type": "object", "additionalProperties": {"type": "string"}},
    "geometry": {
        "type": "object",
        "properties": {"wkb": {"type": "string", "connect.type": "bytes"}, "srid": {"type": "integer"}},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", JSON_SCHEMAS)
def test_the_placeholder_of_a_type_is_recognized_in_json_with_a_json_schema(name: str) -> None:
    _, target, unsent, real = shapes(DEFAULT.encode())[name]
    row = {"type": "object", "properties": {"id": {"type": "integer"}, "value": JSON_SCHEMAS[name]}}
    schema = {"type": "object", "properties": {"after": row, "op": {"type": "string"}, "ts_ms": {"type": "integer"}}}
    options = {"schema": SchemaText(text=dumps(schema)), "key_format": "none"}
    made = decoder("debezium-json-schema", decoder_schema(target), options)
    assert_unsent(made.decode(records(updates([real, unsent, real]))), [False, True, False])


def test_decimals_that_are_sent_as_numbers_have_a_placeholder_of_numbers() -> None:
    unsent = "[" + ",".join(f"0.{byte:02d}" if byte < 100 else f"{byte / 100:.2f}" for byte in DEFAULT.encode()) + "]"
    values = [json.dumps(one).replace('"UNSENT"', unsent) for one in updates([[1.25], "UNSENT"])]
    for target in (pa.decimal128(9, 2), pa.float32(), pa.float64()):
        fast = DebeziumJson(decoder_schema(pa.list_(target))).decode(records(values))
        assert_unsent(fast, [False, True])
        with only_one_by_one():
            assert_same(fast, DebeziumJson(decoder_schema(pa.list_(target))).decode(records(values)))


@pytest.mark.parametrize("op", ["c", "r"])
def test_a_list_of_trues_is_a_value_where_no_value_is_missing(op: str) -> None:
    value = [True] * len(DEFAULT)
    decoded = DebeziumJson(decoder_schema(pa.list_(pa.bool_()))).decode(records([event(op, {"id": 1, "value": value})]))
    assert decoded.changes["value"].to_pylist() == [value]


def test_an_empty_setting_stands_for_nothing() -> None:
    nothing = Placeholder.of("")
    for value in ("", [], {}, [""], {"": ""}, {"x": -99999999, "y": -99999999}, b"", [True]):
        assert not nothing.stands_for(value, in_update=True)
