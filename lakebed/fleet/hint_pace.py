"""How soon something runs again for hints: not before a time that each run sets, and once for all hints until then.

A hint that comes during a run waits for its end, since only then it is known how long to wait after it.
"""

from __future__ import annotations

import math
import threading
import time


class HintPace:
    """The hints of one job. ``hinted`` is for any thread, ``begins`` and ``ends`` are for the one that runs the job."""

    def __init__(self) -> None:
        self.not_before = -math.inf
        """When the job may run for a hint, by the monotonic clock. Set it before ``ends``."""
        self._changed = threading.Lock()
        self._is_hinted = self._runs = False

    def hinted(self) -> float | None:
        """A hint has come. Returns in how many seconds to run for it; None: it is planned, or ``ends`` will say when."""
        with self._changed:
            if self._is_hinted:
                return None
            self._is_hinted = True
            return None if self._runs else self._seconds_left()

    def begins(self) -> bool:
        """The job runs from now on; returns whether a hint has come since it ran last."""
        with self._changed:
            was_hinted, self._is_hinted, self._runs = self._is_hinted, False, True
            return was_hinted

    def ends(self) -> float:
        """The job has run; returns in how many seconds to run for a hint that came meanwhile. Infinity: none did."""
        with self._changed:
            self._runs = False
            return self._seconds_left() if self._is_hinted else math.inf

    def _seconds_left(self) -> float:
        return max(0.0, self.not_before - time.monotonic())
