"""Who is in the fleet (a lease for each worker, in a small log of the fleet), and which worker looks after which table.

    lakebed.worker.<id>    {"host": "a", "cores": 4, "beat": 57, "since_ms": …, "until_ms": …}
    lakebed.fresh.<id>     ["s3://lake/shop/public/orders", …]

1. Each worker sets its entry again every ``BEAT_SECONDS``, with the next number. The same commit shows it the others' entries.
2. Another worker is dead if its entry stayed as it is for ``DEAD_BEATS`` beats of one's own. So no two clocks are compared, and a
   store that nobody reaches makes nobody dead. ``until_ms`` is for people, and for who reads the log only once.
3. ``lakebed.fresh``: which tables of the worker have a freshness, set when that changes. So those that stand by for these tables
   need not read the logs of all others, and know them still when the worker is dead.
4. The entries of a worker that has been dead for as long again are removed. One that was only asleep sets them again with its
   next beat; one that ends on purpose removes its own.

A wrong view costs looks and nothing else: what may be done to a table is decided by the claims in its log.

**The report** lists what maintenance costs and gains, a row a table, the most to gain first, and the looks of a day. The gain of
a plan is the read work that it saves a reader of its parts, in bytes, where opening a part counts as well (``planning.plan``). It
counts as often as these parts were read in the last hour, where readers count that, and once elsewhere. What was done is read
from the newest commits of the log, ``COMMITS_MAX`` at most.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain
from typing import Any

import orjson
import pyarrow as pa

from lakebed.coordination.failing import parked_paths, taken_paths
from lakebed.coordination.read_counts import ReadCounts
from lakebed.discovery import RELIST_SECONDS, SECONDS_MAX, tables_in
from lakebed.errors import LakebedError, TableNotFound
from lakebed.log.actions import Domain
from lakebed.log.commit_kind import CommitKind, kind_of
from lakebed.log.commit_loop import Proposal, commit_loop
from lakebed.log.entries import FRESH_TABLES, WORKER, Operation
from lakebed.log.entry_values import checked, decoded, readable, reading
from lakebed.log.holds import trim_log
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog, create_log_without_rows
from lakebed.planning.plan import Planning
from lakebed.planning.planner import plan
from lakebed.storage.roots import parse_root

# -- Which worker looks after which table: rendezvous hashing, weighted by the workers' cores ------------------------------
#
# Each worker draws a number for each table, from a hash of both ids; the highest one owns the table. So workers that see the same
# workers agree without asking each other, and a worker that comes or goes moves no table but those that it gets or had. The owner
# is a hint: claims in a table's log decide who may do what, so two that think they own a table cost a second look, nothing else.
#
# The workers with the next numbers *stand by*: they look after a table whose readers wait too long, whatever keeps the owner from
# it. Who stands by first is who owns the table when the owner is gone.


STANDBYS = 2  # how many workers stand by for a table with a freshness, so it is settled in time if as many die at once
_HASHES = 2.0**64


def owner_of(table: str, workers: Mapping[str, float]) -> str | None:
    """The worker that owns a table, by its root; None if there is no worker. ``workers``: the weight of each, above 0."""
    return max(workers, key=lambda worker: (_draw(table, worker, workers[worker]), worker), default=None)


def standbys_of(table: str, workers: Mapping[str, float]) -> tuple[str, ...]:
    """The workers that stand by for a table with a freshness, the first one first. ``workers``: the weight of each, above 0."""
    return tuple(_ranked(table, workers)[1 : 1 + STANDBYS])


def ranks_of(
    worker: str, tables: Collection[str], fresh_tables: Collection[str], workers: Mapping[str, float]
) -> dict[str, int]:
    """The tables that a worker looks after: 0 for one that it owns, else how many come before it of those that stand by.

    ``fresh_tables``: those with a freshness; nobody stands by for others.
    """
    ranks: dict[str, int] = {}
    for table in tables:
        if table not in fresh_tables:
            if owner_of(table, workers) == worker:
                ranks[table] = 0
            continue
        ranked = _ranked(table, workers)
        if worker in ranked[: 1 + STANDBYS]:
            ranks[table] = ranked.index(worker)
    return ranks


def _ranked(table: str, workers: Mapping[str, float]) -> list[str]:
    return sorted(workers, key=lambda worker: (_draw(table, worker, workers[worker]), worker), reverse=True)


def _draw(table: str, worker: str, weight: float) -> float:
    digest = blake2b(f"{worker}\0{table}".encode(errors="surrogateescape"), digest_size=8).digest()
    return -weight / math.log((int.from_bytes(digest, "big") + 0.5) / _HASHES)


# -- Who is in the fleet ---------------------------------------------------------------------------------------------------


FOLDER = "_lakebed/fleet"
BEAT_SECONDS = 20.0
DEAD_BEATS = 3
_LOG_RETENTION = "interval 3600 seconds"
_CLEAN_BEATS = 180


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A process that maintains tables. ``beat``: how often it said that it lives; times are epoch milliseconds of its clock."""

    id: str
    host: str
    cores: float
    beat: int = 0
    since_ms: int = 0
    until_ms: int = 0

    def to_action(self) -> Domain:
        """The action that sets the entry of this worker."""
        value = {
            "host": self.host,
            "cores": self.cores,
            "beat": self.beat,
            "since_ms": self.since_ms,
            "until_ms": self.until_ms,
        }
        return Domain(WORKER + self.id, orjson.dumps(value).decode())


