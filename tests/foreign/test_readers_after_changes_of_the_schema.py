"""What every Delta reader reads of a table whose schema changed: before the change, right after it, with new rows, and merged.

docs/guides/schema-changes.md has this as a table. A reader that can't read a table refuses it, and names the feature that it
lacks.
"""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

import lakebed
from lakebed.operations.alter import alter
from lakebed.schema.change import SchemaChange
from tests.foreign.readers import comparable
from tests.internals import log_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.infra.foreign_duckdb import ForeignDuckDB

INNER = pa.struct([("x", pa.int32()), ("y", pa.string())])
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False), pa.field("n", pa.int32()), pa.field("f", pa.float32()),
        pa.field("d", pa.date32()), pa.field("m", pa.decimal128(6, 2)), pa.field("t", pa.string(), nullable=False),
        pa.field("s", INNER), pa.field("l", pa.list_(INNER)), pa.field("k", pa.map_(pa.string(), INNER)),
        pa.field("p", pa.string()),
    ]
)  # fmt: skip
MAPPED, WIDENED = "columnMapping", "typeWidening"
CHANGES: dict[str, tuple[str | None, SchemaChange]] = {
    "add a column": (None, SchemaChange(add={"c": pa.string()})),
    "add fields": (None, SchemaChange(add={"s.z": pa.int64(), "l.element.z": INNER})),
    "add fields within maps": (None, SchemaChange(add={"k.value.z": pa.string()})),
    "relax": (None, SchemaChange(relax=("t",))),
    "rename columns": (MAPPED, SchemaChange(rename={"n": "number of, things", "p": "part"})),
    "rename fields": (MAPPED, SchemaChange(rename={"s.x": "ex", "l.element.y": "why", "k.value.x": "Ä"})),
    "drop a column": (MAPPED, SchemaChange(drop=("m",))),
    "drop fields": (MAPPED, SchemaChange(drop=("s.y", "l.element.y"))),
    "drop and add a column": (MAPPED, SchemaChange(drop=("f",), add={"f": pa.string()})),
    "widen integers": (WIDENED, SchemaChange(widen={"id": pa.int64()})),
    "widen fields": (WIDENED, SchemaChange(widen={"s.x": pa.int64(), "l.element.x": pa.int64(), "k.value.x": pa.int64()})),
    "integer to double": (WIDENED, SchemaChange(widen={"n": pa.float64()})),
    "integer to decimal": (WIDENED, SchemaChange(widen={"n": pa.decimal128(12, 2)})),
    "float to double": (WIDENED, SchemaChange(widen={"f": pa.float64()})),
    "more digits": (WIDENED, SchemaChange(widen={"m": pa.decimal128(12, 4)})),
    "date to timestamp": (WIDENED, SchemaChange(widen={"d": pa.timestamp("us")})),
}  # fmt: skip


REFUSED_BY_DELTA_RS = {
    WIDENED: r"Unsupported table features required: \[TypeWidening",
    "add fields within maps": "Cannot cast struct field 'k'",
}
ONE_AFTER_THE_OTHER = [
    SchemaChange(add={"c": pa.string()}),
    SchemaChange(add={"s.z": pa.int64(), "l.element.z": INNER, "k.value.z": pa.string()}, relax=("t",)),
    SchemaChange(rename={"n": "number of, things", "p": "part", "s.x": "ex", "k.value.x": "Ä"}),
    SchemaChange(drop=("c", "s.y", "l.element.y")),
    SchemaChange(drop=("k.value.y", "t"), add={"t": pa.int32()}),
    SchemaChange(widen={"id": pa.int64(), "s.ex": pa.int64(), "l.element.x": pa.int64(), "k.value.Ä": pa.int64()}),
    SchemaChange(widen={"number of, things": pa.float64(), "f": pa.float64(), "t": pa.decimal128(12, 2)}),
    SchemaChange(widen={"m": pa.decimal128(12, 4), "d": pa.timestamp("us")}),
]


def value(kind: pa.DataType, number: int) -> Any:
    if pa.types.is_struct(kind):
        return {child.name: value(child.type, number) for child in kind}
    if pa.types.is_list(kind):
        return [value(kind.value_type, number), None]
    if pa.types.is_map(kind):
        return [("a", value(kind.item_type, number)), ("b", None)]
    if pa.types.is_string(kind):
        return f"text {number % 2}"
    if pa.types.is_decimal(kind):
        return (decimal.Decimal(number) + decimal.Decimal("0.25")).quantize(decimal.Decimal(1).scaleb(-kind.scale))
    if pa.types.is_date(kind):
        return datetime.date(2026, 1, 1) + datetime.timedelta(days=number)
    if pa.types.is_timestamp(kind):
        return datetime.datetime(2026, 1, 1, 5, 30) + datetime.timedelta(days=number)
    if pa.types.is_floating(kind):
        return number + 0.5
    return number + 2**40 if kind == pa.int64() and number > 3 else number


def rows(schema: pa.Schema, numbers: range) -> pa.Table:
    """Rows of these numbers; one of two of them lacks what may be null."""
    listed = [
        {
            each.name: number
            if each.name == "id"
            else None
            if each.nullable and number % 3 == 2
            else value(each.type, number)
            for each in schema
        }
        for number in numbers
    ]
    return pa.Table.from_pylist(listed, schema)


def made(path: Path) -> lakebed.Table:
    table = lakebed.create(path, SCHEMA, keys=["id"], partition_by=["p"])
    table.apply(rows(SCHEMA, range(4)))
    table.settle()
    return table


