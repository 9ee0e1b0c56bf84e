"""Which transactions have ended: also one whose end was lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lakebed.log.stores import MemoryLogStore
from lakebed.log.table_log import TableLog
from lakebed.points.keeper import PointKeeper, PointSettings
from lakebed.points.window import GIVEN_UP_MS, JsonTransactions, TransactionRecord, Window
from lakebed.positions.point_log import PointLog
from tests.sources.memory_source import MemorySource

MINUTE = 60_000


def begin(id: str, offset: int, ms: int) -> TransactionRecord:
    return TransactionRecord(id=id, offset=offset, time_ms=ms, written_ms=ms)


def end(id: str, offset: int, ms: int) -> TransactionRecord:
    return TransactionRecord(id=id, offset=offset, time_ms=ms, written_ms=ms, events={"public.t": 1})


def whole(numbers: range, first: int, step_ms: int = MINUTE) -> Iterator[TransactionRecord]:
    """Transactions that begin and end, one after the other, from this offset on."""
    for place, number in enumerate(numbers):
        yield begin(str(number), first + 2 * place, number * step_ms)
        yield end(str(number), first + 2 * place + 1, number * step_ms)


def test_one_that_never_ends_blocks_its_events_no_longer_than_others_need_to_end() -> None:
    window = Window(prefix="shop")
    window.observe([begin("lost", 0, 0)])
    window.observe(whole(range(1, 6), 1))
    assert "lost" in window.cut(window.ends[-1].place, whole=True).blocked and not window.given_up
    window.observe(whole(range(6, 8), 11))
    cut = window.cut(window.ends[-1].place, whole=True)
    assert window.given_up == ["lost"] and "lost" in cut.passing and not window.open
    places = [one.place for one in window.ends]
    assert places == sorted(set(places)) and [one.id for one in window.ends][-3:] == ["lost", "6", "7"][-3:]
    assert all(one.id != "lost" for one in cut.expected["shop.public.t"]), "nobody knows how many events it has"


def test_one_that_takes_long_is_waited_for() -> None:
    """A connector sends one after the other: while a long one comes, no other ends."""
    window = Window(prefix="shop")
    window.observe([begin("long", 0, 0)])
    window.observe(whole(range(100, 101), 1))
    window.observe([end("long", 3, 100 * MINUTE)])
    assert not window.given_up and window.has("long")


def test_a_connector_that_was_down_sends_the_last_ones_again_and_loses_none() -> None:
    window = Window(prefix="shop")
    window.observe(whole(range(1, 4), 0))
    window.observe([begin("4", 6, 4 * MINUTE)])
    hours = 60 * MINUTE
    again = [one for number in (2, 3, 4) for one in (begin(str(number), 0, hours), end(str(number), 0, hours))]
    window.observe(
        [
            TransactionRecord(
                id=one.id, offset=7 + place, time_ms=hours, written_ms=hours + place * MINUTE * 5, events=one.events
            )
            for place, one in enumerate(again)
        ]
    )
    assert not window.given_up and not window.open and [one.id for one in window.ends] == ["1", "2", "3", "4"]


@pytest.mark.parametrize("restarted_at", [0, 3, 7, 11])
def test_each_process_gives_up_the_same_at_the_same_place(restarted_at: int) -> None:
    records = [begin("lost", 0, 0), *whole(range(1, 12), 1)]
    first, second = Window(prefix="shop"), Window(prefix="shop")
    first.observe(records)
    second.observe(records[:restarted_at])
    later = Window(prefix="shop")
    later.observe(records[second.read_from :])
    assert [(one.place, one.id) for one in later.ends] == [(one.place, one.id) for one in first.ends]
    assert GIVEN_UP_MS == 5 * MINUTE


def test_a_connector_that_sends_no_transactions_is_named_with_its_setting(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    log = PointLog(TableLog(MemoryLogStore("points")))
    settings = PointSettings(topic="shop.transaction", prefix="shop")
    keeper = PointKeeper(settings, log, MemorySource(), JsonTransactions(), clock=lambda: now[0])
    for now[0] in (1.0, 59.0, 61.0, 200.0):
        keeper.cut_for([])
        assert keeper.batch_done() is None
    [said] = [one for one in caplog.messages if "provide.transaction.metadata" in one]
    assert "no transaction has ended in the topic shop.transaction" in said
