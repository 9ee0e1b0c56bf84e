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
from lakebed.manifest.actions import AddPart, Commit, Part
from lakebed.manifest.deletion_vector import DeletionVector
from lakebed.manifest.passes import passes_after
from lakebed.manifest.snapshot import Snapshot, apply, statistics_of
from lakebed.planning.admission import IN_FLIGHT_PLANS
from lakebed.planning.overlap import OverlapMap
from lakebed.planning.plan import Cause, MergeKind, MergePlan, Planning, SettlePlan
from lakebed.planning.planner import plan
from lakebed.planning.policies import binomial, lazy_leveled, size_tiered
from lakebed.settings import TableSettings, parse_hours, parse_settings
from lakebed.sortkey.ranges import depth, order_columns, range_of, ranked
from lakebed.sortkey.statistics_cache import StatisticsCache
from tests.planning.tables import MB, ORDERED, SCHEMA, UNORDERED, change_part, part, stats, table
from tests.work import Work, work_of

HOUR_MS = 3_600_000
NOON = 12 * HOUR_MS
MIDNIGHT = 24 * HOUR_MS


def refused(planning: Planning) -> dict[Cause, int]:
    return {refusal.cause: refusal.count for refusal in planning.refusals}


def flushes(count: int, size: int = MB, **fields: Any) -> list[Part]:
    return [part(f"flush-{number:03d}", number, 10_000 - number, size, **fields) for number in range(1, count + 1)]


# -- merges over a point ---------------------------------------------------------------------------------------------


def test_within_the_read_budget_nothing_is_merged() -> None:
    planning = plan(table(flushes(8)), (), NOON)
    assert planning.plans == () and planning.depth_max == 8 and planning.backlog_bytes == 0
    assert refused(planning) == {Cause.WITHIN_READ_BUDGET: 1}


def test_one_run_too_many_is_merged_as_the_policy_says() -> None:
    (merge,) = plan(table(flushes(9)), (), NOON).plans
    assert merge.kind is MergeKind.MERGE and merge.level == 1
    assert merge.inputs == tuple(f"flush-{number:03d}" for number in range(1, 10))
    assert (merge.rows_in, merge.bytes_in, merge.bytes_out) == (9000, 9 * MB, 9 * MB)
    assert (merge.depth_before, merge.depth_after) == (9, 1)
    assert "9 runs" in merge.why and "lakebed.read_budget is 8" in merge.why


def test_a_large_run_waits_until_what_lies_over_it_is_worth_it() -> None:
    big = part("big-0", 0, 10_000, 100 * MB, level=3)
    (merge,) = plan(table([big, *flushes(8)]), (), NOON).plans
    assert "big-0" not in merge.inputs and len(merge.inputs) == 8


def test_parts_of_one_merge_count_as_one_run_also_where_they_touch() -> None:
    pieces = [
        part(f"piece-{number}", number * 100, number * 100 + 100, 100 * MB, level=2, min_block=1, max_block=50)
        for number in range(10)
    ]
    planning = plan(table([*pieces, *(part(f"flush-{number}", 0, 1000) for number in range(51, 58))]), (), NOON)
    assert planning.depth_max == 8 and planning.plans == ()


def test_parts_of_one_commit_that_overlap_are_no_run() -> None:
    parts = [part(f"task-{letter}", 0, 1000, min_block=7, max_block=7) for letter in "abcdefghi"]
    assert plan(table(parts), (), NOON).depth_max == 9


def test_only_where_it_is_too_deep_is_merged() -> None:
    hot = [part(f"hot-{number}", 5000, 5100 + number, 100 * MB) for number in range(9)]
    cold = [part(f"cold-{number}", number * 500, number * 500 + 499, 100 * MB) for number in range(10)]
    snapshot = table([*hot, *cold], properties={"lakebed.plan_bytes_max": str(2000 * MB)})
    (merge,) = plan(snapshot, (), NOON).plans
    assert all(path.startswith("hot") for path in merge.inputs)


def test_a_plan_reads_no_more_than_it_may_and_still_gets_on() -> None:
    parts = [part(f"flush-{number}", number, 10_000 + number, 120 * MB, level=1) for number in range(9)]
    merge, *_ = plan(table(parts), (), NOON).plans
    assert merge.bytes_in <= 500 * MB and 2 <= len(merge.inputs) <= 4


