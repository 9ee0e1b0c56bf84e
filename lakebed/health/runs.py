"""What running pipelines say of a table or a database (``run_report``), for every place that shows one.

1. A report lies beside the table, or beside the database that the table is in: its folder is then two folders above the table's.
2. Reports of a database are read every ``DATABASE_SECONDS`` at most, those of a table every ``TABLE_SECONDS``: a list of one
   folder each. In between the earlier ones are used.
3. What a database's pipeline says of all of its tables, and a full disk, is told once where the database is shown as a whole,
   and of each table elsewhere. A topic that is not read is told of its own table in both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from lakebed.discovery.tables import database_of
from lakebed.errors import LakebedError
from lakebed.health.file_checks import look_at_disk
from lakebed.health.finding import Finding, critical, warning
from lakebed.health.run_report import (
    Reports,
    RunReport,
    Waiting,
    left_out_findings,
    reports_of,
    run_findings,
    waiting_of,
)
from lakebed.log.stores import open_store
from lakebed.storage.object_store import open_objects
from lakebed.storage.roots import S3Root, parse_root

DATABASE_SECONDS, TABLE_SECONDS = 10.0, 60.0


@dataclass(frozen=True, slots=True)
class DatabaseRuns:
    """``findings``: what is wrong with a database as a whole; ``waiting``: the topics that its pipeline does not read."""

    findings: tuple[Finding, ...]
    waiting: Mapping[str, Waiting]


said_here: dict[str, RunReport] = {}
"""The reports of the runs of this process as they are now, by the path of their table or database: no store is asked for them."""


class Runs:
    """Reads reports now and then. Safe to use from several threads: at worst two of them read the same folder."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._read: dict[str, tuple[float, Reports]] = {}

    def of_database(self, path: str) -> DatabaseRuns:
        """What is wrong with a database, but for its tables. Raises StoreUnavailable."""
        reports, now_ms = self._reports(path, DATABASE_SECONDS), int(self._clock() * 1000)
        return _of_database(reports, path, now_ms)

    def refused_writes(self, path: str) -> Iterator[Finding]:
        """Whether the store refuses what the runs of a database write: they can't say so there. Call ``of_database`` first."""
        _, (reports, *_) = self._read.get(path, (0.0, Reports()))
        place = parse_root(path)
        # A silent run is asked for too: what it writes may be refused for so long.
        newest = next((one for one in reports if one.state != "failed"), None)
        if (
            newest is not None
            and isinstance(place, S3Root)
            and (error := open_objects(place).refused_write(newest.name))
        ):
            what = f"the store answers reads and refuses writes: {error}"
            yield critical("store", "", what, "look at its room; pipelines go on by themselves")

    def of_database_here(self, path: str) -> DatabaseRuns | None:
        """The same without asking a store: what this process says now, and others said last; None if none runs here."""
        here = said_here.get(str(parse_root(path)))
        if here is None:
            return None
        _, last = self._read.get(path, (0.0, Reports()))
        reports = last._replace(reports=[here, *(one for one in last.reports if one.name != here.name)])
        return _of_database(reports, path, int(self._clock() * 1000))

    def of_table(self, root: str, *, is_fed: bool, alone: bool) -> Iterator[Finding]:
        """What is wrong with a table's pipelines. Raises StoreUnavailable if the table's own reports can't be read.

        Args:
            root: Of the table.
            is_fed: Whether it is a topic's, so that the pipeline of the database around it reads into it.
            alone: Whether the database is not shown as a whole beside it.
        """
        now_ms = int(self._clock() * 1000)
        if alone:
            yield from look_at_disk(root)
        own = self._reports(root, TABLE_SECONDS)
        yield from (*run_findings(own.reports, root, now_ms), *left_out_findings(own, root))
        around = database_of(root) if is_fed else None
        if around is None:
            return
        database, name = around
        try:
            reports = self._reports(database, DATABASE_SECONDS)
        except LakebedError:  # whoever may read the table may not read what is around it
            return
        if alone:
            yield from (*run_findings(reports.reports, database, now_ms), *left_out_findings(reports, database))
        if (waits := waiting_of(reports.reports, now_ms).get(name)) is not None:
            yield from waiting_findings([waits])

    def _reports(self, folder: str, seconds: float) -> Reports:
        now, last = self._clock(), self._read.get(folder)
        if last is None or not 0 <= now - last[0] < seconds:
            last = self._read[folder] = now, reports_of(open_store(folder))
        return last[1]


def _of_database(reports: Reports, path: str, now_ms: int) -> DatabaseRuns:
    found = *look_at_disk(path), *run_findings(reports.reports, path, now_ms), *left_out_findings(reports, path)
    return DatabaseRuns(found, waiting_of(reports.reports, now_ms))


def findings_of(roots: Collection[str]) -> list[Finding]:
    """What is wrong with the pipelines of tables, and with those of the databases that these are in, each told once.

    ``where`` begins with the path of the table or the database.
    """
    runs, found = Runs(), list[Finding]()
    names: dict[str, set[str]] = {}
    for root in roots:
        with suppress(LakebedError):  # it is told of the table itself that its store does not answer
            found += _at(root, runs.of_table(root, is_fed=True, alone=False))
        if (around := database_of(root)) is not None:
            names.setdefault(around[0], set()).add(around[1])
    for database, known in names.items():
        with suppress(LakebedError):  # whoever may read the tables may not read what is around them
            seen = runs.of_database(database)
            no_tables = waiting_findings(one for name, one in seen.waiting.items() if name not in known)
            found += _at(database, (*seen.findings, *no_tables))
    return found


def _at(root: str, findings: Iterable[Finding]) -> Iterator[Finding]:
    return (replace(one, where=f"{root} {one.where}".strip()) for one in findings)


def waiting_findings(waiting: Iterable[Waiting]) -> Iterator[Finding]:
    """The topics that can't be read or become tables now. One of which no record came yet is no finding."""
    for one in waiting:
        if one.error:
            remedy = "remove the cause; it is tried again by itself"
            yield warning("waiting", one.name, f"its pipeline waits with it: {one.error}", remedy)


def said_by(report: RunReport, path: str) -> Iterator[Finding]:
    """What a run that goes on says of the database at ``path``."""
    yield from run_findings([report], path, report.at_ms)
    yield from waiting_findings(report.tables)
