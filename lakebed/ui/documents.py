"""The page's data of a table, as plain values: figures, findings with their sections of the runbook, claims, plans.

Times are epoch milliseconds (``…_ms``), never ages: an answer changes only when the table does.

Texts from elsewhere are made fit to be shown: bounded, without credentials, and valid in JSON (``shown``).

**What only the process that ingests knows** of a table is the age of changes since their events, and the lag of the source. A
page that ``lakebed run`` serves shows it. It is gathered from the events of the process, in memory.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from lakebed import manual
from lakebed.events import BatchCommitted, Event, QueryChanged, Settled, SourceLagged
from lakebed.health.finding import Finding, Severity, worst
from lakebed.health.status import Status
from lakebed.log.claims import Claim, claims_of
from lakebed.log.snapshot import Snapshot
from lakebed.monitoring.progress import FreshnessMeter, RecentAges
from lakebed.monitoring.table_state import Recent
from lakebed.planning.plan import Planning, plan_row
from lakebed.schema.column_mapping import ColumnMapping

_TEXT_MAX = 300
_HIDDEN = "***"
_LOOKED_AT = 8_000  # much more than is shown, so a secret that is cut in two here is never shown
_ITEMS_MAX = 50
_SECRET = r"passw|secret|token|credential|signature|api[._-]?key|access[._-]?key"
_SECRET_NAME = re.compile(_SECRET, re.IGNORECASE)
_SURROGATE = re.compile("[\udc80-\udcff]")
_USER_OF_URL = re.compile(r"(://)[^/\s@]{1,2000}@")
_SECRET_VALUE = re.compile(rf"((?:{_SECRET})[\w.-]{{0,40}}[\"']?\s?[=:]\s?)([\"']?)[^\s\"',&;}}]+", re.IGNORECASE)


def cut(text: str, most: int = _TEXT_MAX) -> str:
    """The text, cut off if it has more than ``most`` characters."""
    return utf8(text if len(text) <= most else text[: most - 1] + "…")


def utf8(text: str) -> str:
    """The text, with U+FFFD in place of bytes of a path that are not UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace") if _SURROGATE.search(text) else text


def blotted(text: str) -> str:
    """The text without the user of a URL, and without values whose names suggest that they are secret."""
    return _SECRET_VALUE.sub(rf"\1\2{_HIDDEN}", _USER_OF_URL.sub(rf"\1{_HIDDEN}@", text[:_LOOKED_AT]))


def shown(value: Any) -> Any:
    """A value of a commit as JSON: texts without credentials, and everything bounded."""
    match value:
        case str():
            return cut(blotted(value))
        case dict():
            items = list(value.items())[:_ITEMS_MAX]
            return {cut(str(name)): _HIDDEN if _SECRET_NAME.search(str(name)) else shown(item) for name, item in items}
        case list() | tuple():
            return [shown(item) for item in value[:_ITEMS_MAX]]
        case float() if value != value or value in (float("inf"), float("-inf")):
            return None
        case None | bool() | int() | float():
            return value
        case _:
            return cut(blotted(str(value)))


# -- The sections of the runbook, for the findings that they are about -----------------------------------------------------


_PAGE = "runbook"
_HEADING = re.compile(r"^## (\w+)$", re.MULTILINE)
_SECTIONS = {
    "look": "LakebedTableUnreadable",
    "gate": "LakebedTableUnreadable",
    "tail": "LakebedTailOld",
    "backpressure": "LakebedWriterDelayed",
    "backlog": "LakebedBacklogGrowing",
    "depth": "LakebedDepthOverBudget",
    "claim": "LakebedClaimsStuck",
    "quarantine": "LakebedQuarantineGrowing",
    "query": "LakebedQueryDown",
    "parked": "LakebedTableParked",
    "failing": "LakebedPlansFailing",
    "settle": "LakebedSettleParked",
    "verify": "LakebedDiffersFromSource",
    "run": "LakebedRunDown",
    "disk": "LakebedRunDown",
    "waiting": "LakebedTopicsWaiting",
}
_INVARIANT = re.compile(r"[A-Z]\d+")


def section_of(check: str) -> str | None:
    """The section about what a check finds; None if there is none."""
    found = "LakebedInvariantViolated" if _INVARIANT.fullmatch(check) else _SECTIONS.get(check)
    return found if found in sections() else None


