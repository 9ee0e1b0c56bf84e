"""At every point the tables have exactly the transactions up to it, whole; without the cut they do not."""

from __future__ import annotations

import pytest

from tests.points.world import World
from tests.worlds import worlds

STEPS = 600


@pytest.mark.slow
@pytest.mark.worlds
def test_at_every_point_the_tables_have_whole_transactions() -> None:
    points = 0
    for seed in worlds(10):
        world = World(seed)
        try:
            for _ in range(STEPS):
                world.step()
            world.quiesce()
            assert world.points, world.counts
            assert world.points[-1].transaction.split(":")[0] == world.order[-1], world.counts
            assert not world.left_out(), world.left_out()
        except AssertionError as failure:
            raise AssertionError(f"seed {seed}: {failure}") from failure
        points += len(world.points)
    assert points > 20


def test_without_the_cut_a_point_would_have_halves_of_transactions() -> None:
    """So the auditor sees them."""
    wrong = 0
    for seed in range(20):
        world = World(seed, cuts=False)
        for _ in range(STEPS):
            world.step()
        for point in world.points:
            wrong += bool(world.wrong_in(point))
    assert wrong
