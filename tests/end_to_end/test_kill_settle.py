"""A process killed in the middle of settling leaves the table as it was or settled, and the next one goes on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import lakebed
from tests.end_to_end.settle_process import SCHEMA, changes_of
from tests.infra.downloads import REPOSITORY
from tests.oracle import Oracle, in_order
from tests.worlds import TIMES

KILLS = 4 * TIMES
BATCHES = 3


def settle_in_a_process(table: Path, first_batch: int, step: int) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    arguments = [str(table), str(first_batch), str(BATCHES), str(step)]
    return subprocess.run(
        [sys.executable, "-m", "tests.end_to_end.settle_process", *arguments],
        env={**os.environ, "LAKEBED_CACHE_DIR": str(table.parent / "cache"), "PYTHONPATH": path},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )


def batches_in(table: lakebed.Table) -> int:
    return sum(operation == "APPLY" for operation in table.inspect.timeline(1_000_000)["operation"].to_pylist())


@pytest.mark.long
@pytest.mark.slow
def test_killed_in_the_middle_of_settling_no_change_is_lost_and_no_key_lives_twice(tmp_path: Path) -> None:
    path = tmp_path / "orders"
    table = lakebed.create(path, SCHEMA, keys=["id"])
    counted = settle_in_a_process(path, 0, step=-1)
    assert counted.returncode == 0, counted.stderr
    steps_per_process = int(counted.stdout)
    oracle = Oracle(("id",), tuple(SCHEMA.names))
    chance = random.Random(11)
    known = with_tail = 0
    for kill in range(KILLS + 1):
        for batch in range(known, batches_in(table)):
            oracle.apply(changes_of(batch))
        known = batches_in(table)
        with_tail += table.inspect.detail()["tail_parts"][0].as_py() > 0
        assert in_order(table.to_arrow().to_pylist()) == oracle.rows()
        if kill < KILLS:
            killed = settle_in_a_process(path, known, step=chance.randrange(1, steps_per_process))
            assert killed.returncode == -signal.SIGKILL, killed.stderr

    last = settle_in_a_process(path, known, step=-1)

    assert last.returncode == 0, last.stderr
    for batch in range(known, known + BATCHES):
        oracle.apply(changes_of(batch))
    assert table.inspect.detail()["tail_parts"][0].as_py() == 0
    assert in_order(table.to_arrow().to_pylist()) == oracle.rows()
    assert with_tail, "no kill left a tail behind: the kills came at the wrong moments"
