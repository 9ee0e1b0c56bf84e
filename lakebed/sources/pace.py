"""When the next batch begins: a batch has a fixed cost, so events that come shortly after one wait for each other.

1. An event that comes ``seconds`` or more after the last batch began is a batch at once.
2. One that comes sooner waits until ``seconds`` have passed, counted from when the last batch began. So a batch that takes longer
   is followed by the next one without a pause.
3. After a batch that left events behind, because of a limit, the next one begins at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable

BATCH_SECONDS = 0.75
"""The pace of a pipeline. A shorter one costs more, and a longer one makes events older."""
HOT_RECORDS = 1_000
"""About as many cost as much to decode and write as a table's commit and all that follows it."""


class Pace:
    """Says how long the next batch still waits."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._due = clock()

    def wait_seconds(self) -> float:
        """Seconds until a batch may begin; 0 or less if it may now."""
        return self._due - self._clock()

    def began(self, left_some: bool = False) -> None:
        """A batch begins now; ``left_some``: events that were there are not in it."""
        self._due = self._clock() + (0.0 if left_some else self._seconds)
