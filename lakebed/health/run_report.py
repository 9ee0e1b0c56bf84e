"""What a running pipeline says of itself beside its table or database, and the findings that every other process makes of it.

A log has what became of a table. Whether its pipeline runs, and what it waits for, only the pipeline knows: a broker that does
not answer, a full disk, a topic that can't become a table. So ``lakebed run`` keeps a small file, a *report*:

    _lakebed/streams/runs/<host>-<pid>.json    (no cleanup looks there)

1. It writes the report when something changes, ``_PAUSE_SECONDS`` apart at least, and otherwise every ``BEAT_SECONDS``: $0.007 a
   day in S3. What can't be written is tried again with the next beat.
2. When it was stopped in order, it removes the report, after a put that is under way. It waits ``ENDING_SECONDS`` for its store
   at most; if that is not enough, the log says that the report is left. When it failed, it leaves one that says why.
3. A report that nobody has renewed for ``SILENT_SECONDS`` is silent: the run was killed, or can't write. Nobody decides anything
   by that; clocks that differ only make a report look silent.
4. A run removes reports of others that failed or are silent, and whose work it does.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import quote

import orjson

from lakebed.discovery import database_of
from lakebed.errors import LakebedError
from lakebed.health.file_checks import look_at_disk
from lakebed.health.finding import Finding, critical, warning
from lakebed.log.entry_values import made
from lakebed.log.stores import LogStore, open_store
from lakebed.storage.object_store import open_objects
from lakebed.storage.roots import S3Root, parse_root

RUNS_FOLDER = "_lakebed/streams/runs"
BEAT_SECONDS = 60.0
_PAUSE_SECONDS = 2.0
SILENT_SECONDS = 180.0
ENDING_SECONDS = 10.0
REPORTS_MAX = 100
_TABLES_MAX = 200
_TEXT_MAX = 1_000
_logger = logging.getLogger("lakebed.run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A topic that is not read."""

    name: str
    state: str  # waiting, or new (it has no table yet)
    error: str = ""


