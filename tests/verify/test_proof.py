"""A table that is compared while its source goes on: each planted difference is found, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from lakebed.verify.comparing import ROUNDS_MAX, Key, Row, Span
from lakebed.verify.proof import Found, Proof
from lakebed.verify.source import REST_SECONDS_MAX, Pace
from tests.verify.memory import TEXT, MemoryLake, MemorySource, World, shape

FAULTS: dict[str, Callable[[list[str]], list[str]]] = {
    "missing": lambda found: [],
    "surplus": lambda found: ["a row that was deleted"],
    "doubled": lambda found: [*found, *found],
    "differs": lambda found: [f"{one}!" for one in found],
}
KEYS = 300
FAST = Pace(float("inf"))


def world_of(seed: int) -> World:
    world = World(random.Random(seed))
    for key in range(0, KEYS, 2):
        world.write(key, f"value {key}")
    return world


def compared(world: World, *, ordered: bool = True, scan: MemorySource | None = None) -> Found:
    source, lake = MemorySource(world), MemoryLake(world)
    return Proof(shape(ordered=ordered), source, lake, FAST, scan=scan, bucket_rows=7, group_buckets=3).run()


def frozen(world: World) -> MemorySource:
    """The source as it is now, while the world goes on."""
    return MemorySource(replace(world, log=list(world.log), rows=dict(world.rows), before=lambda: world.before()))


def plant(world: World) -> dict[str, str]:
    """One fault of each kind, of keys that nobody changes; returns the kinds by key."""
    present = world.chance.sample(range(0, KEYS, 2), 3)
    absent = world.chance.choice(range(1, KEYS, 2))
    kinds = dict(zip([*present, absent], ("missing", "doubled", "differs", "surplus"), strict=True))
    world.faults = {key: FAULTS[kind] for key, kind in kinds.items()}
    return {str(key): kind for key, kind in kinds.items()}


def goes_on(world: World, share: float) -> None:
    """From now on rows come, change and go at each statement, but not those with faults; some time all is quiet."""

    quiet_at, calls = world.chance.randrange(40, 400), iter(range(1_000_000))

    def change() -> None:
        is_quiet = next(calls) > quiet_at
        while not is_quiet and world.chance.random() < share:
            key = world.chance.randrange(KEYS)
            if key not in world.faults:
                world.write(key, None if world.chance.random() < 0.3 else f"new {len(world.log)}")

    world.before = change


@pytest.mark.few(40)
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("seed", range(40))
def test_each_planted_difference_is_found_and_nothing_else(seed: int, ordered: bool) -> None:
    world = world_of(seed)
    planted = plant(world)
    goes_on(world, 0.8)
    found = compared(world, ordered=ordered)
    assert {one.key["id"]: one.kind for one in found.differences} == planted
    assert found.differing_keys == len(planted)
    assert found.unsettled == []


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_what_is_read_at_one_position_is_compared_with_what_came_since(seed: int, ordered: bool) -> None:
    world = world_of(seed)
    planted = plant(world)
    goes_on(world, 0.8)
    scan = frozen(world)
    found = compared(world, ordered=ordered, scan=scan)
    assert {one.key["id"]: one.kind for one in found.differences} == planted
    assert (found.rows, found.first_position) == (scan.tally(Span(after=None, upto=None)), 150)
    assert (found.differing_keys, found.unsettled) == (len(planted), [])


@pytest.mark.few(20)
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_a_table_that_follows_its_source_is_equal(seed: int, ordered: bool) -> None:
    world = world_of(seed)
    goes_on(world, 0.9)
    found = compared(world, ordered=ordered)
    assert (found.differences, found.unsettled) == ([], [])
    assert found.keys, "nothing changed meanwhile, so this shows nothing"


def test_a_table_at_rest_is_equal_by_its_tallies_alone() -> None:
    world = world_of(1)
    found = compared(world)
    assert (found.rows.rows, found.buckets, found.keys) == (150, 22, 0)
    assert found.first_position == found.last_position == 150


def test_a_row_that_changes_all_the_time_is_not_called_different() -> None:
    world = world_of(1)
    world.faults[4] = FAULTS["differs"]
    world.before = lambda: world.write(4, f"new {len(world.log)}")
    found = compared(world)
    assert (found.differences, found.unsettled, found.rounds) == ([], [("4",)], ROUNDS_MAX)


def test_rows_that_are_the_same_in_other_words_are_equal() -> None:
    world = world_of(1)
    world.faults[4] = lambda found: [one.upper() for one in found]
    of_any_case = shape().columns[1].rule
    any_case = type(of_any_case)(source="{}", lake="{}", is_free=True, judge=lambda a, b: a.lower() == b.lower())
    found = Proof(shape(value=any_case), MemorySource(world), MemoryLake(world), FAST, bucket_rows=7).run()
    assert (found.differences, found.differing_keys, found.keys) == ([], 0, 1)


def test_a_row_that_changes_before_it_is_read_whole_is_compared_again() -> None:
    world = world_of(1)
    world.faults[4] = lambda found: [one.upper() for one in found]
    rule = replace(TEXT, judge=lambda one, other: one.lower() == other.lower())

    class Changing(MemorySource):
        changes = 99

        def rows(self, keys: Sequence[Key]) -> Mapping[Key, Sequence[Row]]:
            if self.changes:
                self.changes -= 1
                world.write(4, f"new {len(world.log)}")
            return super().rows(keys)

    source = Changing(world)
    found = Proof(shape(value=rule), source, MemoryLake(world), FAST, bucket_rows=7).run()
    assert (found.differences, found.unsettled) == ([], [("4",)]), "it changed again and again, and nobody knows"
    source.changes = 1
    found = Proof(shape(value=rule), source, MemoryLake(world), FAST, bucket_rows=7).run()
    assert (found.differences, found.unsettled) == ([], [])


def test_it_ends_after_so_many_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakebed.verify.proof.DIFFERENCES_MAX", 20)
    monkeypatch.setattr("lakebed.verify.proof.SHOWN_MAX", 5)
    world = world_of(1)
    world.faults = dict.fromkeys(range(0, KEYS, 2), FAULTS["missing"])
    found = compared(world)
    assert found.is_cut
    assert (len(found.differences), found.differing_keys) == (5, 21)
    assert found.rows.rows == 21, "no bucket was read after the group in which it ended"


def test_rows_are_read_no_faster_than_the_pace() -> None:
    slept: list[float] = []
    now = [100.0]

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    pace = Pace(50.0, lambda: now[0], sleep)
    Proof(shape(), MemorySource(world := world_of(1)), MemoryLake(world), pace, bucket_rows=7).run()
    assert sum(slept) == pytest.approx(150 / 50 - 1), "all rows, less a second that may be a burst"
    now[0] += 1000.0
    before = sum(slept)
    pace.took(150)
    assert sum(slept) - before == pytest.approx(150 / 50 - 1), "a pause is not made up for"


def test_it_rests_as_long_as_it_worked() -> None:
    now, slept = [100.0], list[float]()
    pace = Pace(50_000.0, lambda: now[0], slept.append)
    for seconds in (0.0, 0.3, 60.0):  # the last is one in which the table was waited for
        now[0] += seconds
        pace.took(1)
    assert slept == pytest.approx([0.3, REST_SECONDS_MAX])
