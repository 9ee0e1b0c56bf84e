"""When a resting table is looked at, and what that costs."""

from __future__ import annotations

import pytest

from lakebed.discovery import SECONDS_MAX, SECONDS_MIN, hinted_pause_seconds, pause_seconds
from lakebed.fleet.membership import day_of_looks


def test_the_pause_grows_with_the_time_in_which_nothing_came_and_is_bounded_both_ways() -> None:
    assert pause_seconds(0.0) == SECONDS_MIN
    assert pause_seconds(600.0) == 60.0
    assert pause_seconds(10 * 86_400.0) == SECONDS_MAX


def test_freshness_that_is_asked_for_shortens_the_pause() -> None:
    assert pause_seconds(10 * 86_400.0, 60) == 15.0
    assert pause_seconds(10 * 86_400.0, 1) == SECONDS_MIN
    assert pause_seconds(10 * 86_400.0, 86_400) == SECONDS_MAX


def test_who_has_hints_may_look_less_often_but_freshness_does_not_rest_on_them() -> None:
    assert pause_seconds(10 * 86_400.0, None, 3600.0) == 3600.0
    assert pause_seconds(600.0, None, 3600.0) == 60.0
    assert pause_seconds(10 * 86_400.0, 60, 3600.0) == 15.0


def test_looks_for_hints_in_vain_are_ever_farther_apart() -> None:
    assert [hinted_pause_seconds(count) for count in (0, 1, 5, 100)] == [SECONDS_MIN, 2.0, 32.0, SECONDS_MAX]


def test_ten_thousand_idle_tables_cost_about_a_dollar_a_day() -> None:
    day = day_of_looks(10_000, beat_seconds=20.0, discovery_seconds=600.0)
    assert day.looks == 2_880_000
    assert day.dollars == pytest.approx(1.57, abs=0.1)
