"""What the planner plans, what it leaves alone and why, and that repeated rounds come to an end."""

from __future__ import annotations

import math
import random
from collections.abc import Collection
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pytest

from lakebed.errors import InvalidInput
from lakebed.log.actions import AddPart, Commit, Part, passes_after
from lakebed.log.deletion_vector import DeletionVector
from lakebed.log.snapshot import Snapshot, apply, statistics_of
from lakebed.planning.admission import IN_FLIGHT_PLANS
from lakebed.planning.candidates import binomial, lazy_leveled, size_tiered
from lakebed.planning.overlap import OverlapMap
from lakebed.planning.plan import Cause, MergeKind, MergePlan, Planning
from lakebed.planning.planner import plan
from lakebed.settings import TableSettings, parse_hours, parse_settings
from lakebed.sortkey.ranges import depth, order_columns, range_of
from lakebed.sortkey.statistics_cache import StatisticsCache
from tests.planning.tables import MB, ORDERED, SCHEMA, part, ranked, stats, table
from tests.work import Work, work_of
from tests.worlds import seeds

HOUR_MS = 3_600_000
NOON = 12 * HOUR_MS


def refused(planning: Planning) -> dict[Cause, int]:
    return {refusal.cause: refusal.count for refusal in planning.refusals}


# -- bounds and fairness ---------------------------------------------------------------------------------------------


def partitioned(depths: dict[str, int], size: int = MB) -> list[Part]:
    return [
        part(f"{region}-{number:03d}", 0, 100 + number, size, partition_values={"region": region})
        for region, deep in depths.items()
        for number in range(deep)
    ]


def in_partitions(parts: list[Part], **properties: str) -> Snapshot:
    return table(
        parts, partition_by=("region",), properties={f"lakebed.{name}": text for name, text in properties.items()}
    )


def test_no_partition_starves_a_partition() -> None:
    parts = partitioned({"busy": 200, "quiet": 9}, 3 * MB)
    planning = plan(in_partitions(parts, plan_bytes_max=str(256 * MB)), (), NOON)
    assert {dict(merge.partition)["region"] for merge in planning.plans} == {"busy", "quiet"}


def test_what_is_in_flight_bounds_a_round() -> None:
    parts = partitioned({letter: 9 for letter in "abcdefghij"}, 20 * MB)
    snapshot = in_partitions(parts)
    limit = IN_FLIGHT_PLANS * snapshot.settings.plan_bytes_max
    planning = plan(snapshot, (), NOON)
    assert sum(merge.bytes_in for merge in planning.plans) <= limit
    assert refused(planning)[Cause.IN_FLIGHT] == 10 - len(planning.plans)
    assert planning.backlog_bytes == 10 * 180 * MB
    later = plan(snapshot, (), NOON, in_flight_bytes=limit - 200 * MB)
    assert len(later.plans) == 1


def test_runs_that_fit_whole_are_merged_instead_of_a_piece_of_one_that_does_not() -> None:
    """Else the output would lie over what was left out."""
    pieces = [part(f"piece-{letter}", 10 * at, 10 * at + 9, 10 * MB) for at, letter in enumerate("abcd")]
    wide = [part("wide-2", 0, 39, 20 * MB), part("wide-3", 0, 39, 20 * MB)]
    settings = replace(ORDERED, read_budget=2, plan_bytes_max=60 * MB)
    merge, *_ = plan(table([*pieces, *wide], settings), (), NOON).plans
    assert sorted(merge.inputs) == ["wide-2", "wide-3"]


@seeds(4, quick=2)
def test_plans_do_not_depend_on_the_order_of_parts(seed: int) -> None:
    world = random.Random(seed)
    parts = random_parts(world, 60)
    expected = plan(table(parts), (), NOON)
    world.shuffle(parts)
    assert plan(table(parts), (), NOON) == expected


