"""The generated stream of orders."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from lakebed.decode.debezium.events import DebeziumJson
from lakebed.decode.decoder import DecoderSchema
from lakebed.errors import InvalidInput
from lakebed.sources.generator import COLUMNS, KEYS, GeneratorPlanner, GeneratorReader, OrderStream

CLOCK = 1_700_000_000_000_000


def events(stream: OrderStream, start: int, end: int) -> list[dict[str, Any]]:
    return [json.loads(value) for value in stream.events(start, end, CLOCK).column("value").to_pylist()]


def order_of(event: dict[str, Any]) -> int:
    return int((event["after"] or event["before"])["order_id"])


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize(("inserts", "deletes"), [(0.25, 0.05), (0.5, 0.25), (0.1, 0.0), (1.0, 0.0), (0.3333, 0.1)])
def test_changes_are_of_orders_that_exist(inserts: float, deletes: float) -> None:
    alive: set[int] = set()
    created = 0
    for event in events(OrderStream(inserts=inserts, deletes=deletes, late=0.1), 0, 20_000):
        order = order_of(event)
        if event["op"] == "c":
            assert order == created
            created += 1
            alive.add(order)
            continue
        assert order in alive
        if event["op"] == "d":
            alive.remove(order)
    assert created == pytest.approx(20_000 * inserts, abs=2)
    assert created - len(alive) == pytest.approx(max(0, 20_000 * deletes - 200), abs=25)


def test_a_range_gives_the_same_events_however_it_is_cut() -> None:
    stream = OrderStream(late=0.2)
    whole = stream.events(0, 5000, CLOCK)
    pieces = [stream.events(start, end, CLOCK) for start, end in ((0, 1), (1, 777), (777, 778), (778, 5000))]
    assert pa.concat_tables(pieces).combine_chunks() == whole.combine_chunks()
    assert OrderStream(late=0.2, seed=2).events(0, 5000, CLOCK) != whole


def test_the_events_decode_without_a_loss() -> None:
    table = OrderStream().events(0, 10_000, CLOCK)
    decoded = DebeziumJson(DecoderSchema(COLUMNS, KEYS, "source.lsn")).decode(table)
    assert decoded.changes.num_rows == 10_000
    assert decoded.quarantined.num_rows == 0
    assert 500 < table.column("value").nbytes / 10_000 < 700


def test_skew_prefers_recent_orders() -> None:
    def median_age(skew: float) -> int:
        ages = [
            5000 - order_of(event) for event in events(OrderStream(skew=skew), 19_000, 20_000) if event["op"] == "u"
        ]
        return sorted(ages)[len(ages) // 2]

    assert median_age(1.0) < 300 < 2000 < median_age(0.0)


def test_late_updates_happened_before_they_arrive() -> None:
    late = [e for e in events(OrderStream(late=0.5), 5000, 6000) if e["source"]["ts_ms"] < e["ts_ms"]]
    assert {event["op"] for event in late} == {"u"}
    assert 200 < len(late) < 500


def test_wrong_shares_are_refused() -> None:
    with pytest.raises(InvalidInput, match="deletes at most half"):
        OrderStream(inserts=0.1, deletes=0.2)


def test_a_stream_that_comes_back_goes_on_with_the_next_event() -> None:
    orders = OrderStream(events_per_second=1000)
    hour = 3_600_000_000
    then, times = {"next": 5000, "clock": CLOCK}, iter([CLOCK + hour, CLOCK + hour + 7_000, CLOCK + hour + 9_000])
    planner, reader = GeneratorPlanner(orders, None, lambda: next(times)), GeneratorReader(orders, tasks=2)
    assert planner.next(then) == then, "its clock was moved, so nothing is due that came while it was stopped"
    end = planner.next(then)
    assert end == {"next": 5007, "clock": CLOCK + hour - 5_000_000}
    assert planner.next(end) == end | {"next": 5009}
    ranges = reader.ranges(then, end)
    assert ranges[0].start == 5000
    assert ranges[0].end == ranges[1].start
    assert ranges[-1].end == end["next"]
    assert reader.ranges(end, end) == []
