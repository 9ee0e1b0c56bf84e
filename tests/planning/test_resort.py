"""In what order parts are sorted by a new sort key: those read most first, then the oldest."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lakebed.log.actions import Part
from lakebed.log.snapshot import Snapshot
from lakebed.planning.plan import MergeKind
from lakebed.planning.planner import plan
from lakebed.planning.rounds import round_plans
from tests.planning.tables import MB, ORDERED, part, table
from tests.worlds import seeds

NOW = 12 * 3_600_000
CHANGED = replace(ORDERED, sort_key=("key",), sort_key_version=2)
APART = [(number, number * 100, number * 100 + 50) for number in range(1, 7)]


def old(number: int, low: int, high: int, size: int = 100 * MB, **fields: Any) -> Part:
    return part(f"old-{number}", low, high, size, sort_key_version=1, **fields)


def order(snapshot: Snapshot, reads: Mapping[str, int]) -> list[tuple[str, ...]]:
    """The inputs of the resort plans of all rounds, one after the other."""
    found: list[tuple[str, ...]] = []
    while plans := plan(snapshot, (), NOW, reads=reads).plans:
        assert {one.kind for one in plans} == {MergeKind.RESORT}
        found += [one.inputs for one in plans]
        done = {path for one in plans for path in one.inputs}
        left = {
            path: replace(item, sort_key_version=2) if path in done else item for path, item in snapshot.parts.items()
        }
        snapshot = replace(snapshot, parts=left)
    return found


def test_what_is_read_most_is_sorted_first_and_then_the_oldest() -> None:
    snapshot = table([old(*place) for place in APART], CHANGED)
    assert order(snapshot, {}) == [(f"old-{number}",) for number in (1, 2, 3, 4, 5, 6)]
    assert order(snapshot, {"old-5": 40, "old-3": 7}) == [(f"old-{number}",) for number in (5, 3, 1, 2, 4, 6)]


def test_reads_of_everything_alike_change_nothing_whatever_the_sizes() -> None:
    parts = [old(number, low, high, (10 + 60 * (number % 3)) * MB) for number, low, high in APART]
    snapshot = table(parts, CHANGED)
    assert order(snapshot, {item.path: 9 for item in parts}) == order(snapshot, {})


def test_what_many_wait_for_does_not_wait_for_what_nobody_reads() -> None:
    snapshot = table([old(number, 0, 1000, 50 * MB) for number in range(1, 9)], CHANGED)
    hot = {"old-4": 100, "old-6": 60, "old-7": 40}
    found = order(snapshot, hot)
    assert [set(inputs) for inputs in found] == [
        {"old-4", "old-6"},
        {"old-7"},
        {"old-1", "old-2", "old-3", "old-5", "old-8"},
    ]
    assert [set(inputs) for inputs in order(snapshot, {})] == [{f"old-{number}" for number in range(1, 9)}]


def test_the_partition_that_is_read_goes_first_and_the_others_as_ever() -> None:
    parts = [
        old(number, 0, 100, 60 * MB, partition_values={"region": region})
        for number, region in enumerate(["a", "b", "c", "a", "b", "c"], 1)
    ]
    snapshot = table(parts, CHANGED, partition_by=("region",))
    assert order(snapshot, {}) == [("old-1", "old-4"), ("old-2", "old-5"), ("old-3", "old-6")]
    assert order(snapshot, {"old-6": 3, "old-3": 2}) == [("old-3", "old-6"), ("old-1", "old-4"), ("old-2", "old-5")]


@seeds(8, quick=8)
def test_all_parts_get_their_turn_whatever_is_read(seed: int) -> None:
    rng = random.Random(seed)
    parts = [
        old(number, low := rng.randrange(1000), low + rng.randrange(300), rng.randrange(1, 400) * MB)
        for number in range(40)
    ]
    reads = {item.path: rng.randrange(1, 50) for item in rng.sample(parts, rng.randrange(40))} | {"gone": 99}
    settings = replace(CHANGED, merge="off")
    found = [path for inputs in order(table(parts, settings), reads) for path in inputs]
    assert sorted(found) == sorted(item.path for item in parts), "each once"


def test_a_recluster_job_goes_the_same_way() -> None:
    snapshot = table([old(*place) for place in APART], CHANGED)
    assert next(round_plans(snapshot, (), NOW, {"old-5": 1})).inputs == ("old-5",)
