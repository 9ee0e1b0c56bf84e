"""How much of the service one caller, and all callers together, may use. Constants: whoever needs more runs another service."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

BODY_BYTES_MAX = 1 << 20
BODY_SECONDS_MAX = 20.0
"""In which the body of a request must have come."""
REQUEST_SECONDS_MAX = 60.0
"""After which the caller gets an error, whatever the thread still does."""
REQUESTS_MAX = 200
"""Under way at once."""
THREADS = 16
PER_SECOND_MAX = 200.0
BURST_MAX = 1_000.0
_CALLERS_MAX = 10_000


class Rates:
    """A bucket of requests a caller, which fills with ``PER_SECOND_MAX``."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # by caller: requests left, and when that was
        self._lock = threading.Lock()

    def wait_seconds(self, caller: str) -> float:
        """Takes a request out of the bucket: 0.0; or, if there is none, after how many seconds there will be."""
        now = self._clock()
        with self._lock:
            left, then = self._left.pop(caller, (BURST_MAX, now))
            left = min(BURST_MAX, left + (now - then) * PER_SECOND_MAX)
            self._left[caller] = max(0.0, left - 1), now
            if len(self._left) > _CALLERS_MAX:
                self._left.popitem(last=False)
        return 0.0 if left >= 1 else (1 - left) / PER_SECOND_MAX
