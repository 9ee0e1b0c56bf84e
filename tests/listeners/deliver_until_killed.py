"""Delivers to the listeners of a root until it is killed: ``python -m tests.listeners.deliver_until_killed ROOT``."""

from __future__ import annotations

import sys
import time

from lakebed.listeners import listener
from lakebed.listeners.delivery import Deliverer

if __name__ == "__main__":
    listener.DEAD_SECONDS = 1.0  # so that the next process takes over soon
    Deliverer(sys.argv[1], look_seconds=0.1, beat_seconds=0.3).start()
    print("delivering", flush=True)
    time.sleep(3600)
