"""At the end of a resnapshot exactly the rows are removed that the source no longer has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.operations.captured_table import World, without_pauses

SEEDS = int(os.environ.get("LAKEBED_SEEDS", "8"))


def run_to_the_end(world: World) -> None:
    """Nothing new happens; the snapshot and all that follows from it end."""
    for _ in range(400):
        world.close_window()
        world.settle()
        world.follow()
        if not world.state.is_active and not world.queue:
            return
    raise AssertionError(f"it does not end: {world.state}")


@pytest.mark.parametrize("holds_back", [False, True])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_in_the_end_the_table_has_what_the_source_has(seed: int, holds_back: bool, tmp_path: Path) -> None:
    world = World(tmp_path, seed, holds_back=holds_back)
    with without_pauses():
        for _ in range(world.draw.choice([0, 80, 150])):
            world.change()
        world.lose()
        world.ask()
        for _ in range(world.draw.choice([5, 40, 80])):
            world.step()
            if world.draw.random() < 0.02:
                world.ask()
        run_to_the_end(world)
        world.settle()
    assert world.state.state == "ended", world.state.error
    assert world.found() == world.rows, world.state