@dataclass(frozen=True, slots=True)
class Down:
    """Something that a run needs and that does not answer: kafka, connector, registry, store, or disk."""

    name: str
    error: str
    since_ms: int

    @property
    def since(self) -> str:
        """When it stopped answering, for people."""
        return _time(self.since_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """How a run is. Times are epoch milliseconds of its clock.

    Attributes:
        roles: ingest, maintain.
        state: running, trying again, or failed.
        errors: What it waits for, or why it failed.
        since_ms: When that began.
        tables: Topics that wait, at most ``_TABLES_MAX`` of ``waiting``.
        down: What does not answer; a run may go on without it for a while.
        stuck: What its threads have waited for so long that it is no pause, a sentence each.
    """

    host: str
    pid: int
    roles: tuple[str, ...]
    state: str = "running"
    errors: tuple[str, ...] = ()
    since_ms: int = 0
    at_ms: int = 0
    waiting: int = 0
    tables: tuple[Waiting, ...] = ()
    down: tuple[Down, ...] = ()
    stuck: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of its file. A host may have any name, also one that is no name of a file."""
        return f"{RUNS_FOLDER}/{quote(self.host.encode('utf-8', 'replace'), safe='')}-{self.pid}.json"

    @property
    def who(self) -> str:
        """The process, for people."""
        return f"the pipeline on {self.host} (process {self.pid})"

    def is_silent(self, now_ms: int) -> bool:
        """Whether nobody has renewed it for long."""
        return now_ms - self.at_ms > SILENT_SECONDS * 1000

    def is_over(self, now_ms: int) -> bool:
        """Whether its run has ended, as far as is known."""
        return self.state == "failed" or self.is_silent(now_ms)

    def to_json(self) -> bytes:
        """The file. Errors may name files whose names are not UTF-8."""
        return json.dumps(asdict(self), ensure_ascii=False).encode("utf-8", "replace")

    @classmethod
    def of_json(cls, data: bytes) -> RunReport | None:
        """The report in a file; None if it is none. What another version added is left out."""
        try:
            return made(cls, orjson.loads(data))
        except (ValueError, TypeError, KeyError, RecursionError):
            return None


class Reports(NamedTuple):
    """The reports beside a table or a database, the newest first. ``left_out``: how many files were too many to be read;
    ``empty``: files without a report, which are left of looks (``S3Objects.refused_write``).
    """

    reports: Sequence[RunReport] = ()
    left_out: int = 0
    empty: Sequence[str] = ()


def reports_of(store: LogStore) -> Reports:
    """Read at most ``REPORTS_MAX`` files, whose names do not say how old they are. Raises StoreUnavailable."""
    found, empty, names = [], [], store.list_from(RUNS_FOLDER, "")
    for name in names[:REPORTS_MAX]:
        try:
            data = store.read(f"{RUNS_FOLDER}/{name}")
        except FileNotFoundError:  # its run has ended
            continue
        if not data:
            empty.append(f"{RUNS_FOLDER}/{name}")
        report = RunReport.of_json(data)
        if report is not None and report.name == f"{RUNS_FOLDER}/{name}":
            found.append(report)
    return Reports(sorted(found, key=lambda one: -one.at_ms), max(0, len(names) - REPORTS_MAX), empty)


def run_findings(reports: Collection[RunReport], path: str, now_ms: int) -> Iterator[Finding]:
    """What is wrong with the pipelines of these reports; those that failed or are silent only if no other does their work."""
    alive = [one for one in reports if not one.is_over(now_ms)]
    done = {role for one in alive for role in one.roles}
    for one in alive:
        for each in one.down:
            what = f"{one.who} needs what is down: {each.name} since {each.since}: {each.error}"
            yield critical(each.name, one.host, what, "see that it answers again; the pipeline goes on by itself")
        known = {each.error for each in one.down}
        if one.state != "running" and (errors := [error for error in one.errors if error not in known]):
            yield critical(
                "run",
                one.host,
                f"{one.who} has not been able to go on since {_time(one.since_ms)}: {'; '.join(errors)}",
                "remove the cause; it tries again by itself",
            )
        if one.stuck and not one.down:
            what = f"{one.who} makes no progress: {'; '.join(one.stuck)}"
            yield warning("run", one.host, what, "see why that takes so long; what fails is tried again")
    for one in reports:
        if one.is_over(now_ms) and not done.issuperset(one.roles):
            done |= set(one.roles)
            what = f"{one.who} failed at {_time(one.since_ms)}: {'; '.join(one.errors)}"
            if one.state != "failed":
                what = (
                    f"{one.who} has said nothing since {_time(one.at_ms)}: it was killed, or can't write below {path}"
                )
            yield critical("run", one.host, what, "start it again (lakebed run), when the cause is removed")


def left_out_findings(reports: Reports, path: str) -> Iterator[Finding]:
    """That there are more reports than are read."""
    if reports.left_out:
        what = f"{reports.left_out:,} reports of pipelines are not read, beside {REPORTS_MAX} that are"
        yield warning("run", RUNS_FOLDER, what, f"delete files of pipelines that have ended below {path}/{RUNS_FOLDER}")


def waiting_of(reports: Collection[RunReport], now_ms: int) -> dict[str, Waiting]:
    """The topics that running pipelines do not read, by the name of the table or the topic."""
    return {each.name: each for one in reversed(list(reports)) if not one.is_over(now_ms) for each in one.tables}


@dataclass(slots=True)
class Reporter:
    """Keeps the report of one run. One thread may note while another one writes."""

    store: LogStore
    report: RunReport
    clock: Callable[[], float] = time.time
    _written: RunReport | None = None
    _tried_at: float = field(default=float("-inf"))
    _is_removed: bool = False
    _left: str = ""
    _putting: threading.Lock = field(default_factory=threading.Lock)

    def say(
        self,
        state: str,
        errors: Sequence[str],
        waiting: Sequence[Waiting] = (),
        down: Sequence[Down] = (),
        stuck: Sequence[str] = (),
    ) -> None:
        """How the run is now, noted and written. Never raises."""
        self.note(state, errors, waiting, down, stuck)
        self.write()

    def note(
        self,
        state: str,
        errors: Sequence[str],
        waiting: Sequence[Waiting] = (),
        down: Sequence[Down] = (),
        stuck: Sequence[str] = (),
    ) -> None:
        """How the run is now. ``write`` writes it."""
        now = self.clock()
        now_ms = int(now * 1000)
        since_ms = self.report.since_ms if self.report.state == state else now_ms
        self.report = replace(
            self.report,
            state=state,
            errors=tuple(error[:_TEXT_MAX] for error in errors),
            since_ms=since_ms,
            at_ms=now_ms,
            waiting=len(waiting),
            tables=tuple(replace(one, error=one.error[:_TEXT_MAX]) for one in waiting[:_TABLES_MAX]),
            down=tuple(replace(one, error=one.error[:_TEXT_MAX]) for one in down),
            stuck=tuple(one[:_TEXT_MAX] for one in stuck),
        )

    def write(self) -> None:
        """Write what was noted, if it is time. Never raises: what can't be written now is tried again later."""
        report = self.report  # another thread may note the next one meanwhile
        if not report.at_ms:
            return
        now, now_ms, state = self.clock(), report.at_ms, report.state
        is_same = self._written is not None and replace(self._written, at_ms=now_ms) == report
        pause = BEAT_SECONDS if is_same else _PAUSE_SECONDS
        if state != "failed" and 0 <= now - self._tried_at < pause:  # a clock that was set back makes no pause
            return
        self._tried_at = now
        try:
            with self._turn():
                if self._is_removed:
                    return
                self.store.put(report.name, report.to_json())
            self._written = report
            read = reports_of(self.store)
            for name in read.empty:
                self.store.delete(name)
            for other in read.reports:
                is_done_here = set(other.roles) <= set(report.roles)
                if other.name != report.name and other.is_over(now_ms) and is_done_here and state != "failed":
                    self.store.delete(other.name)
        except (LakebedError, OSError):
            self._written = None

    def remove(self) -> None:
        """The run was stopped in order. Never raises, and waits ``ENDING_SECONDS`` at most."""
        self._is_removed = True
        self._left = f"its store has not answered for {ENDING_SECONDS:.0f} s"
        removal = threading.Thread(target=self._delete, name="lakebed-report", daemon=True)
        removal.start()
        removal.join(ENDING_SECONDS)
        if self._left:
            _logger.warning(
                "the run has ended, and its report %s is left, because %s: lakebed status will say that this run is silent, until"
                " the next run removes the report",
                self.report.name,
                self._left,
            )

    def _delete(self) -> None:
        try:
            with self._putting:  # a put that is under way would bring the report back
                self.store.delete(self.report.name)
            self._left = ""
        except (LakebedError, OSError) as error:
            self._left = str(error)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait until no other thread puts the report, so that the last one stays; for ``ENDING_SECONDS`` at most."""
        has_turn = self._putting.acquire(timeout=ENDING_SECONDS)
        try:
            yield
        finally:
            if has_turn:
                self._putting.release()


def _time(epoch_ms: int) -> str:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


# -- What running pipelines say of a table or a database, for every place that shows one -----------------------------------
#
# 1. A report lies beside the table, or beside the database that the table is in: its folder is then two folders above the
#    table's.
# 2. Reports of a database are read every ``DATABASE_SECONDS`` at most, those of a table every ``TABLE_SECONDS``: a list of one
#    folder each. In between the earlier ones are used.
# 3. What a database's pipeline says of all of its tables, and a full disk, is told once where the database is shown as a whole,
#    and of each table elsewhere. A topic that is not read is told of its own table in both.


DATABASE_SECONDS, TABLE_SECONDS = 10.0, 60.0


@dataclass(frozen=True, slots=True)
class DatabaseRuns:
    """What the runs of a database say."""

    findings: tuple[Finding, ...]  # what is wrong with the database as a whole
    waiting: Mapping[str, Waiting]  # the topics that its pipeline does not read


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
