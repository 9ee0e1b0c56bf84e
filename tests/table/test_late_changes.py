"""Late events, deletes that outlive their rows, values that a source did not send: one history, settled at any moment.

A history is told change by change; whatever batches it came in and whenever it was settled, by a process that has a key
index or by one that opens the table anew, the table must say the same.
"""

from __future__ import annotations

import itertools
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.parts.changes import OP_COLUMN, UNAVAILABLE_COLUMN

SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.string()), ("other", pa.string()), ("seq", pa.int64())])


pytestmark = pytest.mark.usefixtures("own_cache")


def upsert(seq: int, value: str | None, other: str | None = None, missing: tuple[str, ...] = ()) -> dict[str, Any]:
    row = {"id": 1, "value": value, "other": other, "seq": seq}
    return {**row, OP_COLUMN: "u", UNAVAILABLE_COLUMN: list(missing) or None}


def delete(seq: int) -> dict[str, Any]:
    """A delete may carry values; they are none of a row that comes after it."""
    row = {"id": 1, "value": "deleted", "other": "deleted", "seq": seq}
    return {**row, OP_COLUMN: "d", UNAVAILABLE_COLUMN: None}


def as_arrow(changes: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> pa.Table:
    schema = schema.append(pa.field(OP_COLUMN, pa.string())).append(pa.field(UNAVAILABLE_COLUMN, pa.list_(pa.string())))
    return pa.Table.from_pylist(changes, schema)


GONE = None
HISTORIES = {
    "a delete outweighs a late upsert": ([upsert(1, "a"), delete(5), upsert(3, "late")], GONE),
    "a delete of a row never seen outweighs a late upsert": ([delete(5), upsert(3, "late")], GONE),
    "an upsert newer than a delete brings the row back": (
        [upsert(1, "a"), delete(5), upsert(6, "back")], ("back", None)),
    "an upsert as new as a delete brings the row back": ([delete(5), upsert(5, "back")], ("back", None)),
    "a delete as new as a row takes it away": ([upsert(5, "a"), delete(5)], GONE),
    "a row as new as a row replaces it": ([upsert(5, "a"), upsert(5, "b")], ("b", None)),
    "a late delete does nothing": ([upsert(5, "a"), delete(4)], ("a", None)),
    "a delete later than a late upsert still holds": ([delete(5), upsert(3, "late"), upsert(4, "late")], GONE),
    "a row brought back outweighs what came before it": (
        [delete(5), upsert(8, "back"), upsert(7, "late")], ("back", None)),
    "a value not sent stays": ([upsert(1, "a"), upsert(2, None, missing=("value",))], ("a", None)),
    "a value not sent is not taken from a late row": (
        [upsert(5, "a"), upsert(3, "late"), upsert(10, None, missing=("value",))], ("a", None)),
    "a row that came later gives no value to one that came before": (
        [upsert(5, "a"), upsert(10, None, missing=("value",)), upsert(7, "late")], ("a", None)),
    "a value not sent is null after a delete": (
        [upsert(1, "a"), delete(5), upsert(6, None, missing=("value",))], (None, None)),
    "a value not sent is not taken from a row older than the delete": (
        [upsert(1, "a"), delete(5), upsert(3, "late"), upsert(10, None, missing=("value",))], (None, None)),
    "values not sent may come from several rows": (
        [upsert(1, "a", "x"), upsert(2, "b", None, ("other",)), upsert(3, None, "y", ("value",)),
         upsert(4, None, None, ("value", "other"))], ("b", "y")),
}  # fmt: skip


@pytest.mark.few(8)
@pytest.mark.slow
@pytest.mark.parametrize("name", HISTORIES)
def test_a_history_gives_one_row_however_it_was_cut_and_settled(name: str, tmp_path: Path) -> None:
    changes, expected = HISTORIES[name]
    found: set[tuple[Any, ...]] = set()
    # Between two changes: the same batch, another batch, another batch after settling, or that by another process.
    for number, cuts in enumerate(itertools.product(["same", "batch", "settle", "reopen"], repeat=len(changes) - 1)):
        if len(changes) > 2 and number % 5:
            continue
        table = lakebed.create(tmp_path / str(number), SCHEMA, keys=["id"], sequence_by="seq")
        batch: list[dict[str, Any]] = []
        for change, cut in zip(changes, (*cuts, "settle"), strict=True):
            batch.append(change)
            if cut == "same":
                continue
            table.apply(as_arrow(batch))
            batch = []
            seen = table.to_arrow().to_pylist()
            if cut in ("settle", "reopen"):
                table.settle()
                assert table.to_arrow().to_pylist() == seen, cuts
            if cut == "reopen":
                table = lakebed.open(tmp_path / str(number))
        found.add(tuple((row["value"], row["other"]) for row in table.to_arrow().to_pylist()))
    assert len(found) == 1
    rows = found.pop()
    assert rows == (() if expected is GONE else (expected,))


def test_a_delete_is_kept_when_everything_else_of_its_part_is_dead(tmp_path: Path) -> None:
    schema = SCHEMA
    table = lakebed.create(tmp_path / "t", schema, keys=["id"], sequence_by="seq")
    other = {**upsert(1, "b"), "id": 2}
    table.apply(as_arrow([delete(5), other]))
    table.settle()
    table.apply(as_arrow([{**other, "seq": 2}]))
    table.settle()
    table.apply(as_arrow([upsert(4, "late")]))
    table.settle()
    assert table.to_arrow()["id"].to_pylist() == [2]


def test_a_row_that_can_not_be_whole_is_left_out_and_leaves_the_table_readable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    schema = pa.schema([("id", pa.int64()), pa.field("value", pa.string(), nullable=False), ("other", pa.string())])
    table = lakebed.create(tmp_path / "t", schema, keys=["id"])
    row = {"id": 1, "value": None, "other": "x", OP_COLUMN: "u", UNAVAILABLE_COLUMN: ["value"]}
    with caplog.at_level(logging.WARNING, "lakebed"):
        table.apply(as_arrow([row], schema))
        assert table.to_arrow().num_rows == 0
        table.settle()
    assert "NOT NULL" in caplog.text
    assert table.to_arrow().num_rows == 0
    table.apply(as_arrow([{**row, "value": "whole", UNAVAILABLE_COLUMN: None}, {**row, "other": "y"}], schema))
    assert table.to_arrow().to_pylist() == [{"id": 1, "value": "whole", "other": "y"}]


def test_values_that_python_has_no_name_for_are_completed_too(tmp_path: Path) -> None:
    """PostgreSQL's infinity is a timestamp beyond the year 9999; NaN is one key, though it does not equal itself."""
    schema = pa.schema([("id", pa.float64()), ("value", pa.string()), ("until", pa.timestamp("us", "UTC"))])
    table = lakebed.create(tmp_path / "t", schema, keys=["id"])
    infinity = pa.array([2**62], pa.int64()).cast(pa.timestamp("us", "UTC"))
    for value, missing in (("a", None), (None, ["value"]), (None, ["value"])):
        table.apply(
            pa.table(
                {
                    "id": [float("nan")], "value": pa.array([value], pa.string()), "until": infinity, OP_COLUMN: ["u"],
                    UNAVAILABLE_COLUMN: pa.array([missing], pa.list_(pa.string())),
                }
            )
        )  # fmt: skip
        assert table.to_arrow(["value"]).to_pylist() == [{"value": "a"}]
    table.settle()
    assert table.to_arrow(["value"]).to_pylist() == [{"value": "a"}]
    assert table.to_arrow(["until"])["until"].cast(pa.int64()).to_pylist() == [2**62]


def test_a_key_beyond_the_years_of_python_is_found_by_a_process_without_an_index(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.timestamp("us", "UTC")), ("value", pa.string())])
    table = lakebed.create(tmp_path / "t", schema, keys=["id"])
    rows = pa.table({"id": pa.array([2**62], pa.int64()).cast(pa.timestamp("us", "UTC")), "value": ["a"]})
    table.apply(rows)
    table.settle()
    table.apply(rows)
    assert lakebed.open(tmp_path / "t").to_arrow(["value"]).num_rows == 1


@pytest.mark.parametrize("sequence", [float("nan"), None])
def test_a_sequence_without_an_order_is_refused(sequence: float | None, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("seq", pa.float64())])
    table = lakebed.create(tmp_path / "t", schema, keys=["id"], sequence_by="seq")
    with pytest.raises(lakebed.errors.InvalidChanges, match=r"sequence_by.*row 0"):
        table.apply(pa.table({"id": [1], "seq": pa.array([sequence], pa.float64())}))


def test_a_delete_can_not_become_a_row_of_a_table_without_keys(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA)
    with pytest.raises(lakebed.errors.InvalidChanges, match=r"row 1 .* is a delete"):
        table.apply(as_arrow([upsert(1, "a"), delete(2)]))


def test_a_batch_number_below_zero_is_refused_rather_than_taken_for_a_replay(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA)
    with pytest.raises(lakebed.errors.InvalidInput, match="batch_id is -1"):
        table.apply(as_arrow([upsert(1, "a")]), batch_id=-1)
