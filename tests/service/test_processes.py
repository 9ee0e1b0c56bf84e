"""The service as a command, and runners of jobs that are killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import lakebed
from lakebed.client import RemoteTable
from lakebed.coordination import jobs
from lakebed.coordination.jobs import Job, JobState
from lakebed.jobs import ACTIONS, JobRunner
from lakebed.service.catalog import Catalog
from lakebed.service.job_routes import JobLoop
from tests.internals import log_of
from tests.waiting import outcome, ran, wait_until

LAKEBED = (sys.executable, "-c", "import sys; from lakebed.cli import main; sys.exit(main())")
ENDLESS = """
import sys, threading
import lakebed
from lakebed.jobs import JobAction
from lakebed.jobs import JobRunner

endless = JobAction(summary="never ends", run=lambda table, arguments, report, stop: threading.Event().wait())
runner = JobRunner(lakebed.open, lease_seconds=2.0, look_seconds=0.1, actions={"settle": endless})
assert runner.look(sys.argv[1]) == 1
threading.Event().wait()
"""


@pytest.mark.slow
def test_a_job_whose_runner_is_killed_is_done_by_another(lake: Path) -> None:
    table = lakebed.open(lake / "orders")
    log = log_of(table)
    jobs.ask(log, Job(id="a", kind="settle"))
    first = subprocess.Popen([sys.executable, "-c", ENDLESS, str(lake / "orders")])
    try:
        wait_until(lambda: state(log) is JobState.RUNNING)
        leases = {until(log)}
        wait_until(lambda: leases.add(until(log)) or len(leases) > 2)  # it lives, and says so
        first.kill()
    finally:
        first.kill()
        first.wait()
    loop = JobLoop(
        Catalog([str(lake)]), pass_seconds=0.1, runner=lambda open_table: JobRunner(open_table, actions=ACTIONS)
    )
    loop.start()
    wait_until(lambda: state(log) is JobState.SUCCEEDED)
    loop.close()
    [job] = jobs.jobs_of(log.refresh())
    assert job.attempts == 2 and "tail" not in table.inspect.parts()["state"].to_pylist()


def state(log: object) -> JobState:
    return jobs.jobs_of(log.refresh())[0].state  # type: ignore[attr-defined]


def until(log: object) -> int:
    return jobs.jobs_of(log.refresh())[0].until_ms  # type: ignore[attr-defined]


@pytest.mark.slow
def test_the_command_serves_makes_tokens_and_runs_jobs(lake: Path, tmp_path: Path) -> None:
    file = str(tmp_path / "tokens")
    made = ran([*LAKEBED, "serve", "token", "alice", "--role", "operator", "--tokens", file])
    assert made.returncode == 0 and os.stat(file).st_mode & 0o077 == 0
    token = made.stdout.strip()
    assert token not in Path(file).read_text()
    command = [*LAKEBED, "serve", "api", str(lake), "--port", "0", "--tokens", file]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = re.search(r"http://\S+", process.stderr.readline())
        assert found is not None
        remote: RemoteTable = lakebed.connect(found[0], token).table("orders")
        assert remote.settle()["change_parts"] > 0 and remote.jobs()[0]["by"] == "alice"
        process.send_signal(signal.SIGTERM)
        outcome(process)
        assert process.returncode == 0
    wrong = ran([*LAKEBED, "serve", "api", str(lake), "--host", "0.0.0.0", "--port", "0"])
    assert wrong.returncode == 2 and "--tokens" in wrong.stderr
