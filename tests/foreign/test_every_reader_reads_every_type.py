"""One table with every type, read by lakebed with and without Spark, by delta-spark, delta-rs and DuckDB's extension."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import lakebed
from tests.foreign.readers import all_agree, comparable, own
from tests.table.values import ODD_NAMES, PARTITIONS, TYPES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.infra.foreign_duckdb import ForeignDuckDB

pytestmark = pytest.mark.slow
TYPE_NAMES = list(TYPES)


def edges() -> pa.Table:
    """A row for every place in the longest list of values; shorter lists end in nulls."""
    longest = max(len(values) for _, values in TYPES.values())
    columns: dict[str, pa.Array] = {"id": pa.array(range(longest), pa.int64())}
    for name, (kind, values) in TYPES.items():
        columns[name] = pa.array([*values, *[None] * (longest - len(values))], kind)
    return pa.table(columns)


def test_every_type_at_its_edges(tmp_path: Path, spark: SparkSession, duckdb_delta: ForeignDuckDB) -> None:
    rows = edges()
    table = lakebed.create(tmp_path / "t", rows.schema, keys=["id"])
    table.apply(rows.slice(0, 6))
    table.settle()
    table.apply(rows.slice(3))
    table.settle()
    table.apply(table_of_deletes(rows.slice(0, 1)))
    table.settle()
    assert all_agree(table, spark, duckdb_delta) == comparable(rows.slice(1), table.schema)


@pytest.mark.parametrize("name", ["timestamp", "timestamp_ntz", "date", "string", "decimal_38_0", "decimal_18_6", "long", "finite", "double"])
def test_no_reader_leaves_a_part_out_that_has_the_row(
    name: str, tmp_path: Path, spark: SparkSession, duckdb_delta: ForeignDuckDB
) -> None:
    """One value a part, so that only statistics decide what is read; every reader is asked for the very value."""
    kind, values = TYPES[name]
    values = [value for value in values if value is not None and value == value]
    table = lakebed.create(tmp_path / "t", pa.schema([("id", pa.int64()), ("v", kind)]), keys=["id"])
    for number, value in enumerate(values):
        table.apply(pa.table({"id": [number], "v": pa.array([value], kind)}))
        table.settle()
    from deltalake import DeltaTable, QueryBuilder
    from pyspark.sql import functions as F

    asked = spark.createDataFrame(pa.table({"v": pa.array(values, kind)})) if name != "timestamp_ntz" else None
    for number, value in enumerate(values):
        shown = sql_literal(value, kind)
        assert table.to_arrow(["id"], where=f"v = {shown}")["id"].to_pylist() == [number], f"lakebed, {value!r}"
        query = f"select id from t where v = {shown}"
        found = QueryBuilder().register("t", DeltaTable(table.path)).execute(query) if name != "string" else None
        if found is not None:
            assert pa.table(found)["id"].to_pylist() == [number], f"delta-rs, {value!r}"
        duck = duckdb_delta.query(f"select id from delta_scan('{table.path}') where v = {shown}")
        assert duck["id"].to_pylist() == [number], f"DuckDB, {value!r}"
        for label, frame in (("lakebed", table.read(spark)), ("delta-spark", spark.read.format("delta").load(table.path))):
            with_value = frame.where(F.col("v") == F.expr(spark_literal(value, kind)))
            assert [row.id for row in with_value.collect()] == [number], f"{label} in Spark, {value!r}"
    del asked


@pytest.mark.parametrize("name", PARTITIONS)
def test_every_partition_value(name: str, tmp_path: Path, spark: SparkSession, duckdb_delta: ForeignDuckDB) -> None:
    kind, values = PARTITIONS[name]
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("p", kind)])
    table = lakebed.create(tmp_path / "t", schema, keys=["id"], partition_by=["p"])
    rows = pa.table({"id": range(len(values)), "p": pa.array(values, kind)}, schema)
    table.apply(rows)
    table.settle()
    table.apply(rows.slice(0, 1))
    table.settle()
    all_agree(table, spark, duckdb_delta)
    table._log.write_checkpoint(table._log.refresh())
    all_agree(lakebed.open(table.path), spark, duckdb_delta)


def test_odd_column_names(tmp_path: Path, spark: SparkSession, duckdb_delta: ForeignDuckDB) -> None:
    names = [*ODD_NAMES, "plain"]
    schema = pa.schema([pa.field(name, pa.int64()) for name in names])
    table = lakebed.create(tmp_path / "t", schema, keys=["a`b", "ü"], sort_key=["it's"], partition_by=["a.b", "%41"])
    rows = pa.table({name: pa.array([1, 2, 3], pa.int64()) for name in names})
    table.apply(rows)
    table.settle()
    table.apply(rows.slice(1, 1))
    table.settle()
    assert all_agree(table, spark, duckdb_delta) == comparable(rows, table.schema)


def test_a_table_in_an_odd_folder(tmp_path: Path, spark: SparkSession, duckdb_delta: ForeignDuckDB) -> None:
    table = lakebed.create(tmp_path / "50% of a=b" / "ü", pa.schema([("id", pa.int64())]), keys=["id"])
    table.apply(pa.table({"id": [1, 2]}))
    table.settle()
    assert table.to_arrow()["id"].to_pylist() == [1, 2]
    assert own(table) == comparable(table.read(spark).toArrow(), table.schema)
    assert comparable(duckdb_delta.read(table.path), table.schema) == own(table)


def table_of_deletes(rows: pa.Table) -> pa.Table:
    return rows.append_column("_lakebed_op", pa.array(["d"] * len(rows)))


def sql_literal(value: Any, kind: pa.DataType) -> str:
    text = str(value).replace("'", "''")
    if pa.types.is_timestamp(kind):
        return f"timestamp{'tz' if kind.tz else ''} '{value.isoformat(' ')}'" if kind.tz is None else f"cast('{value.isoformat()}' as timestamptz)"
    if pa.types.is_date(kind):
        return f"date '{value.isoformat()}'"
    if pa.types.is_string(kind):
        return f"'{text}'"
    if pa.types.is_decimal(kind):
        return f"cast('{value:f}' as decimal({kind.precision},{kind.scale}))"
    if pa.types.is_floating(kind):
        return f"cast('{value!r}' as double)"
    return f"cast('{text}' as bigint)"


def spark_literal(value: Any, kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return f"cast('{value.isoformat()}' as timestamp{'' if kind.tz else '_ntz'})"
    if pa.types.is_string(kind):
        return "cast(unhex('" + value.encode().hex() + "') as string)"
    if pa.types.is_floating(kind):
        name = {"inf": "Infinity", "-inf": "-Infinity"}.get(repr(value), repr(value))
        return f"cast('{name}' as double)"
    return sql_literal(value, kind)
