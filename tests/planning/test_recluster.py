"""Which parts are sorted together, that it comes to an end, what it costs, and that the job's estimate says so beforehand."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from lakebed.errors import InvalidInput
from lakebed.log.actions import Part
from lakebed.log.snapshot import Snapshot
from lakebed.planning.overlap import OverlapMap
from lakebed.planning.plan import MergeKind, MergePlan
from lakebed.planning.planner import plan
from lakebed.planning.recluster import groups
from lakebed.planning.rounds import depth_by_level, estimate, round_plans
from lakebed.planning.simulator import simulate
from lakebed.planning.workload import Workload, steady
from lakebed.settings import TableSettings, check_changeable, parse_depth, parse_settings
from lakebed.sortkey.ranges import order_columns, range_of
from tests.planning.tables import MB, ORDERED, SCHEMA, part, ranked, table
from tests.worlds import seeds

NOON = 43_200_000
RECLUSTERED = replace(ORDERED, merge="recluster")
COLUMNS = order_columns(SCHEMA, ["key"], ())


def random_parts(seed: int, count: int = 60) -> list[Part]:
    """Parts of several levels and sizes anywhere on a short line, some of one key."""
    rng = random.Random(seed)
    out = []
    for number in range(count):
        low = rng.randrange(200)
        width = rng.choice((0, 0, rng.randrange(20), rng.randrange(200)))
        size = rng.choice((MB, 20 * MB, 70 * MB, 130 * MB, 600 * MB))
        out.append(part(f"p-{number}", low, low + width, size, level=rng.choice((0, 0, 0, 1, 2))))
    return out


def layout_of(parts: Sequence[Part], **settings: Any) -> OverlapMap:
    ranges = [range_of(item.stats, COLUMNS) for item in parts]
    return OverlapMap((), parts, ranked(ranges), (), TableSettings(keys=("key",), **settings))


def chosen(overlap_map: OverlapMap, threshold: str, bytes_max: int = 500 * MB) -> list[tuple[int, tuple[str, ...]]]:
    """Level and paths of all groups, each taken."""
    out = []
    for group in groups(overlap_map, parse_depth(threshold), bytes_max, lambda parts: True):
        if len(group.members):
            out.append((group.level, tuple(sorted(overlap_map.parts[index].path for index in group.members.tolist()))))
            overlap_map.take(group.members)
    return out


def merged(snapshot: Snapshot, done: MergePlan, number: int) -> Snapshot:
    """The table when a plan is done: the inputs' rows in sorted parts, anywhere within their ranges."""
    rng = random.Random(number)
    parts = dict(snapshot.parts)
    inputs = [parts.pop(path) for path in done.inputs]
    keys = []
    for item in inputs:
        found = range_of(item.stats, COLUMNS)
        low, high = (0, 10_000) if not found.is_bounded else (found.lower[1], found.upper[1])
        weight = max(2, item.bytes // MB)
        keys += [low, high, *(rng.randint(low, high) for _ in range(weight - 2))]
    keys.sort()
    size = sum(item.bytes for item in inputs)
    count = -(-size // snapshot.settings.target_part_bytes)
    step = -(-len(keys) // count)
    for place in range(0, len(keys), step):
        piece = keys[place : place + step]
        name = f"m{number}-{place}"
        parts[name] = replace(
            part(name, piece[0], piece[-1], max(1, size * len(piece) // len(keys))),
            level=done.level,
            min_block=min(item.min_block for item in inputs),
            max_block=max(item.max_block for item in inputs),
            sort_key_version=snapshot.settings.sort_key_version,
        )
    return replace(snapshot, parts=parts)


def until_nothing_is_left(snapshot: Snapshot) -> tuple[Snapshot, int, int]:
    """The table then, the bytes that were written, and the merges."""
    written = count = 0
    while (found := next(round_plans(snapshot, (), NOON), None)) is not None:
        snapshot = merged(snapshot, found, count)
        written, count = written + found.bytes_out, count + 1
        assert count < 2000, "it does not end"
    return snapshot, written, count


# -- the selection ---------------------------------------------------------------------------------------------------


def test_a_level_within_its_threshold_is_left_and_the_next_one_is_looked_at() -> None:
    level_0 = [part(f"new-{number}", number * 10, number * 10 + 12) for number in range(5)]  # depth 2
    level_1 = [part(f"old-{number}", 0, 100 + number, level=1) for number in range(3)]
    assert chosen(layout_of([*level_0, *level_1]), "2") == [(1, ("old-0", "old-1", "old-2"))]
    assert chosen(layout_of([*level_0, *level_1]), "3") == []
    assert [level for level, _ in chosen(layout_of([*level_0, *level_1]), "1")] == [0, 1]


def test_the_threshold_may_be_a_share_of_the_level_s_parts() -> None:
    parts = [part(f"new-{number}", 0, 100 + number) for number in range(10)]
    assert chosen(layout_of(parts), "100%") == []
    assert len(chosen(layout_of(parts), "90%")) == 1
    assert parse_depth("1%").of_level(10) == 1.0


def test_several_disjoint_groups_are_chosen_at_once_the_deepest_first() -> None:
    three = [part(f"three-{number}", 0, 10 + number) for number in range(3)]
    five = [part(f"five-{number}", 1000, 1010 + number) for number in range(5)]
    found = chosen(layout_of([*three, *five]), "2")
    assert [paths[0] for _, paths in found] == ["five-0", "three-0"]


def test_parts_that_do_not_fit_together_make_as_many_groups_as_it_takes() -> None:
    parts = [part(f"new-{number:02d}", number, 1000 - number, 100 * MB) for number in range(20)]
    found = chosen(layout_of(parts), "2")
    assert [len(paths) for _, paths in found] == [5, 5, 5, 5]


def test_where_not_all_fit_parts_of_like_ranges_are_sorted_together() -> None:
    wide = [part(f"wide-{number}", number, 1000 - number, 120 * MB, level=1) for number in range(4)]
    narrow = [part(f"narrow-{number}", 500, 505, 120 * MB, level=1) for number in range(4)]
    assert chosen(layout_of([*wide, *narrow]), "7.5")[0][1] == ("wide-0", "wide-1", "wide-2", "wide-3")


def test_neighbours_are_added_if_they_are_too_deep_themselves_or_small() -> None:
    deep = [part(f"deep-{number}", 100, 200, 100 * MB, level=1) for number in range(4)]
    beside = part("beside", 190, 300, 70 * MB, level=1)
    tiny = part("tiny", 200, 210, MB, level=1)
    touches = part("touches", 300, 310, MB, level=1)
    far = part("far", 400, 500, MB, level=1)
    assert chosen(layout_of([*deep, beside, far, tiny, touches]), "2")[0][1] == (
        "beside",
        *(f"deep-{n}" for n in range(4)),
        "tiny",
        "touches",
    )
    shallow = [part("left", 0, 101, 70 * MB, level=1), part("right", 199, 300, 70 * MB, level=1)]
    hot = [part(f"hot-{number}", 150, 160, 70 * MB, level=1) for number in range(4)]
    assert chosen(layout_of([*shallow, *hot]), "2")[0][1] == tuple(f"hot-{number}" for number in range(4))


def test_full_parts_of_one_key_are_left_alone_and_small_ones_are_not() -> None:
    full = [part(f"full-{number}", 7, 7, 120 * MB) for number in range(5)]
    assert chosen(layout_of(full), "1") == []
    small = [part(f"small-{number}", 7, 7) for number in range(5)]
    assert chosen(layout_of([*full, *small]), "1") == [(0, tuple(f"small-{number}" for number in range(5)))]
    over = part("over", 0, 10)
    assert chosen(layout_of([*small, over]), "1") == [(0, tuple(f"small-{number}" for number in range(5)))]
    assert chosen(layout_of([small[0], over]), "1") == [], "nothing is gained"


def test_parts_at_work_are_not_chosen_and_do_not_count() -> None:
    parts = [part(f"new-{number}", 0, 100 + number) for number in range(5)]
    snapshot = table(parts, RECLUSTERED)
    assert plan(snapshot, {"new-0", "new-1", "new-2"}, NOON).plans == ()
    (found,) = plan(snapshot, {"new-0", "new-1"}, NOON).plans
    assert len(found.inputs) == 3


@seeds(10, quick=5)
def test_groups_are_disjoint_of_one_level_within_their_bounds_and_the_same_in_whatever_order_parts_come(
    seed: int,
) -> None:
    parts = random_parts(seed)
    threshold = random.Random(seed).choice(("1", "1.5", "2", "4", "3%"))
    found = chosen(layout_of(parts), threshold)
    by_path = {item.path: item for item in parts}
    taken = [path for _, paths in found for path in paths]
    assert len(set(taken)) == len(taken)
    for level, paths in found:
        assert {by_path[path].level for path in paths} == {level}
        assert len(paths) >= 2 and sum(by_path[path].bytes for path in paths) <= 500 * MB
        ends = sorted((range_of(by_path[path].stats, COLUMNS) for path in paths), key=lambda item: item.lower)
        reach = ends[0].upper
        for item in ends[1:]:
            assert item.lower <= reach, "a group has no hole"
            reach = max(reach, item.upper)
    random.Random(seed).shuffle(parts)
    assert chosen(layout_of(parts), threshold) == found


@seeds(10, quick=5)
def test_rounds_come_to_an_end_with_every_level_within_its_threshold_and_nothing_lost(seed: int) -> None:
    parts = [replace(item, bytes=min(item.bytes, 130 * MB)) for item in random_parts(seed)]
    depth = random.Random(seed).choice(("1", "1.5", "2", "4"))
    before = table(parts, replace(RECLUSTERED, recluster_depth=parse_depth(depth)))
    snapshot = replace(before, parts={path: replace(item, sort_key_version=1) for path, item in before.parts.items()})
    after, _, _ = until_nothing_is_left(snapshot)
    assert sum(item.bytes for item in after.parts.values()) == pytest.approx(sum(i.bytes for i in parts), rel=0.01)
    for level, (count, average, resolvable) in levels(after).items():
        assert average <= float(depth) or not resolvable, f"level {level}: {count} parts, {average} deep"


def levels(snapshot: Snapshot) -> dict[int, tuple[int, float, bool]]:
    """Of each level: parts, average depth, and whether two parts of more than one key lie over each other anywhere."""
    out = {}
    overlap_map = layout_of(list(snapshot.parts.values()))
    for level, average in depth_by_level(snapshot).items():
        several = overlap_map.free & (overlap_map.level == level) & ~overlap_map.one_key
        out[level] = int((overlap_map.level == level).sum()), average, bool(overlap_map.cover(several).max() > 1)
    return out


# -- what it costs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row_bytes", [25, 100, 200])
def test_five_hundred_parts_in_random_order_are_written_twice_at_most(row_bytes: int) -> None:
    rng = random.Random(1)
    parts = [
        part(
            f"new-{number}",
            rng.randrange(100),
            10_000 - rng.randrange(100),
            20_000 * row_bytes,
            20_000,
            sort_key_version=1,
        )
        for number in range(500)
    ]
    snapshot = table(parts, RECLUSTERED)
    after, written, _ = until_nothing_is_left(snapshot)
    assert written <= 2 * sum(item.bytes for item in parts)
    assert max(depth_by_level(after).values()) <= 2


@pytest.mark.slow
def test_arrivals_in_the_order_of_time_cost_nothing() -> None:
    workload = Workload(arrivals=steady(0.2, 2000, 60), order="ascending")
    found = simulate(workload, TableSettings(merge="recluster"))
    assert found.samples[-1].merged_bytes < 0.05 * found.samples[-1].ingested_bytes
    late = [part(f"new-{number}", number * 100 - 10, number * 100 + 100) for number in range(500)]
    assert plan(table(late, RECLUSTERED), (), NOON).plans == ()


@pytest.mark.slow
def test_continuous_random_arrivals_stay_as_shallow_as_the_levels_allow() -> None:
    found = simulate(Workload(arrivals=steady(0.25, 2000, 60)), TableSettings(merge="recluster"))
    assert found.samples[-1].write_amplification < 7
    assert max(sample.depth_average for sample in found.samples) < 12


@pytest.mark.parametrize("final", [False, True])
def test_the_estimate_is_near_what_is_done(final: bool) -> None:
    rng = random.Random(2)
    parts = [
        part(f"new-{number}", rng.randrange(1000), 9_000 + rng.randrange(1000), 10 * MB, 20_000, sort_key_version=1)
        for number in range(200)
    ]
    snapshot = table(parts, RECLUSTERED)
    found = estimate(snapshot, (), final)
    assert found.depth_before == {0: 200.0} and found.rounds == (2 if final else 1)
    _, written, count = until_nothing_is_left(snapshot)
    if final:
        assert found.bytes_out == pytest.approx(written, rel=0.2) and found.plans == pytest.approx(count, rel=0.2)
        assert max(found.depth_after.values()) <= 2
    else:
        assert found.bytes_out == pytest.approx(200 * 10 * MB, rel=0.02)


# -- in the planner --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["auto", "tiered", "leveled", "recluster", "off"])
def test_parts_of_an_earlier_sort_key_are_sorted_whatever_the_policy_oldest_first_when_nothing_else_waits(
    policy: str,
) -> None:
    settings = replace(ORDERED, merge=policy, sort_key=("key",), sort_key_version=2)
    old = [part(f"old-{number}", number * 100, number * 100 + 50, 100 * MB, sort_key_version=1) for number in (3, 1, 2)]
    unknown = part("unknown-9", 900, 950, 100 * MB)
    new = part("new-10", 1000, 1050, 100 * MB, sort_key_version=2)
    planning = plan(table([*old, unknown, new], settings), (), NOON)
    assert [(item.kind, item.inputs) for item in planning.plans] == [
        (MergeKind.RESORT, (name,)) for name in ("old-1", "old-2", "old-3", "unknown-9")
    ]
    together = [part(f"old-{number}", 0, 50, 200 * MB, sort_key_version=1) for number in (1, 2, 3)]
    (first, second) = plan(table(together, settings), (), NOON).plans
    assert (first.inputs, second.inputs) == (("old-1", "old-2"), ("old-3",))


def test_a_table_whose_sort_key_was_never_changed_is_not_sorted_anew_unasked() -> None:
    snapshot = table([part("foreign", 0, 100)], ORDERED)
    assert plan(snapshot, (), NOON).plans == ()
    assert next(round_plans(snapshot, (), NOON)).kind is MergeKind.RESORT, "a job sorts it"


@pytest.mark.parametrize("text", ["0", "0.5", "deep", "0%", "101%", "nan", "inf", "-3"])
def test_a_depth_that_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"lakebed\.recluster_depth"):
        parse_settings({"lakebed.recluster_depth": text})


@pytest.mark.parametrize("name", ["lakebed.sort_key", "lakebed.sort_key_version", "lakebed.sort_key_frame"])
def test_what_set_sort_key_sets_nothing_else_sets(name: str) -> None:
    with pytest.raises(InvalidInput, match="set_sort_key"):
        check_changeable([name])


def test_partitions_are_reclustered_by_themselves() -> None:
    parts = [part(f"new-{number}", 0, 100, partition_values={"region": "ab"[number % 2]}) for number in range(8)]
    snapshot = table(parts, RECLUSTERED, partition_by=("region",))
    assert sorted(len(item.inputs) for item in plan(snapshot, (), NOON).plans) == [4, 4]
    assert sorted(len(item.inputs) for item in round_plans(snapshot, (), NOON)) == [4, 4]
    assert depth_by_level(snapshot) == {0: 4.0} and estimate(snapshot, (), True).plans == 2
