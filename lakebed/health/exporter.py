"""The gauges of many tables, without a pipeline. The exporter holds no state and writes nothing.

1. Each table has a thread, which opens it and takes its figures every ``interval_seconds``. If that fails, it logs the reason,
   once for each new one. The next attempt opens the table again, unless the store just did not answer.
2. An attempt that takes too long can't be cut short: until it ends, ``lakebed_table_up`` is 0, and the
   table's figures are absent. No other table waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from lakebed.errors import LakebedError, Retry, TableNotFound
from lakebed.health.sampler import Sampler
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.monitoring.metrics import Metrics
from lakebed.storage.local_folders import volatile_folder
from lakebed.storage.open import open_part_storage

SLOW_SECONDS = 30.0
_DEAR_SHARE = 0.1
_LOG_SHARE = 0.1
_logger = logging.getLogger("lakebed.exporter")


class Exporter:
    """Takes the figures of tables until ``close``, and puts them into ``metrics``."""

    def __init__(
        self, paths: Sequence[str], metrics: Metrics, interval_seconds: float, volatile: Path | None = None
    ) -> None:
        """``volatile``: the folder of materialized parts on this host (default: this user's).

        Raises InvalidInput for a path that can't be one.
        """
        self._metrics = metrics
        self._volatile = volatile or volatile_folder()
        self._interval_seconds = interval_seconds
        self._done = threading.Event()
        self._began: dict[str, float] = {}
        roots = list(dict.fromkeys(open_part_storage(path).root for path in paths))
        self._threads = [
            threading.Thread(target=self._follow, args=(root,), name=f"lakebed-exporter-{number}", daemon=True)
            for number, root in enumerate(roots)
        ]
        self._threads.append(threading.Thread(target=self._watch, name="lakebed-exporter-watch", daemon=True))
        for root in roots:
            metrics.down(root)

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop. Attempts that are under way are not waited for."""
        self._done.set()

    def _follow(self, root: str) -> None:
        sampler: Sampler | None = None
        reported = ""
        while not self._done.is_set():
            self._began[root] = time.monotonic()
            try:
                sampler = sampler or self._sampler(root)
                self._metrics.observe(root, sampler.sample())
                reported = ""
            except Exception as error:  # whatever is wrong with one table, the others go on
                sampler = sampler if isinstance(error, Retry) else None
                self._metrics.down(root)
                now = "there is no table" if isinstance(error, TableNotFound) else str(error)
                if now != reported:
                    reported = now
                    _logger.warning("%s: %s", root, reported, exc_info=not isinstance(error, LakebedError))
            del self._began[root]
            self._done.wait(self._interval_seconds)

    def _sampler(self, root: str) -> Sampler:
        seconds = self._interval_seconds * _LOG_SHARE
        return Sampler(root, TableLog(open_store(root)), self._volatile, share=_DEAR_SHARE, log_seconds=seconds)

    def _watch(self) -> None:
        reported: set[str] = set()
        while not self._done.wait(1.0):
            now = time.monotonic()
            late = {root for root, began in list(self._began.items()) if now - began > SLOW_SECONDS}
            for root in late:
                self._metrics.down(root)
            for root in sorted(late - reported):
                _logger.warning("%s: taking its figures has lasted more than %.0f s", root, SLOW_SECONDS)
            reported = late