def fleet_log(root: str) -> TableLog:
    """The log of the fleet whose first root this is; it need not exist."""
    return TableLog(open_store(f"{root.rstrip('/')}/{FOLDER}"))


def workers_of(snapshot: Snapshot) -> dict[str, Worker]:
    """The workers that the log of a fleet lists, by id, also those that died lately. An entry that can't be read is left out."""
    return {worker.id: worker for _, worker in readable(snapshot.domains, WORKER, worker_of)}


def worker_of(domain: str, text: str) -> Worker:
    """The worker in an entry of the log. Raises Corrupt."""
    return decoded(Worker, domain, text, id=domain.removeprefix(WORKER))


def _fresh_tables_in(domain: str, text: str) -> tuple[str, ...]:
    """The tables in an entry of a worker's (``FRESH_TABLES``). Raises Corrupt."""
    with reading(domain):
        found: tuple[str, ...] = checked(tuple[str, ...], orjson.loads(text), "it")
        return found


def listed_workers(root: str) -> list[Worker]:
    """What the log of a fleet lists now, for people; nothing if there is no fleet. Raises StoreUnavailable."""
    try:
        return sorted(workers_of(fleet_log(root).refresh()).values(), key=lambda worker: worker.id)
    except TableNotFound:
        return []


@dataclass(slots=True)
class _Seen:
    worker: Worker
    unchanged: int = 0  # beats of our own since its entry changed


class Membership:
    """One worker's place in the fleet, and its view of the others. For one thread at a time."""

    def __init__(self, log: TableLog, worker: Worker, clock: Callable[[], float] = time.time) -> None:
        self._log = log
        self._clock = clock
        self._worker = replace(worker, since_ms=int(clock() * 1000))
        self._seen: dict[str, _Seen] = {}
        self.fresh_tables: frozenset[str] = frozenset()
        """Tables with a freshness, of all workers that the log lists, as of the last beat."""

    def beat(self, own_fresh_tables: Collection[str] = ()) -> dict[str, float]:
        """Say that this worker lives; returns the weight of each worker that does. Raises StoreUnavailable, Contention.

        ``own_fresh_tables``: the roots of the tables that it owns and that have a freshness.
        """
        own = Domain(FRESH_TABLES + self._worker.id, orjson.dumps(sorted(own_fresh_tables)).decode())
        create_log_without_rows(self._log, "worker", {"lakebed.log_retention": _LOG_RETENTION})
        until_ms = int((self._clock() + DEAD_BEATS * BEAT_SECONDS) * 1000)
        self._worker = replace(self._worker, beat=self._worker.beat + 1, until_ms=until_ms)

        def build(snapshot: Snapshot) -> Proposal[Snapshot]:
            gone = _entries_of(self._long_dead(), snapshot)
            said = [own] if snapshot.domains.get(own.domain, "[]") != own.configuration else []
            removed = [Domain(name, "", removed=True) for name in gone]
            actions = [self._worker.to_action(), *said, *removed]
            return Proposal(actions=actions, result=lambda committed: committed.snapshot)

        self._observe(commit_loop(self._log, Operation.WORKER, build))
        return self.alive()

    def alive(self) -> dict[str, float]:
        """The weight of each worker that is alive, this one among them, as of the last beat."""
        alive = {id: seen.worker.cores for id, seen in self._seen.items() if seen.unchanged < DEAD_BEATS}
        return alive | {self._worker.id: self._worker.cores}

    def tidy(self) -> None:
        """Keep the log of the fleet short, now and then. The worker of the least id does it. Raises StoreUnavailable."""
        newest = self._log.newest
        if newest is None or min(self.alive()) != self._worker.id:
            return
        self._log.checkpoint_if_due(newest)
        if self._worker.beat % _CLEAN_BEATS == 0:
            trim_log(self._log, newest.settings.log_retention_seconds)

    def leave(self) -> None:
        """Say that this worker ends. Raises StoreUnavailable, Contention: then the others find out by themselves."""

        def build(snapshot: Snapshot) -> Proposal[None]:
            gone = [Domain(name, "", removed=True) for name in _entries_of([self._worker.id], snapshot)]
            return Proposal(actions=gone, result=lambda _: None)

        commit_loop(self._log, Operation.WORKER, build)

    def _observe(self, snapshot: Snapshot) -> None:
        before, self._seen = self._seen, {}
        for id, worker in workers_of(snapshot).items():
            seen = before.get(id)
            same = seen is not None and seen.worker == worker
            self._seen[id] = _Seen(worker, seen.unchanged + 1 if same and seen is not None else 0)
        lists = (tables for _, tables in readable(snapshot.domains, FRESH_TABLES, _fresh_tables_in))
        self.fresh_tables = frozenset(chain.from_iterable(lists))

    def _long_dead(self) -> list[str]:
        return [id for id, seen in self._seen.items() if seen.unchanged >= 2 * DEAD_BEATS]


def _entries_of(ids: Collection[str], snapshot: Snapshot) -> list[str]:
    """The entries of these workers that a log has."""
    return [name for id in ids for name in (WORKER + id, FRESH_TABLES + id) if name in snapshot.domains]


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
