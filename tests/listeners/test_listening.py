"""Listening within a process, and delivering by threads: what a user calls, on real tables."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import InvalidInput
from lakebed.listeners.delivery import Deliverer
from lakebed.listeners.event_types import Appended, Settled, TableEvent
from lakebed.listeners.feed import Cursor, Feed
from lakebed.listeners.listener import Listener
from lakebed.listeners.targets import Webhook
from tests.heard import SECONDS_MAX
from tests.listeners.receiver import Received, receiver
from tests.threads import ThreadsSince
from tests.waiting import wait_until

T = TypeVar("T")

ROWS = pa.table({"id": [1, 2, 3]})


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


@pytest.fixture
def received() -> Iterator[Received]:
    with receiver() as one:
        yield one


def make(lake: str, name: str) -> lakebed.Table:
    return lakebed.create(f"{lake}/{name}", ROWS.schema, keys=["id"])


def changes(op: str = "u") -> pa.Table:
    return ROWS.append_column("_lakebed_op", pa.array([op] * 3))


def next_of(came: SimpleQueue[T], count: int = 1) -> list[T]:
    """The next that come, as soon as they do."""
    return [came.get(timeout=SECONDS_MAX) for _ in range(count)]


def test_a_function_is_called_with_each_event_and_goes_on_at_its_cursor(lake: str) -> None:
    orders = make(lake, "public/orders")
    came = SimpleQueue[TableEvent]()
    with lakebed.warehouse(lake).listen(came.put, kinds=["appended", "settled"]) as listening:
        orders.apply(changes())
        orders.settle()
        appended, settled = next_of(came, 2)
    assert isinstance(appended, Appended) and (appended.table, appended.rows) == ("public.orders", 3)
    assert isinstance(settled, Settled) and settled.through == appended.version
    orders.apply(changes())
    with lakebed.warehouse(lake).listen(came.put, cursor=listening.cursor):
        [again] = next_of(came)
    assert again.version == orders.version and came.empty()
    with lakebed.warehouse(lake).listen(came.put, cursor="oldest", tables=["public.*"]):
        whole = next_of(came, 4)
    assert [event.kind for event in whole] == ["created", "appended", "settled", "appended"] and came.empty()


def test_an_event_on_which_the_function_raises_comes_again_before_later_ones(lake: str) -> None:
    orders = make(lake, "orders")
    came, may_succeed = SimpleQueue[int](), threading.Event()

    def fail_at_first(event: TableEvent) -> None:
        came.put(event.version)
        if not may_succeed.is_set():
            raise ValueError("not now")

    with lakebed.warehouse(lake).listen(fail_at_first) as listening:
        orders.apply(changes())
        assert next_of(came, 2) == [1, 1] and listening.error == "ValueError: not now"
        orders.apply(changes())
        assert next_of(came) == [1]
        may_succeed.set()
        later = next_of(came)
        while later[-1] == 1:
            later += next_of(came)
    assert later[-1] == 2 and came.empty() and listening.error == ""


def test_the_function_itself_may_stop_it(lake: str) -> None:
    orders = make(lake, "orders")
    stopped = threading.Event()
    came: list[TableEvent] = []

    def once(event: TableEvent) -> None:
        came.append(event)
        listening.stop()
        stopped.set()

    listening = lakebed.warehouse(lake).listen(once)
    for _ in range(3):
        orders.apply(changes())
    assert stopped.wait(SECONDS_MAX)
    listening.stop()
    assert [event.version for event in came] == [1]
    assert Cursor.of_text(listening.cursor).tables["orders"].version == 1


@pytest.mark.parametrize("wrong", [{"cursor": "last"}, {"cursor": 57}, {"kinds": ["merge"]}, {"tables": []}])
def test_what_can_not_be_listened_to_is_refused(lake: str, wrong: dict[str, object]) -> None:
    make(lake, "orders")
    threads = ThreadsSince()
    with pytest.raises(InvalidInput):
        lakebed.warehouse(lake).listen(print, **wrong)  # type: ignore[arg-type]
    assert not threads.named("")


def test_threads_deliver_to_listeners_that_come_change_and_go(lake: str, received: Received) -> None:
    orders, items = make(lake, "public/orders"), make(lake, "public/items")
    deliverer = Deliverer(lake, look_seconds=0.05)
    deliverer.start()
    try:
        for name, tables in (("good", "*"), ("bad", "public.orders")):
            url = received.url if name == "good" else f"http://127.0.0.1:{os.getpid() % 1000 + 1}/nobody"
            listener = Listener(name=name, target=Webhook(url=url), tables=(tables,))
            deliverer.log.put(listener, Cursor())
        for table in (orders, items) * 3:
            table.apply(changes())
        wait_until(lambda: len(received.acknowledged) == 8)
        wait_until(lambda: deliverer.running() == ("bad", "good"))
        came = [(one["subject"], one["data"]["version"]) for one in received.acknowledged]
        for name in ("public.orders", "public.items"):
            assert [version for table, version in came if table == name] == [0, 1, 2, 3]
        deliverer.log.put(Listener(name="good", target=Webhook(url=received.url), kinds=("settled",)), Cursor())
        wait_until(lambda: deliverer.log.state()[1]["good"].process == deliverer.process)
        deliverer.log.remove("bad")
        wait_until(lambda: deliverer.running() == ("good",))
        orders.apply(changes())
        orders.settle()
        wait_until(lambda: len(received.acknowledged) == 9)
        assert received.acknowledged[-1]["type"] == "dev.lakebed.table.settled.v1"
    finally:
        deliverer.close()
    listeners, delivering = deliverer.log.state()
    assert listeners.keys() == {"good"} and delivering == {}
    assert deliverer.log.cursor("good").tables["public.orders"].version == orders.version


def test_a_commit_of_this_process_is_delivered_without_waiting_for_a_look(lake: str) -> None:
    orders = make(lake, "orders")
    feed = Feed(lake)
    feed.read(feed.newest())
    assert 0 < feed.pause_seconds() <= 1.0
    came = SimpleQueue[TableEvent]()
    with lakebed.warehouse(lake).listen(came.put) as listening:
        orders.apply(changes())
        assert next_of(came)
        assert listening.error == ""
