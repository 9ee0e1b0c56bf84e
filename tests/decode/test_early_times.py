"""Numbers taken for times in January 1970, or for far dates or times, are remarked upon, where no schema says their unit."""

from __future__ import annotations

from contextlib import nullcontext
from json import dumps
from typing import Any

import pyarrow as pa
import pytest

from lakebed.decode.decoder import Decoded, DecoderSchema
from lakebed.decode.formats import SchemaText, decoder
from tests.decode.avro_events import avro_value, encoded, envelope, envelope_schema
from tests.decode.fuzz import only_one_by_one, without_native_code
from tests.decode.records import event, records, with_schema

SECONDS, MILLIS = 1_700_000_000, 1_700_000_000_000
AT = pa.timestamp("us", "UTC")
LONG = {"type": "int64"}
STRUCT = {"type": "struct", "fields": [{**LONG, "field": "at", "optional": True}]}
SHAPES = {
    "timestamp": (LONG, AT, lambda value: value),
    "list": ({"type": "array", "items": {**LONG, "optional": True}}, pa.list_(AT), lambda value: [None, MILLIS, value]),
    "struct": (STRUCT, pa.struct([("at", AT)]), lambda value: {"at": value}),
    "list of structs": ({"type": "array", "items": STRUCT}, pa.list_(pa.struct([("at", AT)])), lambda v: [{"at": v}]),
    "map": ({"type": "map", "values": LONG}, pa.map_(pa.string(), AT), lambda value: {"a": MILLIS, "b": value}),
}
SHAPE = pytest.mark.parametrize(("field", "target", "made"), SHAPES.values(), ids=SHAPES)
READING = pytest.mark.parametrize("reading", [nullcontext, only_one_by_one, without_native_code])
VALUES = [SECONDS, MILLIS, 0, None, SECONDS, -5]


def decoded_as(format: str, field: dict[str, Any], target: pa.DataType, values: list[Any], **options: Any) -> Decoded:
    """Rows with the values, of which each even one is of an update, and the deletes of all of them."""
    schema = DecoderSchema(pa.schema([pa.field("id", pa.int64(), False), ("at", target)]), ("id",))
    fields = [{"type": "int64", "field": "id"}, {**field, "field": "at", "optional": True}]
    rows = [{"id": n, "at": value} for n, value in enumerate(values)]
    changes = [event("cu"[n % 2], row) for n, row in enumerate(rows)] + [event("d", None, row) for row in rows]
    match format:
        case "json":
            given: list[Any] = list(rows)
        case "debezium-avro":
            written = envelope_schema(fields)
            given = [encoded(written, avro_value(one, envelope(fields))) for one in changes]
            options |= {"schema": SchemaText(text=dumps(written)), "key_format": "none"}
        case _:
            given = [with_schema(one, fields) for one in changes]
    return decoder(format, schema, options).decode(records(given))


@SHAPE
@READING
@pytest.mark.parametrize("format", ["json", "debezium-json", "debezium-avro"])
def test_they_are_counted_by_column(
    format: str, field: dict[str, Any], target: pa.DataType, made: Any, reading: Any
) -> None:
    with reading():
        decoded = decoded_as(format, field, target, [None if value is None else made(value) for value in VALUES])
    assert decoded.quarantined["reason"].to_pylist() == []
    assert decoded.remarks == {"january_1970": {"at": 2}}


DAYS = pa.date32()


@READING
@pytest.mark.parametrize("format", ["json", "debezium-json", "debezium-avro"])
@pytest.mark.parametrize(
    ("field", "target", "made"),
    [
        (LONG, DAYS, lambda value: value),
        ({"type": "array", "items": {**LONG, "optional": True}}, pa.list_(DAYS), lambda value: [None, 19_000, value]),
        (STRUCT, pa.struct([("at", DAYS)]), lambda value: {"at": value}),
    ],
)
def test_numbers_of_days_beyond_the_year_9999_are_counted_by_column(
    format: str, field: dict[str, Any], target: pa.DataType, made: Any, reading: Any
) -> None:
    values = [SECONDS, 19_000, 2_932_896, 2_932_897, 0, -719_162, -719_163, 2**31 - 1]
    with reading():
        decoded = decoded_as(format, field, target, [made(value) for value in values])
    assert decoded.quarantined["reason"].to_pylist() == []
    assert decoded.remarks == {"far_date": {"at": 3}}


FIRST, LAST = -62_135_596_800, 253_402_300_799
"""The first and the last second of the years 1 to 9999."""


@pytest.mark.parametrize(
    ("field", "target", "made"),
    [
        SHAPES["timestamp"],
        SHAPES["list of structs"],
        ({"type": "array", "items": {**LONG, "optional": True}}, pa.list_(AT), lambda value: [None, 0, value]),
        ({"type": "map", "values": LONG}, pa.map_(pa.string(), AT), lambda value: {"a": 0, "b": value}),
    ],
)
@READING
@pytest.mark.parametrize("format", ["json", "debezium-json", "debezium-avro"])
@pytest.mark.parametrize(
    ("unit", "values"),
    [
        ("s", [FIRST, LAST, FIRST - 1, LAST + 1, MILLIS, 2**63 - 1]),
        ("ms", [FIRST * 10**3, LAST * 10**3 + 999, FIRST * 10**3 - 1, (LAST + 1) * 10**3, MILLIS * 10**3, 2**63 - 1]),
        ("us", [FIRST * 10**6, LAST * 10**6, FIRST * 10**6 - 1, (LAST + 1) * 10**6, MILLIS * 10**6, 2**63 - 1]),
        ("auto", [FIRST * 10**3, 2**62, FIRST * 10**3 - 1, FIRST * 10**6 - 1, 1 - 10**14, 2**63 - 1]),
        ("ns", [MILLIS, 2**62, -(2**62), 2**63 - 1]),
    ],
)
def test_timestamps_beyond_the_year_9999_are_counted_by_column(
    format: str, field: dict[str, Any], target: pa.DataType, made: Any, *, reading: Any, unit: str, values: list[int]
) -> None:
    with reading():
        decoded = decoded_as(format, field, target, [made(value) for value in values], timestamp_unit=unit)
    assert decoded.quarantined["reason"].to_pylist() == []
    assert decoded.remarks.get("far_timestamp", {}) == ({} if unit == "ns" else {"at": 3})


@READING
@pytest.mark.parametrize("format", ["json", "debezium-json", "debezium-avro"])
def test_with_the_right_unit_there_is_nothing_to_remark(format: str, reading: Any) -> None:
    with reading():
        assert decoded_as(format, LONG, AT, [SECONDS], timestamp_unit="s").remarks == {}
        assert decoded_as(format, LONG, AT, [1000], timestamp_unit="s").remarks == {"january_1970": {"at": 1}}


@READING
@pytest.mark.parametrize("format", ["debezium-json", "debezium-avro"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ({"type": "int64", "name": "io.debezium.time.Timestamp"}, SECONDS),
        ({"type": "string"}, "1970-01-20T16:13:20Z"),
        ({"type": "int32", "name": "io.debezium.time.Date"}, 19),
    ],
)
def test_times_of_which_the_schema_says_what_they_are_are_none_of_them(
    format: str, field: dict[str, Any], value: Any, reading: Any
) -> None:
    with reading():
        assert decoded_as(format, field, AT, [value] * 40).remarks == {}
