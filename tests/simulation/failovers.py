"""Workers of a fleet that are killed, in virtual time: how late does that make the readers of a table?

The workers are the real membership, the real hashing, the real looks (``Watched``) on real logs in memory. What stands in is what
needs threads and files: the maintenance of a table is a step that settles what is due, after the pauses of the real one, and a
settle takes its changes out of the tail. Every event has its time; the one that is due first comes first, and a worker that is
killed has no more events. So a run is the same for the same seed, and takes no time.

The clocks agree here: how old a change is follows from the clock of who wrote it (``planning.settling``).
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from lakebed.coordination.log_cache import LogCache
from lakebed.errors import Retry
from lakebed.fleet import membership, watched
from lakebed.fleet.membership import Membership, Worker
from lakebed.fleet.watched import Watched
from lakebed.log.actions import AddChangePart, ChangePart, RemoveChangePart
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.conflicts import BLIND, ReadWriteSet
from lakebed.log.entries import Operation
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import MemoryLogStore
from lakebed.log.table_log import TableLog
from lakebed.operations.create import NewTable, create
from lakebed.planning.settling import due_ms, reason_to_settle

START = 1_700_000_000.0
SECONDS = 300.0
SETTLE_SECONDS_MAX = 1.0
"""A look waits for a thread and a settle takes its time, so long together."""
CYCLE_SECONDS_MAX = 5.0
FRESHNESS_SECONDS = (12, 30, 60)


@dataclass(slots=True)
class Table:
    """``waiting``: when each change was written that is not settled, by the path of its part."""

    root: str
    freshness: int | None
    store: MemoryLogStore
    waiting: dict[str, float] = field(default_factory=dict)
    latest: float = 0.0  # the longest that a change has waited


class Failover:
    """One run: ``kills`` workers of ``workers`` are killed, within a second of each other."""

    def __init__(self, seed: int, workers: int = 3, kills: int = 2, tables: int = 6) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.fleet_log = MemoryLogStore()
        self.tables = [self._table(number) for number in range(tables)]
        self.workers = [_Worker(self, f"worker-{number}") for number in range(workers)]
        self.kills = kills
        self.takeovers = self.looks = 0

    def at(self, delay: float, what: Callable[[], None]) -> None:
        """Something happens after so many seconds."""
        heapq.heappush(self._events, (self.now + delay, next(self._numbers), what))

    def run(self) -> None:
        """Raises AssertionError when a change has waited longer than its table's freshness, or was never settled."""
        clock = SimpleNamespace(monotonic=lambda: self.now, time=lambda: START + self.now)
        stores = {table.root: table.store for table in self.tables}
        with (
            patch.object(watched, "time", clock),
            patch.object(watched, "open_store", stores.__getitem__),
            patch.object(watched, "Internals", _Internals),
        ):
            for worker in self.workers:
                self.at(self.random.uniform(0, 5), worker.beat)
            for table in self.tables:
                self.at(self.random.uniform(60, 80), lambda table=table: self._write(table))  # type: ignore[misc]
            begin = self.random.uniform(120, 200)
            for worker in self.random.sample(self.workers, self.kills):
                self.at(begin + self.random.uniform(0, 1), worker.kill)
            while self._events and self._events[0][0] < SECONDS:
                self.now, _, what = heapq.heappop(self._events)
                what()
        for table in self.tables:
            late = max([table.latest, *(self.now - since for since in table.waiting.values())])
            longest = table.freshness + SETTLE_SECONDS_MAX if table.freshness else 100 + 2 * 80.0
            assert late <= longest, f"a change of {table.root} waited {late:.1f} s; lakebed.freshness {table.freshness}"

    def log_of(self, root: str) -> TableLog:
        """The log of a table, as somebody opens it anew."""
        [table] = [table for table in self.tables if table.root == root]
        return TableLog(table.store, clock=lambda: START + self.now, sleep=lambda seconds: None)

    def settled(self, root: str, paths: set[str]) -> None:
        """Somebody has settled these change parts."""
        [table] = [table for table in self.tables if table.root == root]
        for path in paths:
            table.latest = max(table.latest, self.now - table.waiting.pop(path))

    def _table(self, number: int) -> Table:
        # Most have a freshness, and the settles of all of them wait until they are due.
        freshness = (*FRESHNESS_SECONDS, None)[number % 4]
        properties = {"lakebed.settle_after_age": "100 seconds", "lakebed.tier": "p0" if freshness else "p1"}
        if freshness:
            properties["lakebed.freshness"] = f"{freshness} seconds"
        table = Table(f"/lake/public/t{number}", freshness, MemoryLogStore())
        log = TableLog(table.store, clock=lambda: START + self.now)
        schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
        create(table.root, log, NewTable(schema=schema, keys=("id",), properties=properties))
        return table

    def _write(self, table: Table) -> None:
        path = f"part-{next(self._numbers)}.parquet"

        def build(snapshot: Snapshot) -> Proposal[None]:
            part = ChangePart(
                path=path,
                version=snapshot.version + 1,
                ordinal=0,
                rows=1,
                bytes=100,
                modified_ms=int((START + self.now) * 1000),
            )
            return Proposal(actions=[AddChangePart(part)], access=BLIND, result=lambda _: None)

        commit_loop(self.log_of(table.root), Operation.APPLY, build)
        table.waiting[path] = self.now
        seldom = self.random.random() < 0.3
        self.at(self.random.uniform(20, 90) if seldom else self.random.uniform(1, 8), lambda: self._write(table))


