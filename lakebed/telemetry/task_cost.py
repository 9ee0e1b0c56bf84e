"""What a task uses of its process: memory, and disk for rows that do not fit into it.

with measured(table, "merge"):
    ...

1. A thread adds up, a few times a second, what the process has spilled: DuckDB's temporary files and the spill buckets of merges.
   Work on few rows spills nothing, so it has no such thread, which would cost more than its decoding.
2. At the end the maximum is reported (``events.TaskMeasured``), with the most memory that the process ever had.

A process that does several things at once, such as one that settles while it merges, is measured as a whole.
"""

from __future__ import annotations

import resource
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from lakebed import events
from lakebed.storage.process_folders import process_folder
from lakebed.storage.spill_buckets import SPILL_BUCKETS_PREFIX

LOOK_SECONDS = 0.25
_MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024


@contextmanager
def measured(table: str, kind: str, *, may_spill: bool = True) -> Iterator[None]:
    """Measure the block, also one that fails. ``table``: its root; ``kind``: its name in the events.

    ``may_spill``: if not, what the process spills is not looked at.
    """
    started = time.perf_counter()
    seen = [0]
    try:
        with _looking(seen) if may_spill else nullcontext():
            yield
    finally:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_BYTES
        seconds = time.perf_counter() - started
        events.emit(
            events.TaskMeasured(table=table, kind=kind, seconds=seconds, memory_bytes=memory, spilled_bytes=seen[0])
        )


@contextmanager
def _looking(seen: list[int]) -> Iterator[None]:
    """A thread looks while the block runs; the most that was spilled so far is in ``seen``."""
    folder, done = process_folder(), threading.Event()
    seen[0] = spilled_bytes(folder)

    def look() -> None:
        while not done.wait(LOOK_SECONDS):
            seen[0] = max(seen[0], spilled_bytes(folder))

    thread = threading.Thread(target=look, name="lakebed-task-cost", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        seen[0] = max(seen[0], spilled_bytes(folder))


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
