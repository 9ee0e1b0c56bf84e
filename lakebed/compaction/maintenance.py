"""The maintenance of tables in a process: of one table with a handle (``Maintenance``), or of many (``TableMaintainers``).

``table_maintainer`` says what is done for a table, and draws the states; ``scheduler`` runs it. Tables share nothing but the
threads: an error, or a store that does not answer, is that table's trouble alone. The log is all that maintenance reads, so it
does not depend on the writers. For one table a streaming query can take the place of the thread that settles
(``maintenance_query``). It costs more, since Spark does more for a batch than a settle costs (ADR 12).
"""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import TYPE_CHECKING

from lakebed import events
from lakebed.compaction.merge_runner import CLOSE_SECONDS_MAX
from lakebed.compaction.scheduler import ScheduledJob
from lakebed.compaction.table_maintainer import Pools, TableDuties, TableMaintainer
from lakebed.errors import Cancelled, LakebedError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

ONE_TABLE_LOOK_SECONDS = (0.02, 0.5)
"""The first and the longest pause between two looks at the log of a table that has a maintenance of its own."""
AGAIN_SECONDS = 600.0
"""When the maintenance of one table among many begins again that an error has ended."""
_DRAIN_LOOK_SECONDS = 0.1
LOOK_SECONDS = (1.0, 60.0)
"""Those of one table among many. Batches of this process need no look."""


