"""All tables of a page: those of its command line, and hundreds of a database, from looks that cost little.

1. One thread looks at all tables, some at a time, while the overview is asked for: each log is asked for a newer version, and of
   a new one the figures are taken that a snapshot tells. What is wrong with it is looked up once a minute (``health.sampler``).
   Which tables there are is looked up every ``LIST_SECONDS``.
2. A table whose own page is asked for is watched as any table is (``watch``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from lakebed.coordination.failing import parked_of
from lakebed.coordination.table_figures import figures_of
from lakebed.discovery import tables_below
from lakebed.errors import LakebedError
from lakebed.health.finding import Finding, Severity
from lakebed.health.run_report import DatabaseRuns, Runs, waiting_findings
from lakebed.health.sampler import Glance, Seen
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.positions.point_log import PointLog
from lakebed.positions.resnapshots import recent
from lakebed.positions.verified import described, verified_of
from lakebed.storage.data_files import open_part_storage
from lakebed.ui import documents, watch
from lakebed.ui.documents import Live, blotted, cut, utf8
from lakebed.ui.watch import Answer, LastWatched, Looking, Watched
from lakebed.version import __version__

LIST_SECONDS = 10.0
_THREADS = 8
_LEFT_OUT_MAX = 100
_ERROR_MAX = 1_000
_logger = logging.getLogger("lakebed.ui")


@dataclass(frozen=True, slots=True)
class _DatabaseSeen:
    """The result of a look. ``point``: the newest one, None if there is none; ``findings``: of the database as a whole."""

    tables: list[dict[str, Any]]
    point: dict[str, Any] | None = None
    findings: tuple[Finding, ...] = ()


@dataclass(slots=True)
class _Member:
    name: str
    root: str
    path: str
    """The root as the page names it, without credentials."""
    log: TableLog
    glance: Glance
    version: int = -1
    seen: Seen = field(default_factory=Seen)
    summary: dict[str, Any] = field(default_factory=dict)


class Members:
    """The tables of one database, from ``start`` until ``close``."""

    def __init__(self, path: str, interval_seconds: float, live: Live | None = None) -> None:
        """``path``: of the database. ``live``: what this process knows of its tables."""
        self.path = path
        self._live = live
        self._members: dict[str, _Member] = {}
        self._listed_at = -LIST_SECONDS
        self._watched = LastWatched(interval_seconds, live)
        self._points = PointLog.of(path)
        self._runs = Runs()
        self._looking: Looking[_DatabaseSeen] = Looking(path, interval_seconds, self._look)

    def start(self) -> None:
        self._looking.start()

    def close(self) -> None:
        self._looking.close()
        self._watched.close()

    def ask(self) -> None:
        """Look, and keep looking for a while."""
        self._looking.ask()

    def seen(self, deadline: float) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """A row for each table, and what is to say of all together; waits for the first look until ``deadline``."""
        seen, is_late = self._looking.seen(deadline)
        rows = [{**each, "is_late": is_late} for each in (seen.tables if seen else ())]
        parked = sum(1 for each in rows if each.get("is_parked"))
        whole = {"path": utf8(blotted(self.path)), "tables": len(rows), "parked": parked}
        whole |= documents.findings(self._newest_findings(seen))
        return rows, whole | {"point": seen.point if seen else None}

    def _newest_findings(self, seen: _DatabaseSeen | None) -> tuple[Finding, ...]:
        """Those of the look, unless the database's pipeline runs in this process: that knows without asking the store."""
        here = self._runs.of_database_here(self.path)
        if here is None:
            return seen.findings if seen else ()
        return self._found_by(here)

    def find(self, path: str) -> Watched | None:
        """The table of this path, watched from now on."""
        member = self._members.get(path)
        return None if member is None else self._watched.find(member.root, path)

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _look(self, is_due: bool) -> _DatabaseSeen:
        try:
            self._list()
        except Exception as error:  # what is known is shown; the next look tries again
            if not isinstance(error, LakebedError):
                _logger.warning("%s: %s", self.path, error, exc_info=True)
            path = utf8(blotted(self.path))
            return _DatabaseSeen([*(each.summary for each in self._members.values()), _broken(path, path, error)])
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="lakebed-ui") as pool:
            return _DatabaseSeen(list(pool.map(self._summary, self._members.values())), self._point(), self._findings())

    def _findings(self) -> tuple[Finding, ...]:
        with suppress(LakebedError):  # the tables say whether the store answers
            return self._found_by(self._runs.of_database(self.path))
        return ()

    def _found_by(self, runs: DatabaseRuns) -> tuple[Finding, ...]:
        known = {member.name for member in list(self._members.values())}  # a table's own row says that it waits
        return (*runs.findings, *waiting_findings(one for name, one in runs.waiting.items() if name not in known))

    def _point(self) -> dict[str, Any] | None:
        with suppress(LakebedError):  # the tables are shown without it
            point = self._points.newest()
            if point is not None:
                left_out = {cut(name): cut(why) for name, why in sorted(point.left_out.items())[:_LEFT_OUT_MAX]}
                return {"number": point.number, "time_ms": point.time_ms, "left_out": left_out}
        return None

    def _list(self) -> None:
        if self._members and time.monotonic() - self._listed_at < LIST_SECONDS:
            return
        found = tables_below(self.path)
        self._listed_at = time.monotonic()
        known = {member.root: member for member in self._members.values()}
        members = [known.get(root) or self._opened(name, root) for name, root in found.items()]
        self._members = {member.path: member for member in members}

    def _opened(self, name: str, root: str) -> _Member:
        path = utf8(blotted(root))
        return _Member(name, root, path, TableLog(open_store(root)), Glance(root, path, runs=self._runs, alone=False))

    def _summary(self, member: _Member) -> dict[str, Any]:
        try:
            snapshot = member.log.refresh()
            seen = member.glance.look(snapshot, member.log.now_ms())
            is_same = (snapshot.version, seen) == (member.version, member.seen)
            if not is_same or not member.summary or member.summary.get("resnapshot"):
                member.seen, member.version = seen, snapshot.version
                member.summary = _row(member, snapshot)
        except Exception as error:  # an error of one table must not stop the page
            if not isinstance(error, LakebedError):
                _logger.warning("%s: %s", member.name, error, exc_info=True)
            member.summary, member.version = _broken(member.name, member.path, error), -1
        live = self._live.of(member.root) if self._live else None
        return member.summary | {"unread": sum(each["records"] for each in live["lag"]) if live else None}


