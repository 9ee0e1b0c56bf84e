"""The values that rows are sorted by, against plain Python and against what Iceberg's specification says."""

from __future__ import annotations

import datetime
import itertools
import json
import random
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lakebed.sortkey.order_values import _coordinates, _hashes, key_at, order_values
from lakebed.sortkey.sort_key import SORT_KEY_FRAME, SortTerm, frame_properties, parse_sort_key
from tests.sortkey.terms import COLUMNS, MOMENTS, SCHEMA, random_rows, value_of
from tests.table.values import UTC

TRUNCATED = [f"{function}({name})" for function in ("date", "year", "month", "day") for name in ("date", *MOMENTS)]
CUT = [f"substr({name}, {start}, {length})" for name in ("string", "binary") for start in (1, 3) for length in (1, 33)]


def term_of(text: str, frame: str = "") -> SortTerm:
    [term] = parse_sort_key([text], SCHEMA, frame)
    return term


def as_dictionaries(rows: pa.Table) -> pa.Table:
    for place, name in enumerate(rows.column_names):
        if name in ("string", "binary"):
            rows = rows.set_column(place, name, rows[name].dictionary_encode())
    return rows


@pytest.mark.parametrize("text", [*TRUNCATED, "hour(timestamp)", "hour(timestamp_ntz)", *CUT])
def test_functions_are_what_plain_python_says(text: str) -> None:
    term, rows = term_of(text), random_rows(random.Random(text), 200)
    expected = [value_of(term, row) for row in rows.to_pylist()]
    found = order_values(rows, term)
    assert found.type == term.type and found.to_pylist() == expected
    assert order_values(rows.slice(7, 50), term).to_pylist() == expected[7:57], "also of a slice"
    assert order_values(as_dictionaries(rows), term).to_pylist() == expected, "also of dictionaries"


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (34, pa.int32(), 2017239379),
        (34, pa.int64(), 2017239379),
        (Decimal("14.20"), pa.decimal128(9, 2), -500754589),
        (datetime.date(2017, 11, 16), pa.date32(), -653330422),
        (datetime.datetime(2017, 11, 16, 22, 31, 8), pa.timestamp("us"), -2047944441),
        (datetime.datetime(2017, 11, 16, 22, 31, 8, tzinfo=UTC), pa.timestamp("us", "UTC"), -2047944441),
        ("iceberg", pa.string(), 1210000089),
        (b"\x00\x01\x02\x03", pa.binary(), -188683207),
    ],
)
def test_buckets_hash_as_icebergs_specification_says(value: Any, kind: pa.DataType, expected: int) -> None:
    found = int(_hashes(pa.array([None, value], kind))[1:].view(np.int32)[0])
    assert found == expected
    term = SortTerm(columns=("x",), kinds=(kind,), function="bucket", numbers=(16,))
    assert order_values(pa.table({"x": pa.array([None, value], kind)}), term).to_pylist() == [
        None,
        (found & (2**31 - 1)) % 16,
    ]


