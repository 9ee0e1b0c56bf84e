"""What maintenance costs and gains: of each table of a fleet, the most to gain first, and of the looks of a day.

The gain of a plan is the read work that it saves a reader of its parts, in bytes, where opening a part counts as well
(``planning.plan``). It counts as often as these parts were read in the last hour, where readers count that, and once elsewhere.
What was done is read from the newest commits of the log, ``COMMITS_MAX`` at most.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakebed.coordination.failing import parked_paths, taken_paths
from lakebed.coordination.read_counts import ReadCounts
from lakebed.discovery import RELIST_SECONDS, SECONDS_MAX, tables_in
from lakebed.errors import LakebedError
from lakebed.log.commit_kind import CommitKind, kind_of
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.planning.plan import Planning
from lakebed.planning.planner import plan
from lakebed.storage.roots import parse_root

# -- What a day of looks costs: requests to the store, and their price at S3's list ----------------------------------------


_DAY_SECONDS = 86_400
_REQUESTS_OF_A_LISTING = 3
"""Is the known version still there, the hint at the newest checkpoint, and the list from there on."""
_REQUESTS_OF_A_BEAT = 3
"""The commit, the version that it was made on, and often a name that another worker took."""
READ_DOLLARS = 0.4e-6
_WRITE_DOLLARS = 5.0e-6
"""S3's list price of a GET, and of a PUT or LIST."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _DayOfLooks:
    """Requests of a day in which nothing happens, and their price at S3's list."""

    looks: float
    listings: float
    beats: float
    discoveries: float

    @property
    def reads(self) -> float:
        """GET requests."""
        return self.looks + self.listings * (_REQUESTS_OF_A_LISTING - 1) + self.beats * (_REQUESTS_OF_A_BEAT - 1)

    @property
    def writes(self) -> float:
        """PUT and LIST requests."""
        return self.listings + self.beats + self.discoveries

    @property
    def dollars(self) -> float:
        """The price of all of them."""
        return self.reads * READ_DOLLARS + self.writes * _WRITE_DOLLARS


def day_of_looks(
    tables: int,
    workers: int = 1,
    *,
    look_seconds: float = SECONDS_MAX,
    beat_seconds: float,
    discovery_seconds: float,
    schemas: int = 1,
) -> _DayOfLooks:
    """What ``workers`` ask of the store in a day in which nothing happens to ``tables``."""
    pages = schemas + tables / 1000
    return _DayOfLooks(
        looks=tables * _DAY_SECONDS / look_seconds,
        listings=tables * _DAY_SECONDS / max(RELIST_SECONDS, look_seconds),
        beats=workers * _DAY_SECONDS / beat_seconds,
        discoveries=workers * pages * _DAY_SECONDS / discovery_seconds,
    )


# -- What maintenance would gain in each table of a fleet, and what it cost and gained lately ------------------------------


COMMITS_MAX = 100
_THREADS = 8
_MERGES = (CommitKind.MERGE, CommitKind.UPLOAD)
_REPORT_SCHEMA = pa.schema(
    [
        ("table", pa.string()), ("tier", pa.string()), ("pool", pa.string()), ("gain_bytes", pa.int64()),
        ("cost_bytes", pa.int64()), ("why", pa.string()), ("depth", pa.int64()), ("read_budget", pa.int64()),
        ("late_seconds", pa.float64()), ("freshness_seconds", pa.int64()), ("reads", pa.int64()), ("parked_parts", pa.int64()),
        ("merges", pa.int64()), ("cluster_merges", pa.int64()), ("spent_bytes", pa.int64()), ("spent_seconds", pa.float64()),
        ("gained_bytes", pa.int64()),
        ("error", pa.string()), ("path", pa.string()),
    ]
)  # fmt: skip
"""``gain_bytes`` and ``cost_bytes``: what the plans of now would save readers, and read; ``why``: of the first plan, or why there
is none. ``late_seconds``: the age of the oldest change that is not settled. ``reads``: of parts in the last hour, where counted.
``merges`` (of which ``cluster_merges`` were tasks of a Spark cluster), ``spent_bytes`` (read and written), ``spent_seconds``,
``gained_bytes``: of the merges among the newest commits.
"""


def fleet_report(roots: Sequence[str]) -> pa.Table:
    """A row for each table below the roots (REPORT_SCHEMA). Raises InvalidInput, StoreUnavailable."""
    places = [str(parse_root(root)) for root in roots]
    tables = sorted({(table, place) for place in places for table in tables_in(place)})
    with ThreadPoolExecutor(_THREADS) as pool:
        rows = list(pool.map(lambda table: _row(*table), tables))
    rows.sort(key=lambda row: (row.get("error") is None, -row.get("gain_bytes", 0), row["table"]))
    return pa.Table.from_pylist(rows, _REPORT_SCHEMA)


def _row(root: str, below: str) -> dict[str, Any]:
    name = root.removeprefix(below).strip("/") or root
    row: dict[str, Any] = {"table": name, "path": root}
    log = TableLog(open_store(root))
    try:
        snapshot = log.refresh()
        now_ms = int(time.time() * 1000)
        reads = ReadCounts(log).of(snapshot)
        planning = plan(snapshot, taken_paths(snapshot, now_ms), now_ms, reads=reads, statistics=log.statistics)
        return row | _to_do(snapshot, planning, reads, now_ms) | _done(log, snapshot)
    except LakebedError as error:
        return row | {"error": str(error)}


def _to_do(snapshot: Snapshot, planning: Planning, reads: Any, now_ms: int) -> dict[str, Any]:
    settings = snapshot.settings
    oldest_ms = min((part.modified_ms for part in snapshot.tail.values()), default=None)
    gains = [each.gain * max([1, *(reads.get(path, 0) for path in each.inputs)]) for each in planning.plans]
    refused = max(planning.refusals, key=lambda refusal: refusal.count, default=None)
    return {
        "tier": settings.tier,
        "pool": settings.pool,
        "gain_bytes": sum(gains),
        "cost_bytes": sum(each.bytes_in for each in planning.plans),
        "why": planning.plans[0].why if planning.plans else refused.why if refused else "there is nothing to do",
        "depth": planning.depth_max,
        "read_budget": settings.read_budget,
        "late_seconds": None if oldest_ms is None else max(0, now_ms - oldest_ms) / 1000,
        "freshness_seconds": settings.freshness_seconds,
        "reads": sum(reads.values()),
        "parked_parts": len(parked_paths(snapshot, now_ms)),
    }


def _done(log: TableLog, snapshot: Snapshot) -> dict[str, Any]:
    """What the merges among the newest commits cost and gained."""
    merges, on_cluster, spent, gained, seconds = 0, 0, 0, 0, 0.0
    for version in range(snapshot.version, max(-1, snapshot.version - COMMITS_MAX), -1):
        commit = log.read_commit(version)
        if commit is None:
            break  # cleaned up
        if kind_of(commit) not in _MERGES or commit.info is None:
            continue
        cost, plan_of = commit.info.metrics, commit.info.parameters
        merges += 1
        on_cluster += plan_of.get("engine") == "spark"
        spent += int(cost.get("bytesIn") or 0) + int(cost.get("bytesOut") or 0)
        seconds += float(cost.get("seconds") or 0)
        gained += int(plan_of.get("gain") or 0)
    return {
        "merges": merges,
        "cluster_merges": on_cluster,
        "spent_bytes": spent,
        "spent_seconds": seconds,
        "gained_bytes": gained,
    }
