"""Bounds on a number line: distances are those of values, and what has no value lies outside and is named."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from lakebed.sortkey.ranges import Bound, order_columns, range_of
from lakebed.ui.levels import STEPS, values_of

SCHEMA = pa.schema(
    [("n", pa.int64()), ("x", pa.float64()), ("d", pa.date32()), ("t", pa.timestamp("us", "UTC")), ("s", pa.string())]
)


def placed(key: list[str], bounds: list[Bound]) -> dict[str, Any] | None:
    return values_of(sorted(bounds), order_columns(SCHEMA, key, ()))


def test_distances_are_those_of_values() -> None:
    found = placed(["n"], [(1, 0), (1, 10), (1, 100)])
    assert found is not None
    assert (found["unit"], found["low"], found["high"], found["marks"]) == ("number", 0, 100, [])
    assert found["places"] == [0, STEPS // 10, STEPS]


@pytest.mark.parametrize(
    ("key", "values"),
    [("d", [dt.date(2026, 1, 1), dt.date(2026, 1, 2), dt.date(2026, 1, 5)]),
     ("t", [dt.datetime(2026, 1, day, tzinfo=dt.UTC) for day in (1, 2, 5)]),
     ("day(t)", [20454, 20455, 20458]), ("hour(t)", [20454 * 24, 20455 * 24, 20458 * 24])],
)  # fmt: skip
def test_times_are_epoch_milliseconds(key: str, values: list[Any]) -> None:
    found = placed([key], [(1, value) for value in values])
    assert found is not None
    assert (found["unit"], found["low"], found["high"]) == ("time", 1_767_225_600_000, 1_767_571_200_000)
    assert found["places"] == [0, STEPS // 4, STEPS]


def test_a_descending_term_grows_with_the_order() -> None:
    stats = [
        f'{{"numRecords": 1, "minValues": {{"n": {n}}}, "maxValues": {{"n": {n}}}, "nullCount": {{"n": 0}}}}'
        for n in (3, 7)
    ]
    terms = order_columns(SCHEMA, ["n desc"], ())
    found = values_of(sorted(range_of(text, terms).lower for text in stats), terms)
    assert found is not None
    assert (found["low"], found["high"], found["is_mirrored"]) == (-7, -3, True)


def test_what_has_no_value_lies_outside_and_is_named() -> None:
    found = placed(["x"], [(), (0, None), (1, 1.0), (1, 2.0), (1.25, None), (2,)])
    assert found is not None
    assert found["places"] == sorted(found["places"]) and found["places"][:2] == [0, 0]
    assert 0 < found["places"][2] < found["places"][3] < STEPS
    assert found["marks"] == [[0, "…"], [STEPS, "…"]]
    nulls = placed(["n"], [(0, None), (1, 5), (1, 6)])
    assert nulls is not None and nulls["marks"] == [[0, "NULL"]]


def test_bounds_that_are_equal_in_the_first_term_are_spread_over_one_unit() -> None:
    found = placed(["n", "s"], [(1, 5, 1, b"a"), (1, 5, 1, b"b"), (1, 6, 1, b"a"), (1, 15, 1, b"a")])
    assert found is not None
    assert (found["low"], found["high"]) == (5, 15)
    assert found["places"] == [0, STEPS // 20, STEPS // 10, STEPS]


@pytest.mark.parametrize("key", ["s", "bucket(4, n)", "year(t)"])
def test_a_term_without_distances_has_no_number_line(key: str) -> None:
    assert placed([key], [(1, 1), (1, 2)]) is None


@pytest.mark.parametrize("bounds", [[], [(1, 4)], [(1, 4), (1, 4)], [(0, None), (2,)]])
def test_without_two_values_there_is_no_number_line(bounds: list[Bound]) -> None:
    assert placed(["x"], bounds) is None


def test_the_greatest_and_the_least_number_are_no_obstacle() -> None:
    found = placed(["x"], [(1, -1.7e308), (1, 0.0), (1, 1.7e308)])
    assert found is None or found["places"] == [0, STEPS // 2, STEPS]
    assert placed(["n"], [(1, -(2**63)), (1, 0), (1, 2**63 - 1)]) is not None
