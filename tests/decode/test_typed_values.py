"""A column that is converted at once is what its values are one by one, by the rules for JSON."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.decode.json.columns import Missed
from lakebed.decode.json.connect_types import PLAIN, Kind, LogicalType
from lakebed.decode.json.encoded_columns import Placeholder
from lakebed.decode.json.values import JsonOptions
from lakebed.decode.typed import values as typed_values
from lakebed.decode.typed.values import column_field, plain_values, read_column, without_unavailable
from tests.worlds import examples

OPTIONS = JsonOptions(decimal_text="string")
UTC = pa.timestamp("us", "UTC")
LONGS = st.one_of(st.integers(-100, 100), st.integers(-(2**63), 2**63 - 1), st.sampled_from([2**31, 10**15, 10**18]))
INTS = st.one_of(st.integers(-100, 100_000), st.integers(-(2**31), 2**31 - 1))
TEXTS = st.one_of(
    st.text(max_size=6), st.sampled_from(["12.50", "AQI=", "7", "2024-02-29", "2024-02-29T01:02:03Z", "NaN"])
)
FLOATS = st.one_of(st.floats(), st.floats(-100, 100).map(lambda x: round(x, 2)))
NUMBERS = st.decimals(-(10**8), 10**8, places=2)
NATURAL: list[tuple[pa.DataType, LogicalType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), PLAIN, st.booleans()),
    (pa.int32(), PLAIN, INTS),
    (pa.int64(), PLAIN, LONGS),
    *((pa.int64(), LogicalType(kind), LONGS) for kind in Kind if kind.name.startswith(("TIME",))),
    (pa.int32(), LogicalType(Kind.DATE_DAYS), INTS),
    (pa.int32(), LogicalType(Kind.TIME_MS), INTS),
    (pa.float32(), PLAIN, st.floats(width=32)),
    (pa.float64(), PLAIN, FLOATS),
    (pa.string(), PLAIN, TEXTS),
    (pa.binary(), PLAIN, st.binary(max_size=6)),
    (pa.binary(3), PLAIN, st.binary(min_size=3, max_size=3)),
    (pa.binary(), LogicalType(Kind.DECIMAL_BYTES, scale=2), st.binary(max_size=17)),
    (pa.decimal128(12, 2), PLAIN, NUMBERS),
    (pa.decimal128(38, 10), PLAIN, st.decimals(-(10**27), 10**27, places=10)),
    (pa.date32(), PLAIN, st.one_of(INTS, st.sampled_from([2**31 - 1, -(2**31), -2_147_472_692]))),
    (pa.timestamp("ms", "UTC"), PLAIN, st.one_of(st.integers(-(10**14), 10**14), LONGS)),
    (pa.timestamp("us"), PLAIN, st.one_of(LONGS, st.sampled_from([2**63 - 1, -(2**63) + 1]))),
    (pa.timestamp("ns"), PLAIN, LONGS),
    (
        pa.struct([("scale", pa.int32()), ("value", pa.binary())]),
        LogicalType(Kind.DECIMAL_VARIABLE),
        st.fixed_dictionaries({"scale": st.integers(-1, 5), "value": st.binary(min_size=1, max_size=4)}),
    ),
    (pa.list_(pa.int64()), PLAIN, st.lists(st.one_of(st.none(), LONGS), max_size=3)),
    (pa.list_(pa.timestamp("ms")), PLAIN, st.lists(st.integers(-(10**12), 10**12), max_size=3)),
    (
        pa.struct([("x", pa.int32()), ("y", pa.int64())]),
        LogicalType(fields=(("y", LogicalType(Kind.TIMESTAMP_MS)),)),
        st.fixed_dictionaries({"x": st.one_of(st.none(), INTS), "y": st.integers(-(10**12), 10**12)}),
    ),
    (
        pa.map_(pa.string(), pa.int64()),
        LogicalType(item=LogicalType(Kind.TIMESTAMP_MS)),
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 10**12)), max_size=3),
    ),
]
TARGETS = [
    pa.bool_(), pa.int16(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32(), UTC,
    pa.timestamp("us"), pa.decimal128(10, 2), pa.decimal128(38, 0), pa.decimal128(38, 30), pa.list_(pa.int64()), pa.list_(UTC),
    pa.struct([("y", UTC), ("z", pa.string())]), pa.struct([pa.field("x", pa.int64(), False)]),
    pa.map_(pa.string(), UTC), pa.map_(pa.string(), pa.string()),
]  # fmt: skip


@examples(100)
@given(st.sampled_from(NATURAL), st.sampled_from(TARGETS), st.data())
def test_a_column_at_once_is_its_values_one_by_one(natural: Any, target: pa.DataType, data: st.DataObject) -> None:
    kind, logical, strategy = natural
    values = pa.array(data.draw(st.lists(st.one_of(st.none(), strategy), max_size=5)), kind)
    one_by_one, wrong = one_at_a_time(values, logical, target)
    try:
        at_once = typed_values.converted(values, logical, target, OPTIONS)
    except typed_values.MISSES:
        return
    assert wrong is None, (values, wrong)
    assert at_once.type == target
    assert same(plain_values(at_once).to_pylist(), plain_values(one_by_one).to_pylist()), (values, at_once, one_by_one)


def one_at_a_time(values: pa.Array, logical: LogicalType, target: pa.DataType) -> Any:
    def refuse(*_: Any) -> None:
        raise Missed

    with patch.object(typed_values, "converted", refuse):
        return read_column(values, logical, target, OPTIONS)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or (
            one == other and math.copysign(1, one) == math.copysign(1, other)
        )
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same(*pair) for pair in zip(one, other, strict=True))
    return type(one) is type(other) and one == other


TEXTS_OF_NUMBERS = pa.map_(pa.string(), pa.int64())


@pytest.mark.parametrize(
    ("values", "target", "wrong"),
    [
        (pa.array([[("a", 1), ("b", 2)], [("a", 1), ("a", 2)]], TEXTS_OF_NUMBERS), pa.map_(pa.string(), pa.int64()), 1),
        (pa.array([[1], [None]], pa.list_(pa.int64())), pa.list_(pa.field("element", pa.int64(), False)), 1),
        (pa.array([{"x": 1}, {"x": None}, None]), pa.struct([pa.field("x", pa.int64(), False)]), 1),
        (pa.array([{"x": 1}]), pa.struct([pa.field("y", pa.int64(), False)]), 0),
    ],
)
def test_what_a_nested_column_does_not_take_is_found(values: pa.Array, target: pa.DataType, wrong: int) -> None:
    read, misfits = read_column(values, PLAIN, target, OPTIONS)
    assert misfits is not None and np.flatnonzero(misfits).tolist() == [wrong]
    assert read.is_valid().to_pylist() == [row != wrong and values[row].is_valid for row in range(len(values))]


USUAL = [
    (pa.int32(), PLAIN, pa.int64()),
    (pa.int64(), PLAIN, pa.float64()),
    (pa.float32(), PLAIN, pa.float64()),
    (pa.string(), PLAIN, pa.string()),
    (pa.binary(), PLAIN, pa.binary()),
    (pa.int64(), LogicalType(Kind.TIMESTAMP_US), UTC),
    (pa.int32(), LogicalType(Kind.DATE_DAYS), pa.date32()),
    (pa.date32(), PLAIN, pa.date32()),
    (pa.timestamp("ms", "UTC"), PLAIN, UTC),
    (pa.decimal128(10, 2), PLAIN, pa.decimal128(12, 4)),
    (pa.binary(), LogicalType(Kind.DECIMAL_BYTES, scale=2), pa.decimal128(12, 2)),
    (pa.list_(pa.int32()), PLAIN, pa.list_(pa.int64())),
]


@pytest.mark.parametrize(("kind", "logical", "target"), USUAL, ids=str)
def test_usual_columns_are_converted_at_once(kind: pa.DataType, logical: LogicalType, target: pa.DataType) -> None:
    value = {
        pa.string(): "a",
        pa.binary(): b"\x01",
        pa.list_(pa.int32()): [1],
        pa.decimal128(10, 2): Decimal("1.50"),
    }.get(kind, 1)
    assert typed_values.converted(pa.array([value, None], kind), logical, target, OPTIONS).null_count == 1


def test_a_value_that_does_not_fit_is_named_and_its_neighbours_are_read() -> None:
    read, wrong = read_column(pa.array([1, 70_000, None, 2], pa.int32()), PLAIN, pa.int16(), OPTIONS)
    assert read.to_pylist() == [1, None, None, 2]
    assert wrong is not None and wrong.tolist() == [False, True, False, False]


@pytest.mark.parametrize(
    ("values", "hits"),
    [
        (pa.array(["a", "p-", None]), [False, True, False]),
        (pa.array([b"p-", b"p", None]), [True, False, False]),
        (pa.array([["p-"], ["p-", "a"], [], None], pa.list_(pa.string())), [True, False, False, False]),
        (pa.array([[112, 45], [112], None], pa.list_(pa.int32())), [True, False, False]),
        (pa.array([[("p-", "p-")], [("a", "p-")], None], pa.map_(pa.string(), pa.string())), [True, False, False]),
    ],
)
def test_the_placeholder_of_an_unavailable_value_is_found_in_every_type(values: pa.Array, hits: list[bool]) -> None:
    for offset in (0, 1):
        kept, mask = without_unavailable(values[offset:], Placeholder.of("p-"), np.ones(len(values) - offset, bool))
        assert (np.zeros(len(kept), bool) if mask is None else mask).tolist() == hits[offset:]
        assert kept.type == values.type and kept.null_count == sum(hits[offset:]) + values.null_count


def test_columns_that_are_added_get_the_type_of_what_the_values_mean() -> None:
    def column(kind: pa.DataType, logical: LogicalType = PLAIN) -> pa.DataType:
        return column_field(pa.field("c", kind), logical).type

    assert column(pa.int64(), LogicalType(Kind.TIMESTAMP_NS)) == column(pa.timestamp("ms", "UTC")) == UTC
    assert column(pa.string(), LogicalType(Kind.TIMESTAMP_TEXT)) == UTC
    assert column(pa.int64(), LogicalType(Kind.TIME_US)) == pa.string()
    assert column(pa.binary(), LogicalType(Kind.DECIMAL_BYTES, scale=3)) == pa.decimal128(38, 3)
    assert column(pa.decimal128(9, 2)) == pa.decimal128(9, 2)
    assert column(pa.binary(4)) == pa.binary()
    nested = pa.struct([("at", pa.int32())])
    days = LogicalType(fields=(("at", LogicalType(Kind.DATE_DAYS)),))
    assert column(nested, days) == pa.struct([("at", pa.date32())])
    assert column(pa.list_(nested), LogicalType(item=days)).value_type == pa.struct([("at", pa.date32())])
