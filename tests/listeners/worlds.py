"""Random tables below one folder: logs that commit, are cleaned, go and come back; and what their events are by their commits."""

from __future__ import annotations

import random
import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import orjson

from lakebed.listeners.event_types import TableEvent
from lakebed.listeners.table_events import events_of
from lakebed.log.actions import Action, AddPart, Domain, RemoveChangePart, Transaction
from lakebed.log.claims import Claim
from lakebed.log.commit_kind import truncated
from lakebed.log.commit_loop import Proposal, commit_loop
from lakebed.log.conflicts import ReadWriteSet
from lakebed.log.deletion_vector import bitmap, inline
from lakebed.log.entries import PARKED, STREAM, Operation
from lakebed.log.holds import trim_log_before
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.operations.create import create_log
from lakebed.settings import TableSettings
from tests.clock import Clock
from tests.log.test_table_log import SCHEMA, change_part

TABLES = {"orders": "orders", "public.items": "public/items", "plain": "default/plain"}


class World:
    """Tables by name; ``events``: of each incarnation of a table, by its id, by version."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.root = root
        self.rng = rng
        self.clock = Clock(1_800_000_000.0, step=1.0)
        self.logs: dict[str, TableLog] = {}
        self.events: dict[str, dict[int, tuple[TableEvent, ...]]] = defaultdict(dict)
        self._parts = 0
        (root / "_lakebed").mkdir(parents=True)

    def folder(self, name: str) -> Path:
        return self.root / TABLES[name]

    def create(self, name: str) -> None:
        log = TableLog(open_store(str(self.folder(name))), self.clock, sleep=lambda seconds: None)
        create_log(log, SCHEMA, TableSettings(keys=("id",)), (), {}, "test")
        self.logs[name] = log
        self._record(name, log.refresh())

    def drop(self, name: str) -> None:
        del self.logs[name]
        shutil.rmtree(self.folder(name))

    def commit(self, name: str) -> None:
        """One commit of a random kind, also of kinds without events."""
        log = self.logs[name]

        def build(snapshot: Snapshot) -> Proposal[Snapshot]:
            return Proposal(actions=self._actions(snapshot), access=ReadWriteSet(), result=lambda done: done.snapshot)

        self._record(name, commit_loop(log, Operation.APPLY, build))

    def clean(self, name: str) -> None:
        """Only the newest versions of the log stay."""
        log = self.logs[name]
        log.write_checkpoint(log.refresh())
        for _ in range(3):
            self.commit(name)
        trim_log_before(log, log.refresh().version)
        self._record(name, log.refresh())

    def table_id(self, name: str) -> str:
        return self.logs[name].refresh().metadata.id

    def _record(self, name: str, snapshot: Snapshot) -> None:
        table_id = snapshot.metadata.id
        for version in range(snapshot.version, -1, -1):
            commit = self.logs[name].read_commit(version)
            if version in self.events[table_id] or commit is None:
                break
            self.events[table_id][version] = events_of(commit, table=name, table_id=table_id)

    def _actions(self, snapshot: Snapshot) -> list[Action]:
        self._parts += 1
        kind = self.rng.choice(["append", "append", "settle", "claim", "park", "truncate", "batch"])
        if kind == "settle" and snapshot.tail:
            part = snapshot.tail_in_order()[0]
            settled = replace(part, stats='{"numRecords":10}').settled(inline(bitmap(range(part.deletes))))
            return [RemoveChangePart(part.domain), AddPart(settled)]
        if kind == "claim":
            return [Claim(id=str(self._parts), replica="r", sources=(), level=1, lease_ms=1).to_action()]
        if kind == "park":
            text = orjson.dumps({"error": "e", "kind": "Corrupt", "since_ms": 1, "failures": 1}).decode()
            is_parked = PARKED in snapshot.domains
            return [Domain(PARKED, "" if is_parked else text, removed=is_parked)]
        if kind == "truncate":
            left: list[Action] = [RemoveChangePart(domain) for domain in snapshot.tail]
            gone = [part.removed(1) for part in snapshot.parts.values()]
            return [truncated(snapshot.version + 1), *left, *gone, change_part(f"p{self._parts}")]
        if kind == "batch":
            return [Transaction(STREAM + "q", self._parts)]
        return [change_part(f"p{self._parts}")]
