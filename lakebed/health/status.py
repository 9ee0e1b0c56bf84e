"""The status of a table, or of a database: whether it is healthy, and if not, what is wrong, why, and what to do.

1. What changes slowly is checked once a minute: the names in the log, the commits of the newest version, whether the files of
   that version are there, the quarantine.
2. What changes with every commit is checked each time: the newest snapshot, and what the planner says about it.
No part is opened. What only rows show is the doctor's task (``deep``).

The bounds follow from the table's settings, its planner and its writers:

- tail: the planner would have settled it one lease (120 s) ago;
- backpressure: ingest slows down, by its own bounds (``planning.settling``);
- backlog: the planner would merge, purge or resort parts that are older than a lease, and no claim is live: nobody merges;
- depth: more than twice ``lakebed.read_budget``, though claims are live: merges can't keep up;
- claim: its lease ended more than a lease ago, when any replica would have removed it;
- log: three checkpoint intervals without a checkpoint; files that a cleanup would have deleted one ``lakebed.log_retention`` ago;
- quarantine: a record in it;
- run: its pipeline, or its database's, says that it can't go on, or says nothing any more; waiting: it can't read this table
  (``run_report``); disk: its local disk is full;
- the kinds of remarks: a batch of the last day had one (``positions.remarks``);
- query: ingest or maintenance of this process failed, and waits or has ended;
- and all that ``log_checks`` and ``file_checks`` find.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakebed.compaction.merge import LEASE_SECONDS
from lakebed.compaction.volatile import volatile_choice
from lakebed.coordination.failing import parked_of, taken_paths
from lakebed.coordination.read_counts import ReadCounts
from lakebed.coordination.table_figures import TableFigures, figures_of
from lakebed.errors import Corrupt, LakebedError, TableNotFound, Unsupported, VersionNotFound
from lakebed.failures import unwell_here
from lakebed.health.examination import examine_log
from lakebed.health.file_checks import look_at_files
from lakebed.health.finding import Finding, Severity, critical, html_findings, warning, worst
from lakebed.health.log_checks import look_at_log, state_findings
from lakebed.health.run_report import Runs, Waiting
from lakebed.health.sampler import Glance, pressure_findings, quarantine_findings, recent_remarks, remark_findings
from lakebed.log.claims import claims_of
from lakebed.log.holds import first_unexpired, held_versions
from lakebed.log.snapshot import Snapshot, parts_to_resort
from lakebed.log.stores import open_store
from lakebed.log.table_log import LOG_FOLDER, TableLog
from lakebed.merge.materialized import LocalParts
from lakebed.notebook import html_record
from lakebed.planning.plan import Planning, kind_of
from lakebed.planning.planner import plan
from lakebed.planning.settling import reason_to_settle
from lakebed.positions.point_log import oldest_for_points
from lakebed.positions.resnapshots import recent
from lakebed.positions.verified import comparison_of, verified_of
from lakebed.remarks import Counts
from lakebed.storage.data_files import open_part_storage
from lakebed.storage.local_folders import volatile_folder

SLOW_SECONDS = 60.0
_CHECKPOINTS_LATE = 3
_PLANS_SHOWN = 3
_DEPTH_LATE = 3  # times the read budget; while parts are on a local disk, 2.5 times are in order


@dataclass(frozen=True, slots=True, kw_only=True)
class Status(TableFigures):
    """The figures at one moment, and what is wrong."""

    path: str
    age_seconds: float | None = None  # since the newest commit
    materialized_parts: int = 0  # outputs of volatile claims on this host
    depth: int = 0  # runs over the deepest point of the sort key
    backlog_bytes: int = 0  # that the planner would still read
    will_do: tuple[str, ...] = ()  # what the planner would do now, and why
    waits: tuple[str, ...] = ()  # what the planner leaves alone, and why
    quarantined: int = 0  # records in the quarantine
    oldest_version: int | None = None  # that can be read
    log_files: int = 0
    log_bytes: int = 0
    waiting_parts: int = 0  # parts of the base that an earlier sort key sorted, and that maintenance will sort again
    waiting_part_reads: int = 0  # how often these were read in the last hour
    # what streams met within the last day that needs attention: by kind and name, the number of records
    remarks: Counts = field(default_factory=dict)
    volatile: str = ""  # whether merges of a process on this host stay on its local disk for now, and why
    resnapshot: str = ""  # how far the rows are that a connector was asked to send again
    verified: str = ""  # what the last comparison with the source has shown; empty if there was none
    findings: tuple[Finding, ...] = ()

    @property
    def severity(self) -> Severity:
        """The worst of the findings; ``OK``: the table is healthy."""
        return worst(self.findings)

    def _repr_html_(self) -> str:
        figures = {
            "version": self.version,
            "settled rows": self.rows,
            "parts": self.parts,
            "bytes": self.bytes,
            "tail rows": self.tail_rows,
            "depth": self.depth,
            "quarantined": self.quarantined,
            "will do": self.will_do,
            "waits": self.waits,
        }
        return html_record(f"{self.path}: {self.severity.value}", figures) + html_findings(self.findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slow:
    """What is checked once a minute."""

    snapshot: Snapshot | None
    is_whole: bool
    findings: tuple[Finding, ...]
    oldest_version: int | None = None
    newest_checkpoint: int = 0
    log_files: int = 0
    log_bytes: int = 0
    quarantined: int = 0


class Observer:
    """Checks one table again and again. It has a log object of its own, so it also works for a table that can't be opened."""

    def __init__(
        self,
        path: str,
        volatile: Path | None = None,
        clock: Callable[[], float] = time.time,
        log: TableLog | None = None,
    ) -> None:
        """``volatile``: the folder of materialized parts on this host, with one folder for each table (default: this user's).
        ``log``: the table's, if another caller reads it too.
        """
        self._path = path.rstrip("/") or path
        self._storage = open_part_storage(path)
        self._log = log or TableLog(open_store(self._storage.root), clock)
        self.snapshot: Snapshot | None = None
        """The newest version at the newest look; None if that can't be read."""
        self._reads = ReadCounts(self._log)
        self._volatile = volatile or volatile_folder()
        self._runs = Runs(clock)
        self._slow: _Slow | None = None
        self._slow_at = 0.0

    def look(self, deep: bool = False) -> Status:
        """The status now. ``deep``: with all that the doctor finds in the rows. Raises TableNotFound, StoreUnavailable."""
        slow, snapshot = self._slow, None
        if slow is not None and slow.is_whole and time.monotonic() - self._slow_at < SLOW_SECONDS:
            try:
                snapshot = self._log.refresh()
            except Corrupt:
                slow = None
        else:
            slow = None
        if slow is None:
            slow = self._slow = self._look_slowly()
            self._slow_at = time.monotonic()
            snapshot = slow.snapshot
        findings = list(slow.findings)
        if snapshot is not None:
            findings += state_findings(snapshot, self._path, self._log.now_ms())
        is_fed = snapshot is None or snapshot.settings.source_topic is not None
        findings += self._runs.of_table(self._storage.root, is_fed=is_fed, alone=True)
        if deep:
            examined = examine_log(self._path, self._log, self._storage, True).findings
            seen = {(finding.check, finding.where) for finding in examined}
            findings = [*examined, *(each for each in findings if (each.check, each.where) not in seen)]
        if any(finding.check == "entry" and finding.severity is Severity.CRITICAL for finding in findings):
            snapshot = None  # entries that figures rest on can't be read
        self.snapshot = snapshot if slow.is_whole else None
        status = Status(path=self._path) if snapshot is None else self._figures(snapshot, slow)
        if snapshot is not None:
            findings += self._judged(status, snapshot, slow)
        findings += self._unwell_here()
        ordered = sorted(findings, key=lambda finding: finding.severity is not Severity.CRITICAL)
        return replace(status, findings=tuple(ordered))

    # -- 1. once a minute ----------------------------------------------------------------------------------------------

    def _look_slowly(self) -> _Slow:
        commits, checkpoints = self._log.versions()
        if not commits and not checkpoints:
            raise TableNotFound(f"there is no table at {self._path}", table=self._path)
        found = look_at_log(self._log, self._path, False, lambda what, done, of: None)
        findings, snapshot = found.findings, found.newest
        if snapshot is None:
            return _Slow(snapshot=None, is_whole=False, findings=tuple(findings))
        findings += look_at_files(snapshot, self._storage)
        findings += self._late_cleanup(snapshot)
        quarantined, found_beside = quarantine_findings(self._storage.root, self._path)
        findings += found_beside
        log_files = [size for _, size, _ in self._storage.list(f"{LOG_FOLDER}/")]
        return _Slow(
            snapshot=snapshot,
            is_whole=found.is_whole,
            findings=tuple(findings),
            oldest_version=self._log.oldest_version(),
            newest_checkpoint=max(checkpoints, default=0),
            log_files=len(log_files),
            log_bytes=sum(log_files),
            quarantined=quarantined,
        )

    def _late_cleanup(self, snapshot: Snapshot) -> Iterator[Finding]:
        retention_seconds = snapshot.settings.log_retention_seconds
        try:
            version = self._log.version_at(self._log.now_ms() - 2 * retention_seconds * 1000)
            version = min([version, *held_versions(snapshot.domains, self._log.now_ms())])
            version = oldest_for_points(self._log, snapshot, version)
            base = max((each for each in self._log.versions()[1] if each <= version), default=0)
        except (VersionNotFound, Corrupt, Unsupported):
            return
        files = self._log.files_before(base)
        if files:
            yield warning(
                "log",
                "",
                f"{len(files):,} files of the log are past twice lakebed.log_retention: nobody cleans up",
                f"lakebed maintain {self._path}",
            )

    # -- 2. each time --------------------------------------------------------------------------------------------------

    def _figures(self, snapshot: Snapshot, slow: _Slow) -> Status:
        now_ms = self._log.now_ms()
        claimed, reads = taken_paths(snapshot, now_ms), self._reads.of(snapshot)
        planning = plan(snapshot, claimed, now_ms, reads=reads, statistics=self._log.statistics)
        claims = claims_of(snapshot.domains)
        local = LocalParts(self._volatile / snapshot.metadata.id).load()
        oldest = None if slow.oldest_version is None else max(slow.oldest_version, first_unexpired(snapshot.domains))
        return Status(
            **figures_of(snapshot, now_ms).as_fields(),
            path=self._path,
            age_seconds=max(0, now_ms - snapshot.timestamp_ms) / 1000,
            materialized_parts=sum(len(one.parts) for one in local if one.claim.id in claims),
            depth=planning.depth_max,
            backlog_bytes=planning.backlog_bytes,
            will_do=tuple(_first_plans(planning)),
            waits=tuple(f"{refusal.count:,} {refusal.why}" for refusal in planning.refusals),
            quarantined=slow.quarantined,
            oldest_version=oldest,
            log_files=slow.log_files,
            log_bytes=slow.log_bytes,
            waiting_parts=len(parts_to_resort(snapshot)),
            waiting_part_reads=sum(reads.values()),
            remarks=recent_remarks(snapshot, now_ms),
            resnapshot=recent(snapshot, now_ms),
            verified=comparison_of(snapshot, now_ms),
            volatile=str(volatile_choice(snapshot.settings, self._storage.root, self._volatile)),
        )

    def _judged(self, status: Status, snapshot: Snapshot, slow: _Slow) -> Iterator[Finding]:
        settings, path = snapshot.settings, self._path
        maintain = f"lakebed maintain {path}"
        earlier_ms = self._log.now_ms() - int(LEASE_SECONDS * 1000)
        is_old = (status.tail_age_seconds or 0) > LEASE_SECONDS
        is_due = is_old and reason_to_settle(snapshot, earlier_ms, self._log.statistics)
        if is_due and (why := self._was_due(snapshot, earlier_ms)):
            what = f"the tail should have been settled {LEASE_SECONDS:.0f} s ago ({why}); nobody settles, or it can't keep up"
            yield warning("tail", "", what, f"{maintain} (or, once: lakebed compact --only settle {path})")
        yield from pressure_findings(snapshot, path)
        if not status.claims_live:
            yield from self._backlog(snapshot, earlier_ms)
        elif settings.merge not in ("off", "recluster") and status.depth > _DEPTH_LATE * settings.read_budget:
            what = f"{status.depth} runs of parts overlap at a point, and lakebed.read_budget is {settings.read_budget}"
            remedy = f"{maintain} (one more, or on a larger machine)"
            yield warning("depth", "", f"{what}: merges can't keep up", remedy)
        yield from remark_findings(status.remarks)
        behind = slow.snapshot.version - slow.newest_checkpoint if slow.snapshot else 0
        if behind >= _CHECKPOINTS_LATE * settings.checkpoint_interval:
            what = f"{behind:,} versions have no checkpoint, and lakebed.checkpoint_interval is {settings.checkpoint_interval}"
            yield warning("log", "", f"{what}: opening the table gets slow", maintain)

    def _unwell_here(self) -> Iterator[Finding]:
        """Queries of this process that do not run. Those of other processes show only by the work that they leave undone."""
        for health in unwell_here(self._storage.root):
            if health.pause_seconds is None:
                what = f"the {health.role} query of this process has ended: {health.error}"
                yield critical("query", health.role, what, "remove the cause, then start it again")
            else:
                what = f"the {health.role} query of this process failed, and starts again within {health.pause_seconds:.0f} s"
                yield warning("query", health.role, f"{what}: {health.error}", "nothing, if the cause passes")

    def _at(self, timestamp_ms: int) -> Snapshot | None:
        """The table at a time; None if that version is not kept, or can't be read."""
        try:
            return self._log.at_version(self._log.version_at(timestamp_ms))
        except (VersionNotFound, Corrupt, Unsupported):
            return None

    def _was_due(self, snapshot: Snapshot, earlier_ms: int) -> str | None:
        """Why changes that are in the tail still should have been settled then."""
        earlier = self._at(earlier_ms) or snapshot
        if earlier.tail.keys().isdisjoint(snapshot.tail):
            return None
        return reason_to_settle(earlier, earlier_ms, self._log.statistics)

    def _backlog(self, snapshot: Snapshot, earlier_ms: int) -> Iterator[Finding]:
        older = {path: part for path, part in snapshot.parts.items() if part.modified_ms <= earlier_ms}
        statistics = self._log.statistics
        if not plan(replace(snapshot, parts=older, tail={}), (), earlier_ms, statistics=statistics).merges:
            return
        earlier = self._at(earlier_ms) or snapshot  # settings may have been others then
        older = {path: part for path, part in earlier.parts.items() if part.modified_ms <= earlier_ms}
        merges = plan(replace(earlier, parts=older, tail={}), (), earlier_ms, statistics=statistics).merges
        merges = tuple(one for one in merges if snapshot.parts.keys() >= set(one.inputs))
        if merges:
            what = f"{len(merges):,} merges should have begun {LEASE_SECONDS:.0f} s ago, and nobody merges: {merges[0].why}"
            yield warning(
                "backlog", "", what, f"lakebed maintain {self._path} (or, once: lakebed compact {self._path})"
            )


