"""Missing values of all keys at once are those that one key after the other gets, change by change."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lakebed.resolve.unavailable_values import NOWHERE, Rows, completed, patterns_of
from tests.worlds import examples

COLUMNS = ("a", "b", "c")


@dataclass(frozen=True)
class Change:
    key: int
    rank: int
    deleted: bool
    lacks: frozenset[str]
    counts: bool = True


@dataclass
class Row:
    """What a key is after some of its changes."""

    place: int
    values: dict[str, int | None] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)


CHANGES = st.lists(
    st.builds(
        Change,
        key=st.integers(0, 3),
        rank=st.integers(0, 3),
        deleted=st.booleans(),
        lacks=st.frozensets(st.sampled_from(COLUMNS)),
        counts=st.integers(0, 9).map(bool),
    ),
    max_size=14,
)


@given(changes=CHANGES, required=st.frozensets(st.sampled_from(COLUMNS)), base_is_known=st.booleans())
@examples(60)
def test_a_row_takes_what_it_lacks_from_the_newest_change_before_it(
    changes: list[Change], required: frozenset[str], base_is_known: bool
) -> None:
    found = completed(rows_of(changes), required, base_is_known, np.array([one.counts for one in changes], dtype=bool))
    expected: dict[int, Row] = {}
    left_out: dict[int, list[str]] = {}
    for key in range(4):
        row, out = visited(
            [at for at, one in enumerate(changes) if one.key == key and one.counts], changes, required, base_is_known
        )
        expected |= {row.place: row} if row else {}
        left_out |= out
    assert sorted(found.newest.tolist()) == sorted(expected)
    assert {row: list(names) for row, names in found.left_out.items()} == left_out
    for at, place in enumerate(found.newest.tolist()):
        one = expected[place]
        for name, givers in found.givers.items():
            assert bool(found.unknown[name][at]) == (name in one.unknown)
            if name not in one.unknown:
                giver = one.values.get(name, place)
                assert givers[at] == (NOWHERE if giver is None else giver)


def rows_of(changes: list[Change]) -> Rows:
    patterns = sorted({one.lacks for one in changes}, key=sorted)
    return Rows(
        group=np.array([one.key for one in changes], dtype=np.int64),
        rank=np.array([one.rank for one in changes], dtype=np.int64),
        deleted=np.array([one.deleted for one in changes], dtype=bool),
        pattern=np.array([patterns.index(one.lacks) for one in changes], dtype=np.int64),
        patterns=patterns,
    )


def visited(
    places: list[int], changes: list[Change], required: frozenset[str], base_is_known: bool
) -> tuple[Row | None, dict[int, list[str]]]:
    """What the changes of one key come to, and which are left out for want of a value."""
    newest: Row | None = None
    left_out: dict[int, list[str]] = {}
    for place in places:
        one = changes[place]
        if newest is not None and one.rank < changes[newest.place].rank:
            continue
        row = Row(place)
        for name in () if one.deleted else one.lacks:
            if newest is None or name in newest.unknown:
                row.unknown.add(name)
            else:
                row.values[name] = None if changes[newest.place].deleted else newest.values.get(name, newest.place)
        void = {name for name, giver in row.values.items() if giver is None} | (row.unknown if base_is_known else set())
        if void & required:
            left_out[place] = sorted(void & required)
            continue
        newest = row
        if not row.values and not row.unknown:
            left_out = {other: names for other, names in left_out.items() if changes[other].rank > one.rank}
    return newest, left_out


@given(lists=st.lists(st.none() | st.lists(st.integers(0, 150), unique=True, max_size=70), max_size=12))
@examples(60)
def test_lists_of_names_are_numbered_by_what_they_have(lists: list[list[int] | None]) -> None:
    given_names = [None if each is None else [f"c{name}" for name in each] for each in lists]
    pattern, patterns = patterns_of(pa.chunked_array([pa.array(given_names, pa.list_(pa.string()))]))
    assert [patterns[number] for number in pattern.tolist()] == [frozenset(each or ()) for each in given_names]
    assert len(set(patterns)) == len(patterns)