def random_parts(world: random.Random, count: int, **fields: Any) -> list[Part]:
    out = []
    for number in range(count):
        low = world.randrange(1000)
        rows = world.randrange(1, 5000)
        out.append(
            part(
                f"part-{number:03d}",
                low,
                low + world.choice((0, 5, 100, 1000)),
                world.randrange(1, 120) * MB,
                rows,
                world.randrange(rows) if world.random() < 0.3 else 0,
                level=world.randrange(3),
                **fields,
            )
        )
    return out


def merged(snapshot: Snapshot, done: MergePlan, name: str) -> Snapshot:
    """The table after a plan: output parts cut evenly from the inputs' hull, as a sort would."""
    inputs = [snapshot.parts[path] for path in done.inputs]
    ranges = [range_of(item.stats, order_columns(SCHEMA, ["key"], ())) for item in inputs]
    low, high = min(item.lower[1] for item in ranges), max(item.upper[1] for item in ranges)
    rows = sum(item.live_rows for item in inputs)
    count = max(1, math.ceil(done.bytes_out / snapshot.settings.target_part_bytes)) if rows else 0
    parts = {path: item for path, item in snapshot.parts.items() if path not in done.inputs}
    for piece in range(count):
        start, end = low + (high - low) * piece // count, low + (high - low) * (piece + 1) // count
        parts[f"{name}-{piece}"] = Part(
            path=f"{name}-{piece}",
            rows=math.ceil(rows / count),
            bytes=math.ceil(done.bytes_out / count),
            level=done.level,
            min_block=min(item.min_block for item in inputs),
            max_block=max(item.max_block for item in inputs),
            stats=stats(math.ceil(rows / count), start, end),
            sort_key_version=1,
            passes=passes_after(inputs, rows, 1),
        )
    return replace(snapshot, parts=parts)


def check(planning: Planning, snapshot: Snapshot, claimed: Collection[str]) -> None:
    inputs = [path for item in planning.plans for path in item.inputs]
    assert len(inputs) == len(set(inputs))
    assert set(inputs) <= snapshot.parts.keys() - set(claimed)
    for item in planning.plans:
        assert item.bytes_in <= snapshot.settings.plan_bytes_max
        assert item.level == 1 + max(snapshot.parts[path].level for path in item.inputs)
        assert len(item.inputs) >= (1 if item.kind is MergeKind.PURGE else 2)
    assert sum(item.bytes_in for item in planning.plans) <= IN_FLIGHT_PLANS * snapshot.settings.plan_bytes_max


@pytest.mark.parametrize("policy", ["auto", "tiered", "leveled", "bin-pack"])
@seeds(3, quick=3)
@pytest.mark.parametrize("blocks", [{}, {"min_block": 1, "max_block": 1}], ids=["of many commits", "of one commit"])
def test_repeated_rounds_come_to_an_end_within_the_read_budget(policy: str, seed: int, blocks: dict[str, int]) -> None:
    world = random.Random(seed)
    budget = world.choice((1, 2, 4, 8))
    parts = random_parts(world, 80, sort_key_version=1, **blocks)
    snapshot = table(parts, replace(ORDERED, merge=policy, read_budget=budget))
    claimed = {path for path in snapshot.parts if world.random() < 0.1}
    for number in range(400):
        planning = plan(snapshot, claimed, NOON)
        check(planning, snapshot, claimed)
        assert Cause.NO_GAIN not in refused(planning)
        if not planning.plans:
            if not claimed:
                break
            claimed = set()
        for at, item in enumerate(planning.plans):
            snapshot = merged(snapshot, item, f"merged{number:04d}x{at}")
    else:
        raise AssertionError("the planner found no end")
    if policy != "bin-pack":
        ranges = [range_of(item.stats, order_columns(SCHEMA, ["key"], ())) for item in snapshot.parts.values()]
        overlap_map = OverlapMap((), list(snapshot.parts.values()), ranked(ranges), (), snapshot.settings)
        assert overlap_map.depth_to_be <= budget
        assert overlap_map.depth_max <= budget + overlap_map.constant.sum()


