"""What the threads beside a run do again and again, without taking much of a core."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from lakebed.failures import Outage

SAMPLE_SECONDS = 1.0
SAMPLE_SHARE = 0.02  # of a core at most is spent on each kind of look at the tables
_logger = logging.getLogger("lakebed.run")


def seldom(
    work: Callable[[], None], done: threading.Event, used_seconds: Callable[[], float] = time.thread_time
) -> None:
    """Do it once a second, or so seldom that it takes ``SAMPLE_SHARE`` of a core. To wait for something costs nothing.

    An error is logged, and the next time may do better: a thread that ended would leave old figures on every surface.
    """
    outage = Outage(f"the thread {threading.current_thread().name}", _logger)
    while not done.is_set():
        before = used_seconds()
        try:
            work()
        except Exception as error:
            outage.failed(error)
        else:
            outage.works()
        done.wait(max(SAMPLE_SECONDS, (used_seconds() - before) / SAMPLE_SHARE))
