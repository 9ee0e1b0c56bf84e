"""When a resting table is looked at, and what that costs."""

from __future__ import annotations

import pytest

from lakebed.fleet.cost import day_of_looks
from lakebed.manifest.looks import SECONDS_MAX, SECONDS_MIN, pause_seconds


def test_the_pause_grows_with_the_time_in_which_nothing_came_and_is_bounded_both_ways() -> None:
    assert pause_seconds(0.0) == SECONDS_MIN
    assert pause_seconds(600.0) == 60.0
    assert pause_seconds(10 * 86_400.0) == SECONDS_MAX


def test_freshness_that_is_asked_for_shortens_the_pause() -> None:
    assert pause_seconds(10 * 86_400.0, 60) == 15.0
    assert pause_seconds(10 * 86_400.0, 1) == SECONDS_MIN
    assert pause_seconds(10 * 86_400.0, 86_400) == SECONDS_MAX


def test_ten_thousand_idle_tables_cost_about_a_dollar_a_day() -> None:
    day = day_of_looks(10_000, beat_seconds=20.0, discovery_seconds=600.0)
    assert day.looks == 2_880_000
    assert day.dollars == pytest.approx(1.57, abs=0.1)
