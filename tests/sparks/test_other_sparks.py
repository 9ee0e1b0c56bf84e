"""The oldest and the newest Spark do what the Spark of all other tests does; ``make test-sparks`` runs more, with each."""

from __future__ import annotations

import sys

import pytest

from tests.infra.downloads import REPOSITORY, SPARKS
from tests.sparks.__main__ import environment_with
from tests.waiting import ran

pytestmark = pytest.mark.slow
FILES = ("tests/sparks/test_any_spark.py", "tests/names/test_tour.py")
SMOKE = "(files_are_read_once and not transform) or the_tour"


@pytest.mark.parametrize("version", [SPARKS[0], SPARKS[-1]])
def test_it_streams_and_reads(version: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", *FILES, "-k", SMOKE]
    done = ran(command, cwd=REPOSITORY, env=environment_with(version))
    assert done.returncode == 0, done.stdout[-6000:]
