"""Requests to an object store that a Spark task makes, counted where the metrics are: a task sends them home with its result.

with counted() as requests:     # in the task
    ...
tell(requests.to_json())        # in the driver
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

from lakebed import events


class TaskRequests:
    """Listens, and adds up by table, operation and result."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str, str], list[int]] = {}

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.StoreRequested):
            sums = self._sums.setdefault((event.table, event.operation, event.result), [0, 0, 0])
            for place, count in enumerate((event.bytes_read, event.bytes_written, event.requests)):
                sums[place] += count

    def to_json(self) -> str:
        """What ``tell`` takes."""
        return json.dumps({"process": _process(), "requests": [[*key, *sums] for key, sums in self._sums.items()]})


@contextmanager
def counted() -> Iterator[TaskRequests]:
    """The requests of this process while the block runs; a worker of Spark runs one task at a time."""
    requests = TaskRequests()
    end = events.listen(requests)
    try:
        yield requests
    finally:
        end()


def tell(text: str) -> None:
    """Emit what a task counted; a task in this very process was heard already."""
    told = json.loads(text)
    if told["process"] != _process():
        for values in told["requests"]:
            events.emit(events.StoreRequested(*values))


def _process() -> str:
    return f"{os.uname().nodename}-{os.getpid()}"
