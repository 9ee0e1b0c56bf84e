"""What a catalog is told, and when: with a catalog in memory, which is as slow and as choosy as a test says."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lakebed
from lakebed.errors import InvalidInput
from lakebed.listeners.catalogs.entry import Entry, Name, Parameters, Unavailable
from lakebed.listeners.feed import Cursor
from lakebed.listeners.targets import Catalog
from tests.listeners.catalogs.catalogs import Follower
from tests.listeners.test_listening import changes, make

pytestmark = pytest.mark.usefixtures("own_cache")
TARGET = Catalog(url="thrift://nowhere")


class Memory:
    """A catalog: its entries, and how often each was written."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.asked: list[str] = []
        self.happens: Callable[[str], object] = lambda name: None

    def ensure(self, name: Name, entry: Entry) -> bool:
        self.asked.append(str(name))
        self.happens(str(name))
        self.entries[str(name)] = entry
        return True

    def drop(self, name: Name, is_ours: Callable[[Parameters], bool]) -> None:
        self.asked.append(str(name))
        self.happens(str(name))
        found = self.entries.get(str(name))
        if found is not None and is_ours(found.parameters):
            del self.entries[str(name)]

    def close(self) -> None:
        """Nothing is held."""


@pytest.fixture
def catalog() -> Iterator[Memory]:
    yield Memory()


def follower(lake: Path, catalog: Memory, cursor: Cursor | None = None, target: Catalog = TARGET) -> Follower:
    return Follower(str(lake), target, cursor, connect=lambda _: catalog)


def test_it_begins_with_all_tables_and_goes_on_with_those_that_change(tmp_path: Path, catalog: Memory) -> None:
    for name in ("public/orders", "public/items", "plain", "public/orders_quarantine"):
        make(str(tmp_path), name)
    one = follower(tmp_path, catalog)
    assert one.step() == ""
    assert sorted(catalog.entries) == ["default.plain", "public.items", "public.orders"]
    catalog.asked.clear()
    lakebed.open(tmp_path / "public/items").alter(add={"note": "string"})
    lakebed.open(tmp_path / "public/orders").apply(changes())
    make(str(tmp_path), "public/more")
    assert one.step() == ""
    assert sorted(set(catalog.asked)) == ["public.items", "public.more"]
    catalog.asked.clear()
    assert follower(tmp_path, catalog, one.delivery.cursor).step() == "" and not catalog.asked


def test_a_catalog_that_is_slow_gets_some_tables_a_round_and_all_in_the_end(tmp_path: Path, catalog: Memory) -> None:
    for number in range(6):
        make(str(tmp_path), f"public/t{number}")
    one = follower(tmp_path, catalog)

    def take_long(_: str) -> None:
        one.clock.now += 8.0

    catalog.happens = take_long
    one.delivery.step()
    assert 0 < len(catalog.entries) < 6 and one.delivery.error == ""
    assert one.behind_seconds() > 0
    assert one.step(3) == "" and len(catalog.entries) == 6 and one.behind_seconds() == 0


def test_what_it_does_not_take_holds_up_one_table_and_no_answer_all(
    tmp_path: Path, catalog: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b", "c"):
        make(str(tmp_path), f"public/{name}")

    def choosy(name: str) -> None:
        if name == "public.b":
            raise InvalidInput("no column may be called id")

    catalog.happens = choosy
    one = follower(tmp_path, catalog)
    assert one.step(2) == "public.b: no column may be called id"
    said = [each.getMessage() for each in caplog.records if each.name == "lakebed.listeners"]
    assert said == ["the listener catalog fails: public.b: no column may be called id"], "once"
    assert sorted(catalog.entries) == ["public.a", "public.c"]

    def silent(name: str) -> None:
        raise Unavailable("no answer")

    catalog.happens = silent
    for name in ("a", "b", "c"):
        lakebed.open(tmp_path / "public" / name).alter(add={"note": "string"})
    catalog.asked.clear()
    assert one.step() == "thrift://nowhere does not answer: no answer" and len(catalog.asked) == 1
    pauses = [one.delivery.step() for _ in range(2)]
    assert pauses == [1.0, 1.0] and len(catalog.asked) == 1, "it is left alone meanwhile"
    catalog.happens = lambda name: None
    assert one.step(2) == "" and one.behind_seconds() == 0
    assert all(len(entry.columns) == 2 for entry in catalog.entries.values())


def test_a_change_during_the_write_is_in_the_next_write_of_the_round(tmp_path: Path, catalog: Memory) -> None:
    orders = make(str(tmp_path), "public/orders")
    one = follower(tmp_path, catalog)
    happened: list[str] = []

    def change(name: str) -> None:
        if not happened:
            happened.append(name)
            orders.alter(add={"note": "string"})

    catalog.happens = change
    one.step()
    assert len(catalog.entries["public.orders"].columns) == 2


def test_a_table_that_comes_back_before_anybody_looked_keeps_its_entry(tmp_path: Path, catalog: Memory) -> None:
    orders = make(str(tmp_path), "public/orders")
    make(str(tmp_path), "public/items")
    one = follower(tmp_path, catalog)
    one.step()
    orders.drop()
    lakebed.undrop(orders.path)
    lakebed.open(orders.path).alter(add={"note": "string"})
    assert one.step() == "" and len(catalog.entries["public.orders"].columns) == 2
    orders.drop()
    one.feed.poke("public.orders")  # the drop is seen before its mark is
    one.clock.now += 1.0
    one.delivery.step()
    assert list(catalog.entries) == ["public.items"]
    lakebed.undrop(orders.path)
    assert one.step() == "" and sorted(catalog.entries) == ["public.items", "public.orders"]


def test_batches_of_tables_that_are_not_for_iceberg_cost_a_catalog_of_iceberg_nothing(
    tmp_path: Path, catalog: Memory
) -> None:
    orders = make(str(tmp_path), "public/orders")
    one = follower(tmp_path, catalog, target=Catalog(url="thrift://nowhere", format="iceberg"))
    assert one.step() == "" and catalog.asked == ["public.orders"], "there may be an entry from before"
    for _ in range(3):
        orders.apply(changes())
        orders.settle()
        assert one.step() == ""
    assert catalog.asked == ["public.orders"] and not catalog.entries
    orders.set_properties({"lakebed.iceberg": "on"})
    assert one.step(2) == "" and list(catalog.entries) == ["public.orders"]
    orders.set_properties({"lakebed.iceberg": "off"})
    assert one.step() == "" and not catalog.entries


def test_a_copy_that_is_dropped_leaves_the_entry_of_the_table(tmp_path: Path, catalog: Memory) -> None:
    """It has the table's id, and where all are entered in one database it would have the same name."""
    make(str(tmp_path), "a/orders")
    one = follower(tmp_path, catalog, target=Catalog(url="thrift://nowhere", database="shop"))
    one.step()
    before = dict(catalog.entries)
    shutil.copytree(tmp_path / "a/orders", tmp_path / "b/orders")

    def refuse(name: str) -> None:
        raise InvalidInput("it is taken")

    catalog.happens = refuse
    assert one.step(2) == "b.orders: it is taken"
    catalog.happens = lambda name: None
    lakebed.open(tmp_path / "b/orders").drop()
    assert one.step(3) == "" and catalog.entries == before
    lakebed.open(tmp_path / "a/orders").drop()
    assert one.step(3) == "" and not catalog.entries
