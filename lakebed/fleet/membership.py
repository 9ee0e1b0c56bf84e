"""Who is in the fleet: a lease for each worker, in a small log of the fleet.

    lakebed.worker.<id>    {"host": "a", "cores": 4, "beat": 57, "since_ms": …, "until_ms": …}

1. Each worker sets its entry again every ``BEAT_SECONDS``, with the next number. The same commit shows it the others' entries.
2. Another worker is dead if its entry stayed as it is for ``DEAD_BEATS`` beats of one's own. So no two clocks are compared, and a
   store that nobody reaches makes nobody dead. ``until_ms`` is for people, and for who reads the log only once.
3. The entry of a worker that has been dead for as long again is removed. One that was only asleep sets it again with its next
   beat; one that ends on purpose removes its own.

A wrong view costs looks and nothing else (``hashing``): what may be done to a table is decided by the claims in its log.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import orjson

from lakebed.errors import TableNotFound
from lakebed.manifest.actions import Action, Domain
from lakebed.manifest.commit_loop import Proposal, commit_loop
from lakebed.manifest.conflicts import ReadWriteSet
from lakebed.manifest.entries import WORKER, Operation
from lakebed.manifest.log_without_rows import create_log_without_rows
from lakebed.manifest.snapshot import Snapshot
from lakebed.manifest.stores import open_store
from lakebed.manifest.table_log import TableLog

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
            "host": self.host, "cores": self.cores, "beat": self.beat, "since_ms": self.since_ms, "until_ms": self.until_ms,
        }  # fmt: skip
        return Domain(WORKER + self.id, orjson.dumps(value).decode())


def fleet_log(root: str) -> TableLog:
    """The log of the fleet whose first root this is; it need not exist."""
    return TableLog(open_store(f"{root.rstrip('/')}/{FOLDER}"))


def workers_of(snapshot: Snapshot) -> dict[str, Worker]:
    """The workers that the log of a fleet lists, by id, also those that died lately."""
    return {
        name.removeprefix(WORKER): Worker(id=name.removeprefix(WORKER), **orjson.loads(text))
        for name, text in snapshot.domains.items()
        if name.startswith(WORKER)
    }


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

    def beat(self) -> dict[str, float]:
        """Say that this worker lives; returns the weight of each worker that does. Raises StoreUnavailable, Contention."""
        create_log_without_rows(self._log, "worker", {"lakebed.log_retention": _LOG_RETENTION})
        until_ms = int((self._clock() + DEAD_BEATS * BEAT_SECONDS) * 1000)
        self._worker = replace(self._worker, beat=self._worker.beat + 1, until_ms=until_ms)

        def build(snapshot: Snapshot) -> Proposal[Snapshot]:
            gone = [WORKER + id for id in self._long_dead() if WORKER + id in snapshot.domains]
            actions: list[Action] = [self._worker.to_action(), *(Domain(name, "", removed=True) for name in gone)]
            access = ReadWriteSet(domains=frozenset([WORKER + self._worker.id, *gone]))
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
        name = WORKER + self._worker.id

        def build(snapshot: Snapshot) -> Proposal[None]:
            gone = [Domain(name, "", removed=True)] if name in snapshot.domains else []
            return Proposal(actions=gone, access=ReadWriteSet(domains=frozenset([name])), result=lambda _: None)

        commit_loop(self._log, Operation.WORKER, build)

    def _observe(self, snapshot: Snapshot) -> None:
        before, self._seen = self._seen, {}
        for id, worker in workers_of(snapshot).items():
            seen = before.get(id)
            same = seen is not None and seen.worker == worker
            self._seen[id] = _Seen(worker, seen.unchanged + 1 if same and seen is not None else 0)

    def _long_dead(self) -> list[str]:
        return [id for id, seen in self._seen.items() if seen.unchanged >= 2 * DEAD_BEATS]
