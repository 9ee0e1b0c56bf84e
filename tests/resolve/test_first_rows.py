"""Tables that keep the first row of a key: events that come more than once."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import InvalidChanges, InvalidInput
from tests.worlds import seeds

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("at", pa.int64()), ("text", pa.string())])
FIRST = {"lakebed.keep": "first"}


def created(path: Any, sequence_by: str | None = None, keys: tuple[str, ...] = ("id",), **more: Any) -> lakebed.Table:
    return lakebed.create(str(path / "events"), SCHEMA, keys, sequence_by=sequence_by, properties=FIRST | more)


def rows(table: lakebed.Table) -> dict[int, tuple[int, str]]:
    return {row["id"]: (row["at"], row["text"]) for row in table.to_arrow().to_pylist()}


def test_duplicates_of_an_event_change_nothing(tmp_path: Any) -> None:
    events = created(tmp_path)
    events.apply([{"id": 1, "at": 5, "text": "a"}, {"id": 1, "at": 5, "text": "b"}])
    events.apply([{"id": 1, "at": 5, "text": "c"}, {"id": 2, "at": 6, "text": "d"}])
    assert rows(events) == {1: (5, "a"), 2: (6, "d")}
    assert events.settle().late_rows == 0
    events.apply([{"id": 2, "at": 1, "text": "e"}])
    assert rows(events) == {1: (5, "a"), 2: (6, "d")}


def test_with_an_order_an_earlier_event_that_comes_late_is_the_first(tmp_path: Any) -> None:
    events = created(tmp_path, "at")
    events.apply([{"id": 1, "at": 5, "text": "a"}])
    events.settle()
    events.apply([{"id": 1, "at": 4, "text": "b"}, {"id": 1, "at": 4, "text": "c"}])
    assert rows(events) == {1: (4, "b")}


def test_a_table_without_keys_keeps_all_rows(tmp_path: Any) -> None:
    with pytest.raises(InvalidInput, match="a table without keys keeps all rows"):
        created(tmp_path, keys=())


def test_first_rows_are_whole(tmp_path: Any) -> None:
    with pytest.raises(InvalidInput, match="about rows that change"):
        created(tmp_path, "at", **{"lakebed.aggregate.text": "max"})
    with pytest.raises(InvalidChanges, match="needs whole ones"):
        created(tmp_path).apply([{"id": 1, "at": 5}], columns="sent")


class First:
    """What the table must hold."""

    def __init__(self, has_order: bool) -> None:
        self.has_order = has_order
        self.rows: dict[int, tuple[int, str]] = {}

    def take(self, id: int, at: int, text: str, gone: bool) -> None:
        if gone:
            self.rows.pop(id, None)
        elif id not in self.rows or (self.has_order and at < self.rows[id][0]):
            self.rows[id] = at, text


@pytest.mark.few(2)
@seeds(4)
def test_the_first_row_of_a_key_is_kept_until_it_is_deleted(tmp_path: Any, seed: int) -> None:
    rng = random.Random(seed)
    events = created(tmp_path, "at" if seed % 2 else None, **{"lakebed.read_budget": 1})
    first = First(bool(seed % 2))
    for number in range(12):
        batch = []
        for place in range(rng.randint(1, 5)):
            change = {"id": rng.randint(0, 4), "at": rng.randint(0, 9), "text": f"{number}.{place}"}
            gone = rng.random() < 0.15
            batch.append(change | {"gone": gone})
            first.take(**change, gone=gone)
        events.apply(pa.Table.from_pylist(batch), "gone")
        assert rows(events) == first.rows
        match rng.choice(["", "settle", "compact", "update", "delete"]):
            case "settle":
                events.settle()
            case "compact":
                events.maintenance.compact()
            case "update":
                events.update({"text": "'new'"}, "id = 1")
                first.rows |= {1: (first.rows[1][0], "new")} if 1 in first.rows else {}
            case "delete":
                events.delete("id = 2")
                first.rows.pop(2, None)
        assert rows(events) == first.rows
