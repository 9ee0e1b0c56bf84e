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
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain

import orjson

from lakebed.errors import TableNotFound
from lakebed.log.actions import Action, Domain
from lakebed.log.commit_loop import Proposal, commit_loop
from lakebed.log.conflicts import ReadWriteSet
from lakebed.log.entries import FRESH_TABLES, WORKER, Operation
from lakebed.log.entry_values import checked, decoded, readable, reading
from lakebed.log.log_without_rows import create_log_without_rows
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog

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
            actions: list[Action] = [self._worker.to_action(), *said, *removed]
            access = ReadWriteSet(domains=frozenset([WORKER + self._worker.id, *(each.domain for each in said), *gone]))
            return Proposal(actions=actions, access=access, result=lambda committed: committed.snapshot)

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
            self._log.clean(newest.settings.log_retention_seconds)

    def leave(self) -> None:
        """Say that this worker ends. Raises StoreUnavailable, Contention: then the others find out by themselves."""

        def build(snapshot: Snapshot) -> Proposal[None]:
            names = _entries_of([self._worker.id], snapshot)
            gone = [Domain(name, "", removed=True) for name in names]
            return Proposal(actions=gone, access=ReadWriteSet(domains=frozenset(names)), result=lambda _: None)

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
