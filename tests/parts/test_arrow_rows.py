"""Rows in every form that a caller may have them become the same Arrow table, or are refused with a reason."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from lakebed.errors import InvalidChanges
from lakebed.parts.arrow_rows import arrow_rows
from lakebed.schema.exact_cast import cast_exactly

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), False), ("city", pa.string()), ("amount", pa.decimal128(12, 2)), ("rate", pa.float32()),
        ("at", pa.timestamp("us", "UTC")), ("day", pa.date32()), ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("x", pa.int32()), ("name", pa.string())])), ("raw", pa.binary()), ("ok", pa.bool_()),
    ]
)  # fmt: skip
FULL = {
    "id": 1, "city": "Tromsø", "amount": Decimal("1.50"), "rate": 0.5, "at": dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC),
    "day": dt.date(2026, 1, 2), "tags": ["a", None], "place": {"x": 3, "name": "n"}, "raw": b"\x00\xff", "ok": True,
}  # fmt: skip
EMPTY = dict.fromkeys(FULL) | {"id": 2}
TABLE = pa.Table.from_pylist([FULL, EMPTY], SCHEMA)

FORMS: dict[str, Callable[[], Any]] = {
    "table": lambda: TABLE,
    "record batch": lambda: TABLE.to_batches()[0],
    "reader": TABLE.to_reader,
    "pandas": TABLE.to_pandas,
    "pandas, some of its rows": lambda: pd.concat([TABLE.to_pandas()] * 2).iloc[[2, 1]],
    "pandas with keys as index": lambda: TABLE.to_pandas().set_index("id"),
    "polars": lambda: pl.DataFrame(TABLE),
    "polars categories": lambda: pl.DataFrame(TABLE).with_columns(pl.col("city").cast(pl.Categorical)),
    "a relation of DuckDB": lambda: duckdb.connect().from_arrow(TABLE),
    "dicts": lambda: [FULL, EMPTY],
    "dicts that lack fields": lambda: [FULL, {"id": 2}],
}


def in_types_of_the_table(rows: pa.Table) -> list[dict[str, Any]]:
    columns = {field.name: cast_exactly(rows[field.name], field.type, field.name) for field in SCHEMA}
    return pa.table(columns).to_pylist()


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_hold_the_same_rows(form: str) -> None:
    rows = arrow_rows(FORMS[form](), SCHEMA)
    assert sorted(rows.column_names) == sorted(SCHEMA.names)
    assert in_types_of_the_table(rows) == TABLE.to_pylist()


def test_what_is_missing_in_pandas_is_null() -> None:
    frame = pd.DataFrame({"id": [1, 2], "rate": [0.5, np.nan], "city": ["a", None], "at": [pd.NaT, pd.Timestamp(0)]})
    rows = arrow_rows(frame, SCHEMA).to_pylist()
    assert (rows[1]["rate"], rows[1]["city"], rows[0]["at"]) == (None, None, None)


def test_dicts_of_a_map_column_become_maps() -> None:
    schema = pa.schema([("id", pa.int64()), ("counts", pa.map_(pa.string(), pa.int64()))])
    rows = arrow_rows([{"id": 1, "counts": {"a": 1}}, {"id": 2, "counts": [("b", 2)]}, {"id": 3}], schema)
    assert rows["counts"].to_pylist() == [[("a", 1)], [("b", 2)], None]


def test_no_dict_is_no_row() -> None:
    assert arrow_rows([], SCHEMA).num_rows == 0


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (None, "the rows are None; give"),
        ("id", "the rows are a str; give"),
        ({"id": [1]}, "the rows are a dict; give"),
        ((each for each in ()), "the rows are a generator; give"),
        (pl.LazyFrame({"id": [1]}), "the rows are a LazyFrame; give"),
        (pl.Series([1]), "the rows are a Series, and can't be read as Arrow"),
        (pd.DataFrame({"id": [1, "x"]}), "the rows are a DataFrame, and can't be read as Arrow"),
        ([{"id": 1}, 2], "row 1 of the rows is a int"),
        ([{"id": 1}, None], "row 1 of the rows is None"),
        ([{1: 2}], "a row has the field 1, which is a int"),
        ([{"id": 1}, {"id": "x"}], "column 'id' of the rows can't be read as Arrow: Could not convert 'x'"),
        ([{"id": 2**70}], "column 'id' of the rows can't be read as Arrow"),
        ([{"id": object()}], "column 'id' of the rows can't be read as Arrow"),
    ],
)  # fmt: skip
def test_other_forms_are_refused_with_the_reason(rows: object, why: str) -> None:
    with pytest.raises(InvalidChanges) as caught:
        arrow_rows(rows, SCHEMA)
    assert why in str(caught.value)


def test_a_value_whose_meaning_would_be_a_guess_is_refused_in_every_form() -> None:
    naive = dt.datetime(2026, 1, 1)
    for rows in ([{"at": naive}], pd.DataFrame({"at": [naive]}), pl.DataFrame({"at": [naive]})):
        with pytest.raises(InvalidChanges, match="several"):
            cast_exactly(arrow_rows(rows, SCHEMA)["at"], pa.timestamp("us", "UTC"), "at")
    with pytest.raises(InvalidChanges, match="uuid"):
        cast_exactly(arrow_rows([{"id": uuid.uuid4()}], SCHEMA)["id"], pa.int64(), "id")
