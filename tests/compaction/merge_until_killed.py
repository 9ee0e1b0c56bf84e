"""A process that merges a table until there is nothing to do.

    python -m tests.compaction.merge_until_killed TABLE PART LEASE_SECONDS

Its kernel kills the process as soon as PART is among the sources, as memory that runs out does.
Prints the replica's name, and each part that a merge of it takes.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import lakebed
from lakebed.compaction.compaction import LocalKernel
from lakebed.compaction.merge_runner import MergeRunner
from lakebed.compaction.volatile import VolatileMerger
from lakebed.log.claims import claims_of
from tests.internals import deletion_vectors_of, log_of, storage_of


class Deadly(LocalKernel):
    """The real kernel, unless it meets the part that kills."""

    deadly = ""

    def merge(self, sources: Any, *rest: Any, **named: Any) -> Any:
        print("merges", *sorted(source.part.path for source in sources), flush=True)
        if any(source.part.path == self.deadly for source in sources):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().merge(sources, *rest, **named)


def main(path: str, part: str, lease_seconds: float) -> None:
    table = lakebed.open(path)
    log, storage, vectors = log_of(table), storage_of(table), deletion_vectors_of(table)
    merger = VolatileMerger(log, storage, vectors, Path(f"{path}.replicas"), lease_seconds=lease_seconds)
    print("replica", merger.replica, flush=True)
    Deadly.deadly = part
    merge_runner = MergeRunner(path, log, merger, Deadly(storage, log.refresh))
    merge_runner.run_until_idle()
    while claims_of(log.refresh().domains).keys() - {each.claim.id for each in merger.held()}:
        time.sleep(lease_seconds / 2)  # those of processes that were killed
        merger.tidy()
        merge_runner.run_until_idle()
    merger.close()
    print("idle", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
