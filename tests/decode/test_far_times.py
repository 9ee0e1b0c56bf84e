"""Infinite and far dates and timestamps: what each form of them becomes, by columns and one by one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from lakebed.far_times import (
    INFINITY_DAY,
    INFINITY_MICROS,
    MINUS_INFINITY_DAY,
    MINUS_INFINITY_MICROS,
    iso_text,
    python_values,
)
from lakebed.schema.exact_cast import cast_exactly
from tests.decode.records import with_schema
from tests.decode.test_logical_types import CONNECT, DEBEZIUM, decode_one_and_many

DAY, STAMP, LOCAL, TEXT = pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.string()
POSTGRES_PLUS, POSTGRES_MINUS = 9_223_372_036_825_200_000, -9_223_372_036_832_400_000
IDES, YEAR_20222 = -63_517_780_799_876_544, 575_983_828_800_123_456
DATE, CONNECT_DATE, ISO_DATE = DEBEZIUM + "Date", CONNECT + "Date", DEBEZIUM + "IsoDate"
ZONED, MILLIS, MICROS, NANOS = (
    DEBEZIUM + name for name in ("ZonedTimestamp", "Timestamp", "MicroTimestamp", "NanoTimestamp")
)

READ: list[tuple[str | None, Any, pa.DataType, Any]] = [
    # The numbers and texts of infinity, by Debezium's time.precision.mode.
    (DATE, -2_147_472_692, DAY, INFINITY_DAY),
    (DATE, -2_147_472_691, DAY, MINUS_INFINITY_DAY),
    (CONNECT_DATE, -2_147_472_692, DAY, INFINITY_DAY),
    (ISO_DATE, "-5877611-06-21Z", DAY, INFINITY_DAY),
    (DATE, -2_147_472_692, STAMP, INFINITY_MICROS),
    (DATE, 2_146_033_979, DAY, INFINITY_DAY),
    (DATE, -622_191_234, DAY, INFINITY_DAY),
    (DATE, -622_191_233, DAY, INFINITY_DAY),
    (DATE, -625_821_272, DAY, MINUS_INFINITY_DAY),
    (DATE, -625_821_271, DAY, MINUS_INFINITY_DAY),
    (ISO_DATE, "+5877611-06-21Z", DAY, INFINITY_DAY),
    (ISO_DATE, "+292278994-08-16Z", DAY, INFINITY_DAY),
    (ISO_DATE, "+292269055-12-02Z", DAY, MINUS_INFINITY_DAY),
    (ISO_DATE, "-5877611-06-22Z", DAY, MINUS_INFINITY_DAY),
    (DEBEZIUM + "IsoTimestamp", "+292278994-08-16T23:00:00Z", LOCAL, INFINITY_MICROS),
    (DEBEZIUM + "IsoTimestamp", "-292275055-05-16T23:00:00Z", LOCAL, MINUS_INFINITY_MICROS),
    (ZONED, "+292269055-12-02T23:00:00.000000Z", STAMP, MINUS_INFINITY_MICROS),
    (MILLIS, POSTGRES_PLUS, LOCAL, INFINITY_MICROS),
    (MILLIS, POSTGRES_MINUS, LOCAL, MINUS_INFINITY_MICROS),
    (CONNECT + "Timestamp", POSTGRES_PLUS, LOCAL, INFINITY_MICROS),
    (DATE, -2_147_472_691, TEXT, "0001-01-03"),
    (MICROS, POSTGRES_PLUS, LOCAL, INFINITY_MICROS),
    (MICROS, POSTGRES_MINUS, LOCAL, MINUS_INFINITY_MICROS),
    (MICROS, POSTGRES_PLUS, DAY, INFINITY_DAY),
    (MICROS, POSTGRES_PLUS, TEXT, "9999-12-31T00:00:00.000000Z"),
    (MILLIS, POSTGRES_PLUS // 1000, LOCAL, INFINITY_MICROS),
    (MILLIS, POSTGRES_MINUS // 1000, LOCAL, MINUS_INFINITY_MICROS),
    (MILLIS, 2**63 - 1, STAMP, INFINITY_MICROS),
    (CONNECT + "Timestamp", POSTGRES_PLUS // 1000, LOCAL, INFINITY_MICROS),
    (NANOS, 2**63 - 1, LOCAL, INFINITY_MICROS),
    (NANOS, -(2**63), LOCAL, MINUS_INFINITY_MICROS),
    (ZONED, "infinity", STAMP, INFINITY_MICROS),
    (ZONED, "-infinity", STAMP, MINUS_INFINITY_MICROS),
    (ZONED, "infinity", TEXT, "infinity"),
    (None, POSTGRES_PLUS, LOCAL, INFINITY_MICROS),
    (None, POSTGRES_MINUS // 1000, LOCAL, MINUS_INFINITY_MICROS),
    (None, "infinity", DAY, INFINITY_DAY),
    (None, "-Infinity", DAY, MINUS_INFINITY_DAY),
    (None, 2**31 - 1, DAY, INFINITY_DAY),
    # Finite values of years that Python does not have.
    (DATE, 6_666_479, DAY, 6_666_479),
    (DATE, -735_160, DAY, -735_160),
    (DATE, 6_666_479, TEXT, "+20222-03-15"),
    (DATE, -735_160, TEXT, "-0043-03-15"),
    (DATE, -735_160, STAMP, -735_160 * 86_400_000_000),
    (ISO_DATE, "2017-09-15Z", DAY, 17_424),
    (MICROS, YEAR_20222, LOCAL, YEAR_20222),
    (MICROS, IDES, LOCAL, IDES),
    (MICROS, IDES, TEXT, "-0043-03-15T12:00:00.123456Z"),
    (MILLIS, 9_223_372_022_399_999, STAMP, 9_223_372_022_399_999_000),
    (ZONED, "+20222-03-15T12:00:00.123456Z", STAMP, YEAR_20222),
    (ZONED, "-0043-03-15T12:00:00.123456Z", STAMP, IDES),
    (ZONED, "0000-12-31T23:59:59.999999Z", STAMP, -62_135_596_800_000_001),
    (ZONED, "+294247-01-09T23:59:59.999999Z", STAMP, 9_223_372_022_399_999_999),
    # As PostgreSQL itself writes them.
    (None, "20222-03-15 12:00:00.123456+00", STAMP, YEAR_20222),
    (None, "0044-03-15 BC", DAY, -735_160),
    (None, "0044-03-15T12:00:00.123456+00:00 BC", STAMP, IDES),
    (None, "0001-12-31 23:59:59.999999 BC", LOCAL, -62_135_596_800_000_001),
    # Clocks and offsets that exist.
    (ZONED, "1937-01-01T12:00:00+00:19:32", STAMP, -1_041_337_172_000_000),
    (None, "1883-11-18 12:00:00-04:56:02", STAMP, -2_717_651_038_000_000),
    (None, "2016-12-31T23:59:60Z", STAMP, 1_483_228_800_000_000),
    (None, "2016-12-31T23:59:60.5", LOCAL, 1_483_228_800_500_000),
    (None, "2016-12-31T24:00:00Z", STAMP, 1_483_228_800_000_000),
]  # fmt: skip
REFUSED = [
    ("+294276-12-31T23:59:59.999999Z", STAMP, "out of the range of a timestamp"),
    ("0000-00-00", DAY, "is not a valid date"),
    ("0000-01-01 BC", DAY, "is not a valid date"),
    ("9999999-01-01", DAY, "out of the range of a date"),
    ("292278994-08-15", DAY, "out of the range of a date"),
    ("2024-01-01T24:00:01Z", STAMP, "is not a valid timestamp"),
    ("2024-01-01T00:00:61Z", STAMP, "is not a valid timestamp"),
    ("2024-01-01T00:00:00+00:19:60", STAMP, "is not a valid timestamp"),
    ("nonsense", STAMP, "is not a valid timestamp"),
]


def stored(column: pa.ChunkedArray) -> list[Any]:
    kind = column.type
    return (column if kind == TEXT else column.cast(pa.int32() if kind == DAY else pa.int64())).to_pylist()


@pytest.mark.parametrize(("name", "value", "target", "expected"), READ)
def test_every_form_of_a_far_or_infinite_time_is_read(
    name: str | None, value: Any, target: pa.DataType, expected: Any
) -> None:
    kind = "string" if isinstance(value, str) else "int64"
    fields = [{"type": "int64", "field": "id"}, {"type": kind, "name": name, "optional": True, "field": "value"}]
    wrap = (lambda change: change) if name is None else (lambda change: with_schema(change, fields))
    many, slow = decode_one_and_many(wrap, value, target)
    assert many.quarantined["reason"].to_pylist() == []
    assert stored(many.changes["value"]) == [None if i % 5 == 4 else expected for i in range(100)]
    assert stored(slow.changes["value"]) == [expected]


@pytest.mark.parametrize(("value", "target", "reason"), REFUSED)
def test_what_is_no_time_or_beyond_the_range_goes_to_the_quarantine(
    value: str, target: pa.DataType, reason: str
) -> None:
    many, slow = decode_one_and_many(lambda change: change, value, target)
    assert (len(many.quarantined), len(slow.changes)) == (80, 0)
    assert all(reason in text for text in many.quarantined["reason"].to_pylist())


@pytest.mark.parametrize(
    ("given", "plus", "minus", "kind"),
    [
        (pa.timestamp("us"), 2**63 - 1, -(2**63) + 1, LOCAL),
        (pa.timestamp("us"), POSTGRES_PLUS, POSTGRES_MINUS, LOCAL),
        (pa.timestamp("ns", "UTC"), 2**63 - 1, -(2**63) + 1, STAMP),
        (pa.timestamp("ms"), 2**63 - 1, POSTGRES_MINUS // 1000, LOCAL),
        (pa.timestamp("s", "UTC"), 2**63 - 1, -(2**63) + 1, STAMP),
        (pa.timestamp("us"), 2**63 - 1, -(2**63) + 1, DAY),
        (DAY, 2**31 - 1, -(2**31) + 1, DAY),
        (DAY, 2**31 - 1, -(2**31) + 1, LOCAL),
    ],
)
@pytest.mark.parametrize("chunks", [1, 3])
def test_arrows_infinities_are_stored_as_the_ends_of_the_years_1_to_9999(
    given: pa.DataType, plus: int, minus: int, kind: pa.DataType, chunks: int
) -> None:
    number = pa.int32() if given == DAY else pa.int64()
    values = pa.array([plus, minus, None, 0], number).view(given)
    column = cast_exactly(pa.chunked_array([values] * chunks + [values[:0]], given), kind, "at")
    ends = [INFINITY_DAY, MINUS_INFINITY_DAY] if kind == DAY else [INFINITY_MICROS, MINUS_INFINITY_MICROS]
    assert stored(column) == [*ends, None, 0] * chunks


@pytest.mark.parametrize(
    "within",
    [
        lambda times: pa.StructArray.from_arrays([times], ["t"], mask=pa.array([False, False, True])),
        lambda times: pa.ListArray.from_arrays([0, 1, 3, 3], times),
        lambda times: pa.MapArray.from_arrays([0, 1, 2, 3], pa.array(["k", "k", "k"]), times),
    ],
)
def test_infinities_within_others_are_stored_so_too(within: Any) -> None:
    infinite = within(pa.array([0, 2**63 - 1, POSTGRES_MINUS], pa.int64()).view(STAMP))
    ends = within(pa.array([0, INFINITY_MICROS, MINUS_INFINITY_MICROS], pa.int64()).view(STAMP))
    column = pa.chunked_array([infinite, infinite.slice(1)])
    assert cast_exactly(column, column.type, "at").equals(pa.chunked_array([ends, ends.slice(1)]).cast(column.type))


@pytest.mark.parametrize(("kind", "number"), [(DAY, 2**31 - 1), (STAMP, 2**63 - 1), (LOCAL, 2**63 - 1)])
def test_duckdbs_infinity_is_shown_as_such(kind: pa.DataType, number: int) -> None:
    assert (iso_text(number, kind), iso_text(-number, kind)) == ("infinity", "-infinity")


def test_python_gets_a_text_for_a_time_that_it_has_no_object_for() -> None:
    far = pa.array([IDES, None, 0], pa.int64()).view(STAMP)
    text, _, epoch = iso_text(IDES, STAMP), None, far[2].as_py()
    assert text == "-0043-03-15T12:00:00.123456Z"
    assert python_values(far) == [text, None, epoch]
    assert python_values(pa.StructArray.from_arrays([far], ["t"])) == [{"t": text}, {"t": None}, {"t": epoch}]
    assert python_values(pa.ListArray.from_arrays([0, 2, 2, 3], far)) == [[text, None], [], [epoch]]
    assert python_values(pa.MapArray.from_arrays([0, 1], pa.array(["k"]), far[:1])) == [[("k", text)]]
    assert python_values(pa.chunked_array([far, far])) == [text, None, epoch] * 2
