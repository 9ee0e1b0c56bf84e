"""Dates and timestamps of the whole range that their numbers have: what is stored is the same in every format and path."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import message_factory

from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.formats import SchemaText, decoder
from lakebed.decode.typed.protobuf_reader import compiled
from lakebed.far_times import INFINITY_DAY, MINUS_INFINITY_DAY, RANGE_BEGIN, RANGE_END, iso_text
from lakebed.parts.changes import WriteSpec, prepare
from lakebed.storage.engine import connect
from tests.decode.avro_events import avro_value, encoded, envelope, envelope_schema
from tests.decode.fuzz import only_one_by_one, without_native_code
from tests.decode.records import event, records, with_schema
from tests.worlds import seeds

DAY, STAMP, LOCAL = pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us")
SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("day", DAY), ("at", STAMP), ("local", LOCAL)])
EPOCH_DAYS = [
    -(2**31),
    -(2**31) + 1,
    2**31 - 1,
    -2_147_472_692,
    -2_147_472_691,
    -719_163,
    -719_162,
    2_932_896,
    2_932_897,
]
MICROS = [
    -(2**63),
    -(2**63) + 1,
    2**63 - 1,
    9_223_372_036_825_200_000,
    -9_223_372_036_832_400_000,
    RANGE_BEGIN,
    RANGE_END,
]
MICROS += [
    RANGE_BEGIN - 1,
    RANGE_END - 1,
    -62_135_596_800_000_001,
    253_402_300_800_000_000,
    -210_831_897_600_000_001,
    -1,
]
PLUS = (2**31 - 1, 2_146_033_979, -2_147_472_692, -622_191_234, -622_191_233)
MINUS = (-(2**31), -(2**31) + 1, -2_147_472_691, -625_821_272, -625_821_271)
NAMES = {
    "day": "io.debezium.time.Date",
    "at": "io.debezium.time.MicroTimestamp",
    "local": "io.debezium.time.MicroTimestamp",
}
FIELDS = [{"type": "int64", "field": "id"}, {"type": "int32", "field": "day", "name": NAMES["day"], "optional": True}]
FIELDS += [{"type": "int64", "field": name, "name": NAMES[name], "optional": True} for name in ("at", "local")]
TEXTS = [{"type": "int64", "field": "id"}, {"type": "string", "field": "day", "name": "io.debezium.time.IsoDate"}]
TEXTS += [{"type": "string", "field": name, "name": "io.debezium.time.ZonedTimestamp"} for name in ("at", "local")]
AVRO = {"type": "record", "name": "row", "fields": [
    {"name": "id", "type": "long"}, {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
]}  # fmt: skip
PROTOBUF = """syntax = "proto3"; import "google/protobuf/timestamp.proto";
message Row { int64 id = 1; int32 day = 2; google.protobuf.Timestamp at = 3; google.protobuf.Timestamp local = 4; }"""
JSON_SCHEMA = {"type": "object", "properties": {
    "id": {"type": "integer"}, "day": {"type": "integer", "title": NAMES["day"], "connect.type": "int32"},
    "at": {"type": "string", "format": "date-time"},
    "local": {"type": "integer", "title": NAMES["local"], "connect.type": "int64"},
}}  # fmt: skip

Row = tuple[int, int, int]


def rows(seed: int) -> list[Row]:
    rng = random.Random(seed)
    days = [*EPOCH_DAYS, *PLUS, *MINUS] + [rng.randint(-(2**31), 2**31 - 1) for _ in range(40)]
    days += [rng.choice([-1, 1]) * rng.randrange(1 << rng.randrange(1, 31)) for _ in range(40)]
    micros = MICROS + [rng.randint(-(2**63), 2**63 - 1) for _ in range(40)]
    micros += [rng.choice([-1, 1]) * rng.randrange(1 << rng.randrange(1, 63)) for _ in range(40)]
    return [(rng.choice(days), rng.choice(micros), rng.choice(micros)) for _ in range(200)]


def stored(row: Row) -> Row:
    """What a table holds, by the rules and not by their code."""
    day, *times = row
    day = INFINITY_DAY if day in PLUS else MINUS_INFINITY_DAY if day in MINUS else day
    plus, minus = INFINITY_DAY * 86_400_000_000, MINUS_INFINITY_DAY * 86_400_000_000
    at, local = (minus if one < RANGE_BEGIN else plus if one >= RANGE_END else one for one in times)
    return day, at, local


def numbered(row: Row, number: int) -> dict[str, Any]:
    return {"id": number, **dict(zip(("day", "at", "local"), row, strict=True))}


def as_texts(row: Row, number: int) -> dict[str, Any]:
    day, at, local = row
    text = iso_text(day, DAY)
    return {
        "id": number,
        "day": text if text.endswith("infinity") else text + "Z",
        "at": iso_text(at, STAMP),
        "local": iso_text(local, LOCAL),
    }


def as_protobuf(row: Row, number: int) -> bytes:
    day, *times = row
    message = message_factory.GetMessageClass(compiled(PROTOBUF, {}))(id=number, day=day)
    for name, micros in zip(("at", "local"), times, strict=True):
        getattr(message, name).seconds, rest = divmod(micros, 1_000_000)
        getattr(message, name).nanos = rest * 1000
    return message.SerializeToString()


def avro_envelope(row: Row, number: int) -> bytes:
    value = avro_value(event("c", numbered(row, number)), envelope(FIELDS))
    return encoded(envelope_schema(FIELDS), value)


def as_json_schema(row: Row, number: int) -> dict[str, Any]:
    return {**numbered(row, number), "at": as_texts(row, number)["at"]}


def typed(schema: Any) -> dict[str, Any]:
    return {"schema": SchemaText(text=schema if isinstance(schema, str) else json.dumps(schema)), "key_format": "none"}


FORMS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "numbers with a schema": ("debezium-json", {}, lambda row, n: with_schema(event("c", numbered(row, n)), FIELDS)),
    "texts with a schema": ("debezium-json", {}, lambda row, n: with_schema(event("c", as_texts(row, n)), TEXTS)),
    "numbers": ("debezium-json", {"timestamp_unit": "us"}, lambda row, n: event("c", numbered(row, n))),
    "texts": ("json", {}, as_texts),
    "avro of debezium": ("debezium-avro", typed(envelope_schema(FIELDS)), avro_envelope),
    "avro": ("avro", typed(AVRO), lambda row, n: encoded(AVRO, numbered(row, n))),
    "protobuf": ("protobuf", typed(PROTOBUF), as_protobuf),
    "json schema": ("json-schema", typed(JSON_SCHEMA), as_json_schema),
}


def numbers(table: pa.Table) -> dict[int, Row]:
    plain = table.cast(pa.schema([("id", pa.int64()), ("day", pa.int32()), ("at", pa.int64()), ("local", pa.int64())]))
    return {row["id"]: (row["day"], row["at"], row["local"]) for row in plain.to_pylist()}


@seeds(1)
@pytest.mark.parametrize("form", FORMS)
def test_a_time_of_the_whole_range_is_stored_alike_whatever_its_form(form: str, seed: int) -> None:
    kind, options, of = FORMS[form]
    given = rows(seed)
    made = decoder(kind, DecoderSchema(SCHEMA, ("id",)), options)
    some = records([of(row, number) for number, row in enumerate(given)])
    expected = dict(enumerate(map(stored, given)))
    for slower in (None, without_native_code, only_one_by_one):
        if slower is only_one_by_one and "json" not in kind:
            continue
        if slower is None:
            decoded = made.decode(some)
        else:
            with slower():
                decoded = made.decode(some)
        assert decoded.quarantined["reason"].to_pylist() == []
        prepared = prepare(decoded.changes, WriteSpec(schema=SCHEMA, keys=("id",)), connect())
        assert numbers(prepared.select(SCHEMA.names)) == expected, slower


@seeds(1)
def test_a_time_of_the_whole_range_is_stored_alike_from_arrow(seed: int) -> None:
    given = rows(seed)
    days, ats, locals_ = zip(*given, strict=True)
    table = pa.table(
        [
            pa.array(range(len(given)), pa.int64()), pa.array(days, pa.int32()).view(DAY), pa.array(ats, pa.int64()).view(STAMP),
            pa.array(locals_, pa.int64()).view(LOCAL),
        ],
        SCHEMA.names,
    )  # fmt: skip
    prepared = prepare(table, WriteSpec(schema=SCHEMA, keys=("id",)), connect())
    assert numbers(prepared.select(SCHEMA.names)) == dict(enumerate(map(stored, given)))
