"""Fleets in the simulation: claims end, nothing is done twice to a table's harm, and every table is taken over."""

from __future__ import annotations

from collections import Counter

import pytest

from lakebed.coordination import failing
from lakebed.coordination.failing import Failing
from lakebed.fleet import membership
from lakebed.log import table_log
from lakebed.log.conflicts import ConflictKind, find_conflict
from tests.simulation import fleets, world
from tests.simulation.fleets import simulate_fleet
from tests.worlds import worlds

POISONED = 11
"""The first world in which everything happens that there is about a part that kills."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet that is well comes to its end in far fewer steps."""
    monkeypatch.setattr(world, "STEPS_MAX_TO_QUIESCE", 8_000)


@pytest.mark.worlds
def test_workers_with_wrong_views_and_clocks_apart_harm_no_table_and_starve_none() -> None:
    counts = Counter[str]()
    for seed in worlds(4):
        counts += simulate_fleet(seed)
    for met in ("alone", "ghosts", "crash", "settles", "merge completed", "merge claimed", "merge overtaken"):
        assert counts[met], f"no world had {met}: {counts}"


def fails_in_some_world(complaint: str, steps: int = fleets.STEPS, first: int = 0) -> bool:
    for seed in range(first, first + 40):
        try:
            simulate_fleet(seed, steps)
        except AssertionError as error:
            if complaint in str(error):
                return True
    return False


def test_it_is_seen_when_the_tables_of_a_dead_worker_are_not_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "DEAD_BEATS", 10**9)
    monkeypatch.setattr(fleets, "_believed", lambda world, name, alive: alive)
    assert fails_in_some_world("did not finish")


@pytest.mark.slow
def test_it_is_seen_when_nobody_owns_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "owner_of", lambda root, alive: "" if root.endswith("t0") else sorted(alive)[0])
    assert fails_in_some_world("did not finish")


@pytest.mark.slow
@pytest.mark.worlds
def test_a_part_that_kills_is_parked_and_the_others_are_merged_meanwhile() -> None:
    counts = Counter[str]()
    for seed in range(POISONED, POISONED + 2 * len(worlds(3)), 2):
        counts += simulate_fleet(seed, 2_000)
    for met in ("poison", "merge parked", "merges beside a parked part", "poison after its time"):
        assert counts[met], f"no world had {met}: {counts}"


def test_it_is_seen_when_a_part_kills_one_worker_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failing, "LOST_MAX", 10**9)
    assert fails_in_some_world("is tried more than three times", 2_000, first=POISONED)


def test_it_is_seen_when_nobody_leaves_a_parked_part_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Failing, "is_parked", lambda self, now_ms: False)
    assert fails_in_some_world("merges a part that is parked", 2_000, first=POISONED)


@pytest.mark.parametrize("kind", [ConflictKind.PARTS, ConflictKind.CLAIM])
def test_it_is_seen_when_two_workers_do_the_same_and_the_log_lets_them(
    kind: ConflictKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ignoring(*given: object, **named: object) -> object:
        found = find_conflict(*given, **named)  # type: ignore[arg-type]
        return None if found is not None and found.kind is kind else found

    monkeypatch.setattr(table_log, "find_conflict", ignoring)
    assert fails_in_some_world("seed")
