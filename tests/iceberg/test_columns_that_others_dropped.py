"""A column that another writer dropped before is in its files still, and no log says its name: refused until they are rewritten.

Files from before a table's column mapping have no numbers. Readers of Iceberg go by names there, and DuckDB gives null for
other columns where it does not know one: silence that only lakebed can break.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import lakebed
from lakebed.errors import InvalidSchema
from lakebed.iceberg.publisher import Publisher
from lakebed.iceberg.unknown_columns import unknown_columns
from tests.iceberg.readers import all_agree
from tests.infra.foreign_duckdb import ICEBERG, ForeignDuckDB
from tests.internals import log_of, storage_of
from tests.table.others import commit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = pa.table(
    {
        "id": pa.array([1, 2], pa.int64()),
        "gone": ["g", "h"],
        "v": ["v1", "v2"],
        "w": pa.array([{"x": 1, "y": 2}, None], pa.struct([("x", pa.int64()), ("y", pa.int64())])),
    }
)
ON = {"lakebed.iceberg": "on"}
REFUSAL = r"another writer dropped 1 columns .* 1 files that it wrote may hold them still, .*recluster --final"


@pytest.fixture(scope="module")
def duckdb() -> Iterator[ForeignDuckDB]:
    with ForeignDuckDB(ICEBERG) as found:
        yield found


def field(name: str, kind: Any, number: int) -> dict[str, Any]:
    metadata = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": name}
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


STRUCT = {"type": "struct", "fields": [field("x", "long", 5), field("y", "long", 6)]}
FIELDS = [field("id", "long", 1), field("gone", "string", 2), field("v", "string", 3), field("w", STRUCT, 4)]


def dropped(path: Path, fields: list[dict[str, Any]]) -> lakebed.Table:
    """A table of delta-rs that got column mapping and lost columns, in the words in which Spark commits both."""
    write_deltalake(path, ROWS)
    metadata = {
        "id": "00000000-0000-0000-0000-000000000001",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "6"},
        "createdTime": 0,
    }
    commit(path, 1, [{"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}, {"metaData": metadata}])
    return lakebed.convert(path, keys=["id"])


def is_refused_until_rewritten(table: lakebed.Table, duckdb: ForeignDuckDB) -> None:
    with pytest.raises(InvalidSchema, match=REFUSAL):
        table.set_properties(ON)
    with pytest.raises(InvalidSchema, match=REFUSAL):
        Publisher(log_of(table), storage_of(table)).publish(log_of(table).refresh())
    table.maintenance.recluster(final=True)
    table.set_properties(ON)
    table.maintenance.publish_iceberg()
    assert all_agree(table, duckdb) == all_agree(table, duckdb, table.version)
    table.apply([{"id": 2, "v": "new"}, {"id": 3, "v": "v3"}], columns="sent")
    table.settle()
    table.maintenance.publish_iceberg()
    all_agree(table, duckdb)


def without_a_column() -> list[dict[str, Any]]:
    return [each for each in FIELDS if each["name"] != "gone"]


def without_the_newest_field() -> list[dict[str, Any]]:
    return [*FIELDS[:3], field("w", STRUCT | {"fields": STRUCT["fields"][:1]}, 4)]


@pytest.mark.parametrize("fields", [without_a_column, without_the_newest_field])
def test_it_is_refused_until_the_files_are_rewritten(
    fields: Callable[[], list[dict[str, Any]]], tmp_path: Path, duckdb: ForeignDuckDB
) -> None:
    is_refused_until_rewritten(dropped(tmp_path / "t", fields()), duckdb)


def test_an_older_version_with_such_files_is_not_published(tmp_path: Path, duckdb: ForeignDuckDB) -> None:
    table = dropped(tmp_path / "t", without_a_column())
    before = table.version
    is_refused_until_rewritten(table, duckdb)
    table.restore(version=before)
    with pytest.raises(InvalidSchema, match=REFUSAL):
        table.set_properties(ON)
        table.maintenance.publish_iceberg()
    table.maintenance.recluster(final=True)
    table.set_properties(ON)
    table.maintenance.publish_iceberg()
    all_agree(table, duckdb)


@pytest.mark.parametrize("is_mapped", [True, False])
def test_what_lakebed_dropped_is_known(is_mapped: bool, tmp_path: Path, duckdb: ForeignDuckDB) -> None:
    if is_mapped:
        table = dropped(tmp_path / "t", FIELDS)
    else:
        write_deltalake(tmp_path / "t", ROWS)
        table = lakebed.convert(tmp_path / "t", keys=["id"])
    table.alter(drop=["gone", "w.y"])
    table.alter(add={"gone": pa.int64()})
    assert unknown_columns(log_of(table).refresh()) == 0
    table.set_properties(ON)
    table.maintenance.publish_iceberg()
    all_agree(table, duckdb)


@pytest.mark.long
def test_a_column_that_spark_dropped(tmp_path: Path, spark: SparkSession, duckdb: ForeignDuckDB) -> None:
    name = f"delta.`{tmp_path / 't'}`"
    write_deltalake(tmp_path / "t", ROWS)
    spark.sql(
        f"alter table {name} set tblproperties ('delta.columnMapping.mode' = 'name', 'delta.minReaderVersion' = '2', "
        "'delta.minWriterVersion' = '5')"
    )
    spark.sql(f"alter table {name} drop column gone")
    is_refused_until_rewritten(lakebed.convert(tmp_path / "t", keys=["id"]), duckdb)