@pytest.mark.parametrize("value", [0, 1, -1, 127, 128, -128, -129, 255, 256, 2**63, -(2**63), 2**64, 10**38 - 1])
def test_a_decimal_is_hashed_by_as_few_bytes_as_hold_its_digits(value: int) -> None:
    digits = value.to_bytes((value if value >= 0 else ~value).bit_length() // 8 + 1, "big", signed=True)
    both = [_hashes(pa.array([Decimal(value)], pa.decimal128(38, 0))), _hashes(pa.array([digits], pa.binary()))]
    assert both[0].tolist() == both[1].tolist()


def ranked(value: Any) -> tuple[int, Any]:
    if value is None:
        return (0, 0)
    return (2, 0) if value != value else (1, value.encode() if isinstance(value, str) else value)


def base_of(rows: pa.Table) -> SimpleNamespace:
    """A base of one part, whose bounds leave the least and the greatest value of each column out."""
    bounds: dict[str, dict[str, Any]] = {"minValues": {}, "maxValues": {}}
    for name in rows.column_names:
        values = [value for value in rows[name].to_pylist() if ranked(value)[0] == 1][1:-1]
        for which, value in zip(bounds.values(), (values[:1], values[-1:]), strict=True):
            for one in value:
                which[name] = one.isoformat() if isinstance(one, datetime.date) else one
    return SimpleNamespace(parts={"one": SimpleNamespace(stats=json.dumps(bounds, default=str))})


@pytest.mark.parametrize("is_framed", [False, True])
@pytest.mark.parametrize("name", sorted(COLUMNS))
def test_a_z_order_grows_with_each_column_null_lowest_and_nan_highest(name: str, is_framed: bool) -> None:
    other = "long" if name != "long" else "short"
    kind, values = COLUMNS[name]
    values = sorted({ranked(value): value for value in values}.values(), key=ranked)
    text = f"zorder({name}, {other})"
    rows = pa.table({name: pa.array(values, kind), other: pa.array([5] * len(values), SCHEMA.field(other).type)})
    frame = frame_properties([term_of(text)], base_of(rows)).get(SORT_KEY_FRAME, "") if is_framed else ""
    numbers = order_values(rows, term_of(text, frame)).to_pylist()
    for (one, low), (another, high) in itertools.pairwise(zip(values, numbers, strict=True)):
        assert low <= high, (one, another)
        if ranked(one)[0] != ranked(another)[0]:
            assert low < high, "null and NaN have coordinates of their own"
    assert order_values(as_dictionaries(rows), term_of(text, frame)).to_pylist() == numbers
    assert [key_at(rows, at, [term_of(text, frame)])[0].as_py() for at in range(len(rows))] == numbers
    assert order_values(rows.slice(1, 2), term_of(text, frame)).to_pylist() == numbers[1:3]


def test_a_frame_spreads_what_lies_close_together_and_clamps_the_rest() -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    rows = pa.table({"id": [999, 1000, 1500, 2000, 9999], "name": ["a", "user-aa", "user-am", "user-az", "z"]})
    stats = '{"minValues":{"id":1000,"name":"user-aa"},"maxValues":{"id":2000,"name":"user-az"}}'
    for columns in ("id, name", "name, id"):
        [bare] = parse_sort_key([f"zorder({columns})"], schema)
        frame = frame_properties([bare], SimpleNamespace(parts={"p": SimpleNamespace(stats=stats)}))[SORT_KEY_FRAME]
        [framed] = parse_sort_key([f"zorder({columns})"], schema, frame)
        numbers = order_values(rows, framed).to_pylist()
        assert numbers[0] == numbers[1] < numbers[2] < numbers[3] == numbers[4]
        assert numbers[3] - numbers[1] > 2**61, "the frame fills the curve"


@pytest.mark.parametrize("ends", [None, (-5, 2**70), (-(10**37), 10**37), (2**64, 2**64 + 1000), (-3, 3)])
def test_decimals_of_many_digits_are_scaled_and_clamped_exactly(ends: tuple[int, int] | None) -> None:
    rng, kind = random.Random(1), pa.decimal128(38, 0)
    values = sorted(rng.choice([-1, 1]) * rng.randrange(2 ** rng.randrange(1, 126)) for _ in range(500))
    rows = pa.table({"x": pa.array([Decimal(value) for value in values], kind), "y": pa.array([1] * len(values))})
    numbers = order_values(
        rows, SortTerm(columns=("x", "y"), kinds=(kind, pa.int64()), function="zorder", frame=(ends, (0, 2)))
    ).to_pylist()
    assert numbers == sorted(numbers)
    if ends:
        assert {number for value, number in zip(values, numbers, strict=True) if value <= ends[0]} == {numbers[0]}
        assert {number for value, number in zip(values, numbers, strict=True) if value >= ends[1]} == {numbers[-1]}


@pytest.mark.parametrize(
    ("kind", "ends"),
    [(pa.decimal128(38, 0), (1 - 10**38, 10**38 - 1)), (pa.decimal128(38, 0), (-5, 2**70)), (pa.decimal128(9, 0), (0, 10**8)),
     (pa.int64(), (-(2**63), 2**63 - 1)), (pa.int64(), (1000, 9000)), (pa.float64(), (-1e308, 1e308))],
)  # fmt: skip
def test_values_are_spread_evenly_over_the_frame(kind: pa.DataType, ends: tuple[int, int]) -> None:
    low, high = map(int, ends)
    values = [low + (high - low) * eighth // 8 for eighth in range(9)]
    of_kind = Decimal if pa.types.is_decimal(kind) else float if pa.types.is_floating(kind) else int
    found = _coordinates(pa.array([of_kind(value) for value in values], kind), ends, 20)
    assert found[0] == 1 and found[-1] == 2**20 - 2
    assert np.abs(np.diff(found) - 2**17).max() <= 2
