"""A killed worker makes no table with a freshness later than that, though the others notice its death a minute later."""

from __future__ import annotations

import pytest

from lakebed.fleet import membership, watched
from tests.simulation.failovers import Failover
from tests.worlds import worlds


def fails_in_some_run(**given: int) -> bool:
    for seed in range(20):
        try:
            Failover(seed, **given).run()
        except AssertionError as error:
            assert "waited" in str(error)
            return True
    return False


@pytest.mark.few(2)
@pytest.mark.worlds
@pytest.mark.parametrize(("workers", "kills"), [(3, 2), (5, 2), (2, 1), (3, 0)])
def test_no_change_waits_longer_than_the_freshness_of_its_table_while_workers_are_killed(
    workers: int, kills: int
) -> None:
    takeovers = 0
    for seed in worlds(3):
        run = Failover(seed, workers, kills)
        run.run()
        takeovers += run.takeovers
    assert bool(takeovers) is bool(kills), "who stands by takes over when somebody is killed, and only then"


def test_it_is_seen_when_nobody_stands_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "STANDBYS", 0)
    assert fails_in_some_run(workers=3, kills=1)


def test_it_is_seen_when_fewer_stand_by_than_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "STANDBYS", 1)
    assert fails_in_some_run(workers=3, kills=2)


def test_it_is_seen_when_those_that_stand_by_look_too_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "standby_pause_seconds", lambda freshness: 2.0 * freshness)
    assert fails_in_some_run(workers=3, kills=1)


@pytest.mark.slow
def test_it_is_seen_when_they_take_over_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    due_ms = watched.standby_due_ms

    def later(*given: object) -> int | None:
        found = due_ms(*given)  # type: ignore[arg-type]
        return None if found is None else found + 10_000

    monkeypatch.setattr(watched, "standby_due_ms", later)
    assert fails_in_some_run(workers=3, kills=1)
