"""What is kept of parts' statistics says what the statistics say, whatever was asked and forgotten before."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from itertools import combinations
from typing import Any

import pyarrow as pa
import pytest

from lakebed.sortkey import statistics_cache as known_module
from lakebed.sortkey.ranges import order_columns, range_of
from lakebed.sortkey.statistics_cache import StatisticsCache
from tests.worlds import seeds

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string()), ("d", pa.decimal128(38, 4)), ("f", pa.float64())])
values_of = known_module._values
ORDERS = [order_columns(SCHEMA, order, ()) for order in (["n"], ["s", "n"], ["n desc"], ["d"], ["f", "s"])]


def text_of(world: random.Random) -> str | None:
    if world.random() < 0.1:
        return None
    low, width = world.randrange(30), world.choice((0, 1, 10))
    ends = [{"n": n, "s": f"k{n:02d}", "d": float(Decimal(n) / 16), "f": n / 8} for n in (low, low + width)]
    for name in world.sample(SCHEMA.names, world.choice((0, 0, 1))):
        del ends[0][name]
    nulls = {name: world.choice((0, 0, 3)) for name in SCHEMA.names}
    return json.dumps({"numRecords": 9, "minValues": ends[0], "maxValues": ends[1], "nullCount": nulls})


@seeds(6, quick=6)
def test_ranges_and_bounds_are_those_of_each_text_whatever_was_met_and_forgotten(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_module, "SPARE_TEXTS", 4)
    world, known = random.Random(seed), StatisticsCache()
    live: list[str | None] = []
    for _ in range(40):
        live = [text for text in live if world.random() < 0.8] + [text_of(world) for _ in range(world.randrange(6))]
        asked = world.sample(live, world.randrange(len(live) + 1))
        terms = world.choice(ORDERS)
        found = known.ranges(asked, terms)
        assert list(found.ranges) == [range_of(text, terms) for text in asked]
        lowers = [*zip((item.lower for item in found.ranges), found.lower.tolist(), strict=True)]
        ends = [*lowers, *zip((item.upper for item in found.ranges), found.upper.tolist(), strict=True)]
        for (one, rank), (other, other_rank) in combinations(ends, 2):
            assert (one < other, one == other) == (rank < other_rank, rank == other_rank)
        field = SCHEMA.field(world.choice(SCHEMA.names))
        low, high = known.bounds(asked, field)
        fresh_low, fresh_high = StatisticsCache().bounds(asked, field)
        assert low.equals(fresh_low) and high.equals(fresh_high)
        for text, bound in zip(asked, low.to_pylist(), strict=True):
            told = json.loads(text or "{}", parse_float=Decimal)
            least = told.get("minValues", {}).get(field.name)
            assert bound == (None if told.get("maxValues", {}).get(field.name) is None else least)
        known.keep(live)
        assert len(known) <= len(live) * (1 + known_module.SPARE_SHARE) + 4


def test_exact_decimals_stay_exact_beside_other_columns() -> None:
    text = '{"numRecords":1,"minValues":{"d":%s,"n":1},"maxValues":{"d":%s,"n":1},"nullCount":{"d":0,"n":0}}'
    texts = [text % ((f"1234567890123456789.000{last}",) * 2) for last in (1, 2)]
    known = StatisticsCache()
    known.bounds(texts, SCHEMA.field("n"))
    first, second = known.ranges(texts, order_columns(SCHEMA, ["d"], ())).lower
    assert first < second
    assert known.bounds(texts, SCHEMA.field("d"))[0].to_pylist() == [
        Decimal("1234567890123456789.0001"),
        Decimal("1234567890123456789.0002"),
    ]


def test_bounds_that_another_writer_wrote_in_its_own_way_are_not_known_and_those_of_others_are() -> None:
    known = StatisticsCache()
    assert known.bounds(['{"minValues":{"n":1},"maxValues":{"n":2}}'], SCHEMA.field("n"))[1].to_pylist() == [2]
    texts = [
        '{"minValues":{"n":"one"},"maxValues":{"n":"two"}}',
        '{"minValues":{"n":1},"maxValues":{"n":2}}',
    ]
    assert known.bounds(texts, SCHEMA.field("n"))[0].to_pylist() == [None, 1]


def test_as_many_orders_and_columns_are_kept_as_may_be_and_those_that_went_are_read_again() -> None:
    known, text = StatisticsCache(), '{"numRecords":1,"minValues":{"n":4},"maxValues":{"n":5},"nullCount":{"n":0}}'
    for number in range(40):
        low, _ = known.bounds([text], pa.field("n" if number % 2 else f"c{number}", pa.int64()))
        assert low.to_pylist() == [4 if number % 2 else None]
    for terms in ORDERS * 2:
        assert known.ranges([text], terms).ranges == [range_of(text, terms)]


class Held(threading.Event):
    """A gate in ``_values``: it is reached, and waits until it is open."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Semaphore(0)
        self.texts: list[str | None] = []

    def values(self, text: str | None, is_exact: bool) -> Mapping[str, Any]:
        self.texts.append(text)
        self.reached.release()
        assert self.wait(60)
        return values_of(text, is_exact)


def test_nobody_waits_for_another_order_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    text, held = '{"numRecords":1,"minValues":{"n":4},"maxValues":{"n":5},"nullCount":{"n":0}}', Held()
    known = StatisticsCache()
    known.ranges([text], ORDERS[0])
    monkeypatch.setattr(known_module, "_values", held.values)
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(known.bounds, [text], SCHEMA.field("n"))
        assert held.reached.acquire(timeout=60)
        assert pool.submit(known.ranges, [text], ORDERS[0]).result(60).ranges == [range_of(text, ORDERS[0])]
        assert len(known) == 1 and not slow.done()
        held.set()
        assert slow.result(60)[0].to_pylist() == [4]


def test_a_text_is_read_once_for_a_column_whoever_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    text, held = '{"numRecords":1,"minValues":{"n":4},"maxValues":{"n":5},"nullCount":{"n":0}}', Held()
    known = StatisticsCache()
    monkeypatch.setattr(known_module, "_values", held.values)
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(known.bounds, [text], SCHEMA.field("n")) for _ in range(4)]
        held.set()
        assert [low.to_pylist() for low, _ in (each.result(60) for each in asked)] == [[4]] * 4
    assert held.texts == [text]


def test_nothing_is_forgotten_while_another_thread_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_module, "SPARE_TEXTS", 0)
    texts = [
        f'{{"numRecords":1,"minValues":{{"n":{n}}},"maxValues":{{"n":{n}}},"nullCount":{{"n":0}}}}' for n in range(9)
    ]
    known, held = StatisticsCache(), Held()
    monkeypatch.setattr(known_module, "_values", held.values)
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(known.bounds, texts, SCHEMA.field("n"))
        assert held.reached.acquire(timeout=60)
        pool.submit(known.keep, texts[5:]).result(60)
        assert len(known) == 9
        held.set()
        assert slow.result(60)[0].to_pylist() == list(range(9))
    known.keep(texts[5:])
    assert len(known) == 4
    assert known.bounds(texts, SCHEMA.field("n"))[0].to_pylist() == list(range(9))
