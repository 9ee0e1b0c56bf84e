"""Rounds of maintenance, and a replica without Spark that does one after each version of the log.

1. Look for a new version, now and then.
2. Do a round: settle what is due, refresh the views. An error that says "try again" is tried again, a bounded number of times.
3. Tell the compactor, whose threads merge and do the chores meanwhile.

With Spark, a streaming query over the log takes the place of step 1 (``compaction.maintain``).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from lakebed.compaction.compactor import Compactor
from lakebed.errors import Retry, StoreUnavailable
from lakebed.manifest.table_log import TableLog

_logger = logging.getLogger("lakebed.maintain")
_FAILURES_MAX = 20
_LOOK_SECONDS = 0.5


class Rounds:
    """Calls ``step``, again after its Retry errors until there are too many in a row, and tells the compactor."""

    def __init__(self, path: str, step: Callable[[], None], compactor: Compactor) -> None:
        self._path = path
        self._step = step
        self._compactor = compactor
        self._failures = 0

    def __call__(self) -> bool:
        """One round; returns whether the step went well."""
        try:
            self._step()
            self._failures = 0
        except Retry as error:
            self._failures += 1
            if self._failures >= _FAILURES_MAX:
                raise
            _logger.warning("maintenance of %s will try again: %s", self._path, error)
        self._compactor.poke()
        return self._failures == 0


def follow(path: str, log: TableLog, step: Callable[[], None], compactor: Compactor, stop: threading.Event) -> None:
    """Maintain a table in this thread: a round after each new version until ``stop`` is set.

    Returns when the compactor has ended and its merges have given their claims back.
    """
    rounds = Rounds(path, step, compactor)
    seen = -1
    compactor.start()
    try:
        while not stop.is_set():
            try:
                version = log.refresh().version
            except StoreUnavailable as error:
                _logger.warning("maintenance of %s will look again: %s", path, error)
                version = seen
            if version != seen and rounds():
                seen = version
            stop.wait(_LOOK_SECONDS)
    finally:
        compactor.close()
