"""The events that the code under test emits, as a test waits for them: the thread that did something says so."""

from __future__ import annotations

import queue
from collections.abc import Collection

from lakebed import events

SECONDS_MAX = 600.0
"""So long no machine is busy. Who waits goes on as soon as the event comes."""


class Heard:
    """Events of one kind, from when it was made until the end of the test."""

    def __init__(self, kind: type[events.Event]) -> None:
        self._kind = kind
        self._heard = queue.SimpleQueue[events.Event]()
        events.listen(self._hear)

    def of_each(self, tables: Collection[str]) -> None:
        """Waits until there was an event of each of these tables, by path; later ones are for the next call."""
        left = set(tables)
        while left:
            try:
                left.discard(self._heard.get(timeout=SECONDS_MAX).table)
            except queue.Empty:
                raise AssertionError(f"there was no {self._kind.__name__} of {left}") from None

    def _hear(self, event: events.Event) -> None:
        if isinstance(event, self._kind):
            self._heard.put(event)
