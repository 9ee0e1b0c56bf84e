"""Tables of every type, read by lakebed with and without Spark, by delta-spark, delta-rs and DuckDB's extension."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

import lakebed
from tests.foreign.readers import all_agree, comparable, own, own_spark
from tests.internals import log_of
from tests.table.values import ODD_NAMES, PARTITIONS, TYPES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.infra.foreign_duckdb import ForeignDuckDB

pytestmark = pytest.mark.slow
WITH_BOUNDS = [
    name for name, (kind, _) in TYPES.items() if not (pa.types.is_nested(kind) or name in ("boolean", "binary"))
]


def in_columns(types: dict[str, tuple[pa.DataType, list[Any]]]) -> pa.Table:
    """A column a type and a row for every place in the longest list of values; shorter lists end in nulls."""
    longest = max(len(values) for _, values in types.values())
    columns: dict[str, pa.Array] = {"id": pa.array(range(longest), pa.int64())}
    for name, (kind, values) in types.items():
        columns[name] = pa.array([*values, *[None] * (longest - len(values))], kind)
    return pa.table(columns)


@pytest.mark.long
def test_every_type_at_its_edges(tmp_path: Path, spark: SparkSession, duckdb_delta: ForeignDuckDB) -> None:
    rows = in_columns(TYPES)
    table = lakebed.create(tmp_path / "t", rows.schema, keys=["id"])
    table.apply(rows.slice(0, 6))
    table.settle()
    table.apply(rows.slice(3))
    table.settle()
    table.apply(rows.slice(0, 1).append_column("_lakebed_op", pa.array(["d"])))
    table.settle()
    assert all_agree(table, spark, duckdb_delta) == comparable(rows.slice(1), table.schema)


@pytest.mark.long
def test_dates_of_all_years_and_infinities(tmp_path: Path, spark: SparkSession, duckdb_delta: ForeignDuckDB) -> None:
    """Statistics do not stop a reader: those of years that Python lacks are left out, an infinity is a day of the year 9999."""
    day = pa.array([6_666_479, -735_160, 2**31 - 1, -(2**31), 2_932_897, 0], pa.int32()).view(pa.date32())
    micros = pa.array([2**63 - 1, -(2**63), 575_983_828_800_123_456, -63_517_780_799_876_544, 2**62, 0], pa.int64())
    rows = pa.table(
        [pa.array(range(6)), day, micros.view(pa.timestamp("us", "UTC")), micros.view(pa.timestamp("us"))],
        ["id", "day", "seen", "local"],
    )
    table = lakebed.create(tmp_path / "t", rows.schema, keys=["id"], sort_key=["seen"])
    for part in (rows, rows.slice(0, 1), rows.slice(2, 1)):
        table.apply(part)
        table.settle()
    assert len(all_agree(table, spark, duckdb_delta)) == 6
    ends = "seen in (timestamp '9999-12-31 00:00:00+00', timestamp '0001-01-03 00:00:00+00') or day = date '9999-12-31'"
    rows_of_spark = (
        spark.read.format("delta").load(table.path).where(ends).selectExpr("id", "if(id = 2, null, seen) as seen")
    )
    years = [(row["id"], row["seen"] and row["seen"].year) for row in rows_of_spark.orderBy("id").collect()]
    assert years == [(0, 9999), (1, 1), (2, None)]


@pytest.mark.long
def test_no_reader_leaves_out_a_part_that_has_the_row(
    tmp_path: Path, spark: SparkSession, duckdb_delta: ForeignDuckDB
) -> None:
    """A part a row, so that statistics decide what is read; every reader is asked for every single value."""
    rows = in_columns({name: TYPES[name] for name in WITH_BOUNDS})
    table = lakebed.create(tmp_path / "t", rows.schema, keys=["id"])
    for number in range(len(rows)):
        table.apply(rows.slice(number, 1))
    table.settle()
    assert table.inspect.parts().num_rows == len(rows)
    asked = [
        (name, number, value)
        for name in WITH_BOUNDS
        for number, value in enumerate(TYPES[name][1])
        if value is not None and value == value
    ]
    wanted = [f"{name} {number}" for name, number, _ in asked]
    for name, number, value in asked:
        condition = f"{name} = {sql_literal(value, rows.schema.field(name).type)}"
        assert table.to_arrow(["id"], where=condition)["id"].to_pylist() == [number], f"lakebed: {condition}"

    def query(relation: str, leave_out_far_years: bool = False) -> str:
        return " union all ".join(
            f"select '{name} {number}' as asked from {relation} where "
            f"{name} = {sql_literal(value, rows.schema.field(name).type)} and id = {number}"
            for name, number, value in asked
            if not (leave_out_far_years and is_far(value))
        )

    found = duckdb_delta.query(query(f"delta_scan('{table.path}')"))
    assert sorted(found["asked"].to_pylist()) == sorted(wanted), "DuckDB's Delta extension"
    # delta-rs reads literals of time as nanoseconds since 1970, which end in 2262.
    near = [text for text, (_, _, value) in zip(wanted, asked, strict=True) if not is_far(value)]
    answer = QueryBuilder().register("t", DeltaTable(table.path)).execute(query("t", leave_out_far_years=True))
    assert sorted(pa.table(answer)["asked"].to_pylist()) == sorted(near), "delta-rs"

    def ask(frame: DataFrame, names: Sequence[str]) -> list[str]:
        frame.createOrReplaceTempView("asked_table")
        query = " union all ".join(
            f"select concat('{name} ', id) from asked_table where {name} in ({', '.join(literals)})"
            for name in names
            if (literals := [spark_literal(v, rows.schema.field(name).type) for n, _, v in asked if n == name])
        )
        return sorted(row[0] for row in spark.sql(query).collect())

    assert ask(table.read(spark), WITH_BOUNDS) == sorted(wanted), "lakebed's Spark reader"
    # Delta's own planning costs a Spark job a predicate: the types whose bounds are no plain numbers must do.
    delicate = ["string", "timestamp", "timestamp_ntz", "decimal_38_0"]
    found_by_delta = ask(spark.read.format("delta").load(table.path), delicate)
    assert found_by_delta == sorted(t for t, (name, _, _) in zip(wanted, asked, strict=True) if name in delicate)


@pytest.mark.long
def test_every_partition_value(tmp_path: Path, spark: SparkSession, duckdb_delta: ForeignDuckDB) -> None:
    rows = in_columns(PARTITIONS)
    table = lakebed.create(tmp_path / "t", rows.schema, keys=["id"], partition_by=list(PARTITIONS))
    table.apply(rows)
    table.settle()
    table.apply(rows.slice(0, 1))
    table.settle()
    # Delta can't tell an empty partition value from null: null it is, for every reader.
    texts = pa.array([None if value == "" else value for value in rows["string"].to_pylist()])
    wanted = comparable(rows.set_column(rows.schema.get_field_index("string"), "string", texts), table.schema)
    assert all_agree(table, spark, duckdb_delta) == wanted
    log_of(table).write_checkpoint(log_of(table).refresh())
    assert all_agree(lakebed.open(table.path), spark, duckdb_delta) == wanted


@pytest.mark.long
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


@pytest.mark.parametrize("folder", ["day=1 of ü", "50% of 100%20"])
def test_a_table_in_an_odd_folder_is_read_by_both_of_lakebeds_readers(
    folder: str, tmp_path: Path, spark: SparkSession
) -> None:
    table = lakebed.create(tmp_path / folder / "t", pa.schema([("id", pa.int64())]), keys=["id"])
    table.apply(pa.table({"id": [1, 2]}))
    table.settle()
    table.apply(pa.table({"id": [2]}))
    assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2]
    assert own_spark(table, spark) == own(table)


def is_far(value: Any) -> bool:
    return isinstance(value, datetime.date) and not 1700 < value.year < 2262


def sql_literal(value: Any, kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return f"cast('{value.isoformat()}' as timestamp{' with time zone' if kind.tz else ''})"
    if pa.types.is_date(kind):
        return f"cast('{value.isoformat()}' as date)"
    if pa.types.is_string(kind):
        # No dialect's escapes: characters one by one.
        return " || ".join(f"chr({ord(character)})" for character in value) or "''"
    if pa.types.is_decimal(kind):
        return f"cast('{value:f}' as decimal({kind.precision},{kind.scale}))"
    if pa.types.is_floating(kind):
        return f"cast('{value!r}' as {'double' if kind == pa.float64() else 'real'})"
    return f"cast('{value}' as bigint)"


def spark_literal(value: Any, kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return f"cast('{value.isoformat()}' as timestamp{'' if kind.tz else '_ntz'})"
    if pa.types.is_string(kind):
        return f"decode(unhex('{value.encode().hex()}'), 'utf-8')"
    if pa.types.is_floating(kind):
        name = {"inf": "Infinity", "-inf": "-Infinity"}.get(repr(value), repr(value))
        return f"cast('{name}' as {'double' if kind == pa.float64() else 'float'})"
    return sql_literal(value, kind)
