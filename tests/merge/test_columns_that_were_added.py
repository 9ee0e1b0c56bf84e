"""Merges of parts from before and after a column was added."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import lakebed

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("city", pa.string())])


@pytest.mark.parametrize("value", ["few", None])
def test_a_text_that_older_parts_lack_is_null_in_their_rows(tmp_path: Any, value: str | None) -> None:
    table = lakebed.create(str(tmp_path / "t"), SCHEMA, ["id"], properties={"lakebed.read_budget": 1})
    old = [[{"id": id, "city": "x"} for id in range(first, 400, 4)] for first in (0, 1)]
    new = [[{"id": id, "city": "x", "more": value} for id in range(first, 400, 4)] for first in (2, 3)]
    for batch in old:
        table.apply(batch)
        table.settle()
    table.alter(add={"more": "string"})
    for batch in new:
        table.apply(batch)
        table.settle()
    assert table.maintenance.compact().merges == 1
    expected = {row["id"]: row.get("more") for batch in old + new for row in batch}
    assert {row["id"]: row["more"] for row in table.to_arrow().to_pylist()} == expected
