"""Compares the tables of a database again and again: ``lakebed verify SHOP.yml --continuous``.

1. The table that was compared longest ago is next, ``every_hours`` after its last comparison ended, as its log says. So several
   processes, or one that is started again, do not begin anew.
2. The database is read within the hours of ``between`` only, if it is set; a comparison that does not end within them goes on
   the next day.
3. A table that can't be compared now is tried again after ``RETRY_SECONDS``; the others go on.
4. Each result is written into the log of its table, and as a row into a table beside the database's tables (``_RESULTS``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa

from lakebed.discovery import tables_below
from lakebed.errors import LakebedError, TableNotFound
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.pipeline.database_section import hours_of
from lakebed.pipeline.settings import DatabasePipeline
from lakebed.positions.verified import verified_of
from lakebed.table import create
from lakebed.table import open as open_table
from lakebed.table.table import Table
from lakebed.verify.databases import Databases, chosen_tables, require_section, verified_by
from lakebed.verify.proof import Progress, no_progress, written
from lakebed.verify.report import TableReport

_RESULTS = "_lakebed/verify"
RETRY_SECONDS = 300.0
_LOOK_SECONDS = 60.0  # how often it is looked for new tables while none is due
_HOUR_MS = 3_600_000
_PARTS_MAX = 50
_SCHEMA = pa.schema(
    [
        pa.field("table", pa.string(), nullable=False),
        pa.field("time", pa.timestamp("us", "UTC"), nullable=False),
        ("outcome", pa.string()), ("position", pa.string()), ("version", pa.int64()), ("rows", pa.int64()),
        ("differing", pa.int64()), ("unsettled", pa.int64()), ("sent_again", pa.int64()), ("removed", pa.int64()),
        ("not_compared", pa.list_(pa.string())), ("seconds", pa.float64()), ("digest", pa.string()), ("error", pa.string()),
    ]
)  # fmt: skip


class _Stopped(Exception):
    """The comparison is to end. What was compared is not lost."""


@dataclass(slots=True, kw_only=True)
class Schedule:
    """When which table is due. Times are epoch milliseconds."""

    every_ms: int
    tried: dict[str, int] = field(
        default_factory=dict
    )  # when this process may try a table again, whatever its log says

    def next(self, verified: Mapping[str, int | None]) -> tuple[str, int] | None:
        """The table that is due first, and when; None without tables. ``verified``: when each was compared last."""
        due = {
            name: max(0 if at is None else at + self.every_ms, self.tried.get(name, 0)) for name, at in verified.items()
        }
        return min(due.items(), key=lambda one: (one[1], one[0])) if due else None


class Results:
    """The table of results, which is made when the first one comes."""

    def __init__(self, folder: str) -> None:
        self.path = f"{folder.rstrip('/')}/{_RESULTS}"
        self._table: Table | None = None

    def add(self, name: str, at_ms: int, report: TableReport | None, error: str = "") -> None:
        """Add a row, if the store takes it."""
        row: dict[str, object] = {"table": name, "time": at_ms * 1000, "outcome": "failed", "error": error or None}
        if report is not None:
            shown = verified_by(report)
            repaired = report.repaired
            row |= {
                "outcome": report.outcome, "position": shown.position, "version": report.version, "rows": report.rows,
                "differing": report.differences, "unsettled": report.unsettled,
                "sent_again": repaired.sent_again if repaired else 0, "removed": repaired.removed if repaired else 0,
                "not_compared": sorted(report.left_out), "seconds": round(report.seconds, 3), "digest": report.digest,
                "error": report.reason or (repaired.error if repaired else "") or None,
            }  # fmt: skip
        written(self.path, lambda: self._add(pa.Table.from_pylist([row], _SCHEMA)))

    def _add(self, row: pa.Table) -> None:
        table, self._table = self._opened(), None
        table.apply(row)
        if table.inspect.parts().num_rows > _PARTS_MAX:
            table.maintenance.compact()
        self._table = table  # unless that failed: somebody may have removed it

    def _opened(self) -> Table:
        if self._table is None:
            try:
                self._table = open_table(self.path)
            except TableNotFound:
                self._table = create(self.path, _SCHEMA)
        return self._table


class Continuous:
    """Compares tables again and again."""

    def __init__(
        self,
        pipeline: DatabasePipeline,
        stop: threading.Event,
        names: Sequence[str] = (),
        progress: Progress = no_progress,
        failed: Callable[[str, LakebedError], None] = lambda name, error: None,
        *,
        repairs: bool = False,
    ) -> None:
        """
        Args:
            pipeline: The pipeline of the database.
            stop: Ends the comparison that runs, too.
            names: The tables that are compared; empty for all, also those that come later.
            progress: Is told how far the comparison is.
            failed: Is told of a table that can't be compared now.
            repairs: Whether what differs is mended.

        Raises:
            InvalidInput: The file does not say where the database is, or a name is no table.
        """
        section = require_section(pipeline)
        chosen_tables(pipeline, names)
        self._pipeline, self._stop, self._names, self._repairs = pipeline, stop, frozenset(names), repairs
        self._progress, self._failed = progress, failed
        self._hours = hours_of(section.between) if section.between is not None else None
        self._schedule = Schedule(every_ms=round(section.every_hours * _HOUR_MS))
        self._results = Results(pipeline.path)

    def reports(self) -> Iterator[TableReport]:
        """Compare until it is stopped; each report comes as soon as it is known."""
        known: dict[str, int | None] = {}
        while not self._stop.is_set():
            roots = self._roots()
            known = {name: known[name] if name in known else _verified_ms(root) for name, root in roots.items()}
            due = self._schedule.next(known)
            wait = max(self._closed_seconds(), (due[1] - _now_ms()) / 1000 if due else _LOOK_SECONDS)
            if due is None or wait > 0:
                self._progress("waiting for the next table", None, None)
                self._stop.wait(min(wait, _LOOK_SECONDS))
                continue
            name, before = due[0], known[due[0]]
            known[name] = _verified_ms(roots[name])
            if known[name] == before:  # else another process was faster
                try:
                    report = self._compare(name, roots[name])
                except _Stopped:
                    return
                if report is not None:
                    yield report
                known[name] = _verified_ms(roots[name])

    def _roots(self) -> dict[str, str]:
        try:
            tables = tables_below(self._pipeline.path).items()
        except LakebedError as error:
            self._failed(self._pipeline.path, error)
            return {}
        return {name: root for name, root in tables if not self._names or name in self._names}

    def _compare(self, name: str, root: str) -> TableReport | None:
        try:
            with closing(
                Databases(
                    self._pipeline,
                    self._progress,
                    repairs=self._repairs,
                    sleep=self._sleep,
                    closed_seconds=self._closed_seconds,
                )
            ) as databases:
                report = databases.verify(name, root)
        except LakebedError as error:
            self._schedule.tried[name] = _now_ms() + round(RETRY_SECONDS * 1000)
            self._failed(name, error)
            self._results.add(name, _now_ms(), None, self._pipeline.document.redact(str(error)))
            return None
        self._schedule.tried[name] = _now_ms() + self._schedule.every_ms  # its log need not say so
        self._results.add(name, report.time_ms or _now_ms(), report)
        return report

    def _closed_seconds(self) -> float:
        return self._hours.seconds_until(datetime.now(UTC)) if self._hours else 0.0

    def _sleep(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise _Stopped


def _verified_ms(root: str) -> int | None:
    try:
        found = verified_of(TableLog(open_store(root)).refresh())
    except LakebedError:
        return None  # the comparison will say what is wrong with it
    return found.time_ms if found else None


def _now_ms() -> int:
    return round(time.time() * 1000)
