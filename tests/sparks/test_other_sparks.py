"""The oldest and the newest Spark do what the Spark of all other tests does; ``make test-sparks`` runs more, with each."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest

from tests.infra.downloads import REPOSITORY, SPARKS
from tests.sparks.__main__ import environment_with
from tests.waiting import ran

pytestmark = pytest.mark.slow
TOUR = "tests/names/test_tour.py"
STREAM = "tests/sparks/test_any_spark.py"


@pytest.mark.parametrize(("version", "files"), [(SPARKS[0], (STREAM, TOUR)), (SPARKS[-1], (TOUR,))])
def test_it_streams_and_reads(version: str, files: Sequence[str]) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        *files,
        "-k",
        "(files_are_read_once and not transform) or the_tour",
    ]
    done = ran(command, cwd=REPOSITORY, env=environment_with(version))
    assert done.returncode == 0, done.stdout[-6000:]