def with_rows_since(table: lakebed.Table) -> list[int]:
    """Two batches after a change; returns the versions: with a tail, settled, merged."""
    schema = table.schema
    table.apply(rows(schema, range(3, 6)))
    table.apply(rows(schema, range(5, 8)))
    versions = [table.version]
    table.settle()
    versions.append(table.version)
    table.maintenance.recluster(final=True)
    return [*versions, table.version]


def settled_rows(table: lakebed.Table, version: int) -> list[str]:
    """What lakebed reads of the newest version up to this one that has no tail: what other readers see."""
    log = log_of(table)
    while log.at_version(version).tail:
        version -= 1
    found = table.to_arrow(version=version)
    return comparable(found, found.schema)


def found_by(found: pa.Table, table: lakebed.Table, version: int) -> list[str]:
    return comparable(found, log_of(table).at_version(version).logical_schema)


def delta_rs(table: lakebed.Table, version: int) -> list[str]:
    opened = DeltaTable(table.path, version=version)
    return found_by(pa.table(QueryBuilder().register("t", opened).execute("select * from t")), table, version)


@pytest.mark.few(6)
@pytest.mark.parametrize("name", CHANGES)
def test_delta_rs_and_duckdb_read_every_version_or_say_why_not(
    name: str, tmp_path: Path, duckdb_delta: ForeignDuckDB
) -> None:
    feature, change = CHANGES[name]
    table = made(tmp_path / "t")
    before = table.version
    alter(log_of(table), change)
    for version in [before, table.version, *with_rows_since(table)]:
        wanted = settled_rows(table, version)
        assert found_by(duckdb_delta.read(table.path, version), table, version) == wanted, f"DuckDB, version {version}"
        refusal = REFUSED_BY_DELTA_RS.get(name) or REFUSED_BY_DELTA_RS.get(feature)
        if refusal and version > before:
            with pytest.raises(Exception, match=refusal):
                delta_rs(table, version)
        else:
            assert delta_rs(table, version) == wanted, f"delta-rs, version {version}"


@pytest.mark.long
@pytest.mark.slow
def test_delta_spark_reads_every_version(tmp_path: Path, spark: SparkSession) -> None:
    table = made(tmp_path / "t")
    versions = [table.version]
    for change in ONE_AFTER_THE_OTHER:
        alter(log_of(table), change)
        versions.append(table.version)
        table.apply(rows(table.schema, range(len(versions), len(versions) + 3)))
        table.settle()
    versions += with_rows_since(table)
    for version in [*versions[::2], *versions[-2:]]:
        found = spark.read.format("delta").option("versionAsOf", version).load(table.path).toArrow()
        assert found_by(found, table, version) == settled_rows(table, version), f"delta-spark, version {version}"


@pytest.mark.long
@pytest.mark.slow
def test_a_table_of_delta_spark_with_mapped_and_widened_columns_is_adopted(
    tmp_path: Path, spark: SparkSession, duckdb_delta: ForeignDuckDB
) -> None:
    path = tmp_path / "t"
    sql = f"delta.`{path}`"
    properties = "'delta.columnMapping.mode' = 'name', 'delta.enableTypeWidening' = 'true'"
    kinds = "id int not null, n int, gone string, p string, s struct<x: int, y: string>"
    spark.sql(f"create table {sql} ({kinds}) using delta partitioned by (p) tblproperties ({properties})")
    spark.sql(f"insert into {sql} select id, id, 'old', 'a b', named_struct('x', id, 'y', 'y') from range(10)")
    spark.sql(f"alter table {sql} drop column gone")
    spark.sql(f"alter table {sql} rename column n to `a number, of things`")
    spark.sql(f"alter table {sql} rename column s.x to ex")
    spark.sql(f"alter table {sql} alter column id type bigint")
    spark.sql(f"alter table {sql} alter column s.ex type bigint")
    spark.sql(f"alter table {sql} add columns (gone int)")
    spark.sql(f"insert into {sql} values ({2**40}, 1, null, named_struct('ex', {2**41}, 'y', null), 7)")
    wanted = comparable(spark.read.format("delta").load(str(path)).toArrow(), lakebed.open(path).schema)
    table = lakebed.convert(path, keys=["id"], sort_key=["a number, of things"])
    assert comparable(table.to_arrow(), table.schema) == wanted
    table.apply(rows(table.schema, range(5, 12)))
    alter(log_of(table), SchemaChange(rename={"p": "part"}, add={"s.z": pa.int32()}))
    table.apply(rows(table.schema, range(11, 14)))
    table.delete("part = 'text 0' and id = 12")
    table.settle()
    table.maintenance.recluster(final=True)
    name = table.detach_partition({"part": "a b"})
    alter(log_of(table), SchemaChange(drop=("gone",), widen={"a number, of things": pa.int64()}))
    table.attach_partition(name)
    assert [str(finding) for finding in table.doctor(deep=True).findings] == []
    wanted = settled_rows(table, table.version)
    assert found_by(spark.read.format("delta").load(str(path)).toArrow(), table, table.version) == wanted
    in_duckdb = duckdb_delta.read(table.path, table.version)
    assert in_duckdb["part"].null_count > table.to_arrow()["part"].null_count, "DuckDB takes no such value from the log"
    others = [name for name in table.schema.names if name != "part"]
    wanted = comparable(table.to_arrow().select(others), pa.schema([table.schema.field(name) for name in others]))
    assert comparable(in_duckdb.select(others), pa.schema([table.schema.field(name) for name in others])) == wanted