# -- purges, policies ------------------------------------------------------------------------------------------------


def test_deletes_past_their_retention_are_dead_weight() -> None:
    week_ms = 7 * 24 * HOUR_MS
    sequenced = replace(ORDERED, sequence_by="at")
    parts = [part("deleted-1", 0, 10, 2 * MB, dead=900, deletes=700)]
    assert plan(table(parts, sequenced), (), week_ms).plans == ()
    assert plan(table(parts, sequenced), (), week_ms + 1).plans
    mixed = [part("merged-1", 0, 10, 2 * MB, dead=900, deletes=700, modified_ms=week_ms, deletes_ms=0)]
    assert plan(table(mixed, sequenced), (), week_ms + 1).plans, "what counts is when the deletes were written"
    nothing_else = [part("deletes-1", 0, 10, 2000, dead=1000, deletes=1000)]
    assert plan(table(nothing_else, sequenced), (), week_ms + 1).plans[0].bytes_out == 0


def test_size_tiered_merges_runs_of_one_size() -> None:
    assert size_tiered([100.0, 90.0, 4.0, 1.0, 1.0, 1.0], 8, 1.0) is None
    assert size_tiered([100.0, 4.0, 1.1, 1.0, 1.0, 0.9], 8, 1.0) == slice(2, 6)
    assert size_tiered([64.0, 16.0, 4.0], 2, 1.0) == slice(0, 3)


def test_lazy_leveled_keeps_one_largest_run() -> None:
    assert lazy_leveled([100.0, 1.0, 1.0, 1.0, 1.0], 8, 1.0) == slice(1, 5)
    assert lazy_leveled([16.0, 1.0, 1.0, 1.0, 1.0], 8, 1.0) == slice(0, 5)
    assert lazy_leveled([5.0, 4.0], 1, 1.0) == slice(0, 2)


def test_binomial_merges_down_to_the_run_that_has_waited_enough() -> None:
    assert binomial([1.0] * 8, 8, 1.0) is None
    assert binomial([1.0] * 9, 8, 1.0) == slice(0, 9)
    assert binomial([9.0] + [1.0] * 8, 8, 1.0) == slice(1, 9)
    assert binomial([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0], 8, 1.0) == slice(0, 9)
    assert binomial([5.0, 1.0], 1, 1.0) == slice(0, 2)


# -- settings, speed -------------------------------------------------------------------------------------------------


def test_settings_travel_as_properties() -> None:
    settings = TableSettings(
        read_budget=3,
        target_part_bytes=MB,
        target_part_rows=5,
        merge="tiered",
        merge_first="lightest",
        plan_bytes_max=2 * MB,
        purge_dead_ratio=0.5,
        settle_after_changes=1,
        settle_after_bytes=2,
        settle_after_age_seconds=90,
        off_peak=parse_hours("01:00-05:00"),
        volatile="off",
    )
    assert parse_settings(settings.to_properties()) == settings
    assert parse_settings({"lakebed.volatile": "auto"}) == TableSettings()


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("read_budget", "0", "from 1 to"), ("read_budget", "²", "whole number"), ("merge", "fast", "auto, bin-pack, tiered"),
        ("merge_first", "oldest", "newest, lightest"), ("purge_dead_ratio", "30%", "above 0"),
        ("purge_dead_ratio", "nan", "above 0"), ("plan_bytes_max", "1000", "twice lakebed.target_part_bytes"),
        ("off_peak", "22-6", "22:00-06:00"), ("off_peak", "24:00-06:00", "22:00-06:00"),
        ("off_peak", "06:00-06:00", "part of the day"),
        ("settle_after_age", "soon", "an interval"), ("volatile", "yes", "auto, on, off"),
        ("target_part_bytes", "128MB", "whole number"),
    ],
)  # fmt: skip
def test_a_wrong_property_is_named_with_what_is_allowed(name: str, text: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=f"lakebed.{name}.*{says}"):
        parse_settings({f"lakebed.{name}": text})


