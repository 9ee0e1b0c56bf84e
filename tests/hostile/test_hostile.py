"""Hostile names, keys, values, settings, clocks and files change no row: a table under random treatment equals a dictionary.

``python -m tests.hostile --minutes 60`` runs for hours; a failing world names its seed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile import folders
from tests.hostile.world import run
from tests.worlds import seeds


@pytest.mark.few(4)
@seeds(4, quick=0)
def test_a_hostile_world_equals_a_dictionary(seed: int, tmp_path: Path) -> None:
    run(seed, tmp_path)


@pytest.mark.few(4)
@seeds(4, quick=0)
def test_a_hostile_folder_of_files_equals_a_dictionary(seed: int, tmp_path: Path) -> None:
    folders.run(seed, tmp_path)
