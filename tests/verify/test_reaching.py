"""A table counts as complete up to a position when the connector has confirmed it and the table has read what came until then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import InvalidInput, Retry
from lakebed.log.commit_loop import Proposal, commit_loop
from lakebed.log.entries import Operation
from lakebed.log.snapshot import Snapshot
from lakebed.positions.positions import Position, entry_of
from lakebed.verify.databases import Reaching
from lakebed.verify.postgres import Database, SlotConnector
from tests.internals import log_of

TOPIC = "shop.public.orders"


@pytest.fixture
def table(tmp_path: Path, own_cache: None) -> lakebed.Table:
    return lakebed.create(tmp_path / "t", pa.schema([pa.field("id", pa.int64(), nullable=False)]), keys=["id"])


def read_up_to(table: lakebed.Table, offset: int) -> Snapshot:
    def build(snapshot: Snapshot) -> Proposal[Snapshot]:
        return Proposal(
            actions=[entry_of(TOPIC, Position(offsets={0: offset}))], result=lambda committed: committed.snapshot
        )

    return commit_loop(log_of(table), Operation.REWIND, build)


@dataclass
class Surroundings:
    """A clock that goes on with each pause, and what happens at each of them."""

    table: lakebed.Table
    now: float = 0.0
    confirmed: int = 0
    emitted: list[float] = field(default_factory=list)
    at_pause: Iterator[object] = field(default_factory=lambda: iter(()))
    ends: dict[int, int] = field(default_factory=lambda: {0: 10})
    asked_ends_at: list[float] = field(default_factory=list)

    def pause(self, seconds: float) -> None:
        self.now += seconds
        next(self.at_pause, None)

    def missing(self, position: int) -> str:
        return "" if self.confirmed >= position else f"the connector lacks {position - self.confirmed} bytes"

    def nudge(self) -> None:
        self.emitted.append(self.now)

    def close(self) -> None:
        pass

    def asked_ends(self) -> dict[int, int]:
        self.asked_ends_at.append(self.now)
        return self.ends

    def reaching(self) -> Reaching:
        return Reaching(
            table="public.orders",
            topic=TOPIC,
            connector=self,
            ends=self.asked_ends,
            newest=log_of(self.table).refresh,
            wait_seconds=5.0,
            clock=lambda: self.now,
            sleep=self.pause,
        )


def test_a_table_that_has_read_everything_is_there_at_once(table: lakebed.Table) -> None:
    version = read_up_to(table, 10).version
    around = Surroundings(table, confirmed=100)
    assert around.reaching().reach(100).version == version
    assert around.now == 0.0


def test_the_ends_are_asked_after_the_connector_has_confirmed(table: lakebed.Table) -> None:
    around = Surroundings(table)

    def goes_on() -> Iterator[object]:
        around.confirmed = 99
        yield
        around.confirmed, around.ends = 100, {0: 12}
        yield
        read_up_to(table, 11)
        yield
        read_up_to(table, 12)
        yield

    around.at_pause = goes_on()
    found = around.reaching().reach(100)
    assert around.asked_ends_at == [0.5]
    assert found.version == table.version
    assert around.now == 1.0


def test_a_quiet_database_is_sent_a_message_now_and_then(table: lakebed.Table) -> None:
    around = Surroundings(table, ends={})

    def goes_on() -> Iterator[object]:
        for _ in range(17):
            yield
        around.confirmed = 100

    around.at_pause = goes_on()
    around.reaching().reach(100)
    assert around.emitted == [2.0, 4.0]


class Refusing(Surroundings):
    def nudge(self) -> None:
        super().nudge()
        raise InvalidInput("permission denied")


def test_a_message_that_is_refused_is_no_error(table: lakebed.Table) -> None:
    around = Refusing(table, ends={})

    def goes_on() -> Iterator[object]:
        for _ in range(9):
            yield
        around.confirmed = 100

    around.at_pause = goes_on()
    around.reaching().reach(100)
    assert around.emitted == [2.0]


def test_a_connector_or_a_pipeline_that_stands_is_named(table: lakebed.Table) -> None:
    with pytest.raises(Retry, match="the connector lacks 7 bytes"):
        Surroundings(table, confirmed=93).reaching().reach(100)
    read_up_to(table, 3)
    with pytest.raises(Retry, match=r"partition 0 of shop.public.orders up to offset 3, and 10 is needed"):
        Surroundings(table, confirmed=100).reaching().reach(100)


def test_a_slot_confirms_what_is_below_its_place() -> None:
    class OfOneSlot(Database):
        def __init__(self) -> None: ...

        def slots(self) -> dict[str, int]:
            return {"shop": 10}

    connector = SlotConnector(OfOneSlot(), "shop")
    assert [bool(connector.missing(position)) for position in (9, 10, 11)] == [False, False, True]
    with pytest.raises(InvalidInput, match="the replication slot gone is gone"):
        SlotConnector(OfOneSlot(), "gone").missing(9)
