"""Takes the figures of a table again and again, at a low and bounded cost, for gauges and the display.

1. Each time: the figures of the newest snapshot (``coordination.table_figures``).
2. As often as ``share`` of the time allows: what the planner would do, what is wrong that the snapshot shows, and, if the base
   has changed, how well its parts are clustered. In between the earlier figures are used.
3. Each time, for a bounded time: commits are read, until the last hour is known (``monitoring.table_state``).
4. Once a minute: the rows of the quarantine.
5. Once an hour, or less often if that takes long, in a thread of its own: the files below the table's root are listed.

The reference of write amplification is F(n, k) of ``planning.candidates``, at the margin: for as many equal batches as came in
the last hour, after as many as the table holds, (F(held + n, k) − F(held, k)) ÷ n, plus one for ingest itself. k is the read
budget.

**A glance** says what is wrong with a table, for lists of many tables (``glance``).

1. Each time: what the newest snapshot shows. No file is read for it.
2. Now and then: whether the files of the snapshot are there, and how many records are in the quarantine. That costs a list of the
   table's files and a look at the log beside it: a minute after the last time if the table has changed since or something was
   wrong, otherwise after ten minutes.
3. Each time: what its pipelines say (``run_report``).

The doctor and ``lakebed status`` of one table look closer: at the log's files, and at what the planner says.

**The exporter** has the gauges of many tables, without a pipeline. It holds no state and writes nothing.

1. Each table has a thread, which opens it and takes its figures every ``interval_seconds``. If that fails, it logs the reason,
   once for each new one. The next attempt opens the table again, unless the store just did not answer.
2. An attempt that takes too long can't be cut short: until it ends, ``lakebed_table_up`` is 0, and the
   table's figures are absent. No other table waits for it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from lakebed.coordination.failing import parked_paths, parked_settle, taken_paths
from lakebed.coordination.table_figures import TableFigures, figures_of
from lakebed.errors import LakebedError, Retry, TableDropped, TableNotFound
from lakebed.health.file_checks import look_at_files
from lakebed.health.finding import Finding, Severity, counted, critical, warning
from lakebed.health.log_checks import state_findings
from lakebed.health.run_report import Runs
from lakebed.log.actions import Part
from lakebed.log.claims import claims_of
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.merge.materialized import LocalParts
from lakebed.monitoring.metrics import Metrics
from lakebed.monitoring.table_state import Clustered, LevelState, Planned, Recent, RecentCommits, Stored, TableState
from lakebed.operations.cleanup import overdue
from lakebed.parts.quarantine import QUARANTINE_SUFFIX
from lakebed.planning.candidates import least_written_up_to
from lakebed.planning.plan import kind_of
from lakebed.planning.planner import plan
from lakebed.planning.settling import pressure
from lakebed.positions.remarks import remarks_of
from lakebed.positions.verified import verified_of
from lakebed.remarks import KINDS, Counts, Kind, Remark
from lakebed.sortkey.ranges import clustering
from lakebed.storage.data_files import open_part_storage
from lakebed.storage.local_folders import volatile_folder
from lakebed.view.clustering import placed

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
        found = (*self._slow.findings, *_snapshot_findings(snapshot, self._path, now_ms))
        self._seen, self._seen_at, self._version = Seen(found, self._slow.quarantined), now, snapshot.version
        return self._seen

    def _look_slowly(self, snapshot: Snapshot) -> Seen:
        storage = open_part_storage(self._root)
        findings = look_at_files(snapshot, storage)
        quarantined, found = quarantine_findings(self._root, self._path)
        return Seen((*findings, *found), quarantined)


def _snapshot_findings(snapshot: Snapshot, path: str, now_ms: int) -> Iterator[Finding]:
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
        return 0, [warning("quarantine", beside, f"it can't be read: {error}", f"lakebed verify {beside} --self")]
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


_logger = logging.getLogger("lakebed.exporter")
_COSTLY_SHARE = 0.01
_QUARANTINE_SECONDS = 60.0
LIST_SECONDS = 3600.0
_LIST_SHARE = 0.01  # of the time, at most, for listing
_FLUSHES_MAX = 4096
_RUNS_MAX = 64


class Sampler:
    """Takes the figures of one table. Not thread-safe."""

    def __init__(
        self,
        path: str,
        log: TableLog,
        volatile: Path,
        clock: Callable[[], float] = time.time,
        share: float = _COSTLY_SHARE,
        log_seconds: float = 0.01,
    ) -> None:
        """``volatile``: the folder of materialized parts on this host, with one folder for each table. ``share``: the part of
        the time that step 2 may take. ``log_seconds``: the time for old commits in each call.
        """
        self._path = path
        self._log = log
        self._volatile = volatile
        self._clock = clock
        self._share = share
        self._log_seconds = log_seconds
        self._commits = RecentCommits(log, clock)
        self._planned: Planned | None = None
        self._clustered: Clustered | None = None
        self._clustered_parts: Mapping[str, Part] | None = None
        self._costly_again = 0.0
        self._runs = Runs(clock)
        self._findings: tuple[Finding, ...] = ()
        self._local: tuple[str, LocalParts] | None = None
        self._quarantine: TableLog | None = None
        self._quarantine_rows: int | None = None
        self._quarantine_again = 0.0
        self._stored: Stored | None = None
        self._list_again = 0.0

    def sample(self) -> TableState:
        """The figures now. Raises TableNotFound, StoreUnavailable, Corrupt."""
        started = time.monotonic()
        snapshot = self._log.refresh()
        now_ms = self._log.now_ms()
        figures = figures_of(snapshot, now_ms)
        if started >= self._costly_again:
            self._take_costly_figures(snapshot, now_ms)
            ended = time.monotonic()
            self._costly_again = ended + (ended - started) * (1 / self._share - 1)
        is_fed = snapshot.settings.source_topic is not None
        of_runs = self._runs.of_table(self._path, is_fed=is_fed, alone=True)
        recent = self._commits.read(snapshot.version, self._log_seconds)
        if started >= self._quarantine_again:
            self._look_at_quarantine()
            self._quarantine_again = started + _QUARANTINE_SECONDS
        if started >= self._list_again:
            self._list_again = math.inf  # until it has ended
            threading.Thread(target=self._list, name="lakebed-listing", daemon=True).start()
        parts, sizes = self._local_states(snapshot, now_ms)
        return TableState(
            **figures.as_fields(),
            planned=self._planned,
            clustered=self._clustered,
            recent=with_reference(recent, figures),
            parts_by_state=parts,
            bytes_by_state=sizes,
            quarantine_rows=self._quarantine_rows,
            parked_parts=len(parked_paths(snapshot, now_ms)),
            verified=verified_of(snapshot),
            is_settle_parked=parked_settle(snapshot, now_ms) is not None,
            findings=counted([*of_runs, *self._findings]),
            stored=self._stored,
            seconds=time.monotonic() - started,
        )

    def _take_costly_figures(self, snapshot: Snapshot, now_ms: int) -> None:
        planning = plan(snapshot, taken_paths(snapshot, now_ms), now_ms, statistics=self._log.statistics)
        self._planned = Planned(
            backlog_bytes=planning.backlog_bytes,
            depth_max=planning.depth_max,
            plans=Counter(kind_of(each) for each in planning.plans),
            refused={refusal.cause.value: refusal.count for refusal in planning.refusals},
            backpressure_factor=pressure(snapshot).factor,
        )
        self._findings = tuple(_snapshot_findings(snapshot, self._path, now_ms))
        if snapshot.parts is not self._clustered_parts:
            self._clustered_parts = snapshot.parts
            if snapshot.settings.order_by:
                found = clustering(placed(snapshot, self._log.statistics))
                self._clustered = Clustered(found.average_depth, found.average_overlaps)

    def _look_at_quarantine(self) -> None:
        log = self._quarantine or TableLog(open_store(self._path + QUARANTINE_SUFFIX), self._clock)
        try:
            beside = log.refresh()
        except TableNotFound:
            self._quarantine, self._quarantine_rows = None, 0
            return
        except Retry:
            return
        except LakebedError as error:  # the quarantine is another table: this one's figures do not depend on it
            if self._quarantine_rows is not None:
                _logger.warning("%s can't be read: %s", self._path + QUARANTINE_SUFFIX, error)
            self._quarantine_rows = None
            return
        self._quarantine = log
        found = figures_of(beside)
        self._quarantine_rows = found.rows + found.tail_rows

    def _list(self) -> None:
        started = time.monotonic()
        try:
            storage = open_part_storage(self._path)
            orphans = overdue(self._log, storage)
            size = sum(size for _, size, _ in storage.list(""))
            self._stored = Stored(size, len(orphans), sum(file.bytes for file in orphans))
        except (LakebedError, OSError) as error:  # the next sample reports what is wrong with the table
            _logger.warning("%s can't be listed: %s", self._path, error)
            self._stored = None
        finally:
            ended = time.monotonic()
            self._list_again = ended + max(LIST_SECONDS, (ended - started) / _LIST_SHARE)

    def _local_states(self, snapshot: Snapshot, now_ms: int) -> tuple[dict[LevelState, int], dict[LevelState, int]]:
        """Materialized parts of this host and volatile ones, by level; and bytes of the former."""
        table_id = snapshot.metadata.id
        if self._local is None or self._local[0] != table_id:
            self._local = table_id, LocalParts(self._volatile / table_id)
        claims = claims_of(snapshot.domains)
        parts: Counter[LevelState] = Counter()
        sizes: Counter[LevelState] = Counter()
        here = {one.claim.id: one for one in self._local[1].load() if one.claim.id in claims}
        for one in here.values():
            parts[one.claim.level, "materialized"] += len(one.parts)
            sizes[one.claim.level, "materialized"] += one.bytes
        for claim in claims.values():
            if claim.volatile and claim.is_live(now_ms) and claim.id not in here:
                parts[claim.level, "volatile"] += 1
        return dict(parts), dict(sizes)


def with_reference(recent: Recent, figures: TableFigures) -> Recent:
    if not recent.batches or recent.write_amplification is None:
        return recent
    held = round(figures.rows * recent.batches / recent.ingested_rows)
    return replace(
        recent, write_amplification_reference=reference_amplification(recent.batches, held, figures.read_budget)
    )


def reference_amplification(batches: int, held: int, read_budget: int) -> float:
    """The least that ``batches`` equal batches cost, their own bytes included, after ``held`` ones; both are bounded."""
    batches = min(batches, _FLUSHES_MAX // 2)
    held = min(held, _FLUSHES_MAX - batches)
    least = _least(min(read_budget, _RUNS_MAX))
    return 1 + float(least[held + batches] - least[held]) / batches


@lru_cache(maxsize=16)
def _least(read_budget: int) -> np.ndarray:
    return least_written_up_to(_FLUSHES_MAX, read_budget)


SLOW_SECONDS = 30.0
_DEAR_SHARE = 0.1
_LOG_SHARE = 0.1


class Exporter:
    """Takes the figures of tables until ``close``, and puts them into ``metrics``."""

    def __init__(
        self, paths: Sequence[str], metrics: Metrics, interval_seconds: float, volatile: Path | None = None
    ) -> None:
        """``volatile``: the folder of materialized parts on this host (default: this user's).

        Raises InvalidInput for a path that can't be one.
        """
        self._metrics = metrics
        self._volatile = volatile or volatile_folder()
        self._interval_seconds = interval_seconds
        self._done = threading.Event()
        self._began: dict[str, float] = {}
        roots = list(dict.fromkeys(open_part_storage(path).root for path in paths))
        self._threads = [
            threading.Thread(target=self._follow, args=(root,), name=f"lakebed-exporter-{number}", daemon=True)
            for number, root in enumerate(roots)
        ]
        self._threads.append(threading.Thread(target=self._watch, name="lakebed-exporter-watch", daemon=True))
        for root in roots:
            metrics.down(root)

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop. Attempts that are under way are not waited for."""
        self._done.set()

    def _follow(self, root: str) -> None:
        sampler: Sampler | None = None
        reported = ""
        while not self._done.is_set():
            self._began[root] = time.monotonic()
            try:
                sampler = sampler or self._sampler(root)
                self._metrics.observe(root, sampler.sample())
                reported = ""
            except Exception as error:  # whatever is wrong with one table, the others go on
                sampler = sampler if isinstance(error, Retry) else None
                self._metrics.down(root)
                is_missing = isinstance(error, TableNotFound) and not isinstance(error, TableDropped)
                now = "there is no table" if is_missing else str(error)
                if now != reported:
                    reported = now
                    _logger.warning("%s: %s", root, reported, exc_info=not isinstance(error, LakebedError))
            del self._began[root]
            self._done.wait(self._interval_seconds)

    def _sampler(self, root: str) -> Sampler:
        seconds = self._interval_seconds * _LOG_SHARE
        return Sampler(root, TableLog(open_store(root)), self._volatile, share=_DEAR_SHARE, log_seconds=seconds)

    def _watch(self) -> None:
        reported: set[str] = set()
        while not self._done.wait(1.0):
            now = time.monotonic()
            late = {root for root, began in list(self._began.items()) if now - began > SLOW_SECONDS}
            for root in late:
                self._metrics.down(root)
            for root in sorted(late - reported):
                _logger.warning("%s: taking its figures has lasted more than %.0f s", root, SLOW_SECONDS)
            reported = late
