"""Hostile names, keys, values, settings, clocks and files change no row: a table under random treatment equals a dictionary.

``python -m tests.hostile --minutes 60`` runs for hours; a failing world names its seed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.hostile import folders
from tests.hostile.world import run

SEEDS = int(os.environ.get("LAKEBED_SEEDS", "40"))


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, SEEDS))])
def test_a_hostile_world_equals_a_dictionary(seed: int, tmp_path: Path) -> None:
    run(seed, tmp_path)


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, SEEDS))])
def test_a_hostile_folder_of_files_equals_a_dictionary(seed: int, tmp_path: Path) -> None:
    folders.run(seed, tmp_path)
