"""A column is as deep as every reader takes it, and no deeper."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import InvalidSchema
from lakebed.schema.fitting import LEVELS_MAX, levels_of

IN = {
    "struct": lambda kind: pa.struct([pa.field("a", kind)]),
    "list": lambda kind: pa.list_(pa.field("element", kind)),
    "map": lambda kind: pa.map_(pa.string(), kind),
}
AROUND: dict[str, Any] = {
    "struct": lambda value: {"a": value},
    "list": lambda value: [value],
    "map": lambda value: [("k", value)],
}
DEEPEST = {"struct": LEVELS_MAX, "list": LEVELS_MAX // 2, "map": LEVELS_MAX // 2}


def nested(kind: str, times: int) -> pa.DataType:
    return reduce(lambda inner, _: IN[kind](inner), range(times), pa.int64())


@pytest.mark.parametrize("kind", IN)
def test_the_deepest_column_is_written_and_read(kind: str, tmp_path: Path) -> None:
    deepest, value = nested(kind, DEEPEST[kind]), reduce(lambda one, _: AROUND[kind](one), range(DEEPEST[kind]), 1)
    assert levels_of(deepest) == LEVELS_MAX
    schema = pa.schema([pa.field("id", pa.int64(), False), pa.field("v", deepest)])
    table = lakebed.create(str(tmp_path / "t"), schema, keys=["id"])
    for ids in ([1, 2], [2, 3]):
        table.apply(pa.table([pa.array(ids), pa.array([value, None], deepest)], schema=schema))
        table.settle()
    assert {row["id"]: row["v"] for row in table.to_arrow().to_pylist()} == {1: value, 2: value, 3: None}
    assert table.query("select count(*) as n from t where v is not null").to_pylist() == [{"n": 2}]


@pytest.mark.parametrize("kind", IN)
def test_a_deeper_column_is_refused_with_the_reason(kind: str, tmp_path: Path) -> None:
    deeper = nested(kind, DEEPEST[kind] + 1)
    reason = rf"column 'v' is nested {levels_of(deeper)} levels deep, .* a column may have {LEVELS_MAX}"
    with pytest.raises(InvalidSchema, match=reason):
        lakebed.create(str(tmp_path / "t"), pa.schema([("v", deeper)]))
    inner = nested(kind, DEEPEST[kind])
    table = lakebed.create(str(tmp_path / "u"), pa.schema([("id", pa.int64()), ("v", pa.struct([("b", pa.int64())]))]))
    with pytest.raises(InvalidSchema, match=r"column 'v' is nested .* levels deep"):
        table.alter(add={"v.c": inner})
    table.alter(add={"w": inner})
