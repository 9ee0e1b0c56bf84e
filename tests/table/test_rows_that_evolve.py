"""Rows that do not fit their table: the table evolves, or what does not fit is kept as JSON, set aside or refused."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import InvalidChanges, InvalidInput
from lakebed.parts.quarantine import QUARANTINE_SUFFIX

COLUMNS = pa.schema([pa.field("id", pa.int64(), False), ("qty", pa.int32()), pa.field("note", pa.string(), False)])
ROWS = [{"id": 1, "qty": 1, "note": "a"}, {"id": 2, "qty": 2, "note": "b"}]


def table_at(path: Path, **how: Any) -> lakebed.Table:
    table = lakebed.create(path / "t", COLUMNS, keys=["id"])
    table.apply(ROWS, **how)
    return table


def rows(table: lakebed.Table) -> list[dict[str, Any]]:
    return sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"])


def test_rows_may_bring_columns_and_wider_types(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    more = [{"id": 3, "qty": 2**40, "note": "c", "price": Decimal("1.50"), "at": datetime.date(2026, 1, 1)}]
    table.apply(more, evolve=["add", "widen"])
    assert table.schema.field("qty").type == pa.int64()
    assert [row["price"] for row in rows(table)] == [None, None, Decimal("1.50")]
    assert "changes that were applied" in str(table.inspect.schemas().to_pylist()[-1])


def test_without_a_word_nothing_evolves(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    table.apply([{"id": 3, "qty": 3, "note": "c", "price": 1}])
    assert table.schema.equals(COLUMNS)
    for wrong in ([{"id": 3, "qty": 2**40, "note": "c"}], [{"id": 3, "note": "c"}]):
        with pytest.raises(InvalidChanges):
            table.apply(wrong)
    with pytest.raises(InvalidChanges, match="int64 does not fit"):
        table.apply([{"id": 3, "qty": 2**40, "note": "c", "price": 1}], evolve=["add"])


@pytest.mark.parametrize("evolve", [[], ["add"], ["widen"], ["relax"], ["add", "widen", "relax"]])
@pytest.mark.parametrize("on_mismatch", ["fail", "quarantine", "rescue"])
def test_rows_that_lack_a_column_erase_nothing_whatever_may_be_done_to_the_table(
    evolve: Any, on_mismatch: Any, tmp_path: Path
) -> None:
    table = table_at(tmp_path)
    before = table.version, rows(table)
    for lacking in ("qty", "note"):
        changes = pa.table({"id": [1], "qty": [2**40], "note": [None], "price": [1]}).drop_columns([lacking])
        with pytest.raises(InvalidChanges, match=f"lack the column '{lacking}'.*add it"):
            table.apply(changes, evolve=evolve, on_mismatch=on_mismatch)
    assert (table.version, rows(table)) == before  # nothing was altered either


def test_what_was_rescued_is_the_only_column_that_rows_may_lack(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    table.apply([{"id": 1, "qty": "many", "note": "a"}], on_mismatch="rescue")
    table.apply([{"id": 1, "qty": 1, "note": "a"}])
    assert rows(table)[0] == {**ROWS[0], "_rescued": None}


def test_columns_that_arguments_name_are_not_added(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    changes = [{"id": 1, "qty": 1, "note": "a", "op": "d", "extra": 1, "new": "x"}]
    table.apply(changes, "op = 'd'", ["extra"], evolve=["add"])
    assert (table.schema.names, [row["id"] for row in rows(table)]) == (["id", "qty", "note", "new"], [2])


def test_a_column_comes_under_its_new_name(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    names = {"comment": "note", "number": "id"}
    table.apply([{"number": 3, "qty": 3, "comment": "c"}], evolve=["add"], renamed_columns=names)
    table.apply([{"number": 1, "qty": 0, "comment": "gone"}], "comment = 'gone'", renamed_columns=names)
    assert rows(table) == [ROWS[1], {"id": 3, "qty": 3, "note": "c"}]
    with pytest.raises(InvalidChanges, match="'comment' and 'note'"):
        table.apply([{"id": 4, "qty": 4, "note": "d", "comment": "e"}], renamed_columns=names)


def test_a_column_that_was_renamed_in_the_table_comes_under_its_first_name_too(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    table.alter(rename={"note": "remark", "id": "number"})
    table.apply([{"id": 3, "qty": 3, "note": "c"}, {"id": 1, "qty": 0, "note": ""}], "id = 1", evolve=["add"])
    table.apply([{"number": 4, "qty": 4, "remark": "d"}])
    assert sorted(map(tuple, (row.values() for row in table.to_arrow().to_pylist()))) == [
        (2, 2, "b"),
        (3, 3, "c"),
        (4, 4, "d"),
    ]
    table.alter(add={"note": "string"})
    table.apply([{"id": 5, "qty": 5, "remark": "e", "note": "another"}])
    assert (5, 5, "e", "another") in [tuple(row.values()) for row in table.to_arrow().to_pylist()]


def test_what_does_not_fit_is_kept_as_json(tmp_path: Path) -> None:
    table = table_at(tmp_path, on_mismatch="rescue")
    assert "_rescued" not in table.schema.names
    table.apply(
        [{"id": 3, "qty": 2**40, "note": "c", "tag": None}, {"id": 4, "qty": 4, "note": "d", "tag": "x"}],
        on_mismatch="rescue",
    )
    table.apply([{"id": 5, "qty": "many", "note": "e"}, {"id": 6, "qty": None, "note": "f"}], on_mismatch="rescue")
    table.apply([{"id": 7, "qty": 7, "note": "g"}], on_mismatch="rescue")
    found = {row["id"]: (row["qty"], row["_rescued"] and json.loads(row["_rescued"])) for row in rows(table)}
    assert found == {
        1: (1, None),
        2: (2, None),
        3: (None, {"qty": 2**40}),
        4: (4, {"tag": "x"}),
        5: (None, {"qty": "many"}),
        6: (None, None),
        7: (7, None),
    }
    with pytest.raises(InvalidChanges, match="'id'"):
        table.apply([{"id": "x", "qty": 1, "note": "g"}], on_mismatch="rescue")


def test_rows_that_do_not_fit_are_set_aside(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    good, bad = {"id": 3, "qty": 3, "note": "c"}, {"id": 4, "qty": 2**40, "note": "d"}
    table.apply([good, bad, {"id": 5, "qty": 5, "note": None}], on_mismatch="quarantine", batch_id=1)
    table.apply([good, bad, {"id": 5, "qty": 5, "note": None}], on_mismatch="quarantine", batch_id=1)
    assert rows(table) == [*ROWS, good]
    aside = lakebed.open(table.path + QUARANTINE_SUFFIX).to_arrow()
    assert [json.loads(value)["id"] for value in sorted(aside["value"].to_pylist())] == [4, 5]
    table.apply([{"id": 6, "qty": "many", "note": "f"}, {"id": 7, "qty": None, "note": "g"}], on_mismatch="quarantine")
    assert len(lakebed.open(table.path + QUARANTINE_SUFFIX).to_arrow()) == 4
    assert rows(table) == [*ROWS, good]


def test_words_that_are_none_are_refused(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    with pytest.raises(InvalidInput, match="did you mean 'widen'"):
        table.apply(ROWS, evolve=["wide"])  # type: ignore[list-item]
    with pytest.raises(InvalidInput, match="on_mismatch"):
        table.apply(ROWS, on_mismatch="drop")  # type: ignore[arg-type]