@cache
def sections() -> dict[str, str]:
    """The text of each section (Markdown), by its heading."""
    path = manual.pages()[_PAGE]
    return {title: manual.text(path, title.lower()) for title in _HEADING.findall(manual.text(path))}


# -- The page's data of a table --------------------------------------------------------------------------------------------


_FINDINGS_MAX = 20
_CLAIMS_MAX = 100
_COLUMNS_MAX = 300
_FINDING_MAX = 1_000
_PLAN_FIGURES = ("parts", "level", "rows", "dead_rows", "bytes_in", "bytes_out", "depth_before", "depth_after")


def findings(found: tuple[Finding, ...]) -> dict[str, Any]:
    """The worst severity, and the first ``_FINDINGS_MAX`` findings."""
    documents = [
        {
            "severity": finding.severity.value,
            "check": finding.check,
            "where": cut(blotted(finding.where)),
            "what": cut(blotted(finding.what), _FINDING_MAX),
            "remedy": cut(blotted(finding.remedy), _FINDING_MAX),
            "runbook": section_of(finding.check),
        }
        for finding in found[:_FINDINGS_MAX]
    ]
    return {"severity": worst(found).value, "findings": documents, "findings_more": len(found) - len(documents)}


def broken(error: str, remedy: str) -> dict[str, Any]:
    """A table that can't be read, and why."""
    return findings((Finding(severity=Severity.CRITICAL, check="look", where="", what=error, remedy=remedy),)) | {
        "figures": None
    }


def figures(status: Status, recent: Recent, snapshot: Snapshot) -> dict[str, Any]:
    """The table in figures."""
    tail = snapshot.tail.values()
    return {
        "version": snapshot.version,
        "committed_ms": snapshot.timestamp_ms,
        "rows": status.rows,
        "dead_rows": status.dead_rows,
        "bytes": status.bytes,
        "parts": status.parts,
        "parts_by_level": {str(level): count for level, count in status.parts_by_level.items()},
        "unsorted_parts": status.unsorted_parts,
        "tail_parts": status.tail_parts,
        "tail_rows": status.tail_rows,
        "tail_bytes": status.tail_bytes,
        "tail_since_ms": min((part.modified_ms for part in tail), default=None),
        "depth": status.depth,
        "read_budget": status.read_budget,
        "space_amplification": round(status.space_amplification, 4),
        "write_amplification": _rounded(recent.write_amplification),
        "write_amplification_reference": _rounded(recent.write_amplification_reference),
        "recent_seconds": round(recent.seconds),
        "ingested_rows": recent.ingested_rows,
        "ingested_bytes": recent.ingested_bytes,
        "backlog_bytes": status.backlog_bytes,
        "claims_live": status.claims_live,
        "claims_expired": status.claims_expired,
        "volatile_claims": status.volatile_claims,
        "materialized_parts": status.materialized_parts,
        "quarantined": status.quarantined,
        "oldest_version": status.oldest_version,
        "versions_held": status.versions_held,
        "log_files": status.log_files,
        "log_bytes": status.log_bytes,
    }


def shape(snapshot: Snapshot) -> dict[str, Any]:
    """Keys, order, partitions, the first ``_COLUMNS_MAX`` columns, and the properties that are set."""
    settings = snapshot.logical_settings
    return {
        "id": cut(snapshot.metadata.id),
        "keys": [cut(name) for name in settings.keys],
        "sort_key": [cut(name) for name in settings.sort_key],
        "sequence_by": settings.sequence_by and cut(settings.sequence_by),
        "partition_by": [cut(name) for name in snapshot.metadata.partition_columns],
        "merge": settings.merge,
        "columns": [
            {"name": cut(column.name), "type": cut(str(column.type)), "is_nullable": column.nullable}
            for column in list(snapshot.logical_schema)[:_COLUMNS_MAX]
        ],
        "columns_more": max(0, len(snapshot.logical_schema) - _COLUMNS_MAX),
        "properties": shown(dict(sorted(snapshot.metadata.configuration.items()))),
    }


