"""Which columns of changes fit a column of a table: those whose values can mean one thing only."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lakebed.errors import InvalidChanges
from lakebed.schema.exact_cast import cast_exactly

UTC = dt.UTC
NOON, MIDNIGHT = dt.datetime(2026, 1, 1, 12), dt.datetime(2026, 1, 1)
INSTANT, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")

SAME: list[tuple[pa.DataType, Any, pa.DataType, Any]] = [
    (pa.int64(), 5, pa.int32(), 5),
    (pa.uint8(), 5, pa.int64(), 5),
    (pa.int64(), 2**53, pa.float64(), 2.0**53),
    (pa.int64(), 5, pa.decimal128(10, 2), Decimal("5.00")),
    (pa.float64(), 5.0, pa.int64(), 5),
    (pa.float64(), 0.1, pa.float32(), 0.10000000149011612),
    (pa.float64(), float("inf"), pa.float32(), float("inf")),
    (pa.float64(), 0.25, pa.decimal128(10, 2), Decimal("0.25")),
    (pa.decimal128(5, 2), Decimal("1.50"), pa.float64(), 1.5),
    (pa.decimal128(5, 2), Decimal("1.50"), pa.decimal128(20, 4), Decimal("1.5000")),
    (pa.large_string(), "ü", pa.string(), "ü"),
    (pa.binary(), "ü".encode(), pa.string(), "ü"),
    (pa.string(), "ü", pa.binary(), "ü".encode()),
    (pa.dictionary(pa.int8(), pa.string()), "a", pa.string(), "a"),
    (pa.timestamp("ms", "Asia/Tokyo"), NOON.replace(tzinfo=UTC), INSTANT, NOON.replace(tzinfo=UTC)),
    (pa.timestamp("ns"), MIDNIGHT, LOCAL, MIDNIGHT),
    (pa.timestamp("s"), MIDNIGHT, pa.date32(), MIDNIGHT.date()),
    (pa.date32(), MIDNIGHT.date(), LOCAL, MIDNIGHT),
    (pa.null(), None, INSTANT, None),
    (pa.large_list(pa.int32()), [1], pa.list_(pa.int64()), [1]),
    (pa.struct([("b", pa.int8()), ("a", pa.int8())]), {"a": 1, "b": 2}, pa.struct([("a", pa.int64()), ("b", pa.int64())]),
     {"a": 1, "b": 2}),
]  # fmt: skip

OTHER: list[tuple[pa.DataType, Any, pa.DataType, str]] = [
    (pa.int64(), 1_700_000_000_000, INSTANT, "several things"),
    (pa.int64(), 1_700_000_000_000, LOCAL, "several things"),
    (pa.int32(), 19_000, pa.date32(), "several things"),
    (INSTANT, NOON, pa.int64(), "several things"),
    (pa.date32(), NOON.date(), pa.int32(), "several things"),
    (pa.date32(), NOON.date(), INSTANT, "several things"),
    (INSTANT, NOON, pa.date32(), "several things"),
    (INSTANT, NOON, LOCAL, "several things"),
    (LOCAL, NOON, INSTANT, "several things"),
    (LOCAL, NOON, pa.date32(), "rounded"),
    (pa.bool_(), True, pa.int64(), "several things"),
    (pa.int64(), 5, pa.bool_(), "several things"),
    (pa.string(), "1", pa.int64(), "several things"),
    (pa.string(), "2026-01-01", pa.date32(), "several things"),
    (pa.string(), "true", pa.bool_(), "several things"),
    (pa.float64(), 1.5, pa.string(), "several things"),
    (pa.time64("us"), dt.time(1), pa.int64(), "several things"),
    (pa.duration("us"), dt.timedelta(1), pa.int64(), "several things"),
    (pa.float64(), 1.5, pa.int64(), "truncated"),
    (pa.float64(), float("nan"), pa.int64(), ""),
    (pa.float64(), 1e300, pa.float32(), "out of range"),
    (pa.float64(), 0.125, pa.decimal128(10, 2), "rounded"),
    (pa.decimal128(38, 0), Decimal(2**53 + 1), pa.float64(), "rounded"),
    (pa.decimal128(5, 2), Decimal("1.55"), pa.decimal128(5, 1), ""),
    (pa.decimal128(38, 8), Decimal("588178774071308972723477995098.22967060"), pa.decimal128(38, 26), ""),
    (pa.decimal128(38, 37), Decimal("8.6093671883596234572453675024297000000"), pa.decimal128(38, 38), ""),
    (pa.list_(pa.decimal128(38, 8)), [Decimal("588178774071308972723477995098.22967060")], pa.list_(pa.decimal128(38, 26)), ""),
    (pa.int64(), 2**40, pa.int32(), "not in range"),
    (pa.int64(), 2**53 + 1, pa.float64(), "not in range"),
    (pa.binary(), b"\xff", pa.string(), ""),
    (pa.list_(pa.int64()), [1], pa.list_(INSTANT), "of element a int64"),
    (pa.struct([("a", pa.int8()), ("x", pa.int8())]), {"a": 1, "x": 1}, pa.struct([("a", pa.int8())]), "no field 'x'"),
    (pa.struct([("a", pa.int8())]), {"a": 1}, pa.struct([("a", pa.int8()), ("b", pa.int8())]), "field 'b' is missing"),
]  # fmt: skip


def column(kind: pa.DataType, value: Any) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array([None, value], kind)])


@pytest.mark.parametrize(("given", "value", "kind", "expected"), SAME, ids=lambda each: str(each))
def test_a_value_that_stays_the_same_fits(given: pa.DataType, value: Any, kind: pa.DataType, expected: Any) -> None:
    out = cast_exactly(column(given, value), kind, "v")
    assert (out.type, out.to_pylist()) == (kind, [None, expected])


@pytest.mark.parametrize(("given", "value", "kind", "why"), OTHER, ids=lambda each: str(each))
def test_a_value_that_could_become_another_is_refused_with_what_to_do(
    given: pa.DataType, value: Any, kind: pa.DataType, why: str
) -> None:
    with pytest.raises(InvalidChanges, match=r"^column 'v': .*; convert it before it is applied$") as refused:
        cast_exactly(column(given, value), kind, "v")
    for part in (str(given), str(kind), why):
        assert part in str(refused.value)
