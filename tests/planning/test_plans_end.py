"""Merges come to an end, whatever statistics say and whatever the sort key holds; and what they gain is not given away."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lakebed.log.deletion_vector import DeletionVector
from lakebed.planning.admission import Measure
from lakebed.planning.plan import Cause
from lakebed.planning.planner import plan
from tests.planning.endless import HOUR_MS, NOW, SORT_KEYS, merges_until_the_end, real_merges_until_the_end
from tests.planning.tables import ORDERED, part, table
from tests.worlds import worlds


@pytest.mark.slow
@pytest.mark.worlds
def test_every_merge_lowers_the_measure_whatever_bounds_and_parts_it_writes() -> None:
    assert sum(merges_until_the_end(seed) for seed in worlds(10)) > 0


@pytest.mark.few(12)
@pytest.mark.parametrize("seed", range(len(SORT_KEYS)))
def test_a_table_sorted_by_hostile_values_is_merged_to_an_end(seed: int, tmp_path: Path) -> None:
    real_merges_until_the_end(seed, tmp_path)


def test_what_was_sorted_together_as_often_as_makes_sense_is_left_alone_and_is_no_backlog() -> None:
    parts = [
        part(f"alike-{letter}", 0, 100, min_block=1, max_block=4, sort_key_version=1, passes=8)
        for letter in "abcdefghi"
    ]
    for merge in ("auto", "recluster"):
        planning = plan(table(parts, replace(ORDERED, merge=merge)), (), NOW)
        assert planning.plans == () and planning.backlog_bytes == 0 and planning.depth_max == 9
        assert Cause.NO_GAIN in {refusal.cause for refusal in planning.refusals}
    newer = part("newer-5", 0, 100, sort_key_version=1)
    (merge,) = plan(table([*parts, newer]), (), NOW).plans
    assert "newer-5" in merge.inputs


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"max_block": 5}, "rows of another commit come together with these"),
        ({"rows": -1}, "its rows are not known"),
        ({"rows": 0}, "it has no rows"),
        ({"sort_key_version": None}, "its order is not known"),
        (
            {"deletion_vector": DeletionVector(storage="u", path_or_inline="x", offset=0, bytes=40, dead_rows=1)},
            "a row is dead",
        ),
    ],
)
def test_a_part_that_differs_is_a_reason_to_merge(changed: dict[str, Any], why: str) -> None:
    alike = [part(f"alike-{letter}", 0, 100, min_block=1, max_block=4, sort_key_version=1, passes=9) for letter in "ab"]
    measure = Measure(table(alike), NOW)
    assert not measure.is_lowered_by(alike)
    assert measure.is_lowered_by([alike[0], replace(alike[1], **changed)]), why


def test_deletes_that_are_kept_are_no_reason_to_merge_until_they_have_expired() -> None:
    vector = DeletionVector(storage="u", path_or_inline="x", offset=0, bytes=40, dead_rows=3)
    tomb = part("tomb", 0, 100, sort_key_version=1, passes=9, deletes=3, deletion_vector=vector, modified_ms=NOW)
    settings = replace(ORDERED, sequence_by="key")
    assert not Measure(table([tomb], settings), NOW).is_lowered_by([tomb])
    assert Measure(table([tomb], settings), NOW + 30 * 24 * HOUR_MS).is_lowered_by([tomb])
    assert Measure(table([tomb], ORDERED), NOW).is_lowered_by([tomb])