def _row(member: _Member, snapshot: Snapshot) -> dict[str, Any]:
    figures, compared = figures_of(snapshot), verified_of(snapshot)
    now_ms = member.log.now_ms()
    return documents.findings(member.seen.findings) | {
        "path": member.path,
        "name": member.name,
        "error": None,
        "is_parked": parked_of(snapshot) is not None,
        "resnapshot": recent(snapshot, now_ms),
        "verified": described(compared) if compared else "",
        "verified_ms": compared.time_ms if compared else None,
        "figures": {
            "version": snapshot.version,
            "committed_ms": snapshot.timestamp_ms,
            "rows": figures.rows,
            "bytes": figures.bytes,
            "parts": figures.parts,
            "tail_rows": figures.tail_rows,
        },
    }


def _broken(name: str, path: str, error: Exception) -> dict[str, Any]:
    text = str(error) if isinstance(error, LakebedError) else f"unexpected {type(error).__name__}: {error}"
    text = cut(blotted(text), _ERROR_MAX)
    finding = Finding(
        severity=Severity.CRITICAL, check="look", where="", what=text, remedy=f"lakebed verify {path} --self"
    )
    return documents.findings((finding,)) | {"path": path, "name": name, "error": text, "figures": None, "unread": None}


# -- All tables of a page: those of its command line, and those of its databases -------------------------------------------


class Tables:
    """The tables by their names on the page."""

    def __init__(
        self, paths: Sequence[str], interval_seconds: float, live: Live | None = None, databases: Sequence[str] = ()
    ) -> None:
        """``databases``: paths with tables below. Raises InvalidInput for a path that can't be one."""
        self._watched: dict[str, Watched] = {}
        self._databases = [Members(path, interval_seconds, live) for path in dict.fromkeys(databases)]
        for root in dict.fromkeys(open_part_storage(path).root for path in paths):
            name = utf8(blotted(root))
            while name in self._watched:  # they differ only in credentials
                name += " (another)"
            self._watched[name] = Watched(root, name, interval_seconds, live)

    @property
    def _all(self) -> list[Watched | Members]:
        return [*self._watched.values(), *self._databases]

    def start(self) -> None:
        for each in self._all:
            each.start()

    def close(self) -> None:
        for each in self._all:
            each.close()

    def find(self, name: str) -> Watched | None:
        found = self._watched.get(name)
        return found or next((one for each in self._databases if (one := each.find(name)) is not None), None)

    def overview(self) -> Answer:
        """The summaries of all tables; a table without a look so far has no figures."""
        deadline = time.monotonic() + watch.WAIT_SECONDS
        for each in self._all:
            each.ask()
        summary = []
        for watched in self._watched.values():
            seen, is_late = watched.seen(deadline)
            summary.append({**(seen.summary if seen else watched.unseen()), "is_late": is_late})
        databases = []
        for database in self._databases:
            rows, whole = database.seen(deadline)
            summary += rows
            databases.append(whole)
        return Answer({"lakebed": __version__, "tables": summary, "databases": databases})