def test_two_parts_too_large_for_a_plan_are_refused_with_the_cause() -> None:
    parts = [part(f"foreign-{number}", 0, 100 + number, 400 * MB) for number in range(9)]
    planning = plan(table(parts), (), NOON)
    assert planning.plans == () and refused(planning)[Cause.PLAN_BYTES] == 1
    assert planning.backlog_bytes == 9 * 400 * MB


def test_full_parts_of_one_key_are_left_alone() -> None:
    parts = [part(f"same-{number}", 7, 7, 120 * MB, level=2) for number in range(12)]
    planning = plan(table(parts), (), NOON)
    assert planning.plans == () and refused(planning)[Cause.CONSTANT] == 12


def test_parts_without_statistics_are_merged_once() -> None:
    unknown = [part(f"foreign-{number}", None, None, 120 * MB) for number in range(9)]
    assert plan(table(unknown), (), NOON).plans
    merged = [replace(item, level=1) for item in unknown]  # still without: its type must have none
    assert plan(table(merged), (), NOON).plans == ()


def test_claimed_parts_are_never_taken_and_count_as_the_one_run_they_become() -> None:
    parts = flushes(12)
    claimed = {item.path for item in parts[:5]}
    planning = plan(table(parts), claimed, NOON)
    assert planning.plans == () and planning.depth_max == 12  # seven free ones and what becomes of the five: within 8
    assert refused(planning)[Cause.CLAIMED] == 5
    (merge,) = plan(table(flushes(13)), claimed, NOON).plans
    assert claimed.isdisjoint(merge.inputs)


# -- small parts in a row --------------------------------------------------------------------------------------------


def test_small_parts_beside_each_other_are_merged_beyond_the_budget() -> None:
    parts = [part(f"flush-{number:03d}", number * 10, number * 10 + 9) for number in range(9)]
    (merge,) = plan(table(parts), (), NOON).plans
    assert len(merge.inputs) == 9 and "in a row" in merge.why


def test_a_row_that_fills_a_part_becomes_one() -> None:
    parts = [part(f"flush-{number:03d}", number * 10, number * 10 + 9, 20 * MB) for number in range(9)]
    (merge,) = plan(table(parts), (), NOON).plans
    assert merge.inputs == tuple(f"flush-{number:03d}" for number in range(6))


def test_without_an_order_small_parts_are_packed_in_the_order_of_their_blocks() -> None:
    full = [part(f"full-{number}", 0, 100, 120 * MB) for number in range(20)]
    small = [part(f"small-{number + 100}", 0, 100, 30 * MB) for number in range(9)]
    planning = plan(table([*reversed(small), *full], UNORDERED), (), NOON)
    assert [merge.inputs for merge in planning.plans] == [
        ("small-100", "small-101", "small-102", "small-103"),
    ]
    assert plan(table([*full, *small[:8]], UNORDERED), (), NOON).plans == ()


def test_parts_full_by_rows_are_not_small() -> None:
    parts = [part(f"narrow-{number}", 0, 100, MB, rows=900_000) for number in range(20)]
    assert plan(table(parts, UNORDERED), (), NOON).plans == ()


def test_parts_full_of_deletes_that_a_merge_must_keep_are_not_small() -> None:
    settings = replace(ORDERED, sequence_by="key")
    parts = [
        part(f"{n}", n * 10, n * 10 + 9, rows=900_000, dead=600_000, deletes=600_000, modified_ms=NOON)
        for n in range(20)
    ]
    assert plan(table(parts, settings), (), NOON).plans == ()


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


def test_the_partition_in_most_need_comes_first_and_each_gets_its_turn() -> None:
    planning = plan(in_partitions(partitioned({"a": 9, "b": 30, "c": 12, "d": 3})), (), NOON)
    assert [dict(merge.partition)["region"] for merge in planning.plans] == ["b", "c", "a"]
    assert refused(planning)[Cause.WITHIN_READ_BUDGET] == 1


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


@pytest.mark.parametrize(("first", "expected"), [("newest", "b"), ("lightest", "a")])
def test_of_places_equally_deep_the_settings_say_which_comes_first(first: str, expected: str) -> None:
    old_and_light = [part(f"a-{number}", 0, 100, MB, partition_values={"region": "a"}) for number in range(9)]
    new_and_heavy = [part(f"b-{number + 50}", 0, 100, 9 * MB, partition_values={"region": "b"}) for number in range(9)]
    planning = plan(in_partitions([*old_and_light, *new_and_heavy], merge_first=first), (), NOON)
    assert dict(planning.plans[0].partition)["region"] == expected


