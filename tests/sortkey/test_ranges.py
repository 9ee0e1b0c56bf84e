"""Ranges of parts from their statistics; overlap and depth against counting one by one."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.sortkey.ranges import Depth, Range, depth, is_point, mirrored, order_columns, overlaps, range_of
from tests.worlds import examples

UTC = datetime.UTC
SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("count", pa.int64()),
        ("price", pa.decimal128(30, 4)),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("ratio", pa.float64()),
        ("raw", pa.binary()),
    ]
)


def of(
    order: list[str], low: dict[str, Any], high: dict[str, Any], nulls: dict[str, int] | None = None, rows: int = 10
) -> Range:
    counted = dict.fromkeys(order, 0) | (nulls or {})
    stats = {"numRecords": rows, "minValues": low, "maxValues": high, "nullCount": counted}
    return range_of(json.dumps(stats), order_columns(SCHEMA, order, ()))


def test_a_range_has_a_bound_for_each_leading_column() -> None:
    found = of(["name", "count"], {"name": "a", "count": 1}, {"name": "b", "count": 9})
    assert found == Range((1, b"a", 1, 1), (1, b"b", 1, 9))
    assert found.is_bounded and not found.is_constant


@pytest.mark.parametrize(
    ("column", "smaller", "greater"),
    [
        ("name", "Z", "ä"),  # by bytes, not by any language's order
        ("count", -5, 3),
        ("day", "0001-01-01", "2026-01-01"),
        ("at", "1969-12-31T23:59:59.999Z", "2026-01-01T00:00:00.000+02:00"),
        ("ratio", -0.5, 1e300),
    ],
)
def test_values_are_compared_by_their_type(column: str, smaller: Any, greater: Any) -> None:
    low = of([column], {column: smaller}, {column: smaller})
    high = of([column], {column: greater}, {column: greater})
    assert low.upper < high.lower
    assert overlaps([low, high]) == [0, 0]


def test_decimal_bounds_stay_exact() -> None:
    columns = order_columns(SCHEMA, ["price"], ())
    text = '{"numRecords":1,"minValues":{"price":%s},"maxValues":{"price":%s},"nullCount":{"price":0}}'
    first = range_of(text % (("12345678901234567890.0001",) * 2), columns)
    second = range_of(text % (("12345678901234567890.0002",) * 2), columns)
    assert first.upper == (1, Decimal("12345678901234567890.0001"))
    assert first.upper < second.lower


def test_nulls_sort_first() -> None:
    some = of(["count"], {"count": -(2**60)}, {"count": 5}, {"count": 1})
    only = of(["count"], {}, {}, {"count": 10})
    assert some.lower == only.lower == only.upper == (0, None)
    assert only.is_constant
    assert only.upper < of(["count"], {"count": -(2**62)}, {"count": 0}).lower


def test_what_is_not_known_is_unbounded() -> None:
    assert range_of(None, order_columns(SCHEMA, ["count"], ())) == Range()
    assert of(["count"], {}, {}) == Range()
    assert of(["at"], {"at": "no time"}, {"at": "+12345-01-01T00:00:00Z"}) == Range()
    assert of(["count"], {"count": "7"}, {"count": "9"}) == Range()
    assert of(["count"], {"count": 9}, {"count": 7}) == Range()  # makes no sense, so says nothing
    half = of(["name", "count"], {"name": "a"}, {"name": "b", "count": 9})
    assert half == Range((1, b"a"), (1, b"b", 1, 9))
    assert of(["name", "count"], {"name": "a", "count": 1}, {"name": "b"}).upper == (1, b"b", 2)


def test_the_order_ends_where_a_type_has_no_bounds_and_skips_partition_columns() -> None:
    assert [column.name for column in order_columns(SCHEMA, ["day", "name", "raw", "count"], ["day"])] == ["name"]


def test_equal_as_far_as_bounds_are_kept_is_constant() -> None:
    key = "x" * 32
    assert of(["name"], {"name": key}, {"name": key + "\U0010ffff"}).is_constant
    assert not of(["name"], {"name": key}, {"name": key + "y"}).is_constant
    near = of(["at"], {"at": "2026-01-01T00:00:00.001Z"}, {"at": "2026-01-01T00:00:00.002Z"})
    assert near.is_constant
    assert not of(["at"], {"at": "2026-01-01T00:00:00.001Z"}, {"at": "2026-01-01T00:00:01.002Z"}).is_constant
    assert of(["count"], {"count": 3}, {"count": 3}).is_constant
    assert not is_point((0, None), (1, 5))


@st.composite
def some_ranges(draw: st.DrawFn) -> list[Range]:
    ends = draw(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=25))
    return [Range((1, min(pair)), (1, max(pair)) if max(pair) < 12 else (2,)) for pair in ends]


@examples(80)
@given(some_ranges())
def test_overlap_and_depth_are_what_counting_one_by_one_gives(ranges: list[Range]) -> None:
    def meet(one: Range, other: Range) -> bool:
        return one.lower <= other.upper and other.lower <= one.upper

    assert overlaps(ranges) == [sum(meet(one, other) for other in ranges) - 1 for one in ranges]
    points = {item.lower for item in ranges} | {item.upper for item in ranges}
    deep = [sum(item.lower <= point <= item.upper for item in ranges) for point in points]
    expected = Depth()
    if deep:
        histogram = {value: deep.count(value) for value in sorted(set(deep))}
        expected = Depth(max(deep), sum(deep) / len(deep), histogram)
    assert depth(ranges) == expected


def test_a_part_that_tells_its_first_and_last_key_reaches_no_farther() -> None:
    stats = {
        "numRecords": 10,
        "minValues": {"name": "a", "count": 1},
        "maxValues": {"name": "b", "count": 99},
        "nullCount": {"name": 0, "count": 0},
        "sortKeyBounds": {"columns": ["name", "count"], "lower": ["a", 50], "upper": ["b", 3]},
    }
    told = range_of(json.dumps(stats), order_columns(SCHEMA, ["name", "count"], ()))
    assert told == Range((1, b"a", 1, 50), (1, b"b", 1, 3))
    assert range_of(json.dumps(stats), order_columns(SCHEMA, ["name"], ())) == Range((1, b"a"), (1, b"b"))
    other = range_of(json.dumps(stats), order_columns(SCHEMA, ["count"], ()))
    assert other == Range((1, 1), (1, 99)), "sorted by something else, only the columns' own bounds count"


@examples(100)
@given(st.binary(max_size=6) | st.sampled_from([b"\x00", b"\x00\x00", b"\xff", b"a\x00"]), st.binary(max_size=6))
def test_mirrored_bytes_are_in_the_opposite_order_and_come_back(one: bytes, other: bytes) -> None:
    assert (mirrored(one) < mirrored(other)) == (one > other)
    assert (mirrored(one) == mirrored(other)) == (one == other)
    assert mirrored(one).plain() == one


@pytest.mark.parametrize(
    ("column", "smaller", "greater"),
    [("name", "Z", "ä"), ("name", "a", "ab"), ("count", -5, 3), ("day", "0001-01-01", "2026-01-01"), ("ratio", -0.5, 1e300),
     ("at", "1969-12-31T23:59:59.999Z", "2026-01-01T00:00:00.000+02:00"), ("price", -1.5, 12)],
)  # fmt: skip
def test_of_a_descending_term_the_greatest_comes_first_and_nulls_last(column: str, smaller: Any, greater: Any) -> None:
    [term] = order_columns(SCHEMA, [f"{column} desc"], ())

    def told(low: Any, high: Any, nulls: int = 0) -> Range:
        stats = {"numRecords": 9, "minValues": {column: low}, "maxValues": {column: high}, "nullCount": {column: nulls}}
        return range_of(json.dumps(stats), (term,))

    assert told(greater, greater).upper < told(smaller, smaller).lower
    assert told(greater, greater).is_constant and not told(smaller, greater).is_constant
    with_nulls, nothing = told(greater, greater, 2), told(None, None, 9)
    assert told(smaller, smaller).upper < with_nulls.upper == nothing.lower == nothing.upper < Range().upper
    assert told(smaller, greater) == Range(told(greater, greater).lower, told(smaller, smaller).upper)


def test_bounds_of_columns_bound_the_functions_that_grow_with_them_and_no_others() -> None:
    stats = {
        "numRecords": 9,
        "minValues": {"at": "1969-12-31T23:30:00.000Z", "name": "über", "count": 3},
        "maxValues": {"at": "2026-03-31T12:00:00.000Z", "name": "übrig", "count": 9},
        "nullCount": {"at": 0, "name": 0, "count": 0},
    }

    def ends(text: str) -> Range:
        return range_of(json.dumps(stats), order_columns(SCHEMA, [text], ()))

    day = datetime.date(2026, 3, 31)
    assert ends("date(at)") == Range((1, datetime.date(1969, 12, 31)), (1, day))
    assert ends("year(at)") == Range((1, -1), (1, 56))
    assert ends("month(at) desc") == Range((1, -(56 * 12 + 2)), (1, 1))
    assert ends("day(at) nulls last") == Range((1, -1), (1, day.toordinal() - 719_163))
    assert ends("hour(at)").lower == (1, -1)
    assert ends("substr(name, 1, 2)") == Range((1, "üb".encode()), (1, "üb".encode()))
    low, high = ends("zorder(count, at)").lower, ends("zorder(count, at)").upper
    assert low[0] == high[0] == 1 and 0 < low[1] < high[1]
    assert ends("zorder(count, ratio)").is_bounded, "a column without bounds reaches from end to end"
    for text in ("hilbert(count, at)", "bucket(4, count)", "substr(name, 2, 1)"):
        assert ends(text) == Range(), text