class _Internals:
    """Stands in for what a table is made of: its maintenance needs the log alone."""

    def __init__(self, root: str, log: TableLog) -> None:
        self.root, self.log = root, log

    def duties(self, in_fleet: bool, cluster: object, found_version: int) -> _Internals:
        return self

    def look_after(self) -> None:
        """There are no files to clean up."""


class _Maintenance:
    """Stands in for ``TableMaintainers``: settles what is due, after the pauses of the real one."""

    def __init__(self, world: Failover, worker: _Worker) -> None:
        self._world, self._worker = world, worker
        self._tables: dict[str, TableLog] = {}
        self._seen: dict[str, int] = {}

    def add(self, duties: _Internals) -> None:
        self._tables[duties.root] = duties.log
        self._again(duties.root, duties.log, 0.0)

    def remove(self, root: str) -> None:
        self._tables.pop(root, None)

    def is_at_rest(self, root: str) -> bool:
        newest = self._tables[root].newest
        return newest is not None and newest.version == self._seen.get(root)

    def _again(self, root: str, log: TableLog, pause: float) -> None:
        def cycle() -> None:
            if self._tables.get(root) is not log or not self._worker.lives:
                return
            newest, now_ms = log.refresh(), int((START + self._world.now) * 1000)
            if reason_to_settle(newest, now_ms):
                self._settle(root, log)
            self._seen[root] = newest.version
            freshness = newest.settings.freshness_seconds
            pause = CYCLE_SECONDS_MAX if freshness is None else min(CYCLE_SECONDS_MAX, freshness / 4)
            due_seconds = ((due_ms(newest) or 0) - now_ms) / 1000
            self._again(root, log, min(pause, due_seconds) if due_seconds > 0 else pause)

        self._world.at(pause + self._world.random.uniform(0, SETTLE_SECONDS_MAX / 2), cycle)

    def _settle(self, root: str, log: TableLog) -> None:
        def build(snapshot: Snapshot) -> Proposal[set[str]] | Finished[set[str]]:
            if not snapshot.tail:
                return Finished(set())
            gone = [RemoveChangePart(domain) for domain in snapshot.tail]
            paths = {part.path for part in snapshot.tail.values()}
            access = ReadWriteSet(domains=frozenset(snapshot.tail))
            return Proposal(actions=gone, access=access, result=lambda _: paths)

        self._world.settled(root, commit_loop(log, Operation.SETTLE, build))


class _Worker:
    def __init__(self, world: Failover, name: str) -> None:
        self.world, self.name, self.lives = world, name, True
        log = TableLog(world.fleet_log, clock=lambda: START + world.now, sleep=lambda seconds: None)
        self.membership = Membership(log, Worker(id=name, host="here", cores=1.0), lambda: START + world.now)
        self.maintenance: Any = _Maintenance(world, self)
        self.logs = LogCache(1 << 20, world.log_of)
        self.tables: dict[str, Watched] = {}

    def kill(self) -> None:
        """As kill -9."""
        self.lives = False

    def beat(self) -> None:
        if not self.lives:
            return
        fresh = [each.root for each in self.tables.values() if each.rank == 0 and each.freshness is not None]
        with suppress(Retry):
            self._assign(self.membership.beat(fresh))
        self.world.at(membership.BEAT_SECONDS, self.beat)

    def _assign(self, alive: dict[str, float]) -> None:
        roots = [table.root for table in self.world.tables]
        ranks = membership.ranks_of(self.name, roots, self.membership.fresh_tables, alive)
        for root, rank in ranks.items():
            if root not in self.tables:
                self.tables[root] = Watched(root, self.logs, self.maintenance, lambda tier: True)
                self.tables[root].stay(rank)
                self._look_after(self.tables[root], 0.0)
            else:
                self.tables[root].stay(rank)
        for root in self.tables.keys() - ranks.keys():
            self.tables[root].leave()

    def _look_after(self, table: Watched, pause: float) -> None:
        def look() -> None:
            if not self.lives:
                return
            was_active = table.is_active
            pause = table.look()
            self.world.looks += 1
            self.world.takeovers += table.rank > 0 and table.is_active and not was_active
            if pause is None:
                del self.tables[table.root]
            else:
                self._look_after(table, pause)

        self.world.at(pause + self.world.random.uniform(0, SETTLE_SECONDS_MAX / 2), look)
