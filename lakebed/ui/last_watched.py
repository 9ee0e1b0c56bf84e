"""The tables whose own pages were asked for last: each is watched (``watch``), ``WATCHED_MAX`` of them at most."""

from __future__ import annotations

import threading
from collections import OrderedDict

from lakebed.ui.live import Live
from lakebed.ui.watch import Watched

WATCHED_MAX = 8


class LastWatched:
    """Some tables, until ``close``. Safe to use from several threads."""

    def __init__(self, interval_seconds: float, live: Live | None = None) -> None:
        """``live``: what this process knows of the tables."""
        self._interval_seconds = interval_seconds
        self._live = live
        self._watched: OrderedDict[str, Watched] = OrderedDict()
        self._lock = threading.Lock()  # of what is watched

    def find(self, root: str, name: str) -> Watched:
        """The table at a root, watched from now on. ``name``: its root without credentials."""
        with self._lock:
            watched = self._watched.get(root)
            if watched is None:
                watched = self._watched[root] = Watched(root, name, self._interval_seconds, self._live)
                watched.start()
            self._watched.move_to_end(root)
            left = self._watched.popitem(last=False)[1] if len(self._watched) > WATCHED_MAX else None
        if left is not None:
            left.close()
        return watched

    def close(self) -> None:
        with self._lock:
            watched = list(self._watched.values())
        for each in watched:
            each.close()
