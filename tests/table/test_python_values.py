"""The Python API takes and gives what Python programs hold: DataFrames, lists of dicts, numbers, notebooks' HTML."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import InvalidChanges, InvalidInput, MissingPrerequisite

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("city", pa.string()), ("size", pa.int64())])


@pytest.fixture
def table(tmp_path: Path) -> lakebed.Table:
    return lakebed.create(tmp_path / "people", SCHEMA, keys=["id"], sequence_by="at")


def test_every_form_of_rows_can_be_applied(table: lakebed.Table) -> None:
    table.apply(
        [{"id": 1, "city": "Oslo", "size": 1, "at": 1}, {"id": 2, "at": 1, "op": "c"}], apply_as_deletes="op = 'd'"
    )
    table.apply(pd.DataFrame({"id": [3], "city": ["Rome"], "size": [3], "at": [1]}).set_index("id"))
    table.apply(pl.DataFrame({"id": [4], "city": ["Bonn"], "size": [4], "at": [1]}))
    table.apply(iter_of(table, 5))
    table.apply([{"id": 1, "city": None, "size": None, "at": 2, "op": "d"}], apply_as_deletes="op = 'd'")
    assert table.to_arrow().sort_by("id").to_pylist() == [
        {"id": 2, "city": None, "size": None},
        {"id": 3, "city": "Rome", "size": 3},
        {"id": 4, "city": "Bonn", "size": 4},
        {"id": 5, "city": "Graz", "size": 5},
    ]


def iter_of(table: lakebed.Table, id: int) -> pa.RecordBatchReader:
    return pa.table({"id": [id], "city": ["Graz"], "size": [id], "at": [1]}).to_reader()


def test_an_empty_list_is_an_empty_batch(table: lakebed.Table) -> None:
    assert table.apply([], apply_as_deletes="op = 'd'") == 0
    assert table.apply([], batch_id=1) == 1
    assert table.apply([{"id": 1}], batch_id=1) == 1  # the id was committed: nothing of it is read


def test_rows_that_do_not_fit_commit_nothing(table: lakebed.Table) -> None:
    for rows in ([{"id": 1}], [{"id": "x", "city": "", "size": 1, "at": 1}], ["Oslo"], 7):
        with pytest.raises(InvalidChanges):
            table.apply(rows)  # type: ignore[arg-type]
    assert table.version == 0


def test_values_to_look_up_come_in_every_form(table: lakebed.Table) -> None:
    table.apply([{"id": id, "city": "c", "size": id, "at": 1} for id in range(5)])
    two = ([1, 2], pa.array([1, 2]), pa.chunked_array([[1], [2]]), pd.Series([1, 2]), pl.Series([1, 2]), range(1, 3))
    rows = (
        [{"id": 1}, {"id": 2}],
        pd.DataFrame({"id": [1, 2]}),
        pl.DataFrame({"id": [1, 2]}),
        pa.table({"id": [1, 2]}),
    )
    for keys in (*two, *rows):
        assert sorted(table.lookup(keys)["size"].to_pylist()) == [1, 2], keys
    assert table.lookup([{"city": "c", "size": 3}])["id"].to_pylist() == [3]
    assert table.lookup([]).num_rows == 0


def test_a_partition_is_replaced_by_rows_in_every_form(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"], partition_by=["city"])
    for at, rows in enumerate(
        ([{"id": 1, "city": "c", "size": 0}], pd.DataFrame({"id": [2], "city": ["c"], "size": [1]}))
    ):
        table.replace_partition({"city": "c"}, rows)
        assert table.to_arrow()["size"].to_pylist() == [at]


def test_the_table_as_pandas_and_polars(table: lakebed.Table) -> None:
    table.apply([{"id": id, "city": "c", "size": id, "at": 1} for id in range(3)])
    assert table.to_pandas(["size"], "id > 0").sort_values("size").to_dict("list") == {"size": [1, 2]}
    assert table.to_polars(["size"], "id > 0").sort("size").to_dict(as_series=False) == {"size": [1, 2]}


def test_polars_is_asked_for_where_it_is_missing(table: lakebed.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(MissingPrerequisite, match="pip install polars"):
        table.to_polars()


def test_properties_may_be_numbers_and_truth_values(tmp_path: Path) -> None:
    table = lakebed.create(
        tmp_path / "t", SCHEMA, keys=["id"], properties={"lakebed.read_budget": 4, "mine": 0.5, "yours": True}
    )
    table.set_properties({"lakebed.count_reads": True, "lakebed.target_part_bytes": 10_000_000})
    kept = {name: table.properties[name] for name in ("lakebed.read_budget", "mine", "yours", "lakebed.count_reads")}
    assert kept == {"lakebed.read_budget": "4", "mine": "0.5", "yours": "true", "lakebed.count_reads": "on"}
    for wrong in (None, [4], {"a": 1}):
        with pytest.raises(InvalidInput, match=r"lakebed\.read_budget is"):
            table.set_properties({"lakebed.read_budget": wrong})  # type: ignore[dict-item]


def test_notebooks_show_tables_results_and_status(tmp_path: Path) -> None:
    name = "<script>"
    table = lakebed.create(
        tmp_path / "t", pa.schema([pa.field("id", pa.int64(), False), (name, pa.string())]), keys=["id"]
    )
    table.apply(pa.table({"id": range(2000), name: ["x"] * 2000}))
    settled = table.settle()
    results = (settled, table.maintenance.compact(), table.delete("id = 1"))
    shown = [each._repr_html_() for each in (table, *results, table.status(), table.doctor())]
    assert all("<script>" not in text and "<table>" in text for text in shown)
    assert "2,000" in shown[0] and "&lt;script&gt;" in shown[0]
    assert "SettleResult" in shown[1] and "change parts" in shown[1] and "late rows" not in shown[1]


def test_notebooks_show_what_is_wrong_with_a_table(table: lakebed.Table) -> None:
    table.apply([{"id": 1, "city": "c", "size": 1, "at": 1}])
    table.settle()
    Path(table.path, *log_path(table)).unlink()
    assert "critical" in table.doctor()._repr_html_()


def log_path(table: lakebed.Table) -> tuple[str, ...]:
    return tuple(table.inspect.parts()["path"][0].as_py().split("/"))
