"""Fields within values are renamed in SQL, at any depth; values and nulls stay."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from lakebed.sql import registered, renamed_sql
from lakebed.storage.engine import connect

OLD = pa.struct([("a", pa.int64()), ("b c'\"", pa.string())])
NEW = pa.struct([("A name", pa.int64()), ("a", pa.string())])


def renamed(values: list[Any], kind: pa.DataType, wanted: pa.DataType) -> pa.ChunkedArray:
    connection = connect()
    with registered(connection, "lakebed_rows", pa.table({"c0": pa.array(values, kind)})) as rows:
        return connection.sql(f"select {renamed_sql('c0', kind, wanted)} as c from {rows}").to_arrow_table()["c"]


@pytest.mark.parametrize(
    ("wrap", "values"),
    [
        (lambda kind: kind, [(1, "x"), None, (None, None)]),
        (pa.list_, [[(1, "x"), None], [], None]),
        (lambda kind: pa.list_(pa.list_(kind)), [[[(1, "x")], None, []], None]),
        (lambda kind: pa.map_(pa.string(), kind), [[("k", (1, "x")), ("l", None)], [], None]),
        (lambda kind: pa.map_(kind, pa.list_(kind)), [[((1, "x"), [(2, "y"), None])], []]),
        (lambda kind: pa.struct([("s", pa.list_(kind)), ("t", kind)]), [([(1, "x")], None), None, (None, (2, "y"))]),
    ],
)
def test_values_stay_and_names_change(wrap: Any, values: list[Any]) -> None:
    found = renamed(values, wrap(OLD), wrap(NEW))
    assert found.to_pylist() == pa.array(values, wrap(NEW)).to_pylist()


def test_equal_types_cost_nothing() -> None:
    assert renamed_sql("c0", OLD, OLD) == "c0"
