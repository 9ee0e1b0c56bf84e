"""The same table through every reader there is, in one form that can be compared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

import lakebed
from lakebed.far_times import python_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.infra.foreign_duckdb import ForeignDuckDB


def comparable(rows: pa.Table, schema: pa.Schema) -> list[str]:
    """The rows in a form that tells -0.0 from 0.0 and finds NaN equal to itself, in an order of its own."""
    loose = pa.schema([field.with_nullable(True) for field in _loose(schema)])
    listed = python_rows(rows.select(schema.names).cast(loose), maps_as_pydicts="strict")
    return sorted(repr(row) for row in listed)


def own(table: lakebed.Table, version: int | None = None) -> list[str]:
    return comparable(table.to_arrow(version=version), table.schema)


def own_spark(table: lakebed.Table, spark: SparkSession, version: int | None = None) -> list[str]:
    return comparable(table.read(spark, version=version).toArrow(), table.schema)


def delta_spark(table: lakebed.Table, spark: SparkSession, version: int | None = None) -> list[str]:
    reader = spark.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    return comparable(reader.load(table.path).toArrow(), table.schema)


def delta_rs(table: lakebed.Table, version: int | None = None) -> list[str]:
    opened = DeltaTable(table.path, version=version)
    return comparable(pa.table(QueryBuilder().register("t", opened).execute("select * from t")), table.schema)


def foreign_duckdb(table: lakebed.Table, duckdb: ForeignDuckDB, version: int | None = None) -> list[str]:
    return comparable(duckdb.read(table.path, version), table.schema)


def all_agree(
    table: lakebed.Table, spark: SparkSession, duckdb: ForeignDuckDB, version: int | None = None
) -> list[str]:
    """What all readers read of a settled version; raises AssertionError naming the one that differs."""
    rows = own(table, version)
    assert own_spark(table, spark, version) == rows, f"lakebed's Spark reader, version {version}"
    foreign_agree(table, rows, spark, duckdb, version)
    return rows


def foreign_agree(
    table: lakebed.Table, rows: list[str], spark: SparkSession, duckdb: ForeignDuckDB, version: int | None = None
) -> None:
    """Raises AssertionError naming the foreign reader that does not read ``rows``."""
    assert delta_spark(table, spark, version) == rows, f"delta-spark, version {version}"
    assert delta_rs(table, version) == rows, f"delta-rs, version {version}"
    assert foreign_duckdb(table, duckdb, version) == rows, f"DuckDB's Delta extension, version {version}"


def files_of(folder: Path | str) -> dict[str, tuple[int, int]]:
    """Every file below a folder with its size and time of change: what a refused writer must leave as it is."""
    root = Path(folder)
    # Checksums that Hadoop keeps beside files it reads are nobody's data.
    paths = (path for path in root.rglob("*") if path.is_file() and not path.name.endswith(".crc"))
    return {str(path.relative_to(root)): (path.stat().st_size, path.stat().st_mtime_ns) for path in paths}


def _loose(schema: pa.Schema) -> list[Any]:
    return [pa.field(field.name, _nullable(field.type)) for field in schema]


def _nullable(kind: pa.DataType) -> pa.DataType:
    """The type with every nested field nullable: readers differ in what they say of that, not in values."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(child.name, _nullable(child.type)) for child in kind])
    if pa.types.is_map(kind):
        return pa.map_(_nullable(kind.key_type), pa.field("value", _nullable(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _nullable(kind.value_type)))
    return kind
