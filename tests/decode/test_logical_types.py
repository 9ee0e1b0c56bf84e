"""Every logical type, with its schema and without, read by columns and one by one."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lakebed.decode.debezium.events import DebeziumJson
from lakebed.decode.decoder import Decoded, DecoderSchema
from lakebed.decode.json.values import JsonOptions
from tests.decode.fuzz import only_one_by_one
from tests.decode.records import event, records, with_schema

UTC = UTC
INSTANT = datetime(2024, 2, 29, 12, 34, 56, 789012, tzinfo=UTC)
MICROS = 1_709_210_096_789_012
STAMP, STAMP_NTZ, MONEY = pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.decimal128(12, 2)


def b64(number: int, size: int | None = None) -> str:
    size = size or (number.bit_length() + 8) // 8
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


DEBEZIUM, CONNECT = "io.debezium.time.", "org.apache.kafka.connect.data."
DECIMAL = {"type": "bytes", "name": CONNECT + "Decimal", "parameters": {"scale": "2"}}
VARIABLE = {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal"}

WITH_SCHEMA: list[tuple[dict[str, Any], Any, pa.DataType, Any]] = [
    ({"type": "int32", "name": DEBEZIUM + "Date"}, 19782, pa.date32(), date(2024, 2, 29)),
    ({"type": "int32", "name": DEBEZIUM + "Date"}, -1, pa.date32(), date(1969, 12, 31)),
    ({"type": "int32", "name": DEBEZIUM + "Date"}, 19782, pa.string(), "2024-02-29"),
    ({"type": "int32", "name": CONNECT + "Date"}, 0, pa.date32(), date(1970, 1, 1)),
    ({"type": "int32", "name": DEBEZIUM + "Time"}, 45_296_789, pa.string(), "12:34:56.789"),
    ({"type": "int64", "name": DEBEZIUM + "MicroTime"}, 45_296_789_012, pa.string(), "12:34:56.789012"),
    ({"type": "int64", "name": DEBEZIUM + "MicroTime"}, -3_600_000_001, pa.string(), "-01:00:00.000001"),
    ({"type": "int64", "name": DEBEZIUM + "MicroTime"}, 45_296_789_012, pa.int64(), 45_296_789_012),
    ({"type": "int64", "name": DEBEZIUM + "NanoTime"}, 45_296_789_012_345, pa.string(), "12:34:56.789012345"),
    ({"type": "int32", "name": CONNECT + "Time"}, 1, pa.string(), "00:00:00.001"),
    ({"type": "string", "name": DEBEZIUM + "ZonedTime"}, "12:34:56Z", pa.string(), "12:34:56Z"),
    ({"type": "int64", "name": DEBEZIUM + "Timestamp"}, 5, STAMP, datetime(1970, 1, 1, 0, 0, 0, 5000, UTC)),
    (
        {"type": "int64", "name": DEBEZIUM + "Timestamp"},
        MICROS // 1000,
        STAMP_NTZ,
        datetime(2024, 2, 29, 12, 34, 56, 789000),
    ),
    ({"type": "int64", "name": DEBEZIUM + "MicroTimestamp"}, MICROS, STAMP, INSTANT),
    ({"type": "int64", "name": DEBEZIUM + "MicroTimestamp"}, 7, STAMP, datetime(1970, 1, 1, 0, 0, 0, 7, UTC)),
    ({"type": "int64", "name": DEBEZIUM + "NanoTimestamp"}, MICROS * 1000 + 999, STAMP, INSTANT),
    ({"type": "int64", "name": DEBEZIUM + "NanoTimestamp"}, -1, STAMP, datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)),
    ({"type": "int64", "name": CONNECT + "Timestamp"}, MICROS // 1000, STAMP, INSTANT.replace(microsecond=789000)),
    ({"type": "int64", "name": DEBEZIUM + "MicroTimestamp"}, MICROS, pa.string(), "2024-02-29T12:34:56.789012Z"),
    ({"type": "string", "name": DEBEZIUM + "ZonedTimestamp"}, "2024-02-29T12:34:56.789012Z", STAMP, INSTANT),
    ({"type": "string", "name": DEBEZIUM + "ZonedTimestamp"}, "2024-02-29T14:34:56.789012+02:00", STAMP, INSTANT),
    ({"type": "string", "name": DEBEZIUM + "ZonedTimestamp"}, "2024-02-29T12:34:56.789012345Z", STAMP, INSTANT),
    (
        {"type": "string", "name": DEBEZIUM + "ZonedTimestamp"},
        "2024-02-29T14:34:56+02:00",
        STAMP_NTZ,
        datetime(2024, 2, 29, 12, 34, 56),
    ),
    ({"type": "int32", "name": DEBEZIUM + "Year"}, 2024, pa.int32(), 2024),
    (DECIMAL, b64(123456), MONEY, Decimal("1234.56")),
    (DECIMAL, b64(-1), MONEY, Decimal("-0.01")),
    (DECIMAL, b64(0), MONEY, Decimal("0.00")),
    (DECIMAL, b64(123456, 9), MONEY, Decimal("1234.56")),
    (DECIMAL, b64(123456), pa.decimal128(20, 4), Decimal("1234.5600")),
    (DECIMAL, b64(10**37 + 1), pa.decimal128(38, 2), Decimal("100000000000000000000000000000000000.01")),
    (DECIMAL, b64(123456), pa.string(), "1234.56"),
    (DECIMAL, b64(123400), pa.int64(), 1234),
    (VARIABLE, {"scale": 3, "value": b64(1500)}, MONEY, Decimal("1.50")),
    (VARIABLE, {"scale": 0, "value": b64(-7)}, MONEY, Decimal("-7.00")),
    ({"type": "double"}, 0.1, pa.float64(), 0.1),
    ({"type": "double"}, "NaN", pa.string(), "NaN"),
    ({"type": "float"}, 1.5, pa.float32(), 1.5),
    ({"type": "bytes"}, "AAEC/w==", pa.binary(), b"\x00\x01\x02\xff"),
    ({"type": "bytes"}, "", pa.binary(), b""),
    (
        {"type": "bytes", "name": "io.debezium.data.Bits", "parameters": {"length": "9"}},
        "AQE=",
        pa.binary(),
        b"\x01\x01",
    ),
    ({"type": "string", "name": "io.debezium.data.Uuid"}, "0b9e-1", pa.string(), "0b9e-1"),
    ({"type": "string", "name": "io.debezium.data.Json"}, '{"a": [1]}', pa.string(), '{"a": [1]}'),
    ({"type": "string", "name": "io.debezium.data.Enum"}, "red", pa.string(), "red"),
    ({"type": "string", "name": "io.debezium.data.EnumSet"}, "a,b", pa.string(), "a,b"),
    ({"type": "boolean"}, True, pa.bool_(), True),
    ({"type": "int16"}, 1, pa.bool_(), True),
    ({"type": "int16"}, -5, pa.int16(), -5),
    ({"type": "array", "items": {"type": "string"}}, ["a", None, "b"], pa.list_(pa.string()), ["a", None, "b"]),
    ({"type": "array", "items": {"type": "int32"}}, [], pa.list_(pa.int32()), []),
    (
        {"type": "array", "items": {"type": "int32", "name": DEBEZIUM + "Date"}},
        [0, None],
        pa.list_(pa.date32()),
        [date(1970, 1, 1), None],
    ),
    ({"type": "array", "items": DECIMAL}, [b64(150)], pa.list_(MONEY), [Decimal("1.50")]),
    (
        {"type": "struct", "fields": [{"type": "double", "field": "x"}, {"type": "bytes", "field": "wkb"}]},
        {"x": 1.5, "wkb": "AQ=="},
        pa.struct([("x", pa.float64()), ("wkb", pa.binary())]),
        {"x": 1.5, "wkb": b"\x01"},
    ),
    (
        {"type": "map", "keys": {"type": "string"}, "values": {"type": "string"}},
        {"k": "v"},
        pa.map_(pa.string(), pa.string()),
        [("k", "v")],
    ),
    ({"type": "map", "values": DECIMAL}, {"k": b64(150)}, pa.map_(pa.string(), MONEY), [("k", Decimal("1.50"))]),
    *(({"type": "string"}, text, MONEY, Decimal(text)) for text in ("1234", "12345678", "12.50", "-7", "1e3")),
    ({"type": "array", "items": {"type": "string"}}, ["1234"], pa.list_(MONEY), [Decimal("1234.00")]),
    ({"type": "map", "values": {"type": "string"}}, {"k": "1234"}, pa.map_(pa.string(), MONEY), [("k", Decimal(1234))]),
    ({"type": "string"}, "12", pa.int64(), 12),
    ({"type": "string"}, "2024-02-29", pa.date32(), date(2024, 2, 29)),
    ({"type": "double"}, 5.0, pa.int64(), 5),
    ({"type": "double"}, 5.0, MONEY, Decimal("5.00")),
    ({"type": "int64"}, 19782, pa.date32(), date(2024, 2, 29)),
    ({"type": "int64"}, MICROS // 1000, STAMP, INSTANT.replace(microsecond=789000)),
    ({"type": "int64", "name": DEBEZIUM + "MicroDuration"}, 5, pa.string(), "5"),
    ({"type": "bytes"}, "AQI=", pa.string(), "AQI="),
]

STRING, BYTES = {"type": "string"}, {"type": "bytes"}
YEAR = {"type": "int32", "name": DEBEZIUM + "Year"}
REFUSED_WITH_SCHEMA: list[tuple[dict[str, Any], Any, pa.DataType, str]] = [
    (STRING, "abcd", MONEY, "is a text by its schema, and no decimal"),
    (STRING, "Infinity", MONEY, "is a text by its schema"),
    (STRING, "AQI=", pa.binary(), "set binary_text to the connector's binary.handling.mode"),
    ({"type": "array", "items": STRING}, ["abcd"], pa.list_(pa.binary()), "set binary_text"),
    ({"type": "map", "values": STRING}, {"k": "abcd"}, pa.map_(pa.string(), MONEY), "and no decimal"),
    (STRING, '{"x":1}', pa.struct([("x", pa.int64())]), "is not a valid struct"),
    *(
        (BYTES, "1234", target, "its schema says bytes, which are no")
        for target in (MONEY, pa.int64(), pa.float64(), pa.bool_(), pa.date32(), STAMP)
    ),
    (
        {"type": "string", "name": DEBEZIUM + "ZonedTimestamp"},
        "2024",
        MONEY,
        "is a moment in ISO 8601 by its schema, and no",
    ),
    (YEAR, 2024, pa.date32(), "counts neither days nor time since the epoch by its schema, so no date"),
    (YEAR, 2024, STAMP, "so no timestamp"),
    (YEAR, 1, pa.bool_(), "is not a valid bool"),
    ({"type": "int64", "name": DEBEZIUM + "MicroDuration"}, 10**15, STAMP, "so no timestamp"),
    ({"type": "int64", "name": DEBEZIUM + "MicroTime"}, 45_296_789_012, STAMP, "is microseconds since midnight by its"),
    ({"type": "int32", "name": CONNECT + "Time"}, 45_296, pa.date32(), "is milliseconds since midnight by its schema"),
    ({"type": "double"}, 5.5, pa.int64(), "is not a valid int64"),
    ({"type": "double"}, 1.7e12, STAMP, "is not a valid timestamp"),
]

WITHOUT_SCHEMA: list[tuple[Any, pa.DataType, Any]] = [
    (19782, pa.date32(), date(2024, 2, 29)),
    ("2024-02-29", pa.date32(), date(2024, 2, 29)),
    (MICROS // 1000, STAMP, INSTANT.replace(microsecond=789000)),
    (MICROS, STAMP, INSTANT),
    (MICROS * 1000, STAMP, INSTANT),
    ("2024-02-29T12:34:56.789012Z", STAMP, INSTANT),
    ("2024-02-29T12:34:56", STAMP_NTZ, datetime(2024, 2, 29, 12, 34, 56)),
    (b64(-123456), MONEY, Decimal("-1234.56")),
    ("1234.5", MONEY, Decimal("1234.50")),
    ("-7", MONEY, Decimal("-7.00")),
    (12, MONEY, Decimal("12.00")),
    (0.07, MONEY, Decimal("0.07")),
    ("AQI=", pa.binary(), b"\x01\x02"),
    ({"a": [1, "é"]}, pa.string(), '{"a":[1,"é"]}'),
    (5, pa.string(), "5"),
    (5.0, pa.int64(), 5),
    (1e22, pa.decimal128(38, 0), Decimal(10**22)),
    ("1.5", pa.float64(), 1.5),
    ([[1, 2], []], pa.list_(pa.list_(pa.int64())), [[1, 2], []]),
    ({"p": {"q": 1}}, pa.struct([("p", pa.struct([("q", pa.int64())]))]), {"p": {"q": 1}}),
]

REFUSED: list[tuple[Any, pa.DataType, str]] = [
    (2**31, pa.date32(), "out of the range of a date"),
    ("2024-02-30", pa.date32(), "is not a valid date"),
    ("2024-02-29T00:00:00+02:00", pa.date32(), "is not at midnight in UTC, so no date"),
    ("2024-02-29ZZ", pa.date32(), "is not a valid date"),
    ("2024-02-29 at noon", STAMP, "is not a valid timestamp"),
    ("1.234", MONEY, "more than 2 digits after the point"),
    ("99999999999.99", MONEY, "does not fit decimal128(12, 2)"),
    (True, MONEY, "is not a valid decimal"),
    ("12345678", pa.decimal128(12, 0), "set decimal_text"),
    ("not base64!", pa.binary(), "is not a valid base64 string"),
    (5.5, pa.int64(), "is not a valid int64"),
    ("5.0", pa.int64(), "is not a valid int64"),
    (1e300, pa.int64(), "is not a valid int64"),
    ("1e400", pa.float64(), "out of the range of double"),
    (2, pa.bool_(), "is not a valid bool"),
    ("x", pa.list_(pa.string()), "is not a valid list"),
]


def decode_one_and_many(
    wrap: Callable[[dict[str, Any]], Any], value: Any, target: pa.DataType
) -> tuple[Decoded, Decoded]:
    """The value by columns among a hundred of its kind (and nulls), and among records that force the slow path."""
    decoder_schema = DecoderSchema(pa.schema([pa.field("id", pa.int64()), pa.field("value", target)]), ("id",))
    many = [wrap(event("c", {"id": i, "value": None if i % 5 == 4 else value})) for i in range(100)]
    slow = [wrap(event("c", {"id": 0, "value": value})), "broken"]
    return DebeziumJson(decoder_schema).decode(records(many)), DebeziumJson(decoder_schema).decode(records(slow))


@pytest.mark.parametrize(("field", "value", "target", "expected"), WITH_SCHEMA)
def test_logical_types_are_read_by_the_name_in_the_schema(
    field: dict[str, Any], value: Any, target: pa.DataType, expected: Any
) -> None:
    fields = [{"type": "int64", "field": "id"}, {**field, "optional": True, "field": "value"}]
    many, slow = decode_one_and_many(lambda change: with_schema(change, fields), value, target)
    assert many.quarantined.column("reason").to_pylist() == []
    assert many.changes.column("value").to_pylist() == [None if i % 5 == 4 else expected for i in range(100)]
    assert slow.changes.column("value").to_pylist() == [expected]
    assert many.changes.schema.field("value").type == target


@pytest.mark.parametrize(("field", "value", "target", "reason"), REFUSED_WITH_SCHEMA)
def test_nothing_is_guessed_where_a_schema_speaks(
    field: dict[str, Any], value: Any, target: pa.DataType, reason: str
) -> None:
    fields = [{"type": "int64", "field": "id"}, {**field, "optional": True, "field": "value"}]
    many, slow = decode_one_and_many(lambda change: with_schema(change, fields), value, target)
    assert many.changes.num_rows == 20 and slow.changes.num_rows == 0
    assert all(reason in text for text in many.quarantined.column("reason").to_pylist())


FORMS = pytest.mark.parametrize(
    ("form", "value"), [("hex", "fBFf"), ("base64-url-safe", "-_8="), ("base64", "+/8="), ("base64", "AQI=")]
)


@FORMS
@pytest.mark.parametrize("inline", [True, False])
def test_the_form_of_bytes_in_strings_can_be_set(form: Any, value: str, inline: bool) -> None:
    fields = [{"type": "string", "field": "raw"}]
    values = [event("c", {"raw": value}) for _ in range(40)]
    table = records([with_schema(one, fields) if inline else one for one in values])
    decoder = DebeziumJson(DecoderSchema(pa.schema([pa.field("raw", pa.binary())])), JsonOptions(binary_text=form))
    expected = {"fBFf": b"\xfb\xff", "-_8=": b"\xfb\xff", "+/8=": b"\xfb\xff", "AQI=": b"\x01\x02"}[value]
    assert decoder.decode(table).changes["raw"].to_pylist() == [expected] * 40
    with only_one_by_one():
        assert decoder.decode(table).changes["raw"].to_pylist() == [expected] * 40


@FORMS
def test_bytes_in_strings_of_another_form_are_refused(form: Any, value: str) -> None:
    other = {"hex": "+/8=", "base64-url-safe": "+/8=", "base64": "-_8="}[form]
    decoder = DebeziumJson(DecoderSchema(pa.schema([pa.field("raw", pa.binary())])), JsonOptions(binary_text=form))
    decoded = decoder.decode(records([event("c", {"raw": value}), event("c", {"raw": other})]))
    assert decoded.quarantined["reason"].to_pylist() == [f"column 'raw': \"{other}\" is not a valid {form} string"]


@pytest.mark.parametrize(("value", "target", "expected"), WITHOUT_SCHEMA)
def test_without_a_schema_the_column_and_the_json_type_decide(value: Any, target: pa.DataType, expected: Any) -> None:
    many, slow = decode_one_and_many(lambda change: change, value, target)
    assert many.quarantined.column("reason").to_pylist() == []
    assert many.changes.column("value").to_pylist() == [None if i % 5 == 4 else expected for i in range(100)]
    assert slow.changes.column("value").to_pylist() == [expected]


@pytest.mark.parametrize(("value", "target", "reason"), REFUSED)
def test_what_does_not_fit_is_refused_not_rounded(value: Any, target: pa.DataType, reason: str) -> None:
    many, slow = decode_one_and_many(lambda change: change, value, target)
    assert many.changes.num_rows == 20
    assert many.quarantined.num_rows == 80
    assert all(reason in text for text in many.quarantined.column("reason").to_pylist())
    assert slow.changes.num_rows == 0


@pytest.mark.parametrize(("unit", "expected"), [("s", 5_000_000_000), ("ms", 5_000_000), ("us", 5000), ("ns", 5)])
def test_the_unit_of_timestamps_without_a_schema_can_be_set(unit: Any, expected: int) -> None:
    decoder_schema = DecoderSchema(pa.schema([pa.field("at", pa.timestamp("us", "UTC"))]))
    decoder = DebeziumJson(decoder_schema, JsonOptions(timestamp_unit=unit))
    changes = decoder.decode(records([event("c", {"at": 5000})] * 40)).changes
    assert changes.column("at").cast(pa.int64()).to_pylist() == [expected] * 40
    with only_one_by_one():
        assert decoder.decode(records([event("c", {"at": 5000})])).changes["at"].cast(pa.int64())[0].as_py() == expected


@pytest.mark.parametrize("beyond", [9_223_372_036_855, -9_223_372_036_855])
def test_seconds_that_no_timestamp_can_hold_are_refused(beyond: int) -> None:
    decoder_schema = DecoderSchema(pa.schema([pa.field("at", pa.timestamp("us", "UTC"))]))
    decoder = DebeziumJson(decoder_schema, JsonOptions(timestamp_unit="s"))
    decoded = decoder.decode(records([event("c", {"at": at}) for at in (1_700_000_000, beyond)]))
    assert decoded.changes["at"].to_pylist() == [datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)]
    assert decoded.quarantined["reason"].to_pylist() == [f"column 'at': {beyond} is out of the range of a timestamp"]


DATES_WITH_A_ZONE = ["2024-02-29Z", "2024-02-29T00:00:00Z", "2024-02-29T02:00:00+02:00", "2024-02-28T24:00:00Z"]


@pytest.mark.parametrize("text", DATES_WITH_A_ZONE)
@pytest.mark.parametrize("inline", [True, False])
def test_a_date_may_have_a_zone_or_be_a_midnight_in_utc(text: str, inline: bool) -> None:
    fields = [{"type": "string", "field": "day"}]
    decoder = DebeziumJson(DecoderSchema(pa.schema([pa.field("day", pa.date32())])))
    changes = [event("c", {"day": value}) for value in (text, "2024-02-29", text)]
    decoded = decoder.decode(records([with_schema(one, fields) if inline else one for one in changes]))
    assert decoded.changes["day"].to_pylist() == [date(2024, 2, 29)] * 3


@pytest.mark.parametrize(("form", "expected"), [("string", Decimal("1234")), ("precise", Decimal(-2_658_824))])
def test_the_form_of_decimals_without_a_schema_can_be_set(form: Any, expected: Decimal) -> None:
    decoder_schema = DecoderSchema(pa.schema([pa.field("n", pa.decimal128(12, 0))]))
    changes = (
        DebeziumJson(decoder_schema, JsonOptions(decimal_text=form))
        .decode(records([event("c", {"n": "1234"})]))
        .changes
    )
    assert changes.column("n").to_pylist() == [expected]