@pytest.mark.parametrize("seed", range(8))
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
                f"part-{number:03d}", low, low + world.choice((0, 5, 100, 1000)), world.randrange(1, 120) * MB, rows,
                world.randrange(rows) if world.random() < 0.3 else 0, level=world.randrange(3), **fields,
            )
        )  # fmt: skip
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
@pytest.mark.parametrize("seed", range(6))
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


# -- purges, hours, policies -----------------------------------------------------------------------------------------


def test_parts_with_many_dead_rows_are_purged_the_most_dead_bytes_first() -> None:
    parts = [
        part("much-1", 0, 10, 10 * MB, dead=500),
        part("most-2", 20, 30, 90 * MB, dead=300),
        part("few-3", 40, 50, 90 * MB, dead=299),
    ]
    planning = plan(table(parts), (), NOON)
    assert [(item.kind, item.inputs) for item in planning.plans] == [
        (MergeKind.PURGE, ("most-2",)), (MergeKind.PURGE, ("much-1",)),
    ]  # fmt: skip
    assert planning.plans[1].bytes_out == 5 * MB and planning.plans[1].gain == 5 * MB
    assert refused(planning)[Cause.FEW_DEAD] == 1
    assert plan(table(parts), {"most-2", "much-1"}, NOON).plans == ()


def test_deletes_that_must_outlive_late_events_are_no_reason_to_purge() -> None:
    parts = [part("deleted-1", 0, 10, 2 * MB, dead=900, deletes=700)]
    assert plan(table(parts), (), NOON).plans
    assert plan(table(parts, replace(ORDERED, sequence_by="at")), (), NOON).plans == ()


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