def plan_document(planning: Planning, columns: ColumnMapping) -> dict[str, Any]:
    """The plans, best first, and what the planner leaves alone; with the reason for each."""
    plans = [
        {
            "kind": row["what"],
            "partition": cut(", ".join(f"{name}={value}" for name, value in row["partition"])),
            **{name: row[name] for name in _PLAN_FIGURES},
            "gain_bytes": row["gain"],
            "why": cut(row["why"]),
        }
        for row in (plan_row(plan, columns) for plan in planning.plans)
    ]
    left = [{"cause": refusal.cause.value, "count": refusal.count, "why": refusal.why} for refusal in planning.refusals]
    return {"plans": plans, "left": left}


def claims_document(snapshot: Snapshot, now_ms: int, merge_rate: tuple[float, int] | None) -> dict[str, Any]:
    """Claims, oldest first. ``estimated_seconds``: bytes of the sources ÷ ``merge_rate``; the log records no progress.

    A volatile claim ends with an upload, which no plan predicts.
    """
    rate, weighed = merge_rate or (0.0, 0)
    found = sorted(claims_of(snapshot.domains).values(), key=lambda claim: (claim.since_ms, claim.id))
    documents = [_claim(claim, snapshot, now_ms, rate) for claim in found[:_CLAIMS_MAX]]
    return {"claims": documents, "claims_more": len(found) - len(documents), "merges_weighed": weighed}


def _claim(claim: Claim, snapshot: Snapshot, now_ms: int, rate: float) -> dict[str, Any]:
    covered = [snapshot.parts[path] for path in claim.sources if path in snapshot.parts]
    size = sum(part.bytes for part in covered)
    return {
        "id": cut(claim.id),
        "replica": cut(claim.replica),
        "kind": cut(claim.shown_kind),
        "is_live": claim.is_live(now_ms),
        "since_ms": claim.since_ms,
        "lease_ms": claim.lease_ms,
        "level": claim.level,
        "parts": len(covered),
        "left": len(claim.sources) - len(covered),
        "rows": sum(part.live_rows for part in covered),
        "bytes": size,
        "estimated_seconds": round(size / rate, 3) if rate and not claim.volatile else None,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


# -- What only the process that ingests knows --------------------------------------------------------------------------


_TOPICS_MAX = 100


@dataclass(slots=True)
class _Table:
    meter: FreshnessMeter = field(default_factory=FreshnessMeter)
    committed: RecentAges = field(default_factory=RecentAges)
    visible: RecentAges = field(default_factory=RecentAges)
    newest_event_ms: int | None = None
    lag: dict[str, int] = field(default_factory=dict)
    queries: dict[str, str] = field(default_factory=dict)


class Live:
    """Listens to the events of this process; ``of`` may be asked from any thread."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # of the tables
        self._tables: dict[str, _Table] = {}

    def __call__(self, event: Event) -> None:
        now = self._clock()
        with self._lock:
            match event:
                case BatchCommitted():
                    table = self._of(event.table)
                    if aged := table.meter.committed(event, now):
                        table.committed.add(aged, now)
                    if event.newest_event_seconds is not None:
                        table.newest_event_ms = int(event.newest_event_seconds * 1000)
                case Settled():
                    table = self._of(event.table)
                    for aged in table.meter.settled(event, now):
                        table.visible.add(aged, now)
                case SourceLagged():
                    lag = self._of(event.table).lag
                    if event.topic in lag or len(lag) < _TOPICS_MAX:
                        lag[event.topic] = event.records
                case QueryChanged():
                    self._of(event.table).queries[event.role] = event.state

    def of(self, root: str) -> dict[str, Any] | None:
        """The figures of a table; None if this process did nothing to it. Ages count from the event, as in the terminal."""
        with self._lock:
            table = self._tables.get(root)
            if table is None:
                return None
            lag = sorted(table.lag.items(), key=lambda each: (-each[1], each[0]))
            return {
                "committed_seconds": _in_millis(table.committed.median),
                "visible_seconds": _in_millis(table.visible.median),
                "newest_event_ms": table.newest_event_ms,
                "lag": [{"topic": cut(topic), "records": records} for topic, records in lag],
                "queries": dict(sorted(table.queries.items())),
            }

    def _of(self, path: str) -> _Table:
        return self._tables.setdefault(path, _Table())


def _in_millis(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
