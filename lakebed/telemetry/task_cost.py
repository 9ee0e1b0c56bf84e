"""What a task uses of its process: memory, and disk for rows that do not fit into it.

with measured(table, "merge"):
    ...

1. A thread adds up, a few times a second, what the process has spilled: DuckDB's temporary files and the spill buckets of merges.
2. At the end the maximum is reported (``events.TaskMeasured``), with the most memory that the process ever had.

A process that does several things at once, such as one that settles while it merges, is measured as a whole.
"""

from __future__ import annotations

import resource
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lakebed import events
from lakebed.storage.process_folders import process_folder
from lakebed.storage.spill_buckets import SPILL_BUCKETS_PREFIX

LOOK_SECONDS = 0.25
_MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024


@contextmanager
def measured(table: str, kind: str) -> Iterator[None]:
    """Measure the block, also one that fails. ``table``: its root; ``kind``: its name in the events."""
    started = time.perf_counter()
    folder = process_folder()
    done = threading.Event()
    most = spilled_bytes(folder)

    def look() -> None:
        nonlocal most
        while not done.wait(LOOK_SECONDS):
            most = max(most, spilled_bytes(folder))

    thread = threading.Thread(target=look, name="lakebed-task-cost", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_BYTES
        most = max(most, spilled_bytes(folder))
        events.emit(
            events.TaskMeasured(
                table=table, kind=kind, seconds=time.perf_counter() - started, memory_bytes=memory, spilled_bytes=most
            )
        )


def spilled_bytes(folder: Path) -> int:
    """Bytes of rows that a process has put aside in its temporary folder; files deleted meanwhile are left out."""
    total = 0
    for place in [folder / "duckdb", *folder.glob(f"{SPILL_BUCKETS_PREFIX}*")]:
        try:
            files = list(place.iterdir())
        except OSError:
            continue
        for file in files:
            try:
                total += file.stat().st_size
            except OSError:
                continue
    return total
