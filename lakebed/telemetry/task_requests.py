"""Counts a Spark task's requests to an object store and what it uses of its machine. They reach the metrics with its result.

with counted() as requests:            # in the task
    ...
report_requests(requests.to_json())    # in the driver
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from lakebed import events


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
