"""Parts as bars: where they lie, which lane they are in, and what is said of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from lakebed.log.actions import Part
from lakebed.settings import TableSettings
from lakebed.ui import levels as module
from lakebed.ui.levels import STATES, levels
from tests.planning.tables import UNORDERED, change_part, part, table
from tests.worlds import seeds

NOBODY: frozenset[str] = frozenset()
SORTED = TableSettings(keys=("key",), sort_key_version=1)


def bars(document: dict[str, Any]) -> list[tuple[int, int, int, int, str]]:
    columns = document["columns"]
    groups = [document["groups"][group]["level"] for group in columns["group"]]
    states = [STATES[state] for state in columns["state"]]
    return list(zip(groups, columns["lane"], columns["first"], columns["last"], states, strict=True))


def mine(path: str, low: int, high: int, **fields: Any) -> Part:
    return part(path, low, high, **{"sort_key_version": 1} | fields)


def test_bars_that_meet_are_in_different_lanes_and_the_tail_comes_first() -> None:
    found = levels(
        table(
            [mine("p1", 0, 9), mine("p2", 5, 14), mine("p3", 10, 20), mine("p4", 0, 20, level=1)],
            SORTED,
            tail=[change_part("_lakebed/c.parquet", 3, 4)],
        ),
        NOBODY,
    ).document
    # The bounds, in order: 0 3 4 5 9 10 14 20
    assert bars(found) == [
        (-1, 0, 1, 2, "tail"),
        (0, 0, 0, 4, "settled"),
        (0, 1, 3, 6, "settled"),
        (0, 0, 5, 7, "settled"),
        (1, 0, 0, 7, "settled"),
    ]
    assert [group["lanes"] for group in found["groups"]] == [1, 2, 1]
    assert found["axis"]["labels"][0] == [0, "0"] and found["axis"]["labels"][-1] == [7, "20"]


@seeds(5, quick=5)
def test_no_two_bars_of_a_lane_meet_and_there_are_no_more_lanes_than_the_level_is_deep(seed: int) -> None:
    rng = random.Random(seed)
    parts = []
    for number in range(200):
        low = rng.randrange(1000)
        parts.append(mine(f"p{number}", low, low + rng.randrange(60), level=rng.randrange(3)))
    document = levels(table(parts, SORTED), NOBODY).document
    assert document["parts"] == len(bars(document)) == 200
    for level in range(3):
        mine_ = [(lane, first, last) for of, lane, first, last, _ in bars(document) if of == level]
        for lane in {lane for lane, _, _ in mine_}:
            in_lane = sorted((first, last) for of, first, last in mine_ if of == lane)
            assert all(before[1] < after[0] for before, after in pairwise(in_lane))
        deepest = max(sum(first <= at <= last for _, first, last in mine_) for at in range(document["axis"]["points"]))
        assert 1 + max(lane for lane, _, _ in mine_) == deepest


def test_claimed_parts_and_those_of_another_order_are_distinguished() -> None:
    parts = [mine("p1", 0, 1), mine("p2", 2, 3), mine("p3", 4, 5, sort_key_version=None)]
    found = bars(levels(table(parts, SORTED), frozenset(["p2"])).document)
    assert [state for *_, state in found] == ["settled", "claimed", "other_order"]


def test_a_table_without_an_order_is_drawn_over_versions() -> None:
    document = levels(table([part("p3", None, None), part("p8", None, None)], UNORDERED), NOBODY).document
    assert (document["axis"]["kind"], document["axis"]["by"]) == ("versions", [])
    assert document["axis"]["labels"] == [[0, "version 3"], [1, "version 8"]]
    assert [state for *_, state in bars(document)] == ["settled", "settled"]


def test_partitions_lie_side_by_side_and_are_named() -> None:
    parts = [
        mine("p1", 0, 9, partition_values={"region": "eu"}),
        mine("p2", 0, 9, partition_values={"region": None}),
        mine("p3", 0, 9, partition_values={"region": "us"}),
    ]
    found = levels(table(parts, SORTED, partition_by=("region",)), NOBODY)
    assert found.document["axis"]["partitions"] == [[0, "region=NULL"], [2, "region=eu"], [4, "region=us"]]
    assert {lane for _, lane, *_ in bars(found.document)} == {0}
    assert found.document["axis"]["values"] is None, "partitions are side by side, so no number line holds them all"
    told = found.part(found.document["columns"]["id"][1])
    assert told is not None and told["partition"] == "region=eu"


def test_a_part_tells_its_path_and_its_bounds() -> None:
    found = levels(table([mine("p7", 30, 40, rows=10, dead=4)], SORTED), NOBODY)
    told = found.part(found.document["columns"]["id"][0])
    assert told is not None and found.part(-1) is None
    assert (told["path"], told["from"], told["to"]) == ("p7", "30", "40")


def test_of_too_many_parts_the_largest_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PARTS_MAX", 2)
    parts: Sequence[Part] = [mine("p1", 0, 1, size=10), mine("p2", 2, 3, size=30), mine("p3", 4, 5, size=20)]
    found = levels(table(parts, SORTED), NOBODY)
    assert found.document["parts"] == 3
    assert found.document["columns"]["bytes"] == [30, 20]


def test_a_table_without_parts_is_an_empty_picture() -> None:
    assert levels(table([], SORTED), NOBODY).document["groups"] == []


def test_ids_of_bounds_stay_while_their_ranks_change() -> None:
    eu, us = ({"partition_values": {"region": region}} for region in ("eu", "us"))

    def ids(*parts: Part) -> list[int]:
        found: list[int] = levels(table(parts, SORTED, partition_by=("region",)), NOBODY).document["axis"]["ids"]
        return found

    before, after = (
        ids(mine("p1", 10, 20, **eu), mine("p2", 30, 40, **us)),
        ids(mine("p3", 0, 5, **eu), mine("p2", 30, 40, **us)),
    )
    assert after[2:] == before[2:] and not set(after[:2]) & set(before)


def test_bounds_with_values_need_no_ids() -> None:
    axis = levels(table([mine("p1", 10, 20), mine("p2", 30, 40)], SORTED), NOBODY).document["axis"]
    assert axis["ids"] is None and axis["values"]["places"] == [0, 33_333_333, 66_666_667, 100_000_000]
