"""Runs the jobs of the service's tables in this process: at once those that it was asked for, later those that others left.

Now and then it looks at all tables, for jobs whose runner died, whose time has come, or that were asked for elsewhere. That takes
at most a twentieth of the time.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from lakebed.coordination.jobs import due_jobs, jobs_of
from lakebed.errors import LakebedError
from lakebed.jobs import JobRunner
from lakebed.service.catalog import Catalog
from lakebed.table import Table

_THREADS = 2
LOOK_SECONDS = 5.0
PASS_SECONDS = 60.0
_SHARE = 0.05
_HINTS_MAX = 10_000
_logger = logging.getLogger("lakebed.service")


class JobLoop:
    """From ``start`` until ``close``."""

    def __init__(
        self,
        catalog: Catalog,
        *,
        pass_seconds: float = PASS_SECONDS,
        runner: Callable[[Callable[[str], Table]], JobRunner] = lambda open_table: JobRunner(
            open_table, threads=_THREADS
        ),
    ) -> None:
        """``runner`` makes what runs the jobs of tables that it opens."""
        self._catalog = catalog
        self._pass_seconds = pass_seconds
        self._runner = runner(lambda root: Table(catalog.opened_at(root)))
        self._hints: queue.Queue[str | None] = queue.Queue(_HINTS_MAX)
        self._open: set[str] = set()  # roots of tables with jobs that have not ended, as of the last look
        self._thread = threading.Thread(target=self._follow, name="lakebed-jobs", daemon=True)
        catalog.on_hint = self.hint

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Take no more jobs; those that can be stopped are given back."""
        self._hints.put(None)
        self._thread.join()
        self._runner.close()

    def hint(self, root: str) -> None:
        """A job of this table was requested."""
        with suppress(queue.Full):  # the next pass finds it
            self._hints.put_nowait(root)

    def _follow(self) -> None:
        next_pass = 0.0
        while True:
            with suppress(queue.Empty):
                root = self._hints.get(timeout=min(LOOK_SECONDS, max(0.0, next_pass - time.monotonic())))
                if root is None:
                    return
                self._look(root)
                continue
            for root in tuple(self._open):
                self._look(root)
            if time.monotonic() >= next_pass:
                began = time.monotonic()
                if not self._pass():
                    return
                took = time.monotonic() - began
                next_pass = time.monotonic() + max(self._pass_seconds, took * (1 / _SHARE - 1))

    def _pass(self) -> bool:
        """Look at all tables; False if it shall end. What is requested meanwhile comes first."""
        try:
            found = {root for roots in self._catalog.tables().values() for root in roots}
        except LakebedError as error:
            _logger.warning("the tables can't be listed, so no jobs are looked for: %s", error)
            return True
        for root in sorted(found):
            with suppress(queue.Empty):
                while True:
                    hinted = self._hints.get_nowait()
                    if hinted is None:
                        return False
                    self._look(hinted)
            self._look(root)
        return True

    def _look(self, root: str) -> None:
        try:
            log = self._catalog.logs.open(root)
            snapshot = log.refresh()
            is_open = any(not job.has_ended for job in jobs_of(snapshot))
            (self._open.add if is_open else self._open.discard)(root)
            if due_jobs(snapshot, log.now_ms()):
                self._runner.look(root)
        except LakebedError as error:  # the table's trouble alone
            self._open.discard(root)
            _logger.debug("no jobs of %s are looked for: %s", root, error)
        except Exception:
            self._open.discard(root)
            _logger.exception("looking for jobs of %s failed", root)
