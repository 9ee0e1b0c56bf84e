"""Tables of other writers whose columns have stored names of their own, and types that grew: read rightly by every reader."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lakebed
from lakebed.errors import Unsupported
from lakebed.parts.change_rows import read_version, versions_with_changes
from tests.table.others import File, add, commit

FEATURES = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["columnMapping", "typeWidening", "timestampNtz"],
    "writerFeatures": ["columnMapping", "typeWidening", "timestampNtz", "appendOnly", "invariants"],
}
BEFORE_FEATURES = {"minReaderVersion": 2, "minWriterVersion": 5}
WIDENED = {"delta.typeChanges": [{"fromType": "integer", "toType": "double"}]}


def field(name: str, stored: str, kind: Any, number: int, metadata: Mapping[str, Any] | None = None) -> dict[str, Any]:
    mapping = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": stored}
    return {"name": name, "type": kind, "nullable": True, "metadata": {**mapping, **(metadata or {})}}


def table_with(
    path: Path, fields: list[dict[str, Any]], files: list[File], mode: str, protocol: Mapping[str, Any]
) -> str:
    metadata = {
        "id": "00000000-0000-0000-0000-000000000001",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": ["region"],
        "configuration": {"delta.columnMapping.mode": mode, "delta.columnMapping.maxColumnId": "9"},
        "createdTime": 0,
    }
    commit(path, 0, [{"protocol": protocol}, {"metaData": metadata}, *(add(path, file) for file in files)])
    return str(path)


def of_a_file(qty: pa.DataType, day: pa.DataType, rows: list[tuple[Any, ...]]) -> pa.Table:
    place = pa.struct([("col-x", pa.string())])
    schema = pa.schema([("col-1", pa.int64()), ("b", qty), ("col-3", day), ("col-4", place)])
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def mapped_table(path: Path) -> str:
    """``a`` is stored as ``col-1``, ``qty`` as ``b``, ``b`` as ``col-3``; ``qty`` and ``b`` were narrower in the first file."""
    day = datetime.date(2024, 1, 1)
    old = of_a_file(pa.int32(), pa.date32(), [(1, 1, day, {"col-x": "s"}), (2, 9, None, None)])
    new = of_a_file(pa.float64(), pa.timestamp("us"), [(3, math.nan, datetime.datetime(2024, 6, 1, 5), {"col-x": "t"})])
    place = {"type": "struct", "fields": [field("street", "col-x", "string", 5)]}
    fields = [
        field("a", "col-1", "long", 1),
        field("qty", "b", "double", 2, WIDENED),
        field("b", "col-3", "timestamp_ntz", 3, {"delta.typeChanges": [{"fromType": "date", "toType": "timestamp_ntz"}]}),
        field("place", "col-4", place, 4),
        field("region", "col-5", "string", 6),
        field("new", "col-7", "integer", 7),
    ]  # fmt: skip
    old_bounds = {
        "minValues": {"col-1": 1, "b": 1, "col-3": "2024-01-01"},
        "maxValues": {"col-1": 2, "b": 9, "col-3": "2024-01-01"},
    }
    new_bounds = {"minValues": {"col-1": 3}, "maxValues": {"col-1": 3}}
    nulls = {"nullCount": {"col-1": 0, "b": 0}}
    files = [File(old, {**old_bounds, **nulls}, {"col-5": "eu"}), File(new, {**new_bounds, **nulls}, {"col-5": "us"})]
    return table_with(path, fields, files, "name", FEATURES)


ROWS = [
    {"a": 1, "qty": 1.0, "b": datetime.datetime(2024, 1, 1), "place": {"street": "s"}, "region": "eu", "new": None},
    {"a": 2, "qty": 9.0, "b": None, "place": None, "region": "eu", "new": None},
    {"a": 3, "qty": math.nan, "b": datetime.datetime(2024, 6, 1, 5), "place": {"street": "t"}, "region": "us", "new": None},
]  # fmt: skip
CONDITIONS = {
    "qty > 8.5": [2, 3],  # NaN is above all numbers, and the bounds of others leave it out
    "qty < 1.5": [1],
    "b < timestamp '2024-01-01 00:00:01'": [1],
    "b = timestamp '2024-06-01 05:00:00'": [3],
    "region = 'us'": [3],
    "place.street = 's'": [1],
    "a between 2 and 3": [2, 3],
}


def test_readers_without_spark(tmp_path: Path) -> None:
    table = lakebed.open(mapped_table(tmp_path / "orders"))
    assert table.schema.names == ["a", "qty", "b", "place", "region", "new"]
    assert repr(table.to_arrow().sort_by("a").to_pylist()) == repr(ROWS)
    for where, keys in CONDITIONS.items():
        assert sorted(table.to_arrow(columns=["a"], where=where)["a"].to_pylist()) == keys, where
        assert sorted(table.query(f"select a from t where {where}", "t")["a"].to_pylist()) == keys, where
    assert table.lookup([{"region": "eu", "a": 2}, {"region": "us", "a": 2}]).to_pylist() == [ROWS[1]]
    assert table.lookup([{"qty": 1.0}], columns=["place"]).to_pylist() == [{"place": {"street": "s"}}]
    (version,) = versions_with_changes(table.path, 0, 0)
    changes = [row for batch in read_version(table.path, version) for row in batch.to_pylist()]
    assert repr([{name: row[name] for name in table.schema.names} for row in changes]) == repr(ROWS)
    partitions = sorted(part["partition"] for part in table.inspect.parts().to_pylist())
    assert partitions == [[("region", "eu")], [("region", "us")]]


def test_spark_reads_the_same(spark: SparkSession, tmp_path: Path) -> None:
    table = lakebed.open(mapped_table(tmp_path / "orders"))
    frame = table.read(spark)
    assert repr(frame.orderBy("a").toArrow().to_pylist()) == repr(ROWS)
    for where, keys in CONDITIONS.items():
        condition = where.replace("timestamp '", "timestamp_ntz '")
        assert sorted(row["a"] for row in frame.where(condition).select("a").collect()) == keys, where


def test_a_struct_that_shares_no_field_with_an_older_file_is_read_by_spark_and_refused_clearly_without(
    spark: SparkSession, tmp_path: Path
) -> None:
    old = pa.table({"k": pa.array([1], pa.int64()), "s": pa.array([{"x": 1}])})
    new = pa.table({"k": pa.array([2], pa.int64()), "s": pa.array([{"y": "b"}])})
    inside = {"type": "struct", "fields": [field("b", "y", "string", 3)]}
    fields = [field("k", "k", "long", 1), field("s", "s", inside, 2), field("region", "r", "string", 4)]
    files = [File(each, {}, {"r": "eu"}) for each in (old, new)]
    table = lakebed.open(table_with(tmp_path / "t", fields, files, "name", FEATURES))
    (version,) = versions_with_changes(table.path, 0, 0)
    for read in (
        table.to_arrow,
        lambda: table.to_arrow(where="k = 1"),
        lambda: table.query("select s.b from t", "t"),
        lambda: table.lookup([{"k": 1}]),
        lambda: list(read_version(table.path, version)),
    ):
        with pytest.raises(Unsupported, match=r"can't read a struct .*STRUCT\(y VARCHAR\).* with Spark"):
            read()
    assert table.query("select k from t order by k", "t")["k"].to_pylist() == [1, 2]
    values = [value and value["b"] for value in table.read(spark).orderBy("k").toArrow()["s"].to_pylist()]
    assert values == [None, "b"]


def test_a_table_from_before_table_features_is_read_by_its_stored_names_too(tmp_path: Path) -> None:
    rows = pa.table({"col-1": [1, 2], "col-2": ["x", "y"]})
    fields = [field("a", "col-1", "long", 1), field("region", "col-5", "string", 2), field("b c", "col-2", "string", 3)]
    path = table_with(tmp_path / "orders", fields, [File(rows, {}, {"col-5": "eu"})], "name", BEFORE_FEATURES)
    found = lakebed.open(path).to_arrow(where="\"b c\" = 'y'")
    assert found.to_pylist() == [{"a": 2, "region": "eu", "b c": "y"}]


def test_columns_that_are_found_by_numbers_in_files_are_refused(tmp_path: Path) -> None:
    path = table_with(tmp_path / "orders", [field("a", "col-1", "long", 1)], [], "id", FEATURES)
    with pytest.raises(Unsupported, match="maps columns by 'id'"):
        lakebed.open(path).to_arrow()
