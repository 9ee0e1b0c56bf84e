"""Busy loops beside the tests, until the process that started them has ended: ``python -m tests.infra.busy_loops 4 &``.

They run in a session of their own, as another program does: Linux shares the processor by sessions first.
"""

from __future__ import annotations

import os
import sys
import time

LOOPS_MAX = 64


def main() -> None:
    parent, loops = os.getppid(), min(int(sys.argv[1]), LOOPS_MAX)
    if parent == 1:
        return  # it has ended already
    os.setsid()
    for _ in range(loops):
        leader = os.getpid()
        if os.fork() == 0:
            while os.getppid() == leader:
                pass
            return
    while os.getppid() == parent:
        time.sleep(0.2)


if __name__ == "__main__":
    main()
