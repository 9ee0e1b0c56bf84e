"""Transactions count events that never come into a table: points wait for them once or not at all, and are whole all the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import lakebed
from lakebed.ingest.database_member import Ignored, OpenTable
from lakebed.points.keeper import PointKeeper, Points, PointSettings
from lakebed.points.window import JsonTransactions
from lakebed.positions.point_log import Point, PointLog
from lakebed.sources.source import Range
from tests.ingest.database.databases import Database
from tests.ingest.database.test_points_of_a_database import READING
from tests.sources.memory_source import MemorySource

TRANSACTIONS, ORDERS = "shop.transaction", "shop.public.orders"
WAIT_SECONDS = 60.0


class Shop(Database):
    """Topics with ``heartbeat`` are excluded, and while it ``is_odd`` the one with ``odd`` can't become a table."""

    is_odd = True

    def open(self, topic: str, ranges: Sequence[Range]) -> OpenTable | Ignored:
        if "heartbeat" in topic:
            return Ignored("excluded")
        if "odd" in topic and self.is_odd:
            raise lakebed.errors.Retry("no record changes a row yet")
        return super().open(topic, ranges)


@dataclass
class Run:
    """A connector and a pipeline. Each step is a transaction with one order, and two seconds."""

    folder: Path
    source: MemorySource = field(default_factory=MemorySource)
    now: float = 1000.0
    count: int = 0
    points: list[tuple[float, Point]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for topic in (ORDERS, TRANSACTIONS):
            self.source.add(topic, 0)
        self.start()

    def start(self) -> None:
        settings = PointSettings(topic=TRANSACTIONS, prefix="shop", wait_seconds=WAIT_SECONDS)
        log = PointLog.of(str(self.folder))
        keeper = PointKeeper(
            settings, log, self.source, JsonTransactions(), clock=lambda: self.now, now_ms=lambda: int(self.now * 1000)
        )
        self.pipeline = Shop(self.folder, self.source, points=Points(keeper, 0.0, lambda: self.now), reading=READING)

    def restart(self) -> None:
        self.pipeline.ingest.close()
        self.start()

    def step(
        self, *others: str, table: str = "public.orders", named: str = "", topic: str = ORDERS, sent: int = 1
    ) -> None:
        """A transaction with one event of ``table`` and of each of ``others``. ``sent``: how many events come into ``topic``;
        they call their table ``named``. Those of others come if they have topics."""
        self.now += 2.0
        number, self.count = self.count, self.count + 1
        for _ in range(sent):
            self.source.add(topic, 0, self.event(number, 1, named or table))
        for order, other in enumerate(others, start=2):
            if f"shop.{other}" in self.source.topics:
                self.source.add(f"shop.{other}", 0, self.event(number, order, other))
        counts = [{"data_collection": each, "event_count": 1} for each in (table, *others)]
        begin, end = ({"status": status, "id": id_of(number), "ts_ms": self.ms} for status in ("BEGIN", "END"))
        self.source.add(TRANSACTIONS, 0, begin, {**end, "event_count": len(counts), "data_collections": counts})
        self.batch()

    def event(self, number: int, order: int, table: str) -> dict[str, Any]:
        """An event of a transaction."""
        schema, _, name = table.partition(".")
        return {
            "op": "c", "ts_ms": self.ms, "before": None, "after": {"id": 100 * number + order, "n": number},
            "source": {"ts_ms": self.ms, "db": "shop", "schema": schema, "table": name},
            "transaction": {"id": id_of(number), "total_order": order, "data_collection_order": 1},
        }  # fmt: skip

    @property
    def ms(self) -> int:
        return int(self.now * 1000)

    def batch(self) -> None:
        self.pipeline.now = self.now
        self.pipeline.batch()
        newest = PointLog.of(str(self.folder)).newest()
        if newest is not None and (not self.points or self.points[-1][1].version != newest.version):
            self.points.append((self.now, newest))

    @property
    def longest(self) -> float:
        """The longest time from one point to the next, and until now."""
        times = [1000.0, *(time for time, _ in self.points), self.now]
        return max(later - earlier for earlier, later in pairwise(times))

    @property
    def left_out(self) -> dict[str, str]:
        return dict(self.points[-1][1].left_out)


def id_of(number: int) -> str:
    return f"{number}:{number * 100}"


@contextmanager
def running(folder: Path) -> Iterator[Run]:
    run = Run(folder)
    try:
        yield run
    finally:
        run.pipeline.ingest.close()


@pytest.mark.parametrize(
    ("other", "has_topic"),
    [
        ("public.heartbeat", True),
        ("public.heartbeat", False),
        ("public.filtered", False),
        ("LOGICAL_DECODING_MESSAGE", False),
    ],
)
def test_points_do_not_wait_for_topics_that_are_no_tables(tmp_path: Path, other: str, has_topic: bool) -> None:
    with running(tmp_path) as run:
        if has_topic:
            run.source.add(f"shop.{other}", 0)
        for number in range(40):
            if number in (13, 26):
                run.restart()
            run.step(*([other] if number % 3 == 2 else []))
    assert run.longest <= 12.0 and not run.left_out


def test_a_topic_that_becomes_no_table_is_waited_for_once_also_after_restarts_and_named_until_it_is_one(
    tmp_path: Path,
) -> None:
    with running(tmp_path) as run:
        run.source.add("shop.public.odd", 0)
        for number in range(60):
            if number in (40, 50):
                run.restart()
            run.step(*(["public.odd"] if number % 3 == 2 else []))
        times = [time for time, _ in run.points]
        waits = [later - earlier for earlier, later in pairwise(times) if later - earlier > 2.0]
        assert waits == [WAIT_SECONDS + 2.0] and run.now - times[-1] == 0.0
        assert run.left_out == {"shop.public.odd": "it has no table yet"}
        run.pipeline.is_odd = False
        for _ in range(4):
            run.now += 100.0
            run.step()
        assert not run.left_out and "shop.public.odd" in run.points[-1][1].tables


@pytest.mark.parametrize("restarts", [False, True])
def test_events_that_a_transformation_leaves_out_are_not_waited_for_once_later_ones_come(
    tmp_path: Path, restarts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path) as run:
        for number in range(40):
            if restarts and number % 10 == 9:
                run.restart()
            run.step(sent=0 if number % 4 == 2 else 1)
    assert run.longest <= 6.0 and not run.left_out
    assert len([one for one in caplog.messages if "leaves some out" in one]) == 1


def test_an_event_that_may_be_in_another_partition_is_waited_for(tmp_path: Path) -> None:
    """It comes late: no point has the rest of its transaction without it."""
    with running(tmp_path) as run:
        run.source.add(ORDERS, 1)
        run.step()
        assert run.points
        before = len(run.points)
        run.step(sent=0)
        for _ in range(4):
            run.step()
        assert len(run.points) == before
        run.source.add(ORDERS, 1, run.event(1, 1, "public.orders"))
        for _ in range(2):
            run.step()
        assert len(run.points) > before and not run.left_out


def test_a_topic_with_the_events_of_several_tables_is_compared_with_the_counts_of_all(tmp_path: Path) -> None:
    """Debezium's router of logical tables: their own topics are not there."""
    with running(tmp_path) as run:
        for number in range(12):
            if number == 6:
                run.restart()
            run.step(table=f"public.orders_{number % 2}")
        assert run.longest <= 12.0 and not run.left_out
        before = len(run.points)
        run.step(table="public.orders_1", sent=0)  # it is on its way
        assert len(run.points) == before
        run.source.add(ORDERS, 0, run.event(12, 1, "public.orders_1"))
        run.now += 2.0
        run.batch()
        assert len(run.points) == before + 1 and not run.left_out


@pytest.mark.slow
def test_a_topic_with_events_of_tables_that_no_transaction_counts_is_left_out_by_name(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        run.source.add("shop.public.audit", 0)
        for _ in range(3):
            run.step()
        for _ in range(40):
            run.step()
            run.step(table="public.counted", named="public.unknown", topic="shop.public.audit")
    assert list(run.left_out) == ["shop.public.audit"] and "counts no events of it" in run.left_out["shop.public.audit"]
