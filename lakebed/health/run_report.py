"""What a running pipeline says of itself beside its table or database, so that ``lakebed status`` of any process knows it.

A log has what became of a table. Whether its pipeline runs, and what it waits for, only the pipeline knows: a broker that does
not answer, a full disk, a topic that can't become a table. So ``lakebed run`` keeps a small file, a *report*:

    _lakebed/streams/runs/<host>-<pid>.json    (no cleanup looks there)

1. It writes the report when something changes, ``PAUSE_SECONDS`` apart at least, and otherwise every ``BEAT_SECONDS``: $0.007 a
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
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import quote

import orjson

from lakebed.errors import LakebedError
from lakebed.health.finding import Finding, critical, warning
from lakebed.log.entry_values import made
from lakebed.log.stores.log_store import LogStore

RUNS_FOLDER = "_lakebed/streams/runs"
BEAT_SECONDS = 60.0
PAUSE_SECONDS = 2.0
SILENT_SECONDS = 180.0
ENDING_SECONDS = 10.0
REPORTS_MAX = 100
TABLES_MAX = 200
_TEXT_MAX = 1_000
_logger = logging.getLogger("lakebed.run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A topic that is not read. ``state``: waiting, or new (it has no table yet)."""

    name: str
    state: str
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
        tables: Topics that wait, at most ``TABLES_MAX`` of ``waiting``.
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
                f"{one.who} can't go on since {_time(one.since_ms)}: {'; '.join(errors)}",
                "remove the cause; it tries again by itself",
            )
        if one.stuck and not one.down:
            what = f"{one.who} does not get on: {'; '.join(one.stuck)}"
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
            tables=tuple(replace(one, error=one.error[:_TEXT_MAX]) for one in waiting[:TABLES_MAX]),
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
        pause = BEAT_SECONDS if is_same else PAUSE_SECONDS
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
