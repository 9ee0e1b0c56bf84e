"""What the documentation of Paimon and Hudi shows, and lakebed's answer (docs/guides/several-streams.md)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import InvalidInput

NUMBER = pa.int64()


def table(path: Any, columns: str, **properties: Any) -> lakebed.Table:
    """A table of numbers with the key ``k``. Without a stream of an owner, each group creates rows."""
    schema = pa.schema([pa.field("k", NUMBER, False), *((name, NUMBER) for name in columns.split())])
    properties = {name.replace("__", "."): value for name, value in properties.items()}
    return lakebed.create(str(path / "t"), schema, ["k"], sequence_by="owner_ts", properties=properties)


def insert(made: lakebed.Table, *values: int | None) -> None:
    """All columns, as an INSERT of SQL brings them; a group whose order is null is not sent."""
    row = dict(zip(made.schema.names, values, strict=True))
    made.apply([{name: value for name, value in row.items() if value is not None}], columns="sent")


def rows(made: lakebed.Table) -> list[tuple[int | None, ...]]:
    found = [tuple(row.values()) for row in made.to_arrow().sort_by("k").to_pylist()]
    made.settle()
    assert found == [tuple(row.values()) for row in made.to_arrow().sort_by("k").to_pylist()]
    return found


def group(order: str, *columns: str) -> dict[str, Any]:
    return {"columns": list(columns), "sequence_by": order, "creates": True}


def test_partial_update_keeps_what_is_null(tmp_path: Any) -> None:
    schema = pa.schema([pa.field("k", NUMBER, False), ("price", pa.float64()), ("n", NUMBER), ("text", pa.string())])
    made = lakebed.create(str(tmp_path / "t"), schema, ["k"])
    for price, n, text in ((23.0, 10, None), (None, None, "This is a book"), (25.2, None, None)):
        made.apply([{"k": 1, "price": price, "n": n, "text": text}], ignore_null_updates=True)
    assert rows(made) == [(1, 25.2, 10, "This is a book")]


def test_a_sequence_group_is_updated_if_its_order_is_there_and_not_smaller(tmp_path: Any) -> None:
    made = table(
        tmp_path, "a b g_1 c d g_2 owner_ts", lakebed__groups={"1": group("g_1", "a", "b"), "2": group("g_2", "c", "d")}
    )
    insert(made, 1, 1, 1, 1, 1, 1, 1, None)
    made.apply([{"k": 1, "a": 2, "b": 2, "g_1": 2}], columns="sent")  # c and d without g_2 are refused, not dropped
    assert rows(made) == [(1, 2, 2, 2, 1, 1, 1, None)]
    insert(made, 1, 3, 3, 1, 3, 3, 3, None)
    assert rows(made) == [(1, 2, 2, 2, 3, 3, 3, None)]


def test_aggregates_within_sequence_groups(tmp_path: Any) -> None:
    made = table(
        tmp_path,
        "a b c d owner_ts",
        lakebed__groups={"a": group("a", "b"), "c": group("c", "d")},
        lakebed__aggregate__b="first",
        lakebed__aggregate__d="sum",
    )
    for values in ((1, 1, None, None), (None, None, 1, 1), (2, 2, None, None), (None, None, 2, 2)):
        insert(made, 1, *values, None)
    assert rows(made) == [(1, 2, 1, 2, 3, None)]


@pytest.mark.parametrize(("function", "expected"), [("sum", 6), ("max", 3), ("min", 1)])
def test_a_late_value_counts_among_all(tmp_path: Any, function: str, expected: int) -> None:
    made = table(tmp_path, "a g_1 owner_ts", lakebed__groups={"1": group("g_1", "a")}, lakebed__aggregate__a=function)
    for a, g_1 in ((1, 1), (2, 2), (3, 1)):
        insert(made, 1, a, g_1, None)
    assert rows(made) == [(1, expected, 2, None)]


def test_a_default_aggregate_of_last_non_null(tmp_path: Any) -> None:
    made = table(
        tmp_path, "a b owner_ts", lakebed__groups={"a": group("a", "b")}, lakebed__aggregate__b="last_non_null"
    )
    made.apply([{"k": 1, "a": 1, "b": 1}, {"k": 1, "a": 2, "b": None}], columns="sent")
    assert rows(made) == [(1, 2, 1, None)]


@pytest.mark.parametrize(
    ("of_owner", "deletes", "expected"),
    [(False, "true", [(1, None, 2, 7, 1)]), (True, "true", []), (True, None, [(1, 1, 1, 7, 2)])],
)
def test_a_delete_of_a_group_retracts_its_columns_and_one_of_the_owner_removes_the_row(
    tmp_path: Any, of_owner: bool, deletes: str | None, expected: list[tuple[int | None, ...]]
) -> None:
    """Unless nobody says that it is a delete (``ignore-delete``)."""
    made = table(tmp_path, "a g_1 own owner_ts", lakebed__groups={"1": group("g_1", "a")})
    made.apply([{"k": 1, "a": 1, "g_1": 1}], columns="sent")
    made.apply([{"k": 1, "own": 7, "owner_ts": 1}], columns="sent")
    change = {"k": 1, "own": 7, "owner_ts": 2} if of_owner else {"k": 1, "a": 1, "g_1": 2}
    made.apply([change], deletes, columns="sent")
    assert rows(made) == expected


def test_first_row_without_an_order_is_the_first_to_come_at_once(tmp_path: Any) -> None:
    schema = pa.schema([pa.field("k", NUMBER, False), ("a", NUMBER)])
    made = lakebed.create(str(tmp_path / "t"), schema, ["k"], properties={"lakebed.keep": "first"})
    for a in (2, 1):
        made.apply([{"k": 1, "a": a}])
    assert rows(made) == [(1, 2)]


def test_first_row_takes_an_order_and_deletes_too(tmp_path: Any) -> None:
    made = table(tmp_path, "a owner_ts", lakebed__keep="first")
    made.apply([{"k": 1, "a": 1, "owner_ts": 5}, {"k": 1, "a": 2, "owner_ts": 4}, {"k": 1, "a": 3, "owner_ts": 4}])
    assert rows(made) == [(1, 2, 4)]
    made.apply([{"k": 1, "a": 0, "owner_ts": 0}], "a = 0")
    assert rows(made) == []


def test_an_order_of_several_columns_is_refused(tmp_path: Any) -> None:
    with pytest.raises(InvalidInput, match=r"sequence_by \(a name\)"):
        table(tmp_path, "a b c owner_ts", lakebed__groups={"1": {"columns": ["a"], "sequence_by": ["b", "c"]}})


@pytest.mark.parametrize("keeps", [{"columns": "sent"}, {"ignore_null_updates": True}])  # KEEP_VALUES, IGNORE_DEFAULTS
def test_a_newer_partial_update_of_hudi_keeps_what_it_does_not_have(tmp_path: Any, keeps: dict[str, Any]) -> None:
    made = table(tmp_path, "owner_ts name price")
    made.apply([{"k": 1, "owner_ts": 1, "name": 1, "price": 1}])
    price = {"k": 1, "owner_ts": 2, "price": 2}
    made.apply([price if "columns" in keeps else price | {"name": None}], **keeps)
    assert rows(made) == [(1, 2, 1, 2)]


def test_a_late_partial_update_of_hudi_loses_unless_its_columns_have_an_order_of_their_own(tmp_path: Any) -> None:
    made = table(tmp_path / "rows", "owner_ts name price")
    for change in ({"owner_ts": 2, "name": 1}, {"owner_ts": 1, "price": 1}):
        made.apply([{"k": 1} | change], columns="sent")
    assert rows(made) == [(1, 2, 1, None)]
    of_price = {"price": group("price_ts", "price")}
    made = table(tmp_path / "groups", "owner_ts name price price_ts", lakebed__groups=of_price)
    for change in ({"owner_ts": 2, "name": 1}, {"price_ts": 1, "price": 1}):
        made.apply([{"k": 1} | change], columns="sent")
    assert rows(made) == [(1, 2, 1, 1, 1)]
