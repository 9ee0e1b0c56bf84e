"""Busy loops use no processor any more once the tests that they ran beside have ended."""

from __future__ import annotations

import subprocess
import sys

from tests.infra.downloads import REPOSITORY
from tests.infra.processes import descendants, is_alive
from tests.waiting import wait_until


def test_they_end_with_the_process_that_started_them() -> None:
    start = f"{sys.executable} -m tests.infra.busy_loops 2 & echo $!; read _"
    with subprocess.Popen(
        ["sh", "-c", start], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as shell:
        assert shell.stdout is not None and shell.stdin is not None
        leader = int(shell.stdout.readline())
        wait_until(lambda: len(descendants(leader)) == 2)
        loops = [leader, *descendants(leader)]
        shell.stdin.close()
        assert shell.wait() is not None
    wait_until(lambda: not any(map(is_alive, loops)))
