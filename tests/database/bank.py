"""A bank with accounts in two tables and a third that lists the transfers, as Debezium sends it: without Kafka, without Spark.

At every moment of the source both tables together have the same money, and the list is as long as the transfers were many.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

import lakebed
from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.formats import decoder
from lakebed.ingest.table_batch import TableIngest, run_alone
from lakebed.points.keeper import PointKeeper, PointSettings
from lakebed.points.window import JsonTransactions
from lakebed.positions.point_log import Point, PointLog
from lakebed.sources.source import Range
from lakebed.table import internals_of
from tests.sources.memory_source import MemorySource, here

ACCOUNTS = 6
MONEY = 100
TRANSACTIONS = "bank.transaction"
COLUMNS = {
    "public.checking": pa.schema([pa.field("id", pa.int64(), False), pa.field("balance", pa.int64())]),
    "public.savings": pa.schema([pa.field("id", pa.int64(), False), pa.field("balance", pa.int64())]),
    "audit.transfers": pa.schema([pa.field("id", pa.int64(), False), pa.field("amount", pa.int64())]),
}
TOTAL = 2 * ACCOUNTS * MONEY


@dataclass
class Bank:
    """The source, with its topics. Rows of a snapshot come first."""

    draw: random.Random
    source: MemorySource = field(default_factory=MemorySource)
    transfers: int = 0
    lsn: int = 1_000
    balances: dict[str, dict[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in COLUMNS:
            for partition in range(2):
                self.source.add(f"bank.{name}", partition)
        self.source.add(TRANSACTIONS, 0)
        for name in ("public.checking", "public.savings"):
            self.balances[name] = dict.fromkeys(range(ACCOUNTS), MONEY)
            for id in range(ACCOUNTS):
                self._send(name, "r", {"id": id, "balance": MONEY}, None)

    def transfer(self) -> None:
        """One transaction: from an account of one table to one of the other, and its line in the list."""
        self.transfers += 1
        transaction = str(900 + self.transfers)
        orders: Counter[str] = Counter()
        self.source.add(
            TRANSACTIONS, 0, {"status": "BEGIN", "id": f"{transaction}:{self.lsn}", "ts_ms": self.transfers}
        )

        def send(name: str, op: str, row: dict[str, int]) -> None:
            orders[name] += 1
            block = {
                "id": f"{transaction}:{self.lsn}",
                "total_order": orders.total(),
                "data_collection_order": orders[name],
            }
            self._send(name, op, row, block)

        amount = self.draw.randint(1, 30)
        for name, sign in (("public.checking", -1), ("public.savings", 1)):
            id = self.draw.randrange(ACCOUNTS)
            self.balances[name][id] += sign * amount
            send(name, "u", {"id": id, "balance": self.balances[name][id]})
        send("audit.transfers", "c", {"id": self.transfers, "amount": amount})
        counted = [{"data_collection": name, "event_count": count} for name, count in orders.items()]
        end = {"status": "END", "id": f"{transaction}:{self.lsn}", "data_collections": counted, "ts_ms": self.transfers}
        self.source.add(TRANSACTIONS, 0, end)

    def _send(self, name: str, op: str, row: dict[str, int], transaction: Any) -> None:
        self.lsn += 8
        source = {"connector": "postgresql", "ts_ms": 1, "lsn": self.lsn}
        event = {"before": None, "after": row, "source": source, "transaction": transaction, "op": op, "ts_ms": 1}
        self.source.add(f"bank.{name}", row["id"] % 2, event)


class Copy:
    """A copy of the bank, and the process that keeps it. ``cuts``: whether points are kept."""

    def __init__(self, path: Path | str, bank: Bank, *, cuts: bool = True, wait_seconds: float = 60.0) -> None:
        self.path = str(path)
        self.bank = bank
        self.cuts = cuts
        self.wait_seconds = wait_seconds
        self.parked: dict[str, str] = {}
        for name, columns in COLUMNS.items():
            folder, topic = f"{path}/{name.replace('.', '/')}", {"lakebed.source_topic": f"bank.{name}"}
            lakebed.create(folder, columns, keys=["id"], sequence_by="source.lsn", properties=topic)
        self.start()

    def start(self) -> None:
        """A new process: nothing is known but what the logs say."""
        settings = PointSettings(topic=TRANSACTIONS, prefix="bank", wait_seconds=self.wait_seconds)
        source = self.bank.source
        self.keeper = PointKeeper(settings, PointLog.of(self.path), source, JsonTransactions())
        self.tables = {f"bank.{name}": lakebed.open(f"{self.path}/{name.replace('.', '/')}") for name in COLUMNS}
        self.ingests: dict[str, TableIngest] = {}
        for topic, table in self.tables.items():
            internals = internals_of(table)
            self.keeper.add(topic, topic.removeprefix("bank."), internals.log.refresh())
            columns = DecoderSchema.of_table(table.schema, ("id",), "source.lsn")
            self.ingests[topic] = TableIngest(
                table.path,
                internals.log,
                source,
                decoder("debezium-json", columns),
                evolution=internals.evolution("its records need it"),
                quarantine_log=internals.quarantine_log,
            )

    def batch(self, ends: dict[tuple[str, int], int] | None = None) -> Point | None:
        """Read what there is, up to ``ends`` where they say so."""
        limits = self.bank.source.ends() | (ends or {})
        ranges = [
            replace(one, end=limits[one.place], start=min(one.start, limits[one.place])) for one in self._planned()
        ]
        ends = self.bank.source.ends()
        cut = self.keeper.cut_for(ranges, {one.topic for one in ranges if one.end < ends[one.place]})
        for topic, ingest in self.ingests.items():
            if topic in self.parked:
                self.keeper.park(topic, self.parked[topic])
                continue
            own = [one for one in ranges if one.topic == topic]
            done = run_alone(ingest.batch(own, cut=cut if self.cuts else None), here)
            self.keeper.done(topic, done)
        return self.keeper.batch_done()

    def _planned(self) -> list[Range]:
        return self.bank.source.planned()