def test_dead_rows_that_no_reader_feels_are_no_reason_to_purge() -> None:
    planning = plan(table([part("tiny-1", 0, 10, MB // 2, dead=900)]), (), NOON)
    assert planning.plans == () and refused(planning)[Cause.FEW_DEAD] == 1


def test_heavy_work_waits_for_the_night_unless_the_read_budget_is_exceeded() -> None:
    quiet = replace(ORDERED, off_peak=parse_hours("22:00-06:00"))
    heavy, light = part("heavy-1", 0, 10, 100 * MB, dead=900), part("light-2", 20, 30, 2 * MB, dead=900)
    by_day = plan(table([heavy, light], quiet), (), NOON)
    assert [item.inputs for item in by_day.plans] == [("light-2",)]
    assert refused(by_day)[Cause.OFF_PEAK] == 1 and by_day.backlog_bytes == 102 * MB
    assert len(plan(table([heavy, light], quiet), (), MIDNIGHT).plans) == 2
    deep = [part(f"deep-{number}", 0, 10 + number, 40 * MB) for number in range(9)]
    assert plan(table(deep, quiet), (), NOON).plans


def test_in_the_quiet_hours_more_is_merged_and_purged() -> None:
    quiet = replace(ORDERED, off_peak=parse_hours("22:00-06:00"))
    runs = table(flushes(5), quiet)
    assert plan(runs, (), NOON).plans == ()
    (merge,) = plan(runs, (), MIDNIGHT).plans
    assert len(merge.inputs) == 5
    assert "5 runs lie over a point; lakebed.read_budget is 8, half of it in the hours of lakebed.off_peak" in merge.why
    assert plan(table(flushes(5)), (), MIDNIGHT).plans == (), "without hours every hour is alike"
    dead = table([part("dead-1", 0, 10, 20 * MB, dead=160)], quiet)
    assert not plan(dead, (), NOON).plans and plan(dead, (), MIDNIGHT).plans


def test_a_read_budget_of_one_is_not_halved() -> None:
    quiet = replace(ORDERED, off_peak=parse_hours("22:00-06:00"), read_budget=1)
    assert plan(table(flushes(1), quiet), (), MIDNIGHT).plans == ()
    assert plan(table(flushes(2), quiet), (), MIDNIGHT).plans


@pytest.mark.parametrize(
    ("hours", "at_minute", "allowed"),
    [
        ("22:00-06:00", 22 * 60, True), ("22:00-06:00", 6 * 60, False), ("22:00-06:00", 6 * 60 - 1, True),
        ("01:00-05:30", 60, True), ("01:00-05:30", 59, False), ("01:00-05:30", 5 * 60 + 30, False),
    ],
)  # fmt: skip
def test_the_hours_begin_and_end_on_the_minute(hours: str, at_minute: int, allowed: bool) -> None:
    heavy = part("heavy-1", 0, 10, 100 * MB, dead=900)
    planning = plan(
        table([heavy], replace(ORDERED, off_peak=parse_hours(hours))), (), 3 * MIDNIGHT + at_minute * 60_000
    )
    assert bool(planning.plans) is allowed


def test_merges_can_be_turned_off() -> None:
    planning = plan(table(flushes(30), replace(ORDERED, merge="off")), (), NOON)
    assert planning.plans == () and planning.backlog_bytes == 0 and refused(planning) == {Cause.OFF: 1}


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


# -- settling --------------------------------------------------------------------------------------------------------


def test_a_tail_that_is_cheap_to_settle_is_settled_at_once() -> None:
    planning = plan(table(flushes(3), tail=[change_part("late", 0, 100)]), (), NOON)
    (settle,) = planning.plans
    assert isinstance(settle, SettlePlan) and settle.inputs == ("late",) and settle.gain > 0


def test_a_tail_scattered_over_too_many_parts_waits_until_it_pays() -> None:
    base = [part(f"base-{number}", number * 10, number * 10 + 9, 120 * MB) for number in range(3000)]
    few = [replace(change_part("few", 0, 30_000, MB), modified_ms=NOON - 60_000)]
    planning = plan(table(base, tail=few), (), NOON)
    assert planning.plans == () and refused(planning)[Cause.DELAYED] == 1
    narrow = [change_part("narrow", 0, 300, MB)]
    assert plan(table(base, tail=narrow), (), NOON).plans
    more = [change_part(f"more-{number}", 0, 30_000, MB) for number in range(6)]
    assert plan(table(base, tail=more), (), NOON).plans
    assert "seconds old" in plan(table(base, tail=few), (), NOON + 60_000).plans[0].why, "other readers wait no longer"


@pytest.mark.parametrize(
    ("field", "limit", "settles"),
    [
        ("settle_after_changes", 1000, True), ("settle_after_changes", 1001, False),
        ("settle_after_bytes", MB, True), ("settle_after_bytes", MB + 1, False),
        ("settle_after_age_seconds", 60, True), ("settle_after_age_seconds", 61, False),
    ],
)  # fmt: skip
def test_thresholds_say_when_to_settle(field: str, limit: int, settles: bool) -> None:
    tail = [change_part("tail", 0, 100, MB, 1000, modified_ms=NOON - 60_000)]
    planning = plan(table([], replace(ORDERED, **{field: limit}), tail), (), NOON)  # type: ignore[arg-type]
    assert bool(planning.plans) is settles
    assert refused(planning).get(Cause.DELAYED, 0) == (not settles)


# -- settings, speed -------------------------------------------------------------------------------------------------


def test_settings_travel_as_properties() -> None:
    settings = TableSettings(
        read_budget=3, target_part_bytes=MB, target_part_rows=5, merge="tiered", merge_first="lightest",
        plan_bytes_max=2 * MB, purge_dead_ratio=0.5, settle_after_changes=1, settle_after_bytes=2,
        settle_after_age_seconds=90, off_peak=parse_hours("01:00-05:00"), volatile=True,
    )  # fmt: skip
    assert parse_settings(settings.to_properties()) == settings
    assert parse_settings({"lakebed.volatile": "off"}) == TableSettings()


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("read_budget", "0", "from 1 to"), ("read_budget", "²", "whole number"), ("merge", "fast", "auto, bin-pack, tiered"),
        ("merge_first", "oldest", "newest, lightest"), ("purge_dead_ratio", "30%", "above 0"),
        ("purge_dead_ratio", "nan", "above 0"), ("plan_bytes_max", "1000", "twice lakebed.target_part_bytes"),
        ("off_peak", "22-6", "22:00-06:00"), ("off_peak", "24:00-06:00", "22:00-06:00"),
        ("off_peak", "06:00-06:00", "part of the day"),
        ("settle_after_age", "soon", "an interval"), ("volatile", "yes", "on, off"),
        ("target_part_bytes", "128MB", "whole number"),
    ],
)  # fmt: skip
def test_a_wrong_property_is_named_with_what_is_allowed(name: str, text: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=f"lakebed.{name}.*{says}"):
        parse_settings({f"lakebed.{name}": text})


@pytest.mark.parametrize("seed", range(8))
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
@pytest.mark.parametrize("seed", range(4))
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