def _first_plans(planning: Planning) -> Sequence[str]:
    shown = [f"{kind_of(one)} {len(one.inputs):,} parts: {one.why}" for one in planning.plans[:_PLANS_SHOWN]]
    more = len(planning.plans) - _PLANS_SHOWN
    return [*shown, f"and {more:,} more"] if more > 0 else shown


# -- How a database is -----------------------------------------------------------------------------------------------------
#
# Tables are looked at as in any list (``sampler``): their newest snapshots, whether their files are there, and their quarantines.
# What only the pipeline knows, it says beside the database (``run_report``).


_THREADS = 16
_TIME = pa.timestamp("ms", "UTC")
_STATUS_SCHEMA = pa.schema(
    [
        ("table", pa.string()), ("state", pa.string()), ("rows", pa.int64()), ("tail_rows", pa.int64()), ("bytes", pa.int64()),
        ("version", pa.int64()), ("committed_at", _TIME), ("parked_at", _TIME), ("error", pa.string()), ("path", pa.string()),
        ("resnapshot", pa.string()), ("quarantined", pa.int64()), ("verified_at", _TIME),
    ]
)  # fmt: skip
"""``state``: the first of these that is true: unreadable; parked (its pipeline leaves it alone); critical (rows may be lost,
wrong or unreadable); waiting (its pipeline can't read it now); new (a topic that is no table yet); warning; live. ``error``: what
is wrong, null if nothing is. ``rows`` of the base, and beside them ``tail_rows`` that are not settled; ``bytes`` of the files of
both. ``resnapshot``: how far the rows are that the connector was asked to send again; null: none were asked for in the last day.
``quarantined``: records in its quarantine. ``verified_at``: when it was compared with its source last; null: never.
"""
_STATES = ("unreadable", "parked", "critical", "waiting", "new", "warning", "live")


