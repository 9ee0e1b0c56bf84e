"""Workers as processes: one is killed, and the other takes over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lakebed.fleet.membership import listed_workers, owner_of
from tests.fleet.test_worker import changes, is_settled, tables_in
from tests.waiting import outcome, wait_until

pytestmark = pytest.mark.slow
QUICK = """
import sys
from lakebed.fleet import worker
worker.BEAT_SECONDS = 0.3
from lakebed.cli.command_line import execute
sys.exit(execute(["maintain", sys.argv[1], "--cores", "1", "--memory", "512MiB"]))
"""


@contextmanager
def worker(root: Path, cache: Path) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "LAKEBED_CACHE_DIR": str(cache)}
    process = subprocess.Popen(
        [sys.executable, "-c", QUICK, str(root)], env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_the_tables_of_a_killed_worker_are_maintained_by_the_other(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    tables = tables_in(lake, 12)
    with worker(lake, tmp_path / "a") as first, worker(lake, tmp_path / "b") as second:
        wait_until(lambda: len(listed_workers(str(lake))) == 2)
        workers = {each.id: each.cores for each in listed_workers(str(lake))}
        assert {owner_of(table.path, workers) for table in tables} == set(workers), "each of them owns some"
        for table in tables:
            table.apply(changes(1))
        wait_until(lambda: all(map(is_settled, tables)), moving=lambda: sum(map(is_settled, tables)))
        first.kill()
        for table in tables:
            table.apply(changes(2))
        wait_until(lambda: all(map(is_settled, tables)), moving=lambda: sum(map(is_settled, tables)))
        wait_until(lambda: len(listed_workers(str(lake))) == 1, "the entry of the dead one is removed")
        second.send_signal(signal.SIGTERM)
        said = outcome(second)
        assert second.returncode == 0, said
        assert listed_workers(str(lake)) == [], "who is asked to end leaves the fleet"
