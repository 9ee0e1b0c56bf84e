"""All tables of the service at a glance, for answers about many of them: renewed while requests come, and kept in memory.

1. While requests come, a thread passes over the tables every ``PASS_SECONDS``, or less often: it takes at most a fifth of the
   time (``ui.looking``). If nobody asks for a minute, it sleeps.
2. A pass asks the logs of those that are due for a newer version: one request to the store for each. A table that is worked on,
   or has a job that has not ended, is due at each pass; another one after a tenth of the time for which nothing came to it, a
   minute at most. Only of a new version, or when a time has come, is the planner asked (``surveyed``). What is wrong with a table
   is looked up at most once a minute (``health.glance``): that lists its files, too, every ten minutes if it is quiet.
3. Which tables there are is listed every ``LIST_SECONDS``, by this or by what looks for jobs. A table whose log was not read yet
   is counted as ``unseen``, so an answer in the first seconds says what it lacks.
4. What this service was asked for is seen at once: tables with a hint are looked at before the next answer.

So an answer about all tables is up to a minute old where other processes commit. What a table's own routes say is the newest.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from lakebed.discovery.looks import pause_seconds
from lakebed.errors import LakebedError, TableNotFound
from lakebed.fleet.membership import FOLDER, Worker, workers_of
from lakebed.health.glance import Glance
from lakebed.health.runs import Runs
from lakebed.service.catalog import Catalog
from lakebed.service.surveyed import Surveyed, surveyed
from lakebed.ui.looking import Looking

PASS_SECONDS = 2.0
LIST_SECONDS = 60.0
LOOK_SECONDS_MAX = 60.0
THREADS = 8
_WAIT_SECONDS = 5.0
_ERROR_MAX = 1_000
_logger = logging.getLogger("lakebed.service")


@dataclass(slots=True)
class Member:
    """A table that was listed. ``seen``: what is known of it, None before the first look; ``looked_ms``: when that was."""

    name: str
    root: str
    glance: Glance
    seen: Surveyed | None = None
    looked_ms: int = 0
    due: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The tables whose logs were read, by name; the workers of fleets; why tables can't be listed, "" if they can."""

    tables: tuple[tuple[Member, Surveyed], ...]
    workers: Mapping[str, Worker]
    unseen: int
    error: str

    @property
    def looked_ms(self) -> int | None:
        """When the table was looked at that was looked at longest ago; None if none was."""
        return min((member.looked_ms for member, _ in self.tables), default=None)


class Surveyor:
    """Follows the tables of a catalog, from ``start`` until ``close``. Safe to use from several threads."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._members: dict[str, Member] = {}
        self._runs = Runs()
        self._workers: dict[str, Worker] = {}
        self._hints: set[str] = set()
        self._lock = threading.Lock()  # of the hints
        self._has_new = False
        self._error = ""
        self._looking: Looking[int] = Looking("survey", PASS_SECONDS, self._pass)

    def start(self) -> None:
        self._looking.start()

    def close(self) -> None:
        self._looking.close()

    def hint(self, root: str) -> None:
        """A caller has just changed this table through the service: look at it before the next answer."""
        with self._lock:
            self._hints.add(root)

    def survey(self) -> Survey:
        """What is known of all tables; waits some seconds for the first look at them, or the first after a sleep."""
        self._looking.seen(time.monotonic() + _WAIT_SECONDS)
        with self._lock:
            hints, self._hints = self._hints, set()
        for root in hints:
            member = self._members.get(root)
            if member is None:
                self._has_new = True  # the next pass lists
            else:
                self._look(member)
        members = list(self._members.values())
        known = [(member, seen) for member in members if (seen := member.seen) is not None]
        known.sort(key=lambda each: (each[0].name, each[0].root))
        return Survey(tables=tuple(known), workers=self._workers, unseen=len(members) - len(known), error=self._error)

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _pass(self, is_due: bool) -> int:
        """Look at the tables that are due; returns how many there are in all."""
        try:
            self._list()
            self._error = ""
        except Exception as error:  # those that are known are looked at; the next pass tries again
            if not isinstance(error, LakebedError):
                _logger.exception("listing the tables failed")
            self._error = str(error)[:_ERROR_MAX] or type(error).__name__
        now = time.monotonic()
        due = [member for member in list(self._members.values()) if member.due <= now]
        with ThreadPoolExecutor(THREADS, thread_name_prefix="lakebed-survey") as pool:
            list(pool.map(self._look, due))
        self._workers = self._fleet()
        return len(self._members)

    def _list(self) -> None:
        seconds, self._has_new = 0.0 if self._has_new else LIST_SECONDS, False
        found = {root: name for name, roots in self._catalog.tables_lately(seconds).items() for root in roots}
        self._members = {
            root: self._members.get(root) or Member(name, root, Glance(root, runs=self._runs))
            for root, name in found.items()
        }

    def _look(self, member: Member) -> None:
        log = self._catalog.logs.open(member.root)
        last, now_ms = member.seen, log.now_ms()
        try:
            snapshot = log.refresh()
            is_same = last is not None and (last.table_id, last.version) == (snapshot.metadata.id, snapshot.version)
            is_due = last is not None and last.due_ms is not None and last.due_ms <= now_ms
            if last is None or last.error or not is_same or is_due:
                last = surveyed(snapshot, now_ms, log.statistics)
            found = member.glance.look(snapshot, now_ms).findings
            last = last if last.findings == found else replace(last, findings=found)
        except TableNotFound:
            self._members.pop(member.root, None)
            self._catalog.forget(member.root)
            return
        except Exception as error:  # the table's trouble alone
            if not isinstance(error, LakebedError):
                _logger.exception("looking at %s failed", member.root)
            last = replace(last or Surveyed(), error=str(error)[:_ERROR_MAX] or type(error).__name__)
        idle_seconds = max(0.0, (now_ms - last.committed_ms) / 1000)
        pause = 0.0 if last.is_busy else min(LOOK_SECONDS_MAX, pause_seconds(idle_seconds))
        member.seen, member.looked_ms, member.due = last, now_ms, time.monotonic() + pause

    def _fleet(self) -> dict[str, Worker]:
        found: dict[str, Worker] = {}
        for root in self._catalog.roots:
            place = f"{root.rstrip('/')}/{FOLDER}"
            try:
                found |= workers_of(self._catalog.logs.open(place).refresh())
            except TableNotFound:  # there is no fleet
                self._catalog.logs.forget(place)
            except LakebedError as error:
                _logger.debug("the workers of %s are not known: %s", root, error)
                found |= self._workers
        return found