def database_status(tables: Mapping[str, str], waiting: Mapping[str, Waiting] | None = None) -> pa.Table:
    """A row for each table (``_STATUS_SCHEMA``): the worst first, then by name.

    Args:
        tables: Their roots, by name.
        waiting: The topics that their pipeline does not read, by name; those that are no table get a row too.
    """
    waiting = waiting or {}
    with ThreadPoolExecutor(_THREADS) as pool:
        found = list(pool.map(partial(_row, waiting), tables.items()))
    found += [
        {"table": name, "state": one.state, "error": one.error or None, "quarantined": 0}
        for name, one in waiting.items()
        if name not in tables
    ]
    found.sort(key=lambda row: (_STATES.index(row["state"]), row["table"]))
    return pa.Table.from_pylist(found, _STATUS_SCHEMA)


def _row(waiting: Mapping[str, Waiting], table: tuple[str, str]) -> dict[str, Any]:
    name, root = table
    row: dict[str, Any] = {"table": name, "path": root}
    try:
        log = TableLog(open_store(root))
        snapshot, now_ms = log.refresh(), log.now_ms()
        figures, parked, again = figures_of(snapshot), parked_of(snapshot), recent(snapshot, now_ms)
        compared = verified_of(snapshot)
        seen = Glance(root, alone=False).look(snapshot, now_ms)
    except LakebedError as error:
        return {**row, "state": "unreadable", "error": str(error)}
    errors = [parked.error] if parked else []
    errors += [one.what for one in seen.findings if one.check not in ("parked", "waiting")]
    if name in waiting and not parked:
        errors.insert(0, waiting[name].error)
    worst = seen.findings[0].severity if seen.findings else Severity.OK
    state = (
        "critical" if seen.critical else "waiting" if name in waiting else "live" if worst is Severity.OK else "warning"
    )
    return row | {
        "state": "parked" if parked else state,
        "rows": figures.rows,
        "tail_rows": figures.tail_rows,
        "bytes": figures.bytes,
        "version": figures.version,
        "committed_at": int(figures.committed_at * 1000),
        "resnapshot": again or None,
        "verified_at": compared.time_ms if compared else None,
        "quarantined": seen.quarantined,
        "parked_at": parked.since_ms if parked else None,
        "error": "; ".join(filter(None, errors)) or None,
    }
