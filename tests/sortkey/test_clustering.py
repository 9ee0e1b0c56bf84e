"""Figures of clustering against counting one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lakebed.sortkey.ranges import Placed, Range, clustering


def part(low: int, high: int, level: int = 0, partition: object = None, is_sorted: bool = True) -> Placed:
    return Placed(level, partition, Range((1, low), (1, high)), is_sorted)


def points_over(one: Placed, others: list[Placed]) -> int:
    """Counting: at each end within the part's range, how many parts lie over it."""
    ends = {end for other in others for end in (other.range.lower, other.range.upper)}
    within = [end for end in ends if one.range.lower <= end <= one.range.upper]
    same = [other for other in others if other.partition == one.partition]
    return max(sum(other.range.lower <= end <= other.range.upper for other in same) for end in within)


PARTS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 12), st.sampled_from(["a", "b"])).map(
        lambda drawn: part(drawn[0], drawn[0] + drawn[1], partition=drawn[2])
    ),
    min_size=1,
    max_size=40,
)


@given(PARTS)
def test_depth_and_overlaps_are_what_counting_finds(parts: list[Placed]) -> None:
    found = clustering(parts)
    depths = [points_over(one, parts) for one in parts]
    meetings = [
        sum(
            other is not one
            and other.partition == one.partition
            and other.range.lower <= one.range.upper
            and one.range.lower <= other.range.upper
            for other in parts
        )
        for one in parts
    ]
    assert found.average_depth == sum(depths) / len(parts)
    assert found.max_depth == max(depths)
    assert found.average_overlaps == sum(meetings) / len(parts)
    assert found.histogram is not None and sum(found.histogram.values()) == len(parts)


@given(PARTS)
def test_the_deepest_stretch_is_as_deep_as_the_deepest_part(parts: list[Placed]) -> None:
    found = clustering(parts)
    if found.max_depth == 1:
        assert found.deepest == ()
        return
    deepest = found.deepest[0]
    assert deepest.depth == found.max_depth
    over = [
        one
        for one in parts
        if one.partition == deepest.partition and one.range.lower <= deepest.range.lower <= one.range.upper
    ]
    assert len(over) == deepest.depth


def test_parts_of_one_key_are_constant_and_unbounded_ones_unsorted() -> None:
    found = clustering([part(1, 1), part(2, 3), Placed(0, None, Range(), True), part(7, 9, is_sorted=False)])
    assert (found.constant, found.unsorted) == (1, 2)


def test_great_depths_share_a_bucket() -> None:
    assert clustering([part(1, 2)] * 40).histogram == {64: 40}


def test_no_parts_have_no_depth() -> None:
    found = clustering([])
    assert (found.parts, found.max_depth, found.average_depth, found.histogram) == (0, 0, 0.0, {})