class TableMaintainers:
    """The maintenance of many tables, by a few threads. Safe to use from several threads.

    A table that is idle has no thread and no DuckDB database. While one table fails, or its store does not answer, others go on.
    """

    def __init__(
        self,
        threads: int | None = None,
        look_seconds: tuple[float, float] = LOOK_SECONDS,
        merges: int | None = None,
        shares: Mapping[str, float] | None = None,
    ) -> None:
        """``threads``: those that settle, by default 4; ``merges``: those that merge, by default half of that, or the processors
        if there are fewer. Some more clean up and extend leases. ``shares``: of pools of tables in them, 1 for any other.
        """
        _raise_limit_of_files()
        threads = threads or 4
        merges = merges or max(1, min(threads // 2, os.cpu_count() or 1))
        self._pools = Pools(cycles=threads, merges=merges, chores=2, leases=2, shares=shares)
        self._look_seconds = look_seconds
        self._tables: dict[str, TableMaintainer] = {}
        self._changing = threading.Lock()  # one change of the tables at a time; what maintains them does not take it
        self._end_listening = events.listen(self._hear)

    @property
    def tables(self) -> tuple[str, ...]:
        """The paths of the tables."""
        return tuple(self._tables)

    def add(self, duties: TableDuties, until_version: int | None = None) -> None:
        """Maintain a table from now on. One with the same path, such as one whose maintenance has ended, is removed first.

        ``until_version``: as if ``hold_back`` had been called before it begins.
        """
        with self._changing:
            duties.settler.until_version = until_version
            self._begin(duties)

    def remove(self, path: str) -> None:
        """Maintain a table no more: its cycle ends, its merges are cancelled, and their claims released."""
        with self._changing:
            self._stop(path)

    def look(self, path: str) -> None:
        """Let a table's maintenance look at its log at once."""
        if maintained := self._tables.get(path):
            maintained.look()

    def is_at_rest(self, path: str) -> bool:
        """Whether nothing of a table runs, waits or is in trouble, so that its maintenance can end and lose nothing."""
        maintained = self._tables.get(path)
        return maintained is None or maintained.is_at_rest()

    def hold_back(self, path: str, version: int | None) -> None:
        """Settle nothing that was committed after this version, until ``settle_to`` moves the bound. None: there is no bound."""
        if maintained := self._tables.get(path):
            maintained.duties.settler.until_version = version
            maintained.look()

    def settle_to(self, path: str, version: int) -> Future[int | None]:
        """Settle a table exactly up to a version, as soon as a thread is free; what is due later is not settled beyond it.

        Returns the version at which every reader sees what the table was at ``version``; None if there is none
        (``Settler.settle_to``). Its errors are the future's: LakebedError, Cancelled if the table is not maintained any more.
        """
        maintained = self._tables.get(path)
        if maintained is not None:
            return maintained.settle_to(version)
        refused: Future[int | None] = Future()
        refused.set_exception(Cancelled(f"{path} is not maintained here"))
        return refused

    def troubles(self) -> dict[str, LakebedError]:
        """By path, the error for which the maintenance of a table waits or has ended. Tables without one are left out."""
        found = {path: each.trouble for path, each in list(self._tables.items())}
        return {path: error for path, error in found.items() if error is not None}

    def waiting_merges(self) -> dict[str, LakebedError]:
        """By path, the failure of a store or a disk for which the merges of a table wait."""
        found = {path: each.duties.merge_runner.trouble for path, each in list(self._tables.items())}
        return {path: error for path, error in found.items() if error is not None}

    def ended(self) -> frozenset[str]:
        """The paths of tables whose maintenance has ended, for an error that never passes by itself.

        It begins again after ``AGAIN_SECONDS``, or with ``add``.
        """
        return frozenset(path for path, each in list(self._tables.items()) if each.error is not None)

    def parked(self) -> dict[str, frozenset[str]]:
        """By path of a table, those of its parts that are left alone for now, because merges of them failed."""
        found = {path: each.duties.merge_runner.parked() for path, each in list(self._tables.items())}
        return {path: parts for path, parts in found.items() if parts}

    def drain(self, seconds: float, waiting: Callable[[], object] = lambda: None) -> bool:
        """Settle what is in the tails, up to their bounds, for so long at most; returns whether nothing is left.

        ``waiting`` is called again and again meanwhile. A table that is in trouble is left as it is.
        """
        deadline = time.monotonic() + seconds
        asked = [future for each in list(self._tables.values()) if (future := each.settle_the_rest()) is not None]
        while True:
            _, left = wait(asked, max(0.0, min(_DRAIN_LOOK_SECONDS, deadline - time.monotonic())))
            if not left or time.monotonic() >= deadline:
                return not left and not any(each.cancelled() or each.exception() for each in asked)
            waiting()

    def stop(self) -> None:
        """Stop after the cycles that run now. Merges are cancelled, their claims released, and the threads end."""
        self._end_listening()
        with self._changing:
            for each in self._tables.values():
                each.duties.merge_runner.cancel()
            deadline = time.monotonic() + CLOSE_SECONDS_MAX
            for path in list(self._tables):
                self._stop(path, max(0.0, deadline - time.monotonic()))
            self._pools.close(max(0.0, deadline - time.monotonic()))

    def _begin(self, duties: TableDuties) -> None:
        self._stop(duties.path)
        self._tables[duties.path] = maintained = TableMaintainer(
            duties, self._pools, self._look_seconds, on_end=lambda: self._begin_later(maintained), one_of_many=True
        )
        maintained.start()

    def _begin_later(self, ended: TableMaintainer) -> None:
        """After an error that never passes by itself: the table may have been repaired by then."""
        if ended.error is not None:
            self._pools.chores.wake(ScheduledJob(lambda: self._begin_again(ended)), AGAIN_SECONDS)

    def _begin_again(self, ended: TableMaintainer) -> None:
        path = ended.duties.path
        if ended.duties.renewed is None or self._tables.get(path) is not ended:
            return
        try:
            duties = ended.duties.renewed()
        except LakebedError:
            self._begin_later(ended)
            return
        with self._changing:
            if self._tables.get(path) is ended:
                self._begin(duties)

    def _stop(self, path: str, timeout_seconds: float = CLOSE_SECONDS_MAX) -> None:
        maintained = self._tables.pop(path, None)
        if maintained is not None:
            maintained.stop(timeout_seconds)

    def _hear(self, event: events.Event) -> None:
        if isinstance(event, events.BatchCommitted) and (maintained := self._tables.get(event.table)):
            maintained.look()


class Maintenance:
    """What ``Table.maintain`` returns: a handle to stop the maintenance, wait for it and see its state."""

    query: StreamingQuery | None = None
    """The streaming query that runs the cycles; None if a thread does. After a failure it is another one."""

    def __init__(
        self, duties: TableDuties, look_seconds: tuple[float, float] = ONE_TABLE_LOOK_SECONDS, cycles: int = 1
    ) -> None:
        """``cycles``: the threads that run them; with none, whoever calls ``act`` of the maintainer does."""
        self._pools = Pools(cycles=cycles, merges=1, chores=2, leases=1)
        self._maintained = TableMaintainer(duties, self._pools, look_seconds, on_end=self._close)
        self._end_listening = events.listen(self._hear)
        self._maintained.start()

    @property
    def isActive(self) -> bool:
        """Whether it runs or will start again."""
        return not self._maintained.ended.is_set()

    @property
    def trouble(self) -> LakebedError | None:
        """The error for which it waits or has ended; None while it runs, and after ``stop``."""
        return self._maintained.trouble

    def exception(self) -> LakebedError | None:
        """The error that ended it; None while it runs or waits, and after ``stop``."""
        return self._maintained.error

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait for the end. With ``timeout`` (seconds), returns whether it has ended by then. Raises the error that ended it."""
        has_ended = self._maintained.ended.wait(timeout)
        if self._maintained.error is not None:
            raise self._maintained.error
        return None if timeout is None else has_ended

    def stop(self) -> None:
        """Stop after the cycle that runs now. Merges are cancelled, and their claims released."""
        self._maintained.stop()

    def _close(self) -> None:
        self._end_listening()
        self._pools.close(CLOSE_SECONDS_MAX)

    def _hear(self, event: events.Event) -> None:
        if isinstance(event, events.BatchCommitted) and event.table == self._maintained.duties.path:
            self._maintained.look()


def _raise_limit_of_files() -> None:
    """A table has up to two locks, open files, and many systems allow 1,024 of them unless a process asks for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # the system allows no more
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
