"""What is wrong with a table at a glance, for lists of many tables.

1. Each time: what the newest snapshot shows. No file is read for it.
2. Now and then: whether the files of the snapshot are there, and how many records are in the quarantine. That costs a list of the
   table's files and a look at the log beside it: a minute after the last time if the table has changed since or something was
   wrong, otherwise after ten minutes.
3. Each time: what its pipelines say (``run_report``).

The doctor and ``lakebed status`` of one table look closer: at the log's files, and at what the planner says.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from lakebed.coordination.table_figures import figures_of
from lakebed.errors import LakebedError, TableNotFound
from lakebed.health.file_checks import look_at_files
from lakebed.health.finding import Finding, Severity, critical, warning
from lakebed.health.log_checks import state_findings
from lakebed.health.run_report import Runs
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.parts.quarantine import QUARANTINE_SUFFIX
from lakebed.planning.backpressure import pressure
from lakebed.positions.remarks import remarks_of
from lakebed.remarks import KINDS, Counts, Kind, Remark
from lakebed.storage.open import open_part_storage

_REMARK_SECONDS = 86_400
CHANGED_SECONDS, IDLE_SECONDS = 60.0, 600.0
_NAMES_SHOWN = 5
_OF_FIELDS = (Remark.UNKNOWN_FIELD, Remark.REFUSED_FIELD)


@dataclass(frozen=True, slots=True)
class Seen:
    """A table at a glance. ``findings``: the critical ones first; ``quarantined``: records in the quarantine."""

    findings: tuple[Finding, ...] = ()
    quarantined: int = 0

    @property
    def critical(self) -> tuple[Finding, ...]:
        """The critical findings."""
        return tuple(one for one in self.findings if one.severity is Severity.CRITICAL)


class Glance:
    """Looks at one table again and again. Not thread-safe."""

    def __init__(
        self,
        root: str,
        path: str = "",
        clock: Callable[[], float] = time.monotonic,
        *,
        runs: Runs | None = None,
        alone: bool = True,
    ) -> None:
        """``path``: the table as its user writes it, for remedies (default: its root). ``runs``: shared by the tables of a list.
        ``alone``: the table is not shown in its database, so what is wrong with that is told of it.
        """
        self._runs = runs or Runs()
        self._alone = alone
        self._clock = clock
        self._root = root
        self._path = path or root
        self._slow = Seen()
        self._slow_at = -IDLE_SECONDS
        self._slow_version = self._version = -1
        self._seen_at = -IDLE_SECONDS
        self._seen = Seen()

    def look(self, snapshot: Snapshot, now_ms: int) -> Seen:
        """What is wrong with the table, of which ``snapshot`` is the newest. Raises LakebedError if its files can't be listed."""
        seen = self._look_at_table(snapshot, now_ms)
        is_fed = snapshot.settings.source_topic is not None
        found = [*self._runs.of_table(self._root, is_fed=is_fed, alone=self._alone), *seen.findings]
        found.sort(key=lambda one: one.severity is not Severity.CRITICAL)
        return Seen(tuple(found), seen.quarantined)

    def _look_at_table(self, snapshot: Snapshot, now_ms: int) -> Seen:
        now = self._clock()
        if snapshot.version == self._version and now - self._seen_at < CHANGED_SECONDS:
            return self._seen
        is_news = snapshot.version != self._slow_version or bool(self._slow.findings)
        if now - self._slow_at >= (CHANGED_SECONDS if is_news else IDLE_SECONDS):
            self._slow = self._look_slowly(snapshot)
            self._slow_at, self._slow_version = now, snapshot.version
        found = (*self._slow.findings, *snapshot_findings(snapshot, self._path, now_ms))
        self._seen, self._seen_at, self._version = Seen(found, self._slow.quarantined), now, snapshot.version
        return self._seen

    def _look_slowly(self, snapshot: Snapshot) -> Seen:
        storage = open_part_storage(self._root)
        findings = look_at_files(snapshot, storage)
        quarantined, found = quarantine_findings(self._root, self._path)
        return Seen((*findings, *found), quarantined)


def snapshot_findings(snapshot: Snapshot, path: str, now_ms: int) -> Iterator[Finding]:
    """What is wrong with a table that its newest snapshot shows."""
    yield from state_findings(snapshot, path, now_ms)
    yield from pressure_findings(snapshot, path)
    yield from remark_findings(recent_remarks(snapshot, now_ms))


def quarantine_findings(root: str, path: str) -> tuple[int, list[Finding]]:
    """How many records are in the quarantine of a table, and what is to say of that."""
    beside = root + QUARANTINE_SUFFIX
    try:
        found = figures_of(TableLog(open_store(beside)).refresh())
    except TableNotFound:
        return 0, []
    except LakebedError as error:
        return 0, [warning("quarantine", beside, f"it can't be read: {error}", f"lakebed doctor {beside}")]
    records = found.rows + found.tail_rows
    if not records:
        return 0, []
    what = f"{records:,} records are in the quarantine: they could not become rows"
    look = f"lakebed quarantine show {path} (with replay: to apply those that can be read by now)"
    remedy = f"{look}; when they are dealt with: lakebed delete --all {beside}"
    return records, [warning("quarantine", beside, what, remedy)]


def pressure_findings(snapshot: Snapshot, path: str) -> Iterator[Finding]:
    """Whether ingest slows down."""
    pressed = pressure(snapshot)
    if pressed.factor > 1:
        what = f"ingest slows down to a {pressed.factor:.1f}th, because of too many {pressed.reason.replace('_', ' ')}"
        yield critical("backpressure", "", what, f"lakebed maintain {path} (one more, or on a larger machine)")


def recent_remarks(snapshot: Snapshot, now_ms: int) -> Counts:
    """The remarks of the last day, but for fields that the table has a column for by now."""
    found = remarks_of(snapshot).since(now_ms - _REMARK_SECONDS * 1000).counts
    columns = set(snapshot.logical_schema.names)
    left = {
        kind: {name: count for name, count in names.items() if kind not in _OF_FIELDS or name not in columns}
        for kind, names in found.items()
        if kind in KINDS
    }
    return {kind: names for kind, names in left.items() if names}


def remark_findings(remarks: Counts) -> Iterator[Finding]:
    """The remarks that a person should look at."""
    for kind, names in remarks.items():
        meaning = KINDS[kind]
        if not meaning.is_finding:
            continue
        finding = critical if meaning.is_critical else warning
        ends = "when the rows were sent again" if meaning.until_sent_again else "a day after the last such record"
        yield finding(kind, "", f"{meaning.what}: {_counted(names, meaning)}", f"{meaning.remedy}. This ends {ends}")


def _counted(names: Mapping[str, int], meaning: Kind) -> str:
    """``colour in 12, size in 3 and 4 others``: the most frequent first."""
    ordered = sorted(names.items(), key=lambda item: (-item[1], item[0]))
    more = f" and {len(ordered) - _NAMES_SHOWN:,} others" if len(ordered) > _NAMES_SHOWN else ""
    shown = (f"{name} in {records:,}" if meaning.counts else name for name, records in ordered[:_NAMES_SHOWN])
    return ", ".join(shown) + more