@seeds(4, quick=2)
def test_depth_after_parts_were_taken_and_the_deepest_places_are_what_counting_anew_gives(seed: int) -> None:
    world = random.Random(seed)
    some = random_parts(world, world.choice((12, 25, 60)))
    parts = [replace(item, min_block=world.randrange(9), max_block=9) for item in some]
    claimed = {item.path for item in parts if world.random() < 0.1}
    found = StatisticsCache().ranges([item.stats for item in parts], order_columns(SCHEMA, ["key"], ()))
    overlap_map = OverlapMap((), parts, found, claimed, ORDERED)
    for _ in range(8):
        free = np.flatnonzero(overlap_map.free).tolist()
        overlap_map.take(np.array(world.sample(free, min(len(free), 4)), dtype=np.int64))
        under_work = overlap_map.cover(overlap_map.busy) > 0
        assert (overlap_map.depth == overlap_map.cover(overlap_map.free)).all() and (
            overlap_map.under_work == under_work
        ).all()
        total = np.where(
            (overlap_map.depth >= 2) & (overlap_map.depth + under_work >= 3), overlap_map.depth + under_work, 0
        )
        stretches = [
            list(group) for deep, group in groupby(enumerate(total.tolist()), lambda each: each[1] > 0) if deep
        ]
        deepest = total.max()
        expected = []
        for stretch in stretches:
            points = [at for at, deep in stretch if deep == deepest]
            if points:
                expected.append((stretch[0][0], stretch[-1][0], points[0], deepest))
        found_now = [(place.start, place.end, place.point, place.depth) for place in overlap_map.deepest(3, 2)]
        assert found_now == expected[:2]


@pytest.mark.parametrize("policy", ["auto", "leveled", "recluster", "bin-pack"])
@seeds(2, quick=2)
def test_after_any_commits_the_plan_is_that_of_one_who_knows_nothing_of_the_table(policy: str, seed: int) -> None:
    world = random.Random(seed)
    statistics = StatisticsCache()
    snapshot = table(random_parts(world, 40), replace(ORDERED, merge=policy, read_budget=world.choice((1, 4))))
    for number in range(25):
        leaving = world.sample(sorted(snapshot.parts), world.randrange(4))
        coming = [replace(item, path=f"{number}-{item.path}") for item in random_parts(world, world.randrange(5))]
        marked = [
            snapshot.parts[path].marked(
                DeletionVector(storage="u", path_or_inline=path, offset=0, bytes=40, dead_rows=1)
            )
            for path in leaving[:1]
        ]
        actions = [*(snapshot.parts[path].removed(0) for path in leaving), *map(AddPart, [*coming, *marked])]
        snapshot = apply(snapshot, Commit(snapshot.version + 1, tuple(actions)))
        if world.random() < 0.2:
            statistics.keep(statistics_of(snapshot))
        planning = plan(snapshot, (), NOON, statistics=statistics)
        assert planning == plan(snapshot, (), NOON)
        check(planning, snapshot, ())
        if policy != "bin-pack":
            ends = [range_of(item.stats, order_columns(SCHEMA, ["key"], ())) for item in snapshot.parts.values()]
            # Of one block parts that only touch count as one run, so the deepest closed range is not less.
            assert planning.depth_max <= depth(ends).max


def test_the_work_of_planning_grows_with_the_parts_and_not_with_their_square() -> None:
    def work(count: int) -> Work:
        parts = [
            part(f"part-{number:05d}", number // 9 * 10, number // 9 * 10 + 12, 60 * MB, dead=number % 300)
            for number in range(count)
        ]
        snapshot = table(parts)
        assert plan(snapshot, (), NOON).plans
        return work_of(lambda: plan(snapshot, (), NOON))

    few, many = work(2_000), work(8_000)
    assert many.is_at_most(6, few), (few, many)
