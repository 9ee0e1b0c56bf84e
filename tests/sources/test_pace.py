"""When a batch is due."""

from __future__ import annotations

from lakebed.sources.source import Pace


def test_a_batch_is_due_at_once_after_a_pause_and_otherwise_when_its_time_has_come() -> None:
    now = 100.0
    pace = Pace(1.0, lambda: now)
    assert pace.wait_seconds() <= 0, "the first one"
    pace.began()
    now = 100.3
    assert round(pace.wait_seconds(), 3) == 0.7
    now = 101.0
    assert pace.wait_seconds() <= 0
    now = 140.0
    pace.began()
    now = 141.5
    assert pace.wait_seconds() <= 0, "a batch that took longer is followed at once"


def test_a_batch_that_left_events_behind_is_followed_at_once() -> None:
    pace = Pace(1.0, lambda: 100.0)
    pace.began(left_some=True)
    assert pace.wait_seconds() <= 0
