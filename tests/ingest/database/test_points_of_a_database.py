"""Transfers between two tables: at every point each transfer is in both or in neither, whatever lags, fails or crashes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import lakebed
from lakebed.coordination.failing import Parked, park, resume
from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.formats import decoder
from lakebed.errors import DataLoss
from lakebed.ingest import database_runner as runner
from lakebed.ingest import table_batch
from lakebed.log.table_log import TableLog
from lakebed.points.keeper import PointKeeper, Points, PointSettings
from lakebed.points.window import JsonTransactions
from lakebed.positions.point_log import PointLog
from tests.ingest.database.databases import Database, Gate, database
from tests.ingest.database.test_database_ingest import at_random, failing, refusing_work
from tests.internals import log_of
from tests.sources.memory_source import COLUMNS, MemorySource
from tests.waiting import wait_until
from tests.worlds import seeds

TRANSACTIONS = "shop.transaction"
TABLES = ("shop.public.a", "shop.public.b")
READING = decoder("debezium-json", DecoderSchema.of_table(COLUMNS, (), None), {})


class Bank:
    """Sends transfers; the events of each go to both tables, and topics may show them late."""

    def __init__(self, dice: random.Random) -> None:
        self.dice, self.source, self.count = dice, MemorySource(), 0
        self.unsent: dict[str, list[dict[str, object]]] = {topic: [] for topic in (*TABLES, TRANSACTIONS)}
        self.source.topics = {topic: {} for topic in self.unsent}
        for topic in self.unsent:
            self.source.add(topic, 0)

    def transfer(self) -> None:
        number, self.count = self.count, self.count + 1
        name = f"{number}:{number * 100}"
        self.unsent[TRANSACTIONS].append({"status": "BEGIN", "id": name, "ts_ms": number})
        for order, topic in enumerate(TABLES, start=1):
            in_transaction = {"id": name, "total_order": order, "data_collection_order": 1}
            event = {"before": None, "after": {"id": number, "n": number}, "op": "c", "ts_ms": number}
            self.unsent[topic].append({**event, "source": {"ts_ms": number}, "transaction": in_transaction})
        counts = [{"data_collection": topic.removeprefix("shop."), "event_count": 1} for topic in TABLES]
        end = {"status": "END", "id": name, "ts_ms": number, "event_count": 2, "data_collections": counts}
        self.unsent[TRANSACTIONS].append(end)

    def send(self, share: float = 1.0) -> None:
        """Topics show some of what they have not shown yet, or all."""
        for topic, events in self.unsent.items():
            count = len(events) if share == 1.0 else self.dice.randint(0, len(events))
            self.source.add(topic, 0, *events[:count])
            del events[:count]


@contextmanager
def pipeline(folder: Path, bank: Bank, **more: float) -> Iterator[Database]:
    settings = PointSettings(topic=TRANSACTIONS, prefix="shop", wait_seconds=3600.0)  # longer than any wait of a test
    keeper = PointKeeper(settings, PointLog.of(str(folder)), bank.source, JsonTransactions())
    points = Points(keeper, interval_seconds=0.0)
    with database(folder, bank.source, points=points, reading=READING, **more) as one:
        yield one


def points_of(folder: Path) -> list[dict[str, list[int]]]:
    """By point, oldest first, the ids in each table that is in it. Raises AssertionError if a transfer is in one table only."""
    found = []
    for point in sorted(PointLog.of(str(folder)).all(), key=lambda point: point.number):
        ids = {
            name: sorted(lakebed.open(folder / name).to_arrow(version=at.version)["id"].to_pylist())
            for name, at in point.tables.items()
            if name not in point.left_out
        }
        assert all(each == list(range(len(each))) for each in ids.values()), point
        assert len({len(each) for each in ids.values()}) <= 1, point
        found.append(ids)
    return found


def busy(one: Database, bank: Bank, batches: int) -> None:
    """Some transfers come, of which the topics show some."""
    for _ in range(batches):
        for _ in range(bank.dice.randint(0, 4)):
            bank.transfer()
        bank.send(0.5)
        one.batches(1)


def test_at_every_point_each_transfer_is_in_both_tables_or_in_none(tmp_path: Path) -> None:
    bank = Bank(random.Random(5))
    with pipeline(tmp_path, bank) as one:
        busy(one, bank, 12)
        bank.send()
        one.batches(3)
    points = points_of(tmp_path)
    assert points[-1] == everything(bank)
    assert len({len(point[TABLES[0]]) for point in points}) > 4


@seeds(3, quick=0)
def test_points_hold_while_commits_fail_and_runs_end_anywhere(tmp_path: Path, seed: int) -> None:
    bank = Bank(random.Random(seed))
    for _ in range(4):
        with pipeline(tmp_path, bank) as one:
            for table in TABLES:
                if (tmp_path / table).exists() and resume(log_of(one.table(table))):
                    one.wait_for(table, "live")
            with patch.object(table_batch, "commit_written", at_random(bank.dice)):
                busy(one, bank, 4)
    with pipeline(tmp_path, bank) as last:
        bank.send()
        wait_until(lambda: (last.batches(1), points_of(tmp_path)[-1:] == [everything(bank)])[1])


def test_a_parked_table_is_left_out_of_points_and_comes_back(tmp_path: Path) -> None:
    bank = Bank(random.Random(7))
    with pipeline(tmp_path, bank) as one:
        busy(one, bank, 4)
        with patch.object(runner, "run_here", refusing_work(TABLES[1], DataLoss("gone"))):
            for _ in range(3):
                bank.transfer()
            bank.send()
            one.batches(6)
            assert one.states()[TABLES[1]] == "parked"
            assert points_of(tmp_path)[-1] == {TABLES[0]: list(range(bank.count))}
        wait_until(lambda: resume(log_of(one.table(TABLES[1]))))
        wait_until(lambda: (one.batches(1), points_of(tmp_path)[-1:] == [everything(bank)])[1])


def test_a_table_that_is_parked_while_a_thread_still_reads_it_is_left_out_of_points(tmp_path: Path) -> None:
    bank, gate = Bank(random.Random(9)), Gate()
    with pipeline(tmp_path, bank, patience_seconds=0.3) as one:
        busy(one, bank, 4)
        park(log_of(one.table(TABLES[1])), Parked(error="by hand", kind="DataLoss", since_ms=0))
        with failing(TableLog, "commit", TABLES[1], gate):
            bank.transfer()
            bank.send()
            one.batches(1)
            gate.is_open.set()
            wait_until(lambda: (one.batches(1), one.states()[TABLES[1]] == "parked")[1])
        bank.transfer()
        bank.send()
        alone = {TABLES[0]: list(range(bank.count))}
        wait_until(lambda: (one.batches(1), points_of(tmp_path)[-1:] == [alone])[1])


def everything(bank: Bank) -> dict[str, list[int]]:
    return {topic: list(range(bank.count)) for topic in TABLES}
