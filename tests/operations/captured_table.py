"""A table of PostgreSQL, the connector that captures it, its topic, and the lakebed table: one seed draws everything.

Transactions are open at once and commit in any order. The connector sends what they wrote in the order of commits, with the
positions that PostgreSQL's log has. While nobody reads the log, changes are lost. An incremental snapshot reads the rows by their
keys, a chunk after the other, beside the changes. Records are on their way for a while, each partition for itself.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa

import lakebed
from lakebed.decode.debezium.snapshots import Notification
from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.formats import decoder
from lakebed.operations import commit_changes
from lakebed.operations.restore import needs_restart, restarting
from lakebed.pipeline.database.resnapshot import GRACE_SECONDS, Resnapshots
from lakebed.positions.resnapshots import Resnapshot, ask, resnapshot_of
from lakebed.table import internals_of
from tests.ingest.crashes import Crash, dying
from tests.internals import log_of
from tests.sources.memory_source import MemorySource, Process

COLUMNS = pa.schema([pa.field("id", pa.int64(), False), pa.field("n", pa.int64())])
TOPIC, NAME, PARTITIONS, KEYS, CHUNK = "shop.public.t", "public.t", 2, 40, 4
Write = tuple[str, int, int | None, int]
"""Operation, id, the new value, and where in the log it is."""


@dataclass(slots=True)
class Chunk:
    rows: dict[int, int]


@dataclass
class World:
    """``holds_back``: whether brokers may take records so late that the connector's notifications are there long before."""

    folder: Path
    seed: int
    holds_back: bool = False
    rows: dict[int, int] = field(default_factory=dict)
    open: dict[int, list[Write]] = field(default_factory=dict)
    lsn: int = 100
    last_commit: int = 100
    is_heard: bool = True
    queue: deque[tuple[str, int]] = field(default_factory=deque)
    chunk: Chunk | None = None
    last_key: int = -1
    max_key: int | None = None
    scanned: int = 0
    correlation: str = ""
    notifications: list[Notification] = field(default_factory=list)
    now: float = 0.0
    clock_ms: int = 1
    asked: int = 0
    crashes: int = 0
    removed: int = 0

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.flight: list[deque[dict[str, Any]]] = [deque() for _ in range(PARTITIONS)]
        self.source = MemorySource()
        for number in range(PARTITIONS):
            self.source.add(TOPIC, number)
        lakebed.create(self.folder / "t", COLUMNS, keys=["id"], sequence_by="source.lsn")
        self.table = lakebed.open(self.folder / "t")
        self.log = log_of(self.table)
        self.start()

    # The processes of lakebed --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """A process that ingests and follows notifications; the one before is gone."""
        path = str(self.folder / "t")
        self.process = Process(
            path,
            self.source,
            reading=decoder("debezium-json", DecoderSchema.of_table(COLUMNS, ("id",), "source.lsn")),
        )
        internals = internals_of(self.process.table)
        self.follower = Resnapshots(
            prefix="shop", tables=lambda: {NAME: internals}, ends=lambda _: self.ends(), clock=lambda: self.now
        )
        self.heard = self.follower.begin().get(0, len(self.notifications))

    def ends(self) -> dict[int, int]:
        return {number: one.end for number, one in self.source.topics[TOPIC].items()}

    def ingest(self) -> None:
        self.process.run(records_max=self.draw.choice([3, 10, 1000]))

    def follow(self) -> None:
        """Hear some notifications, and bring further what waits; the process may end at any step."""
        crash = self.draw.choice(["before", "after", "", "", ""])
        before = self.found()
        try:
            if crash:
                with dying(commit_changes, "commit_loop", crash):
                    self._follow()
            else:
                self._follow()
        except Crash:
            self.crashes += 1
            self.start()
        gone = before.items() - self.found().items()
        self.removed += len(gone)
        wrong = gone & self.rows.items()
        assert self.holds_back or not wrong, f"the source has {wrong}"

    def _follow(self) -> None:
        for _ in range(self.draw.choice([0, 1, 5])):
            if self.heard < len(self.notifications):
                self.follower.take(self.notifications[self.heard])
                self.heard += 1
        self.now += self.draw.choice([0.0, 1.0, GRACE_SECONDS, 20.0])
        if not self.holds_back and any(self.flight) and self.draw.random() < 0.9:
            self.deliver(all_of_them=True)
        self.follower.step()

    def ask(self) -> None:
        """What ``lakebed source resnapshot --mirror`` does."""
        self.asked += 1
        snapshot, id = self.log.refresh(), f"signal {self.asked}"
        asked = Resnapshot(
            id=id,
            topic=TOPIC,
            asked_ms=self.log.now_ms(),
            begin=self.ends(),
            notifications={0: len(self.notifications)},
            mirror_from=internals_of(self.table).mirror().begin(snapshot),
        )
        storage = internals_of(self.table).storage
        ask(self.log, asked, restarting(storage, TOPIC, asked.begin) if needs_restart(snapshot) else None)
        self.signal(id)

    @property
    def state(self) -> Resnapshot:
        found = resnapshot_of(self.log.refresh())
        assert found is not None
        return found

    # The source ----------------------------------------------------------------------------------------------------------

    def change(self) -> None:
        """A transaction begins, writes or commits."""
        if self.open and self.draw.random() < 0.5:
            self.commit(self.draw.choice(list(self.open)))
            return
        locked = {write[1] for writes in self.open.values() for write in writes}
        id = self.draw.randrange(KEYS)
        if id in locked:
            return
        writes = self.open.setdefault(self.draw.choice([*self.open, len(self.open) + self.lsn]), [])
        self.lsn += 1
        if id not in self.rows:
            writes.append(("c", id, self.lsn, self.lsn))
        elif self.draw.random() < 0.4:
            writes.append(("d", id, None, self.lsn))
        else:
            writes.append(("u", id, self.lsn, self.lsn))

    def commit(self, transaction: int) -> None:
        for op, id, n, lsn in self.open.pop(transaction):
            if n is None:
                self.rows.pop(id, None)
            else:
                self.rows[id] = n
            if self.is_heard:
                self.send(id, op, n, lsn, [str(self.last_commit), str(lsn)])
                if self.chunk is not None:
                    self.chunk.rows.pop(id, None)
        self.lsn += 1
        if self.is_heard:
            self.last_commit = self.lsn

    def send(self, id: int, op: str, n: int | None, lsn: int | None, sequence: list[str]) -> None:
        after = None if n is None else {"id": id, "n": n}
        source = {"ts_ms": self.clock_ms, "lsn": lsn, "sequence": str(sequence).replace("'", '"')}
        event = {"before": {"id": id} if op == "d" else None, "after": after, "op": op, "source": source}
        self.flight[id % PARTITIONS].append(event)

    def deliver(self, *, all_of_them: bool = False) -> None:
        """Some records come to the brokers."""
        for number, events in enumerate(self.flight):
            count = len(events) if all_of_them else self.draw.randint(0, len(events))
            self.source.add(TOPIC, number, *(events.popleft() for _ in range(count)))

    # The connector's snapshot ---------------------------------------------------------------------------------------------

    def signal(self, id: str) -> None:
        self.queue.append((id, 0))
        self.correlation = id
        if len(self.queue) == 1:
            self.notify("STARTED", data_collections=NAME)
            self.open_window()

    def notify(self, kind: str, **data: str) -> None:
        data = {"connector_name": "shop", **data}
        self.notifications.append(
            Notification(signal_id=self.correlation or "none", connector="shop", kind=kind, data=data)
        )

    def watermark(self) -> None:
        self.lsn += 2
        self.last_commit = self.lsn

    def open_window(self) -> None:
        self.watermark()
        if self.max_key is None:
            if not self.rows:
                return self.scanned_all("EMPTY")
            self.max_key = max(self.rows)
        chosen = sorted(id for id in self.rows if self.last_key < id <= self.max_key)[:CHUNK]
        if not chosen:
            return self.scanned_all("SUCCEEDED")
        self.chunk = Chunk({id: self.rows[id] for id in chosen})
        self.scanned += len(chosen)
        self.last_key = chosen[-1]
        self.notify("IN_PROGRESS", data_collections=NAME, current_collection_in_progress=NAME, last_processed_key="k")
        return None

    def close_window(self) -> None:
        if self.chunk is None:
            return
        before = self.last_commit
        self.watermark()
        for id, n in self.chunk.rows.items():
            self.send(id, "r", n, None, [str(before), str(self.lsn - 1)])
        self.chunk = None
        self.open_window()

    def scanned_all(self, status: str) -> None:
        rows, self.scanned, self.last_key, self.max_key = str(self.scanned), 0, -1, None
        said = {"data_collections": NAME, "scanned_collection": NAME, "total_rows_scanned": rows, "status": status}
        self.notify("TABLE_SCAN_COMPLETED", **said)
        self.queue.popleft()
        if self.queue:
            self.open_window()
        else:
            self.notify("COMPLETED")
            self.correlation = ""

    # Steps ---------------------------------------------------------------------------------------------------------------

    def lose(self) -> None:
        """Nobody reads the log while some transactions commit: their changes are lost."""
        self.settle()
        self.is_heard = False
        for _ in range(70):
            self.change()
        for transaction in list(self.open):
            self.commit(transaction)
        self.is_heard = True
        self.lsn += 5

    def move(self) -> None:
        """The source goes on at another server, with the same rows and at lower positions."""
        self.lose()
        self.lsn = self.last_commit = self.draw.randint(1, self.lsn)
        self.clock_ms += 60_000

    def settle(self) -> None:
        """All that is open commits, and all that was sent is in the table."""
        for transaction in list(self.open):
            self.commit(transaction)
        self.deliver(all_of_them=True)
        while self.process.run().left:
            pass

    def step(self) -> None:
        chance = self.draw.random()
        if chance < 0.3:
            self.change()
        elif chance < 0.45:
            self.deliver()
        elif chance < 0.6:
            self.ingest()
        elif chance < 0.75:
            self.close_window()
        elif chance < 0.78:
            self.start()
        elif chance < 0.8:
            self.table.settle()
        else:
            self.follow()

    def found(self) -> dict[int, int]:
        rows = self.table.to_arrow().to_pylist()
        found = {row["id"]: row["n"] for row in rows}
        assert len(found) == len(rows)
        return found


def without_pauses() -> Any:
    """Checks of the mirror follow each other at once."""
    return patch("lakebed.pipeline.database.resnapshot.CHECK_SECONDS", 0.0)
