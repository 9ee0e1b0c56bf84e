"""Fields that nest deeper than a column may are left out, and their records come in."""

from __future__ import annotations

from contextlib import nullcontext
from json import dumps
from typing import Any

import pyarrow as pa
import pytest

from lakebed.decode.debezium.inline_schemas import row_of_envelope
from lakebed.decode.decoder import Decoder, DecoderSchema
from lakebed.decode.formats import SchemaText, decoder
from lakebed.pipeline.database.new_tables import Rows, introduction
from lakebed.pipeline.database_section import TableWishes
from lakebed.schema.fitting import LEVELS_MAX, TOO_DEEP, EvolvePolicy, levels_of
from tests.decode.avro_events import avro_value, encoded, envelope, envelope_schema
from tests.decode.fuzz import only_one_by_one
from tests.decode.records import event, records, with_schema

POLICY = EvolvePolicy(allowed=frozenset({"add"}))
LONG: dict[str, Any] = {"type": "int64"}
IN: dict[str, Any] = {
    "struct": lambda inner: {"type": "struct", "fields": [{**inner, "field": "a", "optional": True}]},
    "list": lambda inner: {"type": "array", "items": inner},
    "map": lambda inner: {"type": "map", "keys": {"type": "string"}, "values": inner},
}
AROUND: dict[str, Any] = {"struct": lambda one: {"a": one}, "list": lambda one: [one], "map": lambda one: {"k": one}}
LEVELS = {"struct": 1, "list": 2, "map": 2}


def deep(kind: str, times: int) -> tuple[dict[str, Any], Any]:
    """A schema of Connect that nests, and a value of it."""
    schema, value = LONG, 1
    for _ in range(times):
        schema, value = IN[kind](schema), AROUND[kind](value)
    return schema, value


def fields_with(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**LONG, "field": "id"}, {**schema, "field": "v", "optional": True}]


def made(format: str, fields: list[dict[str, Any]], columns: list[Any]) -> Decoder:
    schema = DecoderSchema(pa.schema(columns), ("id",), policy=POLICY)
    text = SchemaText(text=dumps(envelope_schema(fields)))
    return decoder(format, schema, {} if format == "debezium-json" else {"schema": text, "key_format": "none"})


def as_record(format: str, fields: list[dict[str, Any]], value: Any) -> Any:
    change = event("c", {"id": 1, "v": value})
    if format == "debezium-json":
        return with_schema(change, fields)
    return encoded(envelope_schema(fields), avro_value(change, envelope(fields)))


@pytest.mark.parametrize("kind", IN)
@pytest.mark.parametrize("more", [0, 1])
def test_a_table_is_made_without_a_field_that_is_too_deep(kind: str, more: int) -> None:
    fields = fields_with(deep(kind, LEVELS_MAX // LEVELS[kind] + more)[0])
    columns = row_of_envelope(with_schema(event("c"), fields)["schema"])
    assert columns is not None
    found = introduction(Rows(columns=columns, key=("id",)), TableWishes(), POLICY)
    assert found.columns.names == (["id"] if more else ["id", "v"])
    left_out = found.remarks.get("left_out_field", {})
    assert list(left_out) == ([f"v ({TOO_DEEP})"] if more else [])


@pytest.mark.parametrize("kind", IN)
@pytest.mark.parametrize("times", [25, 29])
@pytest.mark.parametrize("format", ["debezium-json", "debezium-avro"])
@pytest.mark.parametrize("reading", [nullcontext, only_one_by_one])
def test_a_record_comes_in_without_a_field_that_is_too_deep(kind: str, times: int, format: str, reading: Any) -> None:
    times = times * 2 if kind == "struct" and format == "debezium-json" else times
    schema, value = deep(kind, times)
    fields = fields_with(schema)
    decoder = made(format, fields, [pa.field("id", pa.int64(), False)])
    table = records([as_record(format, fields, value)] * 40)
    needed = decoder.schema_needed(table)
    if times * LEVELS[kind] <= LEVELS_MAX:
        assert needed is not None and levels_of(needed.add["v"]) == times
        return
    assert needed is None
    with reading():
        decoded = decoder.decode(table)
    assert decoded.changes["id"].to_pylist() == [1] * 40 and decoded.quarantined.num_rows == 0
    assert list(decoded.remarks["left_out_field"]) == [f"v ({TOO_DEEP})"]


@pytest.mark.parametrize("format", ["debezium-json", "debezium-avro"])
def test_a_struct_keeps_the_fields_that_are_not_too_deep(format: str) -> None:
    inner, value = deep("list", LEVELS_MAX // 2)
    struct = {"type": "struct", "fields": [{**LONG, "field": "x"}, {**inner, "field": "deep", "optional": True}]}
    fields = fields_with(struct)
    some = pa.struct([("x", pa.int64())])
    decoder = made(format, fields, [pa.field("id", pa.int64(), False)])
    table = records([as_record(format, fields, {"x": 7, "deep": value})] * 40)
    needed = decoder.schema_needed(table)
    assert needed is not None and needed.add == {"v": some}
    decoder = made(format, fields, [pa.field("id", pa.int64(), False), pa.field("v", some)])
    assert decoder.schema_needed(table) is None
    decoded = decoder.decode(table)
    assert decoded.changes["v"].to_pylist() == [{"x": 7}] * 40
    assert list(decoded.remarks["left_out_field"]) == [f"v.deep ({TOO_DEEP})"]
