"""Which events that transactions count may still come into a topic, and whose topic they come into."""

from __future__ import annotations

import pytest

from lakebed.points.window import TransactionRecord, Window
from lakebed.sources.cut import Expected, Partitions, first_missing

ENDED = {"a": 10, "b": 20, "c": 30}
EXPECTED = [Expected(place, id, 2) for id, place in ENDED.items()]
WHOLE, HALF = {0: (2, 2)}, {0: (1, 1)}


@pytest.mark.parametrize(
    ("has", "stopped", "partitions", "missing"),
    [
        ({"a": WHOLE, "b": WHOLE, "c": WHOLE}, {}, None, None),
        ({"a": WHOLE, "b": HALF, "c": WHOLE}, {}, None, "b"),
        ({"a": WHOLE, "b": HALF, "c": WHOLE}, {}, Partitions(1, until=20), None),
        ({"a": WHOLE, "c": WHOLE}, {}, Partitions(1, until=20), None),
        ({"a": WHOLE, "b": HALF, "c": WHOLE}, {}, Partitions(1, until=19), "b"),
        ({"a": WHOLE, "b": HALF, "c": WHOLE}, {}, Partitions(2, until=30), "b"),
        ({"a": WHOLE, "b": HALF, "c": {1: (2, 2)}}, {}, Partitions(1, until=30), "b"),
        ({"a": WHOLE, "b": HALF, "c": {0: (1, 1), 1: (1, 2)}}, {}, Partitions(2, until=30), None),
        ({"a": HALF, "b": WHOLE, "c": HALF}, {}, Partitions(1, until=30), "c"),
        ({"a": WHOLE, "b": WHOLE, "c": HALF}, {0: "open"}, Partitions(1, until=30), None),
        ({"a": WHOLE, "b": WHOLE, "c": HALF}, {0: "c"}, Partitions(1, until=30), "c"),
        ({"a": WHOLE, "b": HALF}, {0: "c"}, Partitions(1, until=20), "c"),
        ({"a": WHOLE, "b": HALF, "c": WHOLE}, {1: "open"}, Partitions(2, until=30), None),
    ],
)
def test_an_event_may_come_until_each_partition_has_one_of_a_later_transaction(
    has: dict[str, dict[int, tuple[int, int]]],
    stopped: dict[int, str],
    partitions: Partitions | None,
    missing: str | None,
) -> None:
    found = first_missing(EXPECTED, has, stopped, ENDED.get, partitions)
    assert (found.id if found else None) == missing


def end(id: str, offset: int, **events: int) -> TransactionRecord:
    return TransactionRecord(
        id=id, offset=offset, time_ms=0, written_ms=0, events={k.replace("__", "."): n for k, n in events.items()}
    )


@pytest.mark.parametrize(
    ("counted", "table"),
    [
        ("public__shard_1", ("shop", "public", "shard_1")),  # PostgreSQL
        ("shop__shard_1", ("shop", "shard_1")),  # MariaDB
        ("PDB__APP__shard_1", ("PDB", "APP", "shard_1")),  # Oracle
        ("shop__shard_1", ("shop", "public", "shard_1")),
    ],
)
def test_events_that_name_their_table_show_whose_counts_are_those_of_the_topic(
    counted: str, table: tuple[str, ...]
) -> None:
    window = Window(prefix="s")
    window.observe([end("1", 0, public__shards=1, **{counted: 2}), end("2", 1, **{counted: 3})])
    assert not window.learn("s.public.shards", "2", ("shop", "public", "other"))
    assert window.learn("s.public.shards", "2", table) and not window.learn("s.public.shards", "2", table)
    window.observe([end("3", 2, **{counted: 4})])
    assert [(one.id, one.events) for one in window.expected("s.public.shards", -1, 9)] == [("1", 3), ("2", 3), ("3", 4)]
    assert window.topics(-1, 9) == {"s.public.shards"}


def test_a_table_with_a_topic_of_its_own_is_not_taken_for_part_of_another() -> None:
    window = Window(prefix="s")
    window.observe([end("1", 0, public__a=1)])
    assert not window.learn("s.public.a", "1", ("shop", "public", "a"))
