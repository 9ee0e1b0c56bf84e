"""What a task cost and which requests it made, measured where it runs and returned with its result.

with measured(table, "merge"):
    ...

1. A thread adds up, a few times a second, what the process has spilled: DuckDB's temporary files and the spill buckets of merges.
   Work on few rows spills nothing, so it has no such thread, which would cost more than its decoding.
2. At the end the maximum is reported (``events.TaskMeasured``), with the most memory that the process ever had.

A process that does several things at once, such as one that settles while it merges, is measured as a whole.

with counted() as requests:            # in the task
    ...
report_requests(requests.to_json())    # in the driver
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path

from lakebed import events
from lakebed.storage.local_folders import SPILL_BUCKETS_PREFIX, process_folder

# -- What a task uses of its process: memory, and disk for rows that do not fit into it ------------------------------------


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


# -- Counts a Spark task's requests to an object store and what it uses of its machine. They reach the metrics with its result


class TaskRequests:
    """A listener that adds up requests by table, operation and result."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str, str], list[int]] = {}
        self._measured: list[events.TaskMeasured] = []

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.StoreRequested):
            sums = self._sums.setdefault((event.table, event.operation, event.result), [0, 0, 0])
            for place, count in enumerate((event.bytes_read, event.bytes_written, event.requests)):
                sums[place] += count
        elif isinstance(event, events.TaskMeasured):
            self._measured.append(event)

    def to_json(self) -> str:
        """The text that ``report_requests`` takes."""
        names = ("table", "operation", "result", "bytes_read", "bytes_written", "requests")
        requests = [dict(zip(names, (*key, *sums), strict=True)) for key, sums in self._sums.items()]
        return json.dumps({"process": _process(), "requests": requests, "measured": list(map(asdict, self._measured))})


@contextmanager
def counted() -> Iterator[TaskRequests]:
    """The events of this process while the block runs; a worker of Spark runs one task at a time."""
    requests = TaskRequests()
    end = events.listen(requests)
    try:
        yield requests
    finally:
        end()


def report_requests(text: str) -> None:
    """Emit what a task counted; the events of a task in this process were emitted already."""
    counts = json.loads(text)
    if counts["process"] != _process():
        for values in counts["requests"]:
            events.emit(events.StoreRequested(**values))
        for values in counts["measured"]:
            events.emit(events.TaskMeasured(**values))


def _process() -> str:
    return f"{os.uname().nodename}-{os.getpid()}"
