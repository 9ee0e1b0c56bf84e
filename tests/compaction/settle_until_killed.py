"""A process that maintains tables until nothing is left to do, and that dies of settling one of them.

    python -m tests.compaction.settle_until_killed TABLE DEADLY

It kills itself as soon as it resolves a change part named DEADLY, as memory that runs out does. It is a worker of a
fleet over all tables of the folder. Prints each settle that begins, and "idle".
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from lakebed.compaction import settle
from lakebed.coordination.failing import parked_settle
from lakebed.fleet import membership, worker
from lakebed.fleet.worker import FleetWorker, Limits
from lakebed.table.internals import open_log
from tests.waiting import wait_until


def deadly(name: str) -> None:
    """Let this process die of the change part."""
    real = settle.resolve

    def resolve(parts: Any, change_parts: Any, *rest: Any, **more: Any) -> Any:
        print("settles", *sorted(part.path for part in change_parts), flush=True)
        if any(part.path == name for part in change_parts):
            os.kill(os.getpid(), signal.SIGKILL)
        return real(parts, change_parts, *rest, **more)

    settle.resolve = resolve  # type: ignore[assignment]


def fleet(path: str) -> None:
    membership.BEAT_SECONDS = worker.BEAT_SECONDS = 0.2  # so that those that were killed are soon known to be dead
    root = Path(path).parent
    logs = [open_log(str(each.parent)) for each in root.glob("*/_delta_log") if not each.parent.name.startswith("_")]
    lives = FleetWorker([str(root)], Limits(cores=1))
    lives.start()

    def is_idle() -> bool:
        newest = [log.refresh() for log in logs]
        left = (each for each in newest if each.tail and parked_settle(each, logs[0].now_ms()) is None)
        return not any(left) and lives.state().owned == len(logs) and not lives.state().unseen

    wait_until(is_idle, failure=lambda: str(lives.state()))
    lives.close()


if __name__ == "__main__":
    deadly(sys.argv[2])
    fleet(sys.argv[1])
    print("idle", flush=True)
